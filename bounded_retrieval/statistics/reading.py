"""Files to runs: decision traces, outputs of ``ask --json``, and outputs of both graphs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, Field, StrictBool, ValidationError, model_validator

from bounded_retrieval.contracts.chain import MAX_HOPS, RESOLVING, ChainUsage, Hop
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.regular_file import check_regular
from bounded_retrieval.contracts.stop import PROVISIONAL, StopReason
from bounded_retrieval.contracts.trace import DecisionTrace, EvidencePacked
from bounded_retrieval.errors import MAX_PROBLEM_CHARS, SourceError, field_path, one_line
from bounded_retrieval.ingest.decoding import cannot_read, decode_utf8, read_bytes
from bounded_retrieval.ingest.jsonl import MAX_LINE_BYTES
from bounded_retrieval.policies.chaining import spent
from bounded_retrieval.policies.tokenize import find_identifiers

Kind = Literal["bounded", "chain"]
_Model = TypeVar("_Model", bound=BaseModel)
# A value read from a file, and what says on which of its lines the value begins.
_Placed = tuple[Any, Callable[[], int]]


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
    _check_exists(path)
    suffix = path.suffix.lower()
    if suffix not in (".json", ".jsonl"):
        raise SourceError(f"{path}: expected a .json or .jsonl file of runs")
    check_regular(path)
    empty = True
    for value, line in _from_lines(path) if suffix == ".jsonl" else _from_json(path):
        empty = False
        try:
            run = _as_run(value)
        except _NotARunError as error:
            raise SourceError(f"{path}, line {line()}: {error}") from None
        yield run
    if empty:
        raise SourceError(f"{path}: empty (no run in it)")


def _check_exists(path: Path) -> None:
    try:
        path.stat()
    except OSError as error:
        raise cannot_read(path, error) from error


def _from_lines(path: Path) -> Iterator[_Placed]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(partial(file.readline, MAX_LINE_BYTES + 1), b""), 1):
                if len(line) > MAX_LINE_BYTES:
                    raise SourceError(f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes")
                text = decode_utf8(line, f"{path}, line {number}")
                if text.strip():
                    yield _parse(text.rstrip(), path, number), partial(int, number)
    except OSError as error:
        raise cannot_read(path, error) from error


def _from_json(path: Path) -> Iterator[_Placed]:
    text = decode_utf8(read_bytes(path), str(path))
    if not text.strip():
        return
    value = _parse(text.rstrip(), path, 1)
    if isinstance(value, list):
        yield from ((item, partial(_line_of, text, position)) for position, item in enumerate(value))
    else:
        yield value, partial(_line_of, text)


def _parse(text: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        problem = f"not JSON ({error.msg}, column {error.colno})"
        if error.msg == "Extra data":
            problem = "more than one JSON value; a .jsonl file holds one a line"
        raise SourceError(f"{path}, line {first_line + error.lineno - 1}: {problem}") from error
    except RecursionError as error:
        raise SourceError(f"{path}, line {first_line}: not readable JSON (nested too deeply)") from error
    except ValueError as error:  # Python reads no whole number of more than 4,300 digits
        raise SourceError(f"{path}, line {first_line}: not readable JSON (a number is too long)") from error


def _line_of(text: str, position: int | None = None) -> int:
    """The line on which the value, or an item of the list that it is, begins; the text has been read before."""
    place, decoder = _skip_space(text, 0), json.JSONDecoder()
    for item in range(0 if position is None else position + 1):
        end = decoder.raw_decode(text, place)[1] if item else place  # at a comma, or at the list's bracket
        place = _skip_space(text, _skip_space(text, end) + 1)
    return text.count("\n", 0, place) + 1


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
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list"}
    return kinds.get(type(value), "null")


def _checked(model: type[_Model], value: Any, prefix: str) -> _Model:
    try:
        return model.model_validate(value)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
        message = one_line(problem["msg"].removeprefix("Value error, "), MAX_PROBLEM_CHARS)
        others = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        place = f"{prefix}{field_path(problem['loc'])}" or "run"
        raise _NotARunError(f"{place.rstrip('.')}: {message}{others}") from None


def _from_trace(value: Any, prefix: str) -> Run:
    trace = _checked(DecisionTrace, value, prefix)
    end = trace.events[-1] if trace.events else None
    if not isinstance(end, EvidencePacked):
        raise _NotARunError(f"{prefix}events: do not end in evidence_packed, so the run is not finished")
    identifiers = {name for event in trace.events if event.event == "request_inspected" for name in event.identifiers}
    return _bounded(
        end,
        ended_well=end.stop_reason in PROVISIONAL and "dropped_at_recheck" not in end.notes,
        new_units=tuple(search.new_units for search in trace.searches if search.outcome != "not_started"),
        missing_identifiers=not identifiers.isdisjoint(end.missing_terms),
    )


def _from_packet(value: Any, prefix: str) -> Run:
    packet = _checked(EvidencePacket, value, prefix)
    if packet.resolution == "provisional" and packet.stop_reason not in PROVISIONAL:
        raise _NotARunError(f"{prefix}resolution: provisional contradicts the stop reason {packet.stop_reason.value}")
    # A packet does not say which of the missing words are identifiers; their form does.
    identifiers = any(find_identifiers(term) for term in packet.missing_terms)
    return _bounded(packet, ended_well=packet.resolution == "provisional", missing_identifiers=identifiers)


def _bounded(
    end: EvidencePacked | EvidencePacket,
    *,
    ended_well: bool,
    missing_identifiers: bool,
    new_units: tuple[int, ...] = (),
) -> Run:
    return Run(
        kind="bounded",
        stop_reason=end.stop_reason,
        ended_well=ended_well,
        calls=end.usage.calls,
        dense_calls=end.usage.dense_calls,
        hops=end.usage.iterations,
        new_units=new_units,
        notes=frozenset(end.notes),
        missing=bool(end.missing_terms),
        missing_identifiers=missing_identifiers,
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
