"""Arguments of another type are refused at the entry point: one line that names the parameter and the value."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from bounded_retrieval import (
    BM25Searcher,
    BoundedRetriever,
    ChromaServerSearcher,
    ExactSearcher,
    JsonlDiagnostics,
    MilvusStore,
    PgVectorSearcher,
    RelationshipStore,
    build_index,
    create_bounded_retrieval,
    errors,
    open_index,
)
from bounded_retrieval.contracts.relationships import EntityName, Relationship
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.embeddings import EMBEDDING_NAMES, check_embeds, embedding_identity, load_embedding
from bounded_retrieval.retrievers.store import verify_index
from bounded_retrieval.retrievers.units import MemoryUnits

UNITS = [Document(id="a", page_content="The pump hums."), Document(id="b", page_content="The valve drips.")]
FAKE = DeterministicFakeEmbedding(size=8)
LEXICAL = BM25Searcher.from_documents(UNITS)
DENSE = ExactSearcher.from_documents(UNITS, FAKE)
MEMORY = MemoryUnits(UNITS)


class OnlyQueries:
    def embed_query(self, text: str) -> list[float]:
        """Embeds no documents."""
        return FAKE.embed_query(text)


class DuckTyped(OnlyQueries):
    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        """Embeds them."""
        return FAKE.embed_documents(texts)


def refused(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    """A call raises exactly this error, in one line that is all of the pattern."""
    with pytest.raises(error, match=f"^{message}$") as caught:
        call()
    assert type(caught.value) is error
    assert len(str(caught.value).splitlines()) == 1


NO_EMBEDDINGS = ["minilm", 5, object(), OnlyQueries(), DeterministicFakeEmbedding, b"minilm"]
EMBEDDED: dict[str, Callable[[Path, Any], Any]] = {
    "build_index": lambda path, embedding: build_index(UNITS, path / "new", embedding=embedding),
    "build_index again": lambda path, embedding: build_index(UNITS, path / "old", embedding=embedding),
    "open_index": lambda path, embedding: open_index(path / "old", embedding=embedding),
    "from_documents": lambda _, embedding: ExactSearcher.from_documents(UNITS, embedding),
    "ExactSearcher": lambda _, embedding: ExactSearcher(MEMORY, np.zeros((2, 8), dtype=np.float32), embedding),
    "open": lambda path, embedding: ExactSearcher.open(next(path.rglob("vectors.npy")), MEMORY, embedding, 8),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an index under ``old``."""
    path = tmp_path_factory.mktemp("indexes")
    build_index(UNITS, path / "old", embedding=FAKE)
    return path


@pytest.mark.parametrize("given", NO_EMBEDDINGS, ids=lambda given: errors.quoted(given, 20))
@pytest.mark.parametrize("way", EMBEDDED)
def test_what_is_no_embedding_is_refused(folder: Path, way: str, given: Any) -> None:
    """The error says how to get one by its name, nothing is written, and nobody is told to delete an index."""
    message = (
        r"embedding: expected an object with embed_documents and embed_query \(got .+\); "
        r'load_embedding\("minilm"\) of bounded_retrieval\.retrievers\.embeddings gives one'
    )
    refused(lambda: EMBEDDED[way](folder, given), errors.ConfigurationError, message)
    assert {path.name for path in folder.iterdir()} == {"old"}


@pytest.mark.parametrize("name", EMBEDDING_NAMES)
def test_the_advice_is_right(name: str) -> None:
    """What the error names gives embeddings, which are accepted."""
    embedding = load_embedding(name)
    assert isinstance(embedding, Embeddings)
    check_embeds(embedding)


@pytest.mark.parametrize("way", EMBEDDED)
def test_whatever_embeds_is_an_embedding(folder: Path, way: str, tmp_path: Path) -> None:
    """Objects with both methods are taken without being subclasses; another index's embedding is still named."""
    if way in ("build_index again", "open_index"):
        with pytest.raises(errors.EmbeddingMismatchError, match=r"built with embedding .*DeterministicFake"):
            EMBEDDED[way](folder, DuckTyped())
    else:
        EMBEDDED[way](tmp_path if way == "build_index" else folder, DuckTyped())


@pytest.mark.parametrize("name", [None, 5, [], {}], ids=repr)
def test_a_name_of_no_embedding_is_refused(name: Any) -> None:
    """A name that is no text, or cannot be looked up at all, is as unknown as any other."""
    refused(
        lambda: load_embedding(name),
        errors.ConfigurationError,
        r"embedding: expected one of minilm, wordllama \(got .+\)",
    )


NO_PATHS = [5, None, b"index", ["index"], "in\0dex"]
OPENED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "open_index": ("directory", open_index),
    "verify_index": ("directory", verify_index),
    "build_index": ("directory", lambda path: build_index(UNITS, path, embedding=FAKE)),
    "BM25Searcher.open": ("directory", BM25Searcher.open),
    "BM25Searcher.save": ("directory", LEXICAL.save),
    "ExactSearcher.open": ("path", lambda path: ExactSearcher.open(path, MEMORY, FAKE, 8)),
    "ChromaSearcher.open": ("path", ChromaSearcher.open),
}


