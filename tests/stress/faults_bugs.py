"""Bugs to plant in the bounded graph, each a function that patches the package."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from langgraph.config import get_stream_writer

from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import SearchAttempted
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.nodes import assess_coverage, recheck_and_pack, running, scoring, searching
from bounded_retrieval.policies import assembly, rows, stopping


def rows_not_cut(patch: pytest.MonkeyPatch) -> None:
    """A searcher that returns too many rows is not cut."""
    read, cut = rows.read_rows, rows.cut_rows
    patch.setattr(searching, "read_rows", lambda answer, channel, most: read(answer, channel, most + 9))
    patch.setattr(searching, "cut_rows", lambda found, asked, more: cut(found, asked + 9, more))


def reads_not_limited(patch: pytest.MonkeyPatch) -> None:
    """Reads are not limited."""
    reading = rows.Reading
    patch.setattr(searching, "Reading", lambda *, reads_left, **fields: reading(reads_left=reads_left + 9, **fields))


def packed_over_the_limit(patch: pytest.MonkeyPatch) -> None:
    """Packing forgets its limits."""
    pack = assembly.pack
    patch.setattr(assembly, "pack", lambda ranking, lengths, _units, _chars: pack(ranking, lengths, 50, 200_000))


def others_scored(patch: pytest.MonkeyPatch) -> None:
    """Scores are looked up for units that the recheck dropped, too."""
    rankings = assembly.Found.rankings
    patch.setattr(assembly.Found, "rankings", lambda found, _dropped: rankings(found, ()))


def failure_not_charged(patch: pytest.MonkeyPatch) -> None:
    """A call is charged once it has answered, not before it is made."""
    describe = searching._describe

    def forgiving(search: Any, answer: Any, stopped: Any) -> Any:
        event = describe(search, answer, stopped)
        usage = event.usage.model_copy(update={"calls": max(0, event.usage.calls - 1)})
        return event.model_copy(update={"usage": usage}) if event.outcome == "failed" else event

    patch.setattr(searching, "_describe", forgiving)


def scores_not_counted(patch: pytest.MonkeyPatch) -> None:
    """Looking up scores costs nothing."""
    score = scoring.score_observed

    def uncounted(*args: Any) -> Any:
        scored = yield from score(*args)
        if scored is None:
            return None
        return scored.model_copy(update={"usage": scored.usage.model_copy(update={"scored_units": 0})})

    patch.setattr(recheck_and_pack, "score_observed", uncounted)


def reasons_swapped(patch: pytest.MonkeyPatch) -> None:
    """A run that the caller cancelled says that the deadline ended it."""
    swapped = {"cancelled": StopReason.DEADLINE_EXCEEDED, "deadline": StopReason.CANCELLED}
    patch.setattr(stopping, "INTERRUPTED", {**stopping.INTERRUPTED, **swapped})


def failure_called_sufficient(patch: pytest.MonkeyPatch) -> None:
    """A run of which no attempt answered says that its budget is spent."""
    patch.setattr(stopping, "_spent", lambda _searches: StopReason.RESOURCE_BUDGET_EXHAUSTED)


def deadline_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    """The clock is not looked at."""
    interruption = searching.interruption

    def blind(*args: Any) -> Any:
        stopped = interruption(*args)
        return None if stopped == "deadline" else stopped

    patch.setattr(searching, "interruption", blind)


def two_reasons(patch: pytest.MonkeyPatch) -> None:
    """The output's stop reason is another one than the packet's."""
    node = recheck_and_pack.recheck_and_pack

    def other(*args: Any) -> Any:
        update = yield from node(*args)
        return {**update, "stop_reason": "policy_complete"}

    other.__name__ = node.__name__
    patch.setattr("bounded_retrieval.graph.bounded.recheck_and_pack", other)


def evidence_lost_on_failure(patch: pytest.MonkeyPatch) -> None:
    """A search that fails empties the packet."""
    found = recheck_and_pack._found

    def emptied(state: Any, *given: Any) -> Any:
        searches = [event for event in state["events"] if event["event"] == "search_attempted"]
        failed = any(search["outcome"] == "failed" for search in searches)
        return replace(found(state, *given), **({"candidates": []} if failed else {}))

    patch.setattr(recheck_and_pack, "_found", emptied)


def recheck_lets_pass(patch: pytest.MonkeyPatch) -> None:
    """Units that are gone or changed pass the recheck."""
    read_again = recheck_and_pack._read_again

    def lenient(*args: Any) -> Any:
        _, found, notes = yield from read_again(*args)
        return {}, found, notes

    patch.setattr(recheck_and_pack, "_read_again", lenient)


def recheck_left_out(patch: pytest.MonkeyPatch) -> None:
    """The recheck is not made at all."""

    def skipped(*_: Any) -> Any:
        return assembly.Recheck(dropped=frozenset())
        yield

    patch.setattr(recheck_and_pack, "recheck_units", skipped)


def rows_not_filtered(patch: pytest.MonkeyPatch) -> None:
    """Rows of units that the caller may not see are taken out at the end only."""

    def everything(_search: Any, found: Any) -> Any:
        return [row for row in found if row is not None]
        yield

    patch.setattr(searching, "_eligible", everything)


def raw_error_streamed(patch: pytest.MonkeyPatch) -> None:
    """What the diagnostics receive is streamed, too."""

    def report(_parts: Any, record: dict[str, Any]) -> None:
        if "error" in record:
            get_stream_writer()({"event": "failed", "error": repr(record["error"].args)})

    patch.setattr(Parts, "report", report)


def scores_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A row's score is taken as it is."""
    patch.setattr(rows, "_checked", lambda row, _channel: row if isinstance(row, Candidate) else None)


