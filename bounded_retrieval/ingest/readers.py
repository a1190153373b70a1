"""Read files of every supported kind into one stream of units."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from pathlib import Path

from langchain_core.documents import Document

from bounded_retrieval.errors import RequestError, SourceError, quoted
from bounded_retrieval.ingest.decoding import decode_utf8, read_bytes, with_line_feeds
from bounded_retrieval.ingest.discovery import SkipReporter, SourceFile, find_files
from bounded_retrieval.ingest.jsonl import read_jsonl
from bounded_retrieval.ingest.markdown import parse_markdown
from bounded_retrieval.ingest.outline import ParsedDocument, Section
from bounded_retrieval.ingest.pdf import parse_pdf
from bounded_retrieval.ingest.splitting import DEFAULT_CHUNK_CHARS, check_chunk_chars, to_documents
from bounded_retrieval.ingest.web import decode_html, parse_html

_NO_TEXT = {".pdf": "no text in this PDF (scanned pages?)"}


def read_documents(
    paths: Iterable[Path | str],
    *,
    chunk_chars: int = DEFAULT_CHUNK_CHARS,
    on_skip: SkipReporter | None = None,
) -> Iterator[Document]:
    """Stream the units of files and folders.

    Every unit has an ``id`` and the metadata ``source`` and, where there is one, ``title``, ``section`` and (PDF)
    ``page``, from 1. The ids are the same on every run; see `splitting` for those of documents, `jsonl` for those of
    JSON Lines, which are kept whole, and `discovery` for sources.

    Args:
        paths: files (``.jsonl .md .markdown .txt .html .htm .pdf``) and folders, which are read with all below them.
        chunk_chars: most characters of a unit, 100 to 200,000; longer sections are split. Not for JSON Lines.
        on_skip: called with a file and the reason for each file that is not read or holds no text.

    Raises:
        RequestError: ``chunk_chars`` is out of bounds, or ``on_skip`` no function.
        SourceError: names the file (and line) that is not what it should be. What concerns the paths themselves is
            raised by this call, what concerns the content while the stream is read.
    """
    check_chunk_chars(chunk_chars)
    if on_skip is not None and not callable(on_skip):
        raise RequestError(f"on_skip: expected a function (got {quoted(on_skip)})")
    skip = on_skip or _ignore_skipped
    return _stream(find_files(paths, skip), chunk_chars, skip)


def _ignore_skipped(path: Path, reason: str) -> None:
    """Nobody asked."""


def _stream(files: list[SourceFile], chunk_chars: int, skip: SkipReporter) -> Iterator[Document]:
    known = _KnownUnits()
    for root, group in groupby(files, key=lambda file: file.root):
        has_text = False
        for file in group:
            file_has_text = False
            for line, document in _read_file(file, chunk_chars):
                file_has_text = True
                if known.is_new(document, file.path, line):
                    yield document
            if not file_has_text:
                skip(file.path, _NO_TEXT.get(file.path.suffix.lower(), "no text in this file"))
            has_text = has_text or file_has_text
        if not has_text:
            raise SourceError(f"{root}: no text to read")


def _read_file(file: SourceFile, chunk_chars: int) -> Iterator[tuple[int, Document]]:
    """The units of one file with the line where each stands; 0 where lines mean nothing."""
    suffix = file.path.suffix.lower()
    if suffix == ".jsonl":
        # One empty file does not keep the rest of its folder from being read.
        yield from read_jsonl(file.path, file.source, may_be_empty=file.path != file.root)
        return
    parsed = _PARSERS[suffix](file.path, file.path.stem)
    for document in to_documents(parsed, file.source, chunk_chars):
        yield 0, document


def _parse_text_file(path: Path, title: str) -> ParsedDocument:
    text = with_line_feeds(decode_utf8(read_bytes(path), str(path)))
    return ParsedDocument(title, (Section((), text),))


def _parse_markdown_file(path: Path, title: str) -> ParsedDocument:
    return parse_markdown(with_line_feeds(decode_utf8(read_bytes(path), str(path))), title)


def _parse_html_file(path: Path, title: str) -> ParsedDocument:
    return parse_html(decode_html(read_bytes(path), str(path)), title, str(path))


_PARSERS: dict[str, Callable[[Path, str], ParsedDocument]] = {
    ".md": _parse_markdown_file,
    ".markdown": _parse_markdown_file,
    ".txt": _parse_text_file,
    ".html": _parse_html_file,
    ".htm": _parse_html_file,
    ".pdf": parse_pdf,
}


class _KnownUnits:
    """Ids given out so far. The same unit again is left out; another one under a known id is an error.

    Units are the same when text, title and metadata agree: a repeated id whose metadata differ (a tenant, a date of
    validity) must not be decided by the order of lines. ``source`` is not compared.
    """

    def __init__(self) -> None:
        self._seen: dict[str, tuple[bytes, Path, int]] = {}

    def is_new(self, document: Document, path: Path, line: int) -> bool:
        unit_id = document.id or ""
        digest = _digest(document)
        first = self._seen.setdefault(unit_id, (digest, path, line))
        if first[0] != digest:
            raise SourceError(
                f"{_place(path, line)}: id {quoted(unit_id)} was used by another unit (another text, title or "
                f"metadata) in {_place(first[1], first[2])}"
            )
        return first[1] is path and first[2] == line


def _digest(document: Document) -> bytes:
    metadata = {key: value for key, value in document.metadata.items() if key != "source"}
    content = json.dumps([document.page_content, metadata], sort_keys=True)
    return hashlib.blake2b(content.encode(), digest_size=16).digest()


def _place(path: Path, line: int) -> str:
    return f"{path}, line {line}" if line else str(path)
