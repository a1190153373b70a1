"""A search that blocks does so in a thread: the event loop goes on turning while the search is under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval import BM25Searcher, Candidate, EvidencePacket, create_bounded_retrieval

RUNS = 1_000
TURNS = 3
"""Turns of the event loop that every search waits for before it answers; on the loop itself it would wait in vain."""

PATIENCE_S = 60
"""When a search gives up waiting, so that a fault ends in a failure and not in a test that hangs. Nothing is compared
with it: a search that is off the loop is answered after a few turns, however busy the machine."""

DOCUMENTS = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(50)]


class Heart:
    """Counts turns of the event loop while it beats, and tells threads that wait for some."""

    def __init__(self) -> None:
        self.turns = 0
        self._turned = threading.Condition()

    async def beat(self) -> None:
        """Count for ever, one turn at a time."""
        while True:
            await asyncio.sleep(0)
            with self._turned:
                self.turns += 1
                self._turned.notify_all()

    def wait_for_turns(self, patience_s: float) -> bool:
        """Block until the loop has turned some more times; whether it did."""
        with self._turned:
            first = self.turns
            return self._turned.wait_for(lambda: self.turns >= first + TURNS, patience_s)


class BlockingSearcher:
    """A dense searcher as most clients are: synchronous, and waiting; here for the event loop to turn.

    Attributes:
        turned: for each search, whether the loop turned while it waited.
    """

    def __init__(self, heart: Heart, patience_s: float = PATIENCE_S) -> None:
        self.turned: list[bool] = []
        self._heart = heart
        self._patience_s = patience_s

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        """Wait, then answer."""
        self.turned.append(self._heart.wait_for_turns(self._patience_s))
        return [
            Candidate(unit_id=document.id, channel="dense", rank=rank, unit=document)
            for rank, document in enumerate(DOCUMENTS[-k:], 1)
        ]


class RudeSearcher(BlockingSearcher):
    """Says that it is asynchronous and then blocks the event loop: what the test must notice."""

    async def asearch(self, query: str, k: int, filter: Any = None) -> list[Candidate]:
        """Block the loop."""
        return self.search(query, k, filter)


async def _all_at_once(make: Callable[[Heart], BlockingSearcher], runs: int) -> tuple[BlockingSearcher, list[Any]]:
    """So many runs at once over one searcher while the heart beats."""
    heart = Heart()
    dense = make(heart)
    lexical = BM25Searcher.from_documents(DOCUMENTS)
    graph = create_bounded_retrieval(lexical, dense, policy="always_continue").compile()
    beating = asyncio.create_task(heart.beat())
    try:
        asked = (graph.ainvoke({"query": f"Which pump hums at site {number}?"}) for number in range(runs))
        return dense, await asyncio.gather(*asked)
    finally:
        beating.cancel()


async def test_a_thousand_runs_at_once_leave_the_event_loop_free() -> None:
    """While 1,000 ainvoke wait for a blocking searcher, the event loop turns during every single search."""
    dense, results = await _all_at_once(BlockingSearcher, RUNS)
    assert dense.turned == [True] * RUNS
    assert {EvidencePacket.from_result(result).usage.dense_calls for result in results} == {1}
    assert len({result["packet"]["query_id"] for result in results}) == RUNS


async def test_a_searcher_that_blocks_the_loop_is_noticed() -> None:
    """A control: while an asynchronous searcher blocks, the loop turns during none of its searches."""
    dense, _ = await _all_at_once(lambda heart: RudeSearcher(heart, patience_s=0.01), 20)
    assert dense.turned == [False] * 20
