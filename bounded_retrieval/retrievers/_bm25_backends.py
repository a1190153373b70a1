"""The two ways to compute BM25: bm25s (a sparse matrix of ready scores) and rank_bm25 (the reference).

Both use Lucene's form of the formula. With N units, n of them holding the term, tf its count in the unit, dl the
unit's number of terms and avgdl the mean of dl::

    score(unit, query) = sum over distinct query terms of  idf * tf / (tf + k1 * (1 - b + b * dl / avgdl))
    idf = ln(1 + (N - n + 0.5) / (n + 0.5))

Source: Kamphuis, de Vries, Boytsov, Lin, "Which BM25 Do You Mean?", ECIR 2020, variant "Lucene (accurate)". There is
no factor (k1 + 1): it is the same for every unit and changes no order.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from functools import cache
from threading import Lock
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.errors import StoreCorruptError
from bounded_retrieval.retrievers._bm25_corpus import TokenCorpus
from bounded_retrieval.retrievers._bm25_postings import Postings, idf, norm_of, score_postings

Backend = Literal["bm25s", "rank_bm25"]

_IMPORTING = Lock()  # a second thread would take the level that the import left for the one that was there before

_SCORE_ROUNDING = 1e-9

_PART = 16_384  # postings computed with at a time: their arrays stay in the processor's cache


@dataclass(frozen=True, kw_only=True)
class Passing:
    """The units that pass a filter, with what the formula needs to know of them.

    Attributes:
        mask: bool, shape (units,): which of all units pass.
        units: how many pass.
        average: mean number of terms of those; 0 for none.
    """

    mask: NDArray[np.bool_]
    units: int
    average: float

    @classmethod
    def of(cls, mask: NDArray[np.bool_], corpus: TokenCorpus) -> Passing:
        """Count the units of a mask and their terms."""
        units, lengths = int(np.count_nonzero(mask)), np.diff(corpus.offsets)
        return cls(mask=mask, units=units, average=int(lengths.sum(where=mask)) / max(1, units))


class Scorer(Protocol):
    """Scores units for distinct term ids; every method adds the terms in the order given."""

    def scores(self, term_ids: Sequence[int]) -> NDArray[np.float64]:
        """Return the score of every unit, shape (units,)."""
        ...

    def gains_at(self, term_ids: Sequence[int], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what each term adds to the scores of the units at ``rows``, shape (terms, rows)."""
        ...

    def scores_among(self, term_ids: Sequence[int], passing: Passing) -> NDArray[np.float64]:
        """Return the scores that an index of only the passing units gives them, 0 elsewhere, shape (units,)."""
        ...

    def holding(self, term_id: int, passing: Passing | None) -> int:
        """Count the units that hold a term; of those that pass, where only some do."""
        ...


def create_scorer(
    backend: Backend, corpus: TokenCorpus, *, k1: float, b: float, postings: Postings | None = None
) -> Scorer:
    """Make the scorer of a backend; ``postings`` already computed spare bm25s its work.

    Raises:
        StoreCorruptError: the corpus is mapped from a damaged file, which ``rank_bm25`` reads at once.
    """
    if not corpus.flat.size:
        return NothingScorer(len(corpus))
    if backend == "rank_bm25":
        corpus.check()
        return RankBM25Scorer(corpus, k1=k1, b=b)
    return BM25sScorer(postings or score_postings(corpus, k1=k1, b=b), corpus, k1=k1, b=b)


