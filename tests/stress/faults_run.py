"""Make one run of a case: in its way, with its cancellation, leaving no thread behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from faults_world import PATIENCE_S, World

MODES = ["custom", "updates"]
OUTPUT = ("packet", "documents", "stop_reason", "trace", "resolved", "unresolved", "trail", "chain")


@dataclass
class Outcome:
    """What a run let out.

    Attributes:
        inner: outputs of the runs inside it.
        steps: its supersteps, where it streamed.
    """

    result: dict[str, Any] = field(default_factory=dict)
    inner: list[dict[str, Any]] = field(default_factory=list)
    stream: list[Any] = field(default_factory=list)
    steps: int | None = None
    error: BaseException | None = None


class Loops:
    """One event loop for all asynchronous runs, and one of its own for each run that may break its loop."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()

    def run(self, body: Coroutine[Any, Any, Any], *, apart: bool) -> Any:
        """Run a coroutine to its end."""
        if not apart:
            return self._runner.run(body)
        with asyncio.Runner() as runner:
            return runner.run(body)

    def close(self) -> None:
        """Close the shared loop and its threads."""
        self._runner.close()


def run_case(world: World, graph: Any, given: dict[str, Any], loops: Loops) -> Outcome:
    """Run a compiled graph over a world."""
    case, outcome = world.case, Outcome()
    config = {"recursion_limit": case.recursion_limit}
    try:
        if case.way == "sync":
            _run(graph, given, config, outcome, streams=case.streams)
        else:
            breaks = any(fault.cell.kind == "escapes" for fault in case.faults)
            loops.run(_arun(world, graph, given, config, outcome), apart=breaks)
    except BaseException as error:  # what a part raised may be anything, and is looked at
        if isinstance(error, (KeyboardInterrupt, SystemExit)) and error is not world.escaped:
            raise  # of whoever runs the tests
        outcome.error = error
    finally:
        world.release.set()
    if case.waits:
        _join_threads()
    return outcome


def _run(graph: Any, given: Any, config: Any, outcome: Outcome, *, streams: bool) -> None:
    if not streams:
        outcome.result = graph.invoke(given, config)
        return
    outcome.steps = 0
    for place, mode, chunk in graph.stream(given, config, stream_mode=MODES, subgraphs=True):
        _note(outcome, place, mode, chunk)


async def _arun(world: World, graph: Any, given: Any, config: Any, outcome: Outcome) -> None:
    if world.case.cancels:
        outcome.result = await _cancelled_run(world, graph, given, config)
    elif not world.case.streams:
        outcome.result = await graph.ainvoke(given, config)
    else:
        outcome.steps = 0
        async for place, mode, chunk in graph.astream(given, config, stream_mode=MODES, subgraphs=True):
            _note(outcome, place, mode, chunk)


async def _cancelled_run(world: World, graph: Any, given: Any, config: Any) -> Any:
    task = asyncio.create_task(graph.ainvoke(given, config))
    while not (world.entered.is_set() or task.done()):  # noqa: ASYNC110 - a thread sets it
        await asyncio.sleep(0.0005)
    if world.entered.is_set():
        task.cancel()
    try:
        return await task
    finally:
        world.release.set()


def _note(outcome: Outcome, place: Any, mode: str, chunk: Any) -> None:
    outcome.stream.append(chunk)
    for node, values in chunk.items() if mode == "updates" else ():
        if not place:
            outcome.steps = (outcome.steps or 0) + 1
            outcome.result |= {key: value for key, value in (values or {}).items() if key in OUTPUT}
        elif node == "recheck_and_pack":
            outcome.inner.append(values)


def _join_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "bounded-retrieval-call":
            thread.join(PATIENCE_S)
