"""One state of a lexical index. It never changes: an edit makes another, and searches keep the one they began with."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.filters import Filter, compile_filter, filter_key
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.policies.tokenize import search_terms, stems_of
from bounded_retrieval.retrievers._bm25_backends import Backend, Passing, create_scorer
from bounded_retrieval.retrievers._bm25_corpus import CorpusBuilder, TokenCorpus
from bounded_retrieval.retrievers._bm25_masks import CACHED_MASK_BYTES, ByteBoundCache, FilterMasks, Mask
from bounded_retrieval.retrievers._bm25_postings import Postings, idf
from bounded_retrieval.retrievers._leading import leading
from bounded_retrieval.retrievers._neighbours import NOBODY, Neighbours, added_up, supported, with_unsupported
from bounded_retrieval.retrievers.units import RowUnits

Statistics = Literal["filtered", "corpus"]

SCORE_DECIMALS = 9
"""Scores are rounded to this many decimals, so that the two backends and the order of additions agree on ties."""

SUPPORTED = 64
"""Of how many of the units that hold most of a query the neighbours are looked at; the others come after these."""

ROUNDING = 10.0**-SCORE_DECIMALS
"""One step of them."""


@dataclass(frozen=True, kw_only=True)
class BM25Settings:
    """How scores are computed.

    Attributes:
        backend: ``bm25s`` (sparse, fast) or ``rank_bm25`` (reference; a Python loop over all units).
        k1: how slowly repeats of a term stop counting; 0 or more.
        b: how much a unit's length counts, 0 to 1.
        statistics: what a search under a filter knows of term frequencies and lengths: those of the units that pass
            (``filtered``) or of all units (``corpus``).
    """

    backend: Backend = "bm25s"
    k1: float = 1.5
    b: float = 0.75
    statistics: Statistics = "filtered"

    def __post_init__(self) -> None:
        if self.backend not in ("bm25s", "rank_bm25"):
            raise ConfigurationError(f"backend: expected 'bm25s' or 'rank_bm25' (got {self.backend!r})")
        if not (math.isfinite(self.k1) and self.k1 >= 0):
            raise ConfigurationError(f"k1: expected 0 or more (got {self.k1!r})")
        if not 0 <= self.b <= 1:
            raise ConfigurationError(f"b: expected 0 to 1 (got {self.b!r})")
        if self.statistics not in ("filtered", "corpus"):
            raise ConfigurationError(f"statistics: expected 'filtered' or 'corpus' (got {self.statistics!r})")


class LexicalIndex:
    """Units, their terms, the scorer over them and their neighbours, if known; row ``r`` is the same unit in all."""

    def __init__(
        self,
        units: RowUnits,
        corpus: TokenCorpus,
        settings: BM25Settings,
        postings: Postings | None = None,
        neighbours: Neighbours | None = None,
    ) -> None:
        self.units = units
        self.corpus = corpus
        self.settings = settings
        self.neighbours = neighbours
        self.scorer = create_scorer(settings.backend, corpus, k1=settings.k1, b=settings.b, postings=postings)
        self._masks = FilterMasks(units.metadata, len(corpus))
        self._passing: ByteBoundCache[Passing] = ByteBoundCache(CACHED_MASK_BYTES)

    def edited(self, changed: Mapping[str, Unit], removed: Collection[str]) -> LexicalIndex:
        """Another index without ``removed``, with ``changed`` added or put in place; scores are computed anew."""
        units = self.units.edited(changed, removed)
        builder = CorpusBuilder(self.corpus, self.units.ids())
        for unit in changed.values():
            builder.add(unit)
        corpus = builder.build(units.ids())
        return LexicalIndex(units, corpus, self.settings, neighbours=self._moved(units, changed.keys()))

    def beside(self, neighbours: Neighbours) -> LexicalIndex:
        """Another index of the same units, with these neighbours."""
        made = copy(self)
        made.neighbours = neighbours
        return made

    def top(self, query: str, k: int, filter: Filter | None) -> list[tuple[int, float]]:
        """Rows and scores of the best ``k`` units with a score above 0, best first, ties by row."""
        term_ids = self._known_terms(query)
        if k <= 0 or not term_ids:
            return []
        if filter:
            return _best(self._filtered(term_ids, filter), k)
        scores = self.scorer.scores(term_ids)
        return (
            _best(scores, k) if self.neighbours is None else self._best_supported(term_ids, scores, self.neighbours, k)
        )

    def score(self, query: str, unit_ids: Sequence[str], filter: Filter | None) -> dict[str, float]:
        """The score of each given unit that exists; 0 for one that does not pass."""
        rows, term_ids = self.units.rows_of(unit_ids), self._known_terms(query)
        if filter:
            scores = self._filtered(term_ids, filter)[list(rows.values())]
        else:
            scores = self._scores_at(term_ids, list(rows.values()))
        return dict(zip(rows, np.round(scores, SCORE_DECIMALS).tolist(), strict=True))

    def weights(self, query: str, words: Sequence[str], filter: Filter | None) -> QueryWeights:
        """How rare each word is, and the sum over the query's search terms.

        Under a filter the weights are those that its scores are made of.
        """
        passing = self._passing_units(filter) if filter and self.settings.statistics == "filtered" else None
        units = len(self.corpus) if passing is None else passing.units

        def holding(term: str) -> int:
            term_id = self.corpus.vocabulary.get(term)
            return 0 if term_id is None else self.scorer.holding(term_id, passing)

        held = {word: holding(stem) for word, stem in zip(words, stems_of(list(words)), strict=True)}
        most = sum(float(idf(units, holding(term))) for term in search_terms(query))
        return QueryWeights(
            terms={word: round(float(idf(units, count)), SCORE_DECIMALS) for word, count in held.items()},
            holding=held,
            # A score is rounded too, so the bound lies one step above the sum.
            attainable=round(most + ROUNDING, SCORE_DECIMALS) if most else 0.0,
        )

    def mask(self, filter: Filter) -> Mask:
        """Which units pass a filter, shape (units,); not to be written to.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        return self._passing_units(filter).mask

    def _known_terms(self, query: str) -> list[int]:
        vocabulary = self.corpus.vocabulary
        return [vocabulary[term] for term in search_terms(query) if term in vocabulary]

    def _best_supported(
        self, term_ids: Sequence[int], scores: NDArray[np.float64], neighbours: Neighbours, k: int
    ) -> list[tuple[int, float]]:
        near = leading(scores, SUPPORTED, slack=ROUNDING, above=0.0)
        found = self._supported(term_ids, near, neighbours)
        rows = near
        if k > SUPPORTED:
            rows = leading(scores, k, slack=ROUNDING, above=0.0)
            found = with_unsupported(scores[rows], np.isin(rows, near), found)
        return [(int(rows[place]), score) for place, score in _best(found, k)]

    def _scores_at(self, term_ids: Sequence[int], rows: Sequence[int]) -> NDArray[np.float64]:
        wanted = np.asarray(rows, dtype=np.int64)
        if self.neighbours is None:
            return added_up(self.scorer.gains_at(term_ids, wanted))
        return self._supported(term_ids, wanted, self.neighbours)

    def _supported(
        self, term_ids: Sequence[int], rows: NDArray[np.int64], neighbours: Neighbours
    ) -> NDArray[np.float64]:
        near, likeness = neighbours.of(rows)
        # Each once and in order, so that looking them up in long postings goes through memory in order, too.
        everyone, places = np.unique(np.concatenate([rows, np.maximum(near, 0).reshape(-1)]), return_inverse=True)
        held = self.scorer.gains_at(term_ids, everyone)[:, places]
        own, given = held[:, : len(rows)], held[:, len(rows) :].reshape(len(held), *near.shape)
        return supported(own, np.where(near == NOBODY, 0.0, given), likeness)

    def _moved(self, units: RowUnits, changed: Collection[str]) -> Neighbours | None:
        if self.neighbours is None:
            return None
        stay = [unit_id for unit_id in self.units.ids() if unit_id not in changed]
        old, new = self.units.rows_of(stay), units.rows_of(stay)
        new_rows = np.full(len(self.corpus), NOBODY, dtype=np.int64)
        new_rows[[old[unit_id] for unit_id in new]] = list(new.values())
        return self.neighbours.moved(new_rows, len(units))

    def _filtered(self, term_ids: Sequence[int], filter: Filter) -> NDArray[np.float64]:
        passing = self._passing_units(filter)
        # All units are an index of their own already.
        if self.settings.statistics == "filtered" and passing.units < len(self.corpus):
            return self.scorer.scores_among(term_ids, passing)
        return np.where(passing.mask, self.scorer.scores(term_ids), 0.0)

    def _passing_units(self, filter: Filter) -> Passing:
        compile_filter(filter)  # a filter outside the language may have the key of one that is held
        key = filter_key(filter)
        found = self._passing.get(key)
        if found is None:
            found = Passing.of(self._masks.mask(filter), self.corpus)
            self._passing.put(key, found, found.mask.nbytes)
        return found


def _best(scores: NDArray[np.float64], k: int) -> list[tuple[int, float]]:
    # Every unit that may round to the k-th score stays in, so that the tie is resolved by the declared rule.
    rows = leading(scores, k, slack=ROUNDING, above=0.0)
    rounded = np.round(scores[rows], SCORE_DECIMALS)
    order = np.argsort(-rounded, kind="stable")[:k]
    return [(row, score) for row, score in zip(rows[order].tolist(), rounded[order].tolist(), strict=True) if score > 0]
