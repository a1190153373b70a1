"""Collections of ir_datasets, which fetches and keeps them; it is an optional dependency."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.normalise import clean_metadata
from bounded_retrieval.errors import ConfigurationError, RequestError, SourceError
from bounded_retrieval.evaluation._collection import Collection, Judgements, Query
from bounded_retrieval.evaluation._gathering import (
    JudgementList,
    QueryList,
    check_relevant,
    distinct,
    read_id,
    shown,
    to_unit,
)
from bounded_retrieval.evaluation._labels import read_judgements, read_queries

PREFIXES = ("ir_datasets:", "irds:")

MAX_REASON_CHARS = 200
"""Most characters of what ir_datasets says of a failure."""


def load_ir_datasets(name: str, *, queries: Path | None = None, qrels: Path | None = None) -> Collection:
    """Read a data set by its id; files given take the place of its queries or judgements.

    Raises:
        ConfigurationError: ir_datasets is not installed.
        RequestError: it knows no such data set.
        SourceError: the data set lacks queries or judgements, cannot be fetched, or is not what it should be.
    """
    source = f"{PREFIXES[0]}{name}"
    dataset = _open(name)
    found = read_queries(queries) if queries else _queries(dataset, source)
    judgements = read_judgements(qrels) if qrels else _judgements(dataset, source)
    check_relevant(found, judgements, qrels or source)
    return Collection(
        name=name,
        kind="ir_datasets",
        split="",
        queries=found,
        judgements=judgements,
        has_documents=dataset.has_docs(),
        reader=lambda: distinct(_units(dataset, source)),
    )


def _open(name: str) -> Any:
    try:
        import ir_datasets
    except ImportError as error:
        raise ConfigurationError(
            'ir_datasets is not installed: pip install "bounded-retrieval[ir-datasets]"'
        ) from error
    try:
        return ir_datasets.load(name)
    except KeyError as error:
        raise RequestError(f"ir_datasets: knows no data set {shown(name)}") from error


def is_known(name: str) -> bool:
    """Whether ir_datasets is installed and has a data set of this name."""
    try:
        import ir_datasets
    except ImportError:
        return False
    return name in ir_datasets.registry


def _queries(dataset: Any, source: str) -> tuple[Query, ...]:
    if not dataset.has_queries():
        raise SourceError(f"{source}: has no queries")
    found = QueryList(source, "query")
    for number, record in enumerate(_records(dataset.queries_iter, source), start=1):
        fields = dict(zip(record._fields, record, strict=True))
        query_text = _text(record)
        simple = {key: value for key, value in fields.items() if isinstance(value, (str, int, float))}
        others = {key: value for key, value in simple.items() if key != "query_id" and value not in ("", query_text)}
        found.add(number, record.query_id, query_text, clean_metadata(others)[0])
    return found.done()


def _judgements(dataset: Any, source: str) -> Judgements:
    if not dataset.has_qrels():
        raise SourceError(f"{source}: has no judgements")
    found = JudgementList(source, "judgement")
    for number, record in enumerate(_records(dataset.qrels_iter, source), start=1):
        found.add(number, record.query_id, record.doc_id, record.relevance)
    return found.done()


def _units(dataset: Any, source: str) -> Iterator[tuple[str, Document]]:
    for number, record in enumerate(_records(dataset.docs_iter, source), start=1):
        place = f"{source}, document {number}"
        title = getattr(record, "title", "")
        title = " ".join(title.split()) if isinstance(title, str) else ""
        # Most data sets begin the text with the title; it is kept apart here.
        body = _text(record).strip()
        body = body[len(title) :] if title and body.startswith(title) else body
        document = to_unit(read_id(record.doc_id, "document id", place), title, body, source)
        if document is not None:
            yield place, document


def _text(record: Any) -> str:
    """What ir_datasets itself calls the text of a query or document; all its texts where it names none."""
    if hasattr(record, "default_text"):
        return str(record.default_text())
    return " ".join(value for value in record[1:] if isinstance(value, str))


def _records(iterate: Callable[[], Iterable[Any]], source: str) -> Iterator[Any]:
    """What ir_datasets gives; whatever goes wrong in fetching and parsing becomes one line."""
    try:
        records = iter(iterate())
    except Exception as error:
        raise _failed(source, error) from error
    while True:
        try:
            record = next(records)
        except StopIteration:
            return
        except Exception as error:
            raise _failed(source, error) from error
        yield record


def _failed(source: str, error: Exception) -> SourceError:
    said = error.args[0] if error.args and isinstance(error.args[0], str) else str(error)
    reason = " ".join(f"{type(error).__name__}: {said}".split())
    if len(reason) > MAX_REASON_CHARS:
        reason = f"{reason[: MAX_REASON_CHARS - 3]}..."
    return SourceError(f"{source}: cannot be read ({reason})")
