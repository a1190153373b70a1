from __future__ import annotations

from typing import Any

import inventory
import pytest
from inventory import HITS, QUERY, ask, dense, lexical
from langchain_core.documents import Document

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

BATTERY = inventory.documents(b1="The battery.", b2="A battery pack.")
RUNS = [
    ("proxy_sufficient", lambda: ask(lexical(HITS), dense())),
    ("proxy_sufficient", lambda: ask(lexical(), dense(HITS))),
    ("proxy_sufficient", lambda: ask(FailingSearcher(), dense(HITS))),
    ("resource_budget_exhausted", lambda: ask(lexical(), dense())),
    ("resource_budget_exhausted", lambda: ask(lexical(), dense(), budget=Budget(max_calls=1))),
    ("resource_budget_exhausted", lambda: ask(lexical(), dense(), budget=Budget(max_calls=0))),
    ("resource_budget_exhausted", lambda: ask(lexical(), dense(HITS), policy="always_continue")),
    ("resource_budget_exhausted", lambda: ask(lexical(), FailingSearcher())),
    ("resource_budget_exhausted", lambda: ask(lexical())),
    ("no_new_evidence", lambda: ask(lexical(), dense([]))),
    ("no_new_evidence", lambda: ask(lexical(BATTERY), dense(BATTERY[:1]))),
    ("no_new_evidence", lambda: ask(lexical([]), dense([]))),
    ("no_new_evidence", lambda: ask(FailingSearcher(), dense([]))),
    ("policy_complete", lambda: ask(lexical(), dense(), policy="fixed_lexical")),
    ("policy_complete", lambda: ask(lexical([]), dense(), policy="fixed_lexical")),
    ("policy_complete", lambda: ask(lexical(), dense(HITS), policy="fixed_dense")),
    ("policy_complete", lambda: ask(None, dense([]))),
    ("retrieval_failed", lambda: ask(FailingSearcher(), FailingSearcher())),
    ("retrieval_failed", lambda: ask(FailingSearcher(), dense(), policy="fixed_lexical")),
    ("retrieval_failed", lambda: ask(FailingSearcher(), dense(), budget=Budget(max_calls=1))),
    ("retrieval_failed", lambda: ask(None, FailingSearcher())),
    ("deadline_exceeded", lambda: ask(lexical(), dense(), budget=Budget(deadline_ms=0))),
    ("cancelled", lambda: ask(lexical(), dense(), cancelled=lambda _runtime: True)),
]


@pytest.mark.parametrize(("reason", "run"), RUNS)
def test_each_stop_reason_comes_from_a_real_run(reason: str, run: Any) -> None:
    """A run of the real graph ends with exactly the reason the design gives, and is provisional only when the test passed."""
    outcome = run()
    assert outcome.reason == reason
    assert outcome.packet.resolution == ("provisional" if reason == "proxy_sufficient" else "unresolved")
    assert [decision.stop_reason for decision in outcome.trace.decisions if decision.stop_reason] == [reason]


def test_every_text_route_reason_is_covered() -> None:
    """The rows above leave out no stop reason of the text route."""
    others = {"path_followed", "path_unresolved", "ambiguous_request"}
    others |= {"no_next_query", "repeated_query", "sufficient", "depth_cap", "token_budget_exhausted"}
    assert {reason for reason, _ in RUNS} == {reason.value for reason in StopReason} - others


def test_adaptive_asks_for_3_and_3() -> None:
    """The lexical call asks for three rows and the dense call for the other three, with the same query text."""
    words, vectors = lexical(), dense()
    outcome = ask(words, vectors)
    assert words.calls == [(QUERY, 3)]
    assert vectors.calls == [(QUERY, 3)]
    assert (outcome.usage.calls, outcome.usage.dense_calls, outcome.usage.iterations) == (2, 1, 2)
    assert (outcome.usage.rows, outcome.usage.reads) == (6, 6)


def test_a_first_answer_that_passes_saves_the_dense_call() -> None:
    """When the lexical answer passes the test the dense searcher is never called."""
    vectors = dense()
    outcome = ask(lexical(HITS), vectors)
    assert vectors.calls == []
    assert (outcome.usage.calls, outcome.usage.dense_calls) == (1, 0)
    assert outcome.ids == ["hit"]


@pytest.mark.parametrize(("policy", "channel"), [("fixed_lexical", "lexical"), ("fixed_dense", "dense")])
def test_fixed_policies_ask_one_channel_for_all_rows(policy: str, channel: str) -> None:
    """A fixed policy makes one call for all ``max_rows`` and none to the other channel."""
    searchers = {"lexical": lexical(), "dense": dense()}
    outcome = ask(*searchers.values(), policy=policy)
    assert searchers.pop(channel).calls == [(QUERY, 6)]
    assert next(iter(searchers.values())).calls == []
    assert outcome.usage.dense_calls == (channel == "dense")


def test_first_hop_rows_shift_the_shares() -> None:
    """The dense call asks for what ``first_hop_rows`` leaves of ``max_rows``."""
    words, vectors = lexical(), dense()
    ask(words, vectors, first_hop_rows=2, budget=Budget(max_rows=7, max_reads=7))
    assert (words.calls[0][1], vectors.calls[0][1]) == (2, 5)


