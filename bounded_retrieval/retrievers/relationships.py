"""Declared relationships in memory, and their file: JSON Lines, one relationship or one name a line.

::

    {"subject": ..., "relation": ..., "object": ..., "source_unit": ..., "source_fingerprint": ...}
    {"entity": ..., "name": ..., "source_unit": ...}

``source_fingerprint`` may be left out; blank lines are skipped; a file without a line is an empty store.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self, TypeVar

from bounded_retrieval.contracts.json_objects import kind_of, parse_object
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.regular_file import check_regular
from bounded_retrieval.contracts.relationships import (
    MAX_NAME_CHARS,
    EntityName,
    Relationship,
    fold_name,
    fold_relation,
)
from bounded_retrieval.errors import SourceError, quoted

MAX_LINE_BYTES = 1_000_000
"""Longest accepted line, in bytes."""

# Held as plain tuples, since a million models would take several times the memory, and in the order in which answers
# come, so that tuples sort as they are: (subject, object, source unit, relation, fingerprint or "") and (entity id,
# source unit, name).
_Link = tuple[str, str, str, str, str]
_NameRow = tuple[str, str, str]

_Given = TypeVar("_Given", Relationship, EntityName)
_Key = TypeVar("_Key")
_Row = TypeVar("_Row")

_NAME_FIELDS = ("entity", "source_unit", "name")
_LINK_FIELDS = ("subject", "object", "source_unit", "relation")
_OPTIONAL = "source_fingerprint"
_ALL_NAME_FIELDS = frozenset(_NAME_FIELDS)
_ALL_LINK_FIELDS = frozenset((*_LINK_FIELDS, _OPTIONAL))


class RelationshipStore:
    """Relationships and names held in dictionaries; never changed after it was made, so threads may share it.

    Relationships that lead in a circle are data like any other.

    Args:
        relationships: repeats are held once.
        names: likewise.

    Raises:
        SourceError: one of them is something else.
    """

    def __init__(self, relationships: Iterable[Relationship] = (), names: Iterable[EntityName] = ()) -> None:
        links = {
            (r.subject, r.object, r.source_unit, r.relation, r.source_fingerprint or "")
            for r in _each(relationships, Relationship, "relationships")
        }
        self._hold(links, {(n.entity_id, n.source_unit, n.name) for n in _each(names, EntityName, "names")})

    @classmethod
    def from_jsonl(cls, path: str | Path, *others: str | Path) -> Self:
        """Read one or more files into one store.

        Raises:
            SourceError: names the file, the line and the field that is not what it should be.
        """
        links: set[_Link] = set()
        names: set[_NameRow] = set()
        shared: dict[str, str] = {}
        for file in (path, *others):
            for where, record in _read_records(_as_path(file)):
                if "entity" in record:
                    names.add(_to_name(record, where, shared))
                else:
                    links.add(_to_link(record, where, shared))
        store = cls()
        store._hold(links, names)
        return store

    def to_jsonl(self, path: str | Path) -> None:
        """Write a file that `from_jsonl` reads back, relationships first; an old one is replaced as a whole.

        Raises:
            OSError: the file cannot be written; an old one is as it was.
            SourceError: ``path`` is no path.
        """
        target = _as_path(path)
        draft = target.with_name(f"{target.name}.{os.getpid()}.partial")
        try:
            with draft.open("w", encoding="utf-8", newline="\n") as file:
                file.writelines(f"{json.dumps(record, ensure_ascii=False)}\n" for record in self._records())
                file.flush()
                os.fsync(file.fileno())
            draft.replace(target)
        finally:
            draft.unlink(missing_ok=True)

    def __len__(self) -> int:
        """How many relationships there are; names do not count."""
        return len(self._links)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({len(self._links)} relationships, {len(self._names)} names)"

    def relationships(self) -> Iterator[Relationship]:
        """Every relationship, by subject, object and source unit."""
        return map(_relationship, self._links)

    def names(self) -> Iterator[EntityName]:
        """Every declared name, by entity and source unit."""
        return map(_entity_name, self._names)

    def entities_named(self, name: str) -> list[EntityName]:
        """Each declared name that equals ``name``, and each entity whose id does, by entity and source unit.

        An id has one entry for each source unit that mentions it.
        """
        folded = fold_name(name)
        rows = set(self._by_name.get(folded, ()))
        own = [folded] if folded in self._mentions else []
        for entity_id in (*own, *self._unfolded.get(folded, ())):
            rows.update((entity_id, source_unit, entity_id) for source_unit in self._mentions[entity_id])
        return [_entity_name(row) for row in sorted(rows)]

    def names_of(self, entity_id: str) -> list[EntityName]:
        """The declared names of exactly this id, by source unit."""
        return [_entity_name(row) for row in self._by_entity.get(entity_id, ())]

    def relationships_of(self, subject: str, relation: str) -> list[Relationship]:
        """The relationships of exactly this subject under this relation, however spelled, by object and source unit."""
        return [_relationship(link) for link in self._by_subject.get((subject, fold_relation(relation)), ())]

    def _hold(self, links: Iterable[_Link], names: Iterable[_NameRow]) -> None:
        self._links = sorted(links)
        self._names = sorted(names)
        folded = {relation: fold_relation(relation) for relation in {link[3] for link in self._links}}
        self._by_subject = _grouped(((link[0], folded[link[3]]), link) for link in self._links)
        self._by_name = _grouped((fold_name(row[2]), row) for row in self._names)
        self._by_entity = _grouped((row[0], row) for row in self._names)
        self._mentions = _mentions(self._links, self._names)
        pairs = ((fold_name(entity_id), entity_id) for entity_id in self._mentions)
        self._unfolded = _grouped(pair for pair in pairs if pair[0] != pair[1])

    def _records(self) -> Iterator[dict[str, str]]:
        for subject, object_id, source_unit, relation, fingerprint in self._links:
            held = {_OPTIONAL: fingerprint} if fingerprint else {}
            yield {"subject": subject, "relation": relation, "object": object_id, "source_unit": source_unit, **held}
        for entity_id, source_unit, name in self._names:
            yield {"entity": entity_id, "name": name, "source_unit": source_unit}


def _each(given: Iterable[_Given], kind: type[_Given], name: str) -> Iterator[_Given]:
    if not hasattr(given, "__iter__"):
        raise SourceError(f"{name}: expected any number of {kind.__name__} (got {quoted(given)})")
    for position, item in enumerate(given, 1):
        if not isinstance(item, kind):
            raise SourceError(f"{name}: number {position} is no {kind.__name__} (got {quoted(item)})")
        yield item


def _as_path(given: str | Path) -> Path:
    try:
        return Path(given)
    except TypeError:
        raise SourceError(f"path: expected a path (got {quoted(given)})") from None


def _relationship(link: _Link) -> Relationship:
    subject, object_id, source_unit, relation, fingerprint = link
    return Relationship(
        subject=subject,
        relation=relation,
        object=object_id,
        source_unit=source_unit,
        source_fingerprint=fingerprint or None,
    )


def _entity_name(row: _NameRow) -> EntityName:
    entity_id, source_unit, name = row
    return EntityName(entity_id=entity_id, name=name, source_unit=source_unit)


def _grouped(pairs: Iterable[tuple[_Key, _Row]]) -> dict[_Key, list[_Row]]:
    groups: dict[_Key, list[_Row]] = {}
    for key, row in pairs:
        groups.setdefault(key, []).append(row)
    return groups


def _mentions(links: Iterable[_Link], names: Iterable[_NameRow]) -> dict[str, list[str]]:
    """The source units that mention each entity id, ascending."""
    mentions: dict[str, list[str]] = {}
    for subject, object_id, source_unit, _, _ in links:
        mentions.setdefault(subject, []).append(source_unit)
        mentions.setdefault(object_id, []).append(source_unit)
    for entity_id, source_unit, _ in names:
        mentions.setdefault(entity_id, []).append(source_unit)
    for entity_id, units in mentions.items():
        if len(units) > 1:
            mentions[entity_id] = sorted(set(units))
    return mentions


def _read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object, with the place that an error about it names."""
    for number, line in _read_lines(path):
        where = f"{path}, line {number}"
        try:
            text = line.decode("utf-8").removeprefix("\ufeff")
        except UnicodeDecodeError as error:
            raise SourceError(f"{where}: byte {error.start} (0x{line[error.start]:02x}): not UTF-8") from error
        if text := text.rstrip():
            yield where, parse_object(text, where)


