"""Thousands of requests at once from a hundred tenants over one graph (10,000 where CI asks for them)."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.nodes import eligibility
from bounded_retrieval.policies.metadata_view import MetadataView
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher

TENANTS = [f"tenant-{number:02}" for number in range(100)]
DEVICES = ("pump", "gateway", "sensor", "printer", "charger", "reader")
TASKS = ("clean the filter", "replace the battery", "reset the passcode", "update the firmware")
REQUESTS = int(os.environ.get("BOUNDED_RETRIEVAL_REQUESTS", "2000"))
SHARED = "everybody"


class HashedWords(Embeddings):
    """A cheap embedding: each word adds one fixed direction out of 64."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vector = np.full(64, 0.01)
        for word in text.lower().split():
            vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % 64] += 1.0
        return vector.tolist()


@dataclass
class Caller:
    """The runtime context of one request."""

    tenant: str
    groups: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """Who asked, and the tenants and groups of the units in the packet."""

    tenant: str
    groups: tuple[str, ...]
    owners: tuple[str, ...]
    closed: int


def inventory() -> list[Document]:
    """Every tenant holds the same kinds of text, some for one group only; some units are everybody's."""
    documents = []
    for owner in [*TENANTS, SHARED]:
        for device, task in itertools.product(DEVICES, TASKS):
            groups = {"groups": ["service"]} if device == "charger" else {}
            text = f"To {task} of the {device}, follow the sheet kept by {owner}. Note {len(documents)}."
            unit_id = f"{owner}/{device}/{task}{'/closed' if groups else ''}"
            documents.append(Document(id=unit_id, page_content=text, metadata={"tenant": owner, **groups}))
    return documents


@pytest.fixture(scope="module")
def graph() -> Iterator[Any]:
    """One graph over all tenants' units, both channels real."""
    documents = inventory()
    lexical = BM25Searcher.from_documents(documents)
    dense = ChromaSearcher.from_documents(documents, HashedWords())
    view = MetadataView(shared_tenant=SHARED)
    yield create_bounded_retrieval(lexical, dense, units=lexical, eligibility=view, context_schema=Caller).compile()
    dense.close()


async def ask(graph: Any, number: int) -> Outcome:
    """One tenant's request; every other one holds a word that no unit has, so that the run goes on to the dense search."""
    tenant = TENANTS[number % len(TENANTS)]
    groups = ("service",) if number % 3 == 0 else ()
    device, task = DEVICES[number % len(DEVICES)], TASKS[number // 7 % len(TASKS)]
    query = f"{task} of the {device}" + (" quickly somehow tonight" if number % 2 else "")
    result = await graph.ainvoke({"query": query}, context=Caller(tenant, groups))
    ids = [item["unit_id"] for item in result["packet"]["items"]]
    assert [document.id for document in result["documents"]] == ids
    named = {reference["unit_id"] for event in result["trace"]["events"] for reference in event.get("returned", ())}
    owners = tuple(unit_id.split("/")[0] for unit_id in [*ids, *named])
    return Outcome(tenant, groups, owners, sum(unit_id.endswith("/closed") for unit_id in [*ids, *named]))


async def test_no_unit_crosses_between_tenants(graph: Any) -> None:
    """Of all requests at once none shows a unit of another tenant or group, and most show units of their own."""
    outcomes = await asyncio.gather(*(ask(graph, number) for number in range(REQUESTS)))
    crossed = [o for o in outcomes if set(o.owners) - {o.tenant, SHARED} or (o.closed and not o.groups)]
    filled = [o for o in outcomes if o.owners]
    own = [o for o in filled if o.tenant in o.owners]
    assert len(outcomes) == REQUESTS
    assert crossed == []
    assert len(filled) >= 0.8 * REQUESTS
    assert len(own) >= 0.5 * len(filled)
    print(f"{REQUESTS:,} requests, {len(crossed)} crossing, {len(filled):,} with units, {len(own):,} with own units")  # noqa: T201


def everything_passes(_metadata: Any) -> bool:
    """Let every unit pass."""
    return True


async def test_without_the_filter_units_would_cross(graph: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same requests over the same graph cross at once when every unit passes."""
    read = eligibility._read_view
    monkeypatch.setattr(
        eligibility, "_read_view", lambda view: replace(read(view), filter=None, accepts=everything_passes)
    )
    outcomes = await asyncio.gather(*(ask(graph, number) for number in range(100)))
    assert any(set(o.owners) - {o.tenant, SHARED} for o in outcomes)
