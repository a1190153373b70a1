from __future__ import annotations

import json
import random
import sys
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval.cli import main
from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.chain import ChainLimits, ChainResult, NextQuery
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.chain import create_recursive_retrieval
from bounded_retrieval.ingest.jsonl import MAX_LINE_BYTES
from bounded_retrieval.statistics import LEAST_RUNS, RULES, Run, RunStatistics, read_runs
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

QUERY = "replace the HX-200 battery"
HIT = Document(id="hit", page_content="Replace the HX-200 battery with the small screwdriver.")
MISS = Document(id="miss", page_content="Part one of the battery.")
OTHER = Document(id="other", page_content="A note on charging.")

Json = dict[str, Any]


def _bounded(lexical: list[Document], dense: list[Document], **options: Any) -> Json:
    graph = create_bounded_retrieval(ScriptedSearcher(lexical, "lexical"), ScriptedSearcher(dense, "dense"), **options)
    return _without_documents(graph.compile().invoke({"query": QUERY}))


def _chain(search: Any, planner: Any, reader: Any = lambda _query, _documents: "an answer", **options: Any) -> Json:
    graph = create_recursive_retrieval(search, planner, reader, **options).compile()
    return _without_documents(graph.invoke({"query": QUERY}))


def _without_documents(result: Json) -> Json:
    return {key: value for key, value in result.items() if key != "documents"}


def _fresh(query: str) -> list[Document]:
    return [Document(id=query, page_content=f"All about {query}.")]


def _same(_query: str) -> list[Document]:
    return [MISS]


def _plan(*queries: str) -> Callable[..., str | None]:
    return lambda _question, trail: queries[len(trail)] if len(trail) < len(queries) else None


@cache
def _real_runs() -> dict[str, Json]:
    """One real run for each of several endings, as the graphs gave it."""
    circling = _plan("alpha", "alpha")
    return {
        "proxy_sufficient": _bounded([HIT], [OTHER]),
        "resource_budget_exhausted": _bounded([MISS], [OTHER]),
        "no_new_evidence": _bounded([MISS], [MISS]),
        "deadline_exceeded": _bounded([MISS], [OTHER], budget=Budget(deadline_ms=0)),
        "chain no_next_query": _chain(_fresh, _plan("alpha", "beta")),
        "chain open": _chain(_fresh, lambda _question, _trail: NextQuery(query=None, unresolved=("gamma",))),
        "chain depth_cap": _chain(_fresh, _plan(*"abcdefgh"), limits=ChainLimits(max_hops=2)),
        "chain no_new_evidence": _chain(_same, _plan("alpha", "beta", "gamma")),
        "chain repeated_query": _chain(_fresh, circling),
        "chain sufficient": _chain(_fresh, _plan("alpha"), sufficiency=lambda _question, _trail: True),
        "chain retrieval_failed": _chain(_raise, _plan("alpha")),
    }


def _raise(_query: str) -> list[Document]:
    raise ConnectionError("the search is down")


def _write(path: Path, runs: list[Json]) -> Path:
    lines = path.suffix == ".jsonl"
    path.write_text("".join(f"{json.dumps(run)}\n" for run in runs) if lines else json.dumps(runs, indent=1))
    return path


