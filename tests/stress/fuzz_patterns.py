"""Every regular expression of the package, with whether it is tried at every position of a text.

They are found in the source, so that one added tomorrow is found too: each call of ``re``, and each list of regular
expressions that is given to a text splitter. A pattern that cannot be known without running the code is an error.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from fuzz_backtracking import ANCHORED

import bounded_retrieval

PACKAGE = Path(bounded_retrieval.__file__).parent

_CALLS = frozenset({"compile", "match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"})
_NO_MATCHING = frozenset({"pattern", "flags", "groups", "groupindex"})


@dataclass(frozen=True)
class Use:
    """A regular expression, where it stands, and whether every position of a text may be tried."""

    where: str
    pattern: re.Pattern[Any]
    scanning: bool


@dataclass(frozen=True)
class _Source:
    """A module of the package: its calls and its uses of names, and each node's parent in the syntax tree."""

    name: str
    nodes: Sequence[ast.AST]
    parents: Mapping[ast.AST, ast.AST]

    def module(self) -> ModuleType:
        return importlib.import_module(self.name)

    @cached_property
    def names(self) -> Mapping[str, Sequence[ast.Name]]:
        """Where each name is read."""
        found: dict[str, list[ast.Name]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                found.setdefault(node.id, []).append(node)
        return found

    @cached_property
    def imported(self) -> Mapping[tuple[str | None, str], str]:
        """By module and name: what the name is called here."""
        imports = (node for node in self.nodes if isinstance(node, ast.ImportFrom))
        return {(node.module, each.name): each.asname or each.name for node in imports for each in node.names}


class HiddenPatternError(Exception):
    """A regular expression depends on values that only running code has; names its place."""


def uses_in_package() -> list[Use]:
    """All of them, by place.

    Raises:
        HiddenPatternError: one cannot be known from the source.
    """
    sources = sources_of_package()
    return [use for source in sources for use in uses_in(source, sources)]


@cache
def sources_of_package() -> list[_Source]:
    """All modules but ``__main__``, by their paths."""
    return [_read(path) for path in sorted(PACKAGE.rglob("*.py")) if path.name != "__main__.py"]


def uses_in(source: _Source, sources: list[_Source]) -> Iterator[Use]:
    """The regular expressions of one module; ``sources`` are those that may use its names."""
    for node in source.nodes:
        if not isinstance(node, ast.Call):
            continue
        where = f"{source.name}, line {node.lineno}"
        if _is_splitter(node):
            separators = next(keyword.value for keyword in node.keywords if keyword.arg == "separators")
            yield from (Use(where, re.compile(each), scanning=True) for each in _value(separators, source, where))
        elif (function := _called(node)) is not None:
            yield from _uses_of_call(node, function, where, source, sources)


def parse_source(name: str, code: str) -> _Source:
    """The syntax tree of a module's code."""
    nodes = list(ast.walk(ast.parse(code)))
    parents = {child: parent for parent in nodes for child in ast.iter_child_nodes(parent)}
    return _Source(name, nodes, parents)


def _read(path: Path) -> _Source:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    return parse_source(name, path.read_text(encoding="utf-8"))


def _called(node: ast.Call) -> str | None:
    """Which function of ``re`` is called, if any that takes a pattern."""
    function = node.func
    is_re = isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "re"
    return function.attr if is_re and function.attr in _CALLS else None


def _is_splitter(node: ast.Call) -> bool:
    return any(keyword.arg == "is_separator_regex" for keyword in node.keywords)


def _uses_of_call(node: ast.Call, function: str, where: str, source: _Source, sources: list[_Source]) -> Iterator[Use]:
    statement = _statement_of(node, source)
    if statement is not None and not _is_single(statement, node):
        # Made in a loop over names: the module holds the results.
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        held = vars(source.module())[target.id] if isinstance(target, ast.Name) else None
        yield from (Use(where, pattern, scanning=True) for pattern in _patterns_in(held, where))
        return
    flags = [_value(each.value, source, where) for each in node.keywords if each.arg == "flags"]
    # The place of the flags differs from one function to another; only ``compile`` is given them by place here.
    flags += [_value(each, source, where) for each in node.args[1:]] if function == "compile" else []
    given = [each for each in node.args[2:] if function in ("search", "match", "fullmatch", "findall", "finditer")]
    flags += [_value(each, source, where) for each in given]
    pattern = re.compile(_value(node.args[0], source, where), flags[0] if flags else 0)
    if function != "compile":
        yield Use(where, pattern, scanning=function not in ANCHORED)
    elif statement is None:
        yield Use(where, pattern, scanning=True)
    else:
        yield Use(where, pattern, scanning=_is_scanned(statement, source, sources))


def _statement_of(node: ast.AST, source: _Source) -> ast.stmt | None:
    """The statement of the module, outside any function, that a node stands in."""
    while not isinstance(node, ast.stmt):
        node = source.parents[node]
    return node if isinstance(source.parents[node], ast.Module) else None


def _is_single(statement: ast.stmt, node: ast.Call) -> bool:
    return isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is node


def _value(node: ast.expr, source: _Source, where: str) -> Any:
    """What an expression over the module's own names is."""
    code = compile(ast.fix_missing_locations(ast.Expression(node)), where, "eval")
    try:
        return eval(code, dict(vars(source.module())))
    except NameError as error:
        raise HiddenPatternError(f"{where}: {error}") from error


def _patterns_in(held: Any, where: str) -> list[re.Pattern[Any]]:
    values = held.values() if isinstance(held, Mapping) else held
    found = [value for value in values or () if isinstance(value, re.Pattern)]
    if not found:
        raise HiddenPatternError(f"{where}: not held by a name of the module")
    return found


def _is_scanned(statement: ast.stmt, source: _Source, sources: list[_Source]) -> bool:
    """Whether anything but ``match`` and ``fullmatch`` is called on the name that a statement gives a pattern."""
    target = statement.target if isinstance(statement, ast.AnnAssign) else statement.targets[0]
    name = target.id
    methods = set(_methods_of(name, source))
    for other in sources:
        methods.update(_methods_of(other.imported.get((source.name, name), ""), other))
    return not methods - _NO_MATCHING <= ANCHORED


def _methods_of(name: str, source: _Source) -> Iterator[str]:
    """What is asked of a name; an empty text where it is handed on."""
    for node in source.names.get(name, ()):
        parent = source.parents[node]
        yield parent.attr if isinstance(parent, ast.Attribute) else ""
