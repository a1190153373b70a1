"""The invariants of a run, each a function that yields what is wrong with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from faults_inventory import traces_of
from faults_kinds import CANCELLED, SECRET
from faults_model import OutOfStepError, follow
from faults_run import Outcome
from faults_world import World
from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.packet import SEPARATOR, EvidencePacket
from bounded_retrieval.contracts.trace import CoverageAssessed, DecisionTrace, EvidencePacked
from bounded_retrieval.errors import BoundedRetrievalError
from bounded_retrieval.policies.replay import replay

MOST_STEPS = 6


@dataclass
class Run:
    """One finished run with its `Model`, where that could follow it."""

    world: World
    outcome: Outcome
    model: Any

    @cached_property
    def packet(self) -> EvidencePacket:
        return EvidencePacket.from_result(self.outcome.result)

    @cached_property
    def trace(self) -> DecisionTrace:
        return DecisionTrace.from_result(self.outcome.result)

    @property
    def packed(self) -> EvidencePacked:
        last = self.trace.events[-1]
        if not isinstance(last, EvidencePacked):
            raise TypeError(f"the trace ends with {last.event}")
        return last


def usage_within_limits(run: Run) -> Iterator[str]:
    """Every count that the packet states or holds is within its limit; so is every event's."""
    limits, packet = run.world.case.budget, run.packet
    if packet.limits != limits:
        yield f"limits became {packet.limits}"
    for usage in (packet.usage, *(event.usage for event in run.trace.events if hasattr(event, "usage"))):
        for name in ("calls", "iterations", "rows", "reads", "units", "chars"):
            if getattr(usage, name) > getattr(limits, f"max_{name}"):
                yield f"{name} {getattr(usage, name)} over {getattr(limits, f'max_{name}')}"
    if (packet.usage.units, packet.usage.chars) != (len(packet.items), len(packet.text)):
        yield f"{packet.usage.units} units of {packet.usage.chars} characters stated, not those packed"


def calls_charged(run: Run) -> Iterator[str]:
    """What is charged is what was spent, failed calls too."""
    usage, model = run.packet.usage, run.model
    expected = {
        "calls": model.calls,
        "dense_calls": model.dense_calls,
        "iterations": model.iterations,
        "rows": model.rows,
        "reads": len(model.read),
        "scored_units": len(model.scored),
    }
    for name, count in expected.items():
        if getattr(usage, name) != count:
            yield f"{name} {getattr(usage, name)}, but {count} were spent"
    made = sum(entry.port.endswith(".search") for entry in run.world.log)
    if usage.calls < made and not model.forgotten:
        yield f"{usage.calls} calls charged, {made} made"


def one_right_reason(run: Run) -> Iterator[str]:
    """There is one stop reason, the same wherever it stands, and it is the right one."""
    stated = [run.outcome.result["stop_reason"], run.packet.stop_reason.value, run.packed.stop_reason.value]
    decided = [event.stop_reason.value for event in run.trace.decisions if event.stop_reason is not None]
    if len(set(stated)) != 1 or len(decided) > 1 or (decided and decided != stated[:1] and not run.model.forgotten):
        yield f"several stop reasons: {stated}, decided {decided}"
    if stated[0] != run.model.reason:
        yield f"{stated[0]}, not {run.model.reason}"
    whole = "dropped_at_recheck" not in run.packet.notes
    if (run.packet.resolution == "provisional") != (run.model.reason == "proxy_sufficient" and whole):
        yield f"{run.packet.resolution} after {run.model.reason}, notes {run.packet.notes}"
    failed = any(attempt.outcome == "failed" for attempt in run.model.attempts)
    if ("channel_failed" in run.packet.notes) != failed:
        yield f"notes {run.packet.notes}, a search {'failed' if failed else 'did not fail'}"


def evidence_packed(run: Run) -> Iterator[str]:
    """Whatever was found and passed the recheck is ranked, and packed while it fits."""
    ranked = [each.unit_id for each in run.packed.ranking]
    if sorted(ranked) != sorted(run.model.survivors):
        yield f"ranked {sorted(ranked)}, but {sorted(run.model.survivors)} are left"
    ids = [item.unit_id for item in run.packet.items]
    limits = run.world.case.budget
    rest = {unit: run.model.read.get(unit, "") for unit in run.model.survivors if unit not in ids}
    yield from left_out(ids, len(run.packet.text), rest, limits.max_units, limits.max_chars)


def left_out(packed: list[str], chars: int, rest: Mapping[str, str], max_units: int, max_chars: int) -> Iterator[str]:
    """Units that were not packed although they fit."""
    between = len(SEPARATOR) if packed else 0
    for unit, text in rest.items():
        if len(packed) < max_units and chars + between + len(text) <= max_chars:
            yield f"{unit} fits and was left out beside {packed}"


def rechecked(run: Run) -> Iterator[str]:
    """Only what passed the recheck is in the output, with the text as it is now; nothing else that was read is."""
    model = run.model
    for item in run.packet.items:
        if item.unit_id not in model.survivors or item.text != model.read[item.unit_id]:
            yield f"{item.unit_id} did not pass the recheck"
    yield from standing_in(model.ever_read - model.survivors, final_text(run.outcome.result), model.read.values())


