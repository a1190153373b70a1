"""Node ``follow_path``: follow declared relationships from a start entity, each hop backed by its source unit."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.documents import Document
from langgraph.runtime import Runtime

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.packet import PathStep
from bounded_retrieval.contracts.relationships import EntityName, Relationship
from bounded_retrieval.contracts.request import PathRequest
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.trace import Interruption, PathAttempted, PathOutcome
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState
from bounded_retrieval.nodes.clock import Stopwatch, interruption
from bounded_retrieval.nodes.eligibility import Access, eligible_ids, fetch_units, open_access
from bounded_retrieval.nodes.running import Body, Call, can_fetch, method_call, settings_of
from bounded_retrieval.policies.paths import find_hops, find_start

Walk = Generator[Call, Any, PathOutcome]


class _NotReadError(Exception):
    """The sources could not be read; the diagnostics have been told why."""


class _NotEstablishedError(Exception):
    """Who may see the sources could not be established."""


@dataclass(kw_only=True)
class _Walker:
    """Follows one path hop by hop; ``steps`` and ``units`` hold what was followed so far."""

    runtime: Runtime[Any]
    parts: Parts
    settings: RunSettings
    access: Access
    watch: Stopwatch
    steps: list[PathStep] = field(default_factory=list)
    units: dict[str, Unit] = field(default_factory=dict)
    stopped: Interruption | None = None

    def walk(self, path: PathRequest) -> Walk:
        """Follow every relation; anything but exactly one way ends the walk."""
        names = _listed(EntityName, (yield self._ask("entities_named", path.start)))
        entities = find_start(names, (yield from self._show(name.source_unit for name in names)))
        if len(entities) != 1:
            return "ambiguous" if entities else "unresolved"
        entity = entities[0]
        for relation in path.relations:
            self.stopped = interruption(self.runtime, self.parts, self.settings.limits, self.watch)
            if self.stopped is not None:
                return "unresolved"
            hops, shown = yield from self._look(entity, relation)
            if len(hops) != 1:
                return "ambiguous" if hops else "unresolved"
            entity = hops[0].object
            self._take(hops[0], shown[hops[0].source_unit])
        return "followed"

    def _look(self, entity: str, relation: str) -> Generator[Call, Any, tuple[list[Relationship], dict[str, Unit]]]:
        relationships = _listed(Relationship, (yield self._ask("relationships_of", entity, relation)))
        shown = yield from self._show(relationship.source_unit for relationship in relationships)
        return find_hops(relationships, shown), shown

    def _show(self, unit_ids: Iterable[str]) -> Generator[Call, Any, dict[str, Unit]]:
        """The units among these that exist now and that the caller may see."""
        distinct = list(dict.fromkeys(unit_ids))
        answer = yield from fetch_units(source_of_paths(self.parts), distinct, self.parts, self._not_read)
        if answer is None and not self.parts.is_guarded:
            raise _NotReadError
        answer = answer or {}
        current = {unit_id: answer[unit_id] for unit_id in distinct if _has_text(answer.get(unit_id))}
        allowed = yield from eligible_ids(self.access, list(current), current, self.parts, self.settings.query_id)
        if allowed is None:
            raise _NotEstablishedError
        private = self.access.private
        return {
            unit_id: Unit.from_document(document, unit_id, private)
            for unit_id, document in current.items()
            if unit_id in allowed
        }

    def _not_read(self, error: Exception) -> None:
        record = {"event": "relationships_failed", "query_id": self.settings.query_id, "error": error}
        self.parts.report(record)

    def _take(self, hop: Relationship, unit: Unit) -> None:
        step = PathStep(subject=hop.subject, relation=hop.relation, object=hop.object, source_unit=hop.source_unit)
        self.steps.append(step)
        self.units[unit.unit_id] = unit

    def _ask(self, method: str, *args: Any) -> Call:
        return method_call(self.parts.relationships, method, *args, detached=self.parts.is_guarded)


def follow_path(state: BoundedState, runtime: Runtime[Any], parts: Parts) -> Body:
    """Follow the requested path, if nothing forbids it. No text is searched and no relationship is extracted.

    A hop ends the walk unless exactly one entity is reached by relationships whose sources are current and may be
    shown. Reads are those of the hops followed.
    """
    watch = Stopwatch(state, parts)
    settings = settings_of(state, parts)
    access = yield from open_access(state, runtime, parts, settings.query_id)
    walker = _Walker(runtime=runtime, parts=parts, settings=settings, access=access, watch=watch)
    walker.stopped = interruption(runtime, parts, settings.limits, watch)
    outcome, note = yield from _attempt(walker)
    stopped = walker.stopped or interruption(runtime, parts, settings.limits, watch)
    event = PathAttempted(
        outcome=outcome,
        why_not=stopped if outcome == "not_started" else None,
        steps=tuple(walker.steps),
        interruption=stopped,
        view=access.stamp,
        elapsed_ms=None if settings.limits.deadline_ms is None else round(watch.elapsed_ms(), 3),
        usage=Usage.model_validate(state["usage"]).model_copy(update={"reads": len(walker.units)}),
    ).model_dump(mode="json")
    runtime.stream_writer(event)
    channel = "lexical" if can_fetch(parts.lexical) else "dense"
    return {
        "events": [*state["events"], event],
        "usage": event["usage"],
        "units": {unit_id: unit.to_state() for unit_id, unit in walker.units.items()},
        "sources": dict.fromkeys(walker.units, channel),
        "view": access.stamped(state),
        "notes": [*state["notes"], *([note] if note else [])],
        "elapsed_ms": watch.elapsed_ms(),
    }


def source_of_paths(parts: Parts) -> object:
    """Where the source units of relationships are read: the unit source, else the first searcher that gives units."""
    if parts.units is not None:
        return parts.units
    return parts.lexical if can_fetch(parts.lexical) else parts.dense


def _attempt(walker: _Walker) -> Generator[Call, Any, tuple[PathOutcome, str | None]]:
    if walker.stopped is not None or walker.settings.path is None:
        return "not_started", None
    if walker.access.denied:
        return "failed", walker.access.note
    try:
        return (yield from walker.walk(walker.settings.path)), None
    except Exception as error:  # noqa: BLE001 - whatever the store or the unit source raises, the path was not followed
        if not isinstance(error, (_NotReadError, _NotEstablishedError)):
            walker._not_read(error)  # noqa: SLF001 - one word for all that went wrong here
        walker.steps.clear()
        walker.units.clear()
        return "failed", "eligibility_failed" if isinstance(error, _NotEstablishedError) else "relationships_failed"


def _listed(kind: type[Any], answer: Any) -> Sequence[Any]:
    is_list = isinstance(answer, Sequence) and not isinstance(answer, (str, bytes))
    if not is_list or not all(isinstance(each, kind) for each in answer):
        raise TypeError(f"relationships: expected a list of {kind.__name__} (got {type(answer).__name__})")
    return list(answer)


def _has_text(document: Any) -> bool:
    text = getattr(document, "page_content", None) if isinstance(document, Document) else None
    return isinstance(text, str) and bool(text.strip())
