"""The tables of ``throughput.py``."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table


def show(report: dict[str, Any]) -> None:
    """Print what was measured."""
    console = Console(width=120)
    for embedding, rows in report.get("rates", {}).items():
        console.print(_rates(embedding, rows))
    for name, reason in report["left_out"].items():
        console.print(f"{name}: {reason}")
    for name, found in report.get("overlap", {}).get("searches", {}).items():
        waiting = ", ".join(found["others_wait_in"]) or "nowhere"
        console.print(f"{name}: held still at {found['lines']} lines; another search of its kind waits {waiting}")
    if memory := report.get("memory"):
        console.print(
            f"Memory over {memory['requests']:,} requests, {memory['in_flight']} in flight: {memory['rss_mib'][0]} MiB "
            f"after the first {memory['requests_a_sample']:,}, {memory['rss_mib'][-1]} at the end; over the last three "
            f"quarters it grew by {memory['grew_mib']} MiB ({memory['grew_bytes_a_request']} bytes a request)"
        )


def _rates(embedding: str, rows: list[dict[str, Any]]) -> Table:
    table = Table("queries a second", title=f"Several in flight, queries embedded by {embedding}", title_justify="left")
    columns = list(dict.fromkeys((row["way"], row["in_flight"]) for row in rows))
    for way, in_flight in columns:
        table.add_column(f"{way} {in_flight}", justify="right")
    found = {(row["name"], row["way"], row["in_flight"]): row["queries_per_second"] for row in rows}
    for name in dict.fromkeys(row["name"] for row in rows):
        table.add_row(name, *(f"{found[name, *column]:.0f}" for column in columns))
    return table
