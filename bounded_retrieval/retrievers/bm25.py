"""The lexical channel: BM25 over units, in memory or opened from files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from numbers import Real
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from langchain_core.documents import Document

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.errors import ConfigurationError, RequestError, StoreCorruptError, quoted
from bounded_retrieval.policies.tokenize import TOKENIZER_NAME, stems_of, tokenize
from bounded_retrieval.retrievers._bm25_backends import Backend, BM25sScorer
from bounded_retrieval.retrievers._bm25_corpus import CorpusBuilder
from bounded_retrieval.retrievers._bm25_files import (
    HEADER,
    UNITS,
    Header,
    read_lexical,
    write_file,
    write_lexical,
    write_neighbours,
)
from bounded_retrieval.retrievers._bm25_index import BM25Settings, LexicalIndex, Statistics
from bounded_retrieval.retrievers._bm25_masks import Mask
from bounded_retrieval.retrievers._bm25_postings import score_postings
from bounded_retrieval.retrievers._neighbours import read_neighbours
from bounded_retrieval.retrievers.units import MemoryUnits, RowUnits, as_path, read_units, write_units

if TYPE_CHECKING:
    from bounded_retrieval.retrievers.exact import ExactSearcher


class BM25Searcher:
    """Searches units by their words; a searcher, a scoring searcher and a unit source in one.

    Make one with `from_documents` or `open`. Indexed are the terms (`index_terms`: English stems, identifiers whole and
    in parts) of a unit's title, counted twice, and of its text. A query's terms count once each; stop words are dropped
    unless nothing else is left. Scores are Lucene's BM25
    (the formula stands in ``_bm25_backends.py``), rounded to 9 decimals. Order: score, then unit id ascending; a unit
    that matches nothing is not returned.

    An index that `build_index` wrote also knows which four units are most like each one, worked out once from the
    vectors (see `use_neighbours`). There a unit's neighbours lend it part of what words of the query count that it
    lacks, and a fifth of its score is that of a neighbour, times their likeness: a unit that says some of it in other
    words than its neighbour ranks higher. That is looked at for the 64 units that hold most of the query; the others
    come after them. No query is embedded for it and no vector read. It plays no part under a filter.

    Metadata filters apply before ranking. With ``statistics="filtered"`` a search under a filter knows of nothing but
    the units that pass: their number, their mean length and how many of them hold a term. Its answer, scores included,
    is that of an index of those units alone, so it tells nothing of the others, and scores of searches under different
    filters are not comparable. With ``"corpus"`` the statistics of all units are used: a filter changes no score, and
    scores (so ranks, too) depend on units that do not pass. Without a filter there is no difference.

    The first filter on a field reads all metadata once; after that a new filter costs a few array operations.

    Any number of threads may search; edits happen one at a time and never disturb a search under way.

    Args:
        index: the state to start from.
        id_key: metadata field that holds the id of documents given to `add`.
    """

    tokenizer = staticmethod(tokenize)
    stem = staticmethod(stems_of)
    tokenizer_name = TOKENIZER_NAME

    def __init__(self, index: LexicalIndex, *, id_key: str | None = None) -> None:
        if id_key is not None and not isinstance(id_key, str):
            raise ConfigurationError(f"id_key: expected the name of a metadata field (got {quoted(id_key)})")
        if not isinstance(index, LexicalIndex):
            raise ConfigurationError(
                f"index: expected a LexicalIndex, see from_documents and open (got {quoted(index)})"
            )
        self._index = index
        self._id_key = id_key
        self._edit_lock = Lock()

    @classmethod
    def from_documents(  # noqa: PLR0913  # all but one are keyword-only
        cls,
        documents: Iterable[Document],
        *,
        backend: Backend = "bm25s",
        k1: float = 1.5,
        b: float = 0.75,
        statistics: Statistics = "filtered",
        id_key: str | None = None,
    ) -> BM25Searcher:
        """Index documents in memory.

        Args:
            documents: read once.
            backend: ``bm25s``, or ``rank_bm25`` (the reference, for small corpora); both give the same scores.
            k1: how slowly repeats of a term stop counting; 0 or more.
            b: how much a unit's length counts, 0 to 1.
            statistics: whose statistics count in a filtered search: ``filtered`` or ``corpus`` (see the class).
            id_key: metadata field that holds the id, before ``Document.id``.

        Raises:
            SourceError: a text is blank, or one id stands for two texts.
            ConfigurationError: a setting is out of range.
        """
        for name, value in {"k1": k1, "b": b}.items():
            if not isinstance(value, Real):
                raise ConfigurationError(f"{name}: expected a number (got {quoted(value)})")
        settings = BM25Settings(backend=backend, k1=k1, b=b, statistics=statistics)
        units = MemoryUnits(documents, id_key=id_key)
        builder = CorpusBuilder()
        for unit in units.units():
            builder.add(unit)
        return cls(LexicalIndex(units, builder.build(units.ids()), settings), id_key=id_key)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        *,
        backend: Backend = "bm25s",
        statistics: Statistics = "filtered",
        id_key: str | None = None,
    ) -> BM25Searcher:
        """Open what `save` wrote. Arrays are memory-mapped and texts stay in the file; both are checked when read.

        The files record neither the backend nor ``statistics``.

        Raises:
            StoreError: ``directory`` is no path.
            StoreMissingError: there is no lexical index in the directory.
            StoreVersionError: written in another format, or with another tokenizer.
            StoreCorruptError: a file is missing or damaged; names it.
        """
        folder = as_path("directory", directory)
        header, corpus, postings, units = read_lexical(folder)
        settings = BM25Settings(backend=backend, k1=header.k1, b=header.b, statistics=statistics)
        with ExitStack() as opened:
            opened.callback(units.close)
            neighbours = read_neighbours(folder, header.units) if header.neighbours else None
            made = cls(LexicalIndex(units, corpus, settings, postings, neighbours), id_key=id_key)
            opened.pop_all()
        return made

    @property
    def units(self) -> RowUnits:
        """The units as they are now."""
        return self._index.units

    @property
    def settings(self) -> BM25Settings:
        """The backend, the constants of the formula, and whose statistics count under a filter."""
        return self._index.settings

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates, best first, each with its score and its unit.

        Raises:
            RequestError: the filter is not part of the filter language, the query is no text or ``k`` no whole number.
            StoreCorruptError: a file that the answer is read from is damaged.
        """
        if not isinstance(k, int) and not hasattr(k, "__index__"):
            raise RequestError(f"k: expected a whole number (got {quoted(k)})")
        _check_query(query)
        index = self._index
        best = index.top(query, k, filter)
        unit_ids = index.units.unit_ids_at([row for row, _ in best])
        units = index.units.fetch(unit_ids)
        if len(units) < len(unit_ids):
            raise StoreCorruptError(f"{index.units!r}: a unit has no text")
        return [
            Candidate(unit_id=unit_id, channel="lexical", rank=rank, score=score, unit=units[unit_id])
            for rank, (unit_id, (_, score)) in enumerate(zip(unit_ids, best, strict=True), 1)
        ]

    def masks(self) -> Callable[[Filter], Mask]:
        """A function that tells which of the units, as they are now, pass a filter: shape (units,), by row."""
        return self._index.mask

    def pushes_down(self, filter: Filter | None) -> bool:  # noqa: ARG002  # the same for every filter
        """Whether the searcher itself decides the whole filter, so that it returns no row that does not pass: yes."""
        return True

    def score(self, query: str, unit_ids: Sequence[str], filter: Filter | None = None) -> dict[str, float]:
        """The score of each given unit that exists: 0.0 where neither it nor a neighbour holds a word searched for.

        A unit that a search does not return, since it holds no such word itself, may so have a score, and one beyond
        the 64 that hold most of the query a higher one than there.

        Under a filter it is the score that a search under that filter gives, and 0.0 for a unit that does not pass.
        Without one, no other unit is scored.

        Raises:
            RequestError: the filter is not part of the filter language.
        """
        _check_query(query)
        return self._index.score(query, unit_ids, filter)

    def weigh(self, query: str, words: Sequence[str], filter: Filter | None = None) -> QueryWeights:
        """How rare each of these words of the query is, and the most that a unit could score.

        Raises:
            RequestError: the filter is not part of the filter language, or the query is no text.
        """
        _check_query(query)
        return self._index.weights(query, words, filter)

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist now, by id."""
        return self._index.units.fetch(unit_ids)

    def ids(self) -> list[str]:
        """All unit ids, ascending."""
        return self._index.units.ids()

    def __len__(self) -> int:
        return len(self._index.units)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self)} units, backend={self.settings.backend!r})"

    def add(self, documents: Iterable[Document]) -> None:
        """Add units; a unit with an id already held takes its place. Other texts are not tokenised again.

        Raises:
            SourceError: a text is blank, or one id stands for two texts among ``documents``; nothing is added.
        """
        changed = {unit.unit_id: unit for unit in read_units(documents, self._id_key)}
        if changed:
            with self._edit_lock:
                self._index = self._index.edited(changed, ())

    def remove(self, unit_ids: Iterable[str]) -> None:
        """Remove units; ids that are not held are passed over."""
        with self._edit_lock:
            removed = self._index.units.rows_of(list(unit_ids)).keys()
            if removed:
                self._index = self._index.edited({}, removed)

    def save(self, directory: str | Path) -> None:
        """Write the index to a directory, made if needed; an index there is replaced.

        Not safe against being killed half-way (the directory then does not open); `build_index` is.

        Raises:
            StoreError: ``directory`` is no path.
        """
        target, index = as_path("directory", directory), self._index
        target.mkdir(parents=True, exist_ok=True)
        (target / HEADER).unlink(missing_ok=True)
        write_file(target / UNITS, lambda path: write_units(path, index.units.units()))
        settings, scorer = index.settings, index.scorer
        ready = scorer.postings if isinstance(scorer, BM25sScorer) else None
        postings = ready or score_postings(index.corpus, k1=settings.k1, b=settings.b)
        header = Header.of(settings, len(index.units), neighbours=index.neighbours is not None)
        if index.neighbours is not None:
            write_neighbours(target, index.neighbours)
        write_lexical(target, header, index.corpus, postings)

    def use_neighbours(self, dense: ExactSearcher) -> None:
        """Let units that resemble each other support each other's scores, as in an index that `build_index` writes.

        Units that are added afterwards have no neighbours until this is called again.

        Args:
            dense: over the same units; its vectors say who resembles whom, and are not needed later.

        Raises:
            ConfigurationError: it is no `ExactSearcher`, or over other units.
        """
        if not hasattr(dense, "neighbours"):
            raise ConfigurationError(f"dense: expected an ExactSearcher (got {type(dense).__name__})")
        with self._edit_lock:
            if dense.ids() != self.ids():
                raise ConfigurationError(f"dense: expected the same {len(self)} units (got {dense!r})")
            self._index = self._index.beside(dense.neighbours())

    def close(self) -> None:
        """Close the files that `open` opened; the searcher is of no use after that."""
        self._index.units.close()


def _check_query(query: object) -> None:
    if not isinstance(query, str):
        raise RequestError(f"query: expected text (got {quoted(query)})")
