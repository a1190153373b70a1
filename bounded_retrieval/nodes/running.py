"""Run a node's one body synchronously and asynchronously.

A node is a generator: it yields each outside call it wants made and is sent the answer, or has the call's exception
thrown in. So a decision is written once, and only the line that makes the call differs between ``invoke`` and
``ainvoke``.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime, get_runtime

from bounded_retrieval.errors import AsyncOnlyError
from bounded_retrieval.graph.context import Parts
from bounded_retrieval.graph.state import BoundedState, Update


@dataclass(frozen=True, kw_only=True)
class Call:
    """One outside call.

    Attributes:
        name: what is called, for error messages.
        run: the synchronous call, or none; it may turn out to return an awaitable.
        arun: the asynchronous call, or none.
        is_pure: it does no I/O, so that it may run on the event loop.
    """

    name: str
    run: Callable[[], Any] | None
    arun: Callable[[], Any] | None = None
    is_pure: bool = False


Body = Generator[Call, Any, Update]
NodeFunction = Callable[[BoundedState, Runtime[Any], Parts], Body]


class Node(Runnable[BoundedState, Update]):
    """A graph node over one generator function, bound to its parts."""

    def __init__(self, function: NodeFunction, parts: Parts) -> None:
        self.name = function.__name__
        self._function = function
        self._parts = parts

    def invoke(self, input: BoundedState, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: ARG002
        """Run the node, making each call in this thread."""
        return drive(self._function(input, get_runtime(), self._parts))

    async def ainvoke(self, input: BoundedState, config: RunnableConfig | None = None, **_: Any) -> Update:  # noqa: ARG002
        """Run the node, awaiting asynchronous calls and moving blocking ones to a thread."""
        return await adrive(self._function(input, get_runtime(), self._parts))


def method_call(target: object, method: str, *args: Any, is_pure: bool = False) -> Call:
    """Describe calling ``target.method(*args)``, or ``target.amethod(*args)`` where it exists."""
    run = getattr(target, method, None)
    arun = getattr(target, f"a{method}", None)
    if run is not None and inspect.iscoroutinefunction(run):
        run, arun = None, arun or run
    return Call(
        name=f"{type(target).__name__}.{method}",
        run=None if run is None else lambda: run(*args),
        arun=None if arun is None else lambda: arun(*args),
        is_pure=is_pure,
    )


def can_fetch(source: object) -> bool:
    """Whether an object gives the current text of units, in either manner."""
    return hasattr(source, "fetch") or hasattr(source, "afetch")


def drive(body: Body) -> Update:
    """Run a body to its end, making each call synchronously.

    Raises:
        AsyncOnlyError: a call can only be awaited.
    """
    try:
        call = next(body)
        while True:
            try:
                answer = _run(call)
            except (GraphBubbleUp, AsyncOnlyError):
                raise
            except Exception as error:  # noqa: BLE001 - the node decides what a failed call means
                call = body.throw(error)
            else:
                call = body.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        body.close()


async def adrive(body: Body) -> Update:
    """Run a body to its end on the event loop. Cancellation passes through untouched."""
    try:
        call = next(body)
        while True:
            try:
                answer = await _arun(call)
            except GraphBubbleUp:
                raise
            except Exception as error:  # noqa: BLE001 - the node decides what a failed call means
                call = body.throw(error)
            else:
                call = body.send(answer)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    finally:
        body.close()


def _run(call: Call) -> Any:
    if call.run is None:
        raise AsyncOnlyError(f"{call.name}: only works asynchronously; use ainvoke, or give it a synchronous method")
    answer = call.run()
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise AsyncOnlyError(f"{call.name}: returned an awaitable under invoke; use ainvoke")
    return answer


async def _arun(call: Call) -> Any:
    if call.arun is not None:
        return await call.arun()
    if call.run is None:
        raise AsyncOnlyError(f"{call.name}: has neither a synchronous nor an asynchronous method")
    answer = call.run() if call.is_pure else await asyncio.to_thread(_without_stop_iteration, call.run)
    return await answer if inspect.isawaitable(answer) else answer


def _without_stop_iteration(run: Callable[[], Any]) -> Any:
    # A future cannot carry a StopIteration: whoever awaits it would wait for ever.
    try:
        return run()
    except StopIteration as error:
        raise RuntimeError("the call raised StopIteration") from error
