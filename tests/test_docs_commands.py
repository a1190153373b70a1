"""Every documented command is run, in a form that ends quickly; one that nothing here knows fails a test."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import pytest
from documented import PAGES, QUERIES, ROOT, commands_of, documented, make_world, options_of, write_collection

from bounded_retrieval.cli import _parser, main

DOCUMENTED = documented()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

STANDS_FOR = {
    "COLLECTION": "my-collection/",
    "hotpotqa_train100/": "my-collection/",
    "musique_train100/": "my-collection/",
    "scifact_train/": "my-collection/",
    "device_support": "my-collection/",
    "DIR": "report",
    "T": "0.28",
    "bounded_retrieval/data/device_support/corpus.jsonl": "corpus.jsonl",
}
"""What is run in place of placeholders, and of collections that are large or not there."""

QUICK = {
    "evaluate": "--policies fixed_lexical,adaptive --resamples 100 --live 1",
    "calibrate": "--epsilon 0.9",
}
"""Options that make a command quick: fewer policies, samples and checks; a loss that a few queries can certify."""


@dataclass(frozen=True)
class Shown:
    """A documented run of the command line.

    Attributes:
        out: what it prints or says, besides everything else.
        writes: the file or folder that it leaves behind.
        after: the documented commands that come before it.
        adds: further options.
        stands_for: what is run in place of a placeholder here.
    """

    out: tuple[str, ...]
    writes: str = ""
    after: tuple[str, ...] = ()
    adds: str = ""
    stands_for: Mapping[str, str] = field(default_factory=dict)


INDEX = "bounded-retrieval index handbook/ faq.md --to my-index"
DEVICES = "bounded-retrieval index corpus.jsonl --relationships relationships.jsonl --to my-devices"
CALIBRATE = "bounded-retrieval calibrate my-collection/ --out calibration.json"
CALIBRATE_ALL = (
    "bounded-retrieval calibrate COLLECTION --out calibration.json [--threshold T ...] [--epsilon 0.02] "
    "[--confidence 0.95] [--final 0.2]"
)
PATH = '"HX-200 > maintained by > led by > managed by"'
QUESTION = '"How do I reset the HX-200?"'
COMPARED = ("fixed_lexical", "adaptive", f"{QUERIES} queries")
REUSED = ("180 unchanged", "0 embedded")

COMMANDS = {
    INDEX: Shown(("3 units",), "my-index/manifest.json"),
    ".venv/bin/bounded-retrieval index handbook/ --to my-index": Shown(("2 units",), "my-index/manifest.json"),
    f"bounded-retrieval ask {QUESTION} --index my-index": Shown(
        ("proxy_sufficient", "hold its button", "reset.md"), after=(INDEX,)
    ),
    "bounded-retrieval index --verify my-index": Shown(("3 units, every file as it was written",), after=(INDEX,)),
    "bounded-retrieval index --verify DIR": Shown(
        ("180 units, every file as it was written",), stands_for={"DIR": "my-devices"}
    ),
    "bounded-retrieval demo handbook/": Shown(("stands nowhere in the files", "care.txt")),
    DEVICES: Shown((*REUSED, "relationships"), "my-devices/manifest.json"),
    "bounded-retrieval index bounded_retrieval/data/device_support/corpus.jsonl --to my-devices": Shown(REUSED),
    f"bounded-retrieval ask --path {PATH} --index my-devices": Shown(("path_followed",), after=(DEVICES,)),
    "bounded-retrieval evaluate my-collection/ --out report": Shown(COMPARED, "report/report.html"),
    "bounded-retrieval evaluate queries.csv --index my-index": Shown(("2 queries",), after=(INDEX,)),
    CALIBRATE: Shown(("certified",), "calibration.json"),
    f"bounded-retrieval ask {QUESTION} --index my-index --calibration calibration.json": Shown(
        ("hold its button",), after=(INDEX, CALIBRATE)
    ),
    "bounded-retrieval evaluate COLLECTION [--split test] [--out DIR] [--json]": Shown(
        ('"policies"',), "report/report.json", adds="--no-plots"
    ),
    CALIBRATE_ALL: Shown(("certified",), "calibration.json"),
    "bounded-retrieval evaluate COLLECTION --calibration calibration.json --slice final": Shown(
        ("calibrated",), after=(CALIBRATE_ALL,)
    ),
    "bounded-retrieval evaluate hotpotqa_train100/": Shown(COMPARED),
    "bounded-retrieval evaluate musique_train100/": Shown(COMPARED),
    "bounded-retrieval evaluate scifact_train/": Shown(COMPARED),
    "bounded-retrieval evaluate device_support": Shown(COMPARED),
    "bounded-retrieval evaluate device_support --out report": Shown(COMPARED, "report/report.html"),
    "bounded-retrieval calibrate device_support --out calibration.json": Shown(("certified",), "calibration.json"),
    "bounded-retrieval stats runs.jsonl --plot reasons.svg": Shown(("chains: 40",), "reasons.svg"),
}
"""Documented runs of the command line. A command named without arguments, as in a sentence, only has to exist."""


@dataclass(frozen=True)
class Script:
    """A documented script: the arguments of a short run (``{}`` is a folder to write to), or the test that runs it."""

    short: str | None = None
    tested_by: str = ""
    out: str = ""


EXAMPLE = Script(tested_by="tests/test_examples.py")
SCRIPTS = {
    "benchmarks/ablation.py": Script(tested_by="tests/test_ablation_benchmark.py"),
    "benchmarks/adversarial_planners.py": Script("", out="| endless plausible questions | 3 | `depth_cap` | 3 | no |"),
    "benchmarks/build.py": Script("--units 300 --folder {}/build --out {}/build.json", out="| 300 |"),
    "benchmarks/indistinguishability.py": Script("10 --seconds 3", out="told apart"),
    "benchmarks/latency.py": Script("--sizes 200 --queries 3 --indexes {}/bench --out {}/latency.json", out="200"),
    "benchmarks/multihop.py": Script(tested_by="tests/test_multihop_benchmark.py"),
    "benchmarks/servers.py": Script(
        "--sizes 30 --backends embedded chroma --out {}/servers.json", out="| chroma | 30 |"
    ),
    "benchmarks/throughput.py": Script(tested_by="tests/test_speed_benchmarks.py"),
    "benchmarks/train_scorecard.py": Script("--collections {} --out {}/scorecard.json", out="wrote"),
    "docs/draw_graph.py": Script("{} svg", out="bounded-graph.svg"),
    "tools/bounds.py": Script("constraints", out="langgraph=="),
    "tools/licences.py": Script(tested_by="tests/test_supply_chain.py"),
    **{f"examples/{path.name}": EXAMPLE for path in (ROOT / "examples").glob("*.py")},
}


def plain(command: str) -> list[str]:
    """The words of a command: every option of a synopsis taken, without settings of the environment."""
    words = shlex.split(re.sub(r"[\[\]]| \.\.\.|\|.*", "", command))
    return [word for place, word in enumerate(words) if place or "=" not in word]


def by_program(*programs: str) -> list[str]:
    """Documented commands of these programs."""
    found = [(command, re.sub(r"^(?:[A-Z_]+=\S+ )*", "", command)) for command in DOCUMENTED]
    return sorted(command for command, bare in found if Path(bare.split()[0]).name in programs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where everything is written to."""
    return tmp_path_factory.mktemp("documented")


