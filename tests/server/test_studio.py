"""The index behind the Studio graph: made once, by the first use, and never in the way of the event loop."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from bounded_retrieval.errors import StoreError
from bounded_retrieval.graph import studio
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.embeddings import MiniLMEmbeddings


def _write_corpus(path: Path, *texts: str) -> None:
    lines = [json.dumps({"_id": f"u{number}", "text": text}) for number, text in enumerate(texts)]
    path.write_text("\n".join(lines), encoding="utf-8")


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two units in place of the shipped collection, in a directory where the server might have been started."""
    path = tmp_path / "corpus.jsonl"
    _write_corpus(path, "The pump hums.", "The valve drips.")
    monkeypatch.setattr(studio, "_CORPUS", path)
    monkeypatch.chdir(tmp_path)
    return path


def _ask(graph: Any) -> tuple[str, list[str]]:
    result = graph.invoke({"query": "Which pump hums?", "request": {"policy": "always_continue"}})
    return result["stop_reason"], [document.id for document in result["documents"]]


def test_the_index_is_made_by_the_first_search_and_not_again(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building the graph makes nothing, the first run makes the index, the next server's embeds no unit."""
    graph = studio.create_studio_graph(None).compile()
    assert [path.name for path in tmp_path.iterdir()] == [corpus.name]
    first = _ask(graph)
    assert first[1][0] == "u0"
    monkeypatch.setattr(MiniLMEmbeddings, "embed_documents", lambda *_: pytest.fail("embedded again"))
    assert _ask(studio.create_studio_graph("").compile()) == first


def test_a_damaged_or_outdated_index_is_made_anew(corpus: Path, tmp_path: Path) -> None:
    """An index that does not open is replaced, and another collection gets one of its own."""
    root = tmp_path / "indexes"
    studio.open_shipped(root).close()
    (manifest,) = root.glob("*/manifest.json")
    manifest.write_text("{}", encoding="utf-8")
    with studio.open_shipped(root) as index:
        assert index.manifest.units == 2
    _write_corpus(corpus, "The fan rattles.")
    with studio.open_shipped(root) as index:
        assert index.manifest.units == 1
    assert len(list(root.glob("*/manifest.json"))) == 2


def test_threads_that_come_at_once_open_once() -> None:
    """Whoever comes while the index is being opened waits for it; what failed is tried again."""
    attempts: list[int] = []

    def open_it() -> Any:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            raise StoreError("disk full")
        return object()

    opened = studio.once(open_it)
    with pytest.raises(StoreError):
        opened()
    got: list[Any] = []
    threads = [threading.Thread(target=lambda: got.append(opened())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(got), len(set(map(id, got))), len(attempts)) == (8, 1, 2)


@pytest.mark.usefixtures("corpus")
def test_an_index_that_cannot_be_opened_is_named_on_the_console(caplog: pytest.LogCaptureFixture) -> None:
    """The run ends in ``retrieval_failed`` and gives nothing away; the server's console says why."""
    Path("build").write_text("in the way", encoding="utf-8")
    result = studio.create_studio_graph(None).compile().invoke({"query": "Which pump hums?"})
    assert result["stop_reason"] == "retrieval_failed"
    assert "studio-index" not in json.dumps([result["packet"], result["trace"]])
    assert ["build/studio-index" in message for message in caplog.messages] == [True, True]
    assert caplog.messages[0].startswith("search_failed lexical: ")


@pytest.mark.usefixtures("corpus")
def test_weights_that_cannot_be_had_are_named_on_the_console(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run goes on without the weights; the console names the channel that failed to give them, and why."""

    def fail(*_: Any) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(BM25Searcher, "weigh", fail)
    assert _ask(studio.create_studio_graph(None).compile())[1][0] == "u0"
    assert caplog.messages == ["weigh_failed lexical: OSError: disk gone"]


@pytest.mark.usefixtures("corpus")
@pytest.mark.parametrize("context", [{}, {"first_hop_rows": None}])
def test_fewer_rows_leave_the_dense_search_its_share(context: dict[str, Any]) -> None:
    """A lowered ``max_rows`` is shared between the two searches, as it is without the form's context."""
    lowered = studio.StudioContext(budget={"max_rows": 2}, **context)
    request = {"query": "Which pump hums?", "request": {"policy": "always_continue"}}
    result = studio.create_studio_graph(None).compile().invoke(request, context=lowered)
    assert (result["packet"]["usage"]["calls"], result["packet"]["usage"]["rows"]) == (2, 2)


def test_the_context_may_hold_nulls_and_nothing_unknown() -> None:
    """A form's empty fields count as left out; defaults are those of the builder."""
    assert studio.StudioContext(policy=None, threshold=None, budget=None) == studio.StudioContext()
    with pytest.raises(ValueError, match=r"^context\.speed: unknown field"):
        studio.StudioContext(speed=1)
