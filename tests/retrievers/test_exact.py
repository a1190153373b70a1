from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval import ChromaSearcher, ExactSearcher
from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.errors import (
    ConfigurationError,
    EmbeddingMismatchError,
    RequestError,
    SourceError,
    StoreCorruptError,
    StoreError,
)
from bounded_retrieval.retrievers import _vectors
from bounded_retrieval.retrievers.units import MemoryUnits


class Numbers(Embeddings):
    """A text is its own vector: numbers, parted by spaces; words count as 0."""

    embedding_id = "numbers"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [_number(word) for word in text.split()]


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return 0.0


def units(vectors: Sequence[str], **metadata: object) -> list[Document]:
    """Units ``u0``, ``u1``, ... of these vectors, each numbered."""
    return [Document(id=f"u{n}", page_content=text, metadata={"n": n, **metadata}) for n, text in enumerate(vectors)]


def found(searcher: ExactSearcher, *asked: object) -> list[tuple[str, float | None]]:
    """Ids and scores of a search."""
    return [(row.unit_id, row.score) for row in searcher.search(*asked)]


def random_units(count: int, seed: int = 5) -> list[Document]:
    """Units of whole numbers from -2 to 2, many of them alike, in random order."""
    rng = random.Random(seed)
    made = [
        Document(
            id=f"u{n:04}",
            page_content=" ".join(str(rng.randint(-2, 2)) for _ in range(4)) + " 1",
            metadata={"year": 2000 + n % 7, "tags": [f"t{n % 3}", f"t{n % 5}"]},
        )
        for n in range(count)
    ]
    rng.shuffle(made)
    return made


def plainly(documents: Sequence[Document], query: str, k: int, filter: dict | None) -> list[tuple[str, float]]:
    """The same answer worked out one unit at a time."""
    asked, accepts = np.array(Numbers().embed_query(query)), compile_filter(filter)
    scored = []
    for document in documents:
        if accepts(document.metadata):
            vector = np.array(Numbers().embed_query(document.page_content))
            lengths = np.linalg.norm(vector) * np.linalg.norm(asked)
            scored.append((document.id, round(float(vector @ asked / lengths), 6) + 0.0 if lengths else 0.0))
    return sorted(scored, key=lambda pair: (-pair[1], pair[0]))[:k]


def test_scores_are_cosines_whatever_the_lengths() -> None:
    """Vectors of any length count by their direction; the best comes first, with its unit and rank."""
    searcher = ExactSearcher.from_documents(units(["3 0", "1e-30 1e-30", "0 2e30", "-1 0"]), Numbers())
    rows = searcher.search("5 0", 9)
    assert [(row.unit_id, row.rank, row.score) for row in rows] == [
        ("u0", 1, 1.0),
        ("u1", 2, 0.707107),
        ("u2", 3, 0.0),
        ("u3", 4, -1.0),
    ]
    assert rows[0].unit == units(["3 0"])[0]
    assert all(row.channel == "dense" for row in rows)


def test_equal_scores_are_ordered_by_id_at_the_cut_too() -> None:
    """Of equal units the first ids are returned, whatever order they came in."""
    documents = units(["1 0", "0 1", *["1 1"] * 7])
    searcher = ExactSearcher.from_documents(documents[::-1], Numbers())
    assert [unit_id for unit_id, _ in found(searcher, "1 1", 4)] == ["u2", "u3", "u4", "u5"]
    assert [unit_id for unit_id, _ in found(searcher, "1 1", 8)] == [f"u{n}" for n in (2, 3, 4, 5, 6, 7, 8, 0)]


@pytest.mark.parametrize(
    "filter", [None, {}, {"year": 2003}, {"tags": "t1", "year": {"$gt": 2002}}, {"year": {"$ne": 2001}}]
)
@pytest.mark.parametrize("k", [1, 7, 400])
def test_the_answer_is_the_one_worked_out_unit_by_unit(filter: dict | None, k: int) -> None:
    """With and without a filter, of few or of most units: the same ids and scores as a plain loop."""
    documents = random_units(300)
    searcher = ExactSearcher.from_documents(documents, Numbers())
    for query in ("1 0 0 2 1", "-1 2 1 0 0", "2 2 2 2 1", "0 0 0 0 0"):
        assert found(searcher, query, k, filter) == plainly(documents, query, k, filter)
    assert searcher.pushes_down(filter)


def test_a_zero_vector_has_no_direction() -> None:
    """It scores 0, and a query without one finds all units at 0, by id."""
    searcher = ExactSearcher.from_documents(units(["0 0", "-1 0", "1 0"]), Numbers())
    assert found(searcher, "1 0", 3) == [("u2", 1.0), ("u0", 0.0), ("u1", -1.0)]
    assert found(searcher, "0 0", 2) == [("u0", 0.0), ("u1", 0.0)]
    assert [str(score) for _, score in found(searcher, "0 0", 3)] == ["0.0"] * 3