class NothingScorer:
    """Scores a corpus without a single term, which neither library accepts."""

    def __init__(self, units: int) -> None:
        self._units = units

    def scores(self, term_ids: Sequence[int]) -> NDArray[np.float64]:  # noqa: ARG002 (the port's arguments)
        """Zeros, shape (units,)."""
        return np.zeros(self._units)

    def gains_at(self, term_ids: Sequence[int], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """Zeros, shape (terms, rows)."""
        return np.zeros((len(term_ids), len(rows)))

    def scores_among(self, term_ids: Sequence[int], passing: Passing) -> NDArray[np.float64]:  # noqa: ARG002
        """Zeros, shape (units,)."""
        return np.zeros(self._units)

    def holding(self, term_id: int, passing: Passing | None) -> int:  # noqa: ARG002
        """None."""
        return 0


class _PostingsCheck:
    """Looks at the postings of a term, where they are mapped from files, before they are first used.

    Args:
        postings: those of all terms.
        units: how many units there are.
    """

    def __init__(self, postings: Postings, units: int) -> None:
        self._postings = postings
        self._units = units
        self._sound = np.full(len(postings.indptr) - 1, postings.source is None)

    def __call__(self, term_ids: Sequence[int]) -> None:
        """Check those of the terms that were not checked before.

        Raises:
            StoreCorruptError: names the file whose values cannot be those of postings.
        """
        for term in term_ids:
            if not self._sound[term]:
                self._check(slice(int(self._postings.indptr[term]), int(self._postings.indptr[term + 1])))
                self._sound[term] = True

    def _check(self, span: slice) -> None:
        rows, gains = self._postings.indices[span], self._postings.data[span]
        if not len(rows) or rows[0] < 0 or rows[-1] >= self._units or (rows[1:] <= rows[:-1]).any():
            raise StoreCorruptError(f"{self._postings.source}/rows.npy: not ascending rows of {self._units} units")
        with np.errstate(invalid="ignore"):
            plausible = gains.min() > 0 and gains.max() <= idf(self._units, len(rows)) + _SCORE_ROUNDING
        if not plausible:  # nor is it where one is not a number
            raise StoreCorruptError(f"{self._postings.source}/scores.npy: a score is none that its term can give")


class BM25sScorer:
    """Adds up ready scores with bm25s; the arrays may be memory-mapped.

    Every method raises `StoreCorruptError` where the postings of a term are mapped from a damaged file.
    """

    def __init__(self, postings: Postings, corpus: TokenCorpus, *, k1: float, b: float) -> None:
        self.postings = postings
        self._check = _PostingsCheck(postings, len(corpus))
        self._k1, self._b = k1, b
        self._lengths = np.diff(corpus.offsets).astype(np.float64)
        self._norms = norm_of(self._lengths, len(corpus.flat) / len(corpus), k1=k1, b=b)
        self._model = _import_bm25s().BM25(method="lucene", dtype="float64", backend="numpy")
        self._model.nonoccurrence_array = None
        self._model.scores = {
            "data": postings.data,
            "indices": postings.indices,
            "indptr": postings.indptr,
            "num_docs": len(corpus),
        }

    def scores(self, term_ids: Sequence[int]) -> NDArray[np.float64]:
        """The score of every unit, shape (units,)."""
        self._check(term_ids)
        scores: NDArray[np.float64] = self._model.get_scores_from_ids(list(term_ids))
        return scores

    def gains_at(self, term_ids: Sequence[int], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each term adds to the scores of the units at ``rows``, found by bisection in its postings."""
        self._check(term_ids)
        # The same type as the postings: searchsorted would otherwise convert all of them.
        wanted = rows.astype(np.int32)
        indices, places = self.postings.indices, np.empty((len(term_ids), len(wanted)), dtype=np.int64)
        spans = self.postings.indptr[np.add.outer(np.asarray(term_ids, dtype=np.int64), (0, 1))]
        for place, (begin, end) in zip(places, spans.tolist(), strict=True):
            np.add(indices[begin:end].searchsorted(wanted), begin, out=place)
        np.minimum(places, spans[:, 1:] - 1, out=places)  # no term is held by nothing
        gains: NDArray[np.float64] = np.where(indices[places] == wanted, self.postings.data[places], 0.0)
        return gains

    def scores_among(self, term_ids: Sequence[int], passing: Passing) -> NDArray[np.float64]:
        """The scores that an index of only the passing units gives them, 0 elsewhere, shape (units,)."""
        self._check(term_ids)
        scores = np.zeros(len(self._lengths))
        for term in term_ids:
            span = slice(int(self.postings.indptr[term]), int(self.postings.indptr[term + 1]))
            held, gains = self.postings.indices[span], self.postings.data[span]
            passes = passing.mask[held]
            own = idf(len(scores), len(held))
            weight = idf(passing.units, int(np.count_nonzero(passes)))
            for start in range(0, len(held), _PART):
                part = slice(start, start + _PART)
                kept = passes[part]
                rows = held[part][kept].astype(np.intp)
                counts = self._counts(rows, gains[part][kept], own)
                norm = norm_of(self._lengths[rows], passing.average, k1=self._k1, b=self._b)
                scores[rows] += weight * (counts / (counts + norm))
        return scores

    def holding(self, term_id: int, passing: Passing | None) -> int:
        """How many units hold a term."""
        self._check([term_id])
        held = self.postings.indices[int(self.postings.indptr[term_id]) : int(self.postings.indptr[term_id + 1])]
        return len(held) if passing is None else int(np.count_nonzero(passing.mask[held]))

    def _counts(self, rows: NDArray[np.intp], gains: NDArray[np.float64], weight: float) -> NDArray[np.float64]:
        """How often a term occurs in the units at ``rows``, read back from its gains: idf * tf / (tf + norm).

        Where norm is next to nothing (or 0, with k1 = 0) tf cannot be told from them, and does not matter: gains then
        only say that the term is there.
        """
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            counts = np.rint(self._norms[rows] * gains / (weight - gains))
        # fmax and fmin also put a number in the place of NaN.
        limited: NDArray[np.float64] = np.fmin(np.fmax(counts, 1), self._lengths[rows])
        return limited


class RankBM25Scorer:
    """Scores with rank_bm25's Okapi class: a Python loop over all units for each query term."""

    def __init__(self, corpus: TokenCorpus, *, k1: float, b: float) -> None:
        self._model = _lucene_okapi()(list(corpus), k1=k1, b=b)

    def scores(self, term_ids: Sequence[int]) -> NDArray[np.float64]:
        """The score of every unit, shape (units,)."""
        return self._sum(term_ids, self._model.corpus_size, self._model.get_scores)

    def gains_at(self, term_ids: Sequence[int], rows: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each term adds to the scores of the units at ``rows``, shape (terms, rows)."""
        gains = np.zeros((len(term_ids), len(rows)))
        if len(rows):
            for place, term in enumerate(term_ids):
                gains[place] = self._sum(
                    [term], len(rows), lambda terms: self._model.get_batch_scores(terms, rows.tolist())
                )
        return gains

    def scores_among(self, term_ids: Sequence[int], passing: Passing) -> NDArray[np.float64]:
        """The scores that an index of only the passing units gives them, 0 elsewhere, shape (units,)."""
        scores = np.zeros(self._model.corpus_size)
        if passing.average:
            rows = np.flatnonzero(passing.mask)
            scores[rows] = self._sum(term_ids, len(rows), self._among(rows, term_ids, passing.average).get_scores)
        return scores

    def holding(self, term_id: int, passing: Passing | None) -> int:
        """How many units hold a term."""
        counts = self._model.doc_freqs
        rows = range(len(counts)) if passing is None else np.flatnonzero(passing.mask)
        return sum(term_id in counts[row] for row in rows)

    def _among(self, rows: NDArray[np.int64], term_ids: Sequence[int], average: float) -> Any:
        """The model of the units at ``rows``, which shares their counts with the whole one; good for these terms."""
        part = copy(self._model)
        part.doc_freqs = [self._model.doc_freqs[row] for row in rows]
        part.doc_len = [self._model.doc_len[row] for row in rows]
        part.corpus_size, part.avgdl = len(rows), average
        holding = {term: sum(term in held for held in part.doc_freqs) for term in term_ids}
        part._calc_idf(holding)  # noqa: SLF001  # rank_bm25 has no other way to it
        return part

    def _sum(self, term_ids: Sequence[int], units: int, score: Callable[[list[int]], Any]) -> NDArray[np.float64]:
        scores = np.zeros(units)
        for term in term_ids:
            # Where a unit's norm is 0 (with k1 = 0, say), rank_bm25 divides 0 by 0 if the term is not there.
            with np.errstate(invalid="ignore"):
                scores += np.nan_to_num(np.asarray(score([term]), dtype=np.float64))
        return scores / float(self._model.k1 + 1)


def _import_bm25s() -> Any:
    # Importing bm25s sets its logger to DEBUG, which would make it write wherever the application logs.
    logger = logging.getLogger("bm25s")
    with _IMPORTING:
        level = logger.level
        import bm25s

        logger.setLevel(level)
    return bm25s


@cache
def _lucene_okapi() -> Any:
    from rank_bm25 import BM25Okapi

    class LuceneOkapi(BM25Okapi):  # type: ignore[misc]  # rank_bm25 has no types
        """BM25Okapi whose idf is never 0 or negative."""

        def _calc_idf(self, nd: dict[int, int]) -> None:
            units = self.corpus_size
            self.idf = {term: math.log(1 + (units - n + 0.5) / (n + 0.5)) for term, n in nd.items()}

    return LuceneOkapi
