"""A corpus of the benchmarks with everything over it: this package's index, and what the others read.

One folder a size, kept with ``--indexes``: ``index/`` as ``build_index`` writes it, ``chroma/`` with the same vectors
for the others, and ``queries.json``.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from synthetic import CheapEmbeddings, make_documents, make_queries

from bounded_retrieval import build_index, open_index
from bounded_retrieval.retrievers.store import Index

COLLECTION = "units"
QUERIES = 1_000
_BATCH = 5_000  # Chroma takes no more than 5,461 at once


@dataclass
class World:
    """One corpus and what is opened over it; `opened` closes that.

    Attributes:
        units: size of the corpus.
        seed: what it was drawn with.
        embedding: of units and queries.
        folder: where its files are.
    """

    units: int
    seed: int
    embedding: Embeddings
    folder: Path
    opened: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def documents(self) -> list[Document]:
        """The corpus; drawn again in each process, since that is faster than to read it."""
        return make_documents(self.units, self.seed)

    @cached_property
    def index(self) -> Index:
        """This package's index, opened from its files."""
        index = open_index(self.folder / "index", embedding=self.embedding)
        self.opened.callback(index.close)
        return index

    @cached_property
    def chroma(self) -> Path:
        """Folder of the Chroma store that the others search, built at the first use."""
        folder = (self.folder / "chroma").resolve()
        if not folder.is_dir():
            _build_chroma(self, folder)
        return folder

    @cached_property
    def client(self) -> Any:
        """A client of that store."""
        client = _client(self.chroma)
        self.opened.callback(client.close)
        return client

    @property
    def collection(self) -> Any:
        """The collection in it."""
        return self.client.get_collection(COLLECTION, embedding_function=None)

    def queries(self, count: int) -> list[str]:
        """Questions about single units, the same ones for one size and seed."""
        kept: list[str] = json.loads((self.folder / "queries.json").read_text(encoding="utf-8"))
        return [kept[number % len(kept)] for number in range(count)]


def make_world(units: int, seed: int, indexes: Path, embedding: Embeddings | None = None, dense: str = "auto") -> World:
    """Build what is not there yet; ``indexes`` is the folder of all sizes, ``dense`` as `build_index` takes it."""
    chosen = CheapEmbeddings(seed) if embedding is None else embedding
    name = type(chosen).__name__.removesuffix("Embeddings").lower()
    kind = "" if dense == "auto" else f"-{dense}"
    world = World(units, seed, chosen, indexes / f"{units}-units-seed-{seed}-{name}{kind}")
    if not (world.folder / "queries.json").is_file():
        print(f"{units:,} units: building", flush=True)
        started = time.perf_counter()
        build_index(world.documents, world.folder / "index", embedding=world.embedding, dense=dense)
        queries = make_queries(world.documents, QUERIES, seed)
        (world.folder / "queries.json").write_text(json.dumps(queries), encoding="utf-8")
        print(f"{units:,} units: built in {time.perf_counter() - started:.0f} s", flush=True)
    return world


def _build_chroma(world: World, folder: Path) -> None:
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    client = _client(partial)
    made = client.create_collection(COLLECTION, embedding_function=None, metadata={"hnsw:space": "cosine"})
    _fill(made, world.documents, world.embedding)
    client.close()
    partial.rename(folder)  # it has its name only once it is whole


def _client(folder: Path) -> Any:
    import chromadb
    from chromadb.config import Settings

    return chromadb.PersistentClient(str(folder), Settings(anonymized_telemetry=False))


def _fill(collection: Any, documents: Sequence[Document], embedding: Embeddings) -> None:
    for start in range(0, len(documents), _BATCH):
        batch = documents[start : start + _BATCH]
        texts = [document.page_content for document in batch]
        collection.add(
            ids=[str(document.id) for document in batch],
            embeddings=embedding.embed_documents(texts),
            documents=texts,
            metadatas=[document.metadata for document in batch],
        )
        print(f"  {start + len(batch):,} of {len(documents):,} in Chroma", flush=True)
