"""What the chain's nodes share: reading its state, forgetting what another caller saw, closing a hop."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.chain import ChainLimits, ChainUsage, Check, Hop, NextQuery
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.graph.chain_state import ChainParts, ChainState
from bounded_retrieval.graph.state import Update
from bounded_retrieval.nodes.clock import Stopwatch
from bounded_retrieval.nodes.eligibility import Access, open_access
from bounded_retrieval.nodes.running import Call, part_call
from bounded_retrieval.policies.chaining import first_fired, spent

MAX_TOKENS = 10**9
"""Most tokens that a failed call is charged."""


@dataclass(frozen=True, kw_only=True)
class Chain:
    """The chain as a node finds it.

    Attributes:
        forgotten: what to write to state because another caller's view is in force now; empty otherwise.
    """

    question: str
    query_id: str
    limits: ChainLimits
    trail: tuple[Hop, ...]
    plan: NextQuery | None
    checks: tuple[Check, ...]
    usage: ChainUsage
    access: Access
    forgotten: Update
    state: ChainState
    watch: Stopwatch

    def call(self, part: object, method: str, *args: Any, parts: ChainParts) -> Call:
        """Describe calling a part, which has what is left of the deadline, where there is one; then it has failed."""
        deadline = self.limits.deadline_ms
        left = None if deadline is None else max(0.0, deadline - self.watch.elapsed_ms()) / 1000
        return part_call(part, method, *args, limit=None if left is None else parts.time_limit.lasting(left))

    def checked(self, checks: Sequence[Check]) -> Update:
        """The update of a node that made these checks: the rule that fired, if any, ends the chain."""
        stopped = first_fired(checks)
        return {
            "checks": [check.model_dump(mode="json") for check in (*self.checks, *checks)],
            "stopped": "" if stopped is None else stopped.value,
            "elapsed_ms": self.watch.elapsed_ms(),
        }

    def shown(self) -> tuple[Hop, ...]:
        """The trail as planners and sufficiency tests get it: copies, which they may do with as they like."""
        return tuple(hop.model_copy(deep=True) for hop in self.closed())

    def closed(self) -> tuple[Hop, ...]:
        """The trail with what was checked since the latest hop written to it."""
        if not self.trail or not self.checks:
            return self.trail
        *earlier, latest = self.trail
        return (*earlier, latest.model_copy(update={"checks": (*latest.checks, *self.checks)}))


def enter(state: ChainState, runtime: Runtime[Any], parts: ChainParts) -> Generator[Call, Any, Chain]:
    """Read the state, first making sure that it is still shown to the caller whose view it holds."""
    watch = Stopwatch(state, parts)
    settings = state["settings"]
    access = yield from open_access(state, runtime, parts.recheck, settings["query_id"])
    forgotten = _forget(access.note) if access.note else {}
    state = cast("ChainState", {**state, **forgotten})
    trail = tuple(Hop.model_validate(hop) for hop in state["trail"])
    plan = state["plan"]
    return Chain(
        question=settings["question"],
        query_id=settings["query_id"],
        limits=_within(settings["limits"], parts.limits),
        trail=trail,
        plan=None if plan is None else NextQuery.model_validate(plan),
        checks=tuple(Check.model_validate(check) for check in state["checks"]),
        usage=spent(trail, state["planning"]),
        access=access,
        forgotten=forgotten,
        state=state,
        watch=watch,
    )


def tokens_of(error: Exception) -> int:
    """Tokens that a call took although it failed, where the error says so; they stay charged."""
    try:
        tokens = getattr(error, "tokens", 0)
    except Exception:  # noqa: BLE001 - an error that cannot say has not said
        return 0
    return tokens if isinstance(tokens, int) and 0 < tokens <= MAX_TOKENS else 0


def _forget(note: str) -> Update:
    return {
        "plan": None,
        "planning": 0,
        "checks": [],
        "units": {},
        "sources": {},
        "trail": [],
        "notes": [note],
        "stopped": StopReason.RETRIEVAL_FAILED.value,
    }


def _within(limits: Mapping[str, Any], ceiling: ChainLimits) -> ChainLimits:
    # Whoever can write a thread's state could have raised a limit there.
    lowered = {name: most for name, most in ceiling if most is not None and not _is_at_most(limits.get(name), most)}
    return ChainLimits.model_validate({**limits, **lowered})


def _is_at_most(limit: Any, most: int) -> bool:
    return isinstance(limit, int) and not isinstance(limit, bool) and limit <= most