class Reader:
    """Types the commands of a page, in a folder of the page's own.

    Attributes:
        folder: where the pages' folders are.
        index: an index of the shipped collection.
    """

    def __init__(self, folder: Path, index: Path) -> None:
        self.folder, self.index = folder, index
        self.typed: dict[tuple[str, ...], str] = {}

    def world(self, command: str) -> Path:
        """The folder of the page that shows a command; notebooks repeat commands of the first page."""
        pages = [page for page in DOCUMENTED[command] if not page.endswith(".ipynb")]
        world = self.folder / min(pages or ["README.md"]).replace("/", "-")
        if not world.exists():
            world.mkdir()
            make_world(world, self.index)
        return world

    def type(self, command: str) -> str:
        """What a command says, after those that come before it; the same one is typed once."""
        shown = COMMANDS[command]
        for earlier in shown.after:
            self.type(earlier)
        stands_for = {**STANDS_FOR, **shown.stands_for}
        arguments = [stands_for.get(word, word) for word in plain(command)[1:]]
        arguments += shlex.split(f"{QUICK.get(arguments[0], '')} {shown.adds}")
        world = self.world(command)
        key = (str(world), *arguments)
        if key not in self.typed:
            self.typed[key] = self._run(world, arguments)
        return self.typed[key]

    def _run(self, world: Path, arguments: list[str]) -> str:
        said = io.StringIO()
        kept = {"XDG_CACHE_HOME": str(self.folder / "cache"), "COLUMNS": "200"}
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(said))
            stack.enter_context(contextlib.redirect_stderr(said))
            stack.enter_context(contextlib.chdir(world))
            stack.enter_context(mock.patch.dict(os.environ, kept))
            code = main(arguments)
        assert code == 0, said.getvalue()
        return said.getvalue()


