"""The package keeps no state for a whole process but what is declared here, and leaves the process as it was."""

from __future__ import annotations

import ast
import asyncio
import decimal
import gc
import importlib
import json
import locale
import logging
import multiprocessing
import os
import pkgutil
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path, PurePath
from types import MappingProxyType
from typing import Any, TypeVar, get_origin

import numpy as np
import pytest
from pydantic import BaseModel, TypeAdapter

import bounded_retrieval

ROOT = Path(bounded_retrieval.__file__).parent

DECLARED = {
    "__init__.__getattr__ globals()": "public names are kept once they were loaded",
    "contracts.scorecard.shipped_scorecard cache": "a file of the package, read once",
    "contracts.time_left._UNTIL ContextVar": "when the run that makes a call must end; set around the call",
    "evaluation._drawing._characters cache": "the characters that a font has",
    "evaluation._drawing.text_width cache": "the width of a label, which asks a font",
    "evaluation.measures._parsed cache": "names of measures, parsed once",
    "evaluation.page._static cache": "a file of the package, read once",
    "graph.studio.graph CompiledStateGraph": "what a LangGraph server serves; it opens its index at the first call",
    "graph.studio.once cache": "the served index, opened by the first call",
    "ingest._warnings._LOCK lock": "one thread at a time ignores warnings",
    "ingest.splitting._splitter cache": "a splitter for each of the last eight sizes; it holds no text",
    "retrievers._bm25_backends._IMPORTING lock": "one import at a time",
    "retrievers._bm25_backends._lucene_okapi cache": "a class, made once",
    "retrievers._chroma_store._OPENING lock": "one client at a time is opened or closed",
    "retrievers._chroma_store._start _STARTED.append": "the process that started Chroma, whose children cannot use it",
    "retrievers._milvus_client._CALLING ContextVar": "whether what Milvus' client logs is raised; set around a call",
    "retrievers.chroma_server._SECONDS ContextVar": "how long a request may take; set around a call",
    "retrievers.embeddings._IMPORTING lock": "one import at a time",
    "testing.compliance.DOCUMENTS tuple": "what the compliance suite indexes",
}
"""All that outlives a call and is shared by everybody in a process, and what it is for."""

PLAIN = (
    *(str, bytes, int, float, range, frozenset, type, type(None), Enum, Path, PurePath, re.Pattern, MappingProxyType),
    *(TypeAdapter, TypeVar, logging.Logger, dict, list, set),
)
"""Values that do not change, or (the last three) whose changes are looked for by name and by comparison."""

MUTATORS = frozenset(
    [
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "move_to_end",
        "pop",
        "popitem",
        "popleft",
        "put",
        "remove",
        "reverse",
        "rotate",
        "setdefault",
        "sort",
        "update",
    ]
)
CACHES = {"cache", "lru_cache", "functools.cache", "functools.lru_cache"}


def findings(source: str, values: Mapping[str, Any]) -> list[str]:
    """What a module of these values shares between all calls in a process, one line each."""
    tree = ast.parse(source)
    return sorted({*_objects(tree, values), *_changed(tree), *_class_values(tree)})


def _module_names(tree: ast.Module) -> set[str]:
    """Names that a module binds itself or imports from this package."""
    names = {target.id for node in tree.body for target in _targets(node) if isinstance(target, ast.Name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("bounded_retrieval"):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, (ast.AnnAssign, ast.AugAssign)) else []


def _objects(tree: ast.Module, values: Mapping[str, Any]) -> Iterator[str]:
    """Objects that the module's own assignments make and that somebody could change."""
    names = [target.id for node in tree.body for target in _targets(node) if isinstance(target, ast.Name)]
    yield from (f"{name} {type(values[name]).__name__}" for name in names if not _is_plain(values[name]))


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    if isinstance(value, BaseModel):
        return bool(value.model_config.get("frozen"))
    if is_dataclass(value):
        return bool(value.__dataclass_params__.frozen)
    return isinstance(value, PLAIN) or get_origin(value) is not None


def _changed(tree: ast.Module) -> Iterator[str]:
    """What functions change of a module's names; ``global`` statements; caches."""
    shared = _module_names(tree)
    for function in _functions(tree):
        local = _locals(function) - _globals(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Global):
                yield f"{function.name} global"
            elif isinstance(node, ast.Call):
                yield from (f"{function.name} {found}" for found in _change_by_call(node, shared - local))
            for target in _targets(node) or (node.targets if isinstance(node, ast.Delete) else []):
                if isinstance(target, (ast.Subscript, ast.Attribute)) and _root(target) in shared - local:
                    yield f"{function.name} {ast.unparse(target)}"
        if any(_called(decorator) in CACHES for decorator in function.decorator_list):
            yield f"{function.name} cache"


def _change_by_call(node: ast.Call, shared: set[str]) -> Iterator[str]:
    called = ast.unparse(node.func)
    if called in CACHES:
        yield "cache"
    elif called == "globals":
        yield "globals()"
    elif isinstance(node.func, ast.Attribute) and node.func.attr in MUTATORS and _root(node.func) in shared:
        yield called


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)))


