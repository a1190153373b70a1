from __future__ import annotations

import gc
import math
from contextlib import closing

import chromadb
import numpy as np
import pytest
from chromadb.config import Settings
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding, Embeddings

from bounded_retrieval.contracts.ports import ScoringSearcher, Searcher, UnitSource
from bounded_retrieval.errors import (
    ConfigurationError,
    EmbeddingMismatchError,
    RequestError,
    SourceError,
    StoreCorruptError,
    StoreError,
    StoreMissingError,
)
from bounded_retrieval.retrievers.chroma import ChromaSearcher
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings

EMBEDDING = DeterministicFakeEmbedding(size=16)


class LetterEmbeddings(Embeddings):
    """Counts the letters a to d: close enough to meaning to check an order by hand."""

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return [float(text.count(letter)) for letter in "abcd"]


def documents(*texts, **metadata):
    """Units u0, u1, ... with these texts."""
    return [Document(id=f"u{n}", page_content=text, metadata=dict(metadata)) for n, text in enumerate(texts)]


@pytest.fixture
def letters():
    """Four units; a and b are close to each other, and c and d."""
    with closing(ChromaSearcher.from_documents(documents("aab", "abb", "ccd", "dcc"), LetterEmbeddings())) as searcher:
        yield searcher


def test_it_is_a_searcher_a_scorer_and_a_unit_source(letters):
    """The searcher implements the three ports."""
    assert isinstance(letters, Searcher)
    assert isinstance(letters, ScoringSearcher)
    assert isinstance(letters, UnitSource)


def test_the_nearest_units_come_first_with_cosine_scores_and_their_text(letters):
    """Candidates are ranked from 1 by cosine similarity and carry the unit."""
    first, second = letters.search("aaa", 2)
    assert (first.unit_id, first.channel, first.rank, first.unit.page_content) == ("u0", "dense", 1, "aab")
    assert first.score == pytest.approx(2 / math.sqrt(5), abs=1e-6)
    assert (second.unit_id, second.rank) == ("u1", 2)


def test_equal_scores_are_ordered_by_unit_id_also_where_k_cuts(letters):
    """Of units with one score those with the smallest ids are returned, whatever the order of insertion."""
    letters.add([Document(id=f"t{n:02}", page_content="d") for n in reversed(range(40))])
    assert [row.unit_id for row in letters.search("d", 3)] == ["t00", "t01", "t02"]


@pytest.mark.parametrize("k", [0, -1])
def test_no_rows_asked_for_gives_no_rows(letters, k):
    """A k of zero or less gives an empty answer."""
    assert letters.search("a", k) == []


def test_k_beyond_the_collection_gives_everything(letters):
    """Asking for more rows than there are units returns each unit once."""
    assert {row.unit_id for row in letters.search("a", 2_000)} == {"u0", "u1", "u2", "u3"}


def test_an_empty_collection_gives_no_rows_and_embeds_nothing():
    """An empty collection answers with nothing, before and after it held units."""
    with closing(ChromaSearcher.from_documents([], LetterEmbeddings())) as searcher:
        assert searcher.search("a", 3) == []
        assert searcher.score("a", ["u0"]) == {}
        searcher.add(documents("a"))
        searcher.remove(["u0"])
        assert searcher.search("a", 3) == []


def test_score_covers_only_the_units_asked_for_and_equals_the_search(letters):
    """Scores of observed units are those a search gives; unknown ids are left out."""
    found = {row.unit_id: row.score for row in letters.search("ab", 4)}
    assert letters.score("ab", ["u3", "u1", "nope", "u1", "", "\ud800"]) == {"u1": found["u1"], "u3": found["u3"]}


METADATA = {
    "title": "T",
    "none": None,
    "flag": True,
    "int": 7,
    "big": 2**63 - 1,
    "float": 7.0,
    "list": [1, "a", None, [2]],
    "empty": [],
    "map": {"x": {}},
    "": "no name",
    "$odd": 1,
    "#odd": 1,
    "chroma:document": "reserved",
}


def test_metadata_comes_back_with_its_types():
    """Values that Chroma itself cannot hold are returned as they were, by fetch and by search."""
    with closing(ChromaSearcher.from_documents(documents("a", **METADATA), LetterEmbeddings())) as searcher:
        (row,) = searcher.search("a", 1)
        for unit in (searcher.fetch(["u0"])["u0"], row.unit):
            assert unit.metadata == METADATA
            assert [type(value) for value in unit.metadata.values()] == [type(value) for value in METADATA.values()]


def test_replacing_a_unit_leaves_nothing_of_the_old_one(letters):
    """After an upsert neither text, vector nor any metadata field of the old unit is left."""
    letters.add([Document(id="u0", page_content="aab", metadata={"kind": "note", "tags": ["x"]})])
    letters.add([Document(id="u0", page_content="ccc", metadata={})])
    assert letters.fetch(["u0"])["u0"] == Document(id="u0", page_content="ccc")
    assert letters.search("c", 1)[0].unit_id == "u0"
    assert letters.search("c", 9, {"kind": "note"}) == letters.search("c", 9, {"tags": "x"}) == []
    assert len(letters) == 4


