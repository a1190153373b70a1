"""Gather queries, judgements and units, checked one by one: an error names the file and the line of what is wrong."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.json_objects import kind_of
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.errors import SourceError
from bounded_retrieval.evaluation._collection import Judgements, Query
from bounded_retrieval.ingest.decoding import cannot_read, decode_utf8

MAX_SHOWN = 60
"""Most characters of a value that an error quotes."""

MAX_GRADE_DIGITS = 9
"""Longest grade, so that it fits the 32 bits of the measures' own code."""

GRADE = f"a whole number of at most {MAX_GRADE_DIGITS} digits"
"""What a grade is, as an error says it."""

_WHOLE_NUMBER = re.compile(rf"[+-]?[0-9]{{1,{MAX_GRADE_DIGITS}}}")


class QueryList:
    """Queries in the order of their file.

    Args:
        source: the file, for errors.
        unit: what ``number`` counts in the file.
    """

    def __init__(self, source: str | Path, unit: str = "line") -> None:
        self._source, self._unit = source, unit
        self._queries: dict[str, Query] = {}
        self._numbers: dict[str, int] = {}

    def __contains__(self, query_id: str) -> bool:
        return query_id in self._queries

    def add(self, number: int, query_id: object, query_text: object, metadata: Mapping[str, Any] | None = None) -> None:
        """Hold one more query.

        Raises:
            SourceError: a blank id or text, or an id that another query has.
        """
        where = f"{self._source}, {self._unit} {number}"
        name = read_id(query_id, "query id", where)
        held = Query(query_id=name, text=text(query_text, "query", where), metadata=dict(metadata or {}))
        if name in self._queries:
            first = f"{self._unit} {self._numbers[name]}"
            raise SourceError(f"{where}: query id {shown(name)} was used before (in {first})")
        self._queries[name], self._numbers[name] = held, number

    def done(self) -> tuple[Query, ...]:
        """All of them.

        Raises:
            SourceError: there is none.
        """
        if not self._queries:
            raise SourceError(f"{self._source}: empty (no query in it)")
        return tuple(self._queries.values())


class JudgementList:
    """Grades by query id and unit id; the same judgement again is held once.

    Args:
        source: the file, for errors.
        unit: what ``number`` counts in the file.
    """

    def __init__(self, source: str | Path, unit: str = "line") -> None:
        self._source, self._unit = source, unit
        self._grades: dict[str, dict[str, int]] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def add(self, number: int, query_id: object, unit_id: object, grade: object) -> None:
        """Hold one more judgement.

        Raises:
            SourceError: a blank id, a grade that is no whole number, or another grade for a unit judged before.
        """
        where = f"{self._source}, {self._unit} {number}"
        query, unit = read_id(query_id, "query id", where), read_id(unit_id, "unit id", where)
        held = read_grade(grade, where)
        known = self._grades.setdefault(query, {}).setdefault(unit, held)
        first = self._numbers.setdefault((query, unit), number)
        if known != held:
            raise SourceError(
                f"{where}: unit {shown(unit)} has grade {held} for query {shown(query)}, "
                f"and grade {known} in {self._unit} {first}"
            )

    def done(self) -> Judgements:
        """All of them.

        Raises:
            SourceError: there is none.
        """
        if not self._grades:
            raise SourceError(f"{self._source}: empty (no judgement in it)")
        return self._grades


def check_relevant(queries: Iterable[Query], judgements: Judgements, where: str | Path) -> None:
    """Check that something can be measured.

    Raises:
        SourceError: no query has a relevant unit; names an id of each side where the sides share none.
    """
    ids = [query.query_id for query in queries]
    if any(grade > 0 for query_id in ids for grade in judgements.get(query_id, {}).values()):
        return
    if ids and judgements and not any(query_id in judgements for query_id in ids):
        sides = f"the judged ids, as {shown(next(iter(judgements)))}, are none of the queries', as {shown(ids[0])}"
        raise SourceError(f"{where}: no query has a relevant unit: {sides}")
    raise SourceError(f"{where}: no query has a relevant unit (one with a grade above 0)")


def distinct(units: Iterable[tuple[str, Document]]) -> Iterator[Document]:
    """The units of a stream, each with its place; the same unit again is left out.

    Raises:
        SourceError: another text or title under an id that was given out before.
    """
    seen: dict[str, tuple[bytes, str]] = {}
    for place, document in units:
        content = json.dumps([document.metadata.get("title"), document.page_content])
        digest = hashlib.blake2b(content.encode(), digest_size=16).digest()
        unit_id = document.id or ""
        if unit_id not in seen:
            seen[unit_id] = digest, place
            yield document
        elif seen[unit_id][0] != digest:
            raise SourceError(f"{place}: id {shown(unit_id)} was used by another unit in {seen[unit_id][1]}")


def to_unit(unit_id: str, title: str, body: str, source: str) -> Document | None:
    """One unit; its title stands in for a blank text, and without either there is none."""
    title, body = clean_text(title).strip(), clean_text(body).strip()
    if not (title or body):
        return None
    metadata = {"source": clean_text(source)} | ({"title": title} if title else {})
    return Document(id=unit_id, page_content=body or title, metadata=metadata)


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Stream the lines of a UTF-8 file that are not blank, numbered from 1, without their line ends.

    Raises:
        SourceError: the file cannot be read, or a line is not UTF-8.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                decoded = decode_utf8(line, f"{path}, line {number}").rstrip("\r\n")
                if decoded.strip():
                    yield number, decoded
    except OSError as error:
        raise cannot_read(path, error) from error


def read_id(value: object, field: str, where: str) -> str:
    """An id as text, otherwise unchanged: text, or a whole number as JSON has it.

    Raises:
        SourceError: missing, blank or of another type.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise SourceError(f"{where}: {field} is missing or blank")
    if not isinstance(value, str):
        raise SourceError(f"{where}: {field} must be text or a whole number (got {kind_of(value)})")
    return clean_text(value)


def text(value: object, field: str, where: str) -> str:
    """A text without the blanks around it.

    Raises:
        SourceError: missing, blank or of another type.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        raise SourceError(f"{where}: {field} is missing or blank")
    if not isinstance(value, str):
        raise SourceError(f"{where}: {field} must be text (got {kind_of(value)})")
    return clean_text(value).strip()


def read_grade(value: object, where: str) -> int:
    """A grade from its digits, with or without a sign.

    Raises:
        SourceError: anything else than a whole number of at most `MAX_GRADE_DIGITS` digits.
    """
    digits = str(value).strip()
    if isinstance(value, bool) or not _WHOLE_NUMBER.fullmatch(digits):
        raise SourceError(f"{where}: grade must be {GRADE} (got {shown(digits)})")
    return int(digits)


def is_grade(value: str) -> bool:
    """Whether a text can be read as a grade."""
    return _WHOLE_NUMBER.fullmatch(value.strip()) is not None


def shown(value: str) -> str:
    """A value as an error quotes it: printable, on one line and not too long."""
    return repr(value if len(value) <= MAX_SHOWN else f"{value[: MAX_SHOWN - 3]}...")
