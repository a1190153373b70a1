from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hostile_handmade import HANDMADE
from scale import scaled

CASES = scaled(300, 5_000)
WORKERS = 2
VIOLATION = "violation"

# Each with a damage over which it does harm, and what the checks are to say of it.
BUGS = {
    "blind": ("units: another title, not stamped", "verify: passes"),
    "raw": ("manifest: nested deeply", "RecursionError"),
    "unchecked": ("lexical: a row of no unit", "IndexError"),
    "waiting": ("manifest: a pipe", "hang"),
    "greedy": ("manifest: another k1", "MB in memory"),
    "aborting": ("manifest: another k1", "signal 6"),
}


def run_worker(folder: Path, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let a process of its own work the jobs."""
    folder.mkdir()
    worker = Path(__file__).with_name("hostile_worker.py")
    done = subprocess.run(
        [sys.executable, str(worker), str(folder)],
        input="".join(f"{json.dumps(job)}\n" for job in jobs),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What came of every damage."""
    folder = tmp_path_factory.mktemp("hostile")
    jobs: list[dict[str, Any]] = [{"random": number} for number in range(CASES)]
    jobs += [{"handmade": name} for name in HANDMADE]
    jobs += [{"handmade": name, "bug": bug} for bug, (name, _) in BUGS.items()]
    with ThreadPoolExecutor(WORKERS) as pool:
        shares = [(folder / str(worker), jobs[worker::WORKERS]) for worker in range(WORKERS)]
        done = [result for part in pool.map(lambda share: run_worker(*share), shares) for result in part]
    assert len(done) == len(jobs)
    return done


def test_a_damage_is_refused_or_found_whatever_it_is(results: list[dict[str, Any]]) -> None:
    """A file damaged anyhow, before or after opening: one clear error, the same answers, or what verifying finds; nothing else."""
    done = [result for result in results if "random" in result]
    violations = [result for result in done if result["outcome"] == VIOLATION]
    by_outcome = Counter(result["outcome"] for result in done if result["outcome"] != VIOLATION)
    told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(by_outcome.items()))
    open_already = sum(result["while_open"] for result in done)
    print(
        f"damaged files: {len(done):,} ({open_already:,} while the index was open): {told}; {len(violations)} violations"
    )
    assert violations == []
    assert len(by_outcome) > 2


def test_every_kind_of_damage_and_every_file_had_its_turn(results: list[dict[str, Any]]) -> None:
    """The cases cover all files of an index, Chroma's own among them, and all kinds of damage."""
    done = [result for result in results if "random" in result]
    by_file = Counter(result["file"] for result in done)
    print("damaged files, by file:", ", ".join(f"{name} {count}" for name, count in by_file.most_common()))
    assert {
        "manifest.json",
        "units.sqlite",
        "scores.npy",
        "vectors.npy",
        "marks.npy",
        "chroma.sqlite3",
        "graph/data_level0.bin",
    } <= by_file.keys()
    assert len({result["kind"] for result in done}) == 16


@pytest.mark.parametrize("name", HANDMADE)
def test_a_damage_with_a_plan_comes_to_what_it_should(results: list[dict[str, Any]], name: str) -> None:
    """Versions, names that lead elsewhere, absurd sizes, deep nesting, wrong types, stale and foreign files: each as stated."""
    (result,) = [result for result in results if result.get("handmade") == name and "bug" not in result]
    assert result["outcome"] == HANDMADE[name].expected, result


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_reported(results: list[dict[str, Any]], bug: str) -> None:
    """Without one of the checks, the same damage is reported: a foreign error, a hang, a crash, memory, a wrong answer."""
    (result,) = [result for result in results if result.get("bug") == bug]
    assert result["outcome"] == VIOLATION, result
    assert BUGS[bug][1] in result["detail"]
