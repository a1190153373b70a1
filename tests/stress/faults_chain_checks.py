"""The invariants of a chain, each a function that yields what is wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from faults_chain_model import ChainModel, follow_chain
from faults_chain_world import ChainWorld
from faults_checks import (
    broken_invariants,
    ended_from_outside,
    final_text,
    left_out,
    nothing_private,
    replays_to,
    standing_in,
)
from faults_model import OutOfStepError
from faults_run import Outcome

from bounded_retrieval.contracts.chain import CHAIN_KEYS, MAX_HOPS, ChainResult, ResolvedChain
from bounded_retrieval.contracts.packet import SEPARATOR, EvidencePacket
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.errors import ChainStoppedError


@dataclass
class ChainRun:
    """One finished chain with its model."""

    world: ChainWorld
    outcome: Outcome
    model: ChainModel

    @cached_property
    def result(self) -> ChainResult:
        return ChainResult.from_result(self.outcome.result)

    @property
    def texts(self) -> list[str]:
        return [document.page_content for document in self.result.documents]


def limits_kept(run: ChainRun) -> Iterator[str]:
    """Hops, calls, documents and characters are within the limits."""
    limits, result = run.world.case.limits, run.result
    counts = {
        "max_hops": len(result.trail),
        "max_calls": result.usage.calls,
        "max_units": len(result.documents),
        "max_chars": len(SEPARATOR.join(run.texts)),
    }
    for name, count in counts.items():
        if count > getattr(limits, name):
            yield f"{name} {getattr(limits, name)}, but {count}"
    if len(result.trail) > MAX_HOPS or result.limits != limits:
        yield f"{len(result.trail)} hops under {result.limits}"


def calls_charged(run: ChainRun) -> Iterator[str]:
    """What is charged is what was spent, failed calls too."""
    usage = run.result.usage.model_dump()
    if usage != run.model.usage:
        yield f"{usage} charged, {run.model.usage} spent"
    made = sum(entry.port == "hop" or entry.port.endswith(".search") for entry in run.world.log)
    # A guarded run whose view was lost forgets what it spent.
    if usage["calls"] < made and not run.world.case.guarded:
        yield f"{usage['calls']} calls charged, {made} made"


def one_right_reason(run: ChainRun) -> Iterator[str]:
    """There is one stop reason, the right one, and the result's type says whether anything stayed open."""
    result, model = run.result, run.model
    if result.stop_reason.value != model.stop:
        yield f"{result.stop_reason.value}, not {model.stop}"
    if isinstance(result, ResolvedChain) != model.resolved or result.resolved != model.resolved:
        yield f"{type(result).__name__} after {model.stop}"
    fired = [check.rule.value for hop in result.trail for check in hop.checks if check.fired]
    if fired and fired[0] != model.stop:
        yield f"rules {fired} fired, the chain ended by {model.stop}"


def evidence_kept(run: ChainRun) -> Iterator[str]:
    """Each hop holds what it found and the recheck left, and the documents are all of it that fits."""
    model, trail = run.model, run.result.trail
    expected = [
        (hop.query, "failed" if hop.failed else "answered", sorted(set(hop.units) & model.survivors))
        for hop in model.trail
    ]
    made = [(hop.query, hop.outcome, sorted(hop.unit_ids)) for hop in trail]
    first = min(model.lost, default=len(expected))
    if [m[1:] for m in made] != [e[1:] for e in expected] or made[: first + 1] != expected[: first + 1]:
        yield f"trail {made}, not {expected}"
    packed = [document.id for document in run.result.documents]
    limits = run.world.case.limits
    rest = {unit: model.texts[unit] for unit in model.survivors if unit not in packed}
    yield from left_out(packed, len(SEPARATOR.join(run.texts)), rest, limits.max_units, limits.max_chars)


def answers_kept(run: ChainRun) -> Iterator[str]:
    """Sub-answers are those that were read, without those that may have come from dropped units."""
    lost = run.model.lost
    for at, (hop, model) in enumerate(zip(run.result.trail, run.model.trail, strict=True)):
        expected = None if model.answer is None or at in lost else model.answer.text
        if hop.sub_answer != expected:
            yield f"hop {hop.number}: sub-answer {hop.sub_answer!r}, not {expected!r}"


def rechecked(run: ChainRun) -> Iterator[str]:
    """Only what passed the last recheck is in the output, with its text; nothing else that was found is."""
    model = run.model
    for document in run.result.documents:
        if document.id not in model.survivors or document.page_content != model.texts[document.id]:
            yield f"{document.id} did not pass the recheck"
    gone = model.ever_found - model.survivors
    yield from standing_in(gone, final_text(run.outcome.result), model.texts.values())


def nothing_ineligible(run: ChainRun) -> Iterator[str]:
    """Units that the caller could never see, and raw errors, stand nowhere."""
    yield from nothing_private(run.world, run.outcome)


def plain_json(run: ChainRun) -> Iterator[str]:
    """The output is JSON, and the result read from it is the same."""
    try:
        json.dumps([run.outcome.result[key] for key in CHAIN_KEYS if key != "documents"], allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"no JSON: {error}"
    if type(run.result).model_validate_json(run.result.model_dump_json()) != run.result:
        yield "the result does not come back from its JSON"


def replays(run: ChainRun) -> Iterator[str]:
    """The traces of the runs inside the chain give their packets."""
    for inner in run.outcome.inner:
        packet = EvidencePacket.from_result(inner)
        yield from replays_to(DecisionTrace.from_result(inner), packet, {})


CHECKS = {
    "limits": limits_kept,
    "charged": calls_charged,
    "reason": one_right_reason,
    "evidence": evidence_kept,
    "answers": answers_kept,
    "recheck": rechecked,
    "ineligible": nothing_ineligible,
    "json": plain_json,
    "replay": replays,
}
"""The invariants of a chain, by name."""


def chain_violations(world: ChainWorld, outcome: Outcome) -> list[str]:
    """What is wrong with a chain, each with the name of the invariant; nothing where all is well."""
    _take_from_error(outcome)
    ended = ended_from_outside(world, outcome)
    if ended is not None:
        return ended
    try:
        model = follow_chain(world.case, world.log)
    except OutOfStepError as error:
        private = [f"ineligible: {text}" for text in nothing_private(world, outcome)]
        return [f"calls: {error}", *private]
    return broken_invariants(CHECKS, ChainRun(world, outcome, model))


def _take_from_error(outcome: Outcome) -> None:
    """Under ``on_stop="fail"`` the error carries the result of an unresolved chain."""
    if not isinstance(outcome.error, ChainStoppedError):
        return
    dumped: dict[str, Any] = outcome.error.result.model_dump(mode="json")
    facts = ("query", "query_id", "clarification", "limits", "usage", "notes")
    outcome.stream.append(str(outcome.error))
    outcome.result = {key: dumped[key] for key in CHAIN_KEYS if key in dumped}
    outcome.result["documents"] = list(outcome.error.result.documents)
    outcome.result["chain"] = {key: dumped[key] for key in facts}
    outcome.error = None