def trace_incomplete(patch: pytest.MonkeyPatch) -> None:
    """The returned trace leaves out a search's last row."""
    redact = recheck_and_pack.redact

    def shortened(events: Any, dropped: Any) -> Any:
        return tuple(
            event.model_copy(update={"returned": event.returned[:-1]}) if isinstance(event, SearchAttempted) else event
            for event in redact(events, dropped)
        )

    patch.setattr(recheck_and_pack, "redact", shortened)


def third_search(patch: pytest.MonkeyPatch) -> None:
    """The run goes on until a third search."""
    go_on = stopping.Decision(action="dense_search", stop_reason=None, legal_actions=())
    decide = stopping.decide

    def again(settings: Any, searches: Any, *rest: Any, **named: Any) -> Any:
        return go_on if len(searches) < 3 else decide(settings, searches, *rest, **named)

    patch.setattr(assess_coverage, "decide", again)
    patch.setattr(searching, "refuse_search", lambda *_: None)
    patch.setattr(
        "bounded_retrieval.graph.bounded.route_after_assess",
        lambda state: "dense_search" if state["decision"]["action"] == "dense_search" else "recheck_and_pack",
    )


def asked_for_again(patch: pytest.MonkeyPatch) -> None:
    """The second search leaves out nothing of what is there."""
    patch.setattr(searching, "_already_there", lambda *_: [])


def broken_document_raises(patch: pytest.MonkeyPatch) -> None:
    """A document that cannot be read ends the run in its error."""
    patch.setattr(rows, "read_unit", Unit.from_document)


def _caught(body: Any) -> Any:
    try:
        call = next(body)
        while True:
            try:
                answer = running._run(call)
            except BaseException:  # noqa: BLE001 - the bug
                call = body.throw(RuntimeError())
            else:
                call = body.send(answer)
    except StopIteration as end:
        return end.value


async def _acaught(body: Any) -> Any:
    try:
        call = next(body)
        while True:
            try:
                answer = await running._arun(call)
            except BaseException:  # noqa: BLE001 - the bug
                call = body.throw(RuntimeError())
            else:
                call = body.send(answer)
    except StopIteration as end:
        return end.value


def everything_caught(patch: pytest.MonkeyPatch) -> None:
    """A cancelled call, and one that raises what is no ``Exception``, count as failed calls."""
    patch.setattr(running, "drive", _caught)
    patch.setattr(running, "adrive", _acaught)
