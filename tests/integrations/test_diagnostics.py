"""The ready sink for protected records, and what the controller does with any sink."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from langchain_core.documents import Document

from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.integrations.diagnostics import JsonlDiagnostics
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

RAW = "raw-error-7f3"
UNITS = [
    Document(id="open", page_content="The battery."),
    Document(id="secret-1", page_content="The secret battery."),
]


@pytest.fixture
def umask() -> Iterator[None]:
    """A process whose umask takes nothing away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> str:
    """A file's permissions, as written with chmod."""
    return f"{stat.S_IMODE(path.stat().st_mode):04o}"


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The records of a file: every line is JSON, ends with a line break, and says when and what."""
    text = path.read_text(encoding="utf-8")
    assert not text or text.endswith("\n")
    records = [json.loads(line, parse_constant=pytest.fail) for line in text.split("\n")[:-1]]
    for record in records:
        assert dt.datetime.fromisoformat(record["at"]).utcoffset() == dt.timedelta(0)
        assert isinstance(record["event"], str)
    return records


def written(tmp_path: Path, **record: Any) -> dict[str, Any]:
    """What the file holds of one record."""
    with JsonlDiagnostics(tmp_path / "d.jsonl") as sink:
        sink({"event": "e", **record})
    (line,) = lines_of(tmp_path / "d.jsonl")
    return line


def fling(error: BaseException) -> None:
    """Raise an error."""
    raise error


def raised(error: BaseException) -> BaseException:
    """An error that was raised somewhere, so that it has a traceback."""
    with pytest.raises(type(error)) as caught:
        fling(error)
    return caught.value


def guarded(**options: Any) -> Any:
    """A graph with one hidden unit."""
    view = EligibilityView(view_id="v", version="1", allowed=lambda unit_ids: {"open"} & set(unit_ids))
    given = {"eligibility": lambda _: view, "policy": "fixed_lexical", **options}
    return create_bounded_retrieval(ScriptedSearcher(UNITS, "lexical"), **given).compile()


# The file


@pytest.mark.usefixtures("umask")
def test_a_new_file_is_its_owners_alone(tmp_path: Path) -> None:
    """Mode 0600 whatever the umask."""
    JsonlDiagnostics(tmp_path / "d.jsonl").close()
    assert mode_of(tmp_path / "d.jsonl") == "0600"


@pytest.mark.parametrize("mode", [0o644, 0o666, 0o777, 0o200])
def test_an_existing_file_is_made_its_owners_alone(tmp_path: Path, mode: int) -> None:
    """What stood in it stays, and records are added after it."""
    path = tmp_path / "d.jsonl"
    path.write_text('{"at": "2026-01-01T00:00:00+00:00", "event": "old"}\n', encoding="utf-8")
    path.chmod(mode)
    with JsonlDiagnostics(path) as sink:
        assert mode_of(path) == "0600"
        sink({"event": "new"})
    assert [record["event"] for record in lines_of(path)] == ["old", "new"]


def link(path: Path) -> Path:
    """A link to a file that is there."""
    (path / "real").write_text("kept", encoding="utf-8")
    (path / "d.jsonl").symlink_to(path / "real")
    return path / "d.jsonl"


def dangling(path: Path) -> Path:
    """A link to nothing."""
    (path / "d.jsonl").symlink_to(path / "nowhere")
    return path / "d.jsonl"


def folder(path: Path) -> Path:
    """A folder."""
    (path / "d.jsonl").mkdir()
    return path / "d.jsonl"


def missing(path: Path) -> Path:
    """A file in a folder that is not there."""
    return path / "nowhere" / "d.jsonl"


def below_a_file(path: Path) -> Path:
    """A file below what is no folder."""
    (path / "real").write_text("kept", encoding="utf-8")
    return path / "real" / "d.jsonl"


def device(_: Path) -> Path:
    """Something that is no regular file."""
    return Path(os.devnull)


@pytest.mark.parametrize("make", [link, dangling, folder, missing, below_a_file, device])
def test_what_is_no_file_of_its_own_is_refused(tmp_path: Path, make: Any) -> None:
    """In one line that names the path; nothing is made or changed."""
    path = make(tmp_path)
    mode = Path(os.devnull).stat().st_mode
    with pytest.raises(ConfigurationError) as caught:
        JsonlDiagnostics(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert len(str(caught.value)) > len(str(path)) + 5
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "nowhere").exists()
    assert not (tmp_path / "real").exists() or (tmp_path / "real").read_text(encoding="utf-8") == "kept"
    assert Path(os.devnull).stat().st_mode == mode


def test_a_named_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    """It is no regular file either."""
    path = tmp_path / "d.jsonl"
    os.mkfifo(path)
    caught: list[BaseException] = []

    def attempt() -> None:
        try:
            JsonlDiagnostics(path)
        except BaseException as error:  # noqa: BLE001 - looked at below
            caught.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(0.3)
    is_waiting = thread.is_alive()
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))  # lets it go
    thread.join(5)
    assert not is_waiting
    assert isinstance(caught[0], ConfigurationError)


def test_a_file_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that exists must belong to who runs this, and is left as it was."""
    path = tmp_path / "d.jsonl"
    path.write_text("kept", encoding="utf-8")
    path.chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(ConfigurationError, match="another user"):
        JsonlDiagnostics(path)
    assert (mode_of(path), path.read_text(encoding="utf-8")) == ("0644", "kept")


