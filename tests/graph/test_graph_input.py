"""What the graph makes of any input: a clear error or a valid packet."""

from __future__ import annotations

from typing import Any

import pytest
from inventory import HITS, QUERY, Outcome, ask, dense, documents, lexical

from bounded_retrieval.contracts.request import RetrievalRequest
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval

BAD = [
    ({}, "query: missing from the graph's input"),
    ({"question": QUERY}, "query: missing from the graph's input"),
    ({"query": None}, "query: missing from the graph's input"),
    ({"request": {"policy": "adaptive"}}, "query: missing from the graph's input"),
    ({"query": ""}, r"request\.query: must hold at least one character that is not blank"),
    ({"query": " \n\t"}, r"request\.query: must hold at least one character that is not blank"),
    ({"query": 5}, r"request\.query: Input should be a valid string \(got 5\)"),
    ({"query": b"battery"}, r"request\.query: Input should be a valid string \(got b'battery'\)"),
    ({"query": [QUERY]}, r"request\.query: Input should be a valid string"),
    ({"query": "q" * 20_001}, r"request\.query: at most 20000 characters \(got 20001\)"),
    ({"query": "q" * 1_000_000}, r"request\.query: at most 20000 characters \(got 1000000\)"),
    ({"query": QUERY, "request": {"query": "other"}}, r"request\.query: differs from the input's query"),
    ({"query": QUERY, "request": {"rerank": True}}, r"request\.rerank: unknown field \(got True\)"),
    ({"query": QUERY, "request": {"qrels": {}}}, "request: qrels refused: labels never reach the decision"),
    ({"query": QUERY, "request": {"target": "hit"}}, "request: target refused: labels never reach the decision"),
    ({"query": QUERY, "request": {"threshold": 1.01}}, r"request\.threshold: .*\(got 1\.01\)"),
    (
        {"query": QUERY, "request": {"budget": {"max_rows": 7}}},
        r"request\.budget\.max_rows: may only lower the limit 6 \(got 7\)",
    ),
    ({"query": QUERY, "request": {"budget": {"max_rows": "many"}}}, r"request\.budget\.max_rows: .*\(got 'many'\)"),
    ({"query": QUERY, "request": {"budget": {"max_calls": -1}}}, r"request\.budget\.max_calls: .*\(got -1\)"),
    ({"query": QUERY, "request": {"path": {"start": "HX-200", "relations": ["part_of"]}}}, r"path: .*relationships"),
    (
        {"query": QUERY, "request": [("policy", "adaptive")]},
        r"request: expected a mapping of RetrievalRequest fields \(got list\)",
    ),
]


@pytest.mark.parametrize(("given", "message"), BAD, ids=range(len(BAD)))
def test_bad_input_is_refused_before_any_search(given: Any, message: str) -> None:
    """Each kind of bad input gives one short line naming the field, and no searcher is called."""
    words, vectors = lexical(), dense()
    with pytest.raises(RequestError, match=message) as caught:
        create_bounded_retrieval(words, vectors).compile().invoke(given)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300
    assert words.calls == vectors.calls == []


ODD = [
    "who is the",
    "?!",
    "\u200b",
    "\x00",
    "battery\x00\ud800\udfff",
    "استبدال بطارية HX-200",
    "\u202eHX-200 \u05d0\u05d1\u05d2",
    "装置HX-200の電池を交換",
    "बैटरी बदलें",
    "e\u0301" * 1000,
    "a\u0300\u0316" * 6_666,
    "🔋" * 100,
    "q" * 20_000,
    "-" * 20_000,
    "HX-200 " * 2_857,
]


@pytest.mark.parametrize("query", ODD, ids=ascii)
def test_odd_queries_end_in_a_valid_packet(query: str) -> None:
    """Stop words, punctuation, NUL, lone surrogates, any script and the longest query give a packet that round-trips."""
    outcome = ask(lexical(), dense(), query=query, policy="always_continue")
    assert type(outcome.packet).model_validate_json(outcome.packet.model_dump_json()) == outcome.packet
    assert type(outcome.trace).model_validate_json(outcome.trace.to_json()) == outcome.trace
    assert outcome.usage.calls == 2


def test_searchers_receive_the_cleaned_query() -> None:
    """What no store could hold is replaced before anything is searched, and both channels get the same text."""
    words, vectors = lexical(), dense()
    ask(words, vectors, query=" batt\x00ery\ud800 ")
    assert words.calls[0][0] == vectors.calls[0][0] == " batt\ufffdery\ufffd "


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("who are they", "They are who we thought."),
        ("استبدال بطارية HX-200", "دليل استبدال بطارية الجهاز HX-200"),
        ("装置HX-200の電池", "装置HX-200の電池を交換する。"),
        ("बैटरी बदलें", "बैटरी बदलें और चालू करें।"),
        ("hx\u2011200 batterie tauschen", "HX-200: Batterie tauschen"),
        ("\uff28\uff38\uff0d\uff12\uff10\uff10", "The HX-200."),
    ],
)
def test_any_script_can_pass_the_test(query: str, text: str) -> None:
    """A unit that says what was asked for is recognised in every script."""
    assert ask(lexical(documents(u=text)), dense(), query=query).reason == "proxy_sufficient"


@pytest.mark.parametrize(
    "text", ["Replace the HX-2000 battery.", "Replace the HX 200 battery.", "Replace the HX200 battery."]
)
def test_a_near_identical_device_never_passes(text: str) -> None:
    """A unit about a device with a similar name does not pass, even at threshold 0."""
    outcome = ask(lexical(documents(u=text)), dense([]), threshold=0)
    assert outcome.reason == "no_new_evidence"
    assert outcome.packet.missing_terms == ("hx-200",)


def test_unknown_top_level_keys_are_dropped_by_langgraph() -> None:
    """A top-level key that is no channel never reaches a node, so it cannot change the run."""
    graph = create_bounded_retrieval(lexical(HITS), dense()).compile()
    assert graph.invoke({"query": QUERY, "qrels": {}, "policy": "fixed_dense"}) == graph.invoke({"query": QUERY})


@pytest.mark.parametrize(
    "private", ["settings", "usage", "units", "candidates", "events", "decision", "sources", "notes"]
)
def test_private_channels_cannot_be_given(private: str) -> None:
    """Nothing of the private state can be written from outside."""
    graph = create_bounded_retrieval(lexical(HITS), dense()).compile()
    assert graph.invoke({"query": QUERY, private: {"max_calls": 99}}) == graph.invoke({"query": QUERY})


def test_request_forms_are_equal() -> None:
    """A mapping, a request object, and a request that repeats the query give the same run."""
    graph = create_bounded_retrieval(lexical(), dense()).compile()
    forms = [
        {"query": QUERY, "request": {"policy": "fixed_dense"}},
        {"query": QUERY, "request": {"query": QUERY, "policy": "fixed_dense", "threshold": None}},
        {"request": {"query": QUERY, "policy": "fixed_dense"}},
        {"query": QUERY, "request": RetrievalRequest(query=QUERY, policy="fixed_dense")},
    ]
    first, *others = [graph.invoke(form) for form in forms]
    assert all(other == first for other in others)
    assert Outcome(first).reason == "policy_complete"


def test_the_request_before_the_context_before_the_builder() -> None:
    """In a real run, too, the request overrides the context and the context the builder."""
    run = ask(
        lexical(),
        dense(),
        policy="always_continue",
        context={"policy": "fixed_dense", "threshold": 0.5},
        request={"policy": "fixed_lexical"},
    )
    assert (run.trace.request.policy, run.trace.request.threshold) == ("fixed_lexical", 0.5)
