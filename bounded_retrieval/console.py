"""What the command line shows: packets and traces for a terminal."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.packet import EvidenceItem, EvidencePacket
from bounded_retrieval.contracts.trace import CoverageAssessed, DecisionTrace, EvidencePacked, SearchAttempted
from bounded_retrieval.retrievers.store import IndexReport

# Retrieved text must not be able to move the cursor, set colours or write to the clipboard.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

_NOTES = {
    "assessor_failed": "the assessor failed, which counts as not sufficient",
    "channel_failed": "a search failed; its call stays charged",
    "dropped_at_recheck": "something was gone or changed by the time of the recheck and was dropped",
    "invalid_rows": "a search returned rows that were no candidates",
    "metadata_converted": "some metadata had no JSON form and was turned into text",
    "recheck_failed": "current text could not be read, so what it should have vouched for was dropped",
    "rows_cut": "a search returned more rows than asked for; they were cut",
    "text_not_rechecked": "nothing could give the current text, so the text as found was used",
    "unit_too_long": "a unit too long to fit the packet alone was skipped",
    "units_unread": "some units could not be read within the limits",
}
NOTES = frozenset(_NOTES)
"""Every note that a packet can carry."""


def printable(text: str) -> str:
    """Text without control characters other than line breaks and tabs."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def render_packet(query: str, packet: EvidencePacket) -> RenderableType:
    """What stopped the run, what is missing, what it cost, and the evidence with its source."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("query", Text(printable(query)))
    facts.add_row("stopped", Text(f"{packet.stop_reason.value} ({packet.resolution})"))
    facts.add_row("", Text(f"{packet.stop_reason.meaning} {packet.stop_reason.not_meaning}", style="dim"))
    missing = ", ".join(packet.missing_terms) or "no query term is missing from the packed units"
    facts.add_row("missing", Text(printable(missing)))
    facts.add_row("cost", Text(describe_cost(packet.limits, packet.usage)))
    for note in packet.notes:
        facts.add_row("note", Text(_NOTES.get(note, note)))
    items = [_render_item(position, item) for position, item in enumerate(packet.items, 1)]
    return Group(Panel(facts, expand=True), *(items or [Text("  no evidence\n")]))


def describe_cost(limits: Budget, usage: Usage) -> str:
    """Spend beside its limit, in words."""
    return (
        f"{usage.calls} of {limits.max_calls} calls ({usage.dense_calls} dense), "
        f"{usage.rows} of {limits.max_rows} rows, {usage.reads} of {limits.max_reads} units read, "
        f"{usage.units} of {limits.max_units} units packed, {usage.chars:,} of {limits.max_chars:,} characters"
    )


def render_trace(trace: DecisionTrace) -> RenderableType:
    """One row for each event of the trace."""
    table = Table(title="decision trace", title_justify="left", expand=True)
    table.add_column("step", justify="right")
    table.add_column("event", no_wrap=True)
    table.add_column("what happened", overflow="fold")
    for step, event in enumerate(trace.events, 1):
        table.add_row(str(step), event.event, Text(printable(_describe_event(event))))
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
    section = item.metadata.get("section")
    source = item.metadata.get("source", item.unit_id)
    where = f"{source}, {section}" if section else f"{source}"
    detail = Text(printable(f"{where}  |  {item.unit_id}  |  {', '.join(places)}"), style="dim")
    return Group(heading, Padding(Group(detail, Text(printable(item.text))), (0, 0, 1, 3)))


def _describe_event(event: Any) -> str:
    if isinstance(event, SearchAttempted):
        return _describe_search(event)
    if isinstance(event, CoverageAssessed):
        return _describe_decision(event)
    if isinstance(event, EvidencePacked):
        skipped = ", ".join(f"{skip.unit_id} ({skip.chars:,} characters, {skip.limit})" for skip in event.skipped)
        dropped = f"; {event.dropped} dropped at the recheck" if event.dropped else ""
        return f"packed {', '.join(event.packed) or 'nothing'}{'; not packed: ' + skipped if skipped else ''}{dropped}"
    identifiers = f"; identifiers: {', '.join(event.identifiers)}" if event.identifiers else ""
    return (
        f"policy {event.policy}, threshold {event.threshold:g}, {event.assessor}, {event.fusion}; "
        f"terms: {', '.join(event.terms)}{identifiers}; next: {event.next_action}"
    )


def _describe_search(event: SearchAttempted) -> str:
    if event.outcome != "answered":
        return f"{event.channel}: {event.outcome}{': ' + event.why_not if event.why_not else ''}"
    rows = ", ".join(
        f"{row.unit_id}" + (f" {row.score:.3f}" if row.score is not None else "") for row in event.returned
    )
    counts = {"cut": event.cut, "duplicates": event.duplicates, "invalid": event.invalid, "unread": event.unread}
    also = "".join(f"; {count} {name}" for name, count in counts.items() if count)
    return f"{event.channel}: asked for {event.requested}, {event.new_units} new: {rows or 'nothing'}{also}"


def _describe_decision(event: CoverageAssessed) -> str:
    inferred = "; ".join(event.assessment.reasons) if event.assessment else "the assessor failed"
    refused = [f"{action.action}: {action.why_not}" for action in event.legal_actions if not action.legal]
    chosen = f"stop: {event.stop_reason.value}" if event.stop_reason else f"go on: {event.action}"
    return f"{inferred}; {chosen}; not legal: {', '.join(refused)}"


def make_console(*, stderr: bool = False) -> Console:
    """A console that leaves retrieved text alone: no markup, no emoji codes, no highlighting."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


class IndexingDisplay:
    """Progress of ``index`` on standard error, and what was skipped. A context manager."""

    def __init__(self) -> None:
        self._console = make_console(stderr=True)
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            transient=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._started = time.perf_counter()

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()

    def skip(self, path: Path, reason: str) -> None:
        """Say that a file was left out, and why."""
        self._console.print(Text(printable(f"skipped {path}: {reason}"), style="yellow"))

    def progress(self, stage: str, done: int, total: int | None) -> None:
        """Move the bar of one stage of the build."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done, total=total)

    def summarise(self, report: IndexReport, directory: Path | None) -> None:
        """Say what the index now holds and what had to be done for it."""
        where = f" in {directory}" if directory is not None else ""
        took = time.perf_counter() - self._started
        self._console.print(
            Text(
                f"indexed {report.units:,} units{where}: {report.added:,} added, {report.changed:,} changed, "
                f"{report.removed:,} removed, {report.unchanged:,} unchanged; "
                f"{report.embedded:,} embedded; {took:.1f} s"
            )
        )
