"""Everything that a run lets out, as text by place, with only that left out which differs between any two runs."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.base import BaseTracer
from langchain_core.tracers.context import collect_runs
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from worlds import QUERY, Caller, Case, World

from bounded_retrieval.errors import BoundedRetrievalError
from bounded_retrieval.integrations.langchain import CONTEXT_KEY, BoundedRetriever, create_retrieval_tool
from bounded_retrieval.nodes import charging

MODES = ["values", "updates", "checkpoints", "tasks", "debug", "messages", "custom"]

Seen = dict[str, str]
"""What was seen, by place."""

_VARIES = re.compile(
    r"\b(?:(?P<uuid>[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})"
    r"|(?P<address>0x[0-9a-f]{8,})"
    r"|(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,6}(?:[+]00:00)?)"
    r"|(?P<version>(?<=\d{32}\.)[0-9.e-]+))"
)


def normalised(value: Any) -> str:
    """A value as text, without ids of runs, tasks and checkpoints, addresses, times and the salt of versions."""
    return _VARIES.sub(lambda found: f"<{found.lastgroup}>", value if isinstance(value, str) else repr(value))


class Listener(BaseCallbackHandler):
    """Hears every event of every kind."""

    def __init__(self) -> None:
        self.heard: list[str] = []


def _hearing(name: str) -> Callable[..., None]:
    def hear(self: Listener, *args: Any, **kwargs: Any) -> None:
        self.heard.append(f"{name} {args!r} {kwargs!r}")

    return hear


for _name in [name for name in dir(BaseCallbackHandler) if name.startswith("on_")]:
    setattr(Listener, _name, _hearing(_name))


class Tracer(BaseTracer):
    """Keeps every finished tree of runs."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[str] = []

    def _persist_run(self, run: Any) -> None:
        self.kept.append(described(run))


def described(run: Any) -> str:
    """A run and those under it, with inputs and outputs."""
    own = (run.name, run.run_type, run.inputs, run.outputs, run.error, run.tags, run.extra)
    events = [{key: value for key, value in event.items() if key != "time"} for event in run.events or ()]
    return normalised(f"{own!r} {events!r} [{', '.join(described(child) for child in run.child_runs)}]")


class _Capture(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        # LangChain's store in memory says at every search that it has rows at all.
        if record.name == "langchain_core.vectorstores.utils":
            return
        trouble = "" if record.exc_info is None else repr(record.exc_info[1])
        self.lines.append(normalised(f"{record.name} {record.levelname} {record.getMessage()} {trouble}"))


@contextlib.contextmanager
def overhearing(seen: Seen) -> Iterator[None]:
    """Note log lines of every level, both output streams and warnings."""
    root, capture = logging.getLogger(), _Capture()
    level, handlers, out, err = root.level, root.handlers, io.StringIO(), io.StringIO()
    root.handlers = [capture]
    root.setLevel(logging.DEBUG)
    try:
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
            warnings.catch_warnings(record=True) as w,
        ):
            warnings.simplefilter("always")
            yield
    finally:
        root.setLevel(level)
        root.handlers = handlers
    seen["log"] = "\n".join(capture.lines)
    seen["stdout"], seen["stderr"] = normalised(out.getvalue()), normalised(err.getvalue())
    seen["warnings"] = normalised([str(each.message) for each in w])


@contextlib.contextmanager
def counted_tokens() -> Iterator[None]:
    """Number the tokens of charged calls instead of drawing them: they look like fingerprints, which must stay."""
    real, numbers = charging.secrets, itertools.count()
    charging.secrets = SimpleNamespace(token_hex=lambda _size: f"token-{next(numbers)}")
    try:
        yield
    finally:
        charging.secrets = real


def observe(make: Callable[[], World]) -> Seen:
    """Run one world in every manner and say what was seen where; each run has a world of its own."""
    seen: Seen = {}
    with counted_tokens(), overhearing(seen):
        for name, run in _MANNERS.items():
            world = make()
            if name in world.case.manners and world.case.way != "async":
                with _attended(name, world, seen) as config:
                    seen |= _placed(name, run(world, config))
        seen |= asyncio.run(_awaited(make))
    return seen


async def _awaited(make: Callable[[], World]) -> Seen:
    seen: Seen = {}
    for name, run in _AWAITED.items():
        world = make()
        if name in world.case.manners:
            with _attended(name, world, seen) as config:
                seen |= _placed(name, await run(world, config))
    return seen


@contextlib.contextmanager
def _attended(name: str, world: World, seen: Seen) -> Iterator[dict[str, Any]]:
    """Give a run its config, and note what its listeners heard and with which error it ended."""
    world.listeners = listener, tracer = Listener(), Tracer()
    configurable = {"thread_id": "one", CONTEXT_KEY: Caller()}
    with collect_runs() as collector:
        try:
            yield {"callbacks": [listener, tracer], "configurable": configurable}
        except (BoundedRetrievalError, GraphRecursionError) as error:
            seen[f"{name}: error"] = normalised((error, getattr(error, "packet", None), error.__cause__))
    seen[f"{name}: callbacks"] = normalised("\n".join(listener.heard))
    seen[f"{name}: tracer"] = "\n".join(tracer.kept)
    seen[f"{name}: collector"] = "\n".join(map(described, collector.traced_runs))


