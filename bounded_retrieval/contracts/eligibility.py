"""Who may see what: the view that an application's resolver returns for one caller."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from bounded_retrieval.contracts.filters import Filter

MAX_VIEW_CHARS = 200
"""Longest ``view_id`` and ``version``, in characters."""

OVERFETCH_CAP = 200
"""Rows asked of a search in place of those needed when rows may have to be taken out of its answer.

It is one call of constant size, so that neither the number of calls nor their time tells how much was taken out.
"""

ELIGIBILITY_TIMEOUT_MS = 2_000
"""How long a resolver, or ``allowed``, may take by default; after that it has denied."""


@dataclass(frozen=True)
class EligibilityView:
    """What one caller may see. Any object with these attributes will do.

    The rule is ``allowed`` where it is given: ``search_filter`` then only spares searches what it would refuse, so it
    must let through everything that ``allowed`` does. Without ``allowed`` the filter is the rule, tested on each
    unit's current metadata.

    Attributes:
        view_id: whose view it is, 1 to 200 characters, the same at every call for the same caller. It stands in state,
            checkpoints and traces, and what was seen under one view is never shown under another.
        version: state of the rules behind it, 1 to 200 characters; recorded beside ``view_id``. It should not depend
            on units that the caller may not see.
        allowed: takes unit ids and returns the set of those that the caller may see; may be async. An id that it does
            not return is denied; ids that it was not asked about are ignored.
        search_filter: filter (see ``contracts/filters.py``) that searches apply themselves.
        private_fields: metadata fields to keep from everybody, besides those that ``search_filter`` reads.
    """

    view_id: str
    version: str
    allowed: Callable[[Sequence[str]], AbstractSet[str] | Awaitable[AbstractSet[str]]] | None = None
    search_filter: Filter | None = None
    private_fields: Iterable[str] = ()


Resolver = Callable[[Any], EligibilityView | Awaitable[EligibilityView]]
"""Called with the LangGraph runtime; returns the caller's view. Optional besides: ``is_pure = True``, which declares
that neither it nor its views' ``allowed`` do I/O, so that they run without a thread and without a time limit."""


class ViewStamp(BaseModel):
    """Which view was in force. Nothing else of a view enters state.

    Attributes:
        view_id, version: as the view itself says.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    view_id: Annotated[str, Field(min_length=1, max_length=MAX_VIEW_CHARS)]
    version: Annotated[str, Field(min_length=1, max_length=MAX_VIEW_CHARS)]
