from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bounded_retrieval.errors import StoreError
from bounded_retrieval.retrievers import _chroma_store, _private_copy
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.store import build_index, open_index, verify_index

sys.path.insert(0, str(Path(__file__).parent))
from test_store_verify import DOCUMENTS, CountingEmbeddings, ask


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An index with a Chroma store that nobody has opened."""
    build_index(DOCUMENTS, tmp_path / "index", embedding=CountingEmbeddings(), dense="chroma")
    return tmp_path / "index"


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of the test's own."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    return tmp_path / "tmp"


def state(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below a folder, with the time it was written at and its content."""
    files = [path for path in root.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


@contextmanager
def unwritable(root: Path) -> Iterator[None]:
    """The folder may not be written: by its modes, or for root, who may write whatever they say, by the file system."""
    if os.geteuid() == 0:
        mounted = subprocess.run(["mount", "--bind", root, root], capture_output=True, check=False)
        if mounted.returncode != 0:
            pytest.skip("this process may write everywhere, and may not mount")
        subprocess.run(["mount", "-o", "remount,bind,ro", root], check=True)
        try:
            yield
        finally:
            subprocess.run(["umount", "-l", root], check=True)
        return
    paths = [root, *root.rglob("*")]
    for path in paths:
        path.chmod(0o500 if path.is_dir() else 0o400)
    try:
        yield
    finally:
        for path in paths:
            path.chmod(0o700)


def test_an_index_that_may_not_be_written_answers(root: Path, temporary: Path) -> None:
    """Its answers are those of a writable one, nothing in it is touched, and the private copy is gone when it is closed."""
    expected, before = ask(Path(shutil.copytree(root, root.with_name("writable")))), state(root)
    with unwritable(root):
        with open_index(root, embedding=CountingEmbeddings(), verify=True) as index:
            assert index.dense.score("pump", ["u04"])
            assert list(temporary.iterdir()) == []
            assert index.dense.search("The pump of site 3 hums.", 1)[0].unit_id == "u03"
            (copy,) = temporary.iterdir()
            assert copy.stat().st_mode & 0o777 == 0o700
        assert list(temporary.iterdir()) == []
        assert ask(root) == expected
    assert state(root) == before


def test_an_exact_index_that_may_not_be_written_needs_no_copy(tmp_path: Path, temporary: Path) -> None:
    """Nothing is written anywhere to open, ask and verify it."""
    root = tmp_path / "exact"
    build_index(DOCUMENTS, root, embedding=CountingEmbeddings())
    before = state(root)
    temporary.rmdir()
    with unwritable(root):
        assert ask(root)
        verify_index(root)
    assert state(root) == before


def test_the_searcher_outlives_the_index_object(root: Path, temporary: Path) -> None:
    """Whoever keeps only the searchers keeps the copy; it goes with the dense one."""
    with unwritable(root):
        dense = open_index(root, embedding=CountingEmbeddings()).dense
        assert dense.search("The pump of site 3 hums.", 1)[0].unit_id == "u03"
        del dense
    assert list(temporary.iterdir()) == []


def test_where_no_copy_can_be_made_the_error_says_why(
    root: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line that names the store and the reason."""
    temporary.rmdir()
    monkeypatch.setattr(_chroma_store, "is_writable", lambda _: False)
    with (
        open_index(root, embedding=CountingEmbeddings()) as index,
        pytest.raises(StoreError, match=r"chroma: may not be written, and no copy can be made .* \(No such file"),
    ):
        index.dense.search("pump", 1)


def test_a_full_disk_is_one_that_may_not_be_written(
    root: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where Chroma finds no room for what it writes on opening, a private copy answers."""
    opened = []
    client = _chroma_store._client

    def full(stack, path):
        opened.append(path)
        if root in path.parents:
            raise _chroma_store._UnwritableError("database or disk is full")
        return client(stack, path)

    monkeypatch.setattr(_chroma_store, "_client", full)
    assert ask(root)
    assert [root in path.parents for path in opened] == [True, False]
    assert list(temporary.iterdir()) == []


def test_a_store_of_ones_own_is_copied_only_when_asked_for(root: Path, temporary: Path) -> None:
    """A Chroma store is opened in its place or not at all, unless it is opened read-only."""
    store = root / "generations" / "000001" / "dense" / "chroma"
    with unwritable(root):
        with pytest.raises(StoreError, match="Chroma writes to its folder even to read it, and may not"):
            ChromaSearcher.open(store, CountingEmbeddings())
        searcher = ChromaSearcher.open(store, CountingEmbeddings(), read_only=True)
        assert searcher.search("The pump of site 3 hums.", 1)[0].unit_id == "u03"
        assert not _private_copy.is_writable(store)
        with pytest.raises(StoreError, match="opened read-only"):
            searcher.add(DOCUMENTS)
        searcher.close()
    assert list(temporary.iterdir()) == []
