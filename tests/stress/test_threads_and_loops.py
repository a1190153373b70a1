"""Graphs and searchers shared by threads and event loops: everybody gets what they would get alone."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from scale import scaled
from soak_checks import of_result
from soak_world import QUERIES, HashedWords, digest, documents

from bounded_retrieval import (
    BM25Searcher,
    BoundedRetriever,
    ChainResult,
    ChromaSearcher,
    ExtractiveReader,
    Scorecard,
    ScoreFusion,
    TemplatePlanner,
    create_bounded_retrieval,
    create_recursive_retrieval,
)
from bounded_retrieval.errors import StoreError
from bounded_retrieval.ingest._warnings import ignoring

THREADS = 16
ROUNDS = scaled(2, 40)
EDITS = scaled(15, 400)
WORKER = Path(__file__).with_name("first_use_worker.py")
STEPS = ["Which sheet cleans the filter of the pump?", "What does sheet #1 allow?"]


class Shared:
    """Both channels, a graph and a chain over them, and what each question gives when it is the only one."""

    def __init__(self) -> None:
        units = documents(("t00", "t01", "s00"))
        self.lexical = BM25Searcher.from_documents(units)
        self.dense = ChromaSearcher.from_documents(units, HashedWords())
        builder = create_bounded_retrieval(
            self.lexical, self.dense, units=self.lexical, assessor=Scorecard(), fusion=ScoreFusion()
        )
        chain = create_recursive_retrieval(builder, TemplatePlanner(STEPS), ExtractiveReader(threshold=1))
        self.graphs = {"controller": builder.compile(), "chain": chain.compile()}
        self.questions = [
            (name, f"{query} of t0{owner}") for name in self.graphs for query in QUERIES for owner in (0, 1)
        ]
        self.alone = {question: self.ask(question) for question in self.questions}

    def ask(self, question: tuple[str, str]) -> str:
        """A digest of the whole output."""
        name, query = question
        return condensed(name, self.graphs[name].invoke({"query": query}))

    async def aask(self, question: tuple[str, str]) -> str:
        """The same, awaited."""
        name, query = question
        return condensed(name, await self.graphs[name].ainvoke({"query": query}))

    async def astream(self, question: tuple[str, str]) -> str:
        """The same from the last of the streamed states, with events on the way."""
        name, query = question
        last: dict[str, Any] = {}
        async for mode, chunk in self.graphs[name].astream({"query": query}, stream_mode=["values", "custom"]):
            last = chunk if mode == "values" else last
        return condensed(name, last)

    def wrong(self, answers: list[tuple[tuple[str, str], str]]) -> list[tuple[str, str]]:
        """The questions whose answer differs from the one that they get alone."""
        return [question for question, answer in answers if answer != self.alone[question]]

    def shuffled(self, seed: int) -> list[tuple[str, str]]:
        """All questions in an order of their own."""
        return random.Random(seed).sample(self.questions, len(self.questions))


def condensed(name: str, result: dict[str, Any]) -> str:
    """A digest of what a graph gives."""
    return digest(of_result(result) if name == "controller" else ChainResult.from_result(result).model_dump())


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    """The parts that everybody shares."""
    made = Shared()
    yield made
    made.dense.close()


def in_threads(work: Callable[[int], Any], threads: int = THREADS) -> list[Any]:
    """What threads give that begin in the same moment; the first error is raised."""
    barrier = threading.Barrier(threads)

    def begin(number: int) -> Any:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


def test_threads_that_share_a_graph_and_a_chain(shared: Shared) -> None:
    """Sixteen threads that invoke one compiled graph and one chain get what they would get alone."""

    def ask(number: int) -> list[tuple[tuple[str, str], str]]:
        asked = [question for round_ in range(ROUNDS) for question in shared.shuffled(100 * round_ + number)]
        return [(question, shared.ask(question)) for question in asked[: 6 * ROUNDS]]

    answers = [answer for found in in_threads(ask) for answer in found]
    assert len(answers) == THREADS * 6 * ROUNDS
    assert shared.wrong(answers) == []
    print(f"\n{THREADS} threads, {len(answers):,} invoke of one graph and one chain: 0 differ")


def test_event_loops_that_share_a_graph_and_a_chain(shared: Shared) -> None:
    """Loops in several threads that await and stream the same graphs, beside threads that invoke them, agree too."""

    async def all_at_once(number: int) -> list[tuple[tuple[str, str], str]]:
        asked = [question for round_ in range(ROUNDS) for question in shared.shuffled(100 * round_ + number)]
        asked = asked[: 12 * ROUNDS]
        ways = [shared.aask, shared.astream]
        answers = await asyncio.gather(*(ways[place % 2](question) for place, question in enumerate(asked)))
        return list(zip(asked, answers, strict=True))

    def ask(number: int) -> list[tuple[tuple[str, str], str]]:
        if number % 3:
            return asyncio.run(all_at_once(number))
        return [(question, shared.ask(question)) for question in shared.shuffled(number)[: 6 * ROUNDS]]

    answers = [answer for found in in_threads(ask, 6) for answer in found]
    assert shared.wrong(answers) == []
    print(f"\n4 event loops beside 2 threads, {len(answers):,} runs: 0 differ")


async def test_nested_use(shared: Shared) -> None:
    """``invoke`` inside a running loop, in its executor, and of a graph inside another graph's search are all the same."""
    loop = asyncio.get_running_loop()
    asked = shared.questions
    with ThreadPoolExecutor(4) as pool:
        in_executor = await asyncio.gather(*(loop.run_in_executor(pool, shared.ask, question) for question in asked))
    in_thread = await asyncio.gather(*(asyncio.to_thread(shared.ask, question) for question in asked[:8]))
    blocking = [shared.ask(question) for question in asked[:4]]
    awaited = await asyncio.gather(*(shared.aask(question) for question in asked))
    found = [*zip(asked, in_executor, strict=True), *zip(asked[:8], in_thread, strict=True)]
    assert shared.wrong([*found, *zip(asked[:4], blocking, strict=True), *zip(asked, awaited, strict=True)]) == []


