"""JSON Lines in the BEIR style: one unit a line.

A line is an object with ``_id`` or ``id`` (text or a whole number), ``text``, and optionally ``title`` and
``metadata``; its other keys are kept as metadata, where ``metadata`` itself has the last word. Such units are judged
by their id, so each is kept whole and its id unchanged, however long it is. Where a unit's text is blank its title
stands in for it. Blank lines are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.json_objects import kind_of, parse_object
from bounded_retrieval.contracts.normalise import clean_metadata, clean_text
from bounded_retrieval.errors import SourceError
from bounded_retrieval.ingest.decoding import cannot_read, decode_utf8

MAX_LINE_BYTES = 32 * 1024 * 1024
"""Longest accepted line, in bytes."""

Unit = dict[str, Any]


def read_jsonl(
    path: Path, source: str, *, skip_blank: bool = False, may_be_empty: bool = False
) -> Iterator[tuple[int, Document]]:
    """Stream the units of a file with their line numbers, from 1.

    ``source`` becomes metadata of the units that name no ``source`` of their own. Non-finite numbers (``NaN``,
    ``Infinity``), which strict JSON does not know, become text. ``skip_blank`` leaves out units without text and title.

    Raises:
        SourceError: names the file and the line, or says that the file holds no unit, unless it ``may_be_empty``.
    """
    empty = True
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        text = decode_utf8(line, where)
        if text.strip():
            empty = False
            unit = parse_object(text, where)
            if not (skip_blank and _is_blank(unit)):
                yield number, _to_document(unit, where, source)
    if empty and not may_be_empty:
        raise SourceError(f"{path}: empty (no unit in it)")


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


def _to_document(unit: Unit, where: str, source: str) -> Document:
    id_key = "_id" if unit.get("_id") is not None else "id"
    unit_id = _read_id(unit.get(id_key), where)
    title = _read_title(unit.get("title"), where)
    text = _read_text(title if title and _is_text_blank(unit) else unit.get("text"), where)
    metadata = _read_metadata(unit, {id_key, "_id", "text", "title", "metadata"}, where)
    if title:
        metadata["title"] = title
    metadata.setdefault("source", clean_text(source))
    return Document(id=unit_id, page_content=text, metadata=metadata)


def _is_text_blank(unit: Unit) -> bool:
    text = unit.get("text")
    return isinstance(text, str) and not text.strip()


def _is_blank(unit: Unit) -> bool:
    return _is_text_blank(unit) and not str(unit.get("title") or "").strip()


def _read_id(value: Any, where: str) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if value is None or (isinstance(value, str) and not value.strip()):
        raise SourceError(f'{where}: no id ("_id" or "id" is missing or blank)')
    if not isinstance(value, str):
        raise SourceError(f"{where}: id must be text or a whole number (got {kind_of(value)})")
    return clean_text(value)


def _read_text(value: Any, where: str) -> str:
    if value is None:
        raise SourceError(f'{where}: no text ("text" is missing)')
    if not isinstance(value, str):
        raise SourceError(f"{where}: text must be text (got {kind_of(value)})")
    if not value.strip():
        raise SourceError(f"{where}: no text (it is blank)")
    return clean_text(value)


def _read_title(value: Any, where: str) -> str:
    if value is not None and not isinstance(value, str):
        raise SourceError(f"{where}: title must be text (got {kind_of(value)})")
    return clean_text(value or "").strip()


def _read_metadata(unit: Unit, fields: set[str], where: str) -> dict[str, Any]:
    declared = unit.get("metadata")
    if declared is not None and not isinstance(declared, dict):
        raise SourceError(f"{where}: metadata must be an object (got {kind_of(declared)})")
    others = {key: value for key, value in unit.items() if key not in fields}
    return clean_metadata({**others, **(declared or {})})[0]
