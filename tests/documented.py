"""The commands that the documentation shows, and small real data to run them over."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from bounded_retrieval.contracts.chain import ChainLimits, ChainResult, ChainUsage
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.ingest import read_documents

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES += sorted((ROOT / "benchmarks").glob("*.md"))
SCRIPTS = [
    path for folder in ("benchmarks", "docs", "examples", "tools") for path in sorted((ROOT / folder).glob("*.py"))
]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

FENCE = re.compile(r"^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(?P<text>[^`]+)\1")
COMMAND = re.compile(
    r"(?:\$ )?(?P<command>(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(?:bounded-retrieval|cd|git|langgraph|make|pip|python3?|uv)\b[ ].+)"
)
SHELL = {"", "bash", "console", "sh", "shell", "text"}


def commands_of(text: str) -> Iterator[str]:
    """The commands in Markdown or in a docstring: lines of blocks that are no other language, and code in the text."""
    for block in FENCE.finditer(text):
        if block["language"] in SHELL:
            yield from _commands(block["text"].splitlines())
    beside = FENCE.sub("", text)
    yield from _commands(" ".join(span["text"].split()) for span in SPAN.finditer(beside))
    yield from _commands(line.strip() for line in beside.splitlines() if line.startswith("    "))


def _commands(lines: Iterator[str] | list[str]) -> Iterator[str]:
    for line in lines:
        found = COMMAND.fullmatch(line.strip())
        if found:
            yield re.sub(r"\s+# .*", "", found["command"]).strip()


def documented() -> dict[str, set[str]]:
    """Every documented command, with the files that show it."""
    texts = {path: path.read_text(encoding="utf-8") for path in PAGES}
    texts |= {path: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for path in SCRIPTS}
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        texts[path] = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    found: dict[str, set[str]] = {}
    for path, text in texts.items():
        for command in commands_of(text):
            found.setdefault(command, set()).add(str(path.relative_to(ROOT)))
    return found


def options_of(script: str) -> set[str]:
    """Options that a script declares."""
    calls = [node for node in ast.walk(ast.parse((ROOT / script).read_text(encoding="utf-8"))) if is_option(node)]
    return {word.value for call in calls for word in call.args if isinstance(word, ast.Constant)}


def is_option(node: ast.AST) -> bool:
    """Whether this declares an argument of a script."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument"


HANDBOOK = {
    "handbook/reset.md": "# HX-200\n\n## Reset\n\nTo reset the HX-200, hold its button for ten seconds.\n",
    "handbook/care.txt": "Clean the HX-200 with a dry cloth and store it above freezing.\n",
    "faq.md": "# Questions\n\n## Where is the serial number?\n\nUnder the battery cover of the HX-200.\n",
}
THINGS = {
    "pump": "the machine that moves water",
    "gauge": "the dial that shows pressure",
    "charger": "the box that refills batteries",
    "motor": "the engine that turns the belt",
    "fan": "the blades that blow cold air",
    "heater": "the thing that keeps the room warm",
    "printer": "the machine that puts ink on paper",
    "lamp": "the bulb over the desk",
}
"""What the collection is about, each in its own word and in others."""

DEEDS = ("clean", "mount", "test", "store", "order", "label")
QUERIES = len(THINGS) * (len(DEEDS) + 1)


def write_collection(folder: Path) -> None:
    """A BEIR folder: a unit for each thing, asked for by its own word and, once, by others."""
    (folder / "qrels").mkdir(parents=True)
    told = f"To {', '.join(DEEDS[:-1])} or {DEEDS[-1]} the"
    units = [{"_id": thing, "title": thing, "text": f"{told} {thing}, switch it off first."} for thing in THINGS]
    asked = [(f"{deed}-{thing}", f"How do I {deed} the {thing}?", thing) for deed in DEEDS for thing in THINGS]
    asked += [(f"other-{thing}", f"Care for {words}", thing) for thing, words in THINGS.items()]
    queries = [{"_id": name, "text": text} for name, text, _ in asked]
    for name, records in {"corpus": units, "queries": queries}.items():
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    judged = "".join(f"{name}\t{thing}\t1\n" for name, _, thing in asked)
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")


def write_runs(file: Path) -> None:
    """Forty recorded chains, nine of which the depth cap ended."""

    def line(number: int) -> str:
        is_resolved = number % 40 >= 9
        result = ChainResult(
            query=f"question {number}",
            query_id=f"q-{number}",
            stop_reason=StopReason.NO_NEXT_QUERY if is_resolved else StopReason.DEPTH_CAP,
            resolved=is_resolved,
            unresolved=() if is_resolved else ("which dock",),
            trail=(),
            documents=(),
            limits=ChainLimits(),
            usage=ChainUsage(calls=1),
        )
        return result.model_dump_json() + "\n"

    file.write_text("".join(map(line, range(40))), encoding="utf-8")


def make_world(folder: Path, shipped_index: Path) -> None:
    """What the documents say that a reader has, in one folder; an index of the shipped collection is at hand."""
    for name, text in HANDBOOK.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    write_collection(folder / "my-collection")
    write_runs(folder / "runs.jsonl")
    ids = {str(unit.metadata["source"]): unit.id for unit in read_documents([folder / "handbook", folder / "faq.md"])}
    asked = {"How do I reset the HX-200?": ids["reset.md"], "Where is the serial number?": ids["faq.md"]}
    rows = "".join(f"{query},{unit_id}\n" for query, unit_id in asked.items())
    (folder / "queries.csv").write_text(f"query,relevant_ids\n{rows}", encoding="utf-8")
    shipped = ROOT / "bounded_retrieval" / "data" / "device_support"
    for name in ("corpus.jsonl", "relationships.jsonl"):
        (folder / name).symlink_to(shipped / name)
    shutil.copytree(shipped_index, folder / "my-devices")
