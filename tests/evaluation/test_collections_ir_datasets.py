from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import ir_datasets
import pytest
from ir_datasets.formats import BaseDocs, BaseQueries, TrecQrels, TsvDocs, TsvQueries
from ir_datasets.util import LocalDownload

from bounded_retrieval.errors import ConfigurationError, RequestError, SourceError
from bounded_retrieval.evaluation.collections import load_collection

NAME = "bounded-retrieval-test/water"


class TitledDoc(NamedTuple):
    """A document as most data sets have it: its own title is part of its text."""

    doc_id: str
    title: str
    text: str

    def default_text(self) -> str:
        return f"{self.title} {self.text}"


class LongQuery(NamedTuple):
    """A query with more than its text."""

    query_id: str
    title: str
    description: str

    def default_text(self) -> str:
        return self.title


class Unreachable(BaseDocs, BaseQueries):
    """Documents and queries whose files cannot be fetched."""

    def docs_iter(self) -> Iterator[Any]:
        yield TitledDoc("d1", "", "A pump.")
        raise ConnectionError("host not found:\nmirror of\twater " + "x" * 500)

    def queries_iter(self) -> Iterator[Any]:
        raise RuntimeError("All download sources failed", ["a mirror"])

    def docs_cls(self) -> type:
        return TitledDoc


@pytest.fixture
def register(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Register a data set of files in the test's folder under a name, until the test ends."""
    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))

    def make(*parts: Any, docs: str = "", queries: str = "", qrels: str = "") -> str:
        files = {"docs": docs, "queries": queries, "qrels": qrels}
        for name, content in files.items():
            (tmp_path / name).write_text(content, encoding="utf-8")
        components = [
            *([TsvDocs(LocalDownload(tmp_path / "docs"), TitledDoc)] if docs else []),
            *([TsvQueries(LocalDownload(tmp_path / "queries"), LongQuery)] if queries else []),
            *([TrecQrels(LocalDownload(tmp_path / "qrels"), {})] if qrels else []),
        ]
        ir_datasets.registry.register(NAME, ir_datasets.Dataset(*parts, *components))
        return f"ir_datasets:{NAME}"

    return make


FILES = {
    "docs": "d1\tPumps\tA pump moves water.\nd2\t\tA valve stops it.\nd3\tOnly a title\t\nd4\t\t\n",
    "queries": "q1\twhat moves water\tWhich device moves water?\nq2\twhat stops water\t\n",
    "qrels": "q1 0 d1 2\nq1 0 d2 0\nq2 0 d2 1\n",
}


def test_a_data_set_is_read_by_its_id(register: Callable[..., str]) -> None:
    """Both prefixes; texts as ir_datasets gives them, the title apart, other fields of queries as metadata."""
    source = register(**FILES)
    collection = load_collection(source)
    assert load_collection(f"irds:{NAME}") == load_collection(NAME) == collection
    assert (collection.name, collection.kind, collection.split) == (NAME, "ir_datasets", "")
    assert [(query.query_id, query.text, query.metadata) for query in collection.queries] == [
        ("q1", "what moves water", {"description": "Which device moves water?"}),
        ("q2", "what stops water", {}),
    ]
    assert collection.judgements == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}


def test_documents_of_a_data_set_are_whole_units(register: Callable[..., str]) -> None:
    """A title stands in for a blank text, and a document without either is left out."""
    units = list(load_collection(register(**FILES)).documents())
    assert [(unit.id, unit.page_content, unit.metadata.get("title")) for unit in units] == [
        ("d1", "A pump moves water.", "Pumps"),
        ("d2", "A valve stops it.", None),
        ("d3", "Only a title", "Only a title"),
    ]


def test_a_data_set_may_lack_documents_but_not_queries_or_judgements(
    register: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Files given stand in for what it lacks."""
    source = register(queries=FILES["queries"])
    with pytest.raises(SourceError, match=f"{source}: has no judgements"):
        load_collection(source)
    given = tmp_path / "given.qrels"
    given.write_text(FILES["qrels"], encoding="utf-8")
    collection = load_collection(source, qrels=given)
    assert not collection.has_documents
    assert len(collection.judged()) == 2
    monkeypatch.delitem(ir_datasets.registry._registered, NAME)
    source = register(qrels=FILES["qrels"])
    with pytest.raises(SourceError, match=f"{source}: has no queries"):
        load_collection(source)
    lines = tmp_path / "given.tsv"
    lines.write_text("q1\twhat moves water\nq2\twhat stops water\n", encoding="utf-8")
    assert load_collection(source, queries=lines).fingerprint == collection.fingerprint


def test_what_is_wrong_with_a_data_set_is_named(register: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """By the number of the query or the judgement, since there is no line to name."""
    source = register(**(FILES | {"qrels": "q1 0 d1 1\nq1 0 d1 2\n"}))
    with pytest.raises(SourceError, match=f"{source}, judgement 2: unit 'd1' has grade 2 for query 'q1'"):
        load_collection(source)
    monkeypatch.delitem(ir_datasets.registry._registered, NAME)
    source = register(**(FILES | {"queries": "q1\ta\t\nq1\tb\t\n"}))
    with pytest.raises(SourceError, match=rf"{source}, query 2: query id 'q1' was used before \(in query 1\)"):
        load_collection(source)


def test_a_failed_download_is_one_line(register: Callable[..., str], tmp_path: Path) -> None:
    """Of the queries at once, of the documents while they are read; what ir_datasets says is cut."""
    source = register(Unreachable(), qrels=FILES["qrels"])
    with pytest.raises(SourceError) as caught:
        load_collection(source)
    assert str(caught.value) == f"{source}: cannot be read (RuntimeError: All download sources failed)"
    lines = tmp_path / "given.tsv"
    lines.write_text("q1\twhat moves water\n", encoding="utf-8")
    units = load_collection(source, queries=lines).documents()
    assert next(units).id == "d1"
    with pytest.raises(
        SourceError, match=r"cannot be read \(ConnectionError: host not found: mirror of water x+\.\.\.\)"
    ) as caught:
        next(units)
    assert len(str(caught.value)) < 300


def test_an_unknown_data_set_and_a_split_are_refused(register: Callable[..., str]) -> None:
    """The id says the split."""
    with pytest.raises(RequestError, match="ir_datasets: knows no data set 'bounded-retrieval-test/nothing'"):
        load_collection("irds:bounded-retrieval-test/nothing")
    with pytest.raises(RequestError, match=r"names no data set \(expected irds:ID\)"):
        load_collection("irds:")
    with pytest.raises(RequestError, match=r"split: a data set of ir_datasets has no splits \(got 'train'\)"):
        load_collection(register(**FILES), split="train")


def test_a_missing_ir_datasets_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an optional dependency."""
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(ConfigurationError, match=r'pip install "bounded-retrieval\[ir-datasets\]"'):
        load_collection("ir_datasets:vaswani")
