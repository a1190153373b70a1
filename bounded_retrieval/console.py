"""What the command line shows: packets and traces for a terminal."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from bounded_retrieval.contracts.packet import EvidenceItem, EvidencePacket
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.contracts.wording import (
    NOTES,
    describe_contributions,
    describe_cost,
    describe_event,
    describe_missing,
    describe_source,
    describe_step,
    printable,
)
from bounded_retrieval.retrievers.store import IndexReport

__all__ = [
    "NOTES",
    "IndexingDisplay",
    "describe_cost",
    "make_console",
    "printable",
    "render_error",
    "render_packet",
    "render_trace",
]


def render_packet(query: str, packet: EvidencePacket) -> RenderableType:
    """What stopped the run, what is missing, what it cost, and the evidence with its source."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("query", Text(printable(query)))
    facts.add_row("stopped", Text(f"{packet.stop_reason.value} ({packet.resolution})"))
    facts.add_row("", Text(f"{packet.stop_reason.meaning} {packet.stop_reason.not_meaning}", style="dim"))
    for step in packet.path:
        facts.add_row("path", Text(printable(describe_step(step))))
    facts.add_row("missing", Text(printable(describe_missing(packet))))
    facts.add_row("cost", Text(describe_cost(packet.limits, packet.usage)))
    for note in packet.notes:
        facts.add_row("note", Text(NOTES.get(note, note)))
    items = [_render_item(position, item) for position, item in enumerate(packet.items, 1)]
    return Group(Panel(facts, expand=True), *(items or [Text("  no evidence\n")]))


def render_trace(trace: DecisionTrace) -> RenderableType:
    """One row for each event of the trace."""
    table = Table(title="decision trace", title_justify="left", expand=True)
    table.add_column("step", justify="right")
    table.add_column("event", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    for step, event in enumerate(trace.events, 1):
        table.add_row(str(step), event.event, Text(printable(describe_event(event))))
    return table


def render_error(message: str) -> str:
    """An error as the one line that goes to standard error."""
    return f"bounded-retrieval: {printable(' '.join(message.split()))}"


def _render_item(position: int, item: EvidenceItem) -> RenderableType:
    heading = Text(f"{position}. {printable(item.title or item.unit_id)}", style="bold")
    places = [
        f"{channel} rank {result.rank}" + (f" ({result.score:.3f})" if result.score is not None else "")
        for channel, result in item.channels.items()
    ]
    added = describe_contributions(item)
    fused = [f"fused {item.fused_score:.4f} = {added}"] if added else []
    facts = [describe_source(item), item.unit_id, *([", ".join(places)] if places else []), *fused]
    detail = Text(printable("  |  ".join(facts)), style="dim")
    return Group(heading, Padding(Group(detail, Text(printable(item.text))), (0, 0, 1, 3)))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # The reader went away (for example `| head`); rich would end the program as failed.
        raise BrokenPipeError


def make_console(*, stderr: bool = False) -> Console:
    """A console that leaves retrieved text alone: no markup, no emoji codes, no highlighting."""
    return _Console(stderr=stderr, markup=False, emoji=False, highlight=False)


class _RateColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        """Units a second, as far as it can be told yet."""
        return Text("" if task.speed is None else f"{task.speed:,.0f}/s", style="progress.data.speed")


class ProgressDisplay:
    """Progress on standard error. A context manager.

    In a terminal each stage has a bar; elsewhere (a file, a pipe) a line for each stage as it begins.
    """

    def __init__(self) -> None:
        self._console = make_console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """Move the bar of one stage."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
            if not self._console.is_terminal:
                self.say(f"{stage} ...")
        self._bars.update(self._tasks[stage], completed=done, total=total)

    def say(self, line: str, style: str = "") -> None:
        """Print a line."""
        # One line stays one line in a log, however narrow the console thinks it is.
        self._console.print(Text(printable(line), style=style), soft_wrap=not self._console.is_terminal)


class IndexingDisplay(ProgressDisplay):
    """Progress of ``index``, and what was skipped."""

    def skip(self, path: Path, reason: str) -> None:
        """Say that a file was left out, and why."""
        self.say(f"skipped {path}: {reason}", style="yellow")

    def summarise(self, report: IndexReport, directory: Path | None) -> None:
        """Say what the index now holds and what had to be done for it."""
        where = f" in {directory}" if directory is not None else ""
        took = time.perf_counter() - self._started
        self.say(
            f"indexed {report.units:,} units{where}: {report.added:,} added, {report.changed:,} changed, "
            f"{report.removed:,} removed, {report.unchanged:,} unchanged; {report.embedded:,} embedded; "
            f"dense search: {report.dense}; {took:.1f} s"
        )
