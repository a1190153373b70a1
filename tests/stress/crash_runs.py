"""Runs of both graphs over real searchers that note every call in a log, as jobs of a fork server.

A job is one process of a case. It begins the run, or goes on with it where checkpoints are found, and gives the output.
The log outside the checkpoints gets ``node`` when a node starts, ``start`` and ``end`` around each search that is really
made, and a ``key`` that names the search.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
from crash_forks import Tell, append, serve
from langchain_core.documents import Document
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.chain import ChainLimits, Hop, NextQuery, SubAnswer
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.chain import create_recursive_retrieval
from bounded_retrieval.nodes import charging, search_hop, searching
from bounded_retrieval.nodes.running import Node
from bounded_retrieval.policies.tokenize import tokenize
from bounded_retrieval.retrievers.bm25 import BM25Searcher

COLOURS = ("crimson", "amber", "teal", "ivory")
PARTS = ("pump", "valve", "gate", "lamp", "filter")
DOCUMENTS = [
    Document(
        id=f"u{n:02}", page_content=f"The {COLOURS[n % 4]} {PARTS[n % 5]} of site {n} needs oil {n % 3} times a year."
    )
    for n in range(20)
]
QUESTIONS = ("crimson pump site oil", "Which teal gate leaks steam at night?", "Does the HX-220 lamp need oil?")
TOPICS = ("crimson pump", "amber valve leaks steam", "teal gate oil", "ivory lamp")
POLICIES = ("adaptive", "always_continue", "fixed_lexical", "fixed_dense")
SHAPES = ("controller", "parent", "chain of controllers", "chain of functions")
SLOW_SAVE_S = 0.03
WAIT_S = (0.002, 0.012)
"""How long a search takes besides its own work, in seconds, from and to."""


class Probe:
    """Stands around every search that is really made: notes it, lets it take a while, and fails those it was told to.

    Attributes:
        calls: the searches made in this process.
    """

    def __init__(self, log: str | None, tell: Tell, fails: frozenset[str], seed: str) -> None:
        self.log = log
        self.calls: list[str] = []
        self._tell = tell
        self._fails = fails
        self._random = random.Random(seed)

    def enter(self, channel: str, query: str) -> float:
        """Note that a search starts; how many seconds it should take."""
        key = f"{channel}: {query}"
        self.calls.append(key)
        if self.log is not None:
            append(self.log, "start", key=key)
            self._tell("s")
        if key in self._fails:
            raise ConnectionError("down")
        return 0.0 if self.log is None else self._random.uniform(*WAIT_S)

    def leave(self, channel: str, query: str) -> None:
        """Note that it ended."""
        if self.log is not None:
            append(self.log, "end", key=f"{channel}: {query}")


class NotedBM25(BM25Searcher):
    """BM25, each search noted."""

    probe: Probe

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:
        time.sleep(self.probe.enter("lexical", query))
        found = super().search(query, k, filter)
        self.probe.leave("lexical", query)
        return found


class NotedVectors:
    """Searches by the cosine of sums of words' hashes, each search noted."""

    def __init__(self, probe: Probe) -> None:
        self.probe = probe
        self._vectors = {document.id: _vector(document.page_content) for document in DOCUMENTS}

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002 - nothing is filtered
        time.sleep(self.probe.enter("dense", query))
        return self._answer(query, k)

    async def asearch(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002 - likewise
        await asyncio.sleep(self.probe.enter("dense", query))
        return self._answer(query, k)

    def score(self, query: str, unit_ids: Sequence[str]) -> dict[str, float]:
        wanted = _vector(query)
        return {unit_id: round(float(self._vectors[unit_id] @ wanted), 9) for unit_id in unit_ids}

    def fetch(self, unit_ids: Sequence[str]) -> Mapping[str, Document]:
        return {document.id: document for document in DOCUMENTS if document.id in unit_ids}

    def _answer(self, query: str, k: int) -> list[Candidate]:
        scores = self.score(query, list(self._vectors))
        best = sorted(scores.items(), key=lambda item: (-item[1], item[0]))[:k]
        self.probe.leave("dense", query)
        return [
            Candidate(unit_id=unit_id, channel="dense", rank=rank, score=score)
            for rank, (unit_id, score) in enumerate(best, 1)
        ]


def _vector(text: str) -> Any:
    rows = [np.frombuffer(hashlib.sha256(term.encode()).digest(), np.uint8) / 255 - 0.5 for term in tokenize(text)]
    total = np.sum(rows, axis=0)
    return total / np.linalg.norm(total)


class ParentState(TypedDict, total=False):
    query: str
    packet: dict[str, Any]
    trace: dict[str, Any]
    stop_reason: str
    documents: list[Document]


def plan(_question: str, trail: Sequence[Hop]) -> NextQuery:
    """A new query for every hop."""
    return NextQuery(query=TOPICS[len(trail)])


def read(query: str, _documents: Any) -> SubAnswer:
    """A sub-answer to everything."""
    return SubAnswer(text=f"read on {query}")


def build(case: Mapping[str, Any], probe: Probe) -> StateGraph[Any, Any, Any, Any]:
    """The case's graph, its searches watched by the probe."""
    if case["shape"] == "chain of functions":
        return create_recursive_retrieval(_function(probe), plan, read, limits=_chain_limits(case))
    lexical = NotedBM25.from_documents(DOCUMENTS)
    lexical.probe = probe
    budget = Budget(max_calls=min(2, case["max_calls"]))
    graph = create_bounded_retrieval(lexical, NotedVectors(probe), policy=case["policy"], budget=budget)
    if case["shape"] == "parent":
        parent = StateGraph(ParentState).add_node("retrieve", graph.compile())
        return parent.add_edge(START, "retrieve").add_edge("retrieve", END)
    if case["shape"] == "chain of controllers":
        return create_recursive_retrieval(graph, plan, read, limits=_chain_limits(case))
    return graph


def _chain_limits(case: Mapping[str, Any]) -> ChainLimits:
    return ChainLimits(max_hops=3, max_calls=case["max_calls"])


def _function(probe: Probe) -> Any:
    def search(query: str) -> list[Document]:
        time.sleep(probe.enter("function", query))
        found = [document for document in DOCUMENTS if query.split(maxsplit=1)[0] in document.page_content]
        probe.leave("function", query)
        return found

    return search


def reference(case: Mapping[str, Any], fails: frozenset[str]) -> tuple[dict[str, Any], list[str]]:
    """The output of a run that nobody kills, without checkpoints, in which exactly these searches fail; its searches."""
    probe = Probe(None, lambda _mark: None, fails, "")
    return shown(build(case, probe).compile().invoke({"query": case["query"]})), probe.calls


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that the caller gets, as JSON."""
    keys = ("packet", "trace", "stop_reason", "resolved", "unresolved", "trail", "chain")
    documents = [[unit.id, unit.page_content, unit.metadata] for unit in values["documents"]]
    return {**{key: values[key] for key in keys if key in values}, "documents": documents}


def work(job: dict[str, Any], tell: Tell) -> dict[str, Any]:
    """One process of a case, to its end or its kill."""
    _note_nodes(job["log"])
    BUGS[job.get("bug")]()
    probe = Probe(job["log"], tell, frozenset(), job["seed"])
    builder = build(job, probe)
    if job["way"] == "async":
        return asyncio.run(_arun(builder, job, tell))
    return _run(builder, job, tell)


def _config(job: Mapping[str, Any]) -> Any:
    return {"configurable": {"thread_id": job["thread"]}, "recursion_limit": 100}


def _run(builder: Any, job: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    kind, _, where = job["saver"].partition(":")
    config = _config(job)
    with ExitStack() as opened:
        saver = opened.enter_context((SqliteSaver if kind == "sqlite" else PostgresSaver).from_conn_string(where))
        tell("b")
        saver.setup()
        if job["slow"]:
            put = saver.put_writes
            saver.put_writes = lambda *given: (time.sleep(SLOW_SAVE_S), put(*given))[1]
        graph = builder.compile(checkpointer=saver)
        given = _given(job, graph.get_state(config))
        return shown(graph.invoke(given, config, durability="sync"))


async def _arun(builder: Any, job: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    kind, _, where = job["saver"].partition(":")
    config = _config(job)
    async with (AsyncSqliteSaver if kind == "sqlite" else AsyncPostgresSaver).from_conn_string(where) as saver:
        tell("b")
        await saver.setup()
        if job["slow"]:
            put = saver.aput_writes

            async def slow(*given: Any) -> Any:
                await asyncio.sleep(SLOW_SAVE_S)
                return await put(*given)

            saver.aput_writes = slow
        graph = builder.compile(checkpointer=saver)
        given = _given(job, await graph.aget_state(config))
        return shown(await graph.ainvoke(given, config, durability="sync"))


def _given(job: Mapping[str, Any], held: Any) -> Any:
    # Killed before anything was saved, the run never began. Whether it ended is not asked: LangGraph's `next` is empty,
    # too, where a step's results are saved and the step is not; going on with a run that ended gives its output again.
    return {"query": job["query"]} if held.created_at is None else None


def _note_nodes(log: str) -> None:
    """Note the start of each node, which means that the step before it is saved."""
    plain, awaited = Node.invoke, Node.ainvoke

    def note(node: Node, state: Any) -> None:
        append(log, "node", name=node.name, key=_key(node.name, state))

    def invoke(node: Node, state: Any, config: Any = None, **options: Any) -> Any:
        note(node, state)
        return plain(node, state, config, **options)

    async def ainvoke(node: Node, state: Any, config: Any = None, **options: Any) -> Any:
        note(node, state)
        return await awaited(node, state, config, **options)

    Node.invoke, Node.ainvoke = invoke, ainvoke


def _key(node: str, state: Mapping[str, Any]) -> str | None:
    """The search that a node may make."""
    if node == "search_hop":
        return f"function: {state['plan']['query']}"
    channel = {"lexical_search": "lexical", "dense_search": "dense"}.get(node)
    return None if channel is None else f"{channel}: {state['settings']['query']}"


def _bug_uncharged() -> None:
    """Nothing is charged before a call."""

    def never(_runtime: Any) -> Any:
        return False
        yield

    searching.was_cut_off = search_hop.was_cut_off = never


def _bug_lazy() -> None:
    """A call does not wait until its charge is saved."""
    charging.SAVE_WAITS_S = (0.0,)


def _bug_forgiven() -> None:
    """A call that failed or was cut off is not charged in the end."""
    describe = searching._describe

    def forgiving(*given: Any) -> Any:
        event = describe(*given)
        usage = event.usage.model_copy(update={"calls": event.usage.calls - 1})
        return event.model_copy(update={"usage": usage}) if event.outcome == "failed" else event

    searching._describe = forgiving


def _bug_hidden() -> None:
    """A search that was cut off counts as one that found nothing."""
    describe = searching._describe
    searching._describe = lambda *given: describe(*given).model_copy(update={"outcome": "answered"})


BUGS: dict[str | None, Any] = {
    None: lambda: None,
    "uncharged": _bug_uncharged,
    "lazy": _bug_lazy,
    "forgiven": _bug_forgiven,
    "hidden": _bug_hidden,
}


def warm_up() -> None:
    """Import what is imported on first use, so that no forked process has to."""
    for shape in SHAPES:
        reference({"shape": shape, "policy": "always_continue", "max_calls": 2, "query": QUESTIONS[0]}, frozenset())


if __name__ == "__main__":
    warm_up()
    serve(work)
