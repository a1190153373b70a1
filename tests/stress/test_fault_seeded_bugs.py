"""Each invariant of the fault matrix bites: with one bug planted, a bounded number of runs reports it by name."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import faults_bugs
import faults_chain_bugs
import faults_chain_checks
import faults_checks
from faults_cases import CELLS, Case, make_case
from faults_chain_cases import make_chain_case
from faults_run import Loops
from faults_sweep import run_bounded, run_chain

MOST_RUNS = 250
"""Runs of the kind in which a bug can show, after which it should have been reported."""


class Bug(NamedTuple):
    """A planted bug, the invariant that reports it, and the faults under which it can show (any, if none).

    Faults are named by their kind, or by port and kind.
    """

    plant: Callable[[pytest.MonkeyPatch], None]
    invariant: str
    faults: tuple[str, ...] = ()
    chain: bool = False


BUGS = (
    Bug(faults_bugs.rows_not_cut, "limits", ("too_many",)),
    Bug(faults_bugs.reads_not_limited, "limits"),
    Bug(faults_bugs.packed_over_the_limit, "limits"),
    Bug(faults_bugs.others_scored, "calls", ("fetch too_few", "fetch wrong_types")),
    Bug(faults_bugs.failure_not_charged, "charged", ("raises", "wrong_types")),
    Bug(faults_bugs.scores_not_counted, "charged"),
    Bug(faults_bugs.reasons_swapped, "reason"),
    Bug(faults_bugs.failure_called_sufficient, "reason", ("raises", "wrong_types", "dies_midway")),
    Bug(faults_bugs.deadline_not_looked_at, "reason", ("hangs",)),
    Bug(faults_bugs.two_reasons, "reason"),
    Bug(faults_bugs.evidence_lost_on_failure, "evidence", ("raises", "wrong_types", "dies_midway")),
    Bug(faults_bugs.recheck_lets_pass, "recheck", ("fetch changes", "fetch too_few", "fetch raises")),
    Bug(faults_bugs.recheck_left_out, "calls"),
    Bug(faults_bugs.rows_not_filtered, "ineligible"),
    Bug(faults_bugs.raw_error_streamed, "ineligible", ("raises",)),
    Bug(faults_bugs.scores_not_checked, "json", ("bad_scores",)),
    Bug(faults_bugs.trace_incomplete, "replay"),
    Bug(faults_bugs.third_search, "steps"),
    Bug(faults_bugs.asked_for_again, "calls"),
    Bug(faults_bugs.broken_document_raises, "raised", ("fetch wrong_types",)),
    Bug(faults_bugs.everything_caught, "escape", ("escapes",)),
    Bug(faults_bugs.everything_caught, "cancellation", ("hangs",)),
    Bug(faults_chain_bugs.no_depth_cap, "calls", chain=True),
    Bug(faults_chain_bugs.documents_over_the_limit, "limits", chain=True),
    Bug(faults_chain_bugs.failed_hop_not_charged, "charged", ("raises", "wrong_types", "dies_midway"), chain=True),
    Bug(faults_chain_bugs.novelty_after_sufficiency, "calls", chain=True),
    Bug(faults_chain_bugs.another_reason, "reason", ("raises", "wrong_types"), chain=True),
    Bug(faults_chain_bugs.documents_lost, "evidence", chain=True),
    Bug(faults_chain_bugs.lost_answers_kept, "answers", ("fetch changes", "fetch too_few", "fetch raises"), chain=True),
    Bug(
        faults_chain_bugs.chain_recheck_lets_pass,
        "recheck",
        ("fetch changes", "fetch too_few", "fetch raises"),
        chain=True,
    ),
    Bug(faults_bugs.rows_not_filtered, "ineligible", chain=True),
    Bug(faults_chain_bugs.no_json, "json", chain=True),
    Bug(faults_bugs.trace_incomplete, "replay", chain=True),
    Bug(faults_bugs.everything_caught, "escape", ("escapes",), chain=True),
    Bug(faults_bugs.everything_caught, "cancellation", ("hangs",), chain=True),
)


def cases_for(bug: Bug) -> Iterator[Case]:
    """Cases under which a bug can show, from the first seed on."""
    make = make_chain_case if bug.chain else make_case
    seeds = (make(seed) for seed in range(MOST_RUNS * len(CELLS)))
    return (case for case in seeds if not bug.faults or {case.cell.kind, " ".join(case.cell)} & set(bug.faults))


def runs_until_reported(bug: Bug) -> int | None:
    """How many runs it takes until the bug's invariant reports it; none where it does not within the most runs."""
    run, loops = run_chain if bug.chain else run_bounded, Loops()
    try:
        for number, case in zip(range(1, MOST_RUNS + 1), cases_for(bug), strict=False):
            if any(text.startswith(f"{bug.invariant}:") for text in run(case, loops)[1]):
                return number
    finally:
        loops.close()
    return None


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: f"{'chain-' * bug.chain}{bug.invariant}-{bug.plant.__name__}")
def test_a_planted_bug_is_reported(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one bug planted, its invariant reports it within a bounded number of runs."""
    bug.plant(monkeypatch)
    number = runs_until_reported(bug)
    print(f"{bug.plant.__name__}: {bug.invariant} after {number} runs")
    assert number is not None, inspect.getdoc(bug.plant)


def test_every_invariant_has_a_bug() -> None:
    """No invariant is without a planted bug that it reports, of the bounded graph and of the chain."""
    outside = {"calls", "escape", "cancellation"}
    assert {bug.invariant for bug in BUGS if not bug.chain} == {*faults_checks.CHECKS, *outside, "raised"}
    assert {bug.invariant for bug in BUGS if bug.chain} == {*faults_chain_checks.CHECKS, *outside}
