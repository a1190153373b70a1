"""What the nodes ask of an application's resolver: whose view it is, and which units may be seen under it.

Whatever cannot be established is denied. Errors go to the diagnostics and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from langchain_core.documents import Document
from langgraph.runtime import Runtime

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.eligibility import OVERFETCH_CAP, EligibilityView, ViewStamp
from bounded_retrieval.contracts.filters import Filter, Predicate, compile_filter, fields_named
from bounded_retrieval.contracts.normalise import clean_metadata, clean_text
from bounded_retrieval.contracts.trace import SearchAttempted
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState, Update
from bounded_retrieval.nodes.running import Call, function_call, method_call


@dataclass(frozen=True, kw_only=True)
class Access:
    """What one node may show.

    Attributes:
        view: the caller's view; none where everything is public, or where it could not be established.
        filter: what searches should leave out themselves.
        note: why what was seen before must be discarded; none when nothing must.
        denied: the view could not be established, so nothing may be shown.
    """

    view: EligibilityView | None = None
    stamp: ViewStamp | None = None
    filter: Filter | None = None
    accepts: Predicate | None = None
    private: frozenset[str] = frozenset()
    note: str | None = None
    denied: bool = False

    def stamped(self, state: Mapping[str, Any]) -> Update:
        """What state should hold of the view; that of an earlier search stays where this one is not known."""
        return dict(state.get("view", {})) if self.stamp is None else self.stamp.model_dump()

    def rows_to_fetch(self, asked: int, searcher: object) -> int:
        """How many rows to ask a searcher for: more than needed where some may have to be taken out again."""
        if self.view is None:
            return asked
        filters_itself = self.accepts is not None and hasattr(searcher, "pushes_down")
        return asked if filters_itself else max(asked, OVERFETCH_CAP)

    def pushed_down(self, searcher: object) -> bool | None:
        """Whether a searcher applies all of the view's filter itself; none without a filter."""
        if not self.filter:
            return None
        asked = getattr(searcher, "pushes_down", None)
        try:
            return bool(asked is not None and asked(self.filter))
        except Exception:  # noqa: BLE001 - a searcher that cannot say has not said so
            return False


_PUBLIC = Access()


def open_access(
    state: Mapping[str, Any], runtime: Runtime[Any], parts: Parts, query_id: str
) -> Generator[Call, Any, Access]:
    """Resolve the caller's view and compare it with the one under which the run has seen something so far."""
    if parts.eligibility is None:
        return _PUBLIC
    is_pure = getattr(parts.eligibility, "is_pure", False)
    try:
        answer = yield function_call(
            parts.eligibility, "eligibility", runtime, is_pure=is_pure, limit=parts.eligibility_limit, detached=True
        )
        access = _read_view(answer)
    except Exception as error:  # noqa: BLE001 - a resolver that fails has denied
        parts.report({"event": "eligibility_failed", "query_id": query_id, "error": error})
        return Access(denied=True, note="eligibility_failed")
    seen_under = state.get("view")
    if access.stamp is not None and seen_under and seen_under["view_id"] != access.stamp.view_id:
        record = {"event": "view_changed", "query_id": query_id, "from": dict(seen_under)}
        parts.report({**record, "to": access.stamp.model_dump()})
        return Access(denied=True, note="view_changed")
    return access


def eligible_ids(
    access: Access, unit_ids: Sequence[str], documents: Mapping[str, Any], parts: Parts, query_id: str
) -> Generator[Call, Any, frozenset[str] | None]:
    """Which of these units may be seen; none when the view could not say, which denies them all.

    A view without ``allowed`` decides by ``documents``, the units' documents as far as there are any.
    """
    distinct = list(dict.fromkeys(unit_ids))
    if access.view is None:
        return frozenset() if access.denied else frozenset(distinct)
    if access.accepts is not None:
        return frozenset(unit_id for unit_id in distinct if _passes(access.accepts, documents.get(unit_id)))
    is_pure = getattr(parts.eligibility, "is_pure", False)
    # Also when there is nothing to ask about: whether it fails must not depend on what was found and taken out.
    try:
        answer = yield method_call(
            access.view, "allowed", distinct, is_pure=is_pure, limit=parts.eligibility_limit, detached=True
        )
        return _among(distinct, answer)
    except Exception as error:  # noqa: BLE001 - a view that cannot say has denied
        parts.report({"event": "eligibility_failed", "query_id": query_id, "error": error})
        return None


