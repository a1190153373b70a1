"""Damages copies of an index and says of each what came of it.

Its argument is a folder to work in. Jobs and results are JSON, one a line: ``random`` and a number, or ``handmade`` and a
name; with a ``bug`` one of the checks of this project is out of action for that job.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

# Chroma's parts are imported on first use, which no forked process should have to wait for.
import bm25s  # noqa: F401
import chromadb.api.models.Collection
import chromadb.api.rust
import chromadb.telemetry.product.posthog  # noqa: F401
import hostile_index as index
from hostile_forks import HANG_S, Ended, in_a_child
from hostile_handmade import HANDMADE

from bounded_retrieval.retrievers import _bm25_backends, _regular_files, _store_manifest, store

SEED = 51_966
MOST_RSS_ABOVE = 200 * 2**20
"""A case may take so much more memory than asking an undamaged index does."""

BUG_HANG_S = 4.0
VIOLATION = "violation"

Bug = Callable[[], None]


class Cases:
    """Templates, and what asking them undamaged comes to.

    Args:
        folder: to work in.
    """

    def __init__(self, folder: Path) -> None:
        self._errors = folder / "stderr"
        self._root = folder / "damaged"
        self._templates, self._good, self._rss = {}, {}, 0
        for size in index.SIZES:
            self._templates[size] = folder / size
            if not self._templates[size].exists():
                self._child(partial(index.build, self._templates[size], size))
            copy = index.copy_of(self._templates[size], self._root)
            ended = self._child(partial(index.ask, copy))
            self._good[size], self._rss = ended.value["answers"], max(self._rss, ended.rss)

    def _child(self, work: Callable[[], Any]) -> Ended:
        ended = in_a_child(work, self._errors, HANG_S)
        assert not ended.why, (ended.why, self._errors.read_text()[-2_000:])
        return ended

    def random(self, number: int, bug: Bug) -> dict[str, Any]:
        """Damage one file in one way, before the index is opened or while it is open."""
        rng = random.Random(f"{SEED} {number}")
        size = rng.choice(list(index.SIZES))
        copy = index.copy_of(self._templates[size], self._root)
        path = rng.choice(index.files_of(copy))
        while_open = rng.random() < 0.25
        kind = rng.choice(list(index.WHILE_OPEN if while_open else index.ANYWHERE))
        name = path.name if path.parent.parent.name != "chroma" else f"graph/{path.name}"
        what = {"size": size, "file": name, "kind": kind, "while_open": while_open}
        return {**what, **self._judged(size, partial(index.ANYWHERE[kind], path, rng), bug, while_open=while_open)}

    def handmade(self, name: str, bug: Bug) -> dict[str, Any]:
        """Do one of the damages that were thought out."""
        case = HANDMADE[name]
        copy = index.copy_of(self._templates[case.size], self._root)
        return self._judged(case.size, partial(case.damage, copy), bug)

    def keep(self, job: dict[str, Any]) -> str:
        """Put the damaged index aside, to be looked at; where it is then."""
        kept = self._root.with_name(f"violation {' '.join(map(str, job.values()))}")
        self._root.rename(kept)
        return str(kept)

    def _judged(self, size: str, damage: Callable[[], Any], bug: Bug, *, while_open: bool = False) -> dict[str, Any]:
        if not while_open:
            damage()

        def ask() -> dict[str, Any]:
            bug()
            return index.ask(self._root, damage if while_open else lambda: None)

        ended = in_a_child(ask, self._errors, BUG_HANG_S if bug is _waiting else HANG_S)
        if ended.why:
            return {"outcome": VIOLATION, "detail": ended.why, "stderr": self._errors.read_text()[-1_500:]}
        if ended.rss > self._rss + MOST_RSS_ABOVE:
            return {"outcome": VIOLATION, "detail": f"{ended.rss // 2**20} MB in memory"}
        if "error" in ended.value:
            wrong, error = index.complaint(ended.value["error"], self._root), ended.value["error"]
            outcome = VIOLATION if wrong else f"refused when {ended.value['step']}"
            return {"outcome": outcome, "detail": f"{wrong}: {error}" if wrong else error}
        return self._verified(bug, is_same=ended.value["answers"] == self._good[size])

    def _verified(self, bug: Bug, *, is_same: bool) -> dict[str, Any]:
        """What verifying says of an index that answered."""

        def verify() -> str:
            bug()
            return index.verified(self._root)

        ended = in_a_child(verify, self._errors, HANG_S)
        if ended.why:
            return {"outcome": VIOLATION, "detail": f"verify: {ended.why}"}
        wrong = ended.value and index.complaint(ended.value, self._root)
        if wrong or not (is_same or ended.value):
            return {"outcome": VIOLATION, "detail": f"other answers: {not is_same}; verify: {wrong or 'passes'}"}
        return {"outcome": "same answers" if is_same else "found by verify", "detail": ended.value}


def _none() -> None:
    """No bug."""


def _blind() -> None:
    """Verifying compares nothing."""
    store.verified_folder = lambda *_: None


def _raw() -> None:
    """JSON is read without an eye to what it may be."""
    _store_manifest.read_json = lambda path, _: json.loads(path.read_bytes())


def _unchecked() -> None:
    """Postings are used as they are."""
    _bm25_backends._PostingsCheck.__call__ = lambda *_: None


def _waiting() -> None:
    """What is no file is opened all the same."""
    _regular_files.regular_size = lambda _: 1_000
    _regular_files._FLAGS = os.O_RDONLY


def _greedy() -> None:
    """Reading takes memory by what a file says of itself."""
    _store_manifest.read_json = lambda path, _: [b"x" * (2 * MOST_RSS_ABOVE), json.loads(path.read_bytes())][1]


def _aborting() -> None:
    """A native part ends the process."""
    _store_manifest.read_json = lambda *_: os.abort()


BUGS: dict[str, Bug] = {
    "": _none,
    "blind": _blind,
    "raw": _raw,
    "unchecked": _unchecked,
    "waiting": _waiting,
    "greedy": _greedy,
    "aborting": _aborting,
}


def main(folder: Path) -> None:
    """Work jobs from standard input until it ends."""
    cases = Cases(folder)
    # Spares the forked processes copies of all that their garbage collector would otherwise touch.
    gc.freeze()
    for line in sys.stdin:
        job = json.loads(line)
        work = cases.handmade if "handmade" in job else cases.random
        result = work(job.get("handmade", job.get("random")), BUGS[job.get("bug", "")])
        if result["outcome"] == VIOLATION and "bug" not in job:
            result["kept"] = cases.keep(job)
        print(json.dumps({**job, **result}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
