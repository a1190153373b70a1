"""Both channels over one Milvus collection: BM25 full text and dense vectors, on a cluster or on ``milvus-lite``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.candidate import Candidate, Channel, Unit, searchable_text
from bounded_retrieval.contracts.filters import Filter, compile_filter
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.policies.tokenize import TOKENIZER_NAME, search_terms, stems_of, tokenize
from bounded_retrieval.retrievers import _milvus_rows as rows
from bounded_retrieval.retrievers._bm25_index import SCORE_DECIMALS, Statistics
from bounded_retrieval.retrievers._bm25_postings import idf
from bounded_retrieval.retrievers._excluding import Excluding
from bounded_retrieval.retrievers._milvus_client import MilvusConnection
from bounded_retrieval.retrievers._milvus_collection import BATCH, OverUnits, Search, UnitCollection, within_one_limit
from bounded_retrieval.retrievers._milvus_neighbours import SupportedScores, UnitNeighbours, create, opened
from bounded_retrieval.retrievers._milvus_statistics import Change, Scores, TermStatistics, all_rows
from bounded_retrieval.retrievers._milvus_statistics import Statistics as Counted
from bounded_retrieval.retrievers._server_units import (
    SLACK,
    TIMEOUT_MS,
    Progress,
    Row,
    batches,
    best_rows,
    candidates,
    checked_timeout,
    cosines_of,
    storable_ids,
)
from bounded_retrieval.retrievers._vectors import Vectors, embed_units, unit_length
from bounded_retrieval.retrievers.embeddings import embedding_identity
from bounded_retrieval.retrievers.query_vectors import QueryVectors

POOL = 64
"""Fewest units that Milvus is asked for in a lexical search; they are scored anew."""

LARGEST_LIST = 1_024
"""Units that Milvus keeps in view in a dense search, of which `OVERFETCH_CAP` are asked for at most."""

FLUSHED_UNITS = 1_000
"""An addition of so many units or more ends with a flush, so that Milvus indexes them."""

LARGE_ADDITION = 0.1
"""An addition that makes up so much of the units or more ends with finding everybody's neighbours anew."""


