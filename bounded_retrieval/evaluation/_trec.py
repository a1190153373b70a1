"""TREC collections: topics, judgements of four columns, and documents as SGML or JSON Lines.

In a folder, files named ``*qrels*`` hold judgements and those named ``*topics*`` or ``*queries*`` the queries; they are
looked for in the folder itself and, where it has none, below it. All other files, below it too, are documents, apart
from hidden ones and from ``README``, ``LICENSE`` and ``SOURCE.md``.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from langchain_core.documents import Document

from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.errors import SourceError
from bounded_retrieval.evaluation._beir import numbered_units
from bounded_retrieval.evaluation._collection import Collection
from bounded_retrieval.evaluation._gathering import check_relevant, distinct
from bounded_retrieval.evaluation._labels import read_judgements, read_queries
from bounded_retrieval.evaluation._sgml import read_sgml_documents
from bounded_retrieval.ingest.decoding import cannot_read

_PASSED_OVER = frozenset({"readme", "license", "licence", "source.md"})


@dataclass(frozen=True, kw_only=True)
class _Files:
    """The files of a folder by what their names say."""

    judgements: Sequence[Path]
    queries: Sequence[Path]
    documents: Sequence[Path]


def load_trec(source: Path, *, queries: Path | None = None, qrels: Path | None = None) -> Collection:
    """Read a folder of TREC files, or a file of documents beside the queries and judgements given.

    Raises:
        SourceError: a file is missing, several could be meant, or one is not what it should be.
    """
    files = _find(source) if source.is_dir() else _Files(judgements=(), queries=(), documents=(source,))
    judgements_path = qrels or _only(files.judgements, source, "judgements (a file named *qrels*)", "qrels")
    queries_path = queries or _only(files.queries, source, "queries (a file named *topics* or *queries*)", "queries")
    found, judgements = read_queries(queries_path), read_judgements(judgements_path)
    check_relevant(found, judgements, judgements_path)
    labels = {judgements_path.resolve(), queries_path.resolve()}
    documents = [path for path in files.documents if path.resolve() not in labels]
    root = source if source.is_dir() else source.parent
    return Collection(
        name=source.resolve().name if source.is_dir() else source.stem,
        kind="trec",
        split="",
        queries=found,
        judgements=judgements,
        has_documents=bool(documents),
        reader=lambda: distinct(unit for path in documents for unit in _units(path, root)),
    )


def has_judgements(folder: Path) -> bool:
    """Whether the folder itself holds a file that is named as judgements of TREC are."""
    return any(path.is_file() and _says_judgements(path) for path in folder.glob("*"))


def has_queries(folder: Path) -> bool:
    """Whether the folder itself holds a file that is named as queries of TREC are."""
    return any(path.is_file() and _says_queries(path) for path in folder.glob("*"))


def _find(folder: Path) -> _Files:
    paths = list(_walk(folder))
    judgements = _nearest([path for path in paths if _says_judgements(path)], folder)
    queries = _nearest([path for path in paths if _says_queries(path)], folder)
    labels = {*judgements, *queries}
    return _Files(judgements=judgements, queries=queries, documents=tuple(path for path in paths if path not in labels))


def _walk(folder: Path) -> Iterator[Path]:
    for here, folders, names in os.walk(folder, onerror=_raise_unreadable):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(here) / name
            if not name.startswith(".") and not _PASSED_OVER & {name.casefold(), path.stem.casefold()}:
                yield path


def _raise_unreadable(error: OSError) -> NoReturn:
    raise cannot_read(Path(error.filename), error) from error


def _says_judgements(path: Path) -> bool:
    return "qrels" in path.name.casefold()


def _says_queries(path: Path) -> bool:
    name = path.name.casefold()
    return not _says_judgements(path) and ("topics" in name or "queries" in name)


def _nearest(paths: Sequence[Path], folder: Path) -> Sequence[Path]:
    return [path for path in paths if path.parent == folder] or paths


def _only(candidates: Sequence[Path], source: Path, sought: str, option: str) -> Path:
    named = f"as {option} (on the command line: --{option})"
    if not candidates:
        raise SourceError(f"{source}: no {sought} there; name the file {named}")
    if len(candidates) > 1:
        names = ", ".join(path.relative_to(source).as_posix() for path in candidates)
        raise SourceError(f"{source}: several files may hold the {sought}: {names}; name one {named}")
    return candidates[0]


def _units(path: Path, root: Path) -> Iterator[tuple[str, Document]]:
    source = clean_text(path.relative_to(root).as_posix())
    opening = _opening(path)
    if opening == b"{":
        yield from numbered_units(path, source)
    elif opening == b"<":
        for line, document in read_sgml_documents(path, source):
            yield f"{path}, line {line}", document
    else:
        raise SourceError(f"{path}: neither documents of TREC (<DOC>) nor JSON Lines")


def _opening(path: Path) -> bytes:
    """The first byte that is neither blank nor of a byte order mark; empty where there is none."""
    try:
        with path.open("rb") as file:
            for line in file:
                if content := line.removeprefix(b"\xef\xbb\xbf").strip():
                    return content[:1]
    except OSError as error:
        raise cannot_read(path, error) from error
    return b""
