"""Arguments of another type are refused when files are asked for, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.ingest.discovery import find_files, find_relationships
from bounded_retrieval.ingest.readers import read_documents

WAYS = {
    "read_documents": read_documents,
    "find_files": lambda paths: find_files(paths, lambda _path, _reason: None),
    "find_relationships": find_relationships,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("given", [5, None, b"notes", [5], [None], [b"notes"], [["notes"]]], ids=repr)
def test_what_is_no_path_is_refused(given: Any, way: str) -> None:
    """The call itself names the value; nothing has to be read for it."""
    with pytest.raises(SourceError, match=r"^paths: expected files and folders \(got (5|None|b'notes'|\['notes'\])\)$"):
        WAYS[way](given)


@pytest.mark.parametrize("given", ["notes.md", Path("notes.md"), ("notes.md",), iter([Path("notes.md")])], ids=repr)
def test_one_path_or_several_are_read(given: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Text, a path object, and any number of both."""
    monkeypatch.chdir(tmp_path)
    Path("notes.md").write_text("The pump hums.", encoding="utf-8")
    assert [document.page_content for document in read_documents(given)] == ["The pump hums."]


def test_whoever_is_told_of_files_left_out_must_be_a_function(tmp_path: Path) -> None:
    """It is refused although no file is left out."""
    (tmp_path / "notes.md").write_text("The pump hums.", encoding="utf-8")
    with pytest.raises(RequestError, match=r"^on_skip: expected a function \(got 5\)$"):
        read_documents([tmp_path], on_skip=5)  # type: ignore[arg-type]
