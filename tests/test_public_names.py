"""The reference page against the package: every public name, its parameters, methods and fields, all documented."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

import bounded_retrieval
from bounded_retrieval import contracts, errors
from bounded_retrieval.contracts.ports import Assessor
from bounded_retrieval.policies.fusion import RankFusion

PACKAGE = "bounded_retrieval"
ROOT = Path(__file__).resolve().parents[1]
REFERENCE = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^- `(?P<shown>[^`]+)`: (?P<text>.+)\n(?:  (?P<members>`.+`)$)?", re.MULTILINE)
LONGEST_TEXT = 120


@dataclass(frozen=True)
class Entry:
    """One name of the reference page.

    Attributes:
        module: where it is imported from.
        shown: its name, with its parameters where it is called.
        text: what it is for, and where it is explained.
        members: its methods and properties, likewise.
    """

    module: str
    shown: str
    text: str
    members: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.shown.partition("(")[0]

    @property
    def object(self) -> Any:
        return getattr(importlib.import_module(self.module), self.name)


def entries() -> Iterator[Entry]:
    """What the page lists, by its second-level headings."""
    for section in REFERENCE.split("\n## ")[1:]:
        module = section.partition("\n")[0]
        for found in ENTRY.finditer(section):
            members = tuple(re.findall(r"`([^`]+)`", found["members"] or ""))
            yield Entry(module, found["shown"], found["text"], members)


ENTRIES = tuple(entries())
OWN = [entry for entry in ENTRIES if entry.module == PACKAGE]
CLASSES = [entry for entry in ENTRIES if inspect.isclass(entry.object)]


def parameters(called: Any) -> str:
    """The parameters of something that is called, in the short form of the page: names and stars."""
    if inspect.isclass(called) and issubclass(called, BaseModel):
        return ", ".join(["*", *called.model_fields])
    shown, is_keyword = [], False
    for each in inspect.signature(called).parameters.values():
        if each.kind is each.KEYWORD_ONLY and not is_keyword:
            shown.append("*")
        is_keyword |= each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        stars = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        if each.name not in ("self", "cls"):
            shown.append(f"{stars}{each.name}")
    return ", ".join(shown)


def shown(name: str, value: Any) -> str:
    """How the page has to show a name: with parameters, unless nobody calls it."""
    is_called = inspect.isfunction(value) or inspect.isclass(value)
    if inspect.isclass(value):
        is_called = not issubclass(value, Exception | Enum) and not getattr(value, "_is_protocol", False)
    return f"{name}({parameters(value)})" if is_called else name


def members(owner: type) -> dict[str, Any]:
    """The public methods and properties that a class of this package defines itself, by name."""
    if issubclass(owner, Exception):
        return {}
    found = {name: inspect.getattr_static(owner, name) for name in vars(owner) if not name.startswith("_")}
    functions = {name: getattr(value, "__func__", value) for name, value in found.items()}
    described = {name: value for name, value in functions.items() if inspect.isfunction(value)}
    properties = {name: value for name, value in found.items() if isinstance(value, property)}
    return {name: value for name, value in {**described, **properties}.items() if name != "model_post_init"}


def shown_members(owner: type) -> set[str]:
    """How the page has to show them."""
    return {name if isinstance(value, property) else shown(name, value) for name, value in members(owner).items()}


def test_the_page_lists_the_package_whole() -> None:
    """Every name of ``__all__`` stands on the page once, and nothing else under the package's own heading."""
    assert sorted(entry.name for entry in OWN) == sorted(bounded_retrieval.__all__) == bounded_retrieval.__all__
    assert set(bounded_retrieval._HOMES) == set(bounded_retrieval.__all__)


@pytest.mark.parametrize("module", ["ingest", "statistics", "testing"])
def test_the_page_lists_what_a_subpackage_offers(module: str) -> None:
    """What a documented subpackage names in ``__all__`` stands under its heading; constants of its settings may not."""
    offered = set(importlib.import_module(f"{PACKAGE}.{module}").__all__)
    listed = {entry.name for entry in ENTRIES if entry.module == f"{PACKAGE}.{module}"}
    assert listed <= offered
    assert {name for name in offered - listed if not name.endswith("_CHUNK_CHARS")} == set()


def test_the_page_lists_every_error() -> None:
    """Each error class of the package stands under its module's heading, or the package's."""
    raised = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Exception)}
    assert raised == {entry.name for entry in CLASSES if issubclass(entry.object, Exception)}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: f"{entry.module}.{entry.name}")
def test_a_name_is_there_and_has_the_parameters_that_the_page_shows(entry: Entry) -> None:
    """A renamed, new or removed parameter, or a new order, is noticed; so is a method that is not there."""
    assert entry.shown == shown(entry.name, entry.object)
    if inspect.isclass(entry.object):
        assert set(entry.members) <= shown_members(entry.object)
    assert len(re.sub(r" \(\[.*", "", entry.text)) <= LONGEST_TEXT