def open_files() -> int:
    """How many files this process has open; 0 where the system does not say."""
    held = Path("/proc/self/fd")
    return len(list(held.iterdir())) if held.is_dir() else 0


def test_a_refusal_leaves_no_file_open(tmp_path: Path) -> None:
    """However often it is tried."""
    (tmp_path / "d.jsonl").mkdir()
    before = open_files()
    for path in (tmp_path / "d.jsonl", Path(os.devnull)):
        for _ in range(20):
            with pytest.raises(ConfigurationError):
                JsonlDiagnostics(path)
    assert open_files() <= before


# The records


def test_records_stand_one_a_line_in_order(tmp_path: Path) -> None:
    """Whatever characters are in them."""
    texts = ["plain", 'with "quotes"', "two\nlines\r\n", "\u2028\u2029", "Ä\u6771", "\x00\ud800", ""]
    with JsonlDiagnostics(str(tmp_path / "d.jsonl")) as sink:
        for text in texts:
            sink({"event": "e", "text": text, text: 1})
    records = lines_of(tmp_path / "d.jsonl")
    assert [record["text"] for record in records] == [*texts[:5], "\ufffd\ufffd", ""]


def test_a_record_says_when_it_was_written(tmp_path: Path) -> None:
    """In UTC."""
    at = dt.datetime.fromisoformat(written(tmp_path)["at"])
    assert abs(dt.datetime.now(dt.UTC) - at) < dt.timedelta(minutes=1)


@pytest.mark.parametrize(
    "error", [ValueError("bad\nvalue\ud800"), KeyError("k"), KeyboardInterrupt(), OSError(2, "gone")]
)
def test_an_error_is_written_with_its_traceback(tmp_path: Path, error: BaseException) -> None:
    """Type, message and where it came from."""
    found = written(tmp_path, error=raised(error))["error"]
    assert set(found) == {"type", "message", "traceback"}
    assert found["type"] == type(error).__name__
    assert found["message"] == str(error).replace("\ud800", "\ufffd")
    assert "in fling" in found["traceback"]


def test_the_cause_of_an_error_is_written_too(tmp_path: Path) -> None:
    """A traceback holds what was raised from what."""
    error = RuntimeError("outer")
    error.__cause__ = raised(ValueError("inner"))
    assert "inner" in written(tmp_path, error=raised(error))["error"]["traceback"]


class Unprintable(Exception):  # noqa: N818 - named for what it is
    """An error that cannot say what it is."""

    def __str__(self) -> str:
        raise RuntimeError(RAW)


def test_an_error_that_cannot_be_printed_is_written(tmp_path: Path) -> None:
    """Its type and traceback at least."""
    assert written(tmp_path, error=raised(Unprintable()))["error"]["type"] == "Unprintable"