@pytest.fixture(scope="module")
def reader(folder: Path, shipped_index: Path) -> Reader:
    """Somebody who does what the pages say."""
    return Reader(folder, shipped_index)


def is_named_only(command: str) -> bool:
    """Whether a command stands without arguments, as in a sentence about it."""
    return len(plain(command)) <= 2


def test_every_documented_command_is_known() -> None:
    """It is run by a test below or by one that is named; nothing in the tables is documented no more."""
    runs = [command for command in by_program("bounded-retrieval") if not is_named_only(command)]
    assert set(runs) == COMMANDS.keys()
    assert {plain(command)[1] for command in by_program("python", "python3")} == SCRIPTS.keys()
    programs = ("bounded-retrieval", "cd", "make", "pip", "python", "python3")
    assert set(DOCUMENTED) == set(by_program(*programs))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_run_of_the_command_line_does_what_the_page_says(reader: Reader, command: str) -> None:
    """It ends well, shows what its page says and leaves the file that it names."""
    said = " ".join(reader.type(command).split())
    for expected in COMMANDS[command].out:
        assert expected in said
    if COMMANDS[command].writes:
        assert (reader.world(command) / COMMANDS[command].writes).exists()


@pytest.mark.parametrize("command", by_program("bounded-retrieval"))
def test_a_documented_command_line_is_understood(command: str) -> None:
    """Subcommand and options exist; the exact words are parsed, with every option of a synopsis."""
    words = plain(command)[1:]
    if is_named_only(command):
        assert words[0] in subcommands()
    else:
        parsed = _parser().parse_args(["0.28" if word == "T" else word for word in words])
        assert callable(parsed.run)


def subcommands() -> dict[str, argparse.ArgumentParser]:
    """Parsers of the command line's subcommands."""
    (found,) = (each for each in _parser()._actions if isinstance(each, argparse._SubParsersAction))
    return dict(found.choices)


@pytest.mark.parametrize("command", by_program("python", "python3"))
def test_a_documented_script_takes_the_options_shown(command: str) -> None:
    """Each is declared by the script that stands there."""
    script, *arguments = plain(command)[1:]
    assert {word for word in arguments if re.match("--[a-z]", word)} <= options_of(script)


@pytest.fixture(scope="module")
def outputs() -> dict[str, str]:
    """What scripts have printed, by script."""
    return {}


