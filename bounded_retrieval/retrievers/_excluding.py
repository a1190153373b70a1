"""Search for what has not been returned yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bounded_retrieval.contracts.candidate import Candidate, leave_out
from bounded_retrieval.contracts.filters import Filter


class _Searching(Protocol):
    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]: ...


class Excluding:
    """What a searcher has besides its ``search``, so that no row is spent on a unit that is there already."""

    def search_excluding(
        self: _Searching, query: str, k: int, unit_ids: Sequence[str], filter: Filter | None = None
    ) -> list[Candidate]:
        """Return at most ``k`` candidates that are none of these units, best first, ranked among themselves.

        They are those that `search` would give if these units were not there. Errors are those of `search`.
        """
        return leave_out(self.search(query, k + len(set(unit_ids)) if k > 0 else 0, filter), unit_ids, k)
