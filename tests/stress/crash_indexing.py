"""Builds of an index that may be killed, and what the index answers after that, as jobs of a fork server.

A job either ``build``s a version of the corpus into ``root`` or asks the index there (``ask``). The log gets the stages of
a build, ``start`` and ``end`` around each writing to Chroma, and at the end the number of its file operations. A build
may hold ``operation``: it kills itself just before that one of its file operations.
"""

from __future__ import annotations

import hashlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

# Chroma's parts are imported on first use, which no forked process should have to wait for.
import chromadb.api.rust
import chromadb.telemetry.product.posthog  # noqa: F401 - likewise
from chromadb.api.models.Collection import Collection
from crash_forks import Tell, append, serve
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.errors import StoreError
from bounded_retrieval.retrievers import store
from bounded_retrieval.retrievers._arrays import ArrayWriter
from bounded_retrieval.retrievers._store_manifest import MANIFEST
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.store import Index, build_index, open_index

WORDS = ("pump", "valve", "gate", "lamp", "filter", "hose", "belt", "fan")
QUESTIONS = ("pump of site 3", "old valve", "new gate hums", "site 17 lamp", "belt fan filter", "site 90")
FILTER = {"year": 2025}
FILE_EVENTS = {
    "open",
    "os.mkdir",
    "os.remove",
    "os.rename",
    "os.rmdir",
    "os.scandir",
    "shutil.copyfile",
    "shutil.copytree",
    "shutil.rmtree",
    "sqlite3.connect",
}


class HashEmbeddings(Embeddings):
    """Eight numbers from a text's hash."""

    embedding_id = "hash-8"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [byte / 255 - 0.5 for byte in hashlib.sha256(text.encode()).digest()[:8]]


def corpus(version: str, units: int) -> list[Document]:
    """The units of a version: of ``new`` a third has another text, a tenth other metadata, some are added, some gone."""
    is_new = version == "new"
    found = []
    for n in range(units // 20 if is_new else 0, units + (units // 10 if is_new else 0)):
        state = "new" if is_new and n % 3 == 0 else "old"
        text = f"The {state} {WORDS[n % 8]} of site {n} hums beside the {WORDS[n % 7]}."
        metadata = {"title": f"Site {n}", "year": 2026 if is_new and n % 10 == 1 else 2025}
        found.append(Document(id=f"u{n:04}", page_content=text, metadata=metadata))
    return found


def work(job: dict[str, Any], tell: Tell) -> Any:
    """Build, or ask."""
    tell("b")
    return _ask(Path(job["root"])) if job["do"] == "ask" else _build(job, tell)


def _ask(root: Path) -> Any:
    """All that the index answers to a fixed set of questions; its error where it cannot be opened.

    ``exact`` must not differ by anything. ``scores`` are the cosines of all units. ``nearest`` are the ids that dense
    searches give, which Chroma, where there is a store of it, finds through a graph that it draws anew, at random,
    whenever a store of less than a thousand vectors is opened.
    """
    try:
        with open_index(root, embedding=HashEmbeddings()) as index:
            ids = index.units.ids()
            scores = [score for question in QUESTIONS for _, score in sorted(index.dense.score(question, ids).items())]
            generation = index.manifest.generation
            return {"generation": generation, "exact": _exact(index), "scores": scores, "nearest": _nearest(index)}
    except StoreError as error:
        return {"error": type(error).__name__, "message": str(error)}


def _exact(index: Index) -> Any:
    ids = index.units.ids()
    found = [
        [(row.unit_id, row.rank, row.score, row.unit.page_content, row.unit.metadata) for row in rows]
        for question in QUESTIONS
        for rows in (index.lexical.search(question, 5), index.lexical.search(question, 5, FILTER))
    ]
    units = [(unit_id, unit.page_content, unit.metadata) for unit_id, unit in sorted(index.dense.fetch(ids).items())]
    texts = [index.units.fetch([unit_id])[unit_id].page_content for unit_id in ids]
    return [ids, index.dense.ids(), found, units, texts]


def _nearest(index: Index) -> list[list[str]]:
    return [
        [row.unit_id for row in rows]
        for question in QUESTIONS
        for rows in (index.dense.search(question, 5), index.dense.search(question, 5, FILTER))
    ]


def _build(job: dict[str, Any], tell: Tell) -> Any:
    root, log = job["root"], job["log"]
    BUGS[job.get("bug")]()
    _note_chroma(log, tell)
    operations = _count_operations(root, job.get("operation"))

    def progress(stage: str, *_: object) -> None:
        append(log, "stage", stage=stage, operations=operations[0])
        tell(stage[0])

    units = corpus(job["version"], job["units"])
    report = build_index(units, root, embedding=HashEmbeddings(), progress=progress, dense=job["dense"])
    append(log, "built", operations=operations[0])
    return {"units": report.units}


def _note_chroma(log: str, tell: Tell) -> None:
    """Note when the Chroma store of the new generation is being written."""

    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def write(*given: Any, **named: Any) -> Any:
            append(log, "start")
            tell("c")
            answer = method(*given, **named)
            append(log, "end")
            return answer

        return write

    Collection.upsert, Collection.delete = noted(Collection.upsert), noted(Collection.delete)


def _count_operations(root: str, last: int | None) -> list[int]:
    """Count the file operations below the directory that Python makes, and die just before one of them."""
    counted = [0]

    def look(event: str, given: tuple[Any, ...]) -> None:
        # Deleting a tree names its entries relative to an open folder.
        if event in FILE_EVENTS and (event in {"os.remove", "os.rmdir"} or str(given[0]).startswith(root)):
            counted[0] += 1
            if counted[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)
    return counted


def _bug_early() -> None:
    """The manifest names the new generation before that has its name."""
    publish = store.publish

    def early(root: Path, partial: Path, manifest: Any) -> None:
        (root / MANIFEST).write_text(manifest.model_dump_json())
        publish(root, partial, manifest)

    store.publish = early


def _bug_unswept() -> None:
    """What killed builds leave is never deleted."""
    store.sweep = store.sweep_unfinished = lambda *_given, **_named: None


def _bug_in_place() -> None:
    """The vectors of the generation that counts are written over: the last one is shorter than the new one."""
    from bounded_retrieval.retrievers import _store_build

    def in_place(path: Path, dtype: Any, columns: int | None = None) -> Any:
        if path.name != "vectors.npy":
            return ArrayWriter(path, dtype, columns)
        older = sorted(path.parents[2].glob("*/dense/vectors.npy"))
        for old in older:
            old.write_bytes(old.read_bytes()[:-4] + b"\0\0\0\0")
        return ArrayWriter(path, dtype, columns)

    _store_build.ArrayWriter = in_place


BUGS: dict[str | None, Callable[[], None]] = {
    None: lambda: None,
    "early": _bug_early,
    "unswept": _bug_unswept,
    "in place": _bug_in_place,
}


if __name__ == "__main__":
    BM25Searcher.from_documents(corpus("old", 20))
    serve(work)
