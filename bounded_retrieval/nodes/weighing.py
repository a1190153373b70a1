"""Ask the lexical searcher how rare a query's words are, and how high a unit could score."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.nodes.eligibility import Access
from bounded_retrieval.nodes.running import Call, has_method, method_call


def ask_weights(
    words: Sequence[str], settings: RunSettings, access: Access, parts: Parts
) -> Generator[Call, Any, QueryWeights | None]:
    """The weights of some words and the most that a unit could score; none where they cannot be had."""
    # Where the view's filter does not decide alone, the counts would be those of units that may not be seen.
    is_open = access.view is None or access.accepts is not None
    if access.denied or not is_open or not has_method(parts.lexical, "weigh"):
        return None
    options = {"detached": parts.is_guarded, "is_optional": True}
    narrowed = (access.filter,) if access.filter else ()
    try:
        answer = yield method_call(parts.lexical, "weigh", settings.query, list(words), *narrowed, **options)
        return QueryWeights.model_validate(answer)
    except Exception as error:  # noqa: BLE001 - without weights all terms count alike
        record = {"event": "weigh_failed", "channel": "lexical", "query_id": settings.query_id, "error": error}
        parts.report(record)
        return None
