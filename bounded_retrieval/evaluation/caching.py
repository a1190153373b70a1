"""Searchers that ask the real one once for each query, so that many policies can be run over the same answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from bounded_retrieval.contracts.candidate import Candidate, leave_out
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.errors import ConfigurationError

# Answers come from here or not at all.
_ANSWERS = frozenset({"asearch", "score", "ascore", "search_excluding", "asearch_excluding"})


@dataclass(kw_only=True)
class Asked:
    """How often the real searcher was asked."""

    searches: int = 0
    scorings: int = 0


@dataclass
class CachedSearcher:
    """One channel's answers, kept by query.

    The first search for a query asks the real searcher for ``depth`` rows; every search for it, that one included,
    is answered with the first ``k`` of them. So ``k`` rows must be the beginning of ``depth`` rows, as they are of any
    ranking; the live check of an experiment tells where a backend breaks that. Scores of units are kept likewise.

    Attributes:
        searcher: the real one, synchronous.
        depth: the most rows that any policy asks for.
        asked: calls of the real one so far.
    """

    searcher: Any
    depth: int
    asked: Asked = field(default_factory=Asked)
    _rows: dict[str, list[Candidate]] = field(default_factory=dict)
    _scores: dict[str, dict[str, float | None]] = field(default_factory=dict)

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """The first ``k`` rows of the channel's answer.

        Raises:
            ConfigurationError: more rows than ``depth``, or a filter; answers are kept for neither.
        """
        if k > self.depth or filter is not None:
            what = "with a filter" if filter is not None else f"for {k} rows, of {self.depth} kept"
            raise ConfigurationError(f"cached searcher: asked {what}")
        return self.rows(query)[:k]

    def rows(self, query: str) -> list[Candidate]:
        """All rows kept for a query, asked for where there are none yet."""
        if query not in self._rows:
            self.asked.searches += 1
            self._rows[query] = list(self.searcher.search(query, self.depth))
        return self._rows[query]

    def __getattr__(self, name: str) -> Any:
        # Called for names that are not here: what else a searcher may have (its tokenizer, fetch) is the real one's.
        if name.startswith("_") or name in _ANSWERS:
            raise AttributeError(name)
        return getattr(self.searcher, name)


@dataclass
class ScoredCachedSearcher(CachedSearcher):
    """The same over a searcher that can score units already observed."""

    def score(self, query: str, unit_ids: Sequence[str], filter: Filter | None = None) -> dict[str, float]:
        """The channel's score of each of these units that it holds.

        Raises:
            ConfigurationError: a filter was given.
        """
        if filter is not None:
            raise ConfigurationError("cached searcher: asked with a filter")
        known = self._scores.setdefault(query, {})
        lacking = [unit_id for unit_id in dict.fromkeys(unit_ids) if unit_id not in known]
        if lacking:
            self.asked.scorings += 1
            scores = self.searcher.score(query, lacking)
            known.update({unit_id: scores.get(unit_id) for unit_id in lacking})
        return {unit_id: score for unit_id in unit_ids if (score := known[unit_id]) is not None}


@dataclass
class ExcludingCachedSearcher(ScoredCachedSearcher):
    """The same over a searcher that can also leave units out, which must not move the others."""

    def search_excluding(
        self, query: str, k: int, unit_ids: Sequence[str], filter: Filter | None = None
    ) -> list[Candidate]:
        """The first ``k`` rows of the channel's answer that are none of these units.

        Raises:
            ConfigurationError: as many rows and units are more than ``depth``, or a filter was given.
        """
        return leave_out(self.search(query, k + len(set(unit_ids)), filter), unit_ids, k)


def cached(searcher: Any, depth: int) -> CachedSearcher:
    """Keep a searcher's answers; it can score observed units, and leave them out, where the real one can."""
    if not hasattr(searcher, "score"):
        return CachedSearcher(searcher, depth)
    kind = ExcludingCachedSearcher if hasattr(searcher, "search_excluding") else ScoredCachedSearcher
    return kind(searcher, depth)
