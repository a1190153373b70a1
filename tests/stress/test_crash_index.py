from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import crash_indexing
from crash_forks import ForkServer, read_log
from scale import is_full, scaled

from bounded_retrieval.errors import SourceError
from bounded_retrieval.retrievers.store import build_index

SEED = 20_262
MOST_GENERATIONS = 3
"""On disk whatever happened: the one that counts, the one that it replaced, and one that a killed build left."""

MOST_MISSED = 6
"""Of sixty neighbours that the dense searches of one opening find. Mostly none is missed, once in some hundreds a unit is."""

MISSING = {"error": "StoreMissingError"}


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Forks the processes that build and ask."""
    with ForkServer(Path(crash_indexing.__file__)) as started:
        yield started


class Builder:
    """Builds two versions of a corpus over each other in one directory, kills builds, and asks the index after each.

    Attributes:
        tally: kills by where they fell (``before``, ``in`` or ``after`` the switch), and those during Chroma's writing.
        broken: what went wrong, with the kill after which it did.
    """

    def __init__(self, server: ForkServer, folder: Path, units: int, dense: str) -> None:
        self.tally: Counter[str] = Counter()
        self.broken: list[str] = []
        self._server = server
        self._units = units
        self._dense = dense
        self._folder = folder
        self._root = folder / "index"
        self._log = folder / "index.log"
        self._version: str | None = None
        self._expected: dict[str | None, Any] = {None: MISSING}
        for version in ("old", "new"):
            elsewhere = folder / version
            self._server.run(self._job("build", root=str(elsewhere), version=version))
            self._expected[version] = self._answers(elsewhere)
        assert not _is_same(self._expected["old"], self._expected["new"])

    def begin(self) -> None:
        """Build the old version over the new one, and see how long a build takes and what it consists of."""
        # The third build is the first to delete a generation.
        for version in ("old", "new", "old"):
            self._log.unlink(missing_ok=True)
            outcome = self._server.run(self._job("build", version=version))
        events = read_log(self._log)
        self._version = "old"
        self._seconds = outcome["seconds"]
        self._writes = sum(event["event"] == "start" for event in events)
        publishing = [event for event in events if event.get("stage") == "publish"][-1]
        built = next(event for event in events if event["event"] == "built")
        self._operations = (publishing["operations"] + 1, built["operations"])

    def forget(self) -> None:
        """Go on in a directory in which no index was ever built."""
        self._root = self._root.with_name(f"{self._root.name}-")
        self._version = None

    def kill(self, rng: random.Random, bug: str | None = None) -> bool:
        """Kill a build of the other version and look at what is left; false where it ended before it could be killed."""
        before, target = self._version, self._target()
        self._log.unlink(missing_ok=True)
        job = self._job("build", version=target, bug=bug) | self._point(rng)
        is_killed = self._server.run(job)["killed"]
        events = read_log(self._log)
        answers = self._answers(self._root)
        if _is_same(answers, self._expected[target]):
            self._version = target
        place = self._place(events, is_switched=self._version != before)
        if is_killed:
            self.tally.update({"kills": 1, place: 1, "in chroma": events[-2:][0]["event"] == "start"})
        found = self._problems(answers, place, is_killed=is_killed)
        if found:
            self.broken.append(f"{found} after {job}, {events[-3:]}")
        return is_killed

    def complete(self, bug: str | None = None) -> None:
        """Build the other version to its end, after which the directory holds that and no more than it needs."""
        target = self._target()
        self._server.run(self._job("build", version=target, bug=bug))
        self._version = target
        found = self._problems(self._answers(self._root), "after", is_killed=False)
        if found:
            self.broken.append(f"{found} after a whole build of {target}")

    def _target(self) -> str:
        return "new" if self._version == "old" else "old"

    def _job(self, do: str, **more: Any) -> dict[str, Any]:
        return {
            "do": do,
            "log": str(self._log),
            "root": str(self._root),
            "units": self._units,
            "dense": self._dense,
            **more,
        }

    def _answers(self, root: Path) -> Any:
        output = self._server.run(self._job("ask", root=str(root), log=str(self._folder / "ask.log")))["output"]
        # Which generation it is says nothing of what it holds, nor does the wording of an error.
        return {name: value for name, value in output.items() if name not in ("generation", "message")}

    def _point(self, rng: random.Random) -> dict[str, Any]:
        """Where to kill: at any time, while Chroma is written, or just before a file operation of the switch or of all."""
        drawn = rng.random()
        if drawn < 0.3:
            return {"kill": {"mark": "b", "count": 1, "after": rng.uniform(0, self._seconds)}}
        if drawn < 0.6 and self._writes:
            return {"kill": {"mark": "c", "count": rng.randint(1, self._writes), "after": rng.uniform(0, 0.01)}}
        first, last = self._operations
        return {"operation": rng.randint(1 if drawn < 0.7 else first, last)}

    def _place(self, events: list[dict[str, Any]], *, is_switched: bool) -> str:
        if is_switched:
            return "after"
        return "in" if any(event.get("stage") == "publish" for event in events) else "before"

    def _missed(self, answers: Any) -> int:
        expected = self._expected[self._version].get("nearest", ())
        return sum(len(set(ids) - set(found)) for ids, found in zip(expected, answers.get("nearest", ()), strict=True))

    def _problems(self, answers: Any, place: str, *, is_killed: bool) -> list[str]:
        found = []
        if not _is_same(answers, self._expected[self._version]):
            found.append(f"wrong answers ({answers.get('error', 'of neither version')}, killed {place} the switch)")
        elif self._missed(answers) > MOST_MISSED:
            found.append(f"{self._missed(answers)} neighbours missed")
        folder = self._root / "generations"
        left = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
        names = {path.name for path in self._root.iterdir()} if self._root.is_dir() else set()
        more = names - {"manifest.json", "index.lock", "generations"}
        if is_killed and (len(left) > MOST_GENERATIONS or more - {"manifest.json.partial", "vectors.partial"}):
            found.append(f"leftovers {left}, {more}")
        if not is_killed and (len(left) > MOST_GENERATIONS - 1 or "partial" in " ".join(left) or more):
            found.append(f"leftovers {left}, {more} after a whole build")
        return found


def _is_same(answers: Any, expected: Any) -> bool:
    if any(answers.get(name) != expected.get(name) for name in ("error", "exact")):
        return False
    return answers.get("scores", []) == pytest.approx(expected.get("scores", []), abs=1e-5)


def test_builds_killed_at_random_points_leave_a_whole_index(server: ForkServer, tmp_path: Path) -> None:
    """Until the new index is whole the old one answers as before; the next build succeeds, and nothing piles up."""
    rng = random.Random(SEED)
    tally: Counter[str] = Counter()
    broken: list[str] = []
    # Above a thousand vectors Chroma keeps them in files of its own.
    kinds = [(120, "exact", scaled(8, 150)), (120, "chroma", scaled(6, 150))]
    for units, dense, wanted in [*kinds, *([(1_200, "chroma", 50)] if is_full() else [])]:
        folder = tmp_path / f"{units}{dense}"
        folder.mkdir()
        builder = Builder(server, folder, units, dense)
        builder.begin()
        while builder.tally["kills"] < wanted:
            for _ in range(rng.randint(1, 4)):
                builder.kill(rng)
            builder.complete()
            if rng.random() < 0.1:
                builder.forget()
        tally += builder.tally
        broken += builder.broken
    print(
        f"crash: {tally['kills']} builds of an index killed, {tally['before']} before, {tally['in']} in and "
        f"{tally['after']} after the switch ({tally['in chroma']} while Chroma was written): "
        f"{len(broken)} damaged (seed {SEED})"
    )
    assert not broken, "\n".join([f"seed {SEED}", *broken[:5]])
    assert not is_full() or min(tally[place] for place in ("before", "in", "after", "in chroma")) >= 10


@pytest.mark.parametrize(
    ("bug", "found"), [("early", "wrong answers"), ("unswept", "leftovers"), ("in place", "wrong answers")]
)
def test_the_check_of_an_index_bites(server: ForkServer, tmp_path: Path, bug: str, found: str) -> None:
    """A manifest written too early, leftovers that nobody deletes, and vectors changed in place are each found."""
    rng = random.Random(SEED)
    builder = Builder(server, tmp_path, 120, "exact")
    builder.begin()
    while not builder.broken and builder.tally["kills"] < 30:
        builder.kill(rng, bug)
    assert found in "".join(builder.broken)


def test_a_build_that_fails_still_deletes_what_killed_ones_left(tmp_path: Path) -> None:
    """Leftovers do not wait for a build that succeeds; the index and the generation it replaced stay."""
    folder = tmp_path / "generations"
    embedding = crash_indexing.HashEmbeddings()
    build_index(crash_indexing.corpus("old", 20), tmp_path, embedding=embedding)
    for names in (["000001"], ["000001", "000002"]):
        for left in ("000003", "000003.partial", "000007.partial"):
            (folder / left / "dense").mkdir(parents=True)
        with pytest.raises(SourceError, match="no units"):
            build_index([], tmp_path, embedding=embedding)
        assert sorted(path.name for path in folder.iterdir()) == names
        build_index(crash_indexing.corpus("new", 20), tmp_path, embedding=embedding)
