"""What threads and forked processes may share: values made once in each process, and readers beside a writer.

A fork copies memory and no threads. What works through threads of its own (Chroma, onnxruntime) therefore hangs in the
child when it is called, closed or even destroyed there.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Condition, Lock
from typing import Generic, TypeVar

from bounded_retrieval.errors import ForkedError, StoreError

Value = TypeVar("Value")


class PerProcess(Generic[Value]):
    """A value that each process makes when it first asks for it; its threads wait for the one that makes it.

    A forked child makes its own, and neither uses nor destroys its parent's.

    Args:
        make: called once in each process, and again where it raised.
    """

    def __init__(self, make: Callable[[], Value]) -> None:
        self._make = make
        # The lock is the process's own too: a fork may happen while another thread holds it.
        self._locks: dict[int, Lock] = {}
        self._made: dict[int, Value] = {}
        weakref.finalize(self, _keep_inherited, self._made)

    def get(self) -> Value:
        """This process's value."""
        process = os.getpid()
        if process not in self._made:
            with self._locks.setdefault(process, Lock()):
                if process not in self._made:
                    self._made[process] = self._make()
        return self._made[process]

    def made(self) -> Value | None:
        """This process's value, if it has made one."""
        return self._made.get(os.getpid())


class OwnProcess:
    """The process that something is made in, and the only one that may use it.

    Args:
        name: what is made, for the error's message.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._process = os.getpid()

    def is_own(self) -> bool:
        """Whether this is that process."""
        return os.getpid() == self._process

    def check(self) -> None:
        """Refuse a process that was forked from that one.

        Raises:
            ForkedError: says what to do instead.
        """
        if os.getpid() != self._process:
            raise ForkedError(
                f"{self._name}: in use before process {os.getpid()} was forked from process {self._process}; fork "
                "before any index is opened, or start processes by spawn or forkserver"
            )

    def closing(self, opened: ExitStack) -> Callable[[], None]:
        """What closes a stack, and in a forked child leaves all that it holds alone, up to the child's very end."""

        def close() -> None:
            if os.getpid() == self._process:
                opened.close()
            else:
                _never_destroy(opened)

        return close


def _keep_inherited(made: Mapping[int, object]) -> None:
    for process, value in made.items():
        if process != os.getpid():
            _never_destroy(value)


def _never_destroy(value: object) -> None:
    # Its destructor would wait for threads that a forked child does not have, also at the end of the interpreter.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(value))


class ReadersAndWriter:
    """A lock that any number of readers share, or one writer has; a writer that waits goes before new readers."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._readers = 0
        self._waiting = 0
        self._writing = False

    @contextmanager
    def reading(self, seconds: float | None = None) -> Iterator[None]:
        """Keep writers out; not to be entered again inside.

        Args:
            seconds: how long to wait for writers; none means for as long as they take.

        Raises:
            StoreError: they took longer.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: not self._writing and not self._waiting, seconds):
                raise StoreError(
                    f"dense searcher: no answer within {(seconds or 0) * 1000:.0f} ms, a change is under way"
                )
            self._readers += 1
        try:
            yield
        finally:
            with self._changed:
                self._readers -= 1
                self._changed.notify_all()

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep everybody else out; not to be entered inside `reading` or itself."""
        with self._changed:
            self._waiting += 1
            try:
                self._changed.wait_for(lambda: not self._writing and not self._readers)
            finally:
                self._waiting -= 1
                self._changed.notify_all()  # readers, should the wait have been broken off
            self._writing = True
        try:
            yield
        finally:
            with self._changed:
                self._writing = False
                self._changed.notify_all()
