from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from disk_worker import can_mount
from scale import scaled

SEED = 28
ROOMS = scaled(8, 100)
LIMITS = scaled(4, 40)
FIRST = scaled(2, 20)
OPERATIONS = scaled(6, 54)

# A build over the old index needs about so much room, and its largest file so many bytes.
NEEDED, LARGEST = {"exact": 300_000, "chroma": 900_000}, {"exact": 120_000, "chroma": 400_000}

# It makes, opens, renames and syncs things about so often.
MOST_OPERATIONS = {"exact": 50, "chroma": 60}


def spread(rng: random.Random, count: int, most: int) -> list[int]:
    """One number at random from each of so many equal parts of a range."""
    return [int((part + rng.random()) * most / count) for part in range(count)]


def jobs() -> dict[str, list[dict[str, Any]]]:
    """Builds of both kinds of index on disks of every size, by what they are to show."""
    rng = random.Random(SEED)
    made: dict[str, list[dict[str, Any]]] = {"room": [], "first": [], "limit": [], "operation": []}
    for kind in ("exact", "chroma"):
        made["room"] += [{"room": 4_096 + room} for room in spread(rng, ROOMS // 2, NEEDED[kind])]
        made["first"] += [{"room": 4_096 + room, "first": True} for room in spread(rng, FIRST // 2, NEEDED[kind])]
        made["limit"] += [{"limit": 1 + limit} for limit in spread(rng, LIMITS // 2, LARGEST[kind])]
        numbers = spread(rng, OPERATIONS // 2, MOST_OPERATIONS[kind])
        made["operation"] += [{"operation": 1 + number} for number in numbers]
        for each in made.values():
            for job in each:
                job.setdefault("dense", kind)
    # Full while a batch of vectors is written, whose rest still waits when the file is closed.
    made["first"].append({"room": 69_632, "first": True, "dense": "exact"})
    return {**made, "bug": [{"limit": 20_000, "bug": True}]}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What came of every build; those that need a file system of their own only where one can be made."""
    folder = tmp_path_factory.mktemp("disks")
    asked = jobs()
    if not can_mount(folder):
        del asked["room"], asked["first"]
    lines = [json.dumps(job) for kind in asked.values() for job in kind]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("disk_worker.py")), str(folder)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = iter([json.loads(line) for line in done.stdout.splitlines()])
    return {kind: [next(answers) for _ in each] for kind, each in asked.items()}


@pytest.mark.parametrize("kind", ["room", "first", "limit", "operation"])
def test_a_disk_that_fills_up_leaves_the_old_index(results: dict[str, list[dict[str, Any]]], kind: str) -> None:
    """Wherever a build runs out of room: one clear error, nothing left over, the old index answers, and a later build succeeds."""
    if kind not in results:
        pytest.skip("no file system of its own can be made here")
    done = results[kind]
    failed = [result for result in done if result["error"]]
    by_place = Counter(Path(result["error"].partition(":")[0]).name for result in failed)
    print(f"full disk ({kind}): {len(done)} builds, {len(failed)} out of room; named: {dict(by_place)}")
    assert [result for result in done if result["wrong"]] == []
    assert failed


def test_what_is_left_over_is_noticed(results: dict[str, list[dict[str, Any]]]) -> None:
    """A build that does not clean up after itself is reported."""
    (result,) = results["bug"]
    assert any("000002.partial" in wrong for wrong in result["wrong"]), result
