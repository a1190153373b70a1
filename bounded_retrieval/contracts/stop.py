"""Why a run ended: exactly one value per run, stable snake_case."""

from __future__ import annotations

from enum import StrEnum


class StopReason(StrEnum):
    """Stop reasons of the bounded controller and of the recursive chain.

    Each value says why the run ended and never more than that.
    """

    PROXY_SUFFICIENT = "proxy_sufficient"
    """Means: returned words passed a declared heuristic test.
    Does not mean: the evidence is sufficient, correct or complete."""

    RESOURCE_BUDGET_EXHAUSTED = "resource_budget_exhausted"
    """Means: the remaining allowance could not support another action.
    Does not mean: nothing more exists."""

    NO_NEW_EVIDENCE = "no_new_evidence"
    """Means: a further attempt produced no new reference.
    Does not mean: an exhaustive search was made."""

    POLICY_COMPLETE = "policy_complete"
    """Means: a fixed policy made its one declared call.
    Does not mean: anything about the evidence."""

    DEADLINE_EXCEEDED = "deadline_exceeded"
    """Means: the clock ended the run; what was found is packed.
    Does not mean: a failure."""

    CANCELLED = "cancelled"
    """Means: the caller ended the run; what was found is packed.
    Does not mean: a failure."""

    RETRIEVAL_FAILED = "retrieval_failed"
    """Means: no permitted attempt answered.
    Does not mean: no evidence exists."""

    PATH_FOLLOWED = "path_followed"
    """Means: every hop of the requested path was found among the declared relationships, each with its source.
    Does not mean: the relationships are true, or the only ones."""

    PATH_UNRESOLVED = "path_unresolved"
    """Means: no source that could be shown supports the whole path.
    Does not mean: the relationship does not exist."""

    AMBIGUOUS_REQUEST = "ambiguous_request"
    """Means: the start name, or a hop, stands for more than one entity; none was chosen.
    Does not mean: any of them is the wrong one."""

    NO_NEXT_QUERY = "no_next_query"
    """Means: the planner named nothing more to look up.
    Does not mean: the question is answered."""

    REPEATED_QUERY = "repeated_query"
    """Means: the next query was one that had been made, or nearly so.
    Does not mean: nothing else could be asked."""

    SUFFICIENT = "sufficient"
    """Means: the declared sufficiency test passed on what was found.
    Does not mean: the evidence is correct or complete."""

    DEPTH_CAP = "depth_cap"
    """Means: the chain made as many hops as it may.
    Does not mean: the question is answered, or cannot be."""

    TOKEN_BUDGET_EXHAUSTED = "token_budget_exhausted"  # noqa: S105 - a count of tokens
    """Means: the models used up the chain's tokens.
    Does not mean: nothing more exists."""

    @property
    def meaning(self) -> str:
        """What the value means, in one plain sentence."""
        return _MEANINGS[self][0]

    @property
    def not_meaning(self) -> str:
        """What must not be read into the value."""
        return _MEANINGS[self][1]


_MEANINGS: dict[StopReason, tuple[str, str]] = {
    StopReason.PROXY_SUFFICIENT: (
        "The returned words passed a declared heuristic test.",
        "This does not say that the evidence is sufficient, correct or complete.",
    ),
    StopReason.RESOURCE_BUDGET_EXHAUSTED: (
        "The remaining allowance could not support another action.",
        "This does not say that nothing more exists.",
    ),
    StopReason.NO_NEW_EVIDENCE: (
        "A further attempt produced no new reference.",
        "This does not say that the search was exhaustive.",
    ),
    StopReason.POLICY_COMPLETE: (
        "A fixed policy made its one declared call.",
        "This says nothing about the evidence.",
    ),
    StopReason.DEADLINE_EXCEEDED: (
        "The clock ended the run; what was found is packed.",
        "This does not say that anything failed.",
    ),
    StopReason.CANCELLED: (
        "The caller ended the run; what was found is packed.",
        "This does not say that anything failed.",
    ),
    StopReason.RETRIEVAL_FAILED: (
        "No permitted attempt answered.",
        "This does not say that no evidence exists.",
    ),
    StopReason.PATH_FOLLOWED: (
        "Every hop of the requested path was found among the declared relationships, each with its source.",
        "This does not say that the relationships are true, or that they are the only ones.",
    ),
    StopReason.PATH_UNRESOLVED: (
        "No source that could be shown supports the whole path.",
        "This does not say that the relationship does not exist.",
    ),
    StopReason.AMBIGUOUS_REQUEST: (
        "The start name, or a hop, stands for more than one entity; none was chosen.",
        "This does not say that any of them is the wrong one.",
    ),
    StopReason.NO_NEXT_QUERY: (
        "The planner named nothing more to look up.",
        "This does not say that the question is answered.",
    ),
    StopReason.REPEATED_QUERY: (
        "The next query was one that had been made, or nearly so.",
        "This does not say that nothing else could be asked.",
    ),
    StopReason.SUFFICIENT: (
        "The declared sufficiency test passed on what was found.",
        "This does not say that the evidence is correct or complete.",
    ),
    StopReason.DEPTH_CAP: (
        "The chain made as many hops as it may.",
        "This does not say that the question is answered, or that it cannot be.",
    ),
    StopReason.TOKEN_BUDGET_EXHAUSTED: (
        "The models used up the chain's tokens.",
        "This does not say that nothing more exists.",
    ),
}

PROVISIONAL = frozenset({StopReason.PROXY_SUFFICIENT, StopReason.PATH_FOLLOWED})
"""Stop reasons after which a packet may be ``provisional``; after every other one it is ``unresolved``."""
