"""Tables (``.csv``, ``.tsv``) of queries and the ids of their relevant units, for an index that is there already.

The first row names the columns:

- ``query`` (or ``question``, ``text``);
- ``relevant`` (or ``relevant_ids``, ``unit_ids``, ``ids``), where a cell holds ids between semicolons or, without a
  semicolon, between blanks; or ``unit_id``, where a cell holds one id, taken whole;
- optionally ``id`` (or ``query_id``); a query without an id is named by a digest of its text;
- optionally ``grade``; without that column an id among several may carry its own, as ``id=2``, and one not given is 1.

A query may have several rows. Other columns become its metadata.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from bounded_retrieval.contracts.normalise import clean_text, fingerprint
from bounded_retrieval.errors import SourceError
from bounded_retrieval.evaluation._collection import Collection, Query
from bounded_retrieval.evaluation._gathering import (
    GRADE,
    JudgementList,
    QueryList,
    check_relevant,
    is_grade,
    shown,
    text,
)
from bounded_retrieval.ingest.decoding import decode_utf8, read_bytes

SUFFIXES = {".csv": ",", ".tsv": "\t"}
"""Suffixes of tables, and what separates their columns."""

_QUERY = ("query", "question", "text")
_MANY = ("relevant", "relevant_ids", "unit_ids", "ids")
_ONE = ("unit_id",)
_ID = ("id", "query_id")
_GRADE = ("grade",)

_DIGEST_DIGITS = 12

Row = tuple[int, list[str]]
"""Line number and cells."""


@dataclass(frozen=True, kw_only=True)
class _Columns:
    """Positions of the columns; ``many`` or ``one`` is there, the other is none."""

    query: int
    many: int | None
    one: int | None
    id: int | None
    grade: int | None
    others: Mapping[int, str]


def load_table(path: Path) -> Collection:
    """Read a table; the collection has no documents.

    Raises:
        SourceError: names the file and the line that is not what it should be.
    """
    rows = _rows(path)
    line, header = next(rows, (0, []))
    if not header:
        raise SourceError(f"{path}: empty (no row in it)")
    columns = _columns(header, f"{path}, line {line}")
    queries, judgements = QueryList(path), JudgementList(path)
    texts: dict[str, str] = {}
    for number, row in rows:
        where = f"{path}, line {number}"
        if any(cell.strip() for cell in row[len(header) :]):
            raise SourceError(f"{where}: {len(row)} cells under {len(header)} columns (quote a cell with a separator)")
        query = _query(row, columns, where)
        if texts.setdefault(query.query_id, query.text) != query.text:
            raise SourceError(f"{where}: query id {shown(query.query_id)} has another text in a line before")
        if query.query_id not in queries:
            queries.add(number, query.query_id, query.text, query.metadata)
        for unit_id, grade in _judged(row, columns, where):
            judgements.add(number, query.query_id, unit_id, grade)
    found, grades = queries.done(), judgements.done()
    check_relevant(found, grades, path)
    return Collection(name=path.stem, kind="table", split="", queries=found, judgements=grades, has_documents=False)


def _rows(path: Path) -> Iterator[Row]:
    """Rows that are not blank, with the line where each begins; a cell between quotes may hold line ends."""
    content = decode_utf8(read_bytes(path), str(path))
    separator = SUFFIXES[path.suffix.lower()]
    reader = csv.reader(io.StringIO(content, newline=""), delimiter=separator, strict=True)
    number = 1
    try:
        for cells in reader:
            if any(cell.strip() for cell in cells):
                yield number, cells
            number = reader.line_num + 1
    except csv.Error as error:
        raise SourceError(f"{path}, line {number}: not a row of a table ({error})") from error


def _columns(header: list[str], where: str) -> _Columns:
    names = ["_".join(name.replace("-", " ").split()).casefold() for name in header]
    counts = Counter(names)
    repeated = next((name for name in names if name and counts[name] > 1), None)
    if repeated is not None:
        raise SourceError(f"{where}: two columns are named {shown(repeated)}")
    query, many, one = (_position(names, known) for known in (_QUERY, _MANY, _ONE))
    if query is None or (many is None and one is None):
        missing = _either(_QUERY) if query is None else _either((*_MANY, *_ONE))
        raise SourceError(f"{where}: no column {missing} (the first row names: {shown(', '.join(header))})")
    if many is not None and one is not None:
        raise SourceError(f"{where}: columns {names[many]} and {names[one]} exclude each other")
    id_column, grade = _position(names, _ID), _position(names, _GRADE)
    taken = {query, many, one, id_column, grade}
    others = {position: header[position].strip() for position in range(len(names)) if position not in taken}
    return _Columns(query=query, many=many, one=one, id=id_column, grade=grade, others=others)


def _position(names: list[str], known: tuple[str, ...]) -> int | None:
    return next((names.index(name) for name in known if name in names), None)


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _query(row: list[str], columns: _Columns, where: str) -> Query:
    query = text(_cell(row, columns.query), "query", where)
    query_id = _cell(row, columns.id).strip() or f"q-{fingerprint(query)[:_DIGEST_DIGITS]}"
    cells = ((columns.others.get(position), cell.strip()) for position, cell in enumerate(row))
    metadata = {clean_text(name): clean_text(cell) for name, cell in cells if name and cell}
    return Query(query_id=clean_text(query_id), text=query, metadata=metadata)


def _judged(row: list[str], columns: _Columns, where: str) -> Iterator[tuple[str, str]]:
    cell = _cell(row, columns.one if columns.many is None else columns.many)
    if not cell.strip():
        return
    if columns.many is None:
        unit_ids = [cell.strip()]
    elif ";" in cell:
        unit_ids = [part for piece in cell.split(";") if (part := piece.strip())]
    else:
        unit_ids = cell.split()
    for unit_id in unit_ids:
        if columns.grade is not None:
            yield unit_id, _cell(row, columns.grade)
        elif columns.many is None:
            yield unit_id, "1"
        else:
            yield _with_own_grade(unit_id, where)


def _with_own_grade(unit_id: str, where: str) -> tuple[str, str]:
    name, sign, grade = unit_id.rpartition("=")
    if not sign:
        return unit_id, "1"
    if not is_grade(grade):
        hint = "an id that holds '=' needs a grade column, or unit_id in place of a column of several ids"
        raise SourceError(f"{where}: grade must be {GRADE} (got {shown(unit_id)}); {hint}")
    return name.strip(), grade


def _cell(row: list[str], position: int | None) -> str:
    return row[position] if position is not None and position < len(row) else ""
