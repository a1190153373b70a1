from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import pytest
from langchain_core.documents import Document
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from pydantic import TypeAdapter
from typing_extensions import TypedDict

from bounded_retrieval import as_node, create_bounded_retrieval
from bounded_retrieval.contracts.trace import DecisionTrace, TraceEvent
from bounded_retrieval.graph.state import BoundedOutput, BoundedState
from bounded_retrieval.testing import ScriptedSearcher

DOCUMENTS = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(8)]
QUERY = "Which pump hums?"
NODES = [
    "inspect_request",
    "lexical_search",
    "assess_coverage",
    "dense_search",
    "assess_coverage",
    "recheck_and_pack",
]
PRIVATE = set(BoundedState.__annotations__) - set(BoundedOutput.__annotations__) - {"query"}
EVENT: TypeAdapter[TraceEvent] = TypeAdapter(TraceEvent)
MODES = ("values", "updates", "custom", "messages", "tasks", "debug", "checkpoints")


class SharedParent(TypedDict, total=False):
    query: str
    documents: Annotated[list[Document], operator.add]
    done: bool


class OtherParent(TypedDict, total=False):
    question: str
    context: list[Document]
    done: bool


@dataclass(frozen=True)
class Shape:
    """A way to run the bounded graph, what it is given, and the keys its surroundings may see."""

    graph: Any
    given: dict[str, Any]
    is_nested: bool
    keys: set[str]


def _bounded(**options: Any) -> Any:
    lexical, dense = ScriptedSearcher(DOCUMENTS[:4], "lexical"), ScriptedSearcher(DOCUMENTS[4:], "dense")
    return create_bounded_retrieval(lexical, dense, policy="always_continue", **options)


def _under(schema: Any, node: Any) -> Any:
    builder = StateGraph(schema).add_node("retrieve", node).add_node("finish", lambda _state: {"done": True})
    builder.add_edge(START, "retrieve").add_edge("retrieve", "finish").add_edge("finish", END)
    return builder.compile(checkpointer=InMemorySaver())


def _alone() -> Shape:
    return Shape(_bounded().compile(checkpointer=InMemorySaver()), {"query": QUERY}, is_nested=False, keys=set())


def _shared() -> Shape:
    graph = _under(SharedParent, _bounded(output_keys=["documents"]).compile())
    return Shape(graph, {"query": QUERY}, is_nested=True, keys=set(SharedParent.__annotations__))


def _through_as_node() -> Shape:
    graph = _under(OtherParent, as_node(_bounded(), query_key="question", documents_key="context"))
    return Shape(graph, {"question": QUERY}, is_nested=True, keys=set(OtherParent.__annotations__))


threads = itertools.count()
nested = pytest.mark.parametrize("shape", [_shared(), _through_as_node()], ids=["shared_keys", "as_node"])
every_shape = pytest.mark.parametrize(
    "shape", [_alone(), _shared(), _through_as_node()], ids=["alone", "shared_keys", "as_node"]
)


@pytest.fixture(params=["sync", "async"])
def stream(request: pytest.FixtureRequest) -> Any:
    """Collect a graph's stream as pairs of namespace and part, through ``stream`` and through ``astream``."""

    async def collect(shape: Shape, mode: str, *, subgraphs: bool) -> list[tuple[tuple[str, ...], Any]]:
        config = {"configurable": {"thread_id": str(next(threads))}}
        arguments = {"stream_mode": mode, "subgraphs": subgraphs}
        if request.param == "sync":
            parts = list(shape.graph.stream(shape.given, config, **arguments))
        else:
            parts = [part async for part in shape.graph.astream(shape.given, config, **arguments)]
        return parts if subgraphs else [((), part) for part in parts]

    return collect


def _dicts(part: Any) -> Iterator[dict[str, Any]]:
    """Every dict in a part, whatever the mode wraps it in; our own packet, trace and documents are not entered."""
    if isinstance(part, dict):
        yield part
        for key, value in part.items():
            if key not in BoundedOutput.__annotations__:
                yield from _dicts(value)
    elif isinstance(part, (list, tuple)):
        for item in part:
            yield from _dicts(item)


