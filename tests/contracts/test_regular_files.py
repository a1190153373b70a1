from __future__ import annotations

import os
from pathlib import Path

import pytest

from bounded_retrieval.contracts.calibration import Calibration
from bounded_retrieval.errors import SourceError
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.statistics import read_runs

READERS = {
    "calibration": Calibration.from_file,
    "relationships": RelationshipStore.from_jsonl,
    "runs of one": lambda path: list(read_runs(path)),
    "runs": lambda path: list(read_runs(path)),
}
NAMES = {"runs of one": "file.json"}


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_or_a_device_is_not_waited_for(tmp_path: Path, name: str) -> None:
    """A pipe that nobody writes to, and a link to a device that never ends, are refused by name and unopened."""
    path = tmp_path / NAMES.get(name, "file.jsonl")
    os.mkfifo(path)
    with pytest.raises(SourceError, match=r"file\.jsonl?: not a regular file"):
        READERS[name](path)
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(SourceError, match=r"file\.jsonl?: not a regular file"):
        READERS[name](path)


@pytest.mark.parametrize("name", READERS)
def test_what_is_no_file_is_named(tmp_path: Path, name: str) -> None:
    """A folder, a link to nothing and one to itself give one line with the path."""
    path = tmp_path / NAMES.get(name, "file.jsonl")
    for make in (Path.mkdir, lambda path: path.symlink_to("nowhere"), lambda path: path.symlink_to(path.name)):
        make(path)
        with pytest.raises(SourceError, match=r"file\.jsonl?: cannot be read \(.+\)$"):
            READERS[name](path)
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_link_to_a_file_is_read(tmp_path: Path) -> None:
    """What a user names may be a link."""
    (tmp_path / "real").write_text('{"subject": "a", "relation": "r", "object": "b", "source_unit": "u"}\n')
    (tmp_path / "link").symlink_to("real")
    assert len(RelationshipStore.from_jsonl(tmp_path / "link")) == 1
