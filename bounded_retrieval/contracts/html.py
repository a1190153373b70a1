"""Packets and traces as HTML for notebooks.

Titles, texts, ids, metadata and queries come from outside. Everything that is not `Html` is escaped on its way into a
table, there are no links, scripts or external resources, and nothing from outside stands in an attribute.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from bounded_retrieval.contracts.assessment import Observation, QueryWeights
from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.chain import ChainResult
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.packet import ChannelResult, EvidenceItem, EvidencePacket
from bounded_retrieval.contracts.trace import (
    CoverageAssessed,
    DecisionTrace,
    RequestInspected,
    SearchAttempted,
    UnitsScored,
)
from bounded_retrieval.contracts.wording import (
    COUNTED,
    NO_SCORES,
    NOTES,
    WHY_NOT,
    describe_chain_end,
    describe_choice,
    describe_event,
    describe_fired,
    describe_missing,
    describe_source,
    describe_weight,
    printable,
)

MAX_TERM_ROWS = 100
MAX_UNIT_COLUMNS = 24
"""A term table shows at most so many terms and units, a table of scores so many rows; the trace itself holds all."""

MAX_PLAIN_CHARS = 200
"""A text longer than this, or of several lines, keeps its white space and can be scrolled."""

HELD = "\u2713"
NOTHING = "\u2013"

# Characters that reverse the order of what follows them; inside a line of ours they would reorder our words too.
_REORDERING = re.compile(r"[\u202a-\u202e\u2066-\u2069]")

# Grey lines and inherited colours: the same in light and dark themes. JupyterLab's own table rules need !important.
_STYLE = """
.bounded-retrieval { color: inherit; line-height: 1.4; overflow-x: auto; }
.bounded-retrieval table { border-collapse: collapse; border: 0; margin: .3em 0 1em; color: inherit; font-size: .95em; }
.bounded-retrieval caption { caption-side: top; text-align: left; font-weight: bold; color: inherit; padding: .2em 0; }
.bounded-retrieval tr { background: none !important; }
.bounded-retrieval th, .bounded-retrieval td { border: 1px solid rgba(128, 128, 128, .5) !important; color: inherit;
  padding: .25em .6em; text-align: left !important; vertical-align: top !important; white-space: normal !important;
  max-width: none; overflow-wrap: break-word; }
.bounded-retrieval thead th, .bounded-retrieval tfoot td { background: rgba(128, 128, 128, .14); }
.bounded-retrieval th { font-weight: bold; }
.bounded-retrieval td.number { text-align: right !important; white-space: nowrap !important; }
.bounded-retrieval code { background: none !important; color: inherit; padding: 0 !important; font-size: .95em; }
.bounded-retrieval .long { max-height: 11em; min-width: 11em; overflow: auto; margin: 0; padding: 0; border: 0;
  background: none; color: inherit; font: inherit; white-space: pre-wrap; word-break: normal;
  overflow-wrap: anywhere; }
