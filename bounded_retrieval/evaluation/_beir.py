"""BEIR folders: ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/<split>.tsv``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from langchain_core.documents import Document

from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation._collection import Collection, Kind
from bounded_retrieval.evaluation._gathering import check_relevant, distinct
from bounded_retrieval.evaluation._labels import judged_ids, read_judgements, read_queries
from bounded_retrieval.ingest.jsonl import read_jsonl

CORPUS = "corpus.jsonl"
QUERIES = "queries.jsonl"
QRELS = "qrels"


def load_beir(
    folder: Path, *, split: str, queries: Path | None = None, qrels: Path | None = None, kind: Kind = "beir"
) -> Collection:
    """Read a BEIR folder.

    The queries are those that this split judges and those that no split judges; ``qrels`` takes the place of the
    splits, so that all queries stay. Without ``corpus.jsonl`` the collection has no documents.

    Raises:
        RequestError: there is no such split.
        SourceError: names the file and the line that is not what it should be.
    """
    splits = {} if qrels else _splits(folder)
    judgements_path = qrels or _judgements_of(folder, split, splits)
    found = read_queries(queries or _queries_of(folder))
    judgements = read_judgements(judgements_path)
    elsewhere: set[str] = set()
    if any(query.query_id not in judgements for query in found):
        elsewhere = {query_id for name, path in splits.items() if name != split for query_id in judged_ids(path)}
    kept = tuple(query for query in found if query.query_id in judgements or query.query_id not in elsewhere)
    check_relevant(kept, judgements, judgements_path)
    corpus = folder / CORPUS
    return Collection(
        name=folder.resolve().name,
        kind=kind,
        split="" if qrels else split,
        queries=kept,
        judgements=judgements,
        has_documents=corpus.is_file(),
        left_out=len(found) - len(kept),
        reader=lambda: distinct(numbered_units(corpus, CORPUS)),
    )


def numbered_units(path: Path, source: str) -> Iterator[tuple[str, Document]]:
    """The units of a file of JSON Lines, each with its place; a title stands in for a blank text."""
    for line, document in read_jsonl(path, source, skip_blank=True):
        yield f"{path}, line {line}", document


def _splits(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted((folder / QRELS).glob("*.tsv")) if not path.name.startswith(".")}


def _judgements_of(folder: Path, split: str, splits: dict[str, Path]) -> Path:
    if split in splits:
        return splits[split]
    if not splits:
        raise SourceError(f"{folder / QRELS}: no judgements there (expected {QRELS}/<split>.tsv)")
    raise RequestError(f"split: {folder} has no split {split!r} (there are: {', '.join(splits)})")


def _queries_of(folder: Path) -> Path:
    if not (folder / QUERIES).is_file():
        raise SourceError(f"{folder / QUERIES}: does not exist")
    return folder / QUERIES