@every_shape
async def test_custom_gives_one_typed_event_a_step(stream: Any, shape: Shape) -> None:
    """With subgraphs=True every step of the run, and nothing else, is one event of the trace's own types."""
    parts = await stream(shape, "custom", subgraphs=True)
    events = [EVENT.validate_python(part) for _, part in parts]
    assert [event.event for event in events] == [
        "request_inspected",
        "search_attempted",
        "coverage_assessed",
        "search_attempted",
        "coverage_assessed",
        "evidence_packed",
    ]
    namespaces = {namespace for namespace, _ in parts}
    assert len(namespaces) == 1
    assert [name.partition(":")[0] for name in namespaces.pop()] == (["retrieve"] if shape.is_nested else [])


async def test_streamed_events_are_those_of_the_trace() -> None:
    """What was streamed and what the trace holds are the same when nothing was dropped."""
    graph = _bounded().compile()
    parts = list(graph.stream({"query": QUERY}, stream_mode=["custom", "values"]))
    streamed = [part for mode, part in parts if mode == "custom"]
    trace = DecisionTrace.from_result(parts[-1][1])
    assert DecisionTrace(events=[EVENT.validate_python(part) for part in streamed]) == trace


@nested
async def test_without_subgraphs_a_parent_streams_only_its_own(stream: Any, shape: Shape) -> None:
    """LangGraph's rule for every mode: only the graph being streamed emits, so a nested run gives no custom event."""
    assert await stream(shape, "custom", subgraphs=False) == []
    updates = await stream(shape, "updates", subgraphs=False)
    assert [list(part) for _, part in updates] == [["retrieve"], ["finish"]]


@nested
@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("mode", MODES)
async def test_no_private_key_reaches_the_parent(stream: Any, shape: Shape, mode: str, subgraphs: bool) -> None:
    """In no mode does a part of the parent's own namespace hold a private key of ours."""
    parts = await stream(shape, mode, subgraphs=subgraphs)
    own = [part for namespace, part in parts if not namespace]
    seen = {key for part in own for found in _dicts(part) for key in found}
    assert not seen & PRIVATE
    if mode in {"values", "tasks", "debug", "checkpoints"}:
        assert own


@nested
async def test_values_and_updates_hold_only_keys_of_the_parent(stream: Any, shape: Shape) -> None:
    """The parent's values are its own keys, and our node writes no other."""
    for _, values in await stream(shape, "values", subgraphs=False):
        assert set(values) <= shape.keys
    for _, update in await stream(shape, "updates", subgraphs=False):
        assert {key for written in update.values() for key in written} <= shape.keys


@nested
async def test_updates_of_the_subgraph_name_its_nodes_in_order(stream: Any, shape: Shape) -> None:
    """With subgraphs=True the run's nodes can be followed under the parent's node."""
    parts = await stream(shape, "updates", subgraphs=True)
    assert [name for namespace, part in parts if namespace for name in part if name in NODES] == NODES
    assert [name for namespace, part in parts if not namespace for name in part] == ["retrieve", "finish"]


@every_shape
@pytest.mark.parametrize("subgraphs", [False, True])
async def test_messages_mode_gives_nothing(stream: Any, shape: Shape, subgraphs: bool) -> None:
    """No model is called and no message is written, so there is nothing to stream."""
    assert await stream(shape, "messages", subgraphs=subgraphs) == []


@every_shape
async def test_tasks_debug_and_checkpoints_follow_the_steps(stream: Any, shape: Shape) -> None:
    """In our namespace every step's task is announced in order, and there is a checkpoint after each and two before."""

    async def ours(mode: str) -> list[dict[str, Any]]:
        parts = await stream(shape, mode, subgraphs=True)
        return [part for namespace, part in parts if bool(namespace) == shape.is_nested]

    tasks = [part["name"] for part in await ours("tasks") if "input" in part]
    debug = [part["payload"]["name"] for part in await ours("debug") if part["type"] == "task"]
    assert [name for name in tasks if name in NODES] == NODES
    assert [name for name in debug if name in NODES] == NODES
    assert len(await ours("checkpoints")) == len(NODES) + 2
