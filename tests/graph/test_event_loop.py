from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval import BM25Searcher, Candidate, EvidencePacket, create_bounded_retrieval

RUNS = 1_000
BLOCKED_MS = 20
BOUND_MS = 10_000
"""How late the heartbeat may ever be, on a machine however busy: half of what it would be if the searches were made on
the event loop (RUNS x BLOCKED_MS). What remains is LangGraph's own work for a thousand runs that all begin in one turn
of the loop, about a second on two cores."""

BEAT_MS = 10
DOCUMENTS = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(50)]


class BlockingSearcher:
    """A dense searcher as most clients are: synchronous, and waiting for something."""

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        time.sleep(BLOCKED_MS / 1000)
        return _candidates(k)


class RudeSearcher:
    """A searcher that says it is asynchronous and then blocks the event loop: what the heartbeat must notice."""

    async def asearch(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        time.sleep(BLOCKED_MS / 1000)  # noqa: ASYNC251 - the fault on purpose
        return _candidates(k)


def _candidates(k: int) -> list[Candidate]:
    return [
        Candidate(unit_id=document.id, channel="dense", rank=rank, unit=document)
        for rank, document in enumerate(DOCUMENTS[-k:], 1)
    ]


async def _lateness_ms(work: Callable[[], Awaitable[Any]]) -> tuple[list[float], Any]:
    """How late each beat of a heartbeat was while the work ran, and what the work gave."""
    late: list[float] = []

    async def beat() -> None:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(BEAT_MS / 1000)
            late.append((time.perf_counter() - started) * 1000 - BEAT_MS)

    heart = asyncio.create_task(beat())
    await asyncio.sleep(0)
    try:
        answer = await work()
        await asyncio.sleep(2 * BEAT_MS / 1000)  # the beat that the work held up is counted too
    finally:
        heart.cancel()
    return late, answer


def _graph(dense: Any) -> Any:
    return create_bounded_retrieval(BM25Searcher.from_documents(DOCUMENTS), dense, policy="always_continue").compile()


async def test_a_thousand_runs_at_once_leave_the_event_loop_free(capsys: pytest.CaptureFixture[str]) -> None:
    """While 1,000 ainvoke wait for a blocking searcher, a heartbeat is never later than the stated bound."""
    graph = _graph(BlockingSearcher())

    async def all_at_once() -> list[Any]:
        return await asyncio.gather(
            *(graph.ainvoke({"query": f"Which pump hums at site {number}?"}) for number in range(RUNS))
        )

    started = time.perf_counter()
    late, results = await _lateness_ms(all_at_once)
    took = time.perf_counter() - started
    with capsys.disabled():
        print(  # noqa: T201 - the figure is part of what this test shows
            f"\n{RUNS} ainvoke at once in {took:.1f} s: {len(late)} beats, at most {max(late):.0f} ms late "
            f"(median {sorted(late)[len(late) // 2]:.1f} ms, bound {BOUND_MS} ms)"
        )
    assert max(late) < BOUND_MS
    assert {EvidencePacket.from_result(result).usage.dense_calls for result in results} == {1}
    assert len({result["packet"]["query_id"] for result in results}) == RUNS


async def test_the_heartbeat_notices_a_searcher_that_blocks_the_loop() -> None:
    """A control: 100 runs over an asynchronous searcher that blocks hold the heartbeat up by all their waiting."""
    graph = _graph(RudeSearcher())

    async def all_at_once() -> Any:
        return await asyncio.gather(*(graph.ainvoke({"query": "Which pump hums?"}) for _ in range(100)))

    late, _ = await _lateness_ms(all_at_once)
    assert sum(late) > 100 * BLOCKED_MS * 0.8