"""


class Html(str):
    """Markup that is safe already. Every other string is escaped when it is shown."""

    __slots__ = ()


def rows_to_html(columns: Sequence[Any], rows: Iterable[Sequence[Any]], caption: Any = "") -> str:
    """A table that stands by itself in a notebook; whatever is not `Html` is escaped.

    Args:
        columns: headings.
        rows: cells; numbers are set right, none is a dash, a text of several lines keeps its white space.
        caption: stands above the table.
    """
    return _wrap(_table(columns, rows, caption))


def packet_to_html(packet: EvidencePacket) -> str:
    """What stopped the run, what is missing, cost beside limits, and the evidence with its source."""
    stopped = Html(
        f"<b>{_code(packet.stop_reason.value)}</b> ({_shown(packet.resolution)})<br>"
        f"{_shown(packet.stop_reason.meaning)} <b>{_shown(packet.stop_reason.not_meaning)}</b>"
    )
    facts: list[tuple[str, Any]] = [("stopped", stopped), ("missing", describe_missing(packet))]
    facts += [("note", Html(f"{_code(note)}: {_shown(NOTES.get(note, note))}")) for note in packet.notes]
    parts = [_facts(facts, Html(f"evidence packet {_code(packet.query_id)}")), _cost(packet.limits, packet.usage)]
    if packet.path:
        steps = [(step.subject, step.relation, step.object, _code(step.source_unit)) for step in packet.path]
        parts.append(_table(("subject", "relation", "object", "source unit"), steps, "path"))
    return _wrap(*parts, _evidence(packet.items))


def trace_to_html(trace: DecisionTrace) -> str:
    """One row for each step, then for each decision what was matched where and which actions were legal.

    Scores that were looked up for the fusion have a table of their own.
    """
    steps = [
        (step, _code(event.event), _long(_in_line(describe_event(event)))) for step, event in enumerate(trace.events, 1)
    ]
    request = _request(trace)
    facts = [("query", _long(request.query)), ("identity", _code(request.query_id))] if request else []
    parts = [_facts(facts, "decision trace"), _table(("step", "event", "what happened"), steps)]
    for step, event in enumerate(trace.events, 1):
        if isinstance(event, CoverageAssessed):
            parts += _decision(step, event, trace)
        if isinstance(event, UnitsScored):
            parts += _scoring(step, event)
    return _wrap(*parts)


def chain_to_html(result: ChainResult) -> str:
    """Whether the chain resolved, what is open, then the trail: one row for each hop."""
    facts: list[tuple[str, Any]] = [
        ("ended", Html(f"<b>{_shown(describe_chain_end(result))}</b>")),
        ("", f"{result.stop_reason.meaning} {result.stop_reason.not_meaning}"),
        ("question", _long(result.query)),
    ]
    if result.clarification:
        facts.append(("asked back", _long(result.clarification)))
    facts += [("note", Html(f"{_code(note)}: {_shown(NOTES.get(note, note))}")) for note in result.notes]
    rows = [
        (
            hop.number,
            _long(hop.query),
            None if hop.sub_answer is None else _long(hop.sub_answer),
            _long("\n".join(hop.unit_ids)),
            f"{hop.new_units} of {len(hop.unit_ids)}",
            hop.usage.calls,
            _code(describe_fired(hop)),
        )
        for hop in result.trail
    ]
    columns = ("hop", "query", "sub-answer", "units", "new", "calls", "rule fired")
    trail = _table(columns, rows, "trail") if rows else Html("<p><b>no hop was made</b></p>")
    return _wrap(_facts(facts, Html(f"recursive chain {_code(result.query_id)}")), trail)


def _evidence(items: Sequence[EvidenceItem]) -> Html:
    if not items:
        return Html("<p><b>no evidence</b></p>")
    channels: tuple[Channel, ...] = get_args(Channel)
    rows = [
        (
            position,
            _source(item),
            *(_place(item.channels.get(channel), item.contributions.get(channel)) for channel in channels),
            f"{item.fused_score:.4f}",
            len(item.text),
            _long(item.text),
        )
        for position, item in enumerate(items, 1)
    ]
    return _table(("", "unit and source", *channels, "fused score", "characters", "text"), rows, "evidence, best first")


def _source(item: EvidenceItem) -> Html:
    title = Html(f"<b>{_shown(item.title)}</b><br>") if item.title else ""
    other = {key: value for key, value in item.metadata.items() if key not in ("source", "section")}
    lines = _long("\n".join(f"{key}: {value}" for key, value in other.items())) if other else ""
    return Html(f"{title}{_code(item.unit_id)}<br>{_shown(describe_source(item))}{lines}")


def _place(result: ChannelResult | None, added: float | None) -> Html | None:
    if result is None:
        lines = [] if added is None else ["not returned"]
    else:
        lines = [f"rank {result.rank}", "no score" if result.score is None else f"score {result.score:.3f}"]
    if added is not None:
        lines.append(f"adds {added:.4f}")
    return Html("<br>".join(lines)) if lines else None


def _cost(limits: Budget, usage: Usage) -> Html:
    rows: list[tuple[Any, ...]] = []
    for field, word in COUNTED.items():
        limit = f"max_{field}"
        counts = Budget.model_fields[limit].description
        rows.append((word, getattr(usage, field), getattr(limits, limit), _code(limit), counts))
    rows.insert(1, ("of these, dense", usage.dense_calls, None, None, "calls to the dense channel"))
    if usage.scored_units:
        rows.append(("scores looked up", usage.scored_units, None, None, "observed units, for the fusion; no rows"))
    if limits.deadline_ms is not None:
        counts = Budget.model_fields["deadline_ms"].description
        rows.append(("milliseconds", None, limits.deadline_ms, _code("deadline_ms"), counts))
    return _table(("cost", "spent", "at most", "limit", "counts"), rows)


def _decision(step: int, event: CoverageAssessed, trace: DecisionTrace) -> list[Html]:
    inferred = "; ".join(event.assessment.reasons) if event.assessment else NOTES["assessor_failed"]
    left = ", ".join(f"{COUNTED.get(field, field)} {count:,}" for field, count in event.remaining.items())
    facts: list[tuple[str, Any]] = [("inferred", inferred), ("left", left)]
    if event.assessment:
        verdict = "sufficient by the declared test" if event.assessment.sufficient else "not sufficient"
        compared = f"{event.assessment.coverage:.3f}, threshold {event.assessment.threshold:g}: {verdict}"
        facts.insert(0, ("coverage", f"{compared} ({event.assessment.assessor})"))
    actions = [
        (
            _code(action.action),
            "legal" if action.legal else "not legal",
            None if action.why_not is None else Html(f"{_code(action.why_not)}: {_why_not(action.why_not)}"),
            "chosen" if action.action == event.action else "",
        )
        for action in event.legal_actions
    ]
    return [
        _facts(facts, f"decision at step {step}: {describe_choice(event)}"),
        *_factors(event),
        *_terms(event, trace, _places(trace, step)),
        _table(("action", "legal", "why not", "chosen"), actions),
    ]


def _factors(event: CoverageAssessed) -> list[Html]:
    assessment = event.assessment
    if assessment is None or not assessment.factors:
        return []
    rows = [
        (_code(each.name), Html(f"{each.value:.3f}"), Html(f"{each.points:g}"), each.text)
        for each in assessment.factors
    ]
    return [_table(("factor", "value", "points", "says"), rows, f"added up by {assessment.assessor}")]


def _scoring(step: int, event: UnitsScored) -> list[Html]:
    heading = f"scores looked up at step {step}"
    if event.why_not is not None:
        reason = Html(f"{_code(event.why_not)}: {_shown(NO_SCORES.get(event.why_not, event.why_not))}")
        return [_facts([("no scores, so ranks decide", reason)], heading)]
    found = [(channel, each) for channel, scores in event.scores.items() for each in scores]
    rows = [(channel, _code(each.unit_id), Html(f"{each.score:.3f}")) for channel, each in found[:MAX_TERM_ROWS]]
    left_out = len(found) - len(rows)
    more = [Html(f"<p>{left_out:,} more scores not shown</p>")] if left_out else []
    return [_table(("scored by", "unit that it did not return", "score"), rows, heading), *more]


def _terms(event: CoverageAssessed, trace: DecisionTrace, places: dict[str, list[str]]) -> list[Html]:
    request = _request(trace)
    if request is None:
        return []
    units = event.observations[:MAX_UNIT_COLUMNS]
    marks = [("term", term, [term in unit.matched_terms for unit in event.observations]) for term in request.terms]
    marks += [
        ("identifier, exact", name, [name in unit.matched_identifiers for unit in event.observations])
        for name in request.identifiers
    ]
    weights = event.weights
    weighed = ("weight",) if weights is not None else ()
    rows = [
        (
            name,
            kind,
            *_weight(name, kind, weights),
            *(HELD if mark else NOTHING for mark in held[: len(units)]),
            HELD if any(held) else "missing",
        )
        for kind, name, held in marks[:MAX_TERM_ROWS]
    ]
    columns = ("looked for", "kind", *weighed, *(_heading(unit, places) for unit in units), "any unit")
    totals = ("terms held", "", *("" for _ in weighed), *(_held(unit, len(request.terms), event) for unit in units), "")
    table = _table(columns, rows, f"matched: {HELD} the unit holds it, {NOTHING} it does not", footer=totals)
    left_out = _left_out(len(marks) - len(rows), len(event.observations) - len(units), event.dropped_observations)
    return [table, *([Html(f"<p>{_shown(left_out)}</p>")] if left_out else [])]


def _weight(name: str, kind: str, weights: QueryWeights | None) -> tuple[str, ...]:
    if weights is None:
        return ()
    return (describe_weight(name, weights) if kind == "term" else "",)


def _heading(unit: Observation, places: dict[str, list[str]]) -> Html:
    return Html("<br>".join([_code(unit.unit_id), *map(_shown, places.get(unit.unit_id, []))]))


def _held(unit: Observation, terms: int, event: CoverageAssessed) -> str:
    if not unit.fits:
        return f"too long ({unit.chars:,} characters): not looked at"
    is_best = event.assessment is not None and event.assessment.best_unit_id == unit.unit_id
    return f"{len(unit.matched_terms)} of {terms}{', best' if is_best else ''}"


def _request(trace: DecisionTrace) -> RequestInspected | None:
    return next((event for event in trace.events if isinstance(event, RequestInspected)), None)


def _places(trace: DecisionTrace, step: int) -> dict[str, list[str]]:
    """Per unit, channel and rank of each row that had returned it by a step."""
    places: dict[str, list[str]] = {}
    for event in trace.events[:step]:
        if isinstance(event, SearchAttempted):
            for row in event.returned:
                places.setdefault(row.unit_id, []).append(f"{event.channel} {row.rank}")
    return places


def _left_out(terms: int, units: int, dropped: int) -> str:
    counts = {"more terms": terms, "more units": units, "units dropped at the recheck": dropped}
    return "; ".join(f"{count:,} {what} not shown" for what, count in counts.items() if count)


def _why_not(code: str) -> Html:
    return _shown(WHY_NOT.get(code, code))


def _facts(facts: Sequence[tuple[str, Any]], caption: Any) -> Html:
    return _table((), facts, caption, headed_rows=True)


def _table(
    columns: Sequence[Any],
    rows: Iterable[Sequence[Any]],
    caption: Any = "",
    *,
    footer: Sequence[Any] = (),
    headed_rows: bool = False,
) -> Html:
    above = f"<caption>{_shown(caption)}</caption>" if caption else ""
    head = "".join(f'<th scope="col">{_shown(column)}</th>' for column in columns)
    body = "".join(f"<tr>{_cells(row, headed=headed_rows)}</tr>" for row in rows)
    foot = f"<tfoot><tr>{_cells(footer)}</tr></tfoot>" if footer else ""
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    return Html(f"<table>{above}{head}<tbody>{body}</tbody>{foot}</table>")


def _cells(row: Sequence[Any], *, headed: bool = False) -> str:
    cells = [_cell(value) for value in row]
    if headed and row:
        cells[0] = f'<th scope="row">{_shown(row[0])}</th>'
    return "".join(cells)


def _cell(value: Any) -> str:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return f'<td class="number">{value:,}</td>'
    if isinstance(value, str) and not isinstance(value, Html) and ("\n" in value or len(value) > MAX_PLAIN_CHARS):
        value = _long(value)
    return f"<td>{NOTHING if value is None else _shown(value)}</td>"


def _shown(value: Any) -> Html:
    """A value as one piece of text inside markup: escaped, without control and reordering characters."""
    if isinstance(value, Html):
        return value
    return Html(html.escape(_in_line(printable(clean_text(str(value))))))


def _in_line(text: str) -> str:
    return _REORDERING.sub("\ufffd", text)


def _code(value: str) -> Html:
    return Html(f"<code>{_shown(value)}</code>")


def _long(text: str) -> Html:
    """A text of any length with its white space: wrapped, and scrolled where it is long (by keyboard too)."""
    # A line break right after the tag is dropped by every browser, so the text's own first one stays.
    return Html(f'<pre class="long" tabindex="0" dir="auto">\n{html.escape(printable(clean_text(text)))}</pre>')


def _wrap(*parts: str) -> str:
    # The two *_ignore classes keep MathJax away: a "$" in a retrieved text is a dollar.
    return f'<div class="bounded-retrieval tex2jax_ignore mathjax_ignore"><style>{_STYLE}</style>{"".join(parts)}</div>'
