"""How many generated worlds let a caller tell hidden units from units that do not exist, and what shared scores tell.

Run it with the number of worlds, by default 2,000: ``python benchmarks/indistinguishability.py 2000``. The worlds and
what is observed of them are those of ``tests/eligibility``; with shared statistics only what ``invoke`` returns counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "eligibility"))
import observing
import worlds

from bounded_retrieval.retrievers.chroma import ChromaSearcher

CHROMA_SHARE = 20
"""One in so many worlds has a Chroma collection, which takes several times as long."""

MAX_SECONDS = 230.0
"""After this no further world is tried, and the figures say how many were."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("worlds", nargs="?", type=int, default=2_000, help="pairs of worlds in all")
    parser.add_argument("--seconds", type=float, default=MAX_SECONDS, help="try no further world after so long")
    asked = parser.parse_args()
    started = time.monotonic()
    strategies = {**worlds.PROPERTIES, "text_over_chroma": worlds.CHROMA}
    shares = dict.fromkeys(worlds.PROPERTIES, asked.worlds // len(worlds.PROPERTIES))
    shares["text_over_chroma"] = max(1, asked.worlds // CHROMA_SHARE)
    chroma = ChromaSearcher.from_documents([], worlds.EMBEDDING)
    print(f"{'property':<32} {'worlds':>7} {'told apart':>11} {'seconds':>8}")
    tried = told = 0
    for place, (name, strategy) in enumerate(strategies.items()):
        left = (asked.seconds - (time.monotonic() - started)) / (len(strategies) - place)
        counts, seconds = count(strategy, shares[name], left, partial(places, chroma=chroma))
        apart = counts.total() - counts[()]
        print(f"{name:<32} {counts.total():>7} {apart:>11} {seconds:>8.1f}", flush=True)
        for where in filter(None, counts):
            print(f"    {counts[where]} in {', '.join(where)}", flush=True)
        tried, told = tried + counts.total(), told + apart
    print(f"{'all':<32} {tried:>7} {told:>11} {time.monotonic() - started:>8.1f}\n")
    show_statistics(asked.worlds // 2)


def places(case: worlds.Case, chroma: ChromaSearcher) -> tuple[str, ...]:
    """Where the two worlds of a case can be told apart."""
    return tuple(observing.differences(case, chroma))


def count(
    strategy: Any, examples: int, limit: float, judge: Callable[[worlds.Case], Any]
) -> tuple[Counter[Any], float]:
    """Judge generated cases, at most so many and no further one after ``limit`` seconds."""
    judged: Counter[Any] = Counter()
    started = time.monotonic()

    @seed(20260601)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def look(case: worlds.Case) -> None:
        if time.monotonic() - started < limit:
            judged[judge(case)] += 1

    look()
    return judged, time.monotonic() - started


def show_statistics(examples: int) -> None:
    """Print in what worlds differ when lexical scores count all units under a filter."""
    counts, seconds = count(worlds.STATISTICS, examples, MAX_SECONDS / 4, observing.statistics_show)
    print(f'BM25 with statistics="corpus": {counts.total()} worlds, {seconds:.1f} s; the first difference is in')
    for name in ("stop reason", "packet ids", "packet order", "ranking", "scores", "nothing"):
        print(f"{name:<32} {counts[name]:>7} {counts[name] / max(1, counts.total()):>11.1%}")


if __name__ == "__main__":
    main()
