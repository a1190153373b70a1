from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from sample_report import kitchen_report, kitchen_timings

from bounded_retrieval.errors import ConfigurationError, RequestError, SourceError
from bounded_retrieval.evaluation.plots import PICTURES
from bounded_retrieval.evaluation.report import check_plots, check_report_folder, write_report
from bounded_retrieval.evaluation.writing import check_file, check_folder, write_bytes


def relative(paths: list[Path], folder: Path) -> list[str]:
    """Paths as seen from a folder."""
    return [path.relative_to(folder).as_posix() for path in paths]


def everything(folder: Path) -> dict[str, bytes]:
    """All files below a folder, with their contents."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_report_is_a_folder_of_files(tmp_path):
    """JSON, times, Markdown, pictures and a page; all of them are returned, and nothing else is left behind."""
    report, folder = kitchen_report(), tmp_path / "new" / "report"
    written = write_report(report, folder, timings=kitchen_timings())
    drawn = [f"plots/{name}.{kind}" for name in PICTURES for kind in ("png", "svg")]
    assert relative(written, folder) == ["report.json", "timings.json", "report.md", *drawn, "report.html"]
    assert sorted(everything(folder)) == sorted(relative(written, folder))
    assert json.loads((folder / "report.json").read_text(encoding="utf-8")) == report
    assert json.loads((folder / "timings.json").read_text(encoding="utf-8")) == kitchen_timings()
    assert "](plots/policy_quality.png)" in (folder / "report.md").read_text(encoding="utf-8")
    html = (folder / "report.html").read_text(encoding="utf-8")
    assert html.startswith("<!DOCTYPE html>")
    assert html.count("data:image/svg+xml") == len(PICTURES)


def test_the_same_report_gives_the_same_files(tmp_path):
    """Written over the old files and elsewhere, every byte is the same."""
    write_bytes(tmp_path / "a", {"report.json": b"old", "report.html": b"old"})
    for name in ("a", "b"):
        write_report(kitchen_report(), tmp_path / name)
    assert everything(tmp_path / "a") == everything(tmp_path / "b")


def leave_former(folder: Path) -> None:
    """What an earlier report with times and pictures left."""
    write_bytes(folder, {"timings.json": b"{}"})
    write_bytes(folder / "plots", {f"{name}.{kind}": b"old" for name in PICTURES for kind in ("png", "svg")})


def test_files_of_an_earlier_report_go_and_others_stay(tmp_path):
    """Without times and pictures the former ones are removed; what is not ours is not touched."""
    leave_former(tmp_path)
    (tmp_path / "plots" / "mine.png").write_bytes(b"mine")
    (tmp_path / "notes.txt").write_bytes(b"notes")
    written = write_report(kitchen_report(), tmp_path, plots=False)
    assert relative(written, tmp_path) == ["report.json", "report.md", "report.html"]
    kept = {"plots/mine.png": b"mine", "notes.txt": b"notes"}
    assert {name: content for name, content in everything(tmp_path).items() if not name.startswith("report.")} == kept
    assert "plots/" not in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_an_emptied_folder_of_pictures_goes_too(tmp_path):
    """Where only our pictures were, their folder is removed with them."""
    leave_former(tmp_path)
    write_report(kitchen_report(), tmp_path, plots=False)
    assert not (tmp_path / "plots").exists()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), r"^report\.queries\[2\]\.runs\.adaptive\.ndcg@4: must be finite \(got nan\)$"),
        (float("-inf"), r"adaptive\.ndcg@4: must be finite \(got -inf\)$"),
        (np.int64(1), r"adaptive\.ndcg@4: JSON has no form for it \(got int64\)$"),
    ],
)
def test_what_json_cannot_hold_is_refused_by_its_place(tmp_path, value, message):
    """One line names the place and the value, and nothing is written."""
    report = kitchen_report()
    report["queries"][2]["runs"]["adaptive"]["ndcg@4"] = value
    with pytest.raises(RequestError, match=message):
        write_report(report, tmp_path / "out", plots=False)
    assert not (tmp_path / "out").exists()


def test_times_are_checked_as_the_report_is(tmp_path):
    """A time that is no number is refused by its place."""
    with pytest.raises(RequestError, match=r"^timings\.seconds\.live: must be finite"):
        write_report(kitchen_report(), tmp_path / "out", timings={"seconds": {"live": float("inf")}}, plots=False)


def test_foreign_text_survives_in_the_json(tmp_path):
    """Other scripts are written as they are, and a lone surrogate comes back as it was."""
    report = kitchen_report()
    report["queries"][0]["text"] = "\u6f22\u5b57 \ud800 \u202e"
    write_report(report, tmp_path, plots=False)
    content = (tmp_path / "report.json").read_bytes()
    assert "\u6f22\u5b57".encode() in content
    assert json.loads(content)["queries"][0]["text"] == report["queries"][0]["text"]


def test_without_matplotlib_a_report_needs_plots_off(tmp_path, monkeypatch):
    """The error names the extra before anything is written; without pictures the report can be had."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r"bounded-retrieval\[plots\]"):
        check_plots()
    with pytest.raises(ConfigurationError, match=r"bounded-retrieval\[plots\]"):
        write_report(kitchen_report(), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert write_report(kitchen_report(), tmp_path / "out", plots=False)


@pytest.mark.parametrize("place", ["file", "file/below", "link"])
def test_a_file_is_no_folder_to_write_to(tmp_path, place):
    """A file, something below a file, and a link to nowhere are refused in one line; the file stays."""
    (tmp_path / "file").write_bytes(b"mine")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for attempt in (check_folder, lambda folder: write_report(kitchen_report(), folder, plots=False)):
        with pytest.raises(SourceError, match="not a folder; a folder to write to is expected") as caught:
            attempt(tmp_path / place)
        assert "\n" not in str(caught.value)
    with pytest.raises(SourceError, match=str(tmp_path / place.split("/", maxsplit=1)[0])):
        write_bytes(tmp_path / place, {"a": b""})
    assert (tmp_path / "file").read_bytes() == b"mine"


def test_checking_a_folder_creates_nothing(tmp_path):
    """A folder that is there, or can be created, passes, and is not created."""
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "b")
    check_folder("relative/and/new")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_to_is_refused(tmp_path, monkeypatch):
    """The folder is named."""
    monkeypatch.setattr("os.access", lambda *_: False)
    with pytest.raises(SourceError, match=f"^{tmp_path}: cannot be written to$"):
        check_folder(tmp_path / "new")