def standing_in(units: Iterable[str], text: str, shown: Iterable[str] = ()) -> Iterator[str]:
    """Units whose id, or whose text's mark (where no shown text has it), stands in a text."""
    for unit in units:
        identity, mark = traces_of(unit)
        if identity in text or (mark in text and not any(mark in each for each in shown)):
            yield f"{unit} stands in the output"


def nothing_ineligible(run: Run) -> Iterator[str]:
    """Units that the caller could never see, and raw errors, stand nowhere: not in the output, not in the stream."""
    yield from nothing_private(run.world, run.outcome)


def nothing_private(world: World, outcome: Outcome) -> Iterator[str]:
    """The same for any output."""
    text = final_text(outcome.result) + repr(outcome.stream)
    yield from standing_in(world.hidden, text)
    if SECRET in text:
        yield "a raw error stands in the output"


def final_text(result: Mapping[str, Any]) -> str:
    """An output as text."""
    rest = {key: value for key, value in result.items() if key != "documents"}
    return json.dumps(rest, ensure_ascii=False, default=repr) + repr(result.get("documents"))


def plain_json(run: Run) -> Iterator[str]:
    """Packet and trace are JSON, without numbers that JSON does not know."""
    try:
        json.dumps([run.outcome.result["packet"], run.outcome.result["trace"]], allow_nan=False)
    except (TypeError, ValueError) as error:
        yield f"no JSON: {error}"


def replays(run: Run) -> Iterator[str]:
    """The trace, written down and read again, gives the same packet."""
    left = {unit: run.model.read.get(unit, "") for unit in run.model.survivors}
    yield from replays_to(run.trace, run.packet, left)


def replays_to(trace: DecisionTrace, packet: EvidencePacket, left: Mapping[str, str]) -> Iterator[str]:
    """A trace gives its packet; ``left`` holds the texts of the units that the recheck left."""
    units = {unit: Unit.from_document(Document(id=unit, page_content=text)) for unit, text in left.items()}
    kept = {"unit_id", "fingerprint", "title", "text", "metadata"}
    units |= {item.unit_id: Unit(**item.model_dump(include=kept)) for item in packet.items}
    try:
        again = replay(DecisionTrace.model_validate_json(trace.to_json()), units)
    except BoundedRetrievalError as error:
        yield f"it does not replay: {error}"
        return
    if again != packet:
        yield f"it replays to {again}, not {packet}"


def finite(run: Run) -> Iterator[str]:
    """At most six supersteps, two searches and two decisions."""
    decisions = sum(isinstance(event, CoverageAssessed) for event in run.trace.events)
    if run.outcome.steps is not None and run.outcome.steps > MOST_STEPS:
        yield f"{run.outcome.steps} supersteps"
    if len(run.trace.searches) > 2 or decisions > 2:
        yield f"{len(run.trace.searches)} searches, {decisions} decisions"


CHECKS = {
    "limits": usage_within_limits,
    "charged": calls_charged,
    "reason": one_right_reason,
    "evidence": evidence_packed,
    "recheck": rechecked,
    "ineligible": nothing_ineligible,
    "json": plain_json,
    "replay": replays,
    "steps": finite,
}
"""The invariants of a run that ended in a packet, by name."""

WITHOUT_MODEL = {name: CHECKS[name] for name in ("ineligible", "steps")}
"""Those that can be checked where the model could not follow the run."""


def violations(world: World, outcome: Outcome) -> list[str]:
    """What is wrong with a run, each with the name of the invariant; nothing where all is well."""
    ended = ended_from_outside(world, outcome)
    if ended is not None:
        return ended
    try:
        model = follow(world.case, world.log)
    except OutOfStepError as error:
        return [f"calls: {error}", *broken_invariants(WITHOUT_MODEL, Run(world, outcome, None))]
    return broken_invariants(CHECKS, Run(world, outcome, model))


def broken_invariants(checks: Mapping[str, Callable[[Any], Iterator[str]]], run: Any) -> list[str]:
    """What each check finds, under its name; an output that cannot be checked is wrong, too."""
    found: list[str] = []
    for name, check in checks.items():
        try:
            found += [f"{name}: {text}" for text in check(run)]
        except (ValueError, TypeError, KeyError) as error:
            found.append(f"{name}: cannot be checked: {error!r}")
    return found


def ended_from_outside(world: World, outcome: Outcome) -> list[str] | None:
    """What is wrong with a run that should not have ended in a packet, or did not; none where it is to be looked into."""
    private = [f"ineligible: {text}" for text in nothing_private(world, outcome)]
    if world.escaped is not None:
        renamed = isinstance(world.escaped, asyncio.CancelledError) and isinstance(outcome.error, CANCELLED)
        reaches = outcome.error is world.escaped or renamed
        return private + ([] if reaches else [f"escape: {world.escaped!r} was raised, {outcome.error!r} came out"])
    if world.case.cancels and world.entered.is_set():
        reaches = isinstance(outcome.error, asyncio.CancelledError) and not outcome.result
        return private + ([] if reaches else [f"cancellation: {outcome.error!r} reached the caller"])
    return None if outcome.error is None else [*private, f"raised: {outcome.error!r}"]
