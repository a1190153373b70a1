"""How many queries a second are answered when several are in flight, and what that does to memory.

``python benchmarks/throughput.py [--units 10000] [--flights 1 8 32] [--indexes build/bench-indexes]
[--out build/throughput.json] [--parts rates overlap memory]``: about ten minutes, of which the memory of 100,000
requests (``--memory-requests``) takes most. `make bench` runs it where LlamaIndex and Haystack are installed too.

- **rates**: queries a second through ``ainvoke`` (as many tasks that each ask for the next query) and ``batch``
  (``max_concurrency``; a thread pool for what has no ``batch``), of the controller that stops and that continues, and
  of the hybrid searches of ``alternatives.py``. Twice: with the cheap stand-in embedding queries, and with MiniLM at
  work on each (its vector is then thrown away for the stand-in's, so that both search alike). No query repeats before
  all 1,000 were asked, and kept vectors are let go of before. The rounds of all competitors are taken in turn.
- **overlap**: one search held still at each of its lines while another runs; see ``overlapping.py``.
- **memory**: resident memory while 100,000 requests pass, 8 in flight, every other one continuing.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import itertools
import os
import random
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from alternatives import OFFLINE, make_alternatives, missing_packages
from measuring import environment, write_json
from overlapping import check_searches
from synthetic import CheapEmbeddings
from throughput_display import show
from worlds import QUERIES, World, make_world

from bounded_retrieval import create_bounded_retrieval
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings

PARTS = ("rates", "overlap", "memory")
IN_FLIGHT = 8
_SAMPLES = 40


class MiniLMAtWork(CheapEmbeddings):
    """Costs a query what MiniLM costs, and gives the stand-in's vector, so that the search is the same."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._model = MiniLMEmbeddings()

    def embed_query(self, text: str) -> list[float]:
        """The vector of 384 floats of the stand-in."""
        self._model.embed_query(text)
        return super().embed_query(text)


EMBEDDINGS = {"stand-in": CheapEmbeddings, "minilm": MiniLMAtWork}


@dataclass(kw_only=True)
class Runner:
    """One competitor, and the queries a second of its rounds, by way and number in flight."""

    name: str
    ask: Callable[[str], Any]
    aask: Callable[[str], Awaitable[Any]]
    batch: Callable[[list[str], int], Any] | None = None
    rates: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def ask_many(self, queries: list[str], in_flight: int) -> None:
        """All at once, so many at a time."""
        if self.batch is not None:
            self.batch(queries, in_flight)
            return
        with ThreadPoolExecutor(in_flight) as pool:
            list(pool.map(self.ask, queries))


def main() -> None:
    arguments = _arguments()
    os.environ.update(OFFLINE)
    report: dict[str, Any] = {
        "environment": environment(),
        "settings": {"units": arguments.units, "seconds_a_round": arguments.seconds, "rounds": arguments.rounds},
        "left_out": missing_packages(),
    }
    with tempfile.TemporaryDirectory() as passing:
        indexes = arguments.indexes or Path(passing)
        with opened_world(arguments, indexes, "stand-in") as world:
            if "overlap" in arguments.parts:
                report["overlap"] = check_searches(world)
            if "memory" in arguments.parts:
                report["memory"] = measure_memory(world, arguments.memory_requests)
        if "rates" in arguments.parts:
            report["rates"] = {name: measure_rates(name, arguments, indexes) for name in arguments.embeddings}
    report["environment"]["load_average_1m"] = round(os.getloadavg()[0], 2)
    show(report)
    write_json(report, arguments.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Queries a second with several in flight, and memory.")
    parser.add_argument("--units", type=int, default=10_000)
    parser.add_argument("--flights", nargs="+", type=int, default=[1, 8, 32], metavar="N", help="numbers in flight")
    parser.add_argument("--seconds", type=float, default=1.5, metavar="S", help="length of a round (default 1.5)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each competitor (default 3)")
    parser.add_argument("--embeddings", nargs="+", choices=sorted(EMBEDDINGS), default=list(EMBEDDINGS))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--memory-requests", type=int, default=100_000, metavar="N")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--indexes", type=Path, metavar="DIR", help="keep the indexes here, and use those there are")
    parser.add_argument("--out", type=Path, default=Path("build/throughput.json"), metavar="FILE")
    return parser.parse_args()


class opened_world:  # noqa: N801  # used like a function
    """The corpus with an embedding of queries, closed at the end."""

    def __init__(self, arguments: argparse.Namespace, indexes: Path, embedding: str) -> None:
        self._world = make_world(arguments.units, arguments.seed, indexes)
        self._world.embedding = EMBEDDINGS[embedding](arguments.seed)

    def __enter__(self) -> World:
        return self._world

    def __exit__(self, *_: object) -> None:
        self._world.opened.close()


