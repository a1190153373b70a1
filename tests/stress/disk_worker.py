"""Builds an index on a disk that fills up, and says of each build what came of it and of the index that was there.

Its argument is a folder to work in. Jobs and results are JSON, one a line: ``room``, bytes of a file system of its own beside
those that the old index takes, ``limit``, bytes that no file may exceed, or ``operation``, the number of the one that fails. With
``first`` there is no old index, ``dense`` is the kind of index; with ``bug`` the build does not clean up.
"""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

# Chroma's parts are imported on first use, which no forked process should have to wait for.
import bm25s  # noqa: F401
import chromadb.api.models.Collection
import chromadb.api.rust
import chromadb.telemetry.product.posthog  # noqa: F401
import hostile_index as index
from hostile_forks import HANG_S, in_a_child
from langchain_core.documents import Document

from bounded_retrieval.errors import BoundedRetrievalError
from bounded_retrieval.retrievers import _store_files
from bounded_retrieval.retrievers.store import build_index

ENOUGH = 64 * 2**20
LEFT = ["generations", "index.lock", "manifest.json", "vectors.partial"]
"""What a build that ran out of room may leave: the old index, and the vectors that it made, which the next one takes."""


def newer() -> list[Document]:
    """The units of the next build: more of them, two thirds with another text."""
    return [
        Document(
            id=unit.id,
            page_content=f"{unit.page_content} {'It was looked at again. ' * 8 if number % 3 else ''}",
            metadata=unit.metadata,
        )
        for number, unit in enumerate(index.corpus(3 * index.SIZES["few"]))
    ]


def fail_at(root: Path, number: int) -> None:
    """Let the n-th making, opening for writing, renaming or syncing of something below a folder find no room."""
    left = [number]

    def count(path: object) -> None:
        if str(root) in str(path):
            left[0] -= 1
            if left[0] == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def audit(event: str, args: tuple[Any, ...]) -> None:
        is_writing = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
        if is_writing or event in ("os.mkdir", "os.rename"):
            count(args[0])

    sync = os.fsync

    def fsync(descriptor: int) -> None:
        count(Path(f"/proc/self/fd/{descriptor}").resolve())
        sync(descriptor)

    os.fsync = fsync
    sys.addaudithook(audit)


def build_newer(root: Path, job: dict[str, Any]) -> dict[str, str]:
    """Build; what went wrong, if something did."""
    if "bug" in job:
        _store_files.shutil.rmtree = lambda *_, **__: None
    if "limit" in job:
        resource.setrlimit(resource.RLIMIT_FSIZE, (job["limit"], job["limit"]))
    if "operation" in job:
        fail_at(root, job["operation"])
    try:
        build_index(
            newer(),
            root,
            embedding=index.HashEmbeddings(),
            relationships=index.links(),
            dense=job.get("dense", "exact"),
        )
    except BoundedRetrievalError as error:
        return {"error": str(error), "type": type(error).__name__}
    return {"error": ""}


class Disks:
    """An index to be built over, and what it answers.

    Args:
        folder: to work in.
    """

    def __init__(self, folder: Path) -> None:
        self._errors, self._mount, self._template = folder / "stderr", folder / "disk", folder / "old"
        self._mount.mkdir()
        self._child(partial(index.build, self._template, "few"))
        self.used = sum(-(-path.stat().st_size // 4096) * 4096 + 4096 for path in self._template.rglob("*"))
        self._good = self._child(partial(index.ask, index.copy_of(self._template, folder / "asked")))

    def _child(self, work: Callable[[], Any]) -> Any:
        ended = in_a_child(work, self._errors, HANG_S)
        if ended.why:
            raise RuntimeError(f"{ended.why}: {self._errors.read_text()[-1_000:]}")
        return ended.value

    def work(self, job: dict[str, Any]) -> dict[str, Any]:
        """Build on a disk with so much room, and look at what is there then; ``wrong`` lists what should not be."""
        is_first = "first" in job
        with self._disk(job.get("room"), beside=0 if is_first else self.used) as disk:
            root = disk / "index"
            if is_first:
                shutil.rmtree(root, ignore_errors=True)
            else:
                index.copy_of(self._template, root)
            try:
                told = self._child(partial(build_newer, root, job))
                wrong = (
                    self._after_failure(root, told["error"], is_first=is_first) if told["error"] else self._whole(root)
                )
            except RuntimeError as error:
                return {"error": "", "wrong": [str(error)]}
            return {**told, "wrong": wrong}

    def _after_failure(self, root: Path, error: str, *, is_first: bool) -> list[str]:
        wrong = [index.complaint(error, root), *([] if is_first else self._old_is_not_intact(root))]
        left = sorted(path.relative_to(root).as_posix() for path in root.glob("generations/*"))
        wrong += [f"left: {left}"] * (left != ([] if is_first else ["generations/000001"]))
        names = sorted(path.name for path in root.glob("*"))
        wrong += [f"left: {names}"] * (not set(names) <= set(LEFT))
        self._resize(root.parent, ENOUGH)
        again = self._child(partial(build_newer, root, {}))
        left = sorted(path.name for path in root.glob("*.partial"))
        return [each for each in [*wrong, again["error"], *left, *self._whole(root)] if each]

    def _old_is_not_intact(self, root: Path) -> list[str]:
        asked = self._child(partial(index.ask, root))
        wrong = [f"the old index: {asked.get('error', 'other answers')}"] * (asked != self._good)
        with self._filled(root.parent):
            asked = self._child(partial(index.ask, root))
        return [*wrong, *[f"on a full disk: {asked.get('error', 'other answers')}"] * (asked != self._good)]

    def _whole(self, root: Path) -> list[str]:
        asked, told = self._child(partial(index.ask, root)), self._child(partial(index.verified, root))
        units = len(asked["answers"][-2]) if "answers" in asked else 0
        return [*([told] if told else []), *([] if units == len(newer()) else [f"{units} units: {asked.get('error')}"])]

    @contextmanager
    def _disk(self, room: int | None, *, beside: int) -> Iterator[Path]:
        if room is None:
            yield self._mount
            return
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={beside + room}", "tmpfs", self._mount], check=True)
        try:
            yield self._mount
        finally:
            subprocess.run(["umount", self._mount], check=True)

    def _resize(self, disk: Path, size: int) -> None:
        if os.path.ismount(disk):
            subprocess.run(["mount", "-o", f"remount,size={size}", disk], check=True)

    @contextmanager
    def _filled(self, disk: Path) -> Iterator[None]:
        """Nothing more can be written for a while, if it is a file system of its own."""
        filler = disk / "filler"
        if os.path.ismount(disk):
            descriptor = os.open(filler, os.O_CREAT | os.O_WRONLY)
            try:
                while True:
                    os.write(descriptor, bytes(4096))
            except OSError:
                os.close(descriptor)
        yield
        filler.unlink(missing_ok=True)


def can_mount(folder: Path) -> bool:
    """Whether this process may make file systems."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    place = folder / "try"
    place.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", place], capture_output=True, check=False)
    if done.returncode == 0:
        subprocess.run(["umount", place], check=True)
    return done.returncode == 0


if __name__ == "__main__":
    disks = Disks(Path(sys.argv[1]))
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps({**job, **disks.work(job)}), flush=True)
