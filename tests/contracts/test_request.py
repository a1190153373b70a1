from __future__ import annotations

import pytest
from pydantic import ValidationError

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.request import JUDGEMENT_FIELDS, MAX_QUERY_CHARS, RetrievalRequest, query_identity
from bounded_retrieval.errors import RequestError


def refusal(**fields: object) -> str:
    """The one-line message with which a request of these fields is refused."""
    with pytest.raises(ValidationError) as caught:
        RetrievalRequest(**fields)
    return str(RequestError.from_validation(caught.value, "request"))


def test_only_the_query_is_needed() -> None:
    """Every field but the query may be left out and is then none, to fall to context and builder."""
    request = RetrievalRequest(query="replace the battery")
    assert request.model_dump(exclude={"query", "query_id"}) == {
        "policy": None,
        "threshold": None,
        "budget": None,
        "first_hop_rows": None,
        "path": None,
    }


def test_identity_is_a_stable_hash_of_the_text() -> None:
    """The default query id depends on the query's text alone and never changes."""
    request = RetrievalRequest(query="x")
    assert request.query_id == query_identity("x") == "q-2d711642b726b044"
    assert RetrievalRequest(query="x", query_id=None).query_id == request.query_id
    assert RetrievalRequest(query="y").query_id != request.query_id


def test_identity_of_an_uncleaned_query_is_that_of_the_cleaned_one() -> None:
    """A query and its cleaned form have the same id, so that a replayed request keeps it."""
    raw = RetrievalRequest(query="a\x00b\ud800")
    assert raw.query == "a\ufffdb\ufffd"
    assert raw.query_id == RetrievalRequest(query=raw.query).query_id


def test_given_identity_is_kept_and_cleaned() -> None:
    """A caller's query id is kept, without the characters that no store can hold."""
    assert RetrievalRequest(query="x", query_id="ticket 7").query_id == "ticket 7"
    assert RetrievalRequest(query="x", query_id="a\x00\udfff").query_id == "a\ufffd\ufffd"


@pytest.mark.parametrize("query_id", ["", "i" * 201])
def test_identity_is_bounded(query_id: str) -> None:
    """A query id has 1 to 200 characters."""
    assert "request.query_id" in refusal(query="x", query_id=query_id)


@pytest.mark.parametrize("query", ["", " ", "\n\t\u3000"])
def test_blank_query_is_refused(query: str) -> None:
    """A query needs one character that is not blank."""
    assert refusal(query=query).startswith("request.query: must hold at least one character")


def test_longest_query_is_the_limit_itself() -> None:
    """20,000 characters are accepted, 20,001 refused with limit and length in the message."""
    assert len(RetrievalRequest(query="q" * MAX_QUERY_CHARS).query) == 20_000
    assert refusal(query="q" * 20_001) == "request.query: at most 20000 characters (got 20001)"


def test_a_megabyte_of_query_gives_a_short_message() -> None:
    """A query far too long is refused without being repeated."""
    assert len(refusal(query="q" * 1_000_000)) < 100


@pytest.mark.parametrize("query", [None, 5, b"x", ["x"]])
def test_query_must_be_text(query: object) -> None:
    """Anything but text is refused, and the message says what was given."""
    message = refusal(query=query)
    assert message.startswith("request.query: ")
    assert repr(query) in message


@pytest.mark.parametrize("field", sorted(JUDGEMENT_FIELDS))
def test_judgements_are_refused_by_name(field: str) -> None:
    """A judgement field is named in the refusal, which says that labels never reach the decision."""
    assert refusal(query="x", **{field: {}}) == f"request: {field} refused: labels never reach the decision"


def test_qrels_are_named_even_without_our_error_text() -> None:
    """The bare pydantic error of a request with qrels names them too."""
    with pytest.raises(ValidationError, match="qrels refused: labels never reach the decision"):
        RetrievalRequest(query="x", qrels={})


def test_the_design_lists_judgement_fields() -> None:
    """The five judgement fields that the design names are among those refused."""
    assert {"qrels", "relevant_ids", "answer", "answerable", "target"} <= JUDGEMENT_FIELDS


def test_unknown_fields_are_refused_by_name() -> None:
    """A field that is no request field is named, with the value it had."""
    assert refusal(query="x", rerank=True) == "request.rerank: unknown field (got True)"


def test_every_problem_is_told_on_one_line() -> None:
    """Several problems give one line that names each field, whatever characters a field name has."""
    message = refusal(query="x", threshold=2, **{"new\nline\x1b": 1})
    assert "request.threshold: " in message
    assert "'new\\nline\\x1b'" in message
    assert message.isprintable()


@pytest.mark.parametrize("threshold", [-0.01, 1.01, float("nan"), float("inf"), "high", []])
def test_threshold_outside_0_to_1_is_refused(threshold: object) -> None:
    """A threshold is a number from 0 to 1."""
    assert refusal(query="x", threshold=threshold).startswith("request.threshold: ")


@pytest.mark.parametrize("threshold", [0, 0.8, 1])
def test_threshold_bounds_are_included(threshold: float) -> None:
    """0 and 1 are thresholds."""
    assert RetrievalRequest(query="x", threshold=threshold).threshold == threshold


@pytest.mark.parametrize("rows", [0, -1, 201, 2.5, "3", True])
def test_first_hop_rows_are_1_to_200(rows: object) -> None:
    """``first_hop_rows`` is a whole number from 1 to 200, and nothing is coerced into one."""
    assert refusal(query="x", first_hop_rows=rows).startswith("request.first_hop_rows: ")


def test_policy_is_one_of_four() -> None:
    """An unknown policy is refused and the four known ones are listed."""
    message = refusal(query="x", policy="greedy")
    assert all(name in message for name in ("adaptive", "always_continue", "fixed_lexical", "fixed_dense", "'greedy'"))


def test_budget_may_be_a_mapping() -> None:
    """A budget may come as a mapping, and remembers which limits were named."""
    budget = RetrievalRequest.model_validate({"query": "x", "budget": {"max_rows": 4}}).budget
    assert budget == Budget(max_rows=4)
    assert budget.model_fields_set == {"max_rows"}


def test_problems_inside_the_budget_are_named_by_path() -> None:
    """A bad or unknown limit is named with its whole path."""
    message = refusal(query="x", budget={"max_rows": 201, "qrels": 1})
    assert "request.budget.max_rows: " in message
    assert "request.budget.qrels: unknown field" in message


def test_path_needs_start_and_relations() -> None:
    """A path request names a start and at least one relation."""
    path = RetrievalRequest.model_validate({"query": "x", "path": {"start": "HX-200", "relations": ["part_of"]}}).path
    assert path.relations == ("part_of",)
    assert "request.path.relations" in refusal(query="x", path={"start": "HX-200", "relations": []})
    assert "request.path.start" in refusal(query="x", path={"start": "", "relations": ["part_of"]})


def test_requests_cannot_be_changed() -> None:
    """A request is frozen."""
    with pytest.raises(ValidationError, match="frozen"):
        RetrievalRequest(query="x").query = "y"