def make_graphs(world: World) -> dict[str, Any]:
    """The controller with its default parts, made to stop and to go on."""
    index = world.index

    def graph(**settings: Any) -> Any:
        return create_bounded_retrieval(index.lexical, index.dense, units=index.units, **settings).compile()

    return {"stop": graph(threshold=0.0), "continue": graph(policy="always_continue")}


def make_runners(world: World) -> list[Runner]:
    """The controller, and the alternatives that are installed."""
    ours = [_graph_runner(name, graph) for name, graph in make_graphs(world).items()]
    return ours + [Runner(name=other.name, ask=other.ask, aask=other.aask) for other in make_alternatives(world)]


def _graph_runner(name: str, graph: Any) -> Runner:
    return Runner(
        name=name,
        ask=lambda query: graph.invoke({"query": query}),
        aask=lambda query: graph.ainvoke({"query": query}),
        batch=lambda queries, n: graph.batch([{"query": query} for query in queries], {"max_concurrency": n}),
    )


def measure_rates(embedding: str, arguments: argparse.Namespace, indexes: Path) -> list[dict[str, Any]]:
    """Queries a second of each competitor, by way and number in flight: the median of its rounds."""
    with opened_world(arguments, indexes, embedding) as world:
        queries = itertools.cycle(world.queries(QUERIES))
        runners = make_runners(world)
        for runner in runners:
            runner.ask_many([next(queries) for _ in range(4)], 2)  # warm
        gc.collect()
        gc.freeze()
        try:
            for way, in_flight in itertools.product(("ainvoke", "batch"), arguments.flights):
                print(f"{embedding}: {way}, {in_flight} in flight", flush=True)
                take_rounds(runners, way, in_flight, _Rounds(arguments.rounds, arguments.seconds, queries, world))
        finally:
            gc.unfreeze()
    return [
        {"name": each.name, "way": way, "in_flight": n, "queries_per_second": median(rates)}
        for each in runners
        for (way, n), rates in each.rates.items()
    ]


@dataclass(frozen=True)
class _Rounds:
    rounds: int
    seconds: float
    queries: Iterator[str]
    world: World


def take_rounds(runners: Sequence[Runner], way: str, in_flight: int, plan: _Rounds) -> None:
    """Let each competitor run for a while, in shuffled order, and again."""
    shuffler = random.Random(in_flight)
    for _ in range(plan.rounds):
        for runner in shuffler.sample(runners, len(runners)):
            plan.world.index.dense.forget_queries()
            if way == "ainvoke":
                rate = asyncio.run(_rate_of_tasks(runner.aask, in_flight, plan))
            else:
                rate = _rate_of_batches(runner, in_flight, plan)
            runner.rates.setdefault((way, in_flight), []).append(rate)


async def _rate_of_tasks(aask: Callable[[str], Awaitable[Any]], in_flight: int, plan: _Rounds) -> float:
    started = time.perf_counter()
    done = 0

    async def ask_on() -> None:
        nonlocal done
        while time.perf_counter() - started < plan.seconds:
            await aask(next(plan.queries))
            done += 1

    await asyncio.gather(*(ask_on() for _ in range(in_flight)))
    return done / (time.perf_counter() - started)


def _rate_of_batches(runner: Runner, in_flight: int, plan: _Rounds) -> float:
    started = time.perf_counter()
    done, size = 0, 4 * in_flight
    while time.perf_counter() - started < plan.seconds:
        runner.ask_many([next(plan.queries) for _ in range(size)], in_flight)
        done += size
    return done / (time.perf_counter() - started)


def measure_memory(world: World, requests: int) -> dict[str, Any]:
    """Resident memory in MiB after each fortieth of the requests; how much it grew over the last three quarters."""
    graphs = list(make_graphs(world).values())
    queries = itertools.cycle(world.queries(QUERIES))
    process, share = psutil.Process(), max(1, requests // _SAMPLES)
    with ThreadPoolExecutor(IN_FLIGHT) as pool:
        series, started = [], time.perf_counter()
        for sample in range(_SAMPLES):
            jobs = enumerate(next(queries) for _ in range(share))
            list(pool.map(lambda job: graphs[job[0] % 2].invoke({"query": job[1]}), jobs))
            gc.collect()
            series.append(round(process.memory_info().rss / 2**20, 1))
            if sample % 10 == 9:
                print(f"memory: {(sample + 1) * share:,} requests, {series[-1]} MiB", flush=True)
    settled = series[_SAMPLES // 4 :]
    return {
        "requests": share * _SAMPLES,
        "in_flight": IN_FLIGHT,
        "requests_a_sample": share,
        "rss_mib": series,
        "grew_mib": round(settled[-1] - settled[0], 1),
        "grew_bytes_a_request": round((settled[-1] - settled[0]) * 2**20 / (share * (len(settled) - 1)), 1),
        "threads_at_the_end": threading.active_count(),
        "queries_per_second": round(share * _SAMPLES / (time.perf_counter() - started), 1),
    }


if __name__ == "__main__":
    main()
