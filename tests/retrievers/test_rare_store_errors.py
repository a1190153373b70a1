"""Errors of indexes and stores that no other test meets: each names the file or the part and what is wrong."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding

from bounded_retrieval import BM25Searcher, ChromaSearcher, RelationshipStore, build_index, errors, open_index
from bounded_retrieval.cli import main
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.relationships import Relationship
from bounded_retrieval.retrievers import _bm25_files, _store_files, embeddings
from bounded_retrieval.retrievers._chroma_file import CHROMA
from bounded_retrieval.retrievers._chroma_filter import METADATA_KEY, unpack_metadata
from bounded_retrieval.retrievers._store_files import copy_chroma
from bounded_retrieval.retrievers.units import write_units

UNITS = [
    Document(id="a", page_content="The pump hums at night."),
    Document(id="b", page_content="The valve is closed by day."),
]
LINKS = RelationshipStore([Relationship(subject="pump", relation="made by", object="acme", source_unit="a")])
VECTORS = DeterministicFakeEmbedding(size=4)


@pytest.fixture
def index(tmp_path: Path) -> Path:
    """A small index with a relationship."""
    build_index(UNITS, tmp_path / "index", embedding=VECTORS, relationships=LINKS)
    return tmp_path / "index"


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A lexical index in files."""
    BM25Searcher.from_documents(UNITS).save(tmp_path / "words")
    return tmp_path / "words"


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """A dense store in files."""
    ChromaSearcher.from_documents(UNITS, VECTORS, path=tmp_path / "vectors").close()
    return tmp_path / "vectors"