def _placed(name: str, said: Mapping[str, Any]) -> Seen:
    return {f"{name}: {place}": normalised(value) for place, value in said.items()}


def differing(first: Mapping[str, str], second: Mapping[str, str]) -> list[str]:
    """The places in which two observations differ."""
    return sorted(place for place in first.keys() | second.keys() if first.get(place) != second.get(place))


def differences(case: Case, chroma: Any = None) -> list[str]:
    """The places in which the caller could tell the two worlds of a case apart."""
    return differing(*(observe(partial(World, case, whole=whole, chroma=chroma)) for whole in (True, False)))


def statistics_show(case: Case) -> str:
    """In what the two worlds differ if lexical scores count all units: the first of these that does, or nothing."""
    shared = replace(case, statistics="corpus", way="pure")
    whole, other = (_invoke(World(shared, whole=whole), {}) for whole in (True, False))
    items, others = whole["packet"]["items"], other["packet"]["items"]
    ids, other_ids = ([item["unit_id"] for item in each] for each in (items, others))
    told_by = {
        "stop reason": whole["stop_reason"] != other["stop_reason"],
        "packet ids": set(ids) != set(other_ids),
        "packet order": ids != other_ids,
        "ranking": _ranking(whole) != _ranking(other),
        "scores": _returned(whole) != _returned(other),
    }
    return next((name for name, differs in told_by.items() if differs), "nothing")


def _ranking(result: Mapping[str, Any]) -> list[str]:
    return [each["unit_id"] for each in result["trace"]["events"][-1]["ranking"]]


def _returned(result: Mapping[str, Any]) -> list[Any]:
    return [event.get("returned") for event in result["trace"]["events"]]


def _given(world: World) -> dict[str, Any]:
    request = {"path": dict(world.case.path)} if world.case.path else {}
    return {"query": QUERY, "request": request}


def _invoke(world: World, config: Any) -> Mapping[str, Any]:
    return world.graph().compile().invoke(_given(world), config, context=Caller())


async def _ainvoke(world: World, config: Any) -> Mapping[str, Any]:
    return await world.graph().compile().ainvoke(_given(world), config, context=Caller())


def _stream(world: World, config: Any) -> Mapping[str, Any]:
    saver, chunks = InMemorySaver(), {mode: [] for mode in MODES}
    graph = world.graph().compile(checkpointer=saver)
    for mode, chunk in graph.stream(_given(world), config, context=Caller(), stream_mode=MODES):
        chunks[mode].append(chunk)
    return chunks | {"saved": saved(saver)}


async def _events(world: World, config: Any) -> Mapping[str, Any]:
    saver = InMemorySaver()
    graph = world.graph().compile(checkpointer=saver)
    events = graph.astream_events(_given(world), config, context=Caller(), version="v2")
    return {"all": [normalised(event) async for event in events], "saved": saved(saver)}


def saved(saver: InMemorySaver) -> list[Any]:
    """Every checkpoint with its values, its metadata and its pending writes."""
    return [
        (each.checkpoint, each.metadata, sorted(each.pending_writes or (), key=lambda write: repr(write[1:])))
        for each in saver.list({"configurable": {"thread_id": "one"}})
    ]


def _tool_of(world: World) -> tuple[Any, dict[str, Any]]:
    call = {"name": "bounded_retrieval", "args": {"query": QUERY}, "id": "call", "type": "tool_call"}
    return create_retrieval_tool(world.graph()), call


def _tool(world: World, config: Any) -> Mapping[str, Any]:
    tool, call = _tool_of(world)
    return dict(tool.invoke(call, config))


async def _atool(world: World, config: Any) -> Mapping[str, Any]:
    tool, call = _tool_of(world)
    return dict(await tool.ainvoke(call, config))


def _retriever(world: World, config: Any) -> Mapping[str, Any]:
    retriever = BoundedRetriever.from_graph(world.graph(), k=world.case.k)
    return {"documents": retriever.invoke(QUERY, config, context=Caller())}


async def _aretriever(world: World, config: Any) -> Mapping[str, Any]:
    retriever = BoundedRetriever.from_graph(world.graph(), k=world.case.k)
    return {"documents": await retriever.ainvoke(QUERY, config, context=Caller())}


_MANNERS = {"invoke": _invoke, "stream": _stream, "tool": _tool, "retriever": _retriever}
_AWAITED = {"ainvoke": _ainvoke, "events": _events, "atool": _atool, "aretriever": _aretriever}
