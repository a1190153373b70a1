"""One process of a chain that may be killed: started by the tests, never collected by them.

Usage: chain_worker.py DATABASE start|resume KILL_AT bounded|function sync|async

KILL_AT is ``call:N`` (inside the N-th search that is really made, counted over all processes), ``before:NODE:N`` (when
the step before it is saved and it is about to start for the N-th time in this process) or ``never``. Prints the output
as JSON; appends each search that is really made to $CALL_LOG.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langgraph.graph import StateGraph

from bounded_retrieval.contracts.chain import ChainLimits, Hop, NextQuery, SubAnswer
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.chain import create_recursive_retrieval
from bounded_retrieval.testing import ScriptedSearcher

CONFIG: Any = {"configurable": {"thread_id": "one"}, "recursion_limit": 100}
QUESTION = "Which pump hums?"
TOPICS = ("alpha pump", "bravo valve", "charlie gate", "delta lamp")
NODES = ("plan_hop", "search_hop", "check_novelty", "check_sufficiency", "check_limits", "finish_chain")
HOPS = 3


def log_call(query: str, kill_at: str) -> int:
    """Log a call outside the checkpoint before anything else, and die in it if that is asked for; its number."""
    log = Path(os.environ["CALL_LOG"])
    with log.open("a") as lines:
        lines.write(f"{query}\n")
    number = len(log.read_text().splitlines())
    if kill_at == f"call:{number}":
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def document(query: str) -> Document:
    """What is found for a query."""
    return Document(id=f"on {query}", page_content=f"All about {query}.")


class LoggedSearcher(ScriptedSearcher):
    """Logs each call, and answers with the unit that belongs to the query."""

    kill_at = "never"

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        log_call(query, self.kill_at)
        return [row for row in super().search(query, max(k, 9), filter) if row.unit_id == f"on {query}"]


def plan(_question: str, trail: Sequence[Hop]) -> NextQuery:
    """A new query for every hop, at two tokens each."""
    return NextQuery(query=TOPICS[len(trail)], tokens=2)


def read(query: str, _documents: Any) -> SubAnswer:
    """A sub-answer to everything, at three tokens each."""
    return SubAnswer(text=f"read on {query}", tokens=3)


def build(kill_at: str, kind: str, fails_at: int | None = None) -> StateGraph[Any, Any, Any, Any]:
    """Build the chain over a bounded graph or a function; the search numbered ``fails_at`` raises."""
    made: list[str] = []

    def search(query: str) -> list[Document]:
        log_call(query, kill_at)
        made.append(query)
        if len(made) == fails_at:
            raise ConnectionError("down")
        return [document(query)]

    source: Any = search
    if kind == "bounded":
        searcher = LoggedSearcher([document(topic) for topic in TOPICS], "lexical")
        searcher.kill_at = kill_at
        if fails_at is not None:
            whole = searcher.search

            def failing(query: str, k: int, filter: Any = None) -> Any:
                made.append(query)
                if len(made) == fails_at:
                    raise ConnectionError("down")
                return whole(query, k, filter)

            searcher.search = failing  # type: ignore[method-assign]
        source = create_bounded_retrieval(searcher, policy="fixed_lexical")
    limits = ChainLimits(max_hops=HOPS, max_calls=HOPS, max_tokens=100)
    return create_recursive_retrieval(source, plan, read, limits=limits)


class Killer:
    """Kills the process when the node that it was told of is about to start."""

    def __init__(self, kill_at: str) -> None:
        self.kill_at = kill_at
        self.started: Counter[str] = Counter()

    def look(self, part: Any) -> None:
        """Look at an event of mode "tasks": that a node is about to start has its input and no result yet."""
        if "input" in part:
            self.started[part["name"]] += 1
            if self.kill_at == f"before:{part['name']}:{self.started[part['name']]}":
                os.kill(os.getpid(), signal.SIGKILL)


def run(database: str, builder: Any, kill_at: str, given: Any) -> Any:
    """Run to the end, or to the kill, and return the thread's values."""
    from langgraph.checkpoint.sqlite import SqliteSaver

    killer = Killer(kill_at)
    with SqliteSaver.from_conn_string(database) as checkpointer:
        checkpointer.setup()
        graph = builder.compile(checkpointer=checkpointer)
        for part in graph.stream(given, CONFIG, stream_mode="tasks", durability="sync"):
            killer.look(part)
        return graph.get_state(CONFIG).values


async def arun(database: str, builder: Any, kill_at: str, given: Any) -> Any:
    """Do the same asynchronously."""
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    killer = Killer(kill_at)
    async with AsyncSqliteSaver.from_conn_string(database) as checkpointer:
        await checkpointer.setup()
        graph = builder.compile(checkpointer=checkpointer)
        async for part in graph.astream(given, CONFIG, stream_mode="tasks", durability="sync"):
            killer.look(part)
        return (await graph.aget_state(CONFIG)).values


def shown(values: Any) -> dict[str, Any]:
    """The output as JSON."""
    documents = [{"id": unit.id, "text": unit.page_content} for unit in values["documents"]]
    keys = ("stop_reason", "resolved", "unresolved", "trail", "chain")
    return {**{key: values[key] for key in keys}, "documents": documents}


def main(database: str, mode: str, kill_at: str, kind: str, way: str) -> Any:
    """Open the saver, build, run."""
    given = {"query": QUESTION} if mode == "start" else None
    builder = build(kill_at, kind)
    values = (
        asyncio.run(arun(database, builder, kill_at, given))
        if way == "async"
        else run(database, builder, kill_at, given)
    )
    return shown(values)


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(*sys.argv[1:])))
