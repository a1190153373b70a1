"""Calls that may hang: made in a thread of their own, waited for so long and no longer.

Nothing can stop a thread, so one that hangs is left behind; how many may be left behind before no more are started is
bounded.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from threading import Lock, Thread
from typing import Any

MAX_HANGING = 64
"""Calls of one graph that were given up and still hang; with so many of them, further ones count as hanging at once."""


class _Hanging:
    """How many calls of one graph were given up and still hang."""

    def __init__(self) -> None:
        self.calls = 0
        self._lock = Lock()

    def add(self, calls: int) -> None:
        """Count some more, or fewer."""
        with self._lock:
            self.calls += calls


class TimeLimit:
    """Makes calls that may take ``seconds`` each. One for each graph; it holds no request's state."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left_behind = _Hanging()

    def lasting(self, seconds: float) -> TimeLimit:
        """Another limit for calls of the same graph: those that hang count together."""
        limit = TimeLimit(seconds)
        limit._left_behind = self._left_behind
        return limit

    @property
    def _hanging(self) -> int:
        return self._left_behind.calls

    def run(self, function: Callable[[], Any]) -> Any:
        """Call a function and wait for its answer.

        Raises:
            TimeoutError: it took too long, or too many earlier calls still hang.
        """
        future = self._start(function)
        try:
            return future.result(self.seconds)
        except TimeoutError:
            if future.done():
                raise  # the function's own
            raise self._leave(future) from None

    async def arun(self, function: Callable[[], Any]) -> Any:
        """Like `run`, without blocking the event loop."""
        future = self._start(function)
        waiting = asyncio.wrap_future(future)
        waiting.add_done_callback(_take_note)
        try:
            await asyncio.wait({waiting}, timeout=self.seconds)
        except asyncio.CancelledError:
            if not future.done():
                self._leave(future)
            raise
        # What was answered in time counts, even where a busy event loop comes to look at it late.
        if not future.done():
            raise self._leave(future)
        return future.result()

    async def wait_for(self, answer: Awaitable[Any]) -> Any:
        """Await an answer; it is cancelled when it takes too long."""
        task = asyncio.ensure_future(answer)
        try:
            await asyncio.wait({task}, timeout=self.seconds)
        finally:
            if not task.done():
                task.cancel()
                task.add_done_callback(_take_note)
        if not task.done():
            raise self._too_long()
        return task.result()

    def _start(self, function: Callable[[], Any]) -> Future[Any]:
        if self._hanging >= MAX_HANGING:
            raise TimeoutError(f"not called: {MAX_HANGING} earlier calls still hang")
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                future.set_result(context.run(function))
            except BaseException as error:  # noqa: BLE001 - whoever waits is told
                future.set_exception(error)

        # A daemon, so that one that hangs does not keep the process from ending.
        Thread(target=work, name="bounded-retrieval-call", daemon=True).start()
        return future

    def _leave(self, future: Future[Any]) -> TimeoutError:
        self._left_behind.add(1)
        future.add_done_callback(lambda _: self._left_behind.add(-1))
        return self._too_long()

    def _too_long(self) -> TimeoutError:
        return TimeoutError(f"took longer than {self.seconds * 1000:.0f} ms")


def _take_note(done: asyncio.Future[Any]) -> None:
    # asyncio complains of exceptions that nobody looked at.
    if not done.cancelled():
        done.exception()
