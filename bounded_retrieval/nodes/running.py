"""Run a node's one body synchronously and asynchronously.

A node is a generator: it yields each outside call it wants made and is sent the answer, or has the call's exception
thrown in. So a decision is written once, and only the line that makes the call differs between ``invoke`` and
``ainvoke``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph import errors as langgraph_errors
from langgraph.runtime import Runtime, get_runtime

from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.time_left import time_left
from bounded_retrieval.errors import AsyncOnlyError, ForkedError
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState, Update
from bounded_retrieval.nodes.detached import untraced
from bounded_retrieval.nodes.time_limits import TimeLimit
from bounded_retrieval.policies.settings import clamp

# LangGraph makes an error of its own (where it has it) of a CancelledError that a node of an inner graph raises.
_CANCELLED: type[Exception] = getattr(langgraph_errors, "NodeCancelledError", langgraph_errors.GraphBubbleUp)
_PASSING = (langgraph_errors.GraphBubbleUp, _CANCELLED, ForkedError)
"""Errors of a call that no node may take for a failed one."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One outside call.

    Attributes:
        name: what is called, for error messages.
        run: the synchronous call, or none; it may turn out to return an awaitable.
        arun: the asynchronous call, or none.
        is_pure: it does no I/O, so that it may run on the event loop.
        limit: how long it may take; a pure call needs none.
        detached: it runs without the callbacks and tracers of the run, so that what it finds is emitted to nobody.
        is_optional: the run can do without it, so one that can only be awaited is a failed call under ``invoke``.
    """

    name: str
    run: Callable[[], Any] | None
    arun: Callable[[], Any] | None = None
    is_pure: bool = False
    limit: TimeLimit | None = None
    detached: bool = False
    is_optional: bool = False


Body = Generator[Call, Any, Update]
NodeFunction = Callable[[Any, Runtime[Any], Any], Body]


class Node(Runnable[Any, Update]):
    """A graph node over one generator function, bound to its parts."""

    def __init__(self, function: NodeFunction, parts: Any) -> None:
        self.name = function.__name__
        self._function = function
        self._parts = parts

    def invoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: ARG002
        """Run the node, making each call in this thread."""
        with time_left(_seconds_left(input)):
            return drive(self._function(input, get_runtime(), self._parts))

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: ARG002
        """Run the node, awaiting asynchronous calls and moving blocking ones to a thread."""
        with time_left(_seconds_left(input)):
            return await adrive(self._function(input, get_runtime(), self._parts))


def method_call(target: object, method: str, *args: Any, **options: Any) -> Call:
    """Describe calling ``target.method(*args)``, or ``target.amethod(*args)`` where it exists.

    ``options`` are the last four attributes of `Call`.
    """
    run = getattr(target, method, None)
    arun = getattr(target, f"a{method}", None)
    if run is not None and inspect.iscoroutinefunction(run):
        run, arun = None, arun or run
    return Call(
        name=f"{type(target).__name__}.{method}",
        run=None if run is None else lambda: run(*args),
        arun=None if arun is None else lambda: arun(*args),
        **options,
    )


def function_call(function: Callable[..., Any], name: str, *args: Any, **options: Any) -> Call:
    """Describe calling ``function(*args)``, which may be asynchronous; ``options`` as for `method_call`."""
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
    call = partial(function, *args)
    return Call(name=name, run=None if is_async else call, arun=call if is_async else None, **options)


def part_call(part: object, method: str, *args: Any, **options: Any) -> Call:
    """Describe calling an object by one of its methods where it has it, and as a function otherwise."""
    if has_method(part, method):
        return method_call(part, method, *args, **options)
    return function_call(part, method, *args, **options)  # type: ignore[arg-type]


def settings_of(state: BoundedState, parts: Parts) -> RunSettings:
    """The run's settings, never above the builder's limits."""
    return clamp(RunSettings.model_validate(state["settings"]), parts.defaults)


def _seconds_left(state: Any) -> float | None:
    """What a node's calls have of the run's deadline; none where it has none, or before the settings are known."""
    limits = state.get("settings", {}).get("limits", {})
    deadline_ms = limits.get("deadline_ms")
    return None if deadline_ms is None else max(0.0, deadline_ms - state.get("elapsed_ms", 0.0)) / 1000


def can_fetch(source: object) -> bool:
    """Whether an object gives the current text of units, in either manner."""
    return has_method(source, "fetch")


def has_method(part: object, name: str) -> bool:
    """Whether a part has a method, in either manner: under its name, or under that name with an ``a`` before it."""
    return getattr(part, name, None) is not None or getattr(part, f"a{name}", None) is not None


def drive(body: Body) -> Update:
    """Run a body to its end, making each call synchronously.

    Raises:
        AsyncOnlyError: a call can only be awaited.
        ForkedError: a part was opened before this process was forked.
    """
    try:
        call = next(body)
        while True:
            error: Exception | None = None
            try:
                with _surroundings(call):
                    answer = _run(call)
            except _PASSING:
                raise
            except AsyncOnlyError as caught:
                if not call.is_optional:
                    raise
                error = caught
            except Exception as caught:  # noqa: BLE001 - the node decides what a failed call means
                error = caught
            # Not inside the handler: what the node raises later would carry this error, and its text, as its context.
            call = body.send(answer) if error is None else body.throw(error)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        body.close()


async def adrive(body: Body) -> Update:
    """Run a body to its end on the event loop. Cancellation passes through untouched.

    Raises:
        ForkedError: a part was opened before this process was forked.
    """
    try:
        call = next(body)
        while True:
            error: Exception | None = None
            try:
                with _surroundings(call):
                    answer = await _arun(call)
            except _PASSING:
                raise
            except Exception as caught:  # noqa: BLE001 - the node decides what a failed call means
                error = caught
            call = body.send(answer) if error is None else body.throw(error)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        body.close()


def _surroundings(call: Call) -> AbstractContextManager[None]:
    return untraced() if call.detached else nullcontext()


def _run(call: Call) -> Any:
    if call.run is None:
        raise AsyncOnlyError(f"{call.name}: only works asynchronously; use ainvoke, or give it a synchronous method")
    limit = None if call.is_pure else call.limit
    answer = call.run() if limit is None else limit.run(without_stop_iteration(call.run))
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise AsyncOnlyError(f"{call.name}: returned an awaitable under invoke; use ainvoke")
    return answer


async def _arun(call: Call) -> Any:
    if call.arun is not None:
        answer = call.arun()
    elif call.run is None:
        raise AsyncOnlyError(f"{call.name}: has neither a synchronous nor an asynchronous method")
    else:
        answer = await _in_a_thread(call, call.run)
    if not inspect.isawaitable(answer):
        return answer
    return await answer if call.limit is None else await call.limit.wait_for(answer)


async def _in_a_thread(call: Call, run: Callable[[], Any]) -> Any:
    if call.is_pure:
        return run()
    if call.limit is not None:
        return await call.limit.arun(without_stop_iteration(run))
    return await asyncio.to_thread(without_stop_iteration(run))


def without_stop_iteration(run: Callable[[], Any]) -> Callable[[], Any]:
    """The same call, except that a StopIteration becomes a RuntimeError."""

    # A future cannot carry a StopIteration: whoever awaits it would wait for ever.
    def guarded() -> Any:
        try:
            return run()
        except StopIteration as error:
            raise RuntimeError("the call raised StopIteration") from error

    return guarded
