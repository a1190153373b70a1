"""Forks after an index was opened and used, in a process of its own: what the child can do, and how it ends.

``python fork_worker.py CASE DIRECTORY`` prints what was found as JSON. A child that hangs is killed and reported.
"""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from scale import scaled
from soak_world import QUERIES, HashedWords, documents

from bounded_retrieval import (
    BM25Searcher,
    ChromaSearcher,
    ExactSearcher,
    build_index,
    create_bounded_retrieval,
    open_index,
)
from bounded_retrieval.retrievers import _sharing
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings

HANG_S = 120.0
"""A child that has not ended by then, on a machine however busy, hangs."""

OWNERS = ("t00", "t01", "s00")
QUERY = f"{QUERIES[0]} sheet t01-u03 tonight"


def in_child(work: Callable[[], Any], within: float = HANG_S) -> dict[str, Any]:
    """What a forked child answers, and the status it ends with after an ordinary exit of the interpreter."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        with os.fdopen(writing, "w") as answers:
            answers.write(json.dumps(work()))
        sys.exit(7)
    os.close(writing)
    end = time.monotonic() + within
    with os.fdopen(reading) as answers:
        is_ready = bool(select.select([answers], [], [], within)[0])
        answer = json.loads(answers.read() or "null") if is_ready else "hangs"
    while (found := os.waitpid(child, os.WNOHANG))[0] == 0 and time.monotonic() < end:
        time.sleep(0.01)
    if found[0]:
        return {"answer": answer, "status": os.waitstatus_to_exitcode(found[1])}
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"answer": answer, "status": "hangs"}


def tried(work: Callable[[], Any]) -> Any:
    """What a call gives: its answer, or the type and message of its error."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - whatever it raises is what is asked for
        return f"{type(error).__name__}: {error}"


def graph_over(lexical: Any, dense: Any = None) -> Any:
    """A compiled graph that makes both searches."""
    return create_bounded_retrieval(lexical, dense, policy="always_continue" if dense else "fixed_lexical").compile()


def packet(graph: Any) -> Any:
    """The packet of one run."""
    return graph.invoke({"query": QUERY})["packet"]


def many(graph: Any, threads: int = 4) -> list[Any]:
    """The packets of some runs in threads."""
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(lambda _: packet(graph), range(2 * threads)))


def opened(directory: str) -> Any:
    """The packet of a graph over an index that is opened and closed for it."""
    with open_index(directory, embedding=HashedWords()) as index:
        return packet(graph_over(index.lexical, index.dense))


def build(directory: str, dense: str) -> int:
    """Build an index of a kind; how many units it holds."""
    return build_index(documents(OWNERS), directory, embedding=HashedWords(), dense=dense).units


def exact(directory: str) -> dict[str, Any]:
    """Fork a process that has searched an open index without a graph: the child goes on with it, and may do more."""
    build(f"{directory}-exact", "exact")
    index = open_index(f"{directory}-exact", embedding=HashedWords())
    memory = ExactSearcher.from_documents(documents(OWNERS), HashedWords())
    graph = graph_over(index.lexical, index.dense)
    before = packet(graph)
    rows = [row.model_dump(mode="json") for row in memory.search(QUERY, 5)]

    def child() -> dict[str, Any]:
        return {
            "invoke": tried(lambda: packet(graph) == before),
            "ainvoke": tried(lambda: asyncio.run(graph.ainvoke({"query": QUERY}))["packet"] == before),
            "threads": tried(lambda: all(one == before for one in many(graph))),
            "open": tried(lambda: opened(f"{directory}-exact") == before),
            "build": tried(lambda: build(f"{directory}-child", "exact") > 0),
            "memory": tried(lambda: [row.model_dump(mode="json") for row in memory.search(QUERY, 5)] == rows),
        }

    found = in_child(child)
    again = [packet(graph) == before, opened(f"{directory}-exact") == before]
    index.close()
    return {**found, "parent goes on": again, "chroma": "chromadb" in sys.modules}


