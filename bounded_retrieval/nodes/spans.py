"""OpenTelemetry spans of hops, where the application wants them: ids and counts only, never a text or an error."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from bounded_retrieval.graph.chain_state import ChainParts

SPAN_NAME = "bounded_retrieval.hop"


@contextmanager
def hop_span(parts: ChainParts, query_id: str) -> Iterator[Any]:
    """Make a hop's span the current one, so that what the search does hangs under it; yields it, or none.

    A tracer that raises costs the span, not the hop.
    """
    entered: AbstractContextManager[Any] = nullcontext()
    span = None
    if parts.spans is not None:
        try:
            entered = parts.spans.start_as_current_span(
                SPAN_NAME, record_exception=False, set_status_on_exception=False
            )
            span = entered.__enter__()
        except Exception as error:  # noqa: BLE001 - whatever a tracer raises, the hop is made
            parts.report({"event": "span_failed", "query_id": query_id, "error": error})
            entered, span = nullcontext(), None
    try:
        yield span
    finally:
        try:
            entered.__exit__(None, None, None)
        except Exception as error:  # noqa: BLE001 - likewise
            parts.report({"event": "span_failed", "query_id": query_id, "error": error})


def describe_on(span: Any, facts: Mapping[str, str | int], parts: ChainParts, query_id: str) -> None:
    """Set a hop's facts as the span's attributes, where there is one."""
    if span is None:
        return
    try:
        span.set_attributes({f"bounded_retrieval.{name}": value for name, value in facts.items()})
    except Exception as error:  # noqa: BLE001 - likewise
        parts.report({"event": "span_failed", "query_id": query_id, "error": error})
