"""Whether one search makes another wait: one is held still at each of its lines in turn while the other runs.

A line of this package at which the other search does not come to its end is inside a lock that both take. What the
modules in `BRIEF` call is looked at, their own lines are not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from types import FrameType
from typing import Any

from worlds import QUERIES, World

import bounded_retrieval

PATIENCE_S = 2.0
# Modules with locks of a few lines around a dictionary, in which nothing is read, embedded or computed: not stopped in.
BRIEF = frozenset({"query_vectors.py", "_bm25_masks.py"})
_ROOT = str(Path(bounded_retrieval.__file__).parent)


def lines_that_hold_others(held: Callable[[], Any], other: Callable[[int], Any]) -> tuple[int, list[str]]:
    """How many lines ``held`` was stopped at, and those where ``other`` had to wait, as ``module.py:function``.

    Args:
        held: one search; run once in a thread of its own.
        other: another search, given a number that is new each time, so that it finds nothing kept.
    """
    keeper = _Keeper(other)
    with ThreadPoolExecutor(1) as others:
        keeper.others = others
        thread = threading.Thread(target=keeper.run, args=(held,))
        thread.start()
        thread.join()
    if keeper.error is not None:
        raise keeper.error
    return keeper.lines, sorted(set(keeper.holding))


class _Keeper:
    """Stops one thread at every line of this package, until another thread's search has ended or patience has."""

    others: ThreadPoolExecutor

    def __init__(self, other: Callable[[int], Any]) -> None:
        self._other = other
        self._pending: Future[Any] | None = None
        self.lines = 0
        self.holding: list[str] = []
        self.error: BaseException | None = None

    def run(self, held: Callable[[], Any]) -> None:
        sys.settrace(self._on_call)
        try:
            held()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            self.error = error
        finally:
            sys.settrace(None)

    def _on_call(self, frame: FrameType, _event: str, _given: Any) -> Any:
        file = frame.f_code.co_filename
        return self._on_line if file.startswith(_ROOT) and Path(file).name not in BRIEF else None

    def _on_line(self, frame: FrameType, event: str, _given: Any) -> Any:
        if event == "line":
            self.lines += 1
            if self._pending is None:
                self._pending = self.others.submit(self._other, self.lines)
            wait([self._pending], PATIENCE_S)
            if self._pending.done():
                self._pending.result()
                self._pending = None
            else:  # it goes on waiting while this thread goes to its next line
                self.holding.append(f"{Path(frame.f_code.co_filename).name}:{frame.f_code.co_name}")
        return self._on_line


def check_searches(world: World) -> dict[str, Any]:
    """Stop one search of each kind at every line while another of its kind runs, over an index."""
    lexical, dense, units = world.index.lexical, world.index.dense, world.index.units
    first, *rest = world.queries(QUERIES)
    ids = [candidate.unit_id for candidate in lexical.search(first, 3)]
    kinds: dict[str, Callable[[str], Any]] = {
        "lexical": lambda query: lexical.search(query, 3),
        "lexical, filtered": lambda query: lexical.search(query, 3, {"source": {"$ne": query}}),
        "dense": lambda query: dense.search(query, 3),
        "dense, score": lambda query: dense.score(query, ids),
        "units": lambda _query: units.fetch(ids),
    }
    report = {}
    for name, search in kinds.items():
        search(first)  # whatever is made at the first use is made
        lines, holding = lines_that_hold_others(
            lambda search=search: search(rest[0]), lambda number, search=search: search(rest[1 + number % 900])
        )
        report[name] = {"lines": lines, "others_wait_in": holding}
    return {"not_stopped_in": sorted(BRIEF), "searches": report}
