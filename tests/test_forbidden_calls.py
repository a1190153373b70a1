"""What no module of the package may call: whatever turns data into code or into a command."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import bounded_retrieval

ROOT = Path(bounded_retrieval.__file__).parent
MODULES = sorted(ROOT.rglob("*.py"))

# Modules that may not be imported at all.
FORBIDDEN_MODULES = (
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "joblib",
    "marshal",
    "shelve",
    "dbm",
    "yaml",
    "ruamel",
    "subprocess",
    "pty",
    "commands",
    "code",
    "codeop",
)

# Names that may be neither called nor handed on, resolved through imports and simple assignments.
FORBIDDEN_NAMES = (
    "eval",
    "exec",
    "compile",
    "__import__",
    "builtins.eval",
    "builtins.exec",
    "builtins.compile",
    "builtins.__import__",
    "os.system",
    "os.popen",
    "os.spawn",
    "os.exec",
    "os.posix_spawn",
    "posix.system",
    "runpy",
    "asyncio.create_subprocess_shell",
    "asyncio.create_subprocess_exec",
    "pandas.read_pickle",
    "torch.load",
    "numpy.lib.format.read_array",
    "ctypes.CDLL",
    "ctypes.cdll",
)

# `re.compile` and its like are another thing than the built-in `compile`, and `os.execute` would be than `os.exec*`.
PREFIXES = ("os.spawn", "os.exec", "os.posix_spawn")


def problems(source: str) -> list[str]:
    """Every forbidden thing in a module's text, by line."""
    tree = ast.parse(source)
    names = dict(_names(tree))
    found = [*_imports(tree), *_uses(tree, names), *_arguments(tree, names)]
    return sorted(set(found), key=lambda problem: int(problem.split(":")[0]))


def _names(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What each name in a module stands for, in full: imported, or assigned from a dotted name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (
                (
                    alias.asname or alias.name.partition(".")[0],
                    alias.name if alias.asname else alias.name.partition(".")[0],
                )
                for alias in node.names
            )
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, (ast.Name, ast.Attribute)):
            yield from ((target.id, ast.unparse(node.value)) for target in node.targets if isinstance(target, ast.Name))


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted name of an expression with its first part resolved; empty if it is not a dotted name."""
    if not isinstance(node, (ast.Name, ast.Attribute)):
        return ""
    name, seen = ast.unparse(node), set()
    while True:
        first, dot, rest = name.partition(".")
        if first in seen or first not in names or names[first] == first:
            return name
        seen.add(first)
        name = f"{names[first]}{dot}{rest}"


def _imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        imported: list[str] = []
        if isinstance(node, ast.Import):
            imported = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            imported = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__")):
            imported = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
        yield from (
            f"{node.lineno}: imports {name}" for name in imported if name.partition(".")[0] in FORBIDDEN_MODULES
        )


def _uses(tree: ast.AST, names: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            full = _full_name(node, names)
            if _is_forbidden(full):
                yield f"{node.lineno}: uses {full}"
        if isinstance(node, ast.Call) and _full_name(node.func, names) == "getattr":
            looked_up = _looked_up(node, names)
            if _is_forbidden(looked_up) or looked_up.endswith(".?"):
                yield f"{node.lineno}: looks up {looked_up}"


def _is_forbidden(name: str) -> bool:
    return name in FORBIDDEN_NAMES or name.startswith(PREFIXES)


def _looked_up(call: ast.Call, names: dict[str, str]) -> str:
    """The full name that ``getattr`` gives of a module that has forbidden ones; ``?`` where it cannot be seen."""
    owner, attribute = (_full_name(call.args[0], names), call.args[1]) if len(call.args) > 1 else ("", call)
    if owner not in ("builtins", "__builtins__", "os", "posix"):
        return ""
    name = attribute.value if isinstance(attribute, ast.Constant) else "?"
    return f"{owner.strip('_')}.{name}"


def _arguments(tree: ast.AST, names: dict[str, str]) -> Iterator[str]:
    """Calls that become dangerous by an argument."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        full = _full_name(node.func, names)
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        if "shell" in given and not _is_false(given["shell"]):
            yield f"{node.lineno}: shell="
        if "allow_pickle" in given and not _is_false(given["allow_pickle"]):
            yield f"{node.lineno}: allow_pickle="
        if full == "numpy.load" and "allow_pickle" not in given:
            yield f"{node.lineno}: numpy.load without allow_pickle=False"
        if None in given and full.startswith(("numpy.load", "subprocess.")):
            yield f"{node.lineno}: {full} with arguments that cannot be seen"


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


