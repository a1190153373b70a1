"""What ``evaluate`` and ``calibrate`` show: tables for a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import ROUND_CEILING, Decimal
from pathlib import Path

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from bounded_retrieval.contracts.calibration import CandidateFigures
from bounded_retrieval.evaluation.presentation import (
    Report,
    Shown,
    adaptive_policies,
    decimals,
    describe_confidence,
    describe_live,
    describe_stops,
    distinct_policies,
    interval,
    one_line,
    percent,
    signed,
)
from bounded_retrieval.evaluation.thresholds import Verdict

_LEAST_WIDTH = 80  # columns for which the tables are made
_NAME_WIDTH = 18  # of a name that is not broken at that width


@dataclass(frozen=True)
class _Rows:
    """A table: in a terminal with headers of several lines and broken names, elsewhere a line for each row.

    Attributes:
        columns: headers; those that begin with ``>`` are above numbers.
        rows: cells; several lines of one belong together.
    """

    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.table() if console.is_terminal else Text(self.plain())

    def table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
        for column in self.columns:
            right = column.startswith(">")
            header = Text(column.removeprefix(">"))
            table.add_column(
                header, justify="right" if right else "left", no_wrap=right, vertical="top", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table

    def plain(self) -> str:
        header = [column.removeprefix(">") for column in self.columns]
        # A header is broken before what belongs to its first line, as in recall@4, or where a blank would stand.
        cells = [[" ".join(cell.replace("\n@", "@").split()) for cell in row] for row in (header, *self.rows)]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(self._line(row, widths) for row in cells)

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        sides = [column.startswith(">") for column in self.columns]
        shown = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, sides, strict=True)
        ]
        return "  ".join(shown).rstrip()


def render_report(report: Report, console: Console) -> RenderableType:
    """The policies side by side, what each does, what early stops cost, and the live check."""
    queries = len(report["queries"])
    name, confidence = one_line(report["collection"]["name"]), describe_confidence(report)
    heading = f"{name}: {queries:,} {'query' if queries == 1 else 'queries'}, {confidence} bootstrap intervals"
    shown = distinct_policies(report)
    parts: list[RenderableType] = [
        Text(heading, style="bold"),
        Text(),
        _Rows(
            (
                "policy",
                f">nDCG@4\n[{confidence}]",
                ">recall\n@4",
                ">packet\nrecall",
                ">\ncalls",
                ">dense\ncalls",
                ">\nrows",
            ),
            [_figures(report, each, console) for each in shown],
        ),
        Text(),
        _Rows(("policy", "depth", "ranking", "actions"), [_actions(report, each, console) for each in shown]),
        Text(),
        *_stop_lines(report, console),
        Text(describe_live(report), style="yellow" if report["live_check"]["different"] else ""),
    ]
    return Group(*parts)


def _figures(report: Report, shown: Shown, console: Console) -> list[str]:
    policy = report["policies"][shown.name]
    return [
        _name(shown, console),
        f"{decimals(policy['ndcg@4'])} {interval(policy['intervals']['ndcg@4'])}",
        decimals(policy["recall@4"]),
        decimals(policy["packet_recall"]),
        *(f"{policy[spent]:,}" for spent in ("calls", "dense_calls", "rows")),
    ]


def _actions(report: Report, shown: Shown, console: Console) -> list[str]:
    policy = report["policies"][shown.name]
    return [_name(shown, console), *(one_line(policy[word]) for word in ("depth", "ranking", "actions"))]


def _name(shown: Shown, console: Console) -> str:
    if not console.is_terminal:
        return shown.label
    first, *others = map(one_line, shown.names)
    most = _NAME_WIDTH + max(0, console.width - _LEAST_WIDTH)
    return "\n".join(line for name in (first, *(f"= {name}" for name in others)) for line in _broken(name, most))


def _broken(name: str, most: int) -> Iterator[str]:
    head, colon, rest = name.partition(":")
    if len(name) <= most or not colon:
        yield name
        return
    yield head
    yield f"  :{rest}"


def _stop_lines(report: Report, console: Console) -> Iterator[RenderableType]:
    for shown in adaptive_policies(report):
        first, *cutoffs = describe_stops(report, shown.name)
        yield Text(f"{shown.label} {first}")
        for line in cutoffs:
            yield Padding(Text(line), (0, 0, 0, 2)) if console.is_terminal else Text(f"  {line}")
    if report["early_stops"]:
        yield Text()


def render_verdict(verdict: Verdict, path: Path | None) -> RenderableType:
    """Every candidate in the order of the test, and what may be said after it.

    Args:
        verdict: what came of the calibration.
        path: where its artefact was written; none where nothing was.
    """
    columns = (
        ">threshold",
        ">loss on\nselection",
        ">dense calls,\nselection",
        ">loss on\ncertification",
        ">bound:\nat most",
        "verdict",
    )
    table = _Rows(columns, [_candidate(each) for each in verdict.candidates])
    return Group(table, Text(), Text(_conclusion(verdict, path)))


def _candidate(each: CandidateFigures) -> list[str]:
    return [
        f"{each.threshold:g}",
        signed(each.selection_loss, 4),
        percent(each.selection_dense_share),
        signed(each.certification_loss, 4),
        _at_most(each.upper_bound),
        each.verdict.replace("_", " "),
    ]


def _at_most(bound: float | None) -> str:
    if bound is None:
        return decimals(None)
    # Upwards: a bound above epsilon must not look like one that holds.
    return decimals(float(Decimal(str(bound)).quantize(Decimal("0.0001"), ROUND_CEILING)), 4)


def _conclusion(verdict: Verdict, path: Path | None) -> str:
    found = verdict.calibration
    if found is None:
        name, mean = verdict.best_fixed
        return (
            "no candidate could be certified, and nothing was written; best of the policies that decide nothing, "
            f"on the selection slice: {one_line(name)} ({mean:.4f})"
        )
    written = "" if path is None else f"; written to {one_line(str(path))}"
    claim = f"its mean loss in {found.measure} against {one_line(found.against)} is at most {found.epsilon:g}"
    return (
        f"{one_line(found.assessor)} at {found.threshold:g}: with confidence {found.confidence:g} {claim}, on queries "
        f"like these{written}"
    )