def test_removed_units_are_gone_and_unknown_ids_are_passed_over(letters):
    """Removing deletes the units named and no others."""
    letters.remove(["u0", "nope"])
    assert letters.ids() == ["u1", "u2", "u3"]
    assert letters.fetch(["u0", "u1"]).keys() == {"u1"}


def test_ids_come_from_the_key_then_the_document_then_the_text():
    """id_key names a metadata field; equal texts without an id are one unit; an id never stands for two texts."""
    given_documents = [
        Document(page_content="a", metadata={"key": 5}),
        Document(page_content="b"),
        Document(page_content="b"),
        Document(id="own", page_content="c"),
    ]
    with closing(ChromaSearcher.from_documents(given_documents, LetterEmbeddings(), id_key="key")) as searcher:
        assert sorted(unit_id[:6] for unit_id in searcher.ids()) == ["5", "own", "sha256"]
        with pytest.raises(SourceError, match="two texts"):
            searcher.add([Document(id="x", page_content="a"), Document(id="x", page_content="b")])
        assert "x" not in searcher.ids()


def test_the_title_is_embedded_with_the_text():
    """A query close to the title finds the unit."""
    units = [Document(id="1", page_content="a", metadata={"title": "ddd"}), Document(id="2", page_content="a")]
    with closing(ChromaSearcher.from_documents(units, LetterEmbeddings())) as searcher:
        assert searcher.search("d", 1)[0].unit_id == "1"


def test_progress_reports_each_batch():
    """Progress is called with units done and units in all, up to the end."""
    seen = []
    units = documents(*(f"{n} a" for n in range(70)))
    ChromaSearcher.from_documents(units, LetterEmbeddings(), progress=lambda *step: seen.append(step)).close()
    assert seen == [(64, 70), (70, 70)]


def test_the_callers_documents_are_left_alone(letters):
    """Neither adding nor searching changes a document of the caller or one stored."""
    mine = Document(page_content="ab", metadata={"tags": ["x"]})
    letters.add([mine])
    letters.search("ab", 1)[0].unit.metadata["tags"] = "changed"
    assert mine == Document(page_content="ab", metadata={"tags": ["x"]})
    assert letters.search("ab", 1)[0].unit.metadata == {"tags": ["x"]}


def test_a_filter_outside_the_language_is_refused(letters):
    """A filter is validated even when no rows are asked for."""
    with pytest.raises(RequestError, match=r"\$regex"):
        letters.search("a", 0, {"kind": {"$regex": "x"}})


def test_searchers_in_memory_do_not_see_each_other_or_the_shared_client():
    """Two searchers and a plain in-memory client in one process are apart, whatever the client's settings."""
    with (
        closing(ChromaSearcher.from_documents(documents("a"), LetterEmbeddings())) as one,
        closing(ChromaSearcher.from_documents(documents("b"), LetterEmbeddings())) as two,
        closing(chromadb.EphemeralClient(Settings())) as client,
    ):
        assert client.list_collections() == []
        assert (one.fetch(["u0"])["u0"].page_content, two.fetch(["u0"])["u0"].page_content) == ("a", "b")


def test_a_forgotten_searcher_releases_its_store():
    """The store of a searcher that is no longer referenced is closed by garbage collection."""
    searcher = ChromaSearcher.from_documents(documents("a"), LetterEmbeddings())
    release = searcher._release
    del searcher
    gc.collect()
    assert not release.alive


def test_a_closed_searcher_says_so(letters):
    """After close, which may be repeated, use gives one clear error."""
    letters.close()
    letters.close()
    with pytest.raises(StoreError, match="closed"):
        letters.search("a", 1)
    assert "closed" in repr(letters)


def test_a_stored_collection_opens_again(tmp_path):
    """What was written to a directory is there in the next opening, and adding to it goes on."""
    ChromaSearcher.from_documents(documents("ab", kind="note"), EMBEDDING, path=tmp_path).close()
    ChromaSearcher.from_documents([Document(id="x", page_content="b")], EMBEDDING, path=tmp_path).close()
    with closing(ChromaSearcher.open(tmp_path, EMBEDDING)) as searcher:
        assert searcher.ids() == ["u0", "x"]
        assert searcher.search("ab", 1)[0].unit == Document(id="u0", page_content="ab", metadata={"kind": "note"})


def test_a_directory_without_a_store_is_left_as_it_is(tmp_path):
    """Opening what is not there is an error and creates nothing."""
    with pytest.raises(StoreMissingError, match="nope"):
        ChromaSearcher.open(tmp_path / "nope", EMBEDDING)
    assert not (tmp_path / "nope").exists()
    ChromaSearcher.from_documents([], EMBEDDING, path=tmp_path).close()
    with pytest.raises(StoreMissingError, match="'other'"):
        ChromaSearcher.open(tmp_path, EMBEDDING, collection_name="other")


