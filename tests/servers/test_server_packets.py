"""The same packet over servers as over the embedded default, for every query, up to ties.

Up to ties means: the same stop reason and the same number of items; where the ids in some place differ, the items that
the two packets have there were returned by the same channels with the same scores, fused and of each channel, to a
millionth: the last digit to which a cosine is rounded.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from server_searchers import dense_of, filled

from bounded_retrieval import EvidenceItem, EvidencePacket, create_bounded_retrieval
from bounded_retrieval.demo import shipped_collection
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.exact import ExactSearcher

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from synthetic import CheapEmbeddings, make_documents, make_queries

TIE = 1e-6
UNITS, QUERIES = 200, 30


def shipped_queries() -> list[str]:
    """The shipped collection's questions."""
    lines = (shipped_collection() / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["text"] for line in lines]


class World:
    """Documents, queries, and the embedded default over them."""

    def __init__(self, documents: list[Document], queries: list[str], embedding: Embeddings) -> None:
        self.documents = documents
        self.queries = queries
        self.embedding = embedding
        self.lexical = BM25Searcher.from_documents(documents)
        self.dense = ExactSearcher.from_documents(documents, embedding)
        self.lexical.use_neighbours(self.dense)


@pytest.fixture(scope="module", params=["shipped", "synthetic"])
def world(request: pytest.FixtureRequest, shipped: list[Document], embedding: Embeddings) -> World:
    """A corpus that means something, and one whose queries mix frequent and rare words."""
    if request.param == "shipped":
        return World(shipped, shipped_queries(), embedding)
    made = make_documents(UNITS, 7)
    return World(made, make_queries(made, QUERIES, 7), CheapEmbeddings(7))


@pytest.fixture(scope="module", params=["milvus", "pgvector", "chroma"])
def pair(request: pytest.FixtureRequest, world: World) -> Iterator[tuple[Any, Any]]:
    """A lexical and a dense searcher, as many of the two over the server as it can be."""
    store = filled(request.param, request.getfixturevalue(request.param), world.documents, world.embedding)
    yield getattr(store, "lexical", world.lexical), dense_of(store)
    store.close()


def packets(lexical: Any, dense: Any, queries: list[str], **request: Any) -> list[EvidencePacket]:
    """A packet for each query."""
    graph = create_bounded_retrieval(lexical, dense).compile()
    answers = graph.batch([{"query": query, "request": request} for query in queries], {"max_concurrency": 1})
    return [EvidencePacket.from_result(answer) for answer in answers]


def are_tied(one: EvidencePacket, other: EvidencePacket) -> bool:
    """Whether two packets differ in nothing but the order of ties."""
    if one.stop_reason != other.stop_reason or len(one.items) != len(other.items):
        return False
    pairs = zip(one.items, other.items, strict=True)
    return all(mine.unit_id == yours.unit_id or are_close(mine, yours) for mine, yours in pairs)


def are_close(one: EvidenceItem, other: EvidenceItem) -> bool:
    """Whether two items have the same scores; the fused one alone may come from ranks, which other units have too."""
    if one.channels.keys() != other.channels.keys():
        return False
    pairs = [(one.fused_score, other.fused_score)]
    pairs += [(held.score or 0, other.channels[name].score or 0) for name, held in one.channels.items()]
    return all(abs(mine - yours) <= TIE for mine, yours in pairs)


@pytest.mark.parametrize("policy", ["adaptive", "always_continue"])
def test_every_query_gives_the_same_packet(world: World, pair: tuple[Any, Any], policy: str) -> None:
    """Ids, their order and the stop reason, over the package's default parts."""
    expected = packets(world.lexical, world.dense, world.queries, policy=policy)
    found = packets(*pair, world.queries, policy=policy)
    different = [query for query, *two in zip(world.queries, expected, found, strict=True) if not are_tied(*two)]
    assert different == []
    exactly = sum(
        [item.unit_id for item in one.items] == [item.unit_id for item in other.items]
        for one, other in zip(expected, found, strict=True)
    )
    assert exactly >= 0.95 * len(expected)
    assert any(packet.items for packet in found)


def test_the_comparison_notices_another_packet(world: World) -> None:
    """A control: packets of the next query are not taken for those of this one."""
    found = packets(world.lexical, world.dense, world.queries)
    others = [*found[1:], found[0]]
    assert sum(are_tied(*two) for two in zip(found, others, strict=True)) < len(found) / 2
