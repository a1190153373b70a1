"""Errors of indexes and stores that no other test meets: each names the file or the part and what is wrong."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
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

sys.path.insert(0, str(Path(__file__).parent))

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


def test_a_row_that_is_none_is_named(words: Path) -> None:
    """An id that stands for a row that is not there."""
    execute(words / "units.sqlite", "UPDATE units SET row = -7 WHERE unit_id = 'a'")
    with closing(BM25Searcher.open(words)) as searcher:
        told = said(errors.StoreCorruptError, lambda: searcher.score("valve", ["a"]))
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


@pytest.mark.parametrize("broken", ["count", "upsert"])
def test_a_dense_store_that_lost_units_is_not_published(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building fails with both numbers, or with what Chroma says and the room on the disk, and there is no index."""
    from chromadb.api.models.Collection import Collection
    from chromadb.errors import InternalError

    def refuse(*_: Any, **__: Any) -> Any:
        raise InternalError("lost\nand more")

    monkeypatch.setattr(Collection, broken, refuse if broken == "upsert" else lambda _: 1)
    build = partial(build_index, UNITS, tmp_path / "index", embedding=VECTORS, dense="chroma")
    expected = errors.StoreError if broken == "upsert" else errors.StoreCorruptError
    told = said(expected, build)
    place = tmp_path / "index" / "generations" / "000001.partial" / "dense" / "chroma"
    assert told.startswith(
        f"{place}: {'cannot be written (lost; ' if broken == 'upsert' else 'holds 1 units, expected 2'}"
    )
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


def test_a_graph_of_other_units_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is first searched: the folder, and both numbers."""
    build_index(UNITS, tmp_path / "index", embedding=VECTORS, dense="chroma")
    monkeypatch.setattr(ChromaSearcher, "__len__", lambda _: 7)
    (folder,) = tmp_path.glob("index/generations/*/dense/chroma")
    with open_index(tmp_path / "index", embedding=VECTORS) as index:
        told = said(errors.StoreCorruptError, lambda: index.dense.search("pump", 1))
    assert told == f"{folder}: 7 units, expected 2"


def test_an_older_store_of_other_units_is_built_anew(tmp_path: Path) -> None:
    """Vectors of an older format that are not those of the units are not taken over."""
    from older_index import make_older

    root = tmp_path / "index"
    build_index(UNITS, root, embedding=VECTORS, dense="chroma")
    make_older(root, 1)
    execute(root / "generations" / "000001" / "dense" / CHROMA, "UPDATE embeddings SET embedding_id = 'c' WHERE id = 1")
    with pytest.raises(errors.StoreCorruptError, match="dense: does not hold the vectors of the units"):
        build_index(UNITS, root, embedding=VECTORS, keep=True)
    assert build_index(UNITS, root, embedding=VECTORS).embedded == 2


def test_an_unknown_kind_of_dense_search_is_told(tmp_path: Path) -> None:
    """The three that there are, and the one given."""
    told = said(errors.ConfigurationError, lambda: build_index(UNITS, tmp_path, embedding=VECTORS, dense="hnsw"))
    assert told == "dense: expected 'auto', 'exact' or 'chroma' (got 'hnsw')"


def test_vectors_of_another_length_are_not_mixed(index: Path) -> None:
    """An embedding of the same name that gives other dimensions is refused, and the old index stays."""
    other = DeterministicFakeEmbedding(size=5)
    more = [*UNITS, Document(id="c", page_content="A new unit.")]
    told = said(errors.EmbeddingMismatchError, lambda: build_index(more, index, embedding=other))
    assert told.startswith(f"{index}: holds vectors of 4 dimensions, embedding ")
    assert told.endswith(" gives 5")


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
