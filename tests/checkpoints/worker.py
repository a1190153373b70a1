"""One process of a run that may be killed: started by the tests, never collected by them.

Usage: worker.py SAVER start|resume KILL_AT sync|async plain|parent

SAVER is ``sqlite:PATH`` or ``postgres:DSN``. KILL_AT is ``call:CHANNEL`` (inside that search), ``before:NODE`` (when the
step before it is saved and it is about to start) or ``never``. Prints the output as JSON; appends each real search to $CALL_LOG.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from bounded_retrieval import create_bounded_retrieval
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

DOCUMENTS = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(6)]
CONFIG: Any = {"configurable": {"thread_id": "one"}}
NODES = ("inspect_request", "lexical_search", "assess_coverage", "dense_search", "recheck_and_pack")


class LoggedSearcher(ScriptedSearcher):
    """Logs each call outside the checkpoint before anything else, and may die in it."""

    dies = False

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        with Path(os.environ["CALL_LOG"]).open("a") as log:
            log.write(f"{self.channel}\n")
        if self.dies:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().search(query, k, filter)


class ParentState(TypedDict, total=False):
    query: str
    packet: dict[str, Any]


def build(kill_at: str, fails: str | None = None) -> StateGraph[Any, Any, Any, Any]:
    """Build the graph; its searcher named by ``kill_at`` dies in its call, the one named by ``fails`` raises."""
    searchers: dict[str, Any] = {
        "lexical": LoggedSearcher(DOCUMENTS[:3], "lexical"),
        "dense": LoggedSearcher(DOCUMENTS[3:], "dense"),
    }
    for channel, searcher in searchers.items():
        searcher.dies = kill_at == f"call:{channel}"
    if fails is not None:
        searchers[fails] = FailingSearcher()
    return create_bounded_retrieval(**searchers, policy="always_continue")


def under_parent(graph: StateGraph[Any, Any, Any, Any]) -> StateGraph[Any, Any, Any, Any]:
    """Put the graph into a parent that shares its keys."""
    parent = StateGraph(ParentState).add_node("retrieve", graph.compile())
    return parent.add_edge(START, "retrieve").add_edge("retrieve", END)


def _die_before(kill_at: str, part: Any) -> None:
    # Of the "tasks" mode, the event that a node is about to start has its input and no result yet.
    task = part[1]
    if kill_at == f"before:{task['name']}" and "input" in task:
        os.kill(os.getpid(), signal.SIGKILL)


def run(graph: Any, given: Any, kill_at: str) -> Any:
    """Run to the end, or to the kill, and return the packet."""
    for part in graph.stream(given, CONFIG, stream_mode="tasks", subgraphs=True, durability="sync"):
        _die_before(kill_at, part)
    return graph.get_state(CONFIG).values["packet"]


async def arun(saver: str, wrap: Any, kill_at: str, given: Any) -> Any:
    """Do the same asynchronously."""
    kind, _, where = saver.partition(":")
    if kind == "sqlite":
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver as Saver
    else:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver as Saver
    async with Saver.from_conn_string(where) as checkpointer:
        await checkpointer.setup()
        graph = wrap.compile(checkpointer=checkpointer)
        async for part in graph.astream(given, CONFIG, stream_mode="tasks", subgraphs=True, durability="sync"):
            _die_before(kill_at, part)
        return (await graph.aget_state(CONFIG)).values["packet"]


def main(saver: str, mode: str, kill_at: str, way: str, shape: str) -> Any:
    """Open the saver, build, run."""
    builder = build(kill_at)
    wrap = under_parent(builder) if shape == "parent" else builder
    given = {"query": "Which pump hums?"} if mode == "start" else None
    if way == "async":
        return asyncio.run(arun(saver, wrap, kill_at, given))
    kind, _, where = saver.partition(":")
    if kind == "sqlite":
        from langgraph.checkpoint.sqlite import SqliteSaver as Saver
    else:
        from langgraph.checkpoint.postgres import PostgresSaver as Saver
    with ExitStack() as stack:
        checkpointer = stack.enter_context(Saver.from_conn_string(where))
        checkpointer.setup()
        return run(wrap.compile(checkpointer=checkpointer), given, kill_at)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
