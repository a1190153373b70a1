"""Errors that no other test meets: each is raised here, and says what is wrong."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bs4
import pytest
from bs4.builder import ParserRejectedMarkup
from langchain_core.documents import Document

from bounded_retrieval import (
    BM25Searcher,
    Calibration,
    DecisionTrace,
    RelationshipStore,
    Scorecard,
    TermCoverage,
    create_bounded_retrieval,
    errors,
)
from bounded_retrieval.contracts.calibration import MAX_FILE_BYTES
from bounded_retrieval.errors import BoundedRetrievalError
from bounded_retrieval.evaluation import _sgml, report
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.ingest.pdf import parse_pdf
from bounded_retrieval.nodes.running import _arun, method_call
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.testing import FailingSearcher

UNITS = [Document(id="a", page_content="The pump hums at night.")]


def ask(**options: Any) -> Any:
    """One run of a small controller."""
    return create_bounded_retrieval(BM25Searcher.from_documents(UNITS), **options).compile().invoke({"query": "pump"})


def no_pages(folder: Path) -> Any:
    """Read a PDF without a page."""
    from pypdf import PdfWriter

    PdfWriter().write(folder / "empty.pdf")
    return parse_pdf(folder / "empty.pdf", "empty")


def pipe(folder: Path) -> Any:
    """Read a calibration from a pipe."""
    os.mkfifo(folder / "calibration.json")
    return Calibration.from_file(folder / "calibration.json")


def too_large(folder: Path) -> Any:
    """Read a calibration of more bytes than any has."""
    with (folder / "calibration.json").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    return Calibration.from_file(folder / "calibration.json")


def run_of(**changes: Any) -> DecisionTrace:
    """The trace of a run that stopped after its lexical search, with events changed by their kind."""
    trace = DecisionTrace.from_result(ask(policy="fixed_lexical"))
    events = [event.model_copy(update=changes.get(event.event, {})) for event in trace.events]
    return DecisionTrace(events=tuple(events))


def without(kind: str) -> DecisionTrace:
    """The same trace without the events of a kind."""
    trace = run_of()
    return DecisionTrace(events=tuple(event for event in trace.events if event.event != kind))


def unreadable(folder: Path) -> Any:
    """Call what can be called in no manner."""
    del folder
    return asyncio.run(_arun(method_call(object(), "fetch")))


MET_HERE = {
    "an assessor's class": (
        lambda _: ask(assessor=TermCoverage),
        "assessor: expected an instance (got the class TermCoverage)",
    ),
    "no fusion": (lambda _: ask(fusion=5), "fusion: expected an object with fuse(rankings) (got int)"),
    "no scorecard setting": (
        lambda _: Scorecard(setting="cheap"),
        "setting: one of default, economy, quality (got 'cheap')",
    ),
    "sources that cannot be read": (
        lambda _: create_bounded_retrieval(FailingSearcher(), relationships=RelationshipStore()),
        "relationships: give units= too; nothing else here can read the sources of a path",
    ),
    "no method": (unreadable, "object.fetch: has neither a synchronous nor an asynchronous method"),
    "a trace without its end": (
        lambda _: replay(without("evidence_packed"), {}),
        "trace: not whole; it runs from request_inspected to evidence_packed",
    ),
    "a trace without its search": (
        lambda _: replay(without("search_attempted"), {}),
        "trace: not whole; a decision comes before any search",
    ),
    "a trace with another decision": (
        lambda _: replay(run_of(coverage_assessed={"action": "dense_search", "stop_reason": None}), {}),
        "trace: decision 1 was dense_search (None) but replays as recheck_and_pack (policy_complete)",
    ),
    "a PDF without pages": (no_pages, ".../empty.pdf: damaged PDF (no pages found)"),
    "a pipe": (pipe, ".../calibration.json: not a regular file"),
    "a large calibration": (too_large, f".../calibration.json: larger than {MAX_FILE_BYTES} bytes; no calibration"),
}


@pytest.mark.parametrize(("call", "message"), MET_HERE.values(), ids=MET_HERE)
def test_an_error_says_what_is_wrong(call: Callable[[Path], Any], message: str, tmp_path: Path) -> None:
    """The whole message, of one of the package's own types."""
    with pytest.raises(BoundedRetrievalError) as caught:
        call(tmp_path)
    assert str(caught.value).replace(str(tmp_path), "...") == message


def test_a_page_that_no_parser_takes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file, and the last line of what the parser says."""

    def refuse(*_: Any) -> Any:
        raise ParserRejectedMarkup("Advice.\nunknown keyword")

    monkeypatch.setattr(bs4, "BeautifulSoup", refuse)
    file = tmp_path / "page.html"
    file.write_text("<p>A page.", encoding="utf-8")
    with pytest.raises(errors.SourceError) as caught:
        list(read_documents([file]))
    assert str(caught.value) == f"{file}: not readable HTML (unknown keyword)"


def test_a_pdf_that_needs_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encryption that the PDF reader can only undo with another package: the file, and what the reader says."""
    from langchain_community.document_loaders import PyPDFLoader
    from pypdf.errors import DependencyError

    def refuse(_: Any) -> Any:
        raise DependencyError("cryptography is required\nfor AES")

    monkeypatch.setattr(PyPDFLoader, "lazy_load", refuse)
    file = tmp_path / "locked.pdf"
    file.write_bytes(b"%PDF-1.7\n")
    with pytest.raises(errors.SourceError) as caught:
        parse_pdf(file, "locked")
    assert str(caught.value) == f"{file}: encrypted PDF (cryptography is required for AES)"


def test_a_document_that_never_ends_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a file of TREC documents: the file, the line where it begins and the limit."""
    monkeypatch.setattr(_sgml, "MAX_DOCUMENT_BYTES", 40)
    file = tmp_path / "documents.trec"
    file.write_text(f"\n<DOC>\n<DOCNO>a</DOCNO>\n<TEXT>\n{'word ' * 20}\n</TEXT>\n</DOC>\n", encoding="utf-8")
    with pytest.raises(errors.SourceError) as caught:
        list(_sgml.read_sgml_documents(file, "manuals"))
    assert str(caught.value) == f"{file}, line 2: longer than 40 bytes"


def test_a_picture_that_cannot_be_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an earlier report, where the folder does not let go of it."""
    former = tmp_path / "timings.json"
    former.write_text("{}", encoding="utf-8")

    def refuse(_: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(errors.SourceError) as caught:
        report._remove_former(tmp_path, set())
    assert str(caught.value) == f"{former}: cannot be removed (Permission denied)"