def test_scores_are_those_of_chroma() -> None:
    """Both dense searchers score alike, and every unit that Chroma finds the exact search ranks no lower."""
    documents = random_units(200)
    exact = ExactSearcher.from_documents(documents, Numbers())
    with closing(ChromaSearcher.from_documents(documents, Numbers())) as chroma:
        for query in ("1 0 0 2 1", "-1 2 1 0 1"):
            ours, theirs = found(exact, query, 20), found(chroma, query, 20)
            assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=2e-6)
            ids = [f"u{n:04}" for n in range(0, 200, 9)]
            assert exact.score(query, ids) == pytest.approx(chroma.score(query, ids), abs=2e-6)


def test_score_gives_what_search_gives_and_reads_no_other() -> None:
    """The score of a unit is the one it has in a search; ids that do not exist are left out."""
    documents = random_units(100)
    searcher = ExactSearcher.from_documents(documents, Numbers())
    scores = dict(found(searcher, "1 0 0 2 1", 100))
    assert searcher.score("1 0 0 2 1", ["u0007", "none", "u0050"]) == {
        "u0007": scores["u0007"],
        "u0050": scores["u0050"],
    }
    assert searcher.score("1 0 0 2 1", ["none"]) == {} == searcher.score("1 0 0 2 1", [])


def test_ranked_is_a_search_among_the_given_ids() -> None:
    """Given ids come back in the order and with the scores of a search."""
    searcher = ExactSearcher.from_documents(random_units(50), Numbers())
    ids = ["u0040", "u0003", "none", "u0017"]
    wanted = [pair for pair in found(searcher, "1 1 0 0 1", 50) if pair[0] in ids]
    rows = searcher.ranked("1 1 0 0 1", ids)
    assert [(row.unit_id, row.score) for row in rows] == wanted
    assert [row.rank for row in rows] == [1, 2, 3]
    assert searcher.ranked("1 1 0 0 1", ["none"]) == []


def test_it_is_a_source_of_units() -> None:
    """Ids, number and units are those of the documents; an id that does not exist is left out."""
    searcher = ExactSearcher.from_documents(units(["1 0", "0 1"]), Numbers())
    assert (searcher.ids(), len(searcher), searcher.dimensions) == (["u0", "u1"], 2, 2)
    assert searcher.fetch(["u1", "none"]) == {"u1": units(["1 0", "0 1"])[1]}
    assert repr(searcher) == "ExactSearcher(2 units, numbers)"


def test_nothing_is_found_where_nothing_is_or_passes() -> None:
    """No units, no unit that passes, and no rows asked for give an empty answer."""
    searcher = ExactSearcher.from_documents(units(["1 0"]), Numbers())
    assert found(searcher, "1 0", 3, {"n": 7}) == found(searcher, "1 0", 0) == []
    assert ExactSearcher.from_documents([], Numbers()).search("1 0", 3) == []


def test_titles_are_embedded_and_ids_come_from_the_key() -> None:
    """As in every other searcher: title and text together, and the id from a metadata field where one is named."""
    document = Document(page_content="0 1", metadata={"title": "1 0", "key": "k7"})
    searcher = ExactSearcher.from_documents([document], Numbers(), id_key="key")
    assert found(searcher, "1 0 0 1", 1) == [("k7", 1.0)]


def test_progress_tells_each_batch() -> None:
    """After each 64 units, with the number in all."""
    told: list[tuple[int, int]] = []
    ExactSearcher.from_documents(units(["1 0"] * 130), Numbers(), progress=lambda *now: told.append(now))
    assert told == [(64, 130), (128, 130), (130, 130)]


@pytest.mark.parametrize("text", ["1 nan", "1 inf", "-inf 0"])
def test_numbers_without_end_are_refused(text: str) -> None:
    """Vectors of infinite or no numbers name the embedding, of documents and of queries."""
    with pytest.raises(
        ConfigurationError, match=r"embedding numbers: expected 2 vector\(s\) of equal length and finite"
    ):
        ExactSearcher.from_documents(units(["1 0", text]), Numbers())
    searcher = ExactSearcher.from_documents(units(["1 0"]), Numbers())
    with pytest.raises(ConfigurationError, match=r"embedding numbers: expected 1 vector\(s\)"):
        searcher.search(text, 1)


def test_other_dimensions_are_named() -> None:
    """A query's vector of another length gives both numbers."""
    searcher = ExactSearcher.from_documents(units(["1 0"]), Numbers())
    for ask in (lambda: searcher.search("1 0 0", 1), lambda: searcher.score("1 0 0", ["u0"])):
        with pytest.raises(EmbeddingMismatchError, match="holds vectors of 2 dimensions, embedding numbers gives 3"):
            ask()


def test_a_filter_outside_the_language_is_refused() -> None:
    """Also one whose key is that of a filter already asked."""
    searcher = ExactSearcher.from_documents(units(["1 0"]), Numbers())
    with pytest.raises(RequestError):
        searcher.search("1 0", 1, {"n": {"$near": 1}})


