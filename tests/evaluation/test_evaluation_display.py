from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console
from sample_report import kitchen_report, renamed, without_adaptive

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.calibration import Calibration, CandidateFigures, Slice
from bounded_retrieval.evaluation.thresholds import Verdict
from bounded_retrieval.evaluation_display import render_report, render_verdict

CANDIDATES = (
    CandidateFigures(
        threshold=0.9,
        selection_loss=0.0021,
        selection_dense_share=0.625,
        certification_loss=-0.00314,
        certification_dense_share=0.6,
        upper_bound=0.018201,
        verdict="certified",
    ),
    CandidateFigures(
        threshold=0.64,
        selection_loss=0.03,
        selection_dense_share=0.5,
        certification_loss=0.01,
        certification_dense_share=0.5,
        upper_bound=0.020001,
        verdict="not_certified",
    ),
    CandidateFigures(threshold=0.5, selection_loss=0.1, selection_dense_share=0.25, verdict="not_tested"),
)


def verdict_of(*, certified: bool) -> Verdict:
    """A verdict over three candidates, with its artefact or without."""
    half = Slice(queries=100, fingerprint="f")
    found = Calibration(
        assessor="scorecard",
        assessor_settings={},
        threshold=0.9,
        fusion="score_fusion",
        first_hop_rows=4,
        limits=Budget(),
        tokenizer="t",
        embedding="e",
        measure="ndcg@4",
        against="always_continue:score_fusion",
        epsilon=0.02,
        confidence=0.95,
        collection={"name": "kitchen"},
        slices={"selection": half, "certification": half},
        fractions={"selection": 0.5, "certification": 0.5},
        seed=0,
        candidates=CANDIDATES,
        figures={},
        unit_lengths={},
        versions={},
    )
    return Verdict(
        calibration=found if certified else None,
        candidates=CANDIDATES,
        baseline="always_continue:score_fusion",
        best_fixed=("fixed_dense", 0.65432),
        unit_lengths={},
    )


def printed(renderable: Any, *, terminal: bool, width: int = 80) -> list[str]:
    """The lines that a console shows, without the blanks at their ends; printed as the command line prints them."""
    console = console_of(terminal=terminal, width=width)
    shown = renderable(console) if callable(renderable) else renderable
    console.print(shown, soft_wrap=not console.is_terminal)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def console_of(*, terminal: bool, width: int) -> Console:
    """A console that leaves text alone and has no colours."""
    return Console(
        file=io.StringIO(), force_terminal=terminal, width=width, markup=False, highlight=False, color_system=None
    )


def test_a_report_can_be_read_in_eighty_columns():
    """Names are broken at their colon, no figure is cut or wrapped, and every line fits."""
    report = kitchen_report()
    lines = printed(lambda console: render_report(report, console), terminal=True)
    assert max(map(cell_len, lines)) <= 80
    assert lines[0] == "kitchen: 24 queries, 95% bootstrap intervals"
    place = next(place for place, line in enumerate(lines) if line.startswith("adaptive "))
    policy = report["policies"]["adaptive"]
    low, high = policy["intervals"]["ndcg@4"]
    assert lines[place].split() == [
        "adaptive",
        f"{policy['ndcg@4']:.3f}",
        f"[{low:.3f},",
        f"{high:.3f}]",
        f"{policy['recall@4']:.3f}",
        f"{policy['packet_recall']:.3f}",
        *(str(policy[name]) for name in ("calls", "dense_calls", "rows")),
    ]
    assert lines[place + 1 : place + 3] == ["= adaptive", "  :scorecard"]


def test_a_large_collection_fits_too():
    """Thousands of calls and rows leave the names broken, not the figures."""
    report = kitchen_report()
    for policy in report["policies"].values():
        policy |= {"calls": 20_000, "dense_calls": 10_000, "rows": 60_000}
    lines = printed(lambda console: render_report(report, console), terminal=True)
    assert max(map(cell_len, lines)) <= 80
    assert sum(line.endswith("20,000  10,000  60,000") for line in lines) == 8


def test_a_wide_terminal_has_room_for_whole_names():
    """Where there is room no name is broken."""
    lines = printed(lambda console: render_report(kitchen_report(), console), terminal=True, width=120)
    assert any(line.startswith("always_continue:score_fusion  ") for line in lines)


