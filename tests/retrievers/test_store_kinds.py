"""The two kinds of dense search of an index: exact, and with a Chroma store that is opened when it is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document

from bounded_retrieval import ExactSearcher
from bounded_retrieval.cli import main
from bounded_retrieval.errors import StoreError
from bounded_retrieval.retrievers import store
from bounded_retrieval.retrievers._accelerated import AcceleratedSearcher
from bounded_retrieval.retrievers.store import build_index, open_index, verify_index

sys.path.insert(0, str(Path(__file__).parent))
from test_store_verify import CountingEmbeddings

DOCUMENTS = [
    Document(id=f"u{n:03}", page_content=f"The pump of site {n} hums.", metadata={"year": 2000 + n % 4, "n": n / 8})
    for n in range(300)
]
QUERIES = ("The pump of site 3 hums.", "site 17", "hums", "a valve")
FILTERS = (None, {"year": 2001}, {"n": {"$lt": 3.5}}, {"year": {"$gte": 2000}}, {"year": 1})


ASKING = """
import sys
from langchain_core.embeddings import Embeddings
from bounded_retrieval import open_index
class Four(Embeddings):
    embedding_id = "four"
    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]
    def embed_query(self, text):
        return [1.0, 2.0, 3.0, 4.0]
with open_index(sys.argv[1], embedding=Four()) as index:
    assert index.lexical.search("pump", 3)
    assert index.dense.search("pump", 3)
print("chromadb" in sys.modules)
"""


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path]:
    """The same documents in an index of each kind."""
    for dense in ("exact", "chroma"):
        build_index(DOCUMENTS, tmp_path / dense, embedding=CountingEmbeddings(), dense=dense)
    return {dense: tmp_path / dense for dense in ("exact", "chroma")}


def answers(root: Path) -> list[object]:
    """Rows, scores and units of some searches."""
    with open_index(root, embedding=CountingEmbeddings()) as index:
        found = [index.dense.search(query, 6, passing) for query in QUERIES for passing in FILTERS]
        return [*found, index.dense.score(QUERIES[0], ["u003", "u017", "none"]), index.dense.ids(), len(index.dense)]


def test_both_kinds_answer_alike(roots: dict[str, Path]) -> None:
    """Of some hundred units the graph finds the nearest, and the vectors score them: the answers are the same."""
    assert answers(roots["exact"]) == answers(roots["chroma"])


def test_the_kind_is_said_wherever_the_index_is_described(roots: dict[str, Path]) -> None:
    """In the manifest, in the searcher's own words, and by what stands on the disk."""
    for kind, searcher in (("exact", ExactSearcher), ("chroma", AcceleratedSearcher)):
        with open_index(roots[kind], embedding=CountingEmbeddings()) as index:
            assert index.manifest.dense == kind
            assert isinstance(index.dense, searcher)
            assert "ExactSearcher(300 units, four)" in repr(index.dense)
            assert ("chroma for more than 100,000 units" in repr(index.dense)) == (kind == "chroma")
            assert index.dense.dimensions == 4
            assert index.dense.pushes_down({"n": {"$lt": 3.5}})
        assert (roots[kind] / "generations" / "000001" / "dense" / "chroma").exists() == (kind == "chroma")


def test_the_size_decides_where_nothing_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to the limit exact, beyond it with a graph; building again decides again, and a kind can be asked for."""
    monkeypatch.setattr(store, "EXACT_LIMIT", 100)
    for count, dense, expected in (
        (101, "auto", "chroma"),
        (100, "auto", "exact"),
        (99, "chroma", "chroma"),
        (150, "exact", "exact"),
    ):
        report = build_index(DOCUMENTS[:count], tmp_path, embedding=CountingEmbeddings(), dense=dense)
        assert report.dense == verify_index(tmp_path).dense == expected


def test_heavy_filters_and_scores_do_not_open_the_graph(
    roots: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few units, or a filter that Chroma does not have: exact. Many: through the graph, opened once."""
    monkeypatch.setattr(store, "EXACT_LIMIT", 100)
    with open_index(roots["chroma"], embedding=CountingEmbeddings()) as index:
        graph = index.dense._graph
        for passing in ({"year": 2001}, {"n": {"$gte": 3.5}}, {"year": 1}):
            index.dense.search("pump", 3, passing)
        index.dense.score("pump", ["u003"])
        index.dense.fetch(["u003"])
        index.dense.forget_queries()
        assert graph.made() is None
        assert index.dense.search("pump", 3, {"year": {"$ne": 2001}})
        assert index.dense.search("pump", 3, {"year": {"$gte": 0}})
        opened = graph.made()
        assert opened is not None
        assert index.dense.search("pump", 3)
        index.dense.forget_queries()
        assert graph.made() is opened
        assert index.dense.search("pump", 0) == []