@pytest.mark.parametrize("given", NO_PATHS, ids=repr)
@pytest.mark.parametrize("way", OPENED)
def test_what_is_no_path_is_refused(way: str, given: Any) -> None:
    """A number, nothing, bytes, a list, and text that no path can hold."""
    name, call = OPENED[way]
    refused(lambda: call(given), errors.StoreError, rf"{name}: expected a path \(got .+\)")


REQUESTS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda s: s.search("x", "3"), r"k: expected a whole number \(got '3'\)"),
    (lambda s: s.search("pump", 3.0), r"k: expected a whole number \(got 3\.0\)"),
    (lambda s: s.search("pump", None), r"k: expected a whole number \(got None\)"),
    (lambda s: s.search(5, 3), r"query: expected text \(got 5\)"),
    (lambda s: s.search(None, 3), r"query: expected text \(got None\)"),
    (lambda s: s.search(b"pump", 3), r"query: expected text \(got b'pump'\)"),
    (lambda s: s.score(5, ["a"]), r"query: expected text \(got 5\)"),
]


@pytest.mark.parametrize("searcher", [LEXICAL, DENSE], ids=["lexical", "dense"])
@pytest.mark.parametrize("number", range(len(REQUESTS)))
def test_a_query_is_text_and_k_a_whole_number(searcher: Any, number: int) -> None:
    """Both searchers say the same."""
    call, message = REQUESTS[number]
    refused(lambda: call(searcher), errors.RequestError, message)


def test_other_ways_to_ask_are_refused_as_well() -> None:
    """Weights, and a ranking among given units, are asked for by text, too."""
    refused(lambda: LEXICAL.weigh(5, ["pump"]), errors.RequestError, r"query: expected text \(got 5\)")
    refused(lambda: DENSE.ranked(5, ["a"]), errors.RequestError, r"query: expected text \(got 5\)")


@pytest.mark.parametrize("searcher", [LEXICAL, DENSE], ids=["lexical", "dense"])
def test_numbers_of_other_libraries_are_whole_numbers(searcher: Any) -> None:
    """A whole number of NumPy's counts as one."""
    assert searcher.search("pump", np.int64(1)) == searcher.search("pump", 1)


READERS: dict[str, Callable[..., Any]] = {
    "BM25Searcher": BM25Searcher.from_documents,
    "ExactSearcher": lambda documents, **options: ExactSearcher.from_documents(documents, FAKE, **options),
    "MemoryUnits": MemoryUnits,
}


@pytest.mark.parametrize("way", READERS)
def test_documents_and_the_name_of_their_id_are_checked(way: str) -> None:
    """What cannot be gone through is no documents, and a field's name is text."""
    for given in (5, None):
        message = rf"documents: expected langchain Documents \(got {given}\)"
        refused(lambda given=given: READERS[way](given), errors.SourceError, message)
    message = r"id_key: expected the name of a metadata field \(got 5\)"
    refused(lambda: READERS[way](UNITS, id_key=5), errors.ConfigurationError, message)
    assert len(READERS[way](iter(UNITS), id_key="sku")) == 2


def test_an_opened_index_checks_the_name_of_the_id(folder: Path) -> None:
    """It would otherwise be noticed at the first edit only."""
    path = next(folder.rglob("units.sqlite")).parent
    message = r"id_key: expected the name of a metadata field \(got 5\)"
    refused(lambda: BM25Searcher.open(path, id_key=5), errors.ConfigurationError, message)  # type: ignore[arg-type]


OTHERS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: BM25Searcher.from_documents(UNITS, k1="x"),
        errors.ConfigurationError,
        r"k1: expected a number \(got 'x'\)",
    ),
    (
        lambda: BM25Searcher.from_documents(UNITS, b=None),
        errors.ConfigurationError,
        r"b: expected a number \(got None\)",
    ),
    (
        lambda: ExactSearcher.from_documents(UNITS, FAKE, progress=5),
        errors.ConfigurationError,
        r"progress: expected a function \(got 5\)",
    ),
    (lambda: build_index(5, "never"), errors.SourceError, r"documents: expected langchain Documents \(got 5\)"),
    (
        lambda: build_index(UNITS, "never", relationships=[]),
        errors.ConfigurationError,
        r"relationships: expected a RelationshipStore \(got list\)",
    ),
    (
        lambda: RelationshipStore([1], []),
        errors.SourceError,
        r"relationships: number 1 is no Relationship \(got 1\)",
    ),
    (
        lambda: RelationshipStore(5),
        errors.SourceError,
        r"relationships: expected any number of Relationship \(got 5\)",
    ),
    (lambda: RelationshipStore([], None), errors.SourceError, r"names: expected any number of EntityName \(got None\)"),
    (lambda: RelationshipStore([], "x"), errors.SourceError, r"names: number 1 is no EntityName \(got 'x'\)"),
    (lambda: RelationshipStore.from_jsonl(5), errors.SourceError, r"path: expected a path \(got 5\)"),
    (lambda: RelationshipStore().to_jsonl(5), errors.SourceError, r"path: expected a path \(got 5\)"),
]


