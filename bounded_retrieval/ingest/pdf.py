"""PDF files page by page, through LangChain's ``PyPDFLoader``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from langchain_core.documents import Document

from bounded_retrieval.errors import SourceError
from bounded_retrieval.ingest._warnings import ignoring
from bounded_retrieval.ingest.decoding import read_bytes
from bounded_retrieval.ingest.outline import MAX_HEADING_CHARS, ParsedDocument, Section

_HEADER = b"%PDF-"
_HEADER_WITHIN = 1024
"""Readers accept a PDF whose header stands within this many bytes (ISO 32000, implementation note 13)."""


def parse_pdf(path: Path, file_title: str) -> ParsedDocument:
    """Read a PDF; the title is the one it declares, else ``file_title``; ``page`` is counted from 1.

    Raises:
        SourceError: names the file and why it cannot be read: encrypted, damaged, no PDF.
    """
    if _HEADER not in read_bytes(path)[:_HEADER_WITHIN]:
        raise SourceError(f"{path}: not a PDF (no {_HEADER.decode()} header)")
    pages = _load_pages(path)
    if not pages:
        raise SourceError(f"{path}: damaged PDF (no pages found)")
    declared = " ".join(str(pages[0].metadata.get("title") or "").split())
    sections = (Section((), page.page_content, {"page": page.metadata["page"] + 1}) for page in pages)
    title = declared if 0 < len(declared) <= MAX_HEADING_CHARS else file_title
    return ParsedDocument(title, tuple(section for section in sections if section.text.strip()))


def _load_pages(path: Path) -> list[Document]:
    with ignoring(DeprecationWarning, message="`langchain-community` is being sunset"):
        from langchain_community.document_loaders import PyPDFLoader
    from pypdf.errors import DependencyError, FileNotDecryptedError

    try:
        with _without_default_log_output():
            # An absolute path, since the loader expands a leading "~".
            return list(PyPDFLoader(str(path.absolute())).lazy_load())
    except FileNotDecryptedError as error:
        raise SourceError(f"{path}: encrypted PDF (it needs a password)") from error
    except DependencyError as error:
        raise SourceError(f"{path}: encrypted PDF ({_one_line(error)})") from error
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or _one_line(error)})") from error
    except Exception as error:  # a damaged file makes pypdf raise nearly every type there is
        raise SourceError(f"{path}: damaged PDF ({_one_line(error)})") from error


@contextmanager
def _without_default_log_output() -> Iterator[None]:
    """Keep pypdf's repair notes off standard error where the application has set up no logging."""
    logger = logging.getLogger("pypdf")
    silent = logging.NullHandler()
    logger.addHandler(silent)
    try:
        yield
    finally:
        logger.removeHandler(silent)


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
