"""The code in the documents is run: every Python block under the comment ``<!-- run -->``, in order, in one namespace."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document
from langchain_core.language_models import FakeListChatModel
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore

from bounded_retrieval.demo import shipped_collection
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.retrievers.embeddings import load_embedding

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^<!-- run -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
UNMARKED = re.compile(r"(?<!<!-- run -->\n)^```python\n", re.MULTILINE)


@dataclass
class Caller:
    """A reader's own runtime context."""

    tenant: str = ""
    groups: list[str] = field(default_factory=list)


def run(document: str, namespace: dict[str, Any]) -> dict[str, Any]:
    """Run a document's marked blocks; a traceback names the document and the line."""
    text = (ROOT / document).read_text(encoding="utf-8")
    for block in BLOCK.finditer(text):
        lines_before = text.count("\n", 0, block.start(1))
        source = "\n" * lines_before + block[1]
        exec(compile(source, document, "exec", dont_inherit=True), namespace)
    return namespace


@pytest.fixture(scope="module")
def given() -> dict[str, Any]:
    """What the documents say that the reader has: documents, an embedding, a chat model."""
    return {
        "documents": list(read_documents([shipped_collection() / "corpus.jsonl"])),
        "embedding": load_embedding("wordllama"),
        "llm": FakeListChatModel(responses=["Who pays for damage in transit?\nA broken parcel: who pays?"]),
    }


def test_the_code_of_the_migration_guide_runs(given: dict[str, Any]) -> None:
    """Every marked block runs over the shipped collection and leaves what the text around it says."""
    namespace = run("docs/migrating.md", dict(given))
    query = "How do I calibrate the LP-120?"
    assert len(namespace["before"].invoke(query)) > len(namespace["after"].invoke(query)) > 0
    assert len(namespace["several"].invoke(query)) > len(namespace["found"]) > 0
    assert namespace["result"]["stop_reason"] == "proxy_sufficient"
    assert namespace["result"]["documents"][0].id == "hx-210-pairing"
    assert namespace["result"]["generation"]
    namespace["store"].delete_collection()


def test_the_code_of_the_readme_runs(
    shipped_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    """Every marked block runs beside an index of the name that the README gives it."""
    (tmp_path / "my-index").symlink_to(shipped_index)
    (tmp_path / "relationships.jsonl").symlink_to(shipped_collection() / "relationships.jsonl")
    monkeypatch.chdir(tmp_path)
    documents = given["documents"][:20]
    reader_has = {
        "q": "How do I reset the HX-200?",
        "Caller": Caller,
        "documents": documents,
        "bm25_retriever": Fixed(documents=documents),
        "vector_store": InMemoryVectorStore.from_documents(documents, given["embedding"]),
    }
    namespace = run("README.md", reader_has)
    assert namespace["packet"].items
    assert namespace["retriever"].invoke(reader_has["q"])
    assert list(namespace["tool"].args) == ["query"]
    assert namespace["result"]["stop_reason"] == "path_followed"
    assert (namespace["answer"].resolved, namespace["answer"].trail[-1].sub_answer) == (True, "CB-5D")
    namespace["index"].close()


def test_the_code_of_the_security_notes_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every marked block runs, and each caller sees what the text around it says."""
    monkeypatch.chdir(tmp_path)
    namespace = run("docs/security.md", {})
    found = {name: [document.id for document in namespace[name]["documents"]] for name in ("seen", "listed")}
    assert {name: set(ids) for name, ids in found.items()} == {"seen": {"a1", "a2"}, "listed": {"a1", "b1"}}
    assert all(document.metadata.keys() == {"bounded_retrieval"} for document in namespace["seen"]["documents"])
    assert "panel" in namespace["apart"]["documents"][0].page_content
    assert (tmp_path / "protected.jsonl").stat().st_mode & 0o777 == 0o600


def test_the_code_of_the_chain_notes_runs(shipped_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every marked block runs, and the chain resolves with the sub-answers that the text names."""
    (tmp_path / "my-devices").symlink_to(shipped_index)
    monkeypatch.chdir(tmp_path)
    namespace = run("docs/recursive-chain.md", {})
    result = namespace["result"]
    assert (result.stop_reason, result.resolved, result.unresolved) == ("sufficient", True, ())
    assert [hop.sub_answer for hop in result.trail] == ["BP-7", "CB-5D", "five"]
    namespace["index"].close()


@pytest.mark.parametrize("document", ["README.md", "docs/migrating.md", "docs/security.md"])
def test_blocks_are_run_or_left_out_on_purpose(document: str) -> None:
    """Every Python block is marked, except those of the README that are fragments of the reader's own code."""
    text = (ROOT / document).read_text(encoding="utf-8")
    blocks, unmarked = len(BLOCK.findall(text)), len(UNMARKED.findall(text))
    assert blocks >= 3
    assert unmarked <= (2 if document == "README.md" else 0)


class Fixed(BaseRetriever):
    """Answers with what it was given, or raises."""

    documents: list[Document]
    fails: bool = False

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:  # noqa: ARG002
        if self.fails:
            raise ConnectionError("down")
        return self.documents


UNITS = [Document(id=f"u{number}", page_content=f"The pump of site {number} hums.") for number in range(6)]


@pytest.mark.parametrize("bounded", [False, True], ids=["ensemble", "bounded"])
def test_what_is_said_of_the_ensemble_is_so(bounded: bool) -> None:
    """It adds up repeats within one list, returns the union and fails as a whole; ours does none of these."""
    from langchain_classic.retrievers import EnsembleRetriever

    from bounded_retrieval import BoundedRetriever

    def build(*retrievers: Fixed) -> Callable[[str], list[Document]]:
        if bounded:
            return BoundedRetriever.from_retrievers(*retrievers, k=3, policy="always_continue").invoke
        return EnsembleRetriever(retrievers=list(retrievers)).invoke

    repeating = Fixed(documents=[UNITS[0], UNITS[1], UNITS[1], UNITS[1]])
    found = [document.id for document in build(repeating, Fixed(documents=UNITS[2:]))("pump")]
    assert (found[0], len(found)) == (("u0", 3) if bounded else ("u1", 6))
    broken = build(Fixed(documents=UNITS[:2]), Fixed(documents=[], fails=True))
    if bounded:
        assert [document.id for document in broken("pump")] == ["u0", "u1"]
    else:
        with pytest.raises(ConnectionError):
            broken("pump")
