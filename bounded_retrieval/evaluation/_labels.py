"""Files of queries and files of judgements, told apart by what they hold.

Queries: JSON Lines (``_id`` or ``id``, and ``text``), TREC topics, or lines of an id, a tab and a text. Judgements:
three columns by tabs (query, unit, grade; the BEIR form) or four columns by blanks (query, iteration, unit, grade; the
TREC form). A first line that names its columns is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bounded_retrieval.contracts.json_objects import kind_of, parse_object
from bounded_retrieval.contracts.normalise import clean_metadata, clean_text
from bounded_retrieval.errors import SourceError
from bounded_retrieval.evaluation._collection import Judgements, Query
from bounded_retrieval.evaluation._gathering import JudgementList, QueryList, is_grade, numbered_lines, shown
from bounded_retrieval.evaluation._sgml import read_topics

_ID_NAMES = frozenset({"queryid", "qid", "query", "id", "topic", "topicid", "number"})
_TEXT_NAMES = frozenset({"text", "query", "querytext", "question", "title"})
_ID_KEYS = ("_id", "id", "query_id", "qid")
_TEXT_KEYS = ("text", "query", "question", "title")
_BLANKS = re.compile("[ \t]+")

BEIR_COLUMNS = 3
TREC_COLUMNS = 4

Row = tuple[int, str, str, str]
"""Line number, query id, unit id and grade of one judgement, as they stand."""


def read_queries(path: Path) -> tuple[Query, ...]:
    """The queries of a file, in its order.

    Raises:
        SourceError: names the file and the line that is not what it should be.
    """
    opening = next((line.lstrip()[0] for _, line in numbered_lines(path)), "")
    found = QueryList(path)
    read = {"{": _add_objects, "<": _add_topics}.get(opening, _add_lines)
    read(path, found)
    return found.done()


def read_judgements(path: Path) -> Judgements:
    """The judgements of a file.

    Raises:
        SourceError: names the file and the line that is not what it should be.
    """
    found = JudgementList(path)
    for row in _judgement_rows(path):
        found.add(*row)
    return found.done()


def judged_ids(path: Path) -> set[str]:
    """Ids of the queries that a file of judgements names; there may be none."""
    return {clean_text(query_id) for _, query_id, _, _ in _judgement_rows(path)}


def _add_objects(path: Path, found: QueryList) -> None:
    for number, line in numbered_lines(path):
        record = parse_object(line, f"{path}, line {number}")
        id_key = _first_key(record, _ID_KEYS)
        text_key = _first_key(record, _TEXT_KEYS)
        declared = {} if record.get("metadata") is None else record["metadata"]
        if not isinstance(declared, dict):
            raise SourceError(f"{path}, line {number}: metadata must be an object (got {kind_of(declared)})")
        others = {key: value for key, value in record.items() if key not in {id_key, text_key, "_id", "metadata"}}
        found.add(number, record.get(id_key), record.get(text_key), clean_metadata({**others, **declared})[0])


def _first_key(record: dict[str, Any], keys: tuple[str, ...]) -> str:
    return next((key for key in keys if record.get(key) is not None), keys[0])


def _add_topics(path: Path, found: QueryList) -> None:
    for topic in read_topics(path):
        found.add(topic.line, topic.number, topic.text, topic.metadata)


def _add_lines(path: Path, found: QueryList) -> None:
    for position, (number, line) in enumerate(numbered_lines(path)):
        query_id, tab, query = line.partition("\t")
        if not tab:
            raise SourceError(f"{path}, line {number}: expected a query id, a tab and a text (got {shown(line)})")
        if position == 0 and _folded(query_id) in _ID_NAMES and _folded(query) in _TEXT_NAMES:
            continue
        found.add(number, query_id.strip(), query)


def _judgement_rows(path: Path) -> Iterator[Row]:
    columns = 0
    for number, line in numbered_lines(path):
        cells = _cells(line, columns)
        if len(cells) not in (BEIR_COLUMNS, TREC_COLUMNS) or (columns and len(cells) != columns):
            expected = f"{columns} columns as before" if columns else "3 columns by tabs or 4 columns by blanks"
            raise SourceError(f"{path}, line {number}: expected {expected} (got {shown(line)})")
        is_first, columns = not columns, len(cells)
        if is_first and not is_grade(cells[-1]) and _folded(cells[0]) in _ID_NAMES:
            continue
        yield number, cells[0], cells[-2], cells[-1]


def _cells(line: str, columns: int) -> list[str]:
    """The columns of a line; ``columns`` is how many those before had, 0 for the first."""
    by_tabs = line.split("\t")
    if columns == BEIR_COLUMNS or (not columns and len(by_tabs) == BEIR_COLUMNS):
        return by_tabs
    by_blanks = _BLANKS.split(line.strip(" \t"))
    # Blanks alone cannot tell three columns of one form from a line of the other that lost one.
    return by_blanks if len(by_blanks) == TREC_COLUMNS else by_tabs[:1]


def _folded(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).casefold()