def _stats(capsys: pytest.CaptureFixture[str], *arguments: object) -> Json:
    assert main(["stats", *map(str, arguments), "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return json.loads(captured.out)


def _refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["stats", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert "Traceback" not in captured.err
    return captured.err


def _rule(report: Json, kind: str, name: str) -> Json:
    return next(rule for rule in report["rules"] if (rule["kind"], rule["rule"]) == (kind, name))


def test_real_runs_of_both_graphs_are_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every run of both graphs is counted once, under its kind and the stop reason that it had."""
    report = _stats(capsys, _write(tmp_path / "runs.jsonl", list(_real_runs().values())))
    assert {name: each["count"] for name, each in report["bounded"]["stop_reasons"].items()} == {
        "deadline_exceeded": 1,
        "no_new_evidence": 1,
        "proxy_sufficient": 1,
        "resource_budget_exhausted": 1,
    }
    assert {name: each["count"] for name, each in report["chain"]["stop_reasons"].items()} == {
        "no_next_query": 2,
        "depth_cap": 1,
        "no_new_evidence": 1,
        "repeated_query": 1,
        "retrieval_failed": 1,
        "sufficient": 1,
    }
    assert report["bounded"]["provisional"] == {"count": 1, "share": 0.25}
    assert report["chain"]["resolved"] == {"count": 2, "share": 0.2857}


def test_costs_and_new_units_are_those_of_the_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Calls, searches, hops and new units by hop number are what the runs themselves say."""
    runs = _real_runs()
    names = ("proxy_sufficient", "no_new_evidence", "chain no_new_evidence", "chain depth_cap")
    report = _stats(capsys, _write(tmp_path / "runs.json", [runs[name] for name in names]))
    bounded, chain = report["bounded"], report["chain"]
    assert bounded["calls"] == bounded["hops"] == {"total": 3, "median": 1, "p90": 2, "most": 2}
    assert bounded["dense_calls"]["total"] == 1
    assert [(hop["runs"], hop["total"], hop["none"]) for hop in bounded["new_units"]] == [(2, 2, 0), (1, 0, 1)]
    assert chain["calls"] == chain["hops"] == {"total": 4, "median": 2, "p90": 2, "most": 2}
    assert [(hop["runs"], hop["total"], hop["none"]) for hop in chain["new_units"]] == [(2, 2, 0), (2, 1, 1)]
    assert chain["notes"] == {"text_not_rechecked": {"count": 2, "share": 1.0}}


def test_every_form_of_a_bounded_run_is_the_same_run(tmp_path: Path) -> None:
    """A graph's output, its trace, its packet and what ask --json prints give the same counts."""
    for name in ("proxy_sufficient", "resource_budget_exhausted", "no_new_evidence", "deadline_exceeded"):
        output = _real_runs()[name]
        packet, trace = output["packet"], output["trace"]
        forms = [output, trace, {"trace": trace}, {"packet": packet}, packet, {**packet, "trace": trace}]
        runs = list(read_runs(_write(tmp_path / "runs.jsonl", forms)))
        assert {(run.stop_reason, run.ended_well, run.calls, run.dense_calls, run.hops, run.notes) for run in runs} == {
            (
                StopReason(output["stop_reason"]),
                packet["resolution"] == "provisional",
                *_cost(packet),
                frozenset(packet["notes"]),
            )
        }
        assert len({(run.missing, run.missing_identifiers) for run in runs}) == 1


def _cost(packet: Json) -> tuple[int, int, int]:
    return packet["usage"]["calls"], packet["usage"]["dense_calls"], packet["usage"]["iterations"]


def test_every_form_of_a_chain_is_the_same_run(tmp_path: Path) -> None:
    """A chain's output with or without documents, without its facts, and a dump of its result give the same counts."""
    output = create_recursive_retrieval(_fresh, _plan("alpha", "beta"), lambda _query, _documents: "an answer")
    result = output.compile().invoke({"query": QUERY})
    with_documents = {**result, "documents": [document.model_dump() for document in result["documents"]]}
    dumped = ChainResult.from_result(result).model_dump(mode="json")
    forms = [_without_documents(result), with_documents, dumped]
    runs = list(read_runs(_write(tmp_path / "runs.json", forms)))
    assert len(set(runs)) == 1
    bare = {key: result[key] for key in ("trail", "stop_reason", "resolved", "unresolved")}
    (run,) = read_runs(_write(tmp_path / "bare.json", [bare]))
    assert (run.calls, run.hops, run.new_units, run.notes) == (runs[0].calls, 2, (1, 1), frozenset())


def test_a_file_may_hold_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A .json file that is one run, over many lines and with a byte order mark, is read as one."""
    path = tmp_path / "run.JSON"
    path.write_text("\ufeff" + json.dumps(_real_runs()["proxy_sufficient"], indent=2), encoding="utf-8")
    assert _stats(capsys, path)["bounded"]["runs"] == 1


def test_ask_json_can_be_read(shipped_index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What ask --json prints, with and without --trace, goes into stats as it stands."""
    for place, more in enumerate(([], ["--trace"])):
        assert main(["ask", "How do I pair the HX-210 probe?", "--index", str(shipped_index), "--json", *more]) == 0
        (tmp_path / f"{place}.json").write_text(capsys.readouterr().out, encoding="utf-8")
    report = _stats(capsys, tmp_path / "0.json", tmp_path / "1.json")
    assert report["bounded"]["runs"] == 2
    assert next(hop["runs"] for hop in report["bounded"]["new_units"]) == 1


def test_json_is_the_same_to_the_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Equal runs in any order, in one file or several, give the same bytes."""
    runs = list(_real_runs().values()) * 3
    printed = []
    for seed in range(3):
        random.Random(seed).shuffle(runs)
        files = [_write(tmp_path / "a.jsonl", runs[: 5 + seed]), _write(tmp_path / "b.json", runs[5 + seed :])]
        assert main(["stats", *map(str, files), "--json"]) == 0
        printed.append(capsys.readouterr().out)
    assert len(set(printed)) == 1


def test_no_text_of_a_run_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither form of the output holds a query, a sub-answer, a unit's id or its text."""
    path = _write(tmp_path / "runs.jsonl", list(_real_runs().values()) * LEAST_RUNS)
    for arguments in ([], ["--json"]):
        assert main(["stats", str(path), *arguments]) == 0
        out = capsys.readouterr().out
        assert not [text for text in (QUERY, "HX-200", "an answer", "alpha", "All about", "screwdriver") if text in out]


def test_plain_output_shows_counts_and_suggestions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Elsewhere than in a terminal the output is plain lines, each suggestion on one with its counts and threshold."""
    runs = [_real_runs()["chain depth_cap"]] * 3 + [_real_runs()["chain no_next_query"]] * 7
    assert main(["stats", str(_write(tmp_path / "runs.jsonl", [*runs, _real_runs()["proxy_sufficient"]]))]) == 0
    out = capsys.readouterr().out
    assert "chains: 10, resolved: 7 (70.0%)" in out
    (line,) = [line for line in out.splitlines() if "chain depth_cap" in line]
    assert "3 of 10 (30.0%)   20%" in line
    assert line.endswith("read some trails before raising max_hops")
    assert "chain repeated_query 0 of 10 (from 10%)" in out
    assert "bounded runs: nothing is suggested on fewer than 10 runs" in out
    assert not set("│┃━\x1b") & set(out)


def test_foreign_notes_stay_on_their_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A note that somebody else wrote into a packet can neither break the line nor move the cursor."""
    packet = {**_real_runs()["proxy_sufficient"]["packet"], "notes": ["odd\nnote \x1b[31m"]}
    assert main(["stats", str(_write(tmp_path / "runs.jsonl", [packet]))]) == 0
    out = capsys.readouterr().out
    assert "  odd note \ufffd[31m" in out
    assert "\x1b" not in out
    assert "suggestions: none" in out


def test_a_terminal_gets_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    """In a terminal the same figures stand in tables, whatever its width."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    path = _write(tmp_path / "runs.json", list(_real_runs().values()) * 2)
    for columns in ("40", "120"):
        monkeypatch.setenv("COLUMNS", columns)
        assert main(["stats", str(path)]) == 0
        out = capsys.readouterr().out
        assert "┃" in out
        assert "proxy_sufficient" in out


SAMPLES = {
    ("bounded", "proxy_sufficient"): {"stop_reason": StopReason.PROXY_SUFFICIENT},
    ("bounded", "premature_stop"): {"stop_reason": StopReason.PROXY_SUFFICIENT, "missing": True},
    ("bounded", "missing_identifiers"): {
        "stop_reason": StopReason.RESOURCE_BUDGET_EXHAUSTED,
        "missing": True,
        "missing_identifiers": True,
    },
    ("bounded", "no_new_evidence"): {"stop_reason": StopReason.NO_NEW_EVIDENCE},
    ("bounded", "path_unresolved"): {"stop_reason": StopReason.AMBIGUOUS_REQUEST},
    ("bounded", "deadline_exceeded"): {"stop_reason": StopReason.DEADLINE_EXCEEDED},
    ("bounded", "retrieval_failed"): {"stop_reason": StopReason.RETRIEVAL_FAILED},
    ("bounded", "dropped_at_recheck"): {"notes": frozenset({"dropped_at_recheck"})},
    ("chain", "depth_cap"): {"stop_reason": StopReason.DEPTH_CAP},
    ("chain", "no_new_evidence_early"): {"stop_reason": StopReason.NO_NEW_EVIDENCE},
    ("chain", "repeated_query"): {"stop_reason": StopReason.REPEATED_QUERY},
    ("chain", "token_budget_exhausted"): {"stop_reason": StopReason.TOKEN_BUDGET_EXHAUSTED},
    ("chain", "resource_budget_exhausted"): {"stop_reason": StopReason.RESOURCE_BUDGET_EXHAUSTED},
    ("chain", "open_at_the_end"): {"stop_reason": StopReason.NO_NEXT_QUERY},
    ("chain", "deadline_exceeded"): {"stop_reason": StopReason.DEADLINE_EXCEEDED},
    ("chain", "retrieval_failed"): {"stop_reason": StopReason.RETRIEVAL_FAILED},
    ("chain", "part_failed"): {"notes": frozenset({"reader_failed"})},
    ("chain", "dropped_at_recheck"): {"notes": frozenset({"dropped_at_recheck"})},
}


def _run(kind: Any, **fields: Any) -> Run:
    return Run(
        kind=kind,
        **{"ended_well": False, "stop_reason": StopReason.CANCELLED, "calls": 2, "dense_calls": 1, "hops": 2} | fields,
    )


def _judged(kind: str, name: str, count: int, runs: int) -> Json:
    sampled = [_run(kind, **SAMPLES[kind, name])] * count
    return _rule(RunStatistics([*sampled, *[_run(kind)] * (runs - count)]).report(), kind, name)


def test_every_rule_has_a_sample() -> None:
    """The samples below cover every declared rule, and no two rules of a kind have the same name."""
    assert [(rule.kind, rule.name) for rule in RULES] == list(SAMPLES)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}-{rule.name}")
def test_a_suggestion_comes_exactly_at_its_threshold(rule: Any) -> None:
    """At the threshold it is made and one run below it is not, also where the share is no round number."""
    for runs in (100, 1_000, 997):
        least = -(-rule.percent * runs // 100)
        at, below = (_judged(rule.kind, rule.name, count, runs) for count in (least, least - 1))
        assert (at["suggested"], below["suggested"]) == (True, False)
        assert (at["count"], at["runs"], at["threshold"]) == (least, runs, rule.percent / 100)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: f"{rule.kind}-{rule.name}")
def test_nothing_is_suggested_on_few_runs(rule: Any) -> None:
    """Ten runs of the kind are needed however large the share is, and runs of the other kind do not count."""
    assert not _judged(rule.kind, rule.name, LEAST_RUNS - 1, LEAST_RUNS - 1)["suggested"]
    assert _judged(rule.kind, rule.name, LEAST_RUNS, LEAST_RUNS)["suggested"]
    other = "chain" if rule.kind == "bounded" else "bounded"
    mixed = [*[_run(rule.kind, **SAMPLES[rule.kind, rule.name])] * 9, *[_run(other)] * 50]
    assert not _rule(RunStatistics(mixed).report(), rule.kind, rule.name)["suggested"]


def test_a_late_end_without_new_evidence_is_not_early() -> None:
    """Only chains that ended on their first or second hop count for plain retrieval."""
    runs = [_run("chain", stop_reason=StopReason.NO_NEW_EVIDENCE, hops=hops) for hops in (1, 2, 3, 4)]
    assert _rule(RunStatistics(runs).report(), "chain", "no_new_evidence_early")["count"] == 2


def test_real_runs_meet_a_threshold_exactly(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two real chains of ten at the depth cap give the suggestion, one does not."""
    capped, resolved = _real_runs()["chain depth_cap"], _real_runs()["chain no_next_query"]
    for count, suggested in ((2, True), (1, False)):
        path = _write(tmp_path / "runs.jsonl", [capped] * count + [resolved] * (10 - count))
        assert _rule(_stats(capsys, path), "chain", "depth_cap")["suggested"] is suggested


def test_missing_identifiers_come_from_real_runs() -> None:
    """A run that ended by its budget without the identifier counts, and one that had it does not."""
    graph = create_bounded_retrieval(FailingSearcher(), ScriptedSearcher([HIT], "dense"), policy="always_continue")
    held, lacking = graph.compile().invoke({"query": QUERY}), _real_runs()["resource_budget_exhausted"]
    counts = [
        _rule(RunStatistics(_read_one(run)).report(), "bounded", "missing_identifiers")["count"]
        for run in (held, lacking)
    ]
    assert (held["stop_reason"], counts) == ("resource_budget_exhausted", [0, 1])


def _read_one(run: Json) -> list[Run]:
    from bounded_retrieval.statistics.reading import _as_run

    return [_as_run(run)]


@pytest.mark.parametrize(
    ("values", "median", "p90"),
    [
        ([3], 3, 3),
        ([1, 2], 1, 2),
        ([1, 2, 3], 2, 3),
        (range(1, 11), 5, 9),
        (range(1, 12), 6, 10),
        ([0] * 9 + [7], 0, 0),
    ],
)
def test_percentiles_are_values_that_occurred(values: Any, median: int, p90: int) -> None:
    """The median is the lower middle value, the 90th percentile the smallest that nine in ten do not exceed."""
    calls = RunStatistics(_run("chain", calls=value) for value in values).report()["chain"]["calls"]
    assert (calls["median"], calls["p90"], calls["most"]) == (median, p90, max(values))


def test_no_runs_of_a_kind_are_no_figures() -> None:
    """A kind without runs has no share and no percentile, and no rule of it is met."""
    report = RunStatistics([_run("chain")]).report()
    assert (report["bounded"]["runs"], report["bounded"]["provisional"]["share"]) == (0, None)
    assert report["bounded"]["calls"] == {"total": 0, "median": None, "p90": None, "most": None}
    assert not any(rule["suggested"] for rule in report["rules"])


def _good_line() -> str:
    return json.dumps(_real_runs()["proxy_sufficient"]) + "\n"


def _damaged(name: str, **fields: Any) -> str:
    return json.dumps({**_real_runs()[name], **fields}) + "\n"


BAD_FILES = {
    "bad JSON": ("runs.jsonl", lambda: _good_line() + "not json\n", ["line 2", "not JSON", "column 1"]),
    "cut off": ("runs.jsonl", lambda: _good_line() * 2 + _good_line()[:-9], ["line 3", "not JSON"]),
    "one run over lines": ("runs.jsonl", lambda: json.dumps({"events": []}, indent=1), ["line 1", "not JSON"]),
    "list on a line": ("runs.jsonl", lambda: f"[{_good_line().strip()}]", ["line 1", "got a list"]),
    "not a run": ("runs.jsonl", lambda: _good_line() + '\n{"_id": "a", "text": "b"}\n', ["line 3", "not a run"]),
    "null": ("runs.jsonl", lambda: "null", ["line 1", "got null"]),
    "two values on a line": ("runs.jsonl", lambda: '{"events": []} {}', ["line 1", "more than one JSON value"]),
    "deep": ("runs.jsonl", lambda: "[" * 100_000, ["line 1", "nested too deeply"]),
    "long number": ("runs.jsonl", lambda: "9" * 5_000, ["line 1", "number is too long"]),
    "empty": ("runs.jsonl", lambda: "", ["runs.jsonl: empty"]),
    "blank lines": ("runs.jsonl", lambda: "\n  \n", ["runs.jsonl: empty"]),
    "empty json": ("runs.json", lambda: " \n", ["runs.json: empty"]),
    "empty list": ("runs.json", lambda: "[]", ["runs.json: empty"]),
    "lines in json": ("runs.json", lambda: _good_line() * 2, ["line 2", "more than one JSON value", ".jsonl"]),
    "bad JSON over lines": ("runs.json", lambda: '[\n{"events": []},\n{"events": }\n]', ["line 3", "not JSON"]),
    "number": ("runs.json", lambda: "\n\n 17", ["line 3", "got a number"]),
    "mixed list": ("runs.json", lambda: f'[\n{_good_line()},\n\n{{"a": 1}}]', ["line 5", "not a run"]),
    "unknown event": ("runs.jsonl", lambda: '{"events": [{"event": "slept"}]}', ["line 1", "events.0"]),
    "unfinished": ("runs.jsonl", lambda: json.dumps({"events": _real_runs()["proxy_sufficient"]["trace"]["events"][:-1]}), ["line 1", "events", "not finished"]),
    "no events": ("runs.jsonl", lambda: '{"trace": {"events": []}}', ["line 1", "trace.events"]),
    "packet": ("runs.jsonl", lambda: '{"packet": {"items": []}}', ["line 1", "packet.query_id", "more)"]),
    "negative costs": ("runs.jsonl", lambda: json.dumps({"packet": {**_real_runs()["proxy_sufficient"]["packet"], "usage": {"calls": -3}}}), ["line 1", "packet.usage.calls"]),
    "packet disagrees": ("runs.jsonl", lambda: json.dumps({"packet": {**_real_runs()["proxy_sufficient"]["packet"], "stop_reason": "retrieval_failed"}}), ["line 1", "packet.resolution", "retrieval_failed"]),
    "packet of no object": ("runs.jsonl", lambda: '{"packet": 5}', ["line 1", "packet: "]),
    "chain's reason": ("runs.jsonl", lambda: _damaged("chain depth_cap", stop_reason="tired"), ["line 1", "stop_reason"]),
    "chain's flag": ("runs.jsonl", lambda: _damaged("chain depth_cap", resolved="no"), ["line 1", "resolved"]),
    "chain disagrees": ("runs.jsonl", lambda: _damaged("chain depth_cap", resolved=True, unresolved=[]), ["line 1", "do not agree"]),
    "chain's hop": ("runs.jsonl", lambda: _damaged("chain depth_cap", trail=[{"number": 1}]), ["line 1", "trail.0.query"]),
    "chain too long": ("runs.jsonl", lambda: _damaged("chain depth_cap", trail=_real_runs()["chain depth_cap"]["trail"] * 5), ["line 1", "trail", "at most 8"]),
    "half a chain": ("runs.jsonl", lambda: '{"trail": []}', ["line 1", "stop_reason"]),
    "an open object": ("runs.json", lambda: '{"id":"a","text":"x"\n', ["line 1", "column 21"]),
    "another ending": ("runs.txt", _good_line, ["runs.txt: expected a .json or .jsonl file"]),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content", "named"), BAD_FILES.values(), ids=BAD_FILES.keys())
def test_a_bad_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, content: Callable[[], str], named: list[str]
) -> None:
    """Exit code 2, nothing printed, and one line that names the file, the line and the field."""
    path = tmp_path / name
    path.write_text(content(), encoding="utf-8")
    message = _refused(capsys, path)
    assert [part for part in (name, *named) if part not in message] == []


def test_a_bad_file_after_good_ones_prints_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What was counted before the fault is not shown, under --json neither, and no picture is left."""
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(_good_line())
    bad.write_text("{}\n")
    assert "bad.jsonl, line 1" in _refused(capsys, good, bad, "--json", "--plot", tmp_path / "p.svg")
    assert not (tmp_path / "p.svg").exists()


def test_unreadable_files_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file that is not there, a folder, and text in another encoding are one line each."""
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "wide.jsonl").write_text(_good_line(), encoding="utf-16")
    for name, said in (("none.jsonl", "cannot be read"), ("folder.json", "cannot be read"), ("wide.jsonl", "UTF-16")):
        message = _refused(capsys, tmp_path / name)
        assert name in message
        assert said in message


def test_a_huge_line_is_refused_and_a_large_one_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line is read up to the declared number of bytes; a longer one is an error that names the line."""
    path, large = (
        tmp_path / "runs.jsonl",
        {**_real_runs()["chain depth_cap"], "documents": [{"page_content": "x" * 2_000_000}]},
    )
    path.write_text(json.dumps(large) + "\n")
    assert _stats(capsys, path)["chain"]["runs"] == 1
    with path.open("a") as file:
        file.write(f'{{"events": "{"x" * MAX_LINE_BYTES}"}}\n')
    assert f"line 2: longer than {MAX_LINE_BYTES} bytes" in _refused(capsys, path)


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    """A run is given before the next line is read, and many lines take no more memory than few."""
    path = tmp_path / "runs.jsonl"
    path.write_text(f"{_good_line()}not json\n")
    assert next(read_runs(path)).stop_reason is StopReason.PROXY_SUFFICIENT
    path.write_text(_good_line() * 2_000)
    RunStatistics(read_runs(path))
    tracemalloc.start()
    report = RunStatistics(read_runs(path)).report()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert report["bounded"]["runs"] == 2_000
    assert peak < 500_000 < path.stat().st_size


@pytest.mark.parametrize("name", ["reasons.svg", "reasons.png", "REASONS.PNG"])
def test_a_picture_is_the_same_to_the_byte(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """The picture is drawn twice with the same bytes, without a date, and standard output stays JSON."""
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    runs, drawn = _write(tmp_path / "runs.jsonl", list(_real_runs().values())), []
    for folder in ("one", "two"):
        target = tmp_path / folder / name
        target.parent.mkdir()
        _stats(capsys, runs, "--plot", target)
        drawn.append(target.read_bytes())
    assert drawn[0] == drawn[1]
    assert b"<dc:date>" not in drawn[0]
    if name.endswith("svg"):
        assert [
            part for part in (b"depth_cap", b"proxy_sufficient", b"chains", b"1 of 4") if part not in drawn[0]
        ] == []


def test_a_picture_of_one_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there are only chains the picture shows only chains."""
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    target = tmp_path / "p.svg"
    _stats(capsys, _write(tmp_path / "runs.json", [_real_runs()["chain depth_cap"]]), "--plot", target)
    assert "bounded" not in target.read_text(encoding="utf-8")


def test_another_picture_ending_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that is neither .svg nor .png is refused before any file is read."""
    message = _refused(capsys, tmp_path / "none.jsonl", "--plot", tmp_path / "p.pdf")
    assert ".svg or .png" in message


@pytest.mark.parametrize("name", ["none", "none.txt", "none.json", "none.jsonl"])
def test_a_file_that_is_not_there_is_said_not_to_be_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Whatever its name ends in."""
    message = _refused(capsys, tmp_path / name)
    assert message == f"bounded-retrieval: {tmp_path / name}: cannot be read (No such file or directory)\n"


def test_a_picture_that_cannot_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing folder, a folder in its place, and a folder that may not be written to are one line each."""
    pytest.importorskip("matplotlib", reason="needs the extra plots")
    (tmp_path / "d.svg").mkdir()
    missing = tmp_path / "none.jsonl"
    assert "no: no such directory, for --plot" in _refused(capsys, missing, "--plot", tmp_path / "no" / "p.svg")
    assert "d.svg: a directory; --plot takes" in _refused(capsys, missing, "--plot", tmp_path / "d.svg")
    monkeypatch.setattr("os.access", lambda *_: False)
    message = _refused(capsys, missing, "--plot", tmp_path / "p.svg")
    assert message == f"bounded-retrieval: {tmp_path}: cannot be written to\n"


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where matplotlib is not installed --plot is one line that names the extra, and everything else works."""
    for module in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    path = _write(tmp_path / "runs.json", [_real_runs()["chain depth_cap"]])
    assert 'pip install "bounded-retrieval[plots]"' in _refused(capsys, path, "--plot", tmp_path / "p.svg")
    assert _stats(capsys, path)["chain"]["runs"] == 1