class MilvusStore:
    """One Milvus collection of units: ``lexical`` and ``dense`` are its two searchers, and it is a unit source.

    Make one with `open` or `create`. Milvus finds the units; each is then scored as in the embedded index, with
    statistics of the whole collection (or, under a filter, of the units that pass), which are kept in a second
    collection beside it, and with the support of the units most like it, which are kept in a third (see
    `use_neighbours`). Names, terms, scores and filters are those of `BM25Searcher` and `ChromaSearcher`.

    Any number of threads may search; one writer at a time, in all processes together. Open it after a fork: a forked
    process is refused (`ForkedError`). After a restart of the server the next call connects again.

    Args:
        connection: to the server, for a collection that `create` made.
        embedding: the one that made its vectors.
        id_key: metadata field that `add` takes unit ids from, before ``Document.id``.
        statistics: what a lexical search under a filter knows of term frequencies and lengths: ``filtered`` or
            ``corpus`` (see `BM25Searcher`). Statistics of the units that pass are counted by the server.
        statistics_ttl_s: how long statistics are kept before they are asked for again, in seconds.
    """

    def __init__(
        self,
        connection: MilvusConnection,
        embedding: Embeddings,
        *,
        id_key: str | None = None,
        statistics: Statistics = "filtered",
        statistics_ttl_s: float = 60.0,
    ) -> None:
        if statistics not in ("filtered", "corpus"):
            raise ConfigurationError(f"statistics: expected 'filtered' or 'corpus' (got {statistics!r})")
        self._connection = connection
        self._id_key = id_key
        self._statistics = TermStatistics(connection, statistics_ttl_s)
        self._neighbours = UnitNeighbours(connection)
        self._units = UnitCollection(connection)
        support = SupportedScores(self._units, self._neighbours)
        self.lexical = MilvusLexicalSearcher(self._units, self._statistics, support, statistics)
        self.dense = MilvusDenseSearcher(self._units, embedding)

    @classmethod
    def open(
        cls,
        uri: str,
        embedding: Embeddings | None = None,
        *,
        collection: str = "units",
        timeout_ms: float = TIMEOUT_MS,
        client: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> MilvusStore:
        """Open a collection that is there; without an embedding, with the built-in one that it records.

        Args:
            uri: where the server is, as in ``http://127.0.0.1:19530``.
            embedding: the one that made the vectors.
            collection: its name.
            timeout_ms: longest that a call may take; searches and scores never take longer than a run's deadline
                leaves.
            client: more options of ``pymilvus.MilvusClient``: ``token``, ``db_name``, certificates.
            options: those of the class.

        Raises:
            StoreMissingError: the collection is not there.
            StoreVersionError: its terms are those of another version of this package.
            EmbeddingMismatchError: another embedding made its vectors.
            StoreError: the server is not there, took too long or refused.
            ConfigurationError: pymilvus is not installed, or an option is not valid.
        """
        connection = MilvusConnection(uri, collection, checked_timeout(timeout_ms), client or {})
        with connection.closed_on_error():
            return cls(connection, opened(connection, embedding), **options)

    @classmethod
    def create(
        cls,
        uri: str,
        embedding: Embeddings,
        *,
        collection: str = "units",
        timeout_ms: float = TIMEOUT_MS,
        client: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> MilvusStore:
        """Open a collection, made first if it is not there; arguments and errors are those of `open`."""
        connection = MilvusConnection(uri, collection, checked_timeout(timeout_ms), client or {})
        with connection.closed_on_error():
            create(connection, embedding)
            return cls(connection, opened(connection, embedding), **options)

    def add(self, documents: Iterable[Document], progress: Progress | None = None) -> None:
        """Embed and store documents, read as they are needed; a unit whose id is already there is replaced.

        The id is the ``id_key`` field, else ``Document.id``, else a hash of the text. Units are stored in batches of
        500; those before an error stay, and adding the same documents again completes the work. When they make up a
        tenth of the collection or more, `use_neighbours` follows.

        Raises:
            SourceError: a text is blank or longer than Milvus holds, or one id stands for two texts.
            StoreError: the server is not there, took too long or refused.
        """
        stored = 0
        with self._statistics.changing() as change:
            for batch in batches(documents, self._id_key, BATCH, progress):
                self._store(batch, change)
                stored += len(batch)
            if change.units >= FLUSHED_UNITS:
                self._connection.on_collection("flush")
        if stored and stored >= LARGE_ADDITION * len(self):
            self.use_neighbours()

    def _store(self, batch: list[Unit], change: Change) -> None:
        texts = [searchable_text(unit.title, unit.text) for unit in batch]
        vectors = embed_units(self.dense.embedding, texts)
        data = [rows.row_of(unit, vector) for unit, vector in zip(batch, vectors.tolist(), strict=True)]
        before = self._units.rows([unit.unit_id for unit in batch], ["terms"])
        # First, so that nobody is ever supported by a text that took another one's place.
        self._neighbours.forget(before)
        self._connection.on_collection("upsert", data=data)
        for row in before.values():
            change.add(row["terms"], -1)
        for row in data:
            change.add(row["terms"], 1)

    def remove(self, unit_ids: Iterable[str]) -> None:
        """Delete units; ids that are not there are passed over."""
        wanted = storable_ids(unit_ids)
        with self._statistics.changing() as change:
            for start in range(0, len(wanted), BATCH):
                before = self._units.rows(wanted[start : start + BATCH], ["terms"])
                if before:
                    self._neighbours.forget(before)
                    self._connection.on_collection("delete", filter=rows.one_of(before))
                for row in before.values():
                    change.add(row["terms"], -1)

    def use_neighbours(self) -> None:
        """Find the units most like each one, by their vectors, which support its lexical score.

        They are those of an index that `build_index` writes of the same units. Units that are replaced or removed leave
        them at once; units that are added have none before this is called again, by `add` when they make up a tenth of
        the collection or more. All vectors are read into memory.

        Raises:
            StoreError: the server is not there, took too long or refused.
        """
        self._neighbours.work_out()

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        """The units that exist now, by id; an id that is not there is left out."""
        return self._units.fetch(unit_ids)

    def ids(self) -> list[str]:
        """Every unit id, sorted."""
        return sorted(row["id"] for batch in all_rows(self._connection, ["id"]) for row in batch)

    def __len__(self) -> int:
        return self._units.count()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._connection.name}, {embedding_identity(self.dense.embedding)})"

    def drop(self) -> None:
        """Delete the collection, its statistics, its neighbours, and everything in them."""
        self._connection.on_collection("drop_collection")
        self._statistics.drop()
        self._neighbours.drop()

    def close(self) -> None:
        """Let go of the connection; neither searcher is of use after that. May be repeated."""
        self._connection.close()