def after_use(directory: str) -> dict[str, Any]:
    """Fork a process that has searched an open index with a graph: everything that the child might try."""
    index = open_index(directory, embedding=HashedWords())
    memory = ChromaSearcher.from_documents(documents(OWNERS), HashedWords())
    graph = graph_over(index.lexical, index.dense)
    before = packet(graph)

    def child() -> dict[str, Any]:
        found = {
            "invoke": tried(lambda: packet(graph)),
            "ainvoke": tried(lambda: asyncio.run(graph.ainvoke({"query": QUERY}))),
            "lexical": tried(lambda: packet(graph_over(index.lexical))),
            "index": tried(lambda: index.dense.search(QUERY, 3)),
            "open": tried(lambda: opened(directory)),
            "build": tried(lambda: build(f"{directory}-other", "chroma")),
        }
        calls = {
            "search": (QUERY, 3),
            "fetch": (["t00-u00"],),
            "score": (QUERY, ["t00-u00"]),
            "ids": (),
            "add": ([documents(OWNERS)[0]],),
            "remove": (["t00-u00"],),
        }
        for name, arguments in calls.items():
            found[name] = tried(partial(getattr(memory, name), *arguments))
        memory.close()
        gc.collect()
        return found

    found = in_child(child)
    alone = packet(graph_over(index.lexical))
    again = [packet(graph) == before, opened(directory) == before]
    index.close()
    return {**found, "lexical alone": alone, "parent goes on": again}


def unguarded(directory: str) -> dict[str, Any]:
    """The same without the check: what Chroma itself does in a child."""
    index = open_index(directory, embedding=HashedWords())
    index.dense.search(QUERY, 3)
    _sharing.OwnProcess.check = lambda _: None  # type: ignore[method-assign]
    return in_child(lambda: len(index.dense.search(QUERY, 3)), within=3)


def preloaded(directory: str) -> dict[str, Any]:
    """Workers forked from a process that has imported everything and used BM25 and MiniLM, but has opened no Chroma."""
    embedding = MiniLMEmbeddings()
    vector = embedding.embed_query(QUERY)
    lexical = BM25Searcher.open(Path(directory) / "generations" / "000001" / "lexical")
    before = packet(graph_over(lexical))

    def worker() -> dict[str, Any]:
        with open_index(directory, embedding=HashedWords()) as index:
            found = many(graph_over(index.lexical, index.dense))
        return {
            "packets": found,
            "lexical": all(one == before for one in many(graph_over(lexical))),
            "vector": embedding.embed_query(QUERY) == vector,
        }

    workers = [in_child(worker) for _ in range(scaled(2, 6))]
    return {"workers": workers, "alone": opened(directory), "parent goes on": packet(graph_over(lexical)) == before}


def busy(directory: str) -> dict[str, Any]:
    """Children forked while other threads of the parent embed, load the model and read units."""
    lexical = BM25Searcher.open(Path(directory) / "generations" / "000001" / "lexical")
    embedding, over = MiniLMEmbeddings(), threading.Event()
    before = packet(graph_over(lexical))

    def work() -> None:
        while not over.is_set():
            MiniLMEmbeddings().embed_query(QUERY)
            for _ in range(50):
                embedding.embed_query(QUERY)
                lexical.fetch(["t00-u00"])

    threads = [threading.Thread(target=work) for _ in range(scaled(2, 4))]
    for thread in threads:
        thread.start()
    # What each process has for itself; a whole run may need a lock that was held when the process was forked.
    ends = [
        in_child(lambda: [len(embedding.embed_query(QUERY)), list(lexical.fetch(["t00-u00"]))])
        for _ in range(scaled(2, 20))
    ]
    over.set()
    for thread in threads:
        thread.join()
    return {"ends": ends, "parent goes on": packet(graph_over(lexical)) == before}


def started(directory: str) -> dict[str, Any]:
    """Processes started by spawn and by forkserver beside a parent that goes on using its own index."""
    found = {}
    with open_index(directory, embedding=HashedWords()) as index:
        graph = graph_over(index.lexical, index.dense)
        before = packet(graph)
        for method in ("spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            if method == "forkserver":
                context.set_forkserver_preload(["bounded_retrieval", "chromadb"])
            with context.Pool(scaled(1, 3)) as pool:
                answers = pool.map_async(opened, [directory] * 4)
                meanwhile = many(graph)
                found[method] = all(one == before for one in (*answers.get(HANG_S), *meanwhile))
    return found


CASES = {function.__name__: function for function in (exact, after_use, unguarded, preloaded, busy, started)}

if __name__ == "__main__":
    case, folder = sys.argv[1:]
    answer = CASES[case](folder)
    with suppress(BrokenPipeError):
        print(json.dumps(answer))
