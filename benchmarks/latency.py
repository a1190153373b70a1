"""How long one warm ``graph.invoke`` takes, beside what it is made of and beside LangChain's ``EnsembleRetriever``.

Run it with ``python benchmarks/latency.py [--sizes 10000 100000] [--queries 300] [--out build/latency.json]``; the
default sizes take about ten minutes, nearly all of it building indexes, which ``--indexes DIR`` keeps for the next
run. It needs the development dependencies. Nothing here passes or fails on a time.

Measured at each size, in one process:

- ``lexical``, ``lexical+dense``: ``BM25Searcher.search`` alone, and followed by ``ChromaSearcher.search``;
- ``stop``, ``continue``: the controller made to stop after the lexical search (threshold 0) and to make both searches
  (``always_continue``); the packet of every run is checked for the calls that it really made;
- ``4 nodes``, ``6 nodes``: graphs of trivial nodes, as many as those two runs execute: what LangGraph itself costs;
- ``ensemble``: ``EnsembleRetriever`` over ``BM25Retriever`` (rank_bm25) and ``langchain_chroma.Chroma``.

The corpus is synthetic and seeded (see ``synthetic.py``). Our searchers are opened from files, as ``open_index`` opens
them; LangChain's Chroma reads the same collection with the same embedding, and its BM25 gets the same terms from the
package's tokenizer. Every search asks for three rows. Each query goes through all competitors in a freshly shuffled
order before the next query begins, so that drift and other load on the machine hit all alike. The embedding of the
corpus and the queries is a cheap stand-in; what a query costs with the real default, MiniLM, is measured apart.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from langchain_core.documents import Document
from langgraph.graph import END, START, StateGraph
from rich.console import Console
from rich.table import Table
from synthetic import CheapEmbeddings, content_words, make_documents, make_queries
from typing_extensions import TypedDict

from bounded_retrieval import BM25Searcher, ChromaSearcher, create_bounded_retrieval
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings

ROWS = 3
WARM_UP_QUERIES = 30
MINILM_QUERIES = 100
COLLECTION = "units"
PACKAGES = (
    "bm25s",
    "bounded-retrieval",
    "chromadb",
    "langchain-chroma",
    "langchain-classic",
    "langchain-community",
    "langchain-core",
    "langgraph",
    "numpy",
    "onnxruntime",
    "pydantic",
    "rank-bm25",
)

Times = dict[str, list[float]]


@dataclass(frozen=True, kw_only=True)
class Competitor:
    """Something that answers a query; ``check`` refuses an answer that was not come by as the name says."""

    name: str
    run: Callable[[str], Any]
    check: Callable[[Any], bool] = bool


@dataclass(frozen=True, kw_only=True)
class Searchers:
    """Both channels, opened from files, and LangChain's retrievers over the same units."""

    lexical: BM25Searcher
    dense: ChromaSearcher
    ensemble: Any


def main() -> None:
    arguments = _arguments()
    os.environ["LANGSMITH_TRACING"] = "false"
    load_at_start = os.getloadavg()[0]
    report: dict[str, Any] = {
        "environment": environment(),
        "settings": {"queries": arguments.queries, "rows_per_search": ROWS, "seed": arguments.seed},
        "query_embedding_ms": time_embeddings(arguments.seed),
        "sizes": [measure_size(units, arguments) for units in arguments.sizes],
    }
    loads = {"start": load_at_start, "end": os.getloadavg()[0]}
    report["environment"]["load_average_1m"] = {when: round(load, 2) for when, load in loads.items()}
    show(report)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    print(f"written: {arguments.out}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Controller latency beside the bare searches and EnsembleRetriever.")
    parser.add_argument("--sizes", nargs="+", type=int, default=[10_000, 100_000], metavar="UNITS")
    parser.add_argument("--queries", type=int, default=300, help="timed queries at each size (default 300)")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--indexes", type=Path, metavar="DIR", help="keep the indexes here, and use those that are here"
    )
    parser.add_argument("--out", type=Path, default=Path("build/latency.json"), metavar="FILE")
    return parser.parse_args()


def environment() -> dict[str, Any]:
    """What the figures depend on; nothing that names the machine."""
    return {
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "packages": {name: version(name) for name in PACKAGES},
    }


def time_embeddings(seed: int) -> dict[str, float]:
    """Median time of embedding one query of the corpus with MiniLM, and with the stand-in used below."""
    queries = make_queries(make_documents(1_000, seed), MINILM_QUERIES, seed)
    medians = {}
    for name, embedding in (("minilm", MiniLMEmbeddings()), ("stand_in", CheapEmbeddings(seed))):
        embedding.embed_query("warm up")
        medians[name] = median(_milliseconds(embedding.embed_query, query)[0] for query in queries)
    return medians


