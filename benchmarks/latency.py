"""How long one warm ``graph.invoke`` takes, beside what it is made of and beside other frameworks' hybrid search.

``python benchmarks/latency.py [--sizes 10000 100000] [--indexes build/bench-indexes] [--out build/latency.json]
[--plot FILE.svg]``; ``make bench`` runs it where LlamaIndex and Haystack are installed too. The default sizes take
some ten minutes, much of it building indexes, which ``--indexes DIR`` keeps for the next run. Nothing here passes or
fails on a time.

Measured at each size, in one process:

- ``lexical``, ``lexical+dense``: the searchers of `open_index` alone, the second followed by the first;
- ``stop``, ``continue``: the controller with its default parts, made to stop after the lexical search (threshold 0)
  and to make both searches (``always_continue``); the packet of every run is checked for the calls it really made;
- ``calls of stop``, ``calls of continue``: what those two runs ask of searchers and unit source, and nothing else: four
  rows, the words' weights, two rows that are not there yet, both scores of every unit, and the units once more;
- ``plain stop``: a run that stops as one would write it by hand, with nothing checked: see ``plain_nodes.py``;
- ``reference stop``, ``reference continue``: the same runs with the parts of ``preset="reference"``;
- ``4 nodes``, ``6 nodes``: graphs of trivial nodes, as many as those two runs execute;
- ``empty stop``, ``empty continue``: the controller's own graph, whose nodes give back what they gave once and do
  nothing else: what LangGraph itself costs for these edges and channels;
- ``ensemble``, ``llama-index``, ``haystack``: see ``alternatives.py``; up to ``--alternatives-up-to`` units, each until
  its patience ends.

Each is given as time passed and, under ``processor``, as time worked by all threads of the process, which other load on
the machine lengthens much less. The corpus is synthetic and seeded (see ``synthetic.py``). Every search asks for three
rows. Each query goes through all competitors in a freshly shuffled order before the next query begins, so that drift
and other load hit all alike; the searchers' kept query vectors are let go of before each, so that every one of them
embeds the query. That embedding is a cheap stand-in; what a query costs with the real default, MiniLM, is measured
apart.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from alternatives import OFFLINE, ROWS, make_alternatives, missing_packages
from empty_nodes import emptied
from langgraph.graph import END, START, StateGraph
from latency_display import draw, show
from measuring import Competitor, Schedule, Times, environment, milliseconds, percentiles, time_in_turn, write_json
from plain_nodes import plain_stop
from synthetic import CheapEmbeddings, make_documents, make_queries
from typing_extensions import TypedDict
from worlds import World, make_world

from bounded_retrieval import ReciprocalRankFusion, TermCoverage, create_bounded_retrieval
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings

WARM_UP_QUERIES = 30
MINILM_QUERIES = 100

FIRST, SECOND = 4, 2
"""Rows of the first and the second search of the controller with its default parts."""

# Each controller run, the bare searches it makes, and the same graph with nothing to do.
RUNS = {
    "stop": ("lexical", "empty stop"),
    "continue": ("lexical+dense", "empty continue"),
    "reference stop": ("lexical", "empty stop"),
    "reference continue": ("lexical+dense", "empty continue"),
}


def main() -> None:
    arguments = _arguments()
    os.environ.update(OFFLINE)
    load_at_start = os.getloadavg()[0]
    report: dict[str, Any] = {
        "environment": environment(),
        "settings": {"queries": arguments.queries, "rows_per_search": ROWS, "seed": arguments.seed},
        "left_out": missing_packages(),
        "query_embedding_ms": time_embeddings(arguments.seed),
        "sizes": [],
    }
    with tempfile.TemporaryDirectory() as passing:
        for units in arguments.sizes:
            report["sizes"].append(measure_size(units, arguments, arguments.indexes or Path(passing)))
    loads = {"start": load_at_start, "end": os.getloadavg()[0]}
    report["environment"]["load_average_1m"] = {when: round(load, 2) for when, load in loads.items()}
    show(report)
    write_json(report, arguments.out)
    if arguments.plot is not None:
        draw(report, arguments.plot)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Controller latency beside the bare searches and other frameworks.")
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000], metavar="UNITS")
    parser.add_argument("--dense", choices=["auto", "exact", "chroma"], default="auto", help="how vectors are searched")
    parser.add_argument("--queries", type=int, default=300, help="timed queries at each size (default 300)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--alternatives-up-to", type=int, default=100_000, metavar="UNITS", help="largest size for the other frameworks"
    )
    parser.add_argument(
        "--patience", type=float, default=60.0, metavar="S", help="after which a slow alternative sits out (default 60)"
    )
    parser.add_argument("--indexes", type=Path, metavar="DIR", help="keep the indexes here, and use those there are")
    parser.add_argument("--out", type=Path, default=Path("build/latency.json"), metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw cost against size (needs matplotlib)")
    return parser.parse_args()


def time_embeddings(seed: int) -> dict[str, float]:
    """Median time of embedding one query of the corpus with MiniLM, and with the stand-in used below."""
    queries = make_queries(make_documents(1_000, seed), MINILM_QUERIES, seed)
    medians = {}
    for name, embedding in (("minilm", MiniLMEmbeddings()), ("stand_in", CheapEmbeddings(seed))):
        embedding.embed_query("warm up")
        medians[name] = median(milliseconds(embedding.embed_query, query)[0] for query in queries)
    return medians


def measure_size(units: int, arguments: argparse.Namespace, indexes: Path) -> dict[str, Any]:
    """Build everything over ``units`` units, time every competitor on the same queries, and compare."""
    world = make_world(units, arguments.seed, indexes, dense=arguments.dense)
    with ExitStack() as opened:
        opened.callback(world.opened.close)
        entries = own_competitors(world)
        if units <= arguments.alternatives_up_to:
            entries += [alternative.competitor() for alternative in make_alternatives(world)]
        print(f"{units:,} units: timing {arguments.queries} queries", flush=True)
        schedule = Schedule(warm_up=WARM_UP_QUERIES, seed=arguments.seed, patience_s=arguments.patience)
        times, worked = time_in_turn(entries, world.queries(WARM_UP_QUERIES + arguments.queries), schedule)
        dense = world.index.manifest.dense
    return {"units": units, "dense": dense, **relate(times), "processor": relate(worked)}


def relate(times: Times) -> dict[str, Any]:
    """Percentiles of all times, and what each controller run is beside the others."""
    return {
        "times_ms": {name: percentiles(values) for name, values in times.items() if values},
        **{run: compare(times, run, bare, floor) for run, (bare, floor) in RUNS.items()},
    }


def own_competitors(world: World) -> list[Competitor]:
    """From the bare search up to the controller."""
    lexical, dense = world.index.lexical, world.index.dense

    def built(**settings: Any) -> Any:
        return create_bounded_retrieval(lexical, dense, units=world.index.units, **settings)

    def graph(**settings: Any) -> Callable[[str], Any]:
        compiled = built(**settings).compile()
        return lambda query: compiled.invoke({"query": query})

    def entry(name: str, run: Callable[[str], Any], check: Callable[[Any], bool] = bool) -> Competitor:
        return Competitor(name=name, run=run, check=check, before=dense.forget_queries)

    def calls_of_stop(query: str) -> Any:
        rows = lexical.search(query, FIRST)
        return lexical.weigh(query, query.split()), world.index.units.fetch([row.unit_id for row in rows])

    def calls_of_continue(query: str) -> Any:
        ids = [row.unit_id for row in lexical.search(query, FIRST)]
        weights = lexical.weigh(query, query.split())
        ids += [row.unit_id for row in dense.search_excluding(query, SECOND, ids)]
        return weights, lexical.score(query, ids), dense.score(query, ids), world.index.units.fetch(ids)

    stop, go_on = {"threshold": 0.0}, {"policy": "always_continue"}
    # What preset="reference" is made of; the preset itself fixes the threshold.
    reference = {"assessor": TermCoverage(), "fusion": ReciprocalRankFusion(), "first_hop_rows": ROWS}
    return [
        entry("lexical", lambda query: lexical.search(query, ROWS)),
        entry("lexical+dense", lambda query: [*lexical.search(query, ROWS), *dense.search(query, ROWS)]),
        entry("stop", graph(**stop), stopped),
        entry("continue", graph(**go_on), continued),
        entry("calls of stop", calls_of_stop, lambda answers: bool(answers[-1])),
        entry("calls of continue", calls_of_continue, lambda answers: answers[-2].keys() == answers[-1].keys()),
        entry("plain stop", plain_stop(lexical, world.index.units, FIRST), stopped_plainly),
        entry("reference stop", graph(**stop, **reference), stopped),
        entry("reference continue", graph(**go_on, **reference), continued),
        entry("4 nodes", trivial_graph(4), _ran(4)),
        entry("6 nodes", trivial_graph(6), _ran(6)),
        entry("empty stop", emptied(built(**stop), world.queries(1)[0]), stopped),
        entry("empty continue", emptied(built(**go_on), world.queries(1)[0]), continued),
    ]


class TrivialState(TypedDict, total=False):
    """State of a graph that does nothing but run its nodes."""

    query: str
    steps: int


def trivial_graph(nodes: int) -> Callable[[str], Any]:
    """Compile a chain of nodes of which each adds 1 to ``steps``."""
    builder = StateGraph(TrivialState)
    names = [f"node_{number}" for number in range(nodes)]
    for name in names:
        builder.add_node(name, _add_step)
    for source, target in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(source, target)
    compiled = builder.compile()
    return lambda query: compiled.invoke({"query": query})


def _add_step(state: TrivialState) -> TrivialState:
    return {"steps": state.get("steps", 0) + 1}


def _ran(nodes: int) -> Callable[[Any], bool]:
    return lambda result: bool(result["steps"] == nodes)


def stopped(result: Any) -> bool:
    """Whether a run made the lexical search alone."""
    usage = result["packet"]["usage"]
    return (usage["calls"], usage["dense_calls"]) == (1, 0) and result["stop_reason"] == "proxy_sufficient"


def stopped_plainly(result: Any) -> bool:
    """Whether the run written by hand searched once and packed what it read."""
    packed = [item["unit_id"] for item in result["packet"]["items"]]
    return bool(packed) and result["packet"]["usage"] == {"calls": 1}


def continued(result: Any) -> bool:
    """Whether a run made both searches, and both answered."""
    packet = result["packet"]
    usage = packet["usage"]
    return usage["calls"] == 2 and usage["dense_calls"] >= 1 and "channel_failed" not in packet["notes"]


def compare(times: Times, controller: str, bare: str, floor: str) -> dict[str, float]:
    """Relate a controller's times to the bare searches, to the trivial graphs and to the other frameworks.

    ``over_bare_ms`` is the median of the differences query by query, and so is what the run's calls and the run written
    by hand take over the bare searches (``further_calls_in_six_nodes`` and, for a stop, ``plain_nodes_in_six_nodes``,
    with the default parts only); every other ratio is one of medians, those with another framework over the queries
    that it was asked.
    """
    own, searches = times[controller], times[bare]
    over_bare = _over(own, searches)
    beside = {"further_calls": f"calls of {controller}", "plain_nodes": f"plain {controller}"}
    over = {figure: _over(times[name], searches) for figure, name in beside.items() if times.get(name)}
    others = [name for name in ("ensemble", "llama-index", "haystack") if times.get(name)]
    return {
        "over_bare_ms": over_bare,
        "over_bare_ratio": median(own) / median(searches),
        "overhead_in_six_nodes": over_bare / median(times["6 nodes"]),
        "empty_graph_in_six_nodes": median(times[floor]) / median(times["6 nodes"]),
        **{f"{figure}_in_six_nodes": found / median(times["6 nodes"]) for figure, found in over.items()},
        **{f"{name}_ratio": median(times[name]) / _median_of_first(own, len(times[name])) for name in others},
    }


def _over(times: Sequence[float], searches: Sequence[float]) -> float:
    return median(mine - theirs for mine, theirs in zip(times, searches, strict=True))


def _median_of_first(values: Sequence[float], count: int) -> float:
    return median(values[:count])


if __name__ == "__main__":
    main()
