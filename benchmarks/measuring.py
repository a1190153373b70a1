"""What the benchmarks share: the machine's description, timing in turn, and figures of a list of times."""

from __future__ import annotations

import gc
import json
import os
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

PACKAGES = (
    "bm25s",
    "bounded-retrieval",
    "chroma-haystack",
    "chromadb",
    "haystack-ai",
    "langchain-chroma",
    "langchain-classic",
    "langchain-community",
    "langchain-core",
    "langgraph",
    "llama-index-core",
    "llama-index-retrievers-bm25",
    "llama-index-vector-stores-chroma",
    "numpy",
    "onnxruntime",
    "pydantic",
    "rank-bm25",
)

Times = dict[str, list[float]]


def _nothing() -> None:
    pass


@dataclass(frozen=True, kw_only=True)
class Competitor:
    """Something that answers a query.

    Attributes:
        name: how the figures call it.
        run: takes a query; this is what is timed.
        check: refuses an answer that was not come by as the name says.
        before: run before each query and not timed.
        needed: whether it is timed on every query, however long it takes.
    """

    name: str
    run: Callable[[str], Any]
    check: Callable[[Any], bool] = bool
    before: Callable[[], None] = _nothing
    needed: bool = True


def environment() -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    listing = Path("/proc/cpuinfo")
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How much is timed: queries asked first and not counted; seconds after which one that is not needed sits out."""

    warm_up: int
    seed: int
    patience_s: float = 60.0


def time_in_turn(entries: Sequence[Competitor], queries: Sequence[str], schedule: Schedule) -> tuple[Times, Times]:
    """Time every competitor on every query after the warm-up ones, in shuffled order: milliseconds passed, and worked.

    The second is the processor time of all threads of this process; on a machine with other work to do, it is what can
    be compared. The indexes are taken out of the garbage collector's sight first, as a service would: walking through
    them would hit one competitor or another at random.
    """
    shuffler = random.Random(schedule.seed)
    times: Times = {entry.name: [] for entry in entries}
    worked: Times = {entry.name: [] for entry in entries}
    spent = dict.fromkeys(times, 0.0)
    gc.collect()
    gc.freeze()
    try:
        for position, query in enumerate(queries):
            for entry in shuffler.sample(entries, len(entries)):
                if entry.needed or spent[entry.name] < 1_000 * schedule.patience_s:
                    elapsed, work = _timed(entry, query)
                    spent[entry.name] += elapsed
                    if position >= schedule.warm_up:
                        times[entry.name].append(elapsed)
                        worked[entry.name].append(work)
    finally:
        gc.unfreeze()
    return times, worked


def _timed(entry: Competitor, query: str) -> tuple[float, float]:
    entry.before()
    started = time.process_time_ns()
    elapsed, answer = milliseconds(entry.run, query)
    work = (time.process_time_ns() - started) / 1e6
    if not entry.check(answer):
        raise RuntimeError(f"{entry.name}: did not do what it is measured for on {query!r}")
    return elapsed, work


def milliseconds(run: Callable[[str], Any], query: str) -> tuple[float, Any]:
    """How long one call takes, and what it gives."""
    started = time.perf_counter_ns()
    answer = run(query)
    return (time.perf_counter_ns() - started) / 1e6, answer


def percentiles(values: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile, and of how many."""
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": float(p50), "p99": float(p99), "queries": len(values)}


def write_json(report: dict[str, Any], out: Path) -> None:
    """Write a report, with the folders above it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(f"written: {out}")
