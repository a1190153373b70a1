"""What is not imported: heavy packages stay out of a process that has no use for them."""

import json
import subprocess
import sys

import pytest
from langchain_core.documents import Document

from bounded_retrieval import build_index

# Top-level packages that only some parts need, by what needs them.
STORES = {"chromadb", "langchain_chroma", "onnxruntime", "tokenizers", "bm25s", "rank_bm25", "scipy", "numba"}
READERS = {"langchain_community", "bs4", "pypdf"}
EVALUATION = {"ir_measures", "ir_datasets", "matplotlib"}

QUESTION = "Which pump hums?"

OWN_PARTS = """
from bounded_retrieval import Candidate, create_bounded_retrieval
from langchain_core.documents import Document

class Own:
    def __init__(self, channel):
        self.channel = channel
    def search(self, query, k, filter=None):
        unit = Document(id="u1", page_content="The pump hums.")
        return [Candidate(unit_id="u1", channel=self.channel, rank=1, score=1.0, unit=unit)]

lexical, dense = Own("lexical"), Own("dense")
"""

LANGCHAIN_PARTS = """
from bounded_retrieval import create_bounded_retrieval
from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore

units = [Document(id="u1", page_content="The pump hums."), Document(id="u2", page_content="It is cold.")]

class Own(BaseRetriever):
    def _get_relevant_documents(self, query, *, run_manager):
        return units

lexical, dense = Own(), InMemoryVectorStore(DeterministicFakeEmbedding(size=8))
dense.add_documents(units)
"""

ASK = """
graph = create_bounded_retrieval(lexical, dense, policy="always_continue").compile()
assert graph.invoke({"query": "Which pump hums?"})["packet"]["usage"]["dense_calls"] == 1
"""


def modules_after(code):
    """Names of all modules that a new process has imported after running some code."""
    code += "\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def packages(modules):
    """Top-level names."""
    return {name.partition(".")[0] for name in modules}


def test_importing_the_package_imports_nothing_else():
    """`import bounded_retrieval` brings no other package and no module of its own; names are loaded on first use."""
    before, after = modules_after("pass"), modules_after("import bounded_retrieval")
    assert "bounded_retrieval" in after
    assert packages(after - before) - sys.stdlib_module_names == {"bounded_retrieval"}
    assert [name for name in after if name.startswith("bounded_retrieval.")] == []


@pytest.mark.parametrize("parts", [OWN_PARTS, LANGCHAIN_PARTS], ids=["own searchers", "LangChain's"])
def test_a_graph_over_other_searchers_loads_no_store_reader_or_evaluation(parts):
    """A graph built from the application's own parts, and run, imports none of what our own channels need."""
    modules = modules_after(parts + ASK)
    assert packages(modules) & (STORES | READERS | EVALUATION) == set()
    ours = {name for name in modules if name.startswith("bounded_retrieval.")}
    apart = ("cli", "console", "asking", "demo", "ingest", "evaluation", "testing", "statistics", "retrievers.store")
    assert {name for name in ours if name.startswith(tuple(f"bounded_retrieval.{part}" for part in apart))} == set()


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A small index with the default embedding."""
    folder = tmp_path_factory.mktemp("import-cost") / "index"
    texts = ["The pump hums at night.", "The valve is shut in winter.", "A boiler stands in the yard."]
    build_index([Document(id=f"u{number}", page_content=text) for number, text in enumerate(texts)], folder)
    return folder


@pytest.mark.parametrize(
    ("policy", "loaded"), [("fixed_lexical", set()), ("fixed_dense", {"onnxruntime", "tokenizers"})]
)
def test_asking_a_small_index_loads_only_what_the_run_uses(index, policy, loaded):
    """`bounded-retrieval ask` opens no Chroma, reads no source files, evaluates nothing, and embeds only if it must."""
    arguments = ["ask", QUESTION, "--index", str(index), "--policy", policy]
    modules = modules_after(f"from bounded_retrieval.cli import main; assert main({arguments!r}) == 0")
    # bm25s, which adds up the lexical scores, brings scipy.
    assert packages(modules) & (STORES | READERS | EVALUATION) - {"bm25s", "scipy"} == loaded
    ours = {name for name in modules if name.startswith("bounded_retrieval.")}
    apart = ("demo", "ingest", "evaluation.", "testing", "statistics")
    assert {name for name in ours if name.startswith(tuple(f"bounded_retrieval.{part}" for part in apart))} == set()
