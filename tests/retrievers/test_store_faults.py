from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest
from chromadb.errors import InternalError
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.errors import StoreCorruptError, StoreError
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.store import build_index, open_index

DOCUMENTS = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(20)]


class Lengths(Embeddings):
    """A tiny embedding: the text's length and two constants."""

    embedding_id = "lengths"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [float(len(text)), 1.0, 2.0]


def _build(directory: Path, documents: Sequence[Document] = DOCUMENTS) -> None:
    build_index(documents, directory, embedding=Lengths(), dense="chroma")


def _dense(directory: Path) -> Path:
    return max((directory / "generations").iterdir()) / "dense" / "chroma"


@pytest.mark.parametrize("keep", [None, 0, 0.5], ids=["deleted", "emptied", "halved"])
@pytest.mark.parametrize("pattern", ["*.bin", "header.bin", "data_level0.bin"])
def test_a_reader_killed_while_chroma_rewrites_its_files_ruins_nothing(
    tmp_path: Path, pattern: str, keep: float | None
) -> None:
    """Below its threshold Chroma makes its vector files anew for every reader; one cut short does not matter."""
    _build(tmp_path)
    for path in _dense(tmp_path).rglob(pattern):
        data = path.read_bytes()
        path.unlink()
        if keep is not None:
            path.write_bytes(data[: int(len(data) * keep)])
    with open_index(tmp_path, embedding=Lengths()) as index:
        assert index.dense.search("pump", 2)
        assert len(index.lexical.search("pump", 2)) == 2


def test_a_damaged_chroma_database_is_named_and_built_anew(tmp_path: Path) -> None:
    """Searching it gives the same clear error every time in one process, and the next build replaces it."""
    _build(tmp_path)
    database = _dense(tmp_path) / "chroma.sqlite3"
    data = database.read_bytes()
    database.write_bytes(data[:4096] + bytes(len(data) - 4096))
    for _ in range(2):
        with open_index(tmp_path, embedding=Lengths()) as index:
            assert index.dense.search("pump", 2, {"site": 3}) == []
            assert index.dense.score("pump", ["u3"])
            with pytest.raises(StoreCorruptError, match="dense"):
                index.dense.search("pump", 2)
    _build(tmp_path, DOCUMENTS[:5])
    with open_index(tmp_path, embedding=Lengths()) as index:
        assert len(index.dense) == 5


def test_an_error_of_chroma_while_another_is_explained_is_one_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scoring and searching first look at the stored vectors' length, and a damaged store may fail just there."""

    def fail(*_: object, **__: object) -> None:
        raise InternalError("cannot find id")

    with closing(ChromaSearcher.from_documents(DOCUMENTS, Lengths(), path=tmp_path)) as dense:
        get = dense._collection.get
        monkeypatch.setattr(dense._collection, "get", lambda **asked: fail() if "limit" in asked else get(**asked))
        with pytest.raises(StoreError, match="collection 'units': cannot find id"):
            dense.score("pump", ["u3"])
        monkeypatch.setattr(dense._collection, "query", fail)
        with pytest.raises(StoreError, match="collection 'units': cannot find id"):
            dense.search("pump", 2)


def test_a_folder_that_only_looks_like_an_index_is_left_alone(tmp_path: Path) -> None:
    """Somebody else's folder named generations is foreign, and nothing in it is deleted."""
    theirs = tmp_path / "generations" / "000001" / "data.txt"
    theirs.parent.mkdir(parents=True)
    theirs.write_text("theirs")
    with pytest.raises(StoreError, match="generations"):
        _build(tmp_path)
    assert theirs.read_text() == "theirs"


def test_the_default_embedding_writes_nothing_below_the_home_folder(tmp_path: Path) -> None:
    """The embedding's runtime keeps no id and no usage records, on a continuous integration machine or off it."""
    code = "from bounded_retrieval.retrievers.embeddings import load_embedding; load_embedding().embed_query('pump')"
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "XDG_CACHE_HOME")}
    subprocess.run([sys.executable, "-c", code], check=True, env={**environment, "HOME": str(tmp_path)})
    assert list(tmp_path.rglob("*")) == []
