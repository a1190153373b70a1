"""Who may import whom: the layers of the package, enforced on every module."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import bounded_retrieval

PACKAGE = "bounded_retrieval"
ROOT = Path(bounded_retrieval.__file__).parent
ANY = frozenset({"*"})


def names(text: str) -> frozenset[str]:
    """A set of names from a line of them."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Layer:
    """What the modules of one layer may import, by dotted prefix, besides the standard library.

    Attributes:
        own: modules of this package, without its name.
        foreign: other packages.
        barred: modules of the standard library that are not allowed here.
    """

    own: frozenset[str]
    foreign: frozenset[str] = frozenset()
    barred: frozenset[str] = frozenset()


# What the contracts are made of; every layer above may name these types.
CONTRACT_TYPES = names("pydantic langchain_core.documents typing_extensions")

# What pure code has no business with: files, processes, threads, the network, the clock and chance.
IMPURE = names(
    "asyncio concurrent glob http io logging multiprocessing os pathlib random secrets select shutil signal socket "
    "sqlite3 ssl subprocess tempfile threading time urllib"
)

BUILDERS = "graph.bounded graph.chain graph.as_node graph.context"

# By the module's name or its first part; a module of no layer fails, so a new one has to be placed here.
LAYERS = {
    "errors": Layer(own=names("contracts errors"), foreign=CONTRACT_TYPES),
    "contracts": Layer(own=names("contracts errors"), foreign=CONTRACT_TYPES),
    "policies": Layer(
        own=names("policies contracts errors"), foreign=CONTRACT_TYPES | names("numpy Stemmer"), barred=IMPURE
    ),
    "nodes": Layer(
        own=names("nodes policies contracts errors graph.state graph.context graph.chain_state"),
        foreign=CONTRACT_TYPES | names("langgraph langchain_core langsmith"),  # langsmith: to run calls untraced
    ),
    "graph": Layer(
        own=names("graph nodes policies contracts errors retrievers.langchain"),
        foreign=CONTRACT_TYPES | names("langgraph langchain_core"),
    ),
    "graph.studio": Layer(  # a small application: the graph that `langgraph dev` serves, with its index
        own=names("graph nodes policies contracts errors ingest retrievers.store retrievers.relationships"),
        foreign=CONTRACT_TYPES | names("langgraph langchain_core filelock"),
    ),
    "retrievers": Layer(own=names("retrievers contracts errors policies.tokenize"), foreign=ANY),
    "ingest": Layer(own=names("ingest contracts errors"), foreign=ANY),
    "integrations": Layer(own=names(f"integrations retrievers contracts errors {BUILDERS}"), foreign=ANY),
    "evaluation": Layer(
        own=names(f"evaluation integrations retrievers ingest policies contracts errors {BUILDERS}"), foreign=ANY
    ),
    "testing": Layer(own=names("testing contracts errors"), foreign=ANY),
}

# The command line and what only it uses. These may import anything, and nothing else may import them.
APPLICATION = names("__main__ cli console asking demo statistics evaluating evaluation_commands evaluation_display")

# The package itself gives its public names from the layers below, never from these.
PUBLIC = Layer(own=frozenset(LAYERS) - names("evaluation testing"), foreign=ANY)


