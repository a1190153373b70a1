"""Attacks that once succeeded: what a caller may not see, or a limit, and a way round it."""

from __future__ import annotations

import time
import traceback
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval import (
    BM25Searcher,
    BoundedRetriever,
    ChainLimits,
    ChainResult,
    ChainStoppedError,
    EligibilityView,
    EvidencePacket,
    SubAnswer,
    create_bounded_retrieval,
    create_recursive_retrieval,
)
from bounded_retrieval.contracts.eligibility import Resolver
from bounded_retrieval.graph.chat import _TAG as CHAT_TAG
from bounded_retrieval.integrations.wording import _TAG as TOOL_TAG

SEEN = Document(id="a", page_content="pump reset at the panel", metadata={"tenant": "acme", "ssn": "123"})
HIDDEN = Document(id="b", page_content="pump reset SECRET", metadata={"tenant": "brook"})


class Units:
    """A unit source that can break on one id."""

    def __init__(self, *documents: Document, breaks_on: str = "") -> None:
        self.documents = {str(document.id): document for document in documents}
        self.breaks_on = breaks_on

    def fetch(self, unit_ids: Any) -> dict[str, Document]:
        if self.breaks_on in unit_ids:
            raise RuntimeError("SECRET row")
        return {unit_id: self.documents[unit_id] for unit_id in unit_ids if unit_id in self.documents}


class Rows:
    """A searcher over documents as they are, which ignores filters."""

    def __init__(self, *documents: Document) -> None:
        self.documents = documents

    def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
        from bounded_retrieval import Candidate

        return [
            Candidate(unit_id=str(document.id), channel="lexical", rank=rank, unit=document)
            for rank, document in enumerate(self.documents, 1)
        ]


def only(*unit_ids: str) -> Resolver:
    """A resolver of one caller who may see these units."""
    return lambda _: EligibilityView("ann", "1", allowed=lambda asked: set(unit_ids) & set(asked))


def of_acme(_runtime: Any) -> EligibilityView:
    """A resolver that decides by the tenant in the metadata."""
    return EligibilityView("ann", "1", search_filter={"tenant": "acme"})


@pytest.mark.parametrize("tag", [CHAT_TAG, TOOL_TAG])
def test_tags_are_found_in_linear_time(tag: Any) -> None:
    """Half a million blanks after an opening bracket take no longer than reading them."""
    started = time.process_time()
    tag.sub("", "<" + " " * 500_000)
    assert time.process_time() - started < 2


@pytest.mark.parametrize("metadata", [{10**5000: 1}, {"tenant": object(), "huge": 10**5000}])
def test_hidden_metadata_that_cannot_be_read_denies_its_unit_only(metadata: dict[Any, Any]) -> None:
    """A hidden unit's odd metadata ends no run and takes no other unit with it."""
    odd = Document(id="b", page_content="pump", metadata={})
    odd.metadata = {**metadata, "tenant": "brook"}
    graph = create_bounded_retrieval(Rows(odd, SEEN), units=Units(odd, SEEN), eligibility=of_acme).compile()
    packet = EvidencePacket.from_result(graph.invoke({"query": "pump"}))
    assert [item.unit_id for item in packet.items] == ["a"]


def test_a_hidden_unit_that_cannot_be_read_takes_no_other_with_it() -> None:
    """Where reading several units fails, each is tried: the visible ones are found."""
    source = Units(HIDDEN, SEEN, breaks_on="b")
    graph = create_bounded_retrieval(Rows(HIDDEN, SEEN), units=source, eligibility=of_acme).compile()
    packet = EvidencePacket.from_result(graph.invoke({"query": "pump"}))
    assert [item.unit_id for item in packet.items] == ["a"]


def test_fields_that_become_private_meanwhile_are_left_out() -> None:
    """The packet shows what the view in force at the recheck leaves public."""
    calls: list[int] = []

    def growing(_runtime: Any) -> EligibilityView:
        calls.append(1)
        private = ("ssn", "title") if len(calls) > 2 else ()
        return EligibilityView("ann", "1", allowed=set, private_fields=private)

    graph = create_bounded_retrieval(Rows(SEEN), units=Units(SEEN), eligibility=growing).compile()
    packet = EvidencePacket.from_result(graph.invoke({"query": "pump"}))
    assert packet.items[0].metadata == {"tenant": "acme"}


