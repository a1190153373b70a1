"""Conditional edges: runs of their own for whoever listens to the graph's runs, and for nobody else."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from inventory import QUERY, dense, lexical
from langchain_core.callbacks import BaseCallbackHandler

from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.routing import Edge

ROUTES = ["route_after_inspect", "route_after_assess", "route_after_assess"]


class Listener(BaseCallbackHandler):
    """Remembers the names of the runs that began, and how many ended."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.ended: set[UUID] = set()

    def on_chain_start(self, serialized: Any, inputs: Any, **given: Any) -> None:  # noqa: ARG002 - LangChain's signature
        self.names.append(given["name"])

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002 - likewise
        self.ended.add(run_id)


def graph() -> Any:
    """A graph that makes both searches."""
    return create_bounded_retrieval(lexical(), dense(), policy="always_continue").compile()


@pytest.mark.parametrize("awaited", [False, True])
async def test_a_listener_is_shown_every_edge_as_a_run(awaited: bool) -> None:
    """Every edge that was decided is a run with a beginning and an end, beside the nodes' runs."""
    listener = Listener()
    config: Any = {"callbacks": [listener]}
    asked = {"query": QUERY}
    await graph().ainvoke(asked, config) if awaited else graph().invoke(asked, config)
    assert [name for name in listener.names if name.startswith("route_")] == ROUTES
    assert len(listener.ended) == len(listener.names)


@pytest.mark.parametrize("awaited", [False, True])
async def test_without_a_listener_an_edge_is_a_plain_call(awaited: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same edges are taken and no run is made of them."""
    compiled = graph()
    edges = [branch.path for named in compiled.builder.branches.values() for branch in named.values()]
    assert all(isinstance(edge, Edge) for edge in edges)
    for edge in edges:
        monkeypatch.setattr(edge, "_traced", None)
    asked = {"query": QUERY}
    result = await compiled.ainvoke(asked) if awaited else compiled.invoke(asked)
    assert result == graph().invoke(asked)
    assert result["packet"]["usage"]["calls"] == 2


async def test_events_of_astream_events_name_the_edges() -> None:
    """`astream_events` listens, so it shows them."""
    names = [event["name"] async for event in graph().astream_events({"query": QUERY}, version="v2")]
    assert [name for name in names if name.startswith("route_")] == [name for name in ROUTES for _ in range(2)]