def module_name(path: Path, root: Path = ROOT) -> str:
    """Dotted name of a module inside the package; the package itself is the empty name."""
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported_names(tree: ast.AST, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported, inside functions too; ``package`` resolves relative imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{source}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            literals = (arg.value for arg in node.args if isinstance(arg, ast.Constant))
            yield from ((node.lineno, value) for value in literals if isinstance(value, str))


def is_allowed(name: str, layer: Layer) -> bool:
    """Whether a layer may import a full dotted name."""
    top, _, inner = name.partition(".")
    if top == PACKAGE:
        return _has_prefix(inner, layer.own)
    if top in sys.stdlib_module_names:
        return top not in layer.barred
    return layer.foreign == ANY or _has_prefix(name, layer.foreign)


def _has_prefix(name: str, prefixes: frozenset[str]) -> bool:
    return any(name == prefix or name.startswith(f"{prefix}.") for prefix in prefixes)


def violations(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """What a module imports against the table, one line each."""
    area = module.partition(".")[0]
    if area in APPLICATION:
        return []
    layer = LAYERS.get(module, LAYERS.get(area)) if module else PUBLIC
    if layer is None:
        return [f"{module}: {area!r} is no layer of the table"]
    full = f"{PACKAGE}.{module}" if module else PACKAGE
    package = full if is_package else full.rpartition(".")[0]
    found = imported_names(ast.parse(source), package)
    return [f"{module}:{line} imports {name}" for line, name in found if not is_allowed(name, layer)]


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: module_name(path) or PACKAGE)
def test_a_module_imports_only_what_its_layer_allows(path):
    """Every import of every module, at its top or inside a function, is in the table."""
    is_package = path.name == "__init__.py"
    assert violations(path.read_text(encoding="utf-8"), module_name(path), is_package=is_package) == []


PLANTED = {
    "contracts reach up": ("contracts.packet", "from bounded_retrieval.policies.packing import pack"),
    "contracts use more of LangChain": ("contracts.ports", "from langchain_core.retrievers import BaseRetriever"),
    "policies do I/O": ("policies.stopping", "import os.path"),
    "policies read a file": ("policies.stopping", "from pathlib import Path"),
    "policies know LangGraph": ("policies.stopping", "from langgraph.graph import END"),
    "nodes know a builder": ("nodes.dense_search", "from bounded_retrieval.graph.bounded import create"),
    "nodes know the graph package": ("nodes.dense_search", "from bounded_retrieval.graph import anything"),
    "nodes know a backend": ("nodes.dense_search", "import bounded_retrieval.retrievers.chroma"),
    "graph knows a backend": ("graph.bounded", "from bounded_retrieval.retrievers import chroma"),
    "studio knows a backend": ("graph.studio", "from bounded_retrieval.retrievers import chroma"),
    "library uses the studio": ("integrations.langchain", "from bounded_retrieval.graph.studio import graph"),
    "retrievers know the graph": ("retrievers.bm25", "def f():\n    from bounded_retrieval.graph import state"),
    "retrievers know other policies": ("retrievers.bm25", "from bounded_retrieval.policies import fusion"),
    "ingest knows a retriever": ("ingest.readers", "from bounded_retrieval.retrievers.bm25 import Bm25Searcher"),
    "relative import": ("ingest.readers", "from ..graph.state import State"),
    "by name": ("ingest.readers", "import importlib\nimportlib.import_module('bounded_retrieval.cli')"),
    "for types only": ("ingest.readers", "if TYPE_CHECKING:\n    from bounded_retrieval.nodes import clock"),
    "library uses the command line": ("integrations.langchain", "import bounded_retrieval.cli"),
    "library uses the console": ("evaluation.report", "from bounded_retrieval.console import panel"),
    "library uses test doubles": ("evaluation.report", "from bounded_retrieval.testing.fakes import Fake"),
    "package gives evaluation": ("", "from bounded_retrieval.evaluation import run"),
    "through the package": ("nodes.dense_search", "from bounded_retrieval import BoundedRetriever"),
    "no layer": ("helpers", "import math"),
}


@pytest.mark.parametrize(("module", "source"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_violation_is_found(module, source):
    """The checker sees each kind of forbidden import, however it is written."""
    assert len(violations(source, module)) == 1


ALLOWED = {
    "nodes": (
        "nodes.dense_search",
        "from bounded_retrieval.graph.state import S\nfrom langgraph.runtime import Runtime",
    ),
    "state by package": ("nodes.dense_search", "from bounded_retrieval.graph import context"),
    "graph adapts": ("graph.bounded", "from bounded_retrieval.retrievers.langchain import adapt"),
    "studio opens an index": ("graph.studio", "from bounded_retrieval.retrievers.store import open_index"),
    "tokenizer": ("retrievers.bm25", "from bounded_retrieval.policies.tokenize import tokenize"),
    "document": ("contracts.candidate", "from langchain_core.documents import Document"),
    "own neighbour": ("ingest.readers", "from .pdf import parse_pdf\nimport asyncio, bs4"),
    "command line": ("cli", "from bounded_retrieval.evaluation import run\nfrom bounded_retrieval import console"),
}


@pytest.mark.parametrize(("module", "source"), ALLOWED.values(), ids=ALLOWED.keys())
def test_a_permitted_import_is_left_alone(module, source):
    """The checker does not refuse what the table allows."""
    assert violations(source, module) == []


def test_the_check_covers_the_package():
    """The modules that are checked are those of the installed package, with every layer that exists."""
    found = {module_name(path).partition(".")[0] for path in ROOT.rglob("*.py")}
    assert {"contracts", "policies", "nodes", "graph", "retrievers", "ingest", "integrations"} <= found
