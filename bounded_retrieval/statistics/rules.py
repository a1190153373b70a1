"""The declared rules by which something is suggested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bounded_retrieval.contracts.chain import RESOLVING
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.statistics.reading import Kind, Run

LEAST_RUNS = 10
"""Fewest runs of a kind on which anything is suggested."""


@dataclass(frozen=True)
class Rule:
    """A declared rule: from which share of the runs of a kind, in percent, something is suggested.

    Attributes:
        counts: the runs that are counted, in words.
        test: whether a run is counted; without one, those that ended by the stop reason of the rule's name.
    """

    kind: Kind
    name: str
    percent: int
    counts: str
    suggestion: str
    test: Callable[[Run], bool] | None = None

    def applies_to(self, run: Run) -> bool:
        """Whether a run of the kind is counted."""
        return run.stop_reason.value == self.name if self.test is None else self.test(run)

    def fires(self, count: int, runs: int) -> bool:
        """Whether this many of so many runs reach the threshold, in whole numbers."""
        return runs >= LEAST_RUNS and count * 100 >= self.percent * runs


def _noted(*notes: str) -> Callable[[Run], bool]:
    return lambda run: not run.notes.isdisjoint(notes)


RULES = (
    Rule(
        "bounded",
        "proxy_sufficient",
        50,
        "runs that the words' test ended",
        "the test spares the further search; read a sample of these runs, since a test on words can stop too early, "
        "and compare it with policy always_continue",
    ),
    Rule(
        "bounded",
        "premature_stop",
        20,
        "runs that the words' test ended while words of the query were missing",
        "the test may stop too early; raise the threshold, or use policy always_continue",
        lambda run: run.stop_reason is StopReason.PROXY_SUFFICIENT and run.missing,
    ),
    Rule(
        "bounded",
        "missing_identifiers",
        10,
        "runs that ended by resource_budget_exhausted with an exact identifier missing",
        "the identifiers may not be in the collection, or be written otherwise there; look them up before raising a "
        "limit",
        lambda run: run.stop_reason is StopReason.RESOURCE_BUDGET_EXHAUSTED and run.missing_identifiers,
    ),
    Rule(
        "bounded",
        "no_new_evidence",
        20,
        "runs whose second search found nothing new",
        "both channels find the same; one search may do (policy fixed_lexical or fixed_dense)",
    ),
    Rule(
        "bounded",
        "path_unresolved",
        10,
        "runs that ended by path_unresolved or ambiguous_request",
        "relations or names are missing, or stand for several entities; add relationships, or ask back",
        lambda run: run.stop_reason in (StopReason.PATH_UNRESOLVED, StopReason.AMBIGUOUS_REQUEST),
    ),
    Rule(
        "bounded",
        "deadline_exceeded",
        5,
        "runs that the clock ended",
        "searches are too slow for deadline_ms; measure them, or raise it",
    ),
    Rule(
        "bounded",
        "retrieval_failed",
        1,
        "runs in which no search answered",
        "see the protected records (diagnostics) for what the searches raised",
    ),
    Rule(
        "bounded",
        "dropped_at_recheck",
        5,
        "runs with the note dropped_at_recheck",
        "the index lags behind its sources, or behind who may see what; index more often",
        _noted("dropped_at_recheck"),
    ),
    Rule(
        "chain",
        "depth_cap",
        20,
        "chains that made as many hops as they may",
        "the questions are deeper than the cap, or the planner drifts; read some trails before raising max_hops",
    ),
    Rule(
        "chain",
        "no_new_evidence_early",
        20,
        "chains that ended by no_new_evidence on the first or second hop",
        "hops add little here; route these questions to plain retrieval",
        lambda run: run.stop_reason is StopReason.NO_NEW_EVIDENCE and run.hops <= 2,  # noqa: PLR2004
    ),
    Rule(
        "chain",
        "repeated_query",
        10,
        "chains whose next query was one that had been made",
        "the planner circles; show it the trail's queries, or give it a decomposition",
    ),
    Rule(
        "chain",
        "token_budget_exhausted",
        10,
        "chains whose models used up the tokens",
        "raise max_tokens, or give planner and reader less to read",
    ),
    Rule(
        "chain",
        "resource_budget_exhausted",
        10,
        "chains without a call, or a step of the caller's recursion limit, left",
        "max_calls or the recursion limit is smaller than max_hops needs; raise it, or lower max_hops",
    ),
    Rule(
        "chain",
        "open_at_the_end",
        20,
        "chains that ended by no_next_query or sufficient with a part open",
        "the reader finds no sub-answer, or the planner gives up; read some trails, and look whether the collection "
        "holds the answers",
        lambda run: run.stop_reason in RESOLVING and not run.ended_well,
    ),
    Rule(
        "chain",
        "deadline_exceeded",
        5,
        "chains that the clock ended",
        "hops are too slow for deadline_ms; measure search, planner and reader, or raise it",
    ),
    Rule(
        "chain",
        "retrieval_failed",
        1,
        "chains that a failed search or planner ended",
        "see the protected records (diagnostics) for what was raised",
    ),
    Rule(
        "chain",
        "part_failed",
        1,
        "chains whose planner, reader or sufficiency test failed, or gave an unusable query",
        "see the protected records (diagnostics) for what was raised",
        _noted("planner_failed", "reader_failed", "sufficiency_failed", "unusable_query"),
    ),
    Rule(
        "chain",
        "dropped_at_recheck",
        5,
        "chains with the note dropped_at_recheck",
        "the index lags behind its sources, or behind who may see what; index more often",
        _noted("dropped_at_recheck"),
    ),
)
"""Every rule by which something is suggested."""