def _read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    check_regular(path)
    try:
        with path.open("rb") as file:
            while line := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(line) > MAX_LINE_BYTES:
                    raise SourceError(f"{path}, line {number}: longer than {MAX_LINE_BYTES} bytes")
                yield number, line
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error


def _to_link(record: dict[str, Any], where: str, shared: dict[str, str]) -> _Link:
    _check_fields(record, _ALL_LINK_FIELDS, where)
    subject, object_id, source_unit, relation = [_value(record, field, where, shared) for field in _LINK_FIELDS]
    has_fingerprint = record.get(_OPTIONAL) is not None
    fingerprint = _value(record, _OPTIONAL, where, shared) if has_fingerprint else ""
    return subject, object_id, source_unit, relation, fingerprint


def _to_name(record: dict[str, Any], where: str, shared: dict[str, str]) -> _NameRow:
    _check_fields(record, _ALL_NAME_FIELDS, where)
    entity_id, source_unit, name = [_value(record, field, where, shared) for field in _NAME_FIELDS]
    return entity_id, source_unit, name


def _check_fields(record: dict[str, Any], known: frozenset[str], where: str) -> None:
    if not record.keys() <= known:
        field = next(field for field in record if field not in known)
        raise SourceError(f"{where}: unknown field {field[:60]!r} (known here: {', '.join(sorted(known))})")


def _value(record: dict[str, Any], field: str, where: str, shared: dict[str, str]) -> str:
    """One value, checked and cleaned; equal ones are ``shared``, since a few ids recur in most lines."""
    value = record.get(field)
    if isinstance(value, str):
        if (known := shared.get(value)) is not None:
            return known
        cleaned = _clean_value(value, field, where)
        return shared.setdefault(cleaned, cleaned)
    if field not in record:
        raise SourceError(f"{where}: {field} is missing")
    raise SourceError(f"{where}: {field} must be text (got {kind_of(value)})")


def _clean_value(value: str, field: str, where: str) -> str:
    if not value.strip():
        raise SourceError(f"{where}: {field} is empty or blank (got {value[:60]!r})")
    if len(value) > MAX_NAME_CHARS:
        raise SourceError(
            f"{where}: {field} has {len(value)} characters, at most {MAX_NAME_CHARS} (got {value[:60]!r})"
        )
    return clean_text(value)