def _globals(function: ast.AST) -> set[str]:
    return {name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names}


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    """Names that a function binds itself: its parameters and what it stores."""
    given = {argument.arg for argument in ast.walk(function.args) if isinstance(argument, ast.arg)}
    return given | {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def _called(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


def _root(node: ast.expr) -> str:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _class_values(tree: ast.Module) -> Iterator[str]:
    """Containers in a class's body that are no field's default of a dataclass or model, and not declared final."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for statement in node.body:
            value = getattr(statement, "value", None)
            if _targets(statement) and isinstance(value, CONTAINERS) and not _is_model(node):
                yield f"{node.name}.{ast.unparse(_targets(statement)[0])} {type(value).__name__}"


CONTAINERS = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp)


def _is_model(node: ast.ClassDef) -> bool:
    # A model copies a field's default for each instance.
    return any(ast.unparse(base) == "BaseModel" for base in node.bases)


def module_name(path: Path) -> str:
    """Dotted name of a module inside the package."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


def test_nothing_is_shared_by_a_process_but_what_is_declared() -> None:
    """Every object, cache and change at module level stands in the list with its reason, and nothing else does."""
    import_everything()
    found = []
    for path in ROOT.rglob("*.py"):
        name = module_name(path)
        values = vars(sys.modules[f"bounded_retrieval.{name}".removesuffix(".__init__")]) if name != "__main__" else {}
        found += [f"{name}.{line}" for line in findings(path.read_text(), values)]
    assert sorted(found) == sorted(DECLARED)


PLANTED = {
    "a global statement": "COUNT = 0\ndef f():\n    global COUNT\n    COUNT += 1",
    "a dictionary that is filled": "SEEN = {}\ndef f(key):\n    SEEN[key] = 1",
    "a list that grows": "SEEN = []\ndef f(key):\n    SEEN.append(key)",
    "a key that is deleted": "SEEN = {}\nasync def f(key):\n    del SEEN[key]",
    "another module's dictionary": "from bounded_retrieval.policies import registry\ndef f():\n    registry.ALL['x'] = 1",
    "a cache": "from functools import cache\n@cache\ndef f():\n    return 1",
    "a bounded cache": "import functools\n@functools.lru_cache(maxsize=8)\ndef f():\n    return 1",
    "an object of one's own": "import types\nSESSION = types.SimpleNamespace()",
    "a context variable": "from contextvars import ContextVar\nCURRENT: ContextVar[int] = ContextVar('current')",
    "a model that can be changed": "from pydantic import BaseModel\nclass Held(BaseModel):\n    n: int = 1\nHELD = (Held(),)",
    "a function's attribute": "def f():\n    f.calls = 1\nf2 = 1\ndef g():\n    f2.calls = 1",
    "a class's list": "class Store:\n    held = []",
}


def executed(source: str) -> dict[str, Any]:
    """The values of a module."""
    values: dict[str, Any] = {}
    exec(source, values)
    return values


@pytest.mark.parametrize("source", PLANTED.values(), ids=PLANTED.keys())
def test_planted_state_is_found(source: str) -> None:
    """The scan sees each kind of state that is shared by a process."""
    assert len(findings(source, executed(source))) == 1


def test_what_belongs_to_a_call_is_left_alone() -> None:
    """Local containers, constants and attributes of an object are no state of the process."""
    source = (
        "import re\nNAMES = {'a': 1}\nWORD = re.compile('x')\nTEXT = 'a b'.split()\n"
        "def f(NAMES):\n    NAMES['b'] = 2\n    held = []\n    held.append(1)\n    return held\n"
        "class Holder:\n    def __init__(self):\n        self.held = {}\n    def add(self, key):\n        self.held[key] = NAMES['a']\n"
    )
    assert findings(source, executed(source)) == []


def snapshot() -> dict[str, Any]:
    """What belongs to a whole process and is the application's to set, as JSON."""
    mask = os.umask(0)
    os.umask(mask)
    loggers = {None: logging.getLogger(), **logging.getLogger().manager.loggerDict}
    return {
        "loggers": {
            str(name): [logger.level, logger.propagate, logger.disabled, *map(repr, logger.handlers)]
            for name, logger in loggers.items()
            if isinstance(logger, logging.Logger) and (name is None or logger.level or logger.handlers)
        },
        "logging": repr([logging.getLoggerClass(), logging.getLogRecordFactory(), logging.getLogger().manager.disable]),
        "warnings": [repr(entry) for entry in warnings.filters],
        "warnings shown by": repr(warnings.showwarning),
        "environment": dict(os.environ),
        "signals": {str(number): repr(signal.getsignal(number)) for number in signal.valid_signals()},
        "locale": locale.setlocale(locale.LC_ALL),
        "random": repr(hash(random.getstate())),
        "numpy random": _numpy_state(),
        "processes": multiprocessing.get_start_method(allow_none=True),
        "event loops": repr(type(asyncio.get_event_loop_policy())),
        "path": [*sys.path, *map(repr, sys.meta_path), *map(repr, sys.path_hooks)],
        "hooks": repr([sys.excepthook, sys.unraisablehook, sys.displayhook, threading.excepthook]),
        "tracing": repr([sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile()]),
        "interpreter": [sys.getswitchinterval(), sys.getrecursionlimit(), sys.get_int_max_str_digits()],
        "garbage": [*gc.get_threshold(), gc.isenabled()],
        "decimal": repr(decimal.getcontext()),
        "files": [mask, str(Path.cwd()), repr(tempfile.tempdir), repr(socket.getdefaulttimeout())],
        "streams": repr([sys.stdin, sys.stdout, sys.stderr]),
        "threads": sorted(thread.name for thread in threading.enumerate()),
    }


def _numpy_state() -> str:
    return repr([np.random.get_state(legacy=False), np.geterr(), np.get_printoptions()])  # noqa: NPY002 - that it stays


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What is not as it was, one line each."""
    found = []
    for name, value in before.items():
        if isinstance(value, dict):
            keys = value.keys() | after[name].keys()
            found += [f"{name} {key}" for key in sorted(keys) if value.get(key) != after[name].get(key)]
        elif value != after[name]:
            found.append(name)
    return found


def containers() -> dict[str, str]:
    """The package's dictionaries, lists and sets at module level and in classes, written out."""
    held = {}
    for name, module in [*sys.modules.items()]:
        if name.partition(".")[0] != "bounded_retrieval":
            continue
        owners = [module, *(value for value in vars(module).values() if isinstance(value, type))]
        for owner in owners:
            held |= {
                f"{name}.{getattr(owner, '__name__', '')}.{key}": repr(value)
                for key, value in [*vars(owner).items()]
                if isinstance(value, (dict, list, set)) and not key.startswith("__")
            }
    return held


def import_everything() -> None:
    """Import every module of the package, and load every public name."""
    for found in pkgutil.walk_packages(bounded_retrieval.__path__, "bounded_retrieval."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    for name in bounded_retrieval.__all__:
        getattr(bounded_retrieval, name)


def use_everything(directory: str) -> None:
    """Index, search, chain, evaluate and ask, with the embedded model."""
    from langchain_core.documents import Document

    from bounded_retrieval import (
        BoundedRetriever,
        ExtractiveReader,
        TemplatePlanner,
        build_index,
        create_bounded_retrieval,
        create_recursive_retrieval,
        create_retrieval_tool,
        open_index,
    )

    pages = Path(directory, "pages")
    pages.mkdir(exist_ok=True)
    (pages / "one.html").write_text("<h1>Pumps</h1><p>The pump is reset at the panel.</p>")
    (pages / "two.md").write_text("# Pumps\n\nThe pump of site 2 hums.\n")
    from bounded_retrieval.ingest import read_documents

    documents = [*read_documents([pages]), Document(id="u1", page_content="The pump of site 1 hums.")]
    build_index(documents, f"{directory}/index", dense="chroma")
    with open_index(f"{directory}/index") as index:
        builder = create_bounded_retrieval(index.lexical, index.dense, units=index.units, policy="always_continue")
        graph = builder.compile()
        graph.invoke({"query": "Which pump hums at site 2?"})
        asyncio.run(graph.ainvoke({"query": "Which pump is reset?"}))
        BoundedRetriever.from_graph(graph).invoke("Which pump hums?")
        create_retrieval_tool(graph).invoke({"query": "Which pump hums?"})
        chain = create_recursive_retrieval(
            builder, TemplatePlanner(["Which pump hums?"]), ExtractiveReader(threshold=1)
        )
        chain.compile().invoke({"query": "Which pump hums?"})


def measure(directory: str) -> dict[str, Any]:
    """What importing changes after all other packages are there, and what the first and the second use change."""
    listed = "import sys, test_global_state as t; t.import_everything(); print(*sys.modules, sep='\\n')"
    done = subprocess.run(
        [sys.executable, "-c", listed], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    for name in done.stdout.split():
        if name.partition(".")[0] != "bounded_retrieval":
            try:
                importlib.import_module(name)
            except ImportError:  # a name that only its package can import, such as one it has made up
                continue
    before = snapshot()
    import_everything()
    imported = snapshot()
    held = containers()
    use_everything(directory)
    used = snapshot()
    use_everything(directory)
    return {
        "import": differences(before, imported),
        "first use": differences(imported, used),
        "second use": differences(used, snapshot()),
        "containers": [name for name, value in containers().items() if held.get(name, value) != value],
        "held": len(held),
    }


LEFT_BY_USE = {
    "environment ORT_DISABLE_TELEMETRY": "keeps onnxruntime from reporting its use, and from writing an id to the home folder",
    "loggers grpc": "a null handler, by a package that Chroma imports when it is started",
    "random": "LangGraph draws the ids of its checkpoints from it",
    "warnings": "filters of packages that are imported when they are first used",
}
"""What other packages leave behind when they are used; all but the first by themselves."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The measurement, made in a process of its own."""
    directory = tmp_path_factory.mktemp("state")
    done = subprocess.run(
        [sys.executable, Path(__file__), directory], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_importing_changes_nothing_of_the_process(measured: dict[str, Any]) -> None:
    """Logging, warnings, environment, signals, locale, chance, event loops, paths and hooks are as they were."""
    assert measured["import"] == []


def test_use_changes_only_what_is_listed(measured: dict[str, Any]) -> None:
    """The first use leaves what the list names, and a second one leaves nothing but LangGraph's drawing of ids."""
    assert set(measured["first use"]) <= LEFT_BY_USE.keys()
    assert set(measured["second use"]) <= {"random"}


def test_no_container_of_the_package_changes(measured: dict[str, Any]) -> None:
    """The dictionaries, lists and sets of all modules and classes hold after use what they held before."""
    assert measured["held"] > 50
    assert measured["containers"] == [
        "bounded_retrieval.retrievers._chroma_store.bounded_retrieval.retrievers._chroma_store._STARTED"
    ]


def _configure_logging() -> None:
    logging.getLogger("planted").addHandler(logging.NullHandler())


CHANGES = {
    "loggers planted": _configure_logging,
    "environment PLANTED": lambda: os.environ.update(PLANTED="1"),
    "warnings": lambda: warnings.simplefilter("ignore"),
    "random": lambda: random.seed(1),
    "path": lambda: sys.path.append("planted"),
    f"signals {signal.SIGUSR1.value}": lambda: signal.signal(signal.SIGUSR1, signal.SIG_IGN),
    "interpreter": lambda: sys.setrecursionlimit(12_345),
    "decimal": lambda: setattr(decimal.getcontext(), "prec", 7),
    "files": lambda: socket.setdefaulttimeout(3),
}


@pytest.mark.parametrize(("name", "change"), CHANGES.items(), ids=CHANGES.keys())
def test_a_planted_change_of_the_process_is_found(name: str, change: Any) -> None:
    """The measurement sees each kind of change (made and undone in a child process)."""
    planted = f"import json, test_global_state as t; b = t.snapshot(); t.CHANGES[{name!r}](); print(json.dumps(t.differences(b, t.snapshot())))"
    done = subprocess.run(
        [sys.executable, "-c", planted], capture_output=True, text=True, check=True, cwd=Path(__file__).parent
    )
    assert json.loads(done.stdout) == [name]
    assert callable(change)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    print(json.dumps(measure(sys.argv[1])))  # noqa: T201 - what the tests read