def test_unused_lexical_rows_do_not_go_to_the_dense_call() -> None:
    """A short lexical answer leaves the dense share as it is."""
    words, vectors = lexical(BATTERY[:1]), dense()
    assert ask(words, vectors).usage.rows == 4
    assert vectors.calls == [(QUERY, 3)]


def test_always_continue_spends_both_calls() -> None:
    """``always_continue`` searches twice even when the first answer would pass, and never claims that it did."""
    vectors = dense()
    outcome = ask(lexical(HITS), vectors, policy="always_continue")
    assert len(vectors.calls) == 1
    assert outcome.reason == "resource_budget_exhausted"
    assert outcome.packet.missing_terms == ()


@pytest.mark.parametrize(("threshold", "calls"), [(0, 1), (0.3, 1), (0.34, 2), (1, 2)])
def test_the_threshold_changes_the_calls_made(threshold: float, calls: int) -> None:
    """One of three terms is held: thresholds up to a third stop after one call, higher ones go on."""
    assert ask(lexical(), dense(), query="battery exchange guide", threshold=threshold).usage.calls == calls


def test_a_failed_call_stays_charged_and_is_not_repeated() -> None:
    """Failure costs the call, is noted, and buys no second attempt at the same channel."""
    words = FailingSearcher()
    outcome = ask(words, dense())
    assert len(words.calls) == 1
    assert (outcome.usage.calls, outcome.usage.rows) == (2, 3)
    assert outcome.outcomes == ["failed", "answered"]
    assert outcome.notes == ("channel_failed",)
    assert outcome.ids == ["d1", "d2", "d3"]


def test_evidence_survives_a_failing_second_channel() -> None:
    """What the first search found is packed when the second one fails."""
    outcome = ask(lexical(), FailingSearcher())
    assert outcome.ids == ["l1", "l2", "l3"]
    assert (outcome.usage.calls, outcome.usage.dense_calls) == (2, 1)


def test_a_raw_error_reaches_the_diagnostics_only() -> None:
    """What a searcher raised is handed to the sink and appears nowhere else."""
    records: list[dict[str, Any]] = []
    error = ConnectionError("password=hunter2")
    outcome = ask(lexical(), FailingSearcher(error), diagnostics=records.append)
    assert [(record["event"], record["channel"], record["error"]) for record in records] == [
        ("search_failed", "dense", error)
    ]
    assert "hunter2" not in outcome.packet.model_dump_json() + outcome.trace.to_json()


@pytest.mark.parametrize("policy", ["adaptive", "fixed_dense"])
def test_dense_alone_runs_fixed_dense(policy: str) -> None:
    """A graph with only a dense channel makes its one call, whatever was left at its default."""
    outcome = ask(None, dense(), policy=policy)
    assert (outcome.trace.request.policy, outcome.reason, outcome.usage.rows) == ("fixed_dense", "policy_complete", 6)


def test_lexical_alone_never_calls_dense() -> None:
    """Without a dense channel the run says which action was missing and keeps what it has."""
    outcome = ask(lexical(), policy="always_continue")
    assert outcome.ids == ["l1", "l2", "l3"]
    assert [action.why_not for action in outcome.trace.decisions[0].legal_actions] == [
        "already_attempted",
        "no_dense_channel",
        None,
    ]


def test_missing_terms_are_those_of_the_packet() -> None:
    """What no packed unit holds is listed, in query order."""
    assert ask(lexical(), dense()).packet.missing_terms == ("replace", "hx-200")
    assert ask(lexical([]), dense([])).packet.missing_terms == ("replace", "hx-200", "battery")


class Lavish(ScriptedSearcher):
    """Returns everything it has, whatever was asked for."""

    def search(self, query: str, k: int, filter: Any = None) -> list[Any]:  # noqa: ARG002
        return [*super().search(query, 99, filter), "not a row"]


def test_too_many_rows_are_cut_and_noted() -> None:
    """A searcher that returns more than asked for is cut before anything is charged, and the cut is recorded."""
    outcome = ask(Lavish(inventory.PARTS, "lexical"), dense())
    assert outcome.usage.rows == 6
    assert (outcome.trace.searches[0].requested, outcome.trace.searches[0].cut) == (3, 6)
    assert "rows_cut" in outcome.notes


def test_rows_that_are_no_candidates_are_noted() -> None:
    """A row of another type is charged, left out and noted."""
    outcome = ask(Lavish(BATTERY, "lexical"), dense())
    assert outcome.trace.searches[0].invalid == 1
    assert (outcome.notes, outcome.usage.rows) == (("invalid_rows",), 6)


@pytest.mark.parametrize("answer", [None, {"a": 1}, "rows", 7])
def test_an_answer_that_is_no_list_is_a_failed_call(answer: Any) -> None:
    """A searcher that returns something else has failed; the run goes on."""
    words = lexical()
    words.search = lambda _query, _k, _filter=None: answer
    outcome = ask(words, dense())
    assert outcome.outcomes == ["failed", "answered"]


def test_whole_units_within_the_packets_limits() -> None:
    """At most ``max_units`` whole units are packed; one too long alone is skipped and noted."""
    long = Document(id="long", page_content="battery " * 100)
    outcome = ask(lexical([long, *BATTERY]), dense(), budget=Budget(max_units=2, max_chars=100))
    assert outcome.ids == ["d1", "b1"]
    assert outcome.usage.chars == len(outcome.packet.text) == len("Note 1 on charging.") + 2 + len("The battery.")
    assert outcome.notes == ("unit_too_long",)