@pytest.mark.parametrize("script", [name for name, script in SCRIPTS.items() if script.short is not None])
def test_a_documented_script_runs(script: str, folder: Path, outputs: dict[str, str]) -> None:
    """A short run from the repository root ends well, says what it should and writes where it was told to."""
    if script == "benchmarks/train_scorecard.py":
        for name in ("hotpotqa_train100", "musique_train100", "scifact_train"):
            write_collection(folder / name)
    short = SCRIPTS[script].short or ""
    finished = subprocess.run(
        [sys.executable, script, *shlex.split(short.replace("{}", str(folder)))],
        cwd=ROOT,
        env={**os.environ, "XDG_CACHE_HOME": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert SCRIPTS[script].out in finished.stdout
    for written in re.findall(r"\{\}/(\S+\.json)", short):
        assert json.loads((folder / written).read_text(encoding="utf-8"))
    outputs[script] = finished.stdout


@pytest.mark.parametrize("script", [name for name, script in SCRIPTS.items() if script.tested_by])
def test_a_script_that_is_run_elsewhere_is_run_there(script: str) -> None:
    """The test that is named names the script."""
    assert Path(script).stem in (ROOT / SCRIPTS[script].tested_by).read_text(encoding="utf-8")


@pytest.mark.parametrize("command", by_program("make"))
def test_a_documented_target_is_there(command: str) -> None:
    """The Makefile has something to do for it, and takes the settings shown; nothing is done here."""
    settings = [word for word in shlex.split(command) if "=" in word]
    targets = [word for word in plain(command)[1:] if "=" not in word]
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment |= dict(setting.split("=", 1) for setting in settings)
    dry = ["make", "--no-print-directory", "--dry-run", f"--assume-old={ROOT}/.venv/.installed", *targets]
    planned = subprocess.run(dry, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (planned.returncode, planned.stderr) == (0, "")
    assert planned.stdout.strip()
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    served = (ROOT / "bounded_retrieval" / "graph" / "studio.py").read_text(encoding="utf-8")
    assert all(setting.partition("=")[0] in text + served for setting in settings)


@pytest.mark.parametrize("command", by_program("pip", "cd"))
def test_what_is_installed_and_entered_is_there(command: str) -> None:
    """The package has the name and the extras that are installed; folders that are entered are in the repository."""
    program, *words = plain(command)
    if program == "cd":
        assert (ROOT / words[-1]).is_dir()
        return
    wanted = re.fullmatch(r"([\w-]+)(?:\[([\w-]+)\])?", re.search(r'install "?([^"\s]+)', command)[1])
    assert wanted[1] == PROJECT["name"]
    assert wanted[2] is None or wanted[2] in PROJECT["optional-dependencies"]


def test_the_output_shown_for_stats_is_the_real_one(reader: Reader) -> None:
    """Line by line, as far as a line is shown."""
    page = (ROOT / "docs" / "recursive-chain.md").read_text(encoding="utf-8")
    shown = re.search(r"^\$ (bounded-retrieval stats .*)\n((?:.*\n)*?)```", page, re.MULTILINE)
    real = [" ".join(line.split()) for line in reader.type(shown[1]).splitlines()]
    for line in shown[2].splitlines():
        expected = " ".join(line.split()).removesuffix("...").strip()
        assert any(each.startswith(expected) for each in real), line


def test_the_table_of_adversarial_planners_is_the_real_one(folder: Path, outputs: dict[str, str]) -> None:
    """Row by row."""
    script = "benchmarks/adversarial_planners.py"
    if script not in outputs:
        test_a_documented_script_runs(script, folder, outputs)
    assert outputs[script].strip() in (ROOT / "docs" / "recursive-chain.md").read_text(encoding="utf-8")


def shown_options() -> Iterator[tuple[str, str]]:
    """Options that stand alone in the text of a page, as in a sentence about them."""
    for page in PAGES:
        for option in re.findall(r"`(--[a-z][a-z-]+)[^`]*`", page.read_text(encoding="utf-8")):
            yield str(page.relative_to(ROOT)), option


OTHERS = {"--no-reload", "--n-jobs-per-worker"}
"""Options of LangGraph's development server, which the Makefile gives."""


def test_every_option_that_a_page_names_exists() -> None:
    """Of the command line, of a benchmark, or of the server that the Makefile starts."""
    known = {option for parser in subcommands().values() for each in parser._actions for option in each.option_strings}
    known |= {option for script in SCRIPTS if not script.startswith("examples") for option in options_of(script)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert sorted(each for each in shown_options() if each[1] not in known | OTHERS) == []
    assert all(option in makefile for option in OTHERS)


def test_advice_in_error_messages_is_good() -> None:
    """Commands that the package's own texts recommend exist, and so do the extras that they install."""
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "bounded_retrieval").rglob("*.py")]
    advised = set(re.findall(r"bounded-retrieval ([a-z]+) [A-Z-]", "\n".join(texts)))
    extras = set(re.findall(r"bounded-retrieval\[([a-z-]+)\]", "\n".join(texts)))
    assert advised == {"index"}
    assert advised <= subcommands().keys()
    # What the other two need is there as soon as something can be asked of it: a tracer, and Chroma's own client.
    assert extras == PROJECT["optional-dependencies"].keys() - {"chroma-server", "otel"}


SAMPLE = """
Run `make demo`, or `bounded-retrieval ask X`; `make` alone is none, nor is `langgraph.json`.

```
$ pip install thing      # a comment
output of it
```

```python
make = "make demo"
```

    python examples/one.py      # needs more
"""


def test_commands_are_found_wherever_they_stand() -> None:
    """A control: in text, in blocks and indented, without prompts and comments; other languages are none."""
    assert list(commands_of(SAMPLE)) == [
        "pip install thing",
        "make demo",
        "bounded-retrieval ask X",
        "python examples/one.py",
    ]
