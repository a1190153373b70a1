from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bounded_retrieval.cli import main

HIT = "How do I pair the HX-210 probe with the GT-40 gateway?"


def _ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["ask", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def _packet(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    code, out, _ = _ask(capsys, *arguments, "--json")
    assert code == 0
    return json.loads(out)


def test_ask_json_prints_a_packet_and_nothing_else(shipped_index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output under --json is one JSON packet whose usage is within its limits."""
    packet = _packet(capsys, HIT, "--index", str(shipped_index))
    assert packet["stop_reason"] == "proxy_sufficient"
    assert packet["items"][0]["unit_id"] == "hx-210-pairing"
    for name in ("calls", "iterations", "rows", "reads", "units", "chars"):
        assert packet["usage"][name] <= packet["limits"][f"max_{name}"]


def test_ask_shows_reason_cost_missing_and_source(shipped_index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The readable answer says what stopped it, what it does not mean, what it cost, and where the evidence is from."""
    code, out, _ = _ask(capsys, HIT, "--index", str(shipped_index), "--trace")
    assert code == 0
    for expected in ("proxy_sufficient (provisional)", "1 of 2 calls (0 dense)", "manuals/hx-210.md", "decision trace"):
        assert expected in out


def test_the_threshold_changes_the_calls_made(shipped_index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At threshold 0 a partly covered request stops after one call, at 1 it makes two."""
    query = "How do I put a SIM card into the GT-40?"
    low = _packet(capsys, query, "--index", str(shipped_index), "--threshold", "0")
    high = _packet(capsys, query, "--index", str(shipped_index), "--threshold", "1")
    assert (low["usage"]["calls"], high["usage"]["calls"]) == (1, 2)
    assert low["missing_terms"] == ["put"]


def test_policies_and_limits_are_taken_from_the_command_line(
    shipped_index: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--policy decides which searches run, --limit how much they may spend."""
    fixed = _packet(capsys, HIT, "--index", str(shipped_index), "--policy", "fixed_dense")
    assert (fixed["usage"]["calls"], fixed["usage"]["dense_calls"], fixed["stop_reason"]) == (1, 1, "policy_complete")
    small = _packet(capsys, HIT, "--index", str(shipped_index), "--limit", "max_rows=1", "--limit", "max_units=1")
    assert small["usage"]["rows"] == len(small["items"]) == 1


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([" "], "query"),
        (["x" * 20_001], "20000"),
        ([HIT, "--threshold", "1.5"], "threshold"),
        ([HIT, "--threshold", "much"], "threshold"),
        ([HIT, "--policy", "greedy"], "policy"),
        ([HIT, "--limit", "max_rows=-1"], "max_rows"),
        ([HIT, "--limit", "max_rows=1000"], "200"),
        ([HIT, "--limit", "max_rows=7"], "limit 6"),
        ([HIT, "--limit", "max_rows=many"], "max_rows"),
        ([HIT, "--limit", "rows"], "NAME=N"),
        ([HIT, "--limit", "rows=3"], "rows"),
    ],
)
def test_bad_settings_give_one_clear_line(
    shipped_index: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], named: str
) -> None:
    """Exit code 2, one line on standard error that names the field or limit, nothing on standard output."""
    code, out, err = _ask(capsys, *arguments, "--index", str(shipped_index))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert named in err
    assert "Traceback" not in err


def test_odd_queries_give_a_valid_packet(shipped_index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Stop words only, punctuation, other scripts, NUL and control characters all end in a packet."""
    for query in ("what is it", "?!", "装置の電池", "كيف أعيد التشغيل", "battery\x00\x1b[31m", "\ud800 battery"):
        packet = _packet(capsys, query, "--index", str(shipped_index))
        assert packet["usage"]["calls"] in (1, 2)


def test_zero_budgets_give_an_empty_packet(shipped_index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A limit of 0 forbids the thing counted, and the run says so."""
    for name in ("max_calls", "max_iterations", "max_rows", "max_reads"):
        packet = _packet(capsys, HIT, "--index", str(shipped_index), "--limit", f"{name}=0")
        assert (packet["items"], packet["stop_reason"], packet["usage"]["calls"]) == (
            [],
            "resource_budget_exhausted",
            0,
        )
    for name in ("max_units", "max_chars"):
        assert _packet(capsys, HIT, "--index", str(shipped_index), "--limit", f"{name}=0")["items"] == []


def test_a_missing_index_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asking a directory that holds no index says which directory, and how to make one."""
    code, _, err = _ask(capsys, HIT, "--index", str(tmp_path / "nowhere"))
    assert code == 2
    assert "nowhere" in err
    assert "bounded-retrieval index" in err


def test_bad_sources_are_named_and_nothing_is_lost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken JSONL line is named by file and line, and the index that was there answers as before."""
    good, bad, target = tmp_path / "good.jsonl", tmp_path / "bad.jsonl", tmp_path / "index"
    good.write_text('{"_id": "a", "text": "The pump hums at night."}\n')
    bad.write_text('{"_id": "a", "text": "The pump hums at night."}\nnot json\n')
    assert main(["index", str(good), "--to", str(target)]) == 0
    capsys.readouterr()
    assert main(["index", str(bad), "--to", str(target)]) == 2
    *progress, error = capsys.readouterr().err.splitlines()
    assert all(line.endswith(" ...") for line in progress)
    assert "bad.jsonl, line 2" in error
    packet = _packet(capsys, "pump hums night", "--index", str(target))
    assert [item["unit_id"] for item in packet["items"]] == ["a"]


def test_an_emptied_dense_store_gives_policy_complete(tmp_path: Path) -> None:
    """fixed_dense over a dense store without units makes its one call and says only that."""
    from bounded_retrieval import ChromaSearcher, EvidencePacket, create_bounded_retrieval
    from bounded_retrieval.retrievers.embeddings import load_embedding

    corpus, target = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text('{"_id": "a", "text": "The pump hums at night."}\n')
    assert main(["index", str(corpus), "--to", str(target), "--dense", "chroma"]) == 0
    dense = ChromaSearcher.open(next((target / "generations").iterdir()) / "dense" / "chroma", load_embedding())
    dense.remove(["a"])
    graph = create_bounded_retrieval(None, dense).compile()
    packet = EvidencePacket.from_result(graph.invoke({"query": "pump"}))
    dense.close()
    assert (packet.stop_reason.value, packet.items, packet.usage.calls) == ("policy_complete", (), 1)


def test_indexing_again_embeds_only_what_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run over an edited folder embeds the edited section and drops what is gone."""
    folder, target = tmp_path / "docs", tmp_path / "index"
    folder.mkdir()
    (folder / "pump.md").write_text("# Pump\n\n## Noise\n\nIt hums.\n\n## Power\n\nIt needs 24 V.\n")
    (folder / "old.txt").write_text("The old printer is gone.")
    assert main(["index", str(folder), "--to", str(target)]) == 0
    (folder / "pump.md").write_text("# Pump\n\n## Noise\n\nIt hums softly.\n\n## Power\n\nIt needs 24 V.\n")
    (folder / "old.txt").unlink()
    capsys.readouterr()
    assert main(["index", str(folder), "--to", str(target)]) == 0
    summary = " ".join(capsys.readouterr().err.split())
    assert "1 unchanged" in summary
    assert "1 embedded" in summary


def test_control_characters_in_evidence_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Retrieved text cannot colour, move the cursor or use markup in the readable answer."""
    corpus, target = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text(
        json.dumps({"_id": "a", "title": "[red]t[/red]", "text": "pump \x1b[2J hums [bold]loud[/bold]"}) + "\n"
    )
    assert main(["index", str(corpus), "--to", str(target)]) == 0
    capsys.readouterr()
    _, out, _ = _ask(capsys, "pump hums", "--index", str(target))
    assert "\x1b" not in out
    assert "[bold]loud[/bold]" in out
    assert "[red]t[/red]" in out


def test_the_module_runs_as_a_program(shipped_index: Path, tmp_path: Path) -> None:
    """The module run with -m is the same program; its output is UTF-8 whatever the terminal says."""
    run = subprocess.run(
        [sys.executable, "-m", "bounded_retrieval", "ask", HIT, "--index", str(shipped_index), "--json"],
        capture_output=True,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"},
    )
    assert run.returncode == 0
    assert json.loads(run.stdout.decode())["stop_reason"] == "proxy_sufficient"


def test_the_program_ends_without_taking_apart_what_it_imported() -> None:
    """At its end all objects are set aside; whoever calls `main` in a longer process is left alone."""
    script = """
import atexit, gc, sys
atexit.register(lambda: print("frozen", gc.get_freeze_count() > 0))
from bounded_retrieval import cli
sys.argv[1:] = ["--version"]
"""
    for call, expected in (("cli.command()", "frozen True"), ("cli.main()", "frozen False")):
        run = subprocess.run([sys.executable, "-c", script + call], capture_output=True, text=True, check=True)
        assert run.stdout.splitlines()[-1] == expected


def test_the_demo_runs_over_the_shipped_collection(capsys: pytest.CaptureFixture[str]) -> None:
    """Its outcomes differ: stopping after one call, continuing, and missing evidence named."""
    assert main(["demo"]) == 0
    out = capsys.readouterr().out
    for expected in (
        "proxy_sufficient (provisional)",
        "resource_budget_exhausted (unresolved)",
        "hx-220",
        "Claims for damage in transit",
    ):
        assert expected in out


def test_the_demo_runs_over_the_projects_own_docs(capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of the user's own works, with requests derived from it and with their own."""
    root = Path(__file__).resolve().parents[1]
    assert main(["demo", str(root / "docs")]) == 0
    derived = capsys.readouterr().out
    assert "stands nowhere in the files" in " ".join(derived.split())
    assert "zx-0" in derived
    assert main(["demo", str(root / "README.md"), "--ask", "Which limits does a run have?"]) == 0
    assert "max_rows" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [["ask", "pump"], ["frobnicate"], ["index", "x.txt"], ["index", "x", "--to", "y", "--chunk-chars", "abc"]],
)
def test_bad_usage_is_one_line_too(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Missing and unknown arguments exit with 2 and one line that says where help is."""
    with pytest.raises(SystemExit) as end:
        main(arguments)
    err = capsys.readouterr().err
    assert (end.value.code, err.count("\n")) == (2, 1)
    assert "--help" in err


def test_a_reader_that_goes_away_is_no_failure(shipped_index: Path) -> None:
    """With its output closed, the program ends quietly and successfully."""
    command = [sys.executable, "-m", "bounded_retrieval", "ask", HIT, "--index", str(shipped_index)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(), err) == (0, b"")