SNIPPETS = {
    "pickle": "import pickle\npickle.loads(data)",
    "pickle, renamed": "from pickle import loads as read\nread(data)",
    "pickle, in a function": "def f(data):\n    import _pickle\n    return _pickle.loads(data)",
    "pickle, by name": "import importlib\nimportlib.import_module('pickle')",
    "dill": "import dill",
    "joblib": "from joblib import load",
    "shelve": "import shelve",
    "marshal": "import marshal\nmarshal.loads(data)",
    "yaml": "import yaml\nyaml.load(text)",
    "yaml, safely": "from yaml import safe_load",
    "eval": "eval(text)",
    "eval, handed on": "list(map(eval, texts))",
    "eval, renamed": "run = eval\nrun(text)",
    "eval of builtins": "import builtins as b\nb.eval(text)",
    "eval, looked up": "import builtins\ngetattr(builtins, 'ev' + 'al')(text)",
    "exec": "exec(text)",
    "compile": "compile(text, 'f', 'exec')",
    "import by a variable": "__import__(name)",
    "os.system": "import os\nos.system(text)",
    "os.system, renamed": "from os import system as run\nrun(text)",
    "os.system of a renamed module": "import os as o\no.system(text)",
    "os.system, assigned": "import os\ncall = os.system\ncall(text)",
    "os.system, looked up": "import os\ngetattr(os, 'system')(text)",
    "os.popen": "import os\nos.popen(text)",
    "os.execvp": "import os\nos.execvp(text, [])",
    "os.spawnl": "from os import spawnl\nspawnl(0, text)",
    "subprocess": "import subprocess",
    "subprocess, a function": "from subprocess import run",
    "a shell": "run(text, shell=True)",
    "a shell that is decided elsewhere": "run(text, shell=flag)",
    "asyncio's shell": "import asyncio\nasyncio.create_subprocess_shell(text)",
    "numpy's pickles": "import numpy as np\nnp.load(path, allow_pickle=True)",
    "numpy's default": "import numpy as np\nnp.load(path)",
    "numpy's default, renamed": "from numpy import load as read\nread(path)",
    "numpy with arguments unseen": "import numpy\nnumpy.load(path, **options)",
    "a writer of pickles": "import numpy as np\nnp.save(path, values, allow_pickle=True)",
    "runpy": "import runpy\nrunpy.run_path(path)",
    "pandas": "import pandas as pd\npd.read_pickle(path)",
    "torch": "import torch\ntorch.load(path)",
    "a shared library": "import ctypes\nctypes.CDLL(path)",
}

HARMLESS = (
    "import re\nre.compile(text)",
    "graph = builder.compile()",
    "import numpy as np\nnp.load(path, allow_pickle=False)",
    "def evaluate(x):\n    return x.eval_mode",
    "import os\nos.environ.get('A')\ngetattr(os, 'O_NOFOLLOW', 0)",
    "from ast import literal_eval\nliteral_eval(text)",
    "system.system(text)",
)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_module_runs_no_data(path: Path) -> None:
    """No pickle, no eval or exec, no yaml, no shell, no array files with objects, anywhere in the package."""
    assert problems(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("name", SNIPPETS)
def test_a_forbidden_thing_is_found(name: str) -> None:
    """Each of them, planted in a module, is reported, renamed and handed on as well."""
    assert problems(SNIPPETS[name])


@pytest.mark.parametrize("source", HARMLESS)
def test_a_harmless_thing_is_passed(source: str) -> None:
    """What only looks like one of them is not reported."""
    assert problems(source) == []


def test_the_whole_package_is_looked_at() -> None:
    """The modules that read files are among those that were read."""
    names = {path.relative_to(ROOT).as_posix() for path in MODULES}
    assert {"retrievers/_bm25_files.py", "retrievers/units.py", "ingest/jsonl.py", "cli.py"} <= names
