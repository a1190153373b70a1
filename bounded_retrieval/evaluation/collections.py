"""Load a test collection: queries with judgements, and the documents where the source brings them.

Sources: the shipped collection by its name, a BEIR folder, a folder of TREC files, a data set of ir_datasets
(``ir_datasets:ID``), or a table of queries and relevant ids for an index that is there already. Labels are read here
and used after the runs only; no policy sees them.
"""

from __future__ import annotations

import os
from importlib.resources import files
from pathlib import Path
from typing import Any

from bounded_retrieval.errors import RequestError, SourceError, quoted
from bounded_retrieval.evaluation._beir import CORPUS, QRELS, QUERIES, load_beir
from bounded_retrieval.evaluation._collection import Collection, Found, Judgements, Kind, Query, Survey
from bounded_retrieval.evaluation._ir_datasets import PREFIXES, is_known, load_ir_datasets
from bounded_retrieval.evaluation._tables import SUFFIXES, load_table
from bounded_retrieval.evaluation._trec import has_judgements, has_queries, load_trec
from bounded_retrieval.ingest.decoding import cannot_read

__all__ = ["SHIPPED", "Collection", "Found", "Judgements", "Kind", "Query", "Survey", "load_collection"]

SHIPPED = "device_support"
"""Name of the shipped collection."""

DEFAULT_SPLIT = "test"


def load_collection(
    source: str | Path, *, split: str = DEFAULT_SPLIT, queries: Path | None = None, qrels: Path | None = None
) -> Collection:
    """Read a test collection.

    Args:
        source: ``device_support`` (the shipped collection; a folder of that name is ``./device_support``),
            ``ir_datasets:ID`` or ``irds:ID`` (or the bare id, as text, where no such path exists), a BEIR folder, a
            folder of TREC files, a file of documents (with ``queries`` and ``qrels``), or a table (``.csv``, ``.tsv``).
        split: whose judgements are read; only BEIR folders have several.
        queries: a file in place of the source's queries.
        qrels: a file in place of the source's judgements; then all queries are kept and there is no split.

    Raises:
        RequestError: the source has no such split, the arguments exclude each other, or one is no path or name.
        ConfigurationError: ir_datasets is needed and not installed.
        SourceError: names the file and the line that is not what it should be.
    """
    _check_arguments(source, split)
    queries, qrels = _as_path("queries", queries), _as_path("qrels", qrels)
    if source == "":
        raise RequestError("source: is empty; a folder, a file or a data set is expected")
    if qrels is not None:
        _check_no_split(split, "a file given as qrels")
    if dataset := _dataset_name(source):
        _check_no_split(split, "a data set of ir_datasets")
        return load_ir_datasets(dataset, queries=queries, qrels=qrels)
    path = Path(source)
    if source == SHIPPED or (path == Path(SHIPPED) and isinstance(source, Path) and not path.exists()):
        folder = Path(str(files("bounded_retrieval") / "data" / SHIPPED))
        return load_beir(folder, split=split, queries=queries, qrels=qrels, kind="shipped")
    _check_exists(path)
    if path.is_dir() and _is_beir(path):
        return load_beir(path, split=split, queries=queries, qrels=qrels)
    _check_no_split(split, "a table" if path.suffix.lower() in SUFFIXES else "a collection of TREC files")
    return _load_other(path, queries, qrels)


def _check_arguments(source: object, split: object) -> None:
    if not isinstance(source, (str, Path)):
        raise RequestError(f"source: expected a name or a path (got {quoted(source)})")
    if not isinstance(split, str):
        raise RequestError(f"split: expected a name (got {quoted(split)})")


def _as_path(name: str, given: Any) -> Path | None:
    try:
        return None if given is None else Path(given)
    except TypeError:
        raise RequestError(f"{name}: expected a path (got {quoted(given)})") from None


def _load_other(path: Path, queries: Path | None, qrels: Path | None) -> Collection:
    if path.is_dir():
        return load_trec(path, queries=queries, qrels=qrels)
    if path.suffix.lower() in SUFFIXES:
        if queries is not None or qrels is not None:
            raise RequestError(f"{path}: a table has its own queries and judgements (leave out queries and qrels)")
        return load_table(path)
    if queries is None or qrels is None:
        missing = " and ".join(name for name, given in (("queries", queries), ("qrels", qrels)) if given is None)
        raise RequestError(
            f"{path}: a file of documents needs queries and qrels beside it, each a file (missing: {missing}; on the "
            "command line: --queries and --qrels)"
        )
    return load_trec(path, queries=queries, qrels=qrels)


def _dataset_name(source: str | Path) -> str:
    named = str(source)
    prefix = next((prefix for prefix in PREFIXES if named.startswith(prefix)), None)
    if prefix is None:
        # The shipped collection and a path that is there are meant before a data set of the same name; importing
        # ir_datasets to ask it makes folders in the user's home. (`Path.exists` raises for a name too long to be one.)
        is_other = named == SHIPPED or isinstance(source, Path) or os.path.exists(named)  # noqa: PTH110
        return named if not is_other and is_known(named) else ""
    if not named.removeprefix(prefix).strip():
        raise RequestError(f"source: {named!r} names no data set (expected {prefix}ID)")
    return named.removeprefix(prefix).strip()


def _check_no_split(split: str, what: str) -> None:
    if split not in (DEFAULT_SPLIT, ""):
        raise RequestError(f"split: {what} has no splits (got {split!r})")


def _check_exists(path: Path) -> None:
    try:
        if path.exists():
            return
    except OSError as error:  # a name too long, a parent folder that may not be entered
        raise cannot_read(path, error) from error
    raise SourceError(f"{path}: does not exist")


def _is_beir(folder: Path) -> bool:
    """Whether a folder has the files of BEIR and none that TREC's names fit better."""
    if (folder / QRELS).is_dir():
        return (folder / QUERIES).is_file() or (folder / CORPUS).is_file()
    if (folder / QUERIES).is_file():
        return not has_judgements(folder)
    return (folder / CORPUS).is_file() and not has_queries(folder) and not has_judgements(folder)