def test_a_private_field_may_be_named_with_any_character() -> None:
    """Names of fields are compared as they are stored."""
    odd = Document(id="a", page_content="pump", metadata={"sec\x00ret": "S1"})
    view = lambda _: EligibilityView("ann", "1", allowed=set, private_fields=("sec\x00ret",))  # noqa: E731
    graph = create_bounded_retrieval(Rows(odd), units=Units(odd), eligibility=view).compile()
    assert "S1" not in repr(graph.invoke({"query": "pump"}))


def test_an_error_to_the_caller_carries_no_swallowed_one() -> None:
    """What a unit source raised at the last recheck does not stand behind the error that the chain ends with."""
    units = Units(SEEN)
    graph = create_bounded_retrieval(Rows(SEEN), units=units, eligibility=only("a"))

    def read(*_: Any) -> None:
        units.breaks_on = "a"

    chain = create_recursive_retrieval(graph, lambda _q, trail: None if trail else "pump", read, on_stop="fail")
    with pytest.raises(ChainStoppedError) as caught:
        chain.compile().invoke({"query": "pump"}, {"recursion_limit": 50})
    assert "SECRET" not in "".join(traceback.format_exception(caught.value))


def test_a_lost_sub_answer_stands_in_no_later_query() -> None:
    """However it was spelled there, and also not among the missing terms or the open parts."""
    granted = {"a", "b"}
    view = lambda _: EligibilityView("ann", "1", allowed=lambda asked: granted & set(asked))  # noqa: E731
    search = create_bounded_retrieval(BM25Searcher.from_documents([SEEN, HIDDEN]), eligibility=view)

    def plan(_question: str, trail: Any) -> str | None:
        return ("pump reset secret", "pump reset zebra seventy seven", None)[len(trail)]

    def read(query: str, _documents: Any) -> SubAnswer | None:
        if "zebra" in query:
            granted.discard("b")
            return None
        return SubAnswer(text="Zebra\n Seventy  Seven", unit_ids=("b",))

    chain = create_recursive_retrieval(search, plan, read).compile()
    result = ChainResult.from_result(chain.invoke({"query": "pump?"}, {"recursion_limit": 50}))
    assert "zebra" not in repr(result).lower()
    assert not result.resolved


def test_a_chain_over_a_guarded_retriever_is_guarded() -> None:
    """The guard of the graph under a `BoundedRetriever` holds at the end of the chain too."""
    granted = {"a", "b"}
    view = lambda _: EligibilityView("ann", "1", allowed=lambda asked: granted & set(asked))  # noqa: E731
    retriever = BoundedRetriever.from_retrievers(BM25Searcher.from_documents([SEEN, HIDDEN]), eligibility=view)

    def read(*_: Any) -> None:
        granted.discard("b")

    chain = create_recursive_retrieval(retriever, lambda _q, trail: None if trail else "pump reset", read).compile()
    result = chain.invoke({"query": "pump"}, {"recursion_limit": 50})
    assert [document.id for document in result["documents"]] == ["a"]


def test_tokens_cannot_be_given_back() -> None:
    """A part that hands over a negative count has failed, and the others' tokens stay charged."""

    def plan(_question: str, trail: Any) -> dict[str, Any]:
        return {"query": f"pump {len(trail)} {'x' * len(trail)}", "tokens": 6}

    def read(*_: Any) -> SubAnswer:
        return SubAnswer(text="a").model_copy(update={"tokens": -6})

    documents = iter(range(100))
    chain = create_recursive_retrieval(
        lambda _: [Document(id=str(next(documents)), page_content="pump")],
        plan,
        read,
        limits=ChainLimits(max_hops=8, max_tokens=10),
    ).compile()
    result = ChainResult.from_result(chain.invoke({"query": "pump"}, {"recursion_limit": 90}))
    assert (result.stop_reason.value, result.usage.tokens) == ("token_budget_exhausted", 12)
