"""What an index costs to build, to add to, to open and to ask, by size; exact search beside Chroma.

``python benchmarks/build.py --folder DIR [--units N ...] [--out FILE.json]`` writes a synthetic corpus of each size as
JSON Lines, and lets a fresh process each build an index from it (exact dense search, 384 dimensions by checksum), add
1% to it, open it and ask it. Peak memory is ``ru_maxrss`` of the process, which counts mapped files. `synthetic.py`
says what the units and questions are like. Needs ten gigabytes of disk for a million units.

With ``--dense`` it compares searches over mapped vectors with Chroma at sizes up to 100,000 instead, with and without a
filter that one unit in a hundred passes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from synthetic import DIMENSIONS, make_documents, make_queries

from bounded_retrieval.ingest import read_documents
from bounded_retrieval.retrievers._accelerated import AcceleratedSearcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.exact import ExactSearcher
from bounded_retrieval.retrievers.store import build_index, open_index

SIZES = (10_000, 100_000, 1_000_000)
DENSE_SIZES = (1_000, 10_000, 20_000, 50_000, 100_000)
MINILM_PER_SECOND = 43
"""Passages that the default embedding makes in a second on two cores (docs/dependencies.md)."""

_CHUNK = 50_000  # units made at a time: the corpus of any size costs the memory of so many
_QUERIES = 200


def main() -> None:
    """Measure, print a table, and write the figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="to work in; an earlier run's corpus, and Chroma stores for --dense, are taken",
    )
    parser.add_argument("--units", type=int, nargs="*", default=SIZES)
    parser.add_argument("--dense", action="store_true", help="compare exact search with Chroma instead")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--step", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        print(json.dumps(STEPS[arguments.step](arguments.folder, arguments.units[0])))
        return
    arguments.folder.mkdir(parents=True, exist_ok=True)
    environment = {"python": platform.python_version(), "cpus": os.cpu_count(), "numpy": np.__version__}
    measure = measure_dense if arguments.dense else measure_builds
    rows = measure(arguments.folder, DENSE_SIZES if arguments.dense else arguments.units)
    print(table(rows))
    if arguments.out:
        arguments.out.write_text(json.dumps({"environment": environment, "rows": rows}, indent=1) + "\n")


def measure_builds(folder: Path, sizes: list[int]) -> list[dict[str, Any]]:
    """One row for each size, every step in a process of its own."""
    rows = []
    for units in sizes:
        place = folder / str(units)
        place.mkdir(exist_ok=True)
        found = {step: run_step(step, place, units) for step in ("corpus", "build", "add", "ask")}
        build, add = found["build"], found["add"]
        embedding = units / MINILM_PER_SECOND
        share = add["cpu_seconds"] / build["cpu_seconds"]
        real = (add["cpu_seconds"] + embedding / 100) / (build["cpu_seconds"] + embedding)
        rows.append(
            {
                "units": units,
                **{f"build_{name}": value for name, value in build.items()},
                **{f"add_{name}": value for name, value in add.items()},
                "add_share": round(share, 4),
                "add_share_with_minilm_calculated": round(real, 4),
                **found["ask"],
            }
        )
    return rows


