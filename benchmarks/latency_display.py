"""The tables and the plot of ``latency.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

CONTROLLER = ("stop", "continue", "reference stop", "reference continue")
DRAWN = {
    "lexical": ("lexical search alone", "0.55", ":"),
    "lexical+dense": ("both searches alone", "0.55", "--"),
    "stop": ("controller, stops", "#0072b2", "-"),
    "continue": ("controller, continues", "#d55e00", "-"),
    "ensemble": ("EnsembleRetriever (LangChain)", "#009e73", "-"),
    "llama-index": ("QueryFusionRetriever (LlamaIndex)", "#cc79a7", "-"),
    "haystack": ("hybrid pipeline (Haystack)", "#56b4e9", "-"),
}


def show(report: dict[str, Any]) -> None:
    """Print a table of times and one of ratios for all sizes."""
    console = Console(width=130)
    worked = {"sizes": [{"units": size["units"], **size["processor"]} for size in report["sizes"]]}
    console.print(_times("One warm call", report), _ratios("The controller beside the others", report))
    console.print(_times("Processor time of all threads", worked), _ratios("The same by processor time", worked))
    for name, reason in report["left_out"].items():
        console.print(f"{name}: {reason}")
    embedding = report["query_embedding_ms"]
    console.print(
        f"Query embedding: stand-in {embedding['stand_in']:.2f} ms (in the figures above); MiniLM "
        f"{embedding['minilm']:.2f} ms (add the difference to all that searches vectors)."
    )


def _times(title: str, report: dict[str, Any]) -> Table:
    table = Table("milliseconds", title=title, title_justify="left")
    for size in report["sizes"]:
        table.add_column(f"{size['units']:,} p50", justify="right")
        table.add_column("p99", justify="right")
    for name in _names(report, "times_ms"):
        figures = [size["times_ms"].get(name) for size in report["sizes"]]
        table.add_row(name, *(f"{found[p]:.2f}" if found else "" for found in figures for p in ("p50", "p99")))
    return table


def _ratios(title: str, report: dict[str, Any]) -> Table:
    table = Table("ratios of medians", title=title, title_justify="left")
    for size in report["sizes"]:
        for run in CONTROLLER:
            table.add_column(f"{size['units']:,} {run}", justify="right")
    for name in _names(report, "stop"):
        figures = [size[run].get(name) for size in report["sizes"] for run in CONTROLLER]
        table.add_row(name, *("" if found is None else f"{found:.2f}" for found in figures))
    return table


def _names(report: dict[str, Any], of: str) -> list[str]:
    return list(dict.fromkeys(name for size in report["sizes"] for name in size[of]))


def draw(report: dict[str, Any], out: Path) -> None:
    """Draw the median cost of a call against the size of the corpus, the 99th percentile as a thin line above it."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "bounded-retrieval"  # equal figures give equal files
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.5, 4.8), layout="constrained")
    axes = figure.add_subplot()
    for name, (label, colour, style) in DRAWN.items():
        points = [(size["units"], size["times_ms"][name]) for size in report["sizes"] if name in size["times_ms"]]
        if points:
            units = [each for each, _ in points]
            medians = [found["p50"] for _, found in points]
            axes.plot(units, medians, style, color=colour, marker="o", markersize=4, label=label)
            axes.vlines(units, medians, [found["p99"] for _, found in points], color=colour, linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="units in the corpus", ylabel="one warm call, ms (median; bar: to p99)")
    axes.grid(visible=True, which="major", color="0.9")
    figure.legend(loc="outside right upper", frameon=False, fontsize="small")
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None, "Creator": None})
    print(f"written: {out}")