NO_TEXT = [5, None, b"x", ["x"]]
SERVERS: dict[str, Callable[[Any], Any]] = {
    "url": lambda given: PgVectorSearcher.open(given, FAKE),
    "uri": lambda given: MilvusStore.create(given, FAKE),
    "collection": lambda given: MilvusStore.open("http://127.0.0.1:1", collection=given),
    "host": lambda given: ChromaServerSearcher.connect(given, embedding=FAKE),
    "collection_name": lambda given: ChromaServerSearcher.connect("127.0.0.1", 1, collection_name=given),
}


@pytest.mark.parametrize("given", NO_TEXT, ids=repr)
@pytest.mark.parametrize("name", SERVERS)
def test_a_servers_address_and_names_are_text(name: str, given: Any) -> None:
    """A setting of the environment that is not there is told by its parameter's name, and no server is asked."""
    refused(lambda: SERVERS[name](given), errors.ConfigurationError, rf"{name}: expected text \(got .+\)")


@pytest.mark.parametrize("given", ["5000", None, True, float("nan"), 0, [1]], ids=repr)
def test_a_servers_time_limit_is_a_number(given: Any) -> None:
    """Text and nothing are refused like a number out of bounds."""
    message = r"timeout_ms: expected above 0 and at most \d+ \(got .+\)"
    for opened in (
        lambda: PgVectorSearcher.open("dbname=x", FAKE, timeout_ms=given),
        lambda: MilvusStore.open("http://127.0.0.1:1", timeout_ms=given),
        lambda: ChromaServerSearcher.connect("127.0.0.1", 1, timeout_ms=given),
    ):
        refused(opened, errors.ConfigurationError, message)


@pytest.mark.parametrize("given", [5, None, ["units"]], ids=repr)
def test_a_tables_name_is_text(given: Any) -> None:
    """A name of another type is refused like one with other characters."""
    message = r"table: expected at most \d+ letters, digits and underscores \(got .+\)"
    refused(lambda: PgVectorSearcher.open("dbname=x", FAKE, table=given), errors.ConfigurationError, message)


INSTANCES: list[tuple[Callable[[Any], Any], str]] = [
    (BM25Searcher, r"index: expected a LexicalIndex, see from_documents and open \(got .+\)"),
    (lambda given: ChromaSearcher(given, FAKE), r"collection: expected a Chroma collection \(got .+\)"),
    (
        lambda given: ExactSearcher(given, np.zeros((2, 8), dtype=np.float32), FAKE),
        r"units: expected the rows' units, as MemoryUnits \(got .+\)",
    ),
    (BoundedRetriever.from_graph, r"graph: expected a bounded graph \(got .+\)"),
]


@pytest.mark.parametrize("given", [UNITS, None, "x", 5], ids=lambda given: errors.quoted(given, 20))
@pytest.mark.parametrize("number", range(len(INSTANCES)))
def test_documents_are_not_given_to_a_constructor(number: int, given: Any) -> None:
    """A constructor that takes what another method makes says so at once, not at the first search."""
    call, message = INSTANCES[number]
    refused(lambda: call(given), errors.ConfigurationError, message)


def test_a_retriever_checks_what_it_is_made_from() -> None:
    """Nothing in place of documents, and a field of a retriever that is out of bounds, each in one line."""
    message = r"documents: expected langchain Documents \(got None\)"
    refused(lambda: BoundedRetriever.from_documents(None, FAKE), errors.SourceError, message)  # type: ignore[arg-type]
    graph = create_bounded_retrieval(LEXICAL)
    refused(lambda: BoundedRetriever.from_graph(graph, k=0), errors.RequestError, r"BoundedRetriever\.k: .+ \(got 0\)")


@pytest.mark.parametrize("given", [5, None, ["x"]], ids=repr)
def test_a_diagnostics_file_is_a_path(given: Any) -> None:
    """What is no path is told as such."""
    refused(lambda: JsonlDiagnostics(given), errors.ConfigurationError, r"path: expected a path \(got .+\)")


@pytest.mark.parametrize("call", [embedding_identity, lambda given: ChromaSearcher.from_documents(UNITS, given)])
def test_what_is_recorded_of_an_embedding_is_asked_of_embeddings_only(call: Callable[[Any], Any]) -> None:
    """So no store is made, or said to be another's, for something that embeds nothing."""
    refused(
        lambda: call("minilm"), errors.ConfigurationError, r".*embedding: expected an object with .* \(got 'minilm'\).*"
    )


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_other_arguments_are_refused(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constants of the formula, relationships and their files, documents of an index."""
    monkeypatch.chdir(tmp_path)
    refused(*OTHERS[number])


def test_relationships_and_names_must_not_be_exchanged() -> None:
    """The one is named where the other is expected, with its place."""
    relationship = Relationship(subject="a", relation="of", object="b", source_unit="u")
    name = EntityName(entity_id="a", name="A", source_unit="u")
    assert len(RelationshipStore([relationship], [name])) == 1
    pattern = r"relationships: number 2 is no Relationship \(got EntityName\(.+\)"
    refused(lambda: RelationshipStore([relationship, name]), errors.SourceError, pattern)  # type: ignore[list-item]
