"""What both search nodes do: check, charge, call, read the answer, record the attempt."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Candidate, Channel, Unit, row_in_state
from bounded_retrieval.contracts.ports import Searcher
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.trace import Interruption, Reference, SearchAttempted
from bounded_retrieval.contracts.unchecked import replaced, unchecked
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState, Update
from bounded_retrieval.nodes.charging import was_cut_off
from bounded_retrieval.nodes.clock import Stopwatch, interruption
from bounded_retrieval.nodes.eligibility import Access, documents_of, eligible_ids, fetch_units, forget, open_access
from bounded_retrieval.nodes.running import Body, Call, can_fetch, has_method, method_call, settings_of
from bounded_retrieval.policies.fusion import CHANNEL_ORDER, needs_scores
from bounded_retrieval.policies.rows import Reading, Rows, cut_rows, read_rows
from bounded_retrieval.policies.stopping import refuse_search, rows_to_request


@dataclass(frozen=True, kw_only=True)
class _Search:
    """One search that may start: what it asks for, and what was spent before it."""

    channel: Channel
    asked: int
    access: Access
    settings: RunSettings
    usage: Usage
    state: BoundedState
    parts: Parts
    excluded: Sequence[str] = ()

    @property
    def searcher(self) -> Searcher | None:
        return self.parts.searcher(self.channel)

    def report(self, event: str, error: Exception) -> None:
        self.parts.report({"event": event, "channel": self.channel, "query_id": self.settings.query_id, "error": error})


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """The rows of an answered call (none when it failed), what was read of them, and a note on what went wrong."""

    rows: Rows | None
    reading: Reading
    note: str | None = None


def search_channel(channel: Channel, state: BoundedState, runtime: Runtime[Any], parts: Parts) -> Body:
    """Make one search of a channel, if nothing forbids it; a call is charged before it is made.

    In a resumed run whose search was cut off, the attempt counts as failed and is not made again.
    """
    watch = Stopwatch(state, parts)
    settings = settings_of(state, parts)
    usage = Usage.model_validate(state["usage"])
    # First of all: whatever this node writes repeats what was seen before.
    access = yield from open_access(state, runtime, parts, settings.query_id)
    if access.note and state.get("view"):
        forgotten = forget(state, access.note)
        runtime.stream_writer(forgotten["events"][-1])
        return forgotten | {"elapsed_ms": watch.elapsed_ms()}
    stopped = interruption(runtime, parts, settings.limits, watch)
    refusal = stopped or refuse_search(channel, settings, usage)
    if refusal is not None:
        event = SearchAttempted(
            channel=channel, requested=0, outcome="not_started", why_not=refusal, interruption=stopped, usage=usage
        )
        return _record(state, runtime, _timed(event, settings, watch), watch)
    charged = replaced(usage, calls=usage.calls + 1, dense_calls=usage.dense_calls + (channel == "dense"))
    search = _Search(
        channel=channel,
        asked=rows_to_request(channel, settings, usage),
        access=access,
        settings=settings,
        usage=charged,
        state=state,
        parts=parts,
        excluded=_already_there(channel, state, parts),
    )
    if (yield from was_cut_off(runtime)) or access.denied:
        answer = _Answer(rows=None, reading=Reading(known={}, reads_left=0), note=access.note)
    else:
        answer = yield from _call(search)
    stopped = interruption(runtime, parts, settings.limits, watch)
    event = _timed(_describe(search, answer, stopped), settings, watch)
    return _record(state, runtime, event, watch) | _found(search, answer)


def _call(search: _Search) -> Generator[Call, Any, _Answer]:
    known = {unit_id: Unit.recalled(unit) for unit_id, unit in search.state["units"].items()}
    reads_left = search.settings.limits.max_reads - search.usage.reads
    reading = Reading(known=known, reads_left=reads_left, private=search.access.private)
    most = search.access.rows_to_fetch(search.asked, search.searcher)
    method, given = ("search_excluding", (list(search.excluded),)) if search.excluded else ("search", ())
    asked = (search.settings.query, most, *given, search.access.filter)
    try:
        answer = yield method_call(search.searcher, method, *asked, detached=search.parts.is_guarded)
        rows, cut = read_rows(answer, search.channel, most)
    except Exception as error:  # noqa: BLE001 - whatever a searcher raises, the attempt failed and stays charged
        search.report("search_failed", error)
        return _Answer(rows=None, reading=reading)
    if search.parts.is_guarded:
        # More rows may have been asked for than are needed, so none is one too many.
        eligible, cut = (yield from _eligible(search, rows)), 0
        if eligible is None:
            return _Answer(rows=None, reading=reading, note="eligibility_failed")
        rows = list(eligible)
    kept = cut_rows(rows, search.asked, cut)
    fetched = yield from _fetch(search, reading.wanted(kept.valid))
    reading.take(kept.valid, fetched)
    return _Answer(rows=kept, reading=reading)


def _already_there(channel: Channel, state: BoundedState, parts: Parts) -> list[str]:
    """The units that a second search is to leave out: all that are there, if both channels score every unit anyway.

    A fusion by ranks learns from a unit that both channels return; one by scores learns nothing from it.
    """
    if not state["candidates"]:
        return []
    scorers = all(has_method(parts.searcher(each), "score") for each in CHANNEL_ORDER)
    if not scorers or not needs_scores(parts.fusion) or not has_method(parts.searcher(channel), "search_excluding"):
        return []
    # A row may name a unit that holds the same text; its own id is among the sources.
    return list(dict.fromkeys([*(row["unit_id"] for row in state["candidates"]), *state["sources"]]))


def _eligible(search: _Search, rows: Sequence[Candidate | None]) -> Generator[Call, Any, list[Candidate] | None]:
    """Take out the rows of units that the caller may not see; none when that could not be established.

    So are rows that are no candidates: nobody can say whose they are. Where there is a unit source, what it holds now
    is looked at and not what a row brought, which may be of an earlier time.
    """
    found = [row for row in rows if row is not None]
    if search.parts.units is not None:
        found = [replaced(row, unit=None) for row in found]
    unit_ids = list(dict.fromkeys(row.unit_id for row in found))
    documents: Mapping[str, Any] = documents_of(found)
    if search.access.accepts is not None:
        lacking = [unit_id for unit_id in unit_ids if unit_id not in documents]
        documents = {**(yield from _fetch(search, lacking)), **documents}
    allowed = yield from eligible_ids(search.access, unit_ids, documents, search.parts, search.settings.query_id)
    if allowed is None:
        return None
    removed = [unit_id for unit_id in unit_ids if unit_id not in allowed]
    if removed:
        record = {"event": "ineligible_removed", "channel": search.channel, "query_id": search.settings.query_id}
        search.parts.report({**record, "unit_ids": removed, **_stamp(search.access)})
    return [row for row in found if row.unit_id in allowed]


def _stamp(access: Access) -> dict[str, Any]:
    return {} if access.stamp is None else access.stamp.model_dump()


def _fetch(search: _Search, unit_ids: Sequence[str]) -> Generator[Call, Any, Mapping[str, Any]]:
    # Not `or`: a unit source may have a length, and an empty one is still the source.
    source = search.searcher if search.parts.units is None else search.parts.units
    if not unit_ids or not can_fetch(source):
        return {}
    # Without its text a unit stays unread; the run goes on.
    found = yield from fetch_units(source, unit_ids, search.parts, partial(search.report, "fetch_failed"))
    return found or {}


def _describe(search: _Search, answer: _Answer, stopped: Interruption | None) -> SearchAttempted:
    event = SearchAttempted(
        channel=search.channel,
        requested=search.asked,
        excluded=len(search.excluded),
        outcome="failed" if answer.rows is None else "answered",
        interruption=stopped,
        view=search.access.stamp,
        filter_pushed_down=search.access.pushed_down(search.searcher),
        usage=search.usage,
    )
    if answer.rows is None:
        return event
    reading = answer.reading
    returned_before = {row["unit_id"] for event in search.state["events"] for row in event.get("returned", ())}
    return replaced(
        event,
        returned=tuple(unchecked(Reference, unit_id=r.unit_id, rank=r.rank, score=r.score) for r in reading.rows),
        new_units=sum(row.unit_id not in returned_before for row in reading.rows),
        cut=answer.rows.cut,
        duplicates=reading.duplicates,
        invalid=answer.rows.invalid,
        unread=reading.unread,
        usage=replaced(
            search.usage,
            rows=search.usage.rows + answer.rows.charged,
            reads=search.usage.reads + len(reading.fresh),
        ),
    )


def _found(search: _Search, answer: _Answer) -> Update:
    state, reading = search.state, answer.reading
    fresh = reading.fresh
    return {
        "units": {**state["units"], **{unit_id: unit.to_state() for unit_id, unit in fresh.items()}},
        "sources": {**dict.fromkeys([*fresh, *reading.merged], search.channel), **state["sources"]},
        "candidates": [*state["candidates"], *(row_in_state(row) for row in reading.rows)],
        "view": search.access.stamped(state),
        "notes": list(dict.fromkeys([*state["notes"], *([answer.note] if answer.note else [])])),
    }


def _record(state: BoundedState, runtime: Runtime[Any], event: SearchAttempted, watch: Stopwatch) -> Update:
    dumped = event.model_dump(mode="json")
    runtime.stream_writer(dumped)
    return {
        "events": [*state["events"], dumped],
        "usage": event.usage.model_dump(),
        "elapsed_ms": watch.elapsed_ms(),
    }


def _timed(event: SearchAttempted, settings: RunSettings, watch: Stopwatch) -> SearchAttempted:
    if settings.limits.deadline_ms is None:
        return event
    return replaced(event, elapsed_ms=round(watch.elapsed_ms(), 3))
