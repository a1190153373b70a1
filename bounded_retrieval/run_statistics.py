"""What many runs have in common: read recorded runs, count how they ended and what they cost, suggest what to change.

Counts only: no query, sub-answer or text of a unit is kept or shown. What is suggested follows from declared rules
(`RULES`), each with its threshold, and never from fewer than `LEAST_RUNS` runs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, StrictBool, ValidationError, model_validator
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from bounded_retrieval.contracts.chain import MAX_HOPS, RESOLVING, ChainUsage, Hop
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.stop import PROVISIONAL, StopReason
from bounded_retrieval.contracts.trace import DecisionTrace, EvidencePacked
from bounded_retrieval.contracts.wording import NOTES, printable
from bounded_retrieval.errors import ConfigurationError, RequestError, SourceError
from bounded_retrieval.ingest.decoding import cannot_read, decode_utf8, read_bytes
from bounded_retrieval.ingest.jsonl import MAX_LINE_BYTES
from bounded_retrieval.policies.chaining import spent
from bounded_retrieval.policies.tokenize import find_identifiers

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LEAST_RUNS = 10
"""Fewest runs of a kind on which anything is suggested."""

PICTURES = (".svg", ".png")
"""What a picture's name may end in."""

_Model = TypeVar("_Model", bound=BaseModel)

Kind = Literal["bounded", "chain"]
Report = dict[str, Any]

_TITLES: dict[Kind, str] = {"bounded": "bounded runs", "chain": "chains"}
_GOOD_END: dict[Kind, str] = {"bounded": "provisional", "chain": "resolved"}
_AMOUNTS: dict[Kind, dict[str, str]] = {
    "bounded": {"calls": "calls", "dense_calls": "dense calls", "hops": "searches"},
    "chain": {"calls": "calls", "dense_calls": "dense calls", "hops": "hops", "tokens": "tokens"},
}