def test_pictures_that_could_not_be_written_are_said_beforehand(tmp_path):
    """Their folder is named, where there are to be any; nothing is created."""
    (tmp_path / "plots").write_bytes(b"mine")
    with pytest.raises(SourceError, match=f"^{tmp_path}/plots: not a folder; a folder to write to is expected$"):
        check_report_folder(tmp_path, plots=True)
    check_report_folder(tmp_path, plots=False)
    assert everything(tmp_path) == {"plots": b"mine"}


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_what_is_no_file_is_not_replaced_by_one(tmp_path, kind):
    """A pipe, or a link to a device, is refused by name."""
    path = tmp_path / "c.json"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/null")
    with pytest.raises(SourceError, match=f"^{path}: not a regular file$"):
        check_file(path, "--out")


def test_a_name_too_long_for_a_file_is_one_line(tmp_path):
    """With the operating system's reason, before anything is done for the file."""
    with pytest.raises(SourceError, match=r"json: cannot be written \(File name too long\)$"):
        check_file(tmp_path / f"{'n' * 300}.json", "--out")


def test_files_are_written_whole_or_not_at_all(tmp_path):
    """New and old files get their contents; one that cannot be replaced is named and leaves nothing beside it."""
    (tmp_path / "old").write_bytes(b"before")
    (tmp_path / "folder").mkdir()
    assert write_bytes(tmp_path, {"old": b"after", "new": b""}) == [tmp_path / "old", tmp_path / "new"]
    with pytest.raises(SourceError, match=r"folder: cannot be written \(Is a directory\)"):
        write_bytes(tmp_path, {"folder": b"x"})
    assert everything(tmp_path) == {"old": b"after", "new": b""}