def test_elsewhere_each_policy_is_one_line():
    """In a pipe nothing is wrapped: all names, figures and actions of a policy stand in one line each."""
    report = kitchen_report()
    lines = printed(lambda console: render_report(report, console), terminal=False)
    rows = [line for line in lines if line.startswith("adaptive = adaptive:scorecard  ")]
    assert len(rows) == 2
    assert rows[1].endswith("4 + 2  score_fusion      lexical search, then dense search unless scorecard reaches 0.27")
    assert "recall@4  packet recall  calls  dense calls  rows" in lines[2]


def test_early_stops_and_the_live_check_are_said():
    """Below the tables stand the sentences about each adaptive policy, and about the live check."""
    report = kitchen_report()
    lines = printed(lambda console: render_report(report, console), terminal=False)
    assert any(line.startswith("reference stopped after the first search in 12 of 24 queries;") for line in lines)
    assert sum(line.startswith("  At k = 4, one more call would have ranked ") for line in lines) == 2
    assert lines[-1].startswith("2 queries were run again over the real searchers (")
    report["live_check"]["different"] = [["adaptive", "whisk-same"]]
    lines = printed(lambda console: render_report(report, console), terminal=False)
    assert lines[-1].endswith("1 gave another packet or another trace (adaptive on whisk-same).")


@pytest.mark.parametrize("terminal", [True, False])
def test_names_cannot_move_the_cursor(terminal):
    """Control characters and markup in names are shown, not obeyed."""
    report = renamed(kitchen_report(), "reference", "[red]\x1b[31mx\n\u202e")
    report["collection"]["name"] = "\x1b]0;title\x07"
    text = "\n".join(printed(lambda console: render_report(report, console), terminal=terminal))
    assert not {"\x1b", "\x07", "\u202e"} & set(text)
    assert "[red]\ufffd[31mx" in text


def test_a_report_without_adaptive_policies_is_shown():
    """Nothing is said of early stops then."""
    report = without_adaptive(kitchen_report())
    lines = printed(lambda console: render_report(report, console), terminal=True)
    assert not any("first search" in line for line in lines)
    assert any(line.startswith("fixed_dense ") for line in lines)


def test_a_verdict_can_be_read_in_eighty_columns():
    """Candidates stand in the order of the test; an untested one has no figures of the certification slice."""
    lines = printed(render_verdict(verdict_of(certified=True), Path("c.json")), terminal=True)
    assert max(map(cell_len, lines)) <= 80
    assert [line.split() for line in lines[2:5]] == [
        ["0.9", "+0.0021", "62.5%", "\u22120.0031", "0.0183", "certified"],
        ["0.64", "+0.0300", "50.0%", "+0.0100", "0.0201", "not", "certified"],
        ["0.5", "+0.1000", "25.0%", "\u2013", "\u2013", "not", "tested"],
    ]


def test_a_bound_is_rounded_upwards():
    """A bound just above epsilon does not look like one that holds."""
    lines = printed(render_verdict(verdict_of(certified=False), None), terminal=False)
    assert "0.0201" in lines[2]
    assert "0.0200" not in lines[2]


def test_a_certified_threshold_is_one_sentence():
    """What is certified, with what confidence, against what, and where it was written."""
    lines = printed(render_verdict(verdict_of(certified=True), Path("out/c.json")), terminal=False)
    assert lines[0].split("  ")[0] == "threshold"
    assert lines[-1] == (
        "scorecard at 0.9: with confidence 0.95 its mean loss in ndcg@4 against always_continue:score_fusion is at most "
        "0.02, on queries like these; written to out/c.json"
    )
    assert printed(render_verdict(verdict_of(certified=True), None), terminal=False)[-1].endswith("queries like these")


def test_without_a_certificate_the_best_fixed_policy_is_named():
    """Nothing was written, and the sentence says what does best on the selection slice."""
    lines = printed(render_verdict(verdict_of(certified=False), None), terminal=False)
    assert lines[-1] == (
        "no candidate could be certified, and nothing was written; best of the policies that decide nothing, on the "
        "selection slice: fixed_dense (0.6543)"
    )
