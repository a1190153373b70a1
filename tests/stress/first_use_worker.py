"""First use by many threads at once, in a process that has used nothing yet. Prints what was found as JSON.

``python first_use_worker.py CASE``; with a second argument, a folder whose modules are found before installed ones.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable
from typing import Any

THREADS = 16


def at_once(work: Callable[[int], Any]) -> list[Any]:
    """What threads that begin in the same moment give: their answer or their error."""
    barrier = threading.Barrier(THREADS)
    found: list[Any] = [None] * THREADS

    def begin(number: int) -> None:
        barrier.wait()
        try:
            found[number] = work(number)
        except BaseException as error:  # noqa: BLE001 - whatever it raises is what is looked for
            found[number] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=begin, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def names() -> dict[str, Any]:
    """Every public name, each thread beginning with another one."""
    import bounded_retrieval

    public = bounded_retrieval.__all__

    def load(number: int) -> list[str]:
        own = [*public[number * 3 :], *public[: number * 3]]
        return sorted(getattr(bounded_retrieval, name).__name__ for name in own)

    return {"answers": at_once(load), "expected": sorted(public)}


def parts() -> dict[str, Any]:
    """Both indexes built, the model loaded, and a request answered; each thread its own index over one embedding."""
    import asyncio

    from langchain_core.documents import Document

    from bounded_retrieval import BM25Searcher, ChromaSearcher, create_bounded_retrieval
    from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings

    levels = {name: logging.getLogger(name).level for name in (None, "bm25s")}
    documents = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(3)]
    embedding = MiniLMEmbeddings()

    def ask(number: int) -> Any:
        lexical = BM25Searcher.from_documents(documents)
        dense = ChromaSearcher.from_documents(documents, embedding)
        graph = create_bounded_retrieval(lexical, dense, units=lexical, policy="always_continue").compile()
        given = {"query": "Which pump hums at site 2?"}
        result = asyncio.run(graph.ainvoke(given)) if number % 2 else graph.invoke(given)
        dense.close()
        return result["packet"]

    answers = at_once(ask)
    return {
        "answers": answers,
        "expected": ask(0),
        "loggers": {name: logging.getLogger(name).level for name in levels} == levels,
    }


def shared() -> dict[str, Any]:
    """One graph, made and never used before, asked by all threads."""
    from langchain_core.documents import Document

    from bounded_retrieval import BoundedRetriever

    documents = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(3)]
    retriever = BoundedRetriever.from_documents(documents, policy="always_continue")

    def ask(_: int) -> Any:
        return [document.model_dump() for document in retriever.invoke("Which pump hums at site 2?")]

    return {"answers": at_once(ask), "expected": ask(0)}


def bm25s() -> dict[str, Any]:
    """The import of a bm25s that takes its time after it has set its logger's level."""
    from bounded_retrieval.retrievers import _bm25_backends

    answers = at_once(lambda _: _bm25_backends._import_bm25s().__name__)
    return {"answers": answers, "expected": "bm25s", "level": logging.getLogger("bm25s").level}


if __name__ == "__main__":
    sys.path[:0] = sys.argv[2:]
    print(json.dumps({"names": names, "parts": parts, "shared": shared, "bm25s": bm25s}[sys.argv[1]]()))