_HOPS: dict[Kind, str] = {"bounded": "search", "chain": "hop"}
_COLOURS: dict[Kind, str] = {"bounded": "#4c78a8", "chain": "#54a24b"}
_SPREAD = {"in all": "total", "median": "median", "90 %": "p90", "most": "most"}
_NUMBERS = frozenset({"runs", "share", *_SPREAD, "runs without", "rests on", "from"})


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is counted of one run.

    Attributes:
        ended_well: a bounded run ended ``provisional``, a chain resolved.
        hops: hops of a chain; of a bounded run its searches.
        new_units: of each hop in order, how many units it found that no earlier one had; empty where it is not known.
        missing, missing_identifiers: whether query terms, and exact identifiers among them, are in no packed unit.
    """

    kind: Kind
    stop_reason: StopReason
    ended_well: bool
    calls: int
    dense_calls: int
    hops: int
    tokens: int = 0
    new_units: tuple[int, ...] = ()
    notes: frozenset[str] = frozenset()
    missing: bool = False
    missing_identifiers: bool = False


@dataclass(frozen=True)
class Rule:
    """A declared rule: from which share of the runs of a kind, in percent, something is suggested.

    Attributes:
        counts: the runs that are counted, in words.
        applies: whether a run is counted.
    """

    kind: Kind
    name: str
    percent: int
    counts: str
    suggestion: str
    applies: Callable[[Run], bool]

    def fires(self, count: int, runs: int) -> bool:
        """Whether this many of so many runs reach the threshold, in whole numbers."""
        return runs >= LEAST_RUNS and count * 100 >= self.percent * runs


def _stopped(*reasons: StopReason) -> Callable[[Run], bool]:
    return lambda run: run.stop_reason in reasons


def _noted(*notes: str) -> Callable[[Run], bool]:
    return lambda run: not run.notes.isdisjoint(notes)


def _early(run: Run) -> bool:
    return run.stop_reason is StopReason.NO_NEW_EVIDENCE and run.hops <= 2  # noqa: PLR2004 - first or second hop


RULES = (
    Rule(
        "bounded",
        "proxy_sufficient",
        50,
        "runs that the words' test ended",
        "the test spares the further search; read a sample of these runs, since a test on words can stop too early, "
        "and compare it with policy always_continue",
        _stopped(StopReason.PROXY_SUFFICIENT),
    ),
    Rule(
        "bounded",
        "premature_stop",
        20,
        "runs that the words' test ended while words of the query were missing",
        "the test may stop too early; raise the threshold, or use policy always_continue",
        lambda run: run.stop_reason is StopReason.PROXY_SUFFICIENT and run.missing,
    ),
    Rule(
        "bounded",
        "missing_identifiers",
        10,
        "runs that ended by resource_budget_exhausted with an exact identifier missing",
        "the identifiers may not be in the collection, or be written otherwise there; look them up before raising a "
        "limit",
        lambda run: run.stop_reason is StopReason.RESOURCE_BUDGET_EXHAUSTED and run.missing_identifiers,
    ),
    Rule(
        "bounded",
        "no_new_evidence",
        20,
        "runs whose second search found nothing new",
        "both channels find the same; one search may do (policy fixed_lexical or fixed_dense)",
        _stopped(StopReason.NO_NEW_EVIDENCE),
    ),
    Rule(
        "bounded",
        "path_unresolved",
        10,
        "runs that ended by path_unresolved or ambiguous_request",
        "relations or names are missing, or stand for several entities; add relationships, or ask back",
        _stopped(StopReason.PATH_UNRESOLVED, StopReason.AMBIGUOUS_REQUEST),
    ),
    Rule(
        "bounded",
        "deadline_exceeded",
        5,
        "runs that the clock ended",
        "searches are too slow for deadline_ms; measure them, or raise it",
        _stopped(StopReason.DEADLINE_EXCEEDED),
    ),
    Rule(
        "bounded",
        "retrieval_failed",
        1,
        "runs in which no search answered",
        "see the protected records (diagnostics) for what the searches raised",
        _stopped(StopReason.RETRIEVAL_FAILED),
    ),
    Rule(
        "bounded",
        "dropped_at_recheck",
        5,
        "runs with the note dropped_at_recheck",
        "the index lags behind its sources, or behind who may see what; index more often",
        _noted("dropped_at_recheck"),
    ),
    Rule(
        "chain",
        "depth_cap",
        20,
        "chains that made as many hops as they may",
        "the questions are deeper than the cap, or the planner drifts; read some trails before raising max_hops",
        _stopped(StopReason.DEPTH_CAP),
    ),
    Rule(
        "chain",
        "no_new_evidence_early",
        20,
        "chains that ended by no_new_evidence on the first or second hop",
        "hops add little here; route these questions to plain retrieval",
        _early,
    ),
    Rule(
        "chain",
        "repeated_query",
        10,
        "chains whose next query was one that had been made",
        "the planner circles; show it the trail's queries, or give it a decomposition",
        _stopped(StopReason.REPEATED_QUERY),
    ),
    Rule(
        "chain",
        "token_budget_exhausted",
        10,
        "chains whose models used up the tokens",
        "raise max_tokens, or give planner and reader less to read",
        _stopped(StopReason.TOKEN_BUDGET_EXHAUSTED),
    ),
    Rule(
        "chain",
        "resource_budget_exhausted",
        10,
        "chains without a call, or a step of the caller's recursion limit, left",
        "max_calls or the recursion limit is smaller than max_hops needs; raise it, or lower max_hops",
        _stopped(StopReason.RESOURCE_BUDGET_EXHAUSTED),
    ),
    Rule(
        "chain",
        "open_at_the_end",
        20,
        "chains that ended by no_next_query or sufficient with a part open",
        "the reader finds no sub-answer, or the planner gives up; read some trails, and look whether the collection "
        "holds the answers",
        lambda run: run.stop_reason in RESOLVING and not run.ended_well,
    ),
    Rule(
        "chain",
        "deadline_exceeded",
        5,
        "chains that the clock ended",
        "hops are too slow for deadline_ms; measure search, planner and reader, or raise it",
        _stopped(StopReason.DEADLINE_EXCEEDED),
    ),
    Rule(
        "chain",
        "retrieval_failed",
        1,
        "chains that a failed search or planner ended",
        "see the protected records (diagnostics) for what was raised",
        _stopped(StopReason.RETRIEVAL_FAILED),
    ),
    Rule(
        "chain",
        "part_failed",
        1,
        "chains whose planner, reader or sufficiency test failed, or gave an unusable query",
        "see the protected records (diagnostics) for what was raised",
        _noted("planner_failed", "reader_failed", "sufficiency_failed", "unusable_query"),
    ),
    Rule(
        "chain",
        "dropped_at_recheck",
        5,
        "chains with the note dropped_at_recheck",
        "the index lags behind its sources, or behind who may see what; index more often",
        _noted("dropped_at_recheck"),
    ),
)
"""Every rule by which something is suggested."""


class _ChainFacts(BaseModel):
    usage: ChainUsage | None = None
    notes: tuple[str, ...] = ()


class _ChainRun(_ChainFacts):
    trail: Annotated[tuple[Hop, ...], Field(max_length=MAX_HOPS)]
    stop_reason: StopReason
    resolved: StrictBool
    unresolved: tuple[str, ...]
    chain: _ChainFacts | None = None

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if self.resolved is bool(self.unresolved) or (self.resolved and self.stop_reason not in RESOLVING):
            raise ValueError("resolved, unresolved and stop_reason do not agree")
        return self


class _NotARunError(ValueError):
    """Says in one line why a value is no run."""


def read_runs(path: Path) -> Iterator[Run]:
    """Read the runs of a .json file (one run, or a list) or, line by line, of a .jsonl file (one a line).

    Raises:
        SourceError: names the file, and the line and the field where there is one.
    """
    suffix = path.suffix.lower()
    if suffix not in (".json", ".jsonl"):
        raise SourceError(f"{path}: expected a .json or .jsonl file of runs")
    empty = True
    for run in _from_lines(path) if suffix == ".jsonl" else _from_json(path):
        empty = False
        yield run
    if empty:
        raise SourceError(f"{path}: empty (no run in it)")


def _from_lines(path: Path) -> Iterator[Run]:
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        text = decode_utf8(line, where)
        if not text.strip():
            continue
        value = _parse(text.rstrip(), path, number)
        try:
            run = _as_run(value)
        except _NotARunError as error:
            raise SourceError(f"{where}: {error}") from None
        yield run


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise SourceError(f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes")
                yield number, line
    except OSError as error:
        raise cannot_read(path, error) from error


def _from_json(path: Path) -> Iterator[Run]:
    text = decode_utf8(read_bytes(path), str(path))
    if not text.strip():
        return
    value = _parse(text, path, 1)
    for position, item in enumerate(value if isinstance(value, list) else [value]):
        try:
            run = _as_run(item)
        except _NotARunError as error:
            line = _line_of_item(text, position) if isinstance(value, list) else _line_of(text, 0)
            raise SourceError(f"{path}, line {line}: {error}") from None
        yield run


def _parse(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{path}, line {first_line + error.lineno - 1}"
        if error.msg == "Extra data":
            raise SourceError(f"{where}: more than one JSON value; a .jsonl file holds one a line") from error
        raise SourceError(f"{where}: not JSON ({error.msg}, column {error.colno})") from error
    except RecursionError as error:
        raise SourceError(f"{path}, line {first_line}: not readable JSON (nested too deeply)") from error
    except ValueError as error:  # Python reads no whole number of more than 4,300 digits
        raise SourceError(f"{path}, line {first_line}: not readable JSON (a number is too long)") from error


def _line_of(text: str, start: int) -> int:
    return text.count("\n", 0, _skip_space(text, start)) + 1


def _line_of_item(text: str, position: int) -> int:
    """The line on which an item of the list begins; the text has been read as a list before."""
    decoder = json.JSONDecoder()
    place = _skip_space(text, 0) + 1
    for _ in range(position):
        _, end = decoder.raw_decode(text, _skip_space(text, place))
        place = _skip_space(text, end) + 1
    return _line_of(text, place)


def _skip_space(text: str, place: int) -> int:
    while text[place] in " \t\n\r":
        place += 1
    return place


def _as_run(value: Any) -> Run:
    """What is counted of a run, read from its JSON form.

    It may be a decision trace, the output of ``ask --json``, a graph's output, or a chain's.

    Raises:
        ValueError: it is none of these; names the field.
    """
    if not isinstance(value, dict):
        raise _NotARunError(f"expected a run, a JSON object (got {_kind_of(value)})")
    if "trail" in value:
        return _from_chain(value)
    if "events" in value:
        return _from_trace(value, "")
    if value.get("trace") is not None:
        return _from_trace(value["trace"], "trace.")
    if value.get("packet") is not None:
        return _from_packet(value["packet"], "packet.")
    if "items" in value and "resolution" in value:
        return _from_packet({key: field for key, field in value.items() if key != "trace"}, "")
    raise _NotARunError("not a run: expected events, trace, packet or trail, or the fields of a packet")


def _kind_of(value: Any) -> str:
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")


def _checked(model: type[_Model], value: Any, prefix: str) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        field = ".".join(map(str, problem["loc"]))
        others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        place = f"{prefix}{field}" or "run"
        raise _NotARunError(f"{place.rstrip('.')}: {problem['msg'].removeprefix('Value error, ')}{others}") from None


def _from_trace(value: Any, prefix: str) -> Run:
    trace = _checked(DecisionTrace, value, prefix)
    end = trace.events[-1] if trace.events else None
    if not isinstance(end, EvidencePacked):
        raise _NotARunError(f"{prefix}events: do not end in evidence_packed, so the run is not finished")
    identifiers = {name for event in trace.events if event.event == "request_inspected" for name in event.identifiers}
    return Run(
        kind="bounded",
        stop_reason=end.stop_reason,
        ended_well=end.stop_reason in PROVISIONAL and "dropped_at_recheck" not in end.notes,
        calls=end.usage.calls,
        dense_calls=end.usage.dense_calls,
        hops=end.usage.iterations,
        new_units=tuple(search.new_units for search in trace.searches if search.outcome != "not_started"),
        notes=frozenset(end.notes),
        missing=bool(end.missing_terms),
        missing_identifiers=not identifiers.isdisjoint(end.missing_terms),
    )


def _from_packet(value: Any, prefix: str) -> Run:
    packet = _checked(EvidencePacket, value, prefix)
    return Run(
        kind="bounded",
        stop_reason=packet.stop_reason,
        ended_well=packet.resolution == "provisional",
        calls=packet.usage.calls,
        dense_calls=packet.usage.dense_calls,
        hops=packet.usage.iterations,
        notes=frozenset(packet.notes),
        missing=bool(packet.missing_terms),
        # A packet does not say which of the missing words are identifiers; their form does.
        missing_identifiers=any(find_identifiers(term) for term in packet.missing_terms),
    )


def _from_chain(value: dict[str, Any]) -> Run:
    chain = _checked(_ChainRun, value, "")
    facts = chain if chain.chain is None else chain.chain
    usage = spent(chain.trail) if facts.usage is None else facts.usage
    return Run(
        kind="chain",
        stop_reason=chain.stop_reason,
        ended_well=chain.resolved,
        calls=usage.calls,
        dense_calls=usage.dense_calls,
        hops=len(chain.trail),
        tokens=usage.tokens,
        new_units=tuple(hop.new_units for hop in chain.trail),
        notes=frozenset(facts.notes),
    )


class RunStatistics:
    """Counts of runs, kept apart for bounded runs and for chains; no run itself is kept."""

    def __init__(self, runs: Iterable[Run] = ()) -> None:
        self._tallies: dict[Kind, _Tally] = {kind: _Tally(kind) for kind in _TITLES}
        for run in runs:
            self.add(run)

    def add(self, run: Run) -> None:
        """Count one more run."""
        self._tallies[run.kind].add(run)

    def report(self) -> Report:
        """Everything counted and what is suggested, JSON-native; the order of the runs makes no difference."""
        kinds: Report = {kind: tally.report() for kind, tally in self._tallies.items()}
        return {**kinds, "least_runs": LEAST_RUNS, "rules": [self._judge(rule) for rule in RULES]}

    def _judge(self, rule: Rule) -> Report:
        tally = self._tallies[rule.kind]
        count = tally.rules[rule.name]
        return {
            "kind": rule.kind,
            "rule": rule.name,
            "counts": rule.counts,
            "count": count,
            "runs": tally.runs,
            "share": _share(count, tally.runs),
            "threshold": rule.percent / 100,
            "suggested": rule.fires(count, tally.runs),
            "suggestion": rule.suggestion,
        }


class _Tally:
    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.runs = 0
        self.rules: Counter[str] = Counter()
        self._ended_well = 0
        self._stop_reasons: Counter[str] = Counter()
        self._notes: Counter[str] = Counter()
        self._amounts: dict[str, Counter[int]] = {name: Counter() for name in _AMOUNTS[kind]}
        self._new_units: list[Counter[int]] = []

    def add(self, run: Run) -> None:
        self.runs += 1
        self._ended_well += run.ended_well
        self._stop_reasons[run.stop_reason.value] += 1
        self._notes.update(run.notes)
        self.rules.update(rule.name for rule in RULES if rule.kind == run.kind and rule.applies(run))
        for name, counter in self._amounts.items():
            counter[getattr(run, name)] += 1
        for place, units in enumerate(run.new_units):
            if place == len(self._new_units):
                self._new_units.append(Counter())
            self._new_units[place][units] += 1

    def report(self) -> Report:
        good = {"count": self._ended_well, "share": _share(self._ended_well, self.runs)}
        hops = [
            {"hop": number, "runs": counter.total(), **_spread(counter), "none": counter[0]}
            for number, counter in enumerate(self._new_units, 1)
        ]
        return {
            "runs": self.runs,
            _GOOD_END[self.kind]: good,
            "stop_reasons": _shares(self._stop_reasons, self.runs),
            **{name: _spread(counter) for name, counter in self._amounts.items()},
            "new_units": hops,
            "notes": _shares(self._notes, self.runs),
        }


def _share(count: int, total: int) -> float | None:
    return round(count / total, 4) if total else None


def _shares(counter: Counter[str], total: int) -> Report:
    ordered = sorted(counter.items(), key=lambda pair: (-pair[1], pair[0]))
    return {name: {"count": count, "share": _share(count, total)} for name, count in ordered}


def _spread(counter: Counter[int]) -> Report:
    return {
        "total": sum(value * count for value, count in counter.items()),
        "median": _percentile(counter, 50),
        "p90": _percentile(counter, 90),
        "most": max(counter, default=None),
    }


def _percentile(counter: Counter[int], percent: int) -> int | None:
    """The smallest value that at least so many percent of the values do not exceed: always one that occurred."""
    left = -(-percent * counter.total() // 100)
    for value in sorted(counter):
        left -= counter[value]
        if left <= 0:
            return value
    return None


@dataclass(frozen=True, kw_only=True)
class _Section:
    title: str
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    after: str = ""


def render_statistics(report: Report, console: Console) -> RenderableType:
    """The report for a person: tables in a terminal, plain lines elsewhere."""
    sections = [section for kind in _TITLES if report[kind]["runs"] for section in _of_kind(kind, report[kind])]
    sections.append(_suggestions(report))
    shown = [_table(section) if console.is_terminal else Text(_plain(section)) for section in sections]
    return Group(*shown)


def _of_kind(kind: Kind, counted: Report) -> Iterator[_Section]:
    title, hop, good = _TITLES[kind], _HOPS[kind], counted[_GOOD_END[kind]]
    yield _Section(
        title=f"{title}: {counted['runs']:,}, {_GOOD_END[kind]}: {good['count']:,} ({good['share']:.1%})",
        columns=("stop reason", "runs", "share"),
        rows=tuple((name, *_count(each)) for name, each in counted["stop_reasons"].items()),
    )
    yield _Section(
        title=f"{title}: cost of a run",
        columns=("counted", *_SPREAD),
        rows=tuple((word, *_spread_cells(counted[name])) for name, word in _AMOUNTS[kind].items()),
    )
    yield _Section(
        title=f"{title}: new units of each {hop}",
        columns=(hop, "runs", *_SPREAD, "runs without"),
        rows=tuple(
            (f"{each['hop']}", f"{each['runs']:,}", *_spread_cells(each), f"{each['none']:,}")
            for each in counted["new_units"]
        ),
    )
    yield _Section(
        title=f"{title}: notes",
        columns=("note", "runs", "share", "says"),
        rows=tuple(
            (printable(" ".join(name.split())), *_count(each), NOTES.get(name, ""))
            for name, each in counted["notes"].items()
        ),
    )


def _count(each: Report) -> tuple[str, str]:
    return f"{each['count']:,}", f"{each['share']:.1%}"


def _spread_cells(spread: Report) -> tuple[str, ...]:
    return tuple(f"{spread[name]:,}" for name in _SPREAD.values())


def _suggestions(report: Report) -> _Section:
    suggested = [rule for rule in report["rules"] if rule["suggested"]]
    others = [rule for rule in report["rules"] if rule["runs"] >= LEAST_RUNS and not rule["suggested"]]
    unmet = ", ".join(
        f"{rule['kind']} {rule['rule']} {rule['count']:,} of {rule['runs']:,} (from {_from(rule)})" for rule in others
    )
    few = [_TITLES[kind] for kind in _TITLES if 0 < report[kind]["runs"] < LEAST_RUNS]
    too_few = [f"{title}: nothing is suggested on fewer than {LEAST_RUNS} runs" for title in few]
    return _Section(
        title="suggestions",
        columns=("rule", "rests on", "from", "suggestion"),
        rows=tuple((f"{rule['kind']} {rule['rule']}", _basis(rule), _from(rule), _advice(rule)) for rule in suggested),
        after="\n".join([*([f"below their thresholds: {unmet}"] if unmet else []), *too_few]),
    )


def _basis(rule: Report) -> str:
    return f"{rule['count']:,} of {rule['runs']:,} ({rule['share']:.1%})"


def _from(rule: Report) -> str:
    return f"{rule['threshold']:.0%}"


def _advice(rule: Report) -> str:
    return f"{rule['counts']}: {rule['suggestion']}"


def _table(section: _Section) -> RenderableType:
    table = Table(title=Text(section.title, style="bold"), title_justify="left", caption_justify="left")
    for place, column in enumerate(section.columns):
        is_number = column in _NUMBERS
        table.add_column(column, justify="right" if is_number and place else "left", overflow="fold", no_wrap=is_number)
    for row in section.rows:
        table.add_row(*map(Text, row))
    shown = [table] if section.rows else [Text(f"{section.title}: none", style="bold")]
    return Group(*shown, *([Text(section.after)] if section.after else []), Text())


def _plain(section: _Section) -> str:
    rows = [section.columns, *section.rows] if section.rows else []
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if column in _NUMBERS and place else cell.ljust(width)
            for place, (cell, width, column) in enumerate(zip(row, widths, section.columns, strict=True))
        ).rstrip()
        for row in rows
    ]
    title = section.title if rows else f"{section.title}: none"
    return "\n".join([title, *(f"  {line}" for line in lines), *([section.after] if section.after else []), ""])


def check_picture(path: Path) -> None:
    """Make sure that a picture can be drawn under this name before anything is read.

    Raises:
        RequestError: the name ends neither in .svg nor in .png.
        ConfigurationError: matplotlib is not installed; names the extra.
    """
    if path.suffix.lower() not in PICTURES:
        raise RequestError(f"--plot {path}: expected a name that ends in {' or '.join(PICTURES)}")
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        message = '--plot: matplotlib is not installed; run pip install "bounded-retrieval[plots]"'
        raise ConfigurationError(message) from error


def draw_stop_reasons(report: Report, path: Path) -> None:
    """Draw how the runs ended, bounded runs and chains apart; the same report gives the same file.

    Raises:
        RequestError: the name ends neither in .svg nor in .png.
        ConfigurationError: matplotlib is not installed.
    """
    check_picture(path)
    import matplotlib as mpl
    from matplotlib.figure import Figure

    kinds = [kind for kind in _TITLES if report[kind]["runs"]]
    bars = [len(report[kind]["stop_reasons"]) for kind in kinds]
    # A fixed salt and no date: the same counts give the same file.
    with mpl.rc_context({"svg.hashsalt": "stop-reasons", "svg.fonttype": "none", "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(8, sum(bars) * 0.35 + len(bars) * 0.9), facecolor="white", layout="constrained")
        rows = figure.subplots(len(kinds), 1, squeeze=False, height_ratios=bars)
        for kind, axes in zip(kinds, rows[:, 0], strict=True):
            _draw_bars(axes, kind, report[kind])
        is_svg = path.suffix.lower() == ".svg"
        metadata = {"Date": None, "Creator": None} if is_svg else {"Software": None}
        figure.savefig(path, metadata=metadata, dpi=150)


def _draw_bars(axes: Axes, kind: Kind, counted: Report) -> None:
    stops = counted["stop_reasons"]
    bars = axes.barh(list(stops), [each["share"] * 100 for each in stops.values()], color=_COLOURS[kind])
    axes.bar_label(
        bars, labels=[" of ".join([f"{each['count']:,}", f"{counted['runs']:,}"]) for each in stops.values()], padding=3
    )
    axes.invert_yaxis()
    axes.set_xlim(0, 115)
    axes.set_xticks(range(0, 101, 20))
    axes.set_title(f"{_TITLES[kind]}: percent by stop reason", loc="left", fontsize=10)
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
