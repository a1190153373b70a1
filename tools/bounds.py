"""Run the tests over the lowest and the latest dependencies that pyproject.toml allows.

``python tools/bounds.py lowest latest [-- PYTEST ARGUMENTS]`` makes an environment for each below ``build/bounds``,
installs the package with its extras and the development tools, and runs the tests there. ``python tools/bounds.py
constraints`` prints what ``lowest`` installs, as pip constraints.

In ``lowest`` every dependency that the package itself declares, and every one of its extras, is at exactly its lower
bound; what those need in turn, and the development tools, are the latest that go with them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENTS = ROOT / "build" / "bounds"
EXTRAS = "bounded-retrieval[chroma-server,fast-embedding,ir-datasets,milvus,otel,pgvector,plots]"
LOWER_BOUND = re.compile(r"(?P<name>[A-Za-z0-9._-]+)\s*(?:==|>=)\s*(?P<version>[^,;\s]+)")
PLUGINS_OFF = "-p no:anyio"
"""Tests use no plugin of anyio, and the version that goes with the lowest bounds warns under the latest pytest."""


def main(argv: Sequence[str]) -> int:
    """Do what the module's text says; gives the exit code of the first run that fails, or 0."""
    chosen, _, arguments = " ".join(argv).partition("--")
    names = chosen.split() or ["lowest", "latest"]
    if names == ["constraints"]:
        print("\n".join(lowest_constraints(project())))
        return 0
    if unknown := [name for name in names if name not in ("lowest", "latest")]:
        print(f"bounds: expected lowest, latest or constraints (got {unknown[0]})", file=sys.stderr)
        return 2
    return next((code for name in names if (code := check(name, arguments.split()))), 0)


def project() -> Mapping[str, Any]:
    """The ``[project]`` table of pyproject.toml."""
    table: Mapping[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def declared(table: Mapping[str, Any]) -> Iterator[str]:
    """Every requirement of the package, those of its extras included, as it is written."""
    yield from table["dependencies"]
    for requirements in table["optional-dependencies"].values():
        yield from requirements


def lowest_constraints(table: Mapping[str, Any]) -> list[str]:
    """One ``name==version`` for each declared requirement.

    Raises:
        ValueError: a requirement has no lower bound.
    """
    found = []
    for requirement in declared(table):
        bound = LOWER_BOUND.match(requirement)
        if bound is None:
            raise ValueError(f"pyproject.toml: {requirement!r} has no lower bound")
        found.append(f"{bound['name']}=={bound['version']}")
    return found


def check(name: str, arguments: Sequence[str]) -> int:
    """Make one environment and run the tests in it; gives their exit code."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    print(f"== bounds: installing {name} in {folder.relative_to(ROOT)}", flush=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, "--upgrade", "pip>=25.1"], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text("".join(f"{line}\n" for line in (lowest_constraints(project()) if name == "lowest" else ())))
    package = EXTRAS.replace("bounded-retrieval", ".")
    subprocess.run(
        [*pip, "--constraint", str(constraints), "--editable", package, "--group", "dev"], cwd=ROOT, check=True
    )
    subprocess.run([str(python), "-m", "pip", "check"], check=True)
    print(f"== bounds: testing {name}", flush=True)
    settings = {**os.environ, "PYTEST_ADDOPTS": f"{os.environ.get('PYTEST_ADDOPTS', '')} {PLUGINS_OFF}"}
    return subprocess.run([str(python), "-m", "pytest", *arguments], cwd=ROOT, env=settings, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