async def test_a_graph_as_another_graphs_searcher(shared: Shared) -> None:
    """A retriever over the shared graph, used as the lexical channel of other graphs at once, answers as when alone."""
    inner = BoundedRetriever.from_graph(shared.graphs["controller"])
    outer = create_bounded_retrieval(inner, policy="fixed_lexical").compile()
    alone = {query: outer.invoke({"query": query})["packet"] for query in QUERIES}
    assert all(packet["items"] for packet in alone.values())
    found = await asyncio.gather(*(outer.ainvoke({"query": query}) for query in QUERIES * 2))
    assert [result["packet"] for result in found] == [alone[query] for query in QUERIES * 2]


async def test_cancelled_tasks_do_not_disturb_others(shared: Shared) -> None:
    """Of tasks that are cancelled at any moment each ends in ``CancelledError``; the others are as they would be alone."""
    drawn = random.Random(7)
    asked = [question for seed in range(ROUNDS) for question in shared.shuffled(seed)]
    tasks = [asyncio.create_task(shared.aask(question)) for question in asked]
    doomed = set(drawn.sample(range(len(tasks)), len(tasks) // 2))

    async def cancel() -> None:
        for number in sorted(doomed, key=lambda _: drawn.random()):
            await asyncio.sleep(drawn.random() / 100)
            tasks[number].cancel()

    answers = (await asyncio.gather(cancel(), *tasks, return_exceptions=True))[1:]
    unexpected = [answer for answer in answers if isinstance(answer, Exception)]
    ended = [number for number, answer in enumerate(answers) if isinstance(answer, asyncio.CancelledError)]
    assert unexpected == []
    assert set(ended) <= doomed
    assert len(ended) > 0
    left = [pair for number, pair in enumerate(zip(asked, answers, strict=True)) if number not in ended]
    assert shared.wrong(left) == []
    assert shared.wrong([(question, await shared.aask(question)) for question in asked[:4]]) == []
    print(f"\n{len(tasks)} tasks, {len(ended)} cancelled under way: the others do not differ")


NEW = [
    Document(id=f"x{number:02}", page_content=f"To clean the filter of the pump at once, take sheet x{number:02}.")
    for number in range(40)
]
FILTER = {"new": True}
LOOKS = [
    (query, where) for query in ("clean the filter of the pump", "take sheet at once x07") for where in (None, FILTER)
]


def rows(searcher: Any, query: str, where: Any) -> tuple[Any, ...]:
    """An answer, whole: ids, scores and texts."""
    found = searcher.search(query, 12, where)
    return tuple((candidate.unit_id, candidate.score, candidate.unit.page_content) for candidate in found)


def looked_at(searcher: Any) -> Counter[str]:
    """How often searches saw the units without and with the new ones while these came and went, and neither of them."""
    new = [document.model_copy(update={"metadata": FILTER}) for document in NEW]
    old_rows = [rows(searcher, *look) for look in LOOKS]
    old_units = searcher.fetch(["x00", "x39"])
    searcher.add(new)
    new_rows = [rows(searcher, *look) for look in LOOKS]
    over, seen, lock = threading.Event(), Counter[str](), threading.Lock()

    def look(number: int) -> None:
        drawn = random.Random(number)
        while not over.is_set():
            place = drawn.randrange(len(LOOKS))
            answer = rows(searcher, *LOOKS[place])
            name = {old_rows[place]: "old", new_rows[place]: "new"}.get(answer, "mixed")
            held = len(searcher.fetch(["x00", "x39"]))
            with lock:
                seen[name] += 1
                seen["units mixed" if held == 1 else "units whole"] += 1

    def edit() -> None:
        for _ in range(EDITS):
            searcher.remove([document.id for document in new])
            time.sleep(0.002)
            searcher.add(new)
            time.sleep(0.002)

    with ThreadPoolExecutor(5) as pool:
        looking = [pool.submit(look, number) for number in range(4)]
        try:
            pool.submit(edit).result()
        finally:
            over.set()
        for future in looking:
            future.result()
    assert old_units == {}
    return seen


@pytest.mark.parametrize("kind", ["bm25", "chroma in memory", "chroma on disk"])
def test_an_edit_is_seen_whole_or_not_at_all(kind: str, tmp_path: Path) -> None:
    """Searches and reads during ``add`` and ``remove`` give the old or the new answer, never a mixture or an error."""
    units = documents(("t00", "t01"))
    if kind == "bm25":
        seen = looked_at(BM25Searcher.from_documents(units))
    else:
        path = tmp_path if kind == "chroma on disk" else None
        dense = ChromaSearcher.from_documents(units, HashedWords(), path=path)
        seen = looked_at(dense)
        dense.close()
    print(f"\n{kind}: {2 * EDITS} edits, {dict(seen)}")
    assert (seen["mixed"], seen["units mixed"]) == (0, 0)
    assert min(seen["old"], seen["new"]) > 0


class Halting:
    """A Chroma collection whose call of one name stops half-way until it is let go on."""

    def __init__(self, collection: Any, name: str) -> None:
        self.reached, self.goes_on = threading.Event(), threading.Event()
        self._collection = collection
        self._name = name

    def __getattr__(self, name: str) -> Any:
        def halting(*arguments: Any, **options: Any) -> Any:
            self.reached.set()
            assert self.goes_on.wait(60)
            return getattr(self._collection, name)(*arguments, **options)

        return halting if name == self._name else getattr(self._collection, name)


@pytest.mark.parametrize(("halted", "expected"), [("upsert", "new"), ("query", "old")])
def test_searches_and_edits_of_chroma_wait_for_each_other(halted: str, expected: str) -> None:
    """A search that comes during an edit sees the edit's end; an edit that comes during a search does not reach it."""
    dense = ChromaSearcher.from_documents(documents(("t00",)), HashedWords())
    old = rows(dense, QUERIES[0], None)
    collection = dense._collection
    halting = dense._collection = Halting(collection, halted)
    works = [lambda: dense.add(NEW), lambda: rows(dense, QUERIES[0], None)]
    first, second = works if halted == "upsert" else reversed(works)
    with ThreadPoolExecutor(2) as pool:
        running = [pool.submit(first)]
        assert halting.reached.wait(60)
        running.append(pool.submit(second))
        time.sleep(0.1)
        assert not running[1].done()
        halting.goes_on.set()
        seen = next(answer for future in running if (answer := future.result()) is not None)
    dense._collection = collection
    new = rows(dense, QUERIES[0], None)
    dense.close()
    assert seen == {"old": old, "new": new}[expected]
    assert old != new


class InTwoSteps(BM25Searcher):
    """An edit that searches may come between."""

    def add(self, documents: Any) -> None:
        for part in (documents[:20], documents[20:]):
            super().add(part)
            time.sleep(0.02)


def test_an_edit_in_two_steps_is_found() -> None:
    """A control: searches that see half of an edit are found."""
    seen = looked_at(InTwoSteps.from_documents(documents(("t00", "t01"))))
    assert min(seen["mixed"], seen["units mixed"]) > 0


def test_runs_during_edits_end_in_a_whole_packet() -> None:
    """Graph runs during ``add`` and ``remove`` fail no channel, and pack nothing but units as they are or were."""
    units = documents(("t00", "t01"))
    lexical = BM25Searcher.from_documents(units)
    dense = ChromaSearcher.from_documents(units, HashedWords())
    graph = create_bounded_retrieval(lexical, dense, policy="always_continue").compile()
    texts = {document.id: document.page_content for document in [*units, *NEW]}
    over = threading.Event()

    def edit() -> None:
        while not over.is_set():
            for searcher in (lexical, dense):
                searcher.add(NEW)
            for searcher in (lexical, dense):
                searcher.remove([document.id for document in NEW])

    def ask(number: int) -> list[dict[str, Any]]:
        asked = [QUERIES[(number + place) % len(QUERIES)] for place in range(5 * ROUNDS)]
        return [graph.invoke({"query": query})["packet"] for query in asked]

    editing = threading.Thread(target=edit)
    editing.start()
    try:
        packets = [packet for found in in_threads(ask, 4) for packet in found]
    finally:
        over.set()
        editing.join()
        dense.close()
    assert [packet for packet in packets if set(packet["notes"]) - {"dropped_at_recheck"}] == []
    assert all(item["text"] == texts[item["unit_id"]] for packet in packets for item in packet["items"])
    assert all(packet["items"] for packet in packets)


def answer_or_error(dense: ChromaSearcher) -> Any:
    """What a search gives, or the error that says that it is closed."""
    try:
        return rows(dense, QUERIES[0], None)
    except StoreError as error:
        return f"{type(error).__name__}: {error}"


def test_closing_a_searcher_under_others(tmp_path: Path) -> None:
    """Searches during ``close`` end with their answer or with the one error that says so."""
    units = documents(("t00",))
    for number in range(scaled(4, 40)):
        dense = ChromaSearcher.from_documents(units, HashedWords(), path=tmp_path / str(number) if number % 2 else None)
        alone, closed = rows(dense, QUERIES[0], None), threading.Event()

        def look(_: int, dense: Any = dense, alone: Any = alone, closed: Any = closed) -> list[bool]:
            found = []
            while not closed.is_set() or found[-1:] != [False]:
                answer = answer_or_error(dense)
                found.append(answer == alone)
                assert answer in {alone, "StoreError: dense searcher: closed"}
            return found

        with ThreadPoolExecutor(4) as pool:
            looking = [pool.submit(look, part) for part in range(4)]
            time.sleep(0.02)
            dense.close()
            closed.set()
            answers = [future.result() for future in looking]
        # Right until it was closed, and then the error.
        assert all(found == sorted(found, reverse=True) for found in answers)


def test_warnings_are_ignored_by_one_thread_at_a_time() -> None:
    """The process's filters are as before when readers of pages that ignore some warnings have ended in any order."""
    before = list(warnings.filters)
    inside, leave = threading.Event(), threading.Event()

    def outer() -> None:
        with ignoring(ResourceWarning):
            inside.set()
            assert leave.wait(60)

    def inner() -> list[Any]:
        assert inside.wait(60)
        with ignoring(DeprecationWarning, message="planted"):
            return list(warnings.filters)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(outer), pool.submit(inner)
        time.sleep(0.1)
        assert not second.done()
        leave.set()
        first.result()
        seen = second.result()
    assert len(seen) == len(before) + 1
    assert warnings.filters == before


def run_worker(case: str, *folders: Path) -> dict[str, Any]:
    """What threads found that used something first."""
    done = subprocess.run(
        [sys.executable, WORKER, case, *folders], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", ["names", "parts", "shared"])
def test_first_use_by_many_threads(case: str) -> None:
    """Public names, both indexes, the model, caches and a whole graph, first used by 16 threads at once."""
    for _ in range(scaled(1, 8)):
        found = run_worker(case)
        assert [answer for answer in found["answers"] if answer != found["expected"]] == []
        assert found["expected"]
        assert found.get("loggers", True)


def test_a_logger_keeps_its_level_when_threads_import_bm25s_at_once(tmp_path: Path) -> None:
    """The level that bm25s gives its logger when imported does not stay, whichever thread comes in between."""
    slow = "import logging, time\nlogging.getLogger('bm25s').setLevel(logging.DEBUG)\ntime.sleep(0.5)\n"
    (tmp_path / "bm25s.py").write_text(slow)
    found = run_worker("bm25s", tmp_path)
    assert (set(found["answers"]), found["level"]) == ({"bm25s"}, 0)