def test_a_damaged_store_is_reported(tmp_path):
    """A file that is no database gives StoreCorruptError."""
    (tmp_path / "chroma.sqlite3").write_bytes(b"junk" * 1000)
    with pytest.raises(StoreCorruptError, match="not a database"):
        ChromaSearcher.open(tmp_path, EMBEDDING)


def test_another_embedding_than_the_recorded_one_is_refused(tmp_path):
    """A collection opens only with the embedding that made its vectors; a built-in one is found by its record."""
    ChromaSearcher.from_documents(documents("a"), EMBEDDING, path=tmp_path / "own").close()
    with pytest.raises(EmbeddingMismatchError, match=r"DeterministicFakeEmbedding.*LetterEmbeddings"):
        ChromaSearcher.open(tmp_path / "own", LetterEmbeddings())
    with pytest.raises(EmbeddingMismatchError, match="DeterministicFakeEmbedding"):
        ChromaSearcher.from_documents([], LetterEmbeddings(), path=tmp_path / "own")
    with pytest.raises(EmbeddingMismatchError, match="give its embedding"):
        ChromaSearcher.open(tmp_path / "own")
    ChromaSearcher.from_documents([], path=tmp_path / "built-in").close()
    with closing(ChromaSearcher.open(tmp_path / "built-in")) as searcher:
        assert isinstance(searcher.embedding, MiniLMEmbeddings)


def test_vectors_of_another_dimension_are_refused(letters):
    """Where the embedding's vectors do not fit the stored ones, the error names both dimensions."""
    letters.embedding = DeterministicFakeEmbedding(size=3)
    for call in (
        lambda: letters.search("a", 1),
        lambda: letters.score("a", ["u0"]),
        lambda: letters.add(documents("b")),
    ):
        with pytest.raises(EmbeddingMismatchError, match=r"4 dimensions.*gives 3"):
            call()


class BrokenEmbeddings(LetterEmbeddings):
    def embed_query(self, text):
        return [math.nan] if "nan" in text else [1.0] * len(text)


@pytest.mark.parametrize("texts", [("nan",), ("a", "bb")])
def test_vectors_that_cannot_be_stored_are_refused(texts):
    """Vectors that are not finite or differ in length give an error that names the embedding."""
    with pytest.raises(ConfigurationError, match="BrokenEmbeddings"):
        ChromaSearcher.from_documents(documents(*texts), BrokenEmbeddings())


def test_a_name_chroma_does_not_take_is_reported():
    """An unusable collection name is a configuration error."""
    with pytest.raises(ConfigurationError, match="collection_name 'a'"):
        ChromaSearcher.from_documents([], EMBEDDING, collection_name="a")


def test_a_collection_of_another_program_can_be_searched():
    """An existing collection with plain metadata and another distance is scored by cosine and filtered alike."""
    with closing(chromadb.EphemeralClient(Settings())) as client:
        collection = client.create_collection("foreign", embedding_function=None)
        collection.add(
            ids=["1", "2", "3"],
            embeddings=[[2.0, 0, 0, 0], [1.0, 1, 0, 0], [0.0, 1, 0, 0]],
            documents=["aa", "ab", None],
            metadatas=[{"tags": ["x", "y"], "n": 1}, {"n": 2}, None],
        )
        searcher = ChromaSearcher(collection, LetterEmbeddings())
        assert [(row.unit_id, row.score) for row in searcher.search("a", 3)] == [
            ("1", 1.0),
            ("2", 0.707107),
            ("3", 0.0),
        ]
        assert [row.unit_id for row in searcher.search("a", 3, {"tags": "y"})] == ["1"]
        assert [row.unit_id for row in searcher.search("a", 3, {"tags": {"$ne": "y"}})] == ["2", "3"]
        searcher.close()
        assert collection.count() == 3
        client.delete_collection("foreign")


def test_the_index_finds_nearly_all_of_the_nearest_units():
    """With 3,000 random vectors, half of them deleted again, the ten nearest are found (recall at least .98)."""
    rng = np.random.default_rng(7)
    vectors = rng.normal(size=(3_050, 64))
    table = {f"w{n}": list(map(float, vector)) for n, vector in enumerate(vectors)}

    class TableEmbeddings(LetterEmbeddings):
        def embed_query(self, text):
            return table[text]

    units = [Document(id=word, page_content=word) for word in list(table)[:3_000]]
    unit_length = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    with closing(ChromaSearcher.from_documents(units, TableEmbeddings())) as searcher:
        searcher.remove([f"w{n}" for n in range(0, 3_000, 2)])
        hits = 0
        for query in range(3_000, 3_050):
            order = np.argsort(-(unit_length[1:3_000:2] @ unit_length[query]))[:10]
            nearest = {f"w{2 * n + 1}" for n in order}
            hits += len(nearest & {row.unit_id for row in searcher.search(f"w{query}", 10)})
    assert hits >= 490