def measure_size(units: int, arguments: argparse.Namespace) -> dict[str, Any]:
    """Build everything over ``units`` units, time every competitor on the same queries, and compare."""
    documents = make_documents(units, arguments.seed)
    embedding = CheapEmbeddings(arguments.seed)
    asked = make_queries(documents, WARM_UP_QUERIES + arguments.queries, arguments.seed)
    with ExitStack() as opened:
        kept_in = arguments.indexes or Path(opened.enter_context(tempfile.TemporaryDirectory()))
        folder = kept_in / f"{units}-units-seed-{arguments.seed}"
        if not folder.is_dir():
            print(f"{units:,} units: building", flush=True)
            build(documents, embedding, folder)
        searchers = open_searchers(documents, embedding, folder, opened)
        print(f"{units:,} units: timing {arguments.queries} queries", flush=True)
        times = time_interleaved(competitors(searchers), asked, arguments.seed)
    return {
        "units": units,
        "times_ms": {name: _percentiles(values) for name, values in times.items()},
        "stop": compare(times, "stop", "lexical", "4 nodes"),
        "continue": compare(times, "continue", "lexical+dense", "6 nodes"),
    }


def build(documents: list[Document], embedding: CheapEmbeddings, folder: Path) -> None:
    """Write the files of both channels; the folder has its name only once they are whole."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    BM25Searcher.from_documents(documents).save(partial / "lexical")
    ChromaSearcher.from_documents(
        documents, embedding, path=partial / "dense", collection_name=COLLECTION, progress=_show_progress
    ).close()
    partial.rename(folder)


def open_searchers(documents: list[Document], embedding: CheapEmbeddings, folder: Path, opened: ExitStack) -> Searchers:
    """Open the files, and put LangChain's retrievers over the same units."""
    lexical = BM25Searcher.open(folder / "lexical")
    opened.callback(lexical.close)
    dense = ChromaSearcher.open(folder / "dense", embedding, collection_name=COLLECTION)
    opened.callback(dense.close)
    return Searchers(
        lexical=lexical, dense=dense, ensemble=make_ensemble(documents, embedding, folder / "dense", opened)
    )


def _show_progress(done: int, total: int) -> None:
    if done % 12_800 == 0:
        print(f"  {done:,} of {total:,} in Chroma", flush=True)


def make_ensemble(documents: list[Document], embedding: CheapEmbeddings, chroma: Path, opened: ExitStack) -> Any:
    """LangChain's hybrid search: rank_bm25 in memory beside the Chroma collection that our searcher reads."""
    import chromadb
    from chromadb.config import Settings
    from langchain_chroma import Chroma
    from langchain_classic.retrievers import EnsembleRetriever

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # langchain-community announces its sunset at every import
        from langchain_community.retrievers import BM25Retriever

    client: Any = chromadb.PersistentClient(str(chroma.resolve()), Settings(anonymized_telemetry=False))
    opened.callback(client.close)
    store = Chroma(COLLECTION, embedding, client=client)
    lexical = BM25Retriever.from_documents(documents, k=ROWS, preprocess_func=content_words)
    return EnsembleRetriever(retrievers=[lexical, store.as_retriever(search_kwargs={"k": ROWS})], weights=[0.5, 0.5])


def competitors(searchers: Searchers) -> list[Competitor]:
    """Everything that is timed, from the bare search up."""
    lexical, dense = searchers.lexical, searchers.dense

    def graph(**settings: Any) -> Any:
        return create_bounded_retrieval(lexical, dense, units=lexical.units, first_hop_rows=ROWS, **settings).compile()

    stopping, continuing = graph(threshold=0.0), graph(policy="always_continue")
    four, six = trivial_graph(4), trivial_graph(6)
    return [
        Competitor(name="lexical", run=lambda query: lexical.search(query, ROWS)),
        Competitor(name="lexical+dense", run=lambda query: [*lexical.search(query, ROWS), *dense.search(query, ROWS)]),
        Competitor(name="stop", run=lambda query: stopping.invoke({"query": query}), check=_stopped),
        Competitor(name="continue", run=lambda query: continuing.invoke({"query": query}), check=_continued),
        Competitor(name="4 nodes", run=lambda query: four.invoke({"query": query}), check=_ran(4)),
        Competitor(name="6 nodes", run=lambda query: six.invoke({"query": query}), check=_ran(6)),
        Competitor(name="ensemble", run=searchers.ensemble.invoke),
    ]