def test_bad_documents_are_refused() -> None:
    """A blank text, and one id for two texts."""
    with pytest.raises(SourceError):
        ExactSearcher.from_documents([Document(page_content=" ")], Numbers())
    with pytest.raises(SourceError, match="2 vectors for 1 units"):
        ExactSearcher(MemoryUnits(units(["1 0"])), np.zeros((2, 2), np.float32), Numbers())


def test_a_closed_searcher_says_so() -> None:
    """Closing may be repeated; a search after it is an error."""
    searcher = ExactSearcher.from_documents(units(["1 0"]), Numbers())
    searcher.close()
    searcher.close()
    assert repr(searcher) == "ExactSearcher(closed)"
    with pytest.raises(StoreError, match="dense searcher: closed"):
        searcher.search("1 0", 1)


def test_queries_are_embedded_once_until_they_are_forgotten() -> None:
    """A search and a score of one query embed it once."""

    class Counting(Numbers):
        count = 0

        def embed_query(self, text: str) -> list[float]:
            self.count += 1
            return super().embed_query(text)

    embedding = Counting()
    searcher = ExactSearcher.from_documents(units(["1 0"]), embedding)
    embedding.count = 0
    searcher.search("1 0", 1)
    searcher.score("1 0", ["u0"])
    assert embedding.count == 1
    searcher.forget_queries()
    searcher.search("1 0", 1)
    assert embedding.count == 2


def test_threads_get_the_answers_that_one_gets() -> None:
    """Many threads at once, with filters never seen before."""
    searcher = ExactSearcher.from_documents(random_units(500), Numbers())
    asked = [(f"{n % 3} 1 0 {n % 2} 1", 5, {"year": 2000 + n % 7} if n % 2 else None) for n in range(64)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda one: found(searcher, *one), asked))
    assert answers == [found(searcher, *one) for one in asked]


def test_a_forked_process_goes_on_searching() -> None:
    """The child of a process that searched gives the same answer, and ends by itself."""
    searcher = ExactSearcher.from_documents(random_units(300), Numbers())
    expected = found(searcher, "1 0 0 2 1", 5, {"year": 2003})
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writing, json.dumps(found(searcher, "1 0 0 2 1", 5, {"year": 2003})).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        answer = [tuple(pair) for pair in json.loads(told.read())]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert answer == expected


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of 20 vectors of 5 dimensions."""
    matrix = _vectors.embed_units(Numbers(), [document.page_content for document in random_units(20)])
    np.save(tmp_path / "vectors.npy", matrix)
    return tmp_path / "vectors.npy"


def opened(file: Path) -> ExactSearcher:
    """The searcher over the file."""
    return ExactSearcher.open(file, MemoryUnits(random_units(20)), Numbers(), 5)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda matrix: matrix[:19], "19 vectors, expected 20"),
        (lambda matrix: matrix[:, :4].copy(), "rows of 4 values, expected 5"),
        (lambda matrix: matrix.astype(np.float64), "not a two-dimensional array of float32"),
        (lambda matrix: matrix.ravel(), "not a two-dimensional array of float32"),
        (np.asfortranarray, "not a two-dimensional array of float32"),
    ],
)
def test_a_file_of_another_shape_is_refused(file: Path, change: object, told: str) -> None:
    """When it is opened, by its name."""
    np.save(file, change(np.load(file)))
    with pytest.raises(StoreCorruptError, match=f"{file}: {told}"):
        opened(file)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30, 0.5])
def test_a_vector_that_is_none_is_found_when_it_is_read(file: Path, value: float) -> None:
    """Searching and scoring name the file; scores of other units are given."""
    matrix = np.load(file)
    matrix[3] = value
    np.save(file, matrix)
    searcher = opened(file)
    for ask in (lambda: searcher.search("1 1 1 1 1", 20), lambda: searcher.score("1 1 1 1 1", ["u0003"])):
        with pytest.raises(StoreCorruptError, match=f"{file}: a vector is not of length 1"):
            ask()
    assert searcher.score("1 1 1 1 1", ["u0004"])


def test_a_file_cut_short_is_refused(file: Path) -> None:
    """Its size is not the one that its header says."""
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.raises(StoreCorruptError, match=r"bytes, which are not 20 values of float32"):
        opened(file)


def test_neither_chroma_nor_its_parts_are_imported() -> None:
    """Building and searching in a fresh process loads no Chroma."""
    code = (
        "import sys; from bounded_retrieval import ExactSearcher; from langchain_core.documents import Document; "
        "from langchain_core.embeddings import DeterministicFakeEmbedding; "
        "s = ExactSearcher.from_documents([Document(page_content='a')], DeterministicFakeEmbedding(size=4)); "
        "assert s.search('a', 1, {'x': {'$exists': False}}); "
        "print([name for name in sys.modules if name.partition('.')[0] == 'chromadb'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