class Odd:
    """An object that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError(RAW)


def test_values_without_a_json_form_are_written_as_text(tmp_path: Path) -> None:
    """Nothing that a record may hold keeps its line from being JSON."""
    circle: list[Any] = []
    circle.append(circle)
    found = written(
        tmp_path,
        sets={"b", "a"},
        pair=(1, None),
        number=np.int64(7),
        large=2**70,
        huge=10**5000,
        infinite=float("inf"),
        nothing=float("nan"),
        day=dt.date(2026, 1, 2),
        kind=object,
        data=b"\xff",
        odd=Odd(),
        circle=circle,
        deep={"a": {1: [{"b": ValueError("inner")}]}},
        stamp={"view_id": "v"},
    )
    assert (found["sets"], found["pair"], found["number"], found["large"]) == (["a", "b"], [1, None], 7, str(2**70))
    assert (found["infinite"], found["nothing"], found["day"]) == ("inf", "nan", "2026-01-02")
    assert (found["odd"], found["stamp"]) == ("<Odd>", {"view_id": "v"})
    assert found["deep"] == {"a": {"1": [{"b": "inner"}]}}


def test_a_record_is_not_changed_by_writing_it(tmp_path: Path) -> None:
    """Neither it nor what it holds."""
    record = {"event": "e", "ids": ("a",), "error": ValueError("x"), "inner": {"k": {"b"}}}
    before = dict(record)
    with JsonlDiagnostics(tmp_path / "d.jsonl") as sink:
        sink(record)
    assert record == before


def test_threads_write_whole_lines(tmp_path: Path) -> None:
    """Records of several threads and of several sinks on one file stand each on a line of its own, none is lost."""
    path = tmp_path / "d.jsonl"
    sinks = [JsonlDiagnostics(path), JsonlDiagnostics(path)]
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait(5)
        for turn in range(125):
            sinks[number % 2]({"event": "e", "who": number, "turn": turn, "text": "x" * (turn * 40)})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    for sink in sinks:
        sink.close()
    records = lines_of(path)
    assert len(records) == 1_000
    assert {(record["who"], record["turn"]) for record in records} == {(w, t) for w in range(8) for t in range(125)}
    for who in range(8):
        turns = [record["turn"] for record in records if record["who"] == who]
        assert turns == sorted(turns)


def test_a_short_write_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system takes a line in parts, all of it is written."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda file, data: real(file, data[:7]))
    assert written(tmp_path, text="x" * 100)["text"] == "x" * 100


def test_a_closed_sink_says_so(tmp_path: Path) -> None:
    """Closing may be repeated; writing afterwards raises, in one line that names the file, and writes nothing."""
    path = tmp_path / "d.jsonl"
    with JsonlDiagnostics(path) as sink:
        sink({"event": "e"})
        assert repr(sink) == f"JsonlDiagnostics({str(path)!r})"
    sink.close()
    with pytest.raises(ValueError, match="closed") as caught:
        sink({"event": "late"})
    assert str(caught.value).startswith(f"{path}: ")
    assert len(lines_of(path)) == 1


# In a graph


def test_a_run_writes_its_records(tmp_path: Path) -> None:
    """What was left out, what was kept, under which view and when, and nothing of it is in the packet."""
    with JsonlDiagnostics(tmp_path / "d.jsonl") as sink:
        result = guarded(diagnostics=sink).invoke({"query": "battery"})
    removed, rechecked = lines_of(tmp_path / "d.jsonl")
    assert (removed["event"], removed["unit_ids"]) == ("ineligible_removed", ["secret-1"])
    assert (rechecked["event"], rechecked["kept"], rechecked["view_id"]) == ("rechecked", ["open"], "v")
    assert removed["query_id"] == rechecked["query_id"] == EvidencePacket.from_result(result).query_id
    assert "secret" not in repr(result)


def test_a_failed_search_is_written_with_its_traceback(tmp_path: Path) -> None:
    """The raw error stands in the file and nowhere else."""
    searcher = FailingSearcher(ConnectionError(RAW))
    with JsonlDiagnostics(tmp_path / "d.jsonl") as sink:
        result = create_bounded_retrieval(searcher, diagnostics=sink).compile().invoke({"query": "battery"})
    (record,) = lines_of(tmp_path / "d.jsonl")
    assert (record["event"], record["channel"], record["error"]["type"]) == (
        "search_failed",
        "lexical",
        "ConnectionError",
    )
    assert RAW in record["error"]["traceback"]
    assert RAW not in repr(result)


class FullDisk(Exception):  # noqa: N818 - named for what happens
    """An error whose text repeats the record."""


def test_a_sink_that_raises_ends_no_run(caplog: pytest.LogCaptureFixture) -> None:
    """The result is that of a run with a sink that works; the log names the kind of error and nothing of the record."""
    caplog.set_level(logging.DEBUG)

    def sink(record: dict[str, Any]) -> None:
        raise FullDisk(f"{RAW} {record}")

    result = guarded(diagnostics=sink).invoke({"query": "battery"})
    assert result == guarded(diagnostics=lambda _: None).invoke({"query": "battery"})
    ours = [record for record in caplog.records if record.name.startswith("bounded_retrieval")]
    assert [record.getMessage() for record in ours] == ["the diagnostics sink failed: FullDisk"] * 2
    assert all(record.exc_info is None for record in ours)
    assert [word for word in ("secret", RAW, "unit_ids") if word in caplog.text] == []


def test_a_closed_sink_ends_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file that was closed too early costs the records, not the run."""
    sink = JsonlDiagnostics(tmp_path / "d.jsonl")
    sink.close()
    assert guarded(diagnostics=sink).invoke({"query": "battery"})["stop_reason"] == "policy_complete"
    assert lines_of(tmp_path / "d.jsonl") == []
    assert {record.getMessage() for record in caplog.records} == {"the diagnostics sink failed: ValueError"}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_process_passes_through_a_sink(kind: type[BaseException]) -> None:
    """An interrupt while a record is written is not swallowed."""

    def sink(_: Any) -> None:
        raise kind

    with pytest.raises(kind):
        guarded(diagnostics=sink).invoke({"query": "battery"})


def failing_resolver(_: Any) -> Any:
    """A resolver that raises."""
    raise RuntimeError(RAW)


@pytest.mark.parametrize("options", [{}, {"eligibility": failing_resolver}])
def test_without_diagnostics_nothing_is_written_or_logged(
    options: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, capfd: Any
) -> None:
    """Protected records then go nowhere at all."""
    caplog.set_level(logging.DEBUG)
    monkeypatch.chdir(tmp_path)
    guarded(**options).invoke({"query": "battery"})
    assert [record for record in caplog.records if record.name.startswith("bounded_retrieval")] == []
    assert [word for word in ("secret", RAW) if word in caplog.text] == []
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