@pytest.mark.parametrize("entry", [entry for entry in OWN if entry in CLASSES], ids=lambda entry: entry.name)
def test_the_page_lists_every_method_of_the_packages_own_classes(entry: Entry) -> None:
    """Methods and properties alike, each once; LangChain's, LangGraph's and pydantic's own are theirs to describe."""
    assert sorted(entry.members) == sorted(shown_members(entry.object))


def test_every_name_of_the_package_has_a_link_to_its_page() -> None:
    """Names of the package are explained somewhere, and the page says where."""
    assert [entry.name for entry in OWN if "](" not in entry.text] == []


def test_every_name_is_described_where_it_is_defined() -> None:
    """Names of the page, their modules and their public methods have docstrings of their own, not inherited ones."""
    described = [(entry.name, entry.object) for entry in ENTRIES if shown(entry.name, entry.object) != entry.name]
    described += [(entry.module, importlib.import_module(entry.module)) for entry in ENTRIES]
    described += [(f"{entry.name}.{name}", each) for entry in CLASSES for name, each in members(entry.object).items()]
    assert sorted({name for name, value in described if not value.__doc__}) == []
    classes = [entry.object for entry in CLASSES]
    assert [owner.__name__ for owner in classes if not vars(owner).get("__doc__")] == []


def section_names(doc: str | None, *titles: str) -> set[str]:
    """The names that sections of a docstring describe, as in ``one, other: text``."""
    found: set[str] = set()
    for title in titles:
        for section in re.findall(rf"^{title}:\n((?:[ ]+.*(?:\n|$)|\n)*)", inspect.cleandoc(doc or ""), re.MULTILINE):
            for names in re.findall(r"^ {4}\**(\w[\w, ]*):", section, re.MULTILINE):
                found |= {name.strip() for name in names.split(",")}
    return found


def models() -> dict[str, type]:
    """Every pydantic model and dataclass of the contracts and of the page, by full name."""
    names = [found.name for found in pkgutil.walk_packages(contracts.__path__, f"{contracts.__name__}.")]
    held = [value for name in names for value in vars(importlib.import_module(name)).values()]
    held += [entry.object for entry in CLASSES if entry.module == PACKAGE]
    known = {f"{each.__module__}.{each.__qualname__}": each for each in held if inspect.isclass(each)}
    return {
        name: each
        for name, each in known.items()
        if name.startswith(f"{PACKAGE}.")
        and not each.__name__.startswith("_")
        and (dataclasses.is_dataclass(each) or issubclass(each, BaseModel))
    }


MODELS = models()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_every_field_is_described(model: type) -> None:
    """By ``Field(description=...)``, under ``Attributes``, in the docstring's own words, or by the port it fills."""
    own = [each for each in model.__mro__ if each.__module__.startswith(PACKAGE)]
    described = {name for each in own for name in section_names(each.__doc__, "Attributes", "Args")}
    if issubclass(model, BaseModel):
        fields = {name for name, value in model.model_fields.items() if not value.description}
        fields &= {name for each in own for name in each.__annotations__}
    else:
        fields = {each.name for each in dataclasses.fields(model)}
        described |= {name for port in (Assessor, RankFusion) for name in members(port)}
        described |= set(re.findall(r"\w+", model.__doc__ or ""))
    assert fields - described == set()


def _called() -> dict[str, Any]:
    functions = {f"{entry.module}.{entry.name}": entry.object for entry in ENTRIES if entry not in CLASSES}
    methods = {f"{e.module}.{e.name}.{name}": each for e in CLASSES for name, each in members(e.object).items()}
    return {name: each for name, each in {**functions, **methods}.items() if inspect.isfunction(each)}


def test_where_parameters_are_described_all_of_them_are() -> None:
    """A docstring with ``Args`` names each parameter and none that is not there; the four builders' have one."""
    told = {name: (each, section_names(each.__doc__, "Args")) for name, each in _called().items()}
    for each, names in told.values():
        known = {name.strip("*") for name in parameters(each).split(", ")} - {""}
        assert names in (set(), known), each.__qualname__
    for name in ("create_bounded_retrieval", "create_recursive_retrieval", "build_index", "as_node"):
        assert told[f"{PACKAGE}.{name}"][1], name


def shown_code() -> Iterator[tuple[str, str]]:
    """Where code is shown to users, and the code: documents, notebooks, examples."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL):
            yield page.name, block
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield notebook.name, "".join(line for line in cell["source"] if not line.startswith("%"))
    for example in sorted((ROOT / "examples").glob("*.py")):
        yield example.name, example.read_text(encoding="utf-8")


def test_whatever_shown_code_imports_stands_on_the_page() -> None:
    """Documents, notebooks and examples use public names only, from where the page says that they are."""
    listed = {(entry.module, entry.name) for entry in ENTRIES}
    used = {
        (where, node.module, alias.name)
        for where, code in shown_code()
        for node in ast.walk(ast.parse(code))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith(PACKAGE)
        for alias in node.names
    }
    assert {where for where, _, _ in used} >= {"README.md", "migrating.md", "05_experiment.ipynb", "rag_chain.py"}
    assert sorted(use for use in used if use[1:] not in listed) == []
