"""The units, the honest searchers over them, and the queries of the fault matrix."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.retrievers._excluding import Excluding
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher

QUERIES = ("replace the HX-200 battery", "HX-200 battery hours", "courier parcels", "lamp", "charging the HX-200")
STOP_WORDS = frozenset({"the"})

_OPEN = {
    "ash": "Replace the HX-200 battery with the small screwdriver",
    "birch": "The HX-200 battery lasts four hours",
    "cedar": "Replace the cover of the HX-200 first",
    "elm": "The HX-2000 has no battery",
    "hazel": "Parcels are replaced when the courier broke them",
    "larch": "battery",
    "maple": "A lamp for the desk",
    "rowan": "Replace the HX-200 battery " * 200,
    "teak": "Charging the HX-200 battery takes long " * 9,
    "yew": "Replace the battery while charging",
}
_CLOSED = {
    "drake": "Replace the HX-200 battery at once with the courier and the lamp",
    "heron": "battery",
    "lynx": "Charging the HX-200 battery for hours",
    "otter": "Courier parcels",
}
OPEN_FILTER = {"level": "open"}
"""Passes the units that the caller may see."""

VOCABULARY = """
    replace battery cover lamp desk courier parcels charging hours small screwdriver long first broke four
    """.split()  # noqa: SIM905 - a list of quoted words would be harder to read
FILLERS = 40
"""Further units of the real indexes."""


def unit_id(name: str) -> str:
    """A unit's id; no unit's id begins another one's."""
    return f"unit:{name}."


def traces_of(unit: str) -> tuple[str, ...]:
    """What shows that a unit stands in an output: its id, and the mark in its text."""
    return (unit, f"[{unit.removeprefix('unit:').removesuffix('.')}]")


def _document(name: str, body: str, level: str) -> Document:
    title = {"title": "Sheet"} if name in {"birch", "drake"} else {}
    text = f"{body} [{name}]" if body else ""
    return Document(id=unit_id(name), page_content=text, metadata={"level": level, "kind": "note", **title})


def inventory() -> dict[str, Document]:
    """The documents by id: open ones, among them a twin and a blank one, and closed ones."""
    made = [_document(name, body, "open") for name, body in _OPEN.items()]
    made += [_document(name, body, "closed") for name, body in _CLOSED.items()]
    made.append(made[0].model_copy(update={"id": unit_id("oak")}))
    made.append(_document("pine", "", "open"))
    return {document.id: document for document in made}


CLOSED = tuple(unit_id(name) for name in _CLOSED)


def fillers() -> dict[str, Document]:
    """Further open and closed units of common words, the same in every process."""
    chooser = random.Random(7)
    found = {}
    for number in range(FILLERS):
        name, body = f"f{number:02}", " ".join(chooser.choices(VOCABULARY, k=9))
        found[unit_id(name)] = _document(name, body, "closed" if number % 8 == 0 else "open")
    return found


class HashedWords(Embeddings):
    """A cheap embedding: each word adds one fixed direction out of 32."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vector = np.full(32, 0.01)
        for word in text.lower().split():
            vector[int(hashlib.sha256(word.encode()).hexdigest(), 16) % 32] += 1.0
        return vector.tolist()


@dataclass(frozen=True)
class Backends:
    """The real searchers, and the documents that they hold."""

    lexical: BM25Searcher
    dense: ChromaSearcher
    documents: Mapping[str, Document]

    def close(self) -> None:
        self.lexical.close()
        self.dense.close()


def open_backends() -> Backends:
    """BM25 and Chroma in memory over the inventory (its blank unit left out) and the fillers."""
    documents = {key: document for key, document in (inventory() | fillers()).items() if document.page_content}
    held = list(documents.values())
    return Backends(BM25Searcher.from_documents(held), ChromaSearcher.from_documents(held, HashedWords()), documents)


def turned(units: Sequence[str], query: str) -> list[str]:
    """The units in their order, beginning with one that depends on the query."""
    first = sum(map(ord, query)) % max(1, len(units))
    return [*units[first:], *units[:first]]


@dataclass
class Listed(Excluding):
    """Ranks the units that it was given in a fixed order that begins elsewhere for every query."""

    channel: Any
    order: Sequence[tuple[str, float | None]]
    shelf: Mapping[str, Document]
    brings: bool
    filters: bool

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:
        accepts = compile_filter(filter if self.filters else None)
        ranked = zip(turned([unit for unit, _ in self.order], query), [score for _, score in self.order], strict=True)
        held = [(self.shelf[unit], score) for unit, score in ranked if unit in self.shelf]
        passing = [pair for pair in held if accepts(pair[0].metadata)]
        return [
            Candidate(
                unit_id=document.id,
                channel=self.channel,
                rank=rank,
                score=score,
                unit=document if self.brings else None,
            )
            for rank, (document, score) in enumerate(itertools.islice(passing, k), 1)
        ]

    def score(self, query: str, unit_ids: Sequence[str], filter: Any = None) -> dict[str, float]:  # noqa: ARG002
        return {unit: 0.25 + len(unit) / 100 for unit in unit_ids if unit in self.shelf}

    def weigh(self, query: str, words: Sequence[str], filter: Any = None) -> QueryWeights:  # noqa: ARG002
        return QueryWeights(
            terms={word: 1.0 + len(word) / 10 for word in words},
            holding={word: len(word) for word in words},
            attainable=9.0,
        )

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        return {unit: self.shelf[unit] for unit in unit_ids if unit in self.shelf}


def holds_the_query(query: str, texts: Sequence[str], threshold: float) -> bool:
    """Whether one text holds the share of the query's words, and some text every device name: the reference's test."""
    words = [word for word in query.lower().split() if word.strip("?") and word not in STOP_WORDS]
    names = [word for word in words if any(c.isdigit() for c in word)]
    held = [set(text.lower().split()) for text in texts]
    best = max((sum(word in each for word in words) / len(words) for each in held), default=None)
    return best is not None and best >= threshold and all(any(name in each for each in held) for name in names)