class TrivialState(TypedDict, total=False):
    """State of a graph that does nothing but run its nodes."""

    query: str
    steps: int


def trivial_graph(nodes: int) -> Any:
    """Compile a chain of nodes of which each adds 1 to ``steps``."""
    builder = StateGraph(TrivialState)
    names = [f"node_{number}" for number in range(nodes)]
    for name in names:
        builder.add_node(name, _add_step)
    for source, target in zip([START, *names], [*names, END], strict=True):
        builder.add_edge(source, target)
    return builder.compile()


def _add_step(state: TrivialState) -> TrivialState:
    return {"steps": state.get("steps", 0) + 1}


def _ran(nodes: int) -> Callable[[Any], bool]:
    return lambda result: result["steps"] == nodes


def _stopped(result: Any) -> bool:
    usage = result["packet"]["usage"]
    return (usage["calls"], usage["dense_calls"]) == (1, 0) and result["stop_reason"] == "proxy_sufficient"


def _continued(result: Any) -> bool:
    packet = result["packet"]
    usage = packet["usage"]
    return (usage["calls"], usage["dense_calls"]) == (2, 1) and "channel_failed" not in packet["notes"]


def time_interleaved(entries: Sequence[Competitor], queries: Sequence[str], seed: int) -> Times:
    """Time every competitor on every query after the warm-up ones, in milliseconds, in shuffled order.

    The indexes are taken out of the garbage collector's sight first, as a service would: walking through them would
    hit one competitor or another at random.
    """
    shuffler = random.Random(seed)
    times: Times = {entry.name: [] for entry in entries}
    gc.collect()
    gc.freeze()
    try:
        for position, query in enumerate(queries):
            for entry in shuffler.sample(entries, len(entries)):
                elapsed, answer = _milliseconds(entry.run, query)
                if not entry.check(answer):
                    raise RuntimeError(f"{entry.name}: did not do what it is measured for on {query!r}")
                if position >= WARM_UP_QUERIES:
                    times[entry.name].append(elapsed)
    finally:
        gc.unfreeze()
    return times


def _milliseconds(run: Callable[[str], Any], query: str) -> tuple[float, Any]:
    started = time.perf_counter_ns()
    answer = run(query)
    return (time.perf_counter_ns() - started) / 1e6, answer


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50": float(p50), "p99": float(p99)}


def compare(times: Times, controller: str, bare: str, floor: str) -> dict[str, float]:
    """Relate a controller's times to the bare searches, to the trivial graphs and to EnsembleRetriever.

    ``over_bare_ms`` is the median of the differences query by query; every ratio is one of medians.
    """
    own, searches = times[controller], times[bare]
    over_bare = median(mine - theirs for mine, theirs in zip(own, searches, strict=True))
    return {
        "over_bare_ms": over_bare,
        "over_bare_ratio": median(own) / median(searches),
        "overhead_in_six_nodes": over_bare / median(times["6 nodes"]),
        "overhead_in_own_nodes": over_bare / median(times[floor]),
        "ensemble_ratio": median(times["ensemble"]) / median(own),
    }


def show(report: dict[str, Any]) -> None:
    """Print one table of times and one of ratios for all sizes."""
    console = Console(width=110)
    times = Table("milliseconds", title="One warm call", title_justify="left")
    ratios = Table("ratios of medians", title="The controller beside the others", title_justify="left")
    for size in report["sizes"]:
        times.add_column(f"{size['units']:,} p50", justify="right")
        times.add_column("p99", justify="right")
        for run in ("stop", "continue"):
            ratios.add_column(f"{size['units']:,} {run}", justify="right")
    for name in report["sizes"][0]["times_ms"]:
        times.add_row(name, *(f"{size['times_ms'][name][p]:.2f}" for size in report["sizes"] for p in ("p50", "p99")))
    for name in report["sizes"][0]["stop"]:
        ratios.add_row(name, *(f"{size[run][name]:.2f}" for size in report["sizes"] for run in ("stop", "continue")))
    console.print(times, ratios)
    embedding = report["query_embedding_ms"]
    console.print(
        f"Query embedding: stand-in {embedding['stand_in']:.2f} ms (in the figures above); MiniLM "
        f"{embedding['minilm']:.2f} ms (add the difference to lexical+dense, continue and ensemble)."
    )


if __name__ == "__main__":
    main()