def run_step(step: str, folder: Path, units: int) -> dict[str, Any]:
    """Do one step in a fresh process."""
    command = [sys.executable, __file__, "--step", step, "--folder", str(folder), "--units", str(units)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def write_corpus(folder: Path, units: int) -> dict[str, Any]:
    """Write the corpus, 1% more of it, and questions."""
    for name, first, count in (("corpus", 0, units), ("more", units, max(1, units // 100))):
        with (folder / f"{name}.jsonl").open("w") as file:
            for document in streamed(first, count):
                line = {"_id": document.id, "text": document.page_content, "metadata": document.metadata}
                file.write(json.dumps(line) + "\n")
    queries = make_queries(list(streamed(0, min(units, _CHUNK))), _QUERIES, seed=7)
    (folder / "queries.json").write_text(json.dumps(queries))
    return {"bytes": (folder / "corpus.jsonl").stat().st_size}


def streamed(first: int, count: int) -> Iterator[Document]:
    """Units from number ``first`` on, made a chunk at a time."""
    for start in range(first, first + count, _CHUNK):
        for number, document in enumerate(make_documents(min(_CHUNK, first + count - start), seed=start), start):
            document.id = f"u{number:07d}"
            yield document


def build(folder: Path, units: int) -> dict[str, Any]:
    """Build the index from the corpus and from nothing; seconds in all and by stage."""
    del units
    shutil.rmtree(folder / "index", ignore_errors=True)  # a build over one would take its vectors over
    return _built(folder, "corpus.jsonl", keep=False)


def add(folder: Path, units: int) -> dict[str, Any]:
    """Add 1% to the index."""
    del units
    return _built(folder, "more.jsonl", keep=True)


def _built(folder: Path, name: str, *, keep: bool) -> dict[str, Any]:
    clock, stages, last = time.perf_counter, {}, ["read"]
    embedding = _HashedVectors()
    started, used = (begun := clock()), time.process_time()

    def tell(stage: str, _done: int, _total: int | None) -> None:
        nonlocal begun
        if stage != last[0]:
            stages[last[0]], begun, last[0] = clock() - begun, clock(), stage

    documents = read_documents([folder / name])
    report = build_index(documents, folder / "index", embedding=embedding, progress=tell, keep=keep, dense="exact")
    stages[last[0]] = clock() - begun
    size = sum(path.stat().st_size for path in max((folder / "index" / "generations").iterdir()).rglob("*"))
    return {
        "seconds": round(clock() - started, 2),
        "cpu_seconds": round(time.process_time() - used, 2),
        "stages": {stage: round(seconds, 2) for stage, seconds in stages.items()},
        "embedded": report.embedded,
        "peak_rss_mb": peak_rss_mb(),
        "disk_mb": round(size / 2**20),
    }


def ask(folder: Path, units: int) -> dict[str, Any]:
    """Open the index, several times, and ask it."""
    del units
    embedding = _HashedVectors()
    queries = json.loads((folder / "queries.json").read_text())
    opened = [timed(lambda: open_index(folder / "index", embedding=embedding).close()) for _ in range(5)]
    with open_index(folder / "index", embedding=embedding) as index:
        first = timed(partial(index.lexical.search, queries[0], 4))
        lexical = [timed(partial(index.lexical.search, query, 4)) for query in queries]
        vectors = [timed(partial(index.dense.search, query, 4)) for query in queries[:50]]
    return {
        "open_first_s": round(opened[0], 3),
        "open_s": round(float(np.median(opened)), 3),
        "first_lexical_ms": round(1000 * first, 2),
        **percentiles("lexical", lexical),
        **percentiles("exact_dense", vectors),
        "ask_peak_rss_mb": peak_rss_mb(),
    }


def measure_dense(folder: Path, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Exact search over a mapped file and Chroma over the same clustered vectors, by size."""
    return [run_step("dense", folder, units) for units in sizes]


def compare(folder: Path, units: int) -> dict[str, Any]:
    """Both searchers, and both together, at one size, with and without a filter."""
    vectors = _ClusteredVectors(units)
    documents = [Document(id=f"u{n:07d}", page_content=str(n), metadata={"part": n % 100}) for n in range(units)]
    memory = ExactSearcher.from_documents(documents, vectors)
    path = folder / f"vectors{units}.npy"  # one for each size: a file that is mapped must not be cut short
    np.save(path, memory._vectors)  # noqa: SLF001 - what an index would hold
    exact = ExactSearcher.open(path, memory._units, vectors, DIMENSIONS)  # noqa: SLF001 - likewise
    path = folder / f"chroma{units}"
    is_there = path.exists()
    chroma = (
        ChromaSearcher.open(path, vectors) if is_there else ChromaSearcher.from_documents(documents, vectors, path=path)
    )
    both = AcceleratedSearcher(exact, lambda _embedding: chroma, 0)  # as an index searches that has a store
    queries = [f"query {n}" for n in range(60)]  # no more than searchers keep the vectors of
    found: dict[str, Any] = {"units": units}
    for name, only in (("", None), ("_filtered", {"part": 7})):
        for kind, searcher in (("exact", exact), ("chroma", chroma), ("index_with_chroma", both)):
            for query in queries:  # embeds them, and warms up
                searcher.search(query, 4, only)
            used = time.process_time()
            seconds = [timed(partial(searcher.search, query, 4, only)) for query in queries]
            mean = (time.process_time() - used) / len(queries)
            found |= {**percentiles(f"{kind}{name}", seconds), f"{kind}{name}_cpu_ms": round(1000 * mean, 2)}
    same = [len({r.unit_id for r in exact.search(q, 10)} & {r.unit_id for r in chroma.search(q, 10)}) for q in queries]
    chroma.close()
    return {**found, "chroma_recall_at_10": round(float(np.mean(same)) / 10, 3)}


class _HashedVectors(Embeddings):
    """384 numbers by a text's checksum, in some microseconds: what is left of the time is the index's own."""

    embedding_id = "benchmark-checksum-384"

    def __init__(self) -> None:
        self._rows = np.random.default_rng(7).standard_normal((20_011, DIMENSIONS), dtype=np.float32)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        sum_ = crc32(text.encode())
        vector: list[float] = (self._rows[sum_ % 20_011] + self._rows[sum_ % 19_997]).tolist()
        return vector


class _ClusteredVectors(Embeddings):
    """Vectors near one of some hundred directions, as those of texts are; a number's never changes."""

    embedding_id = "benchmark-clusters"

    def __init__(self, units: int) -> None:
        rng = np.random.default_rng([7, units])
        self._centres = rng.standard_normal((300, DIMENSIONS), dtype=np.float32)

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        rng = np.random.default_rng([9, *text.encode()])
        noise = rng.standard_normal(DIMENSIONS, dtype=np.float32)
        vector: list[float] = (self._centres[int(rng.integers(300))] + 0.7 * noise).tolist()
        return vector


def timed(call: Callable[[], Any]) -> float:
    """Seconds that a call takes."""
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Median and 99th percentile in milliseconds."""
    return {f"{name}_p{p}_ms": round(1000 * float(np.percentile(seconds, p)), 2) for p in (50, 99)}


def peak_rss_mb() -> int:
    """Most memory that this process had at one time."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def table(rows: list[dict[str, Any]]) -> str:
    """One line a figure, one column a size."""
    lines = [[name, *(str(row[name]) for row in rows)] for name in rows[0]]
    return "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], ["---"] * len(lines[0]), *lines[1:]])


STEPS = {"corpus": write_corpus, "build": build, "add": add, "ask": ask, "dense": compare}

if __name__ == "__main__":
    main()