class MilvusLexicalSearcher(OverUnits):
    """The lexical channel of a `MilvusStore`; its terms, formula and scores are those of `BM25Searcher`.

    Milvus ranks by its own BM25 (single precision, statistics of a shard, on milvus-lite of a segment) and gives at
    least `POOL` units; the best of those by the exact score come back. So the answer is that of the embedded index
    wherever Milvus has its units among the first 64 (or 4 times ``k``). Without a filter their neighbours are looked
    up, and then the terms of those neighbours that did not come back themselves.
    """

    channel: Channel = "lexical"
    tokenizer = staticmethod(tokenize)
    stem = staticmethod(stems_of)
    tokenizer_name = TOKENIZER_NAME

    def __init__(
        self, units: UnitCollection, statistics: TermStatistics, support: SupportedScores, scope: Statistics
    ) -> None:
        self._units = units
        self._statistics = statistics
        self._support = support
        self._scope = scope

    @within_one_limit
    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates, best first, each with its score and its unit.

        Raises:
            RequestError: the filter is not part of the filter language.
            StoreError: the server is not there, took too long or refused.
        """
        accepts, passing = compile_filter(filter), rows.narrowed(filter)
        scores = None if k <= 0 or passing.text is False else self._scores(query, filter)
        if scores is None or not scores.terms:
            return []
        search = Search(
            field="sparse",
            data=" ".join(scores.terms),
            passing=passing.text,
            fields=["terms"],
            parameters={"metric_type": "BM25"},
        )

        def ask(limit: int) -> list[Row]:
            hits = dict(self._units.ranked(search, limit))
            terms = {unit_id: hit["terms"] for unit_id, hit in hits.items()}
            found = {each: scores.of(terms[each]) for each in terms} if filter else self._support.best(scores, terms, k)
            return [Row(unit=rows.document_of(each, hits[each]), unit_id=each, score=found[each]) for each in found]

        best = best_rows(ask, k, max(POOL, 4 * k), accepts, is_settled=passing.exact)
        # Milvus knows terms by numbers, which two terms may share.
        return candidates([row for row in best if row.score > 0], self.channel)

    @within_one_limit
    def score(self, query: str, unit_ids: Sequence[str], filter: Filter | None = None) -> dict[str, float]:
        """The score of each given unit that exists: what a search under the filter gives it, 0.0 where nothing matches.

        Raises:
            RequestError: the filter is not part of the filter language.
            StoreError: the server is not there, took too long or refused.
        """
        accepts = compile_filter(filter)
        found = self._units.rows(storable_ids(unit_ids), ["terms", "metadata"], self._units.search_seconds)
        if not found:
            return {}
        scores = self._scores(query, filter)
        terms = {unit_id: row["terms"] for unit_id, row in found.items()}
        if not filter:
            return self._support.of(scores, terms)
        passing = {unit_id: accepts(row["metadata"] or {}) for unit_id, row in found.items()}
        return {unit_id: scores.of(terms[unit_id]) if passing[unit_id] else 0.0 for unit_id in found}

    @within_one_limit
    def weigh(self, query: str, words: Sequence[str], filter: Filter | None = None) -> QueryWeights:
        """How rare each of these words of the query is, and the most that a unit could score.

        Raises:
            RequestError: the filter is not part of the filter language.
            StoreError: the server is not there, took too long or refused.
        """
        forms = dict(zip(words, map(rows.encode_term, stems_of(list(words))), strict=True))
        searched = [rows.encode_term(term) for term in search_terms(query)]
        counted = self._counted([*searched, *forms.values()], filter)
        rarity = {term: float(idf(counted.units, counted.holding[term])) for term in {*searched, *forms.values()}}
        most = sum(rarity[term] for term in searched)
        return QueryWeights(
            terms={word: round(rarity[form], SCORE_DECIMALS) for word, form in forms.items()},
            holding={word: counted.holding[form] for word, form in forms.items()},
            attainable=round(most + 10.0**-SCORE_DECIMALS, SCORE_DECIMALS) if most else 0.0,
        )

    def _counted(self, terms: Sequence[str], filter: Filter | None) -> Counted:
        scope = filter if self._scope == "filtered" else None
        return self._statistics.of(terms, scope)

    def _scores(self, query: str, filter: Filter | None) -> Scores:
        terms = [rows.encode_term(term) for term in search_terms(query)]
        return Scores(self._counted(terms, filter), terms)


class MilvusDenseSearcher(OverUnits, Excluding):
    """The dense channel of a `MilvusStore`; scores are cosine similarities to six decimals, as in the embedded index.

    Vectors are stored at length 1 and found by an HNSW index.
    """

    channel: Channel = "dense"

    def __init__(self, units: UnitCollection, embedding: Embeddings) -> None:
        self._units = units
        self._queries = QueryVectors(embedding)

    @property
    def embedding(self) -> Embeddings:
        """What embeds queries and documents."""
        return self._queries.embedding

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        """Return at most ``k`` candidates with their units, best first.

        Raises:
            RequestError: the filter is not part of the filter language.
            StoreError: the server is not there, took too long or refused.
        """
        accepts, passing = compile_filter(filter), rows.narrowed(filter)
        if k <= 0 or passing.text is False:
            return []
        vector = self._vector(query)
        search = Search(
            field="vector",
            data=vector,
            passing=passing.text,
            fields=["vector"],
            parameters={"metric_type": "IP", "params": {"ef": LARGEST_LIST}},
        )

        def ask(limit: int) -> list[Row]:
            hits = self._units.ranked(search, limit)
            scores = cosines_of(vector, [row["vector"] for _, row in hits], self._units.connection.name)
            found = zip(hits, scores, strict=True)
            return [Row(unit=rows.document_of(*hit), unit_id=hit[0], score=score) for hit, score in found]

        with self._units.one_limit():
            return candidates(best_rows(ask, k, k + SLACK, accepts, is_settled=passing.exact), self.channel)

    def score(
        self,
        query: str,
        unit_ids: Sequence[str],
        filter: Filter | None = None,  # noqa: ARG002 - a cosine depends on no other unit
    ) -> dict[str, float]:
        """Cosine similarity of the query with each of these units that exists; reads no other.

        Raises:
            StoreError: the server is not there, took too long or refused.
        """
        found = self._units.rows(storable_ids(unit_ids), ["vector"], self._units.search_seconds)
        if not found:
            return {}
        scores = cosines_of(self._vector(query), [row["vector"] for row in found.values()], self._units.connection.name)
        return dict(zip(found, scores, strict=True))

    def _vector(self, query: str) -> Vectors:
        vector: Vectors = unit_length(self._queries.vector(query)[np.newaxis])[0]
        return vector