def test_a_graph_that_was_replaced_before_it_was_opened_says_so(roots: dict[str, Path]) -> None:
    """After two more builds the files of an index that is still open are gone; what was opened goes on."""
    with open_index(roots["chroma"], embedding=CountingEmbeddings()) as index:
        for _ in range(2):
            build_index(DOCUMENTS[:9], roots["chroma"], embedding=CountingEmbeddings())
        assert len(index.dense.search("pump", 3, {"year": 2001})) == 3
        with pytest.raises(StoreError, match="the index was replaced since it was opened; open it again"):
            index.dense.search("pump", 3)
        index.dense.close()
        with pytest.raises(StoreError, match="dense searcher: closed"):
            index.dense.search("pump", 3)


def test_a_query_is_embedded_once_for_graph_and_scores(roots: dict[str, Path]) -> None:
    """Search and score of the same query ask the embedding once, in either kind."""

    class Counting(CountingEmbeddings):
        queries = 0

        def embed_query(self, text: str) -> list[float]:
            self.queries += 1
            return super().embed_query(text)

    for root in roots.values():
        embedding = Counting()
        with open_index(root, embedding=embedding) as index:
            index.dense.search("pump", 3)
            index.dense.score("pump", ["u003"])
            index.dense.search("pump", 3, {"year": 2001})
        assert embedding.queries == 1


def test_the_graph_follows_the_units(roots: dict[str, Path]) -> None:
    """Units added, changed, given other metadata and removed are so in the graph of the next generation."""
    changed = [
        *DOCUMENTS[5:200],
        *(Document(id=f"w{n}", page_content=f"A valve {n}.", metadata={"year": 9}) for n in range(40)),
    ]
    changed[0] = Document(id="u005", page_content="Another text.")
    changed[1] = Document(id="u006", page_content=DOCUMENTS[6].page_content, metadata={"year": 9})
    for kind, root in roots.items():
        report = build_index(changed, root, embedding=CountingEmbeddings(), dense=kind)
        assert (report.added, report.changed, report.removed, report.unchanged, report.embedded) == (
            40,
            2,
            105,
            193,
            41,
        )
        verify_index(root)
    assert answers(roots["exact"]) == answers(roots["chroma"])
    with open_index(roots["chroma"], embedding=CountingEmbeddings()) as index:
        graph = index.dense._graph.get()
        assert graph.ids() == index.units.ids()
        assert {row.unit_id for row in graph.search("pump", 50, {"year": 9})} == {"u006", *(f"w{n}" for n in range(40))}


def test_vectors_stand_in_the_order_of_the_units(roots: dict[str, Path]) -> None:
    """At length 1, as 32-bit floats, whatever the kind."""
    for root in roots.values():
        vectors = np.load(root / "generations" / "000001" / "dense" / "vectors.npy")
        expected = np.array(CountingEmbeddings().embed_documents([unit.page_content for unit in DOCUMENTS]))
        expected /= np.linalg.norm(expected, axis=1, keepdims=True)
        assert vectors.dtype == np.float32
        assert vectors == pytest.approx(expected, abs=1e-7)


def test_opening_and_asking_an_exact_index_imports_no_chroma(roots: dict[str, Path]) -> None:
    """In a fresh process; an index with a graph imports it at the first search of that."""
    for kind, root in roots.items():
        done = subprocess.run([sys.executable, "-c", ASKING, str(root)], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == str(kind == "chroma")


def test_the_command_takes_the_kind_and_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--dense` is one of three; what was chosen stands in the last line."""
    (tmp_path / "note.txt").write_text("The pump hums.")
    arguments = ["index", str(tmp_path / "note.txt"), "--to", str(tmp_path / "index"), "--embedding", "wordllama"]
    for asked, said in (([], "exact"), (["--dense", "chroma"], "chroma"), (["--dense", "exact"], "exact")):
        assert main([*arguments, *asked]) == 0
        assert f"dense search: {said}" in capsys.readouterr().err
        assert json.loads((tmp_path / "index" / "manifest.json").read_text())["dense"] == said
    with pytest.raises(SystemExit):
        main([*arguments, "--dense", "hnsw"])
