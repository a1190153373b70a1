"""One of several processes that index the same directory: waits for the word, builds, and prints what came of it.

Arguments: the index directory, a number that its texts hold, how many units, and where it stops for good after telling so
(``held``), or ``no``.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import bm25s  # noqa: F401 - imported now, so that all begin at one time
import chromadb.api.rust  # noqa: F401 - likewise
from hostile_index import HashEmbeddings
from langchain_core.documents import Document

from bounded_retrieval.errors import StoreBusyError
from bounded_retrieval.retrievers.store import build_index


def corpus(number: int, units: int) -> Iterator[Document]:
    """Units that say whose they are."""
    for n in range(units):
        yield Document(id=f"u{n:03}", page_content=f"pump of site {n}, said by writer {number}")


def held(documents: Iterator[Document]) -> Iterator[Document]:
    """The first of the documents, and then nothing more."""
    yield next(documents)
    print("held", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    root, number, units, where = sys.argv[1:]
    documents = corpus(int(number), int(units))
    print("ready", flush=True)
    sys.stdin.readline()
    try:
        build_index(held(documents) if where == "held" else documents, root, embedding=HashEmbeddings())
    except StoreBusyError as error:
        print(f"refused: {error}")
    else:
        print("built")