def _among(asked: Sequence[str], answer: Any) -> frozenset[str]:
    if not isinstance(answer, AbstractSet):
        raise TypeError(f"allowed returns a set of unit ids (got {type(answer).__name__})")
    return frozenset(unit_id for unit_id in asked if unit_id in answer)


def fetch_units(
    source: object, unit_ids: Sequence[str], parts: Parts, on_error: Callable[[Exception], None]
) -> Generator[Call, Any, dict[str, Any] | None]:
    """Current documents by id; none when they could not be read.

    In a guarded run that failed for several ids it is tried for each: one that the caller may not see must not take the
    others with it.
    """
    if not unit_ids:
        return {}
    error: Exception | None = None
    try:
        answer = yield method_call(source, "fetch", list(unit_ids), detached=parts.is_guarded)
        if not isinstance(answer, Mapping):
            raise TypeError(f"fetch returns a mapping of documents by id (got {type(answer).__name__})")  # noqa: TRY301
        return dict(answer)
    except Exception as caught:  # noqa: BLE001 - whatever the source raises, its units were not read
        error = caught
    if not parts.is_guarded or len(unit_ids) == 1:
        on_error(error)
        return None
    found: dict[str, Any] = {}
    for unit_id in unit_ids:
        found.update((yield from fetch_units(source, [unit_id], parts, on_error)) or {})
    return found


def documents_of(rows: Sequence[Candidate]) -> dict[str, Document]:
    """The documents that rows brought themselves, the first one of each unit."""
    brought: dict[str, Document] = {}
    for row in rows:
        if row.unit is not None:
            brought.setdefault(row.unit_id, row.unit)
    return brought


def forget(state: BoundedState, note: str) -> Update:
    """A state as if its searches had not been started: nothing seen, nothing spent."""
    request, *later = state["events"]
    first = next((event for event in later if event["event"] == "search_attempted"), None)
    forgotten = SearchAttempted(
        channel="lexical" if first is None else first["channel"],
        requested=0,
        outcome="not_started",
        why_not=note,
        interruption="view_changed",
        usage=Usage(),
    )
    return {
        "units": {},
        "sources": {},
        "candidates": [],
        "events": [request, forgotten.model_dump(mode="json")],
        "usage": Usage().model_dump(),
        "notes": [note],
    }


def _read_view(answer: Any) -> Access:
    view_id, version = getattr(answer, "view_id", None), getattr(answer, "version", None)
    if isinstance(answer, type) or not isinstance(view_id, str) or not isinstance(version, (str, int)):
        raise TypeError(f"a resolver returns an EligibilityView (got {type(answer).__name__})")
    search_filter = getattr(answer, "search_filter", None)
    accepts = compile_filter(search_filter)
    has_rule = any(callable(getattr(answer, name, None)) for name in ("allowed", "aallowed"))
    if not has_rule and search_filter is None:
        raise TypeError(f"view {view_id!r}: has neither allowed nor search_filter")
    named = getattr(answer, "private_fields", None) or ()
    if isinstance(named, (str, bytes)):
        raise TypeError(f"view {view_id!r}: private_fields is a collection of names (got {type(named).__name__})")
    return Access(
        view=answer,
        stamp=ViewStamp(view_id=clean_text(view_id), version=clean_text(str(version))),
        filter=search_filter,
        accepts=None if has_rule else accepts,
        private=frozenset(clean_text(str(name)) for name in (*fields_named(search_filter), *named)),
    )


def _passes(accepts: Predicate, document: Any) -> bool:
    try:
        return isinstance(document, Document) and accepts(clean_metadata(document.metadata)[0])
    except Exception:  # noqa: BLE001 - metadata that cannot even be read says nothing for its unit
        return False