def said(expected: type[Exception], call: Callable[[], Any]) -> str:
    """What an error of exactly this type says, in one line."""
    with pytest.raises(expected) as caught:
        call()
    assert type(caught.value) is expected
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def execute(file: Path, *statements: str) -> None:
    """Change a database behind everybody's back."""
    with closing(sqlite3.connect(file)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def test_what_is_no_document_is_named_by_its_place() -> None:
    """Texts have to be documents."""
    told = said(errors.SourceError, lambda: BM25Searcher.from_documents([UNITS[0], "a text"]))
    assert told == "document 2: expected a langchain Document (got str)"


def test_a_row_beyond_the_last_is_named(words: Path) -> None:
    """An id that stands for a row that is not there."""
    execute(words / "units.sqlite", "UPDATE units SET row = 99 WHERE unit_id = 'b'")
    with closing(BM25Searcher.open(words)) as searcher:
        told = said(errors.StoreCorruptError, lambda: searcher.score("valve", ["b"]))
    assert told == f"{words / 'units.sqlite'}: the row of an id is none of 0 to 1"


def test_units_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    """The file, and what SQLite says."""
    file = tmp_path / "missing" / "units.sqlite"
    told = said(errors.StoreError, lambda: write_units(file, map(Unit.from_document, UNITS)))
    assert told == f"{file}: unable to open database file"


def test_a_term_that_is_none_is_named(words: Path) -> None:
    """In the texts of the second backend: the file and the range of the vocabulary."""
    file = words / "token_ids.npy"
    np.save(file, np.full_like(np.load(file), 1000))
    told = said(errors.StoreCorruptError, lambda: BM25Searcher.open(words, backend="rank_bm25"))
    assert told.startswith(f"{file}: a term id is none of 0 to ")


def test_a_file_that_cannot_be_mapped_is_named(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no memory to map it to."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(_bm25_files.np, "memmap", refuse)
    told = said(errors.StoreCorruptError, lambda: BM25Searcher.open(words))
    assert told.startswith(str(words))
    assert told.endswith(".npy: cannot be mapped ([Errno 12] Cannot allocate memory)")


@pytest.mark.parametrize(
    ("held", "told"),
    [("[1]", "is no JSON object"), ("{", "is not JSON (Expecting property name enclosed in double quotes")],
)
def test_metadata_that_are_none_are_told(held: str, told: str) -> None:
    """Of a unit in the dense store."""
    message = said(errors.StoreCorruptError, lambda: unpack_metadata({METADATA_KEY: held}))
    assert message.startswith(f"dense store: the metadata of a unit {told}")


def test_a_schema_that_is_no_text_is_named(vectors: Path) -> None:
    """SQLite's own message about it cannot be read."""
    bad = "UPDATE sqlite_master SET sql = CAST(x'435245415445fffe' AS TEXT), name = CAST(x'fffe' AS TEXT)"
    execute(vectors / CHROMA, "PRAGMA writable_schema = ON", f"{bad} WHERE name = 'embeddings'")
    told = said(errors.StoreCorruptError, lambda: ChromaSearcher.open(vectors, VECTORS))
    assert told == f"{vectors / CHROMA}: damaged (its schema is no text)"


def test_a_database_of_another_version_is_named(vectors: Path) -> None:
    """A sound file of SQLite's that another version of Chroma has migrated."""
    execute(vectors / CHROMA, "UPDATE migrations SET hash = 'x'")
    told = said(errors.StoreCorruptError, lambda: ChromaSearcher.open(vectors, VECTORS))
    assert told.startswith(f"{vectors}: cannot be opened (Inconsistent hash")


def test_a_store_that_is_open_with_other_settings_is_named(vectors: Path) -> None:
    """Chroma has one set of settings for a folder in a process."""
    import chromadb
    from chromadb.config import Settings

    client = chromadb.PersistentClient(str(vectors.resolve()), Settings(anonymized_telemetry=False, allow_reset=True))
    told = said(errors.ConfigurationError, lambda: ChromaSearcher.open(vectors, VECTORS))
    assert told.startswith(f"{vectors}: cannot be opened (An instance of Chroma already exists for ")
    client.close()


def test_a_collection_that_chroma_does_not_give_is_named(vectors: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder, and the first line of what Chroma says."""
    from chromadb.api.client import Client
    from chromadb.errors import InternalError

    def refuse(*_: Any, **__: Any) -> Any:
        raise InternalError("lost\nand more")

    monkeypatch.setattr(Client, "get_collection", refuse)
    told = said(errors.StoreCorruptError, lambda: ChromaSearcher.open(vectors, VECTORS))
    assert told == f"{vectors}: cannot be opened (lost)"


def test_a_dense_store_that_cannot_be_copied_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source where it is no database, the copy where it cannot be written."""
    source = tmp_path / "source"
    source.mkdir()
    (source / CHROMA).write_bytes(b"no database " * 100)
    told = said(errors.StoreCorruptError, lambda: copy_chroma(source, tmp_path / "copy"))
    assert told == f"{source / CHROMA}: file is not a database"

    def refuse(*_: Any) -> Any:
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(_store_files.sqlite3, "connect", refuse)
    told = said(errors.StoreError, lambda: copy_chroma(source, tmp_path / "other"))
    assert told == f"{tmp_path / 'other' / CHROMA}: disk I/O error"


def test_a_dense_store_that_lost_units_is_not_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building fails with both numbers, and there is no index."""
    monkeypatch.setattr(ChromaSearcher, "__len__", lambda _: 1)
    told = said(errors.StoreCorruptError, lambda: build_index(UNITS, tmp_path / "index", embedding=VECTORS))
    assert told == "dense store: holds 1 units, expected 2"
    assert not (tmp_path / "index" / "manifest.json").exists()


def test_a_name_that_is_too_long_is_named(tmp_path: Path) -> None:
    """The path, and what the system says."""
    path = tmp_path / ("x" * 300)
    assert said(errors.StoreError, lambda: open_index(path)) == f"{path / 'manifest.json'}: File name too long"


def test_relationships_that_are_none_are_named(index: Path) -> None:
    """In an index, they are damage: the file, the line and what is wrong."""
    (file,) = index.glob("generations/*/relationships.jsonl")
    file.write_bytes(b"x" * file.stat().st_size)
    told = said(errors.StoreCorruptError, lambda: open_index(index, embedding=VECTORS))
    assert str(file) in told


def test_a_part_that_cannot_be_counted_is_named(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the part, and what went wrong there."""

    def refuse(_: ChromaSearcher) -> int:
        raise errors.StoreError("collection 'units': lost")

    monkeypatch.setattr(ChromaSearcher, "__len__", refuse)
    (folder,) = index.glob("generations/*/dense")
    told = said(errors.StoreError, lambda: open_index(index, embedding=VECTORS))
    assert told == f"{folder}: collection 'units': lost"


def test_an_embedding_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(embeddings, "_package_folder", lambda _: None)
    told = said(errors.ConfigurationError, lambda: embeddings.load_embedding("wordllama"))
    assert told == 'embedding wordllama: not installed; run pip install "bounded-retrieval[fast-embedding]"'


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "bounded-retrieval: query: missing; give one, or --path\n"),
        (
            ["--path", "HX-200 > led by"],
            "bounded-retrieval: --path: {} holds no relationships; give --relationships FILE, here or to index\n",
        ),
    ],
)
def test_a_question_that_cannot_be_asked_is_told(
    arguments: list[str], told: str, shipped_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """On the command line: no query, and a path over an index without relationships."""
    assert main(["ask", *arguments, "--index", str(shipped_index)]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", told.format(shipped_index))
