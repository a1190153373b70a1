from __future__ import annotations

from pathlib import Path

import pytest

from bounded_retrieval.cli import main
from bounded_retrieval.contracts.json_objects import parse_object
from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation.collections import load_collection

EMPTY = {
    "PATH": ["index", "", "--to", "x"],
    "--to": ["index", "a.md", "--to", ""],
    "--verify": ["index", "--verify", ""],
    "--relationships": ["index", "a.md", "--to", "x", "--relationships", ""],
    "--index": ["ask", "q", "--index", ""],
    "--calibration": ["ask", "q", "--index", "x", "--calibration", ""],
    "--diagnostics": ["ask", "q", "--index", "x", "--diagnostics", ""],
    "PATH of demo": ["demo", ""],
    "FILE": ["stats", ""],
    "--plot": ["stats", "a.json", "--plot", ""],
    "COLLECTION": ["evaluate", ""],
    "--queries": ["evaluate", "device_support", "--queries", ""],
    "--qrels": ["evaluate", "device_support", "--qrels", ""],
    "--out": ["calibrate", "device_support", "--out", ""],
    "--out of evaluate": ["evaluate", "device_support", "--out", ""],
}


@pytest.mark.parametrize(("name", "arguments"), EMPTY.items(), ids=EMPTY.keys())
def test_an_empty_path_is_not_the_current_folder(
    name: str, arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, one line that names the argument, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(arguments)
    captured = capsys.readouterr()
    command, argument = f"bounded-retrieval {arguments[0]}", name.partition(" ")[0]
    assert (end.value.code, captured.out) == (2, "")
    assert captured.err == f"{command}: argument {argument}: a path is expected (got '') (see {command} --help)\n"
    assert list(tmp_path.iterdir()) == []


def test_an_empty_source_is_no_collection() -> None:
    """In Python too."""
    with pytest.raises(RequestError, match=r"^source: is empty; a folder, a file or a data set is expected$"):
        load_collection("")


@pytest.mark.parametrize("query", ["", "  ", "x" * 20_001])
def test_the_demo_checks_its_requests_before_it_indexes(
    query: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line and nothing else, whichever of the requests it is."""
    monkeypatch.setattr("bounded_retrieval.demo.build_index", None)
    assert main(["demo", "--ask", "pump", "--ask", query]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert captured.err.startswith("bounded-retrieval: --ask.query: ")


def test_every_reader_names_the_same_place_of_what_is_no_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The column behind the last character, whether or not a line end follows."""
    path = tmp_path / "cut.jsonl"
    path.write_text('{"id":"a","text":"x"\n', encoding="utf-8")
    target = ["--to", str(tmp_path / "index")]
    told = []
    for arguments in (["index", str(path), *target], ["stats", str(path)]):
        assert main(arguments) == 2
        told.append(capsys.readouterr().err.splitlines()[-1])
    assert main(["ask", "q", "--index", "x", "--relationships", str(path)]) == 2
    told.append(capsys.readouterr().err.strip())
    assert set(told) == {f"bounded-retrieval: {path}, line 1: not JSON (Expecting ',' delimiter, column 21)"}


@pytest.mark.parametrize("end", ["", "\n", "\r\n", " \t\n\n"])
def test_a_place_in_json_does_not_depend_on_what_follows_it(end: str) -> None:
    """A text of several lines has the line too."""
    with pytest.raises(SourceError, match=r"^f: not JSON \(Expecting ',' delimiter, column 8\)$"):
        parse_object(f'{{"a": 1{end}', "f")
    with pytest.raises(SourceError, match=r"^f: not JSON \(Expecting ',' delimiter, line 2, column 8\)$"):
        parse_object(f'{{\n "a": 1{end}', "f")
    assert parse_object(f'{{"a": 1}}{end}', "f") == {"a": 1}
