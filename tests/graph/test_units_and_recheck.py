"""Which units are read, and what the recheck does with them before anything is packed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import inventory
import pytest
from inventory import HIT, HITS, PARTS, ask, dense, lexical
from langchain_core.documents import Document

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.testing import ScriptedSearcher

PAIR = inventory.documents(a="The battery.", b="The charger.")


class Source:
    """A unit source that holds what it is given, counts its readings and may be empty."""

    def __init__(self, *held: Document) -> None:
        self.held = {document.id: document for document in held}
        self.asked: list[list[str]] = []

    def __len__(self) -> int:
        return len(self.held)

    def fetch(self, unit_ids: Any) -> Mapping[str, Document]:
        self.asked.append(list(unit_ids))
        return {unit_id: self.held[unit_id] for unit_id in unit_ids if unit_id in self.held}


class BrokenSource(Source):
    def fetch(self, unit_ids: Any) -> Mapping[str, Document]:  # noqa: ARG002
        raise OSError("/secret/path is unreadable")


class OddSource(Source):
    def fetch(self, unit_ids: Any) -> Any:
        return [self.held.get(unit_id) for unit_id in unit_ids]


class References:
    """A searcher that returns ids without texts; it has no ``fetch``."""

    def __init__(self, *unit_ids: str) -> None:
        self.unit_ids = unit_ids

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        return [
            Candidate(unit_id=unit_id, channel="lexical", rank=rank)
            for rank, unit_id in enumerate(self.unit_ids[:k], 1)
        ]


class Forgetful:
    """A searcher that brings texts and has no ``fetch``."""

    def __init__(self, found: list[Document]) -> None:
        self.inner = ScriptedSearcher(found, "lexical")

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:
        return self.inner.search(query, k, filter)


def test_the_same_text_under_two_ids_is_one_unit() -> None:
    """A text that both channels know under different ids is one item, read once, with both channels' ranks."""
    outcome = ask(lexical(PAIR), dense(inventory.documents(x="The battery.", y="The cable.")))
    assert outcome.ids == ["a", "b", "y"]
    assert outcome.usage.reads == 3
    assert {name: result.rank for name, result in outcome.packet.items[0].channels.items()} == {
        "lexical": 1,
        "dense": 1,
    }
    assert outcome.trace.searches[1].new_units == 1


def test_a_second_answer_of_known_texts_is_nothing_new() -> None:
    """Other ids for texts already seen are no new evidence."""
    assert ask(lexical(PAIR), dense(inventory.documents(x="The battery."))).reason == "no_new_evidence"


def test_references_are_read_from_the_unit_source() -> None:
    """Candidates without text are fetched in one batched reading, and again at the recheck."""
    source = Source(*PARTS)
    outcome = ask(References("l1", "l2"), units=source)
    assert source.asked == [["l1", "l2"], ["l1", "l2"]]
    assert outcome.ids == ["l1", "l2"]
    assert outcome.usage.reads == 2


def test_an_empty_unit_source_is_still_the_source() -> None:
    """A source that holds nothing is asked, and what it does not know is neither read nor replaced by the searcher's."""
    words = lexical(HITS)
    words.search = References("hit").search
    outcome = ask(words, units=Source())
    assert (outcome.ids, outcome.notes) == ([], ("units_unread",))


def test_reads_are_limited_before_fetching() -> None:
    """No more ids are fetched than may be read; the others stay references and are noted."""
    source = Source(*PARTS)
    outcome = ask(References("l1", "l2", "l3"), units=source, budget=Budget(max_reads=2))
    assert source.asked[0] == ["l1", "l2"]
    assert (outcome.usage.reads, outcome.usage.rows) == (2, 3)
    assert outcome.ids == ["l1", "l2"]
    assert "units_unread" in outcome.notes


def test_references_that_nobody_can_read_end_in_an_empty_packet() -> None:
    """Without any text to be had the run still ends in a packet that says so."""
    outcome = ask(References("l1"))
    assert (outcome.ids, outcome.usage.reads, outcome.notes) == ([], 0, ("units_unread",))


def test_a_failing_fetch_leaves_units_unread() -> None:
    """When texts cannot be fetched after a search the run goes on, and the error goes to the diagnostics alone."""
    records: list[dict[str, Any]] = []
    outcome = ask(References("l1"), dense(), units=BrokenSource(), diagnostics=records.append)
    assert outcome.outcomes == ["answered", "answered"]
    assert records[0]["event"] == "fetch_failed"
    assert isinstance(records[0]["error"], OSError)
    assert "secret" not in outcome.packet.model_dump_json() + outcome.trace.to_json()


def test_an_assessor_sees_only_rows_whose_unit_it_can_see() -> None:
    """Every candidate that an assessor is given has its text beside it."""
    seen = []

    class Nosy:
        name = "nosy"
        default_threshold = 0.8
        settings: Mapping[str, Any] = {}

        def assess(self, given: Any) -> Any:
            seen.append((set(given.units), {candidate.unit_id for candidate in given.candidates}))
            raise RuntimeError("no opinion")

    outcome = ask(
        References("l1", "l2", "l3"),
        dense(),
        units=Source(*PARTS, *inventory.NOTES),
        assessor=Nosy(),
        budget=Budget(max_reads=2),
    )
    assert seen == [({"l1", "l2"}, {"l1", "l2"})]
    assert "assessor_failed" in outcome.notes


@pytest.mark.parametrize("current", [[], [HITS[0].model_copy(update={"page_content": "Other."})]])
def test_a_unit_deleted_or_changed_since_is_dropped(current: list[Document]) -> None:
    """An item that is gone, or whose text is another by now, is not evidence; that it was dropped is noted."""
    outcome = ask(lexical(HITS), dense(), units=Source(*current))
    assert outcome.ids == []
    assert outcome.notes == ("dropped_at_recheck",)
    assert outcome.packet.missing_terms == ("replace", "hx-200", "battery")
    assert outcome.reason == "proxy_sufficient"


def test_only_what_changed_is_dropped() -> None:
    """The others are ranked and packed as if the dropped one had never been found."""
    outcome = ask(lexical(PAIR), units=Source(PAIR[1]))
    assert outcome.ids == ["b"]
    assert outcome.packet.items[0].channels["lexical"].rank == 1


def test_a_changed_title_does_not_drop_a_unit() -> None:
    """The recheck compares texts; other metadata may change."""
    outcome = ask(lexical(HITS), units=Source(Document(id="hit", page_content=HIT, metadata={"title": "New"})))
    assert outcome.ids == ["hit"]


def test_dropped_units_leave_the_trace() -> None:
    """In the returned trace a dropped unit is a count: its id stands nowhere."""
    outcome = ask(lexical(PAIR), dense(), units=Source(PAIR[1], *inventory.NOTES))
    text = outcome.trace.to_json()
    assert '"a"' not in text
    assert '"b"' in text
    assert (outcome.trace.searches[0].dropped, outcome.trace.decisions[-1].dropped_observations) == (1, 1)


def test_dropped_ids_reach_the_diagnostics_only() -> None:
    """Which units were dropped is a protected record."""
    records: list[dict[str, Any]] = []
    outcome = ask(lexical(PAIR), units=Source(PAIR[1]), diagnostics=records.append)
    (record,) = records
    assert record == {
        "event": "dropped_at_recheck",
        "query_id": outcome.packet.query_id,
        "unit_ids": ["a"],
        "reasons": {"a": "gone"},
    }


@pytest.mark.parametrize("source", [BrokenSource(), OddSource(*HITS)])
def test_a_recheck_that_cannot_be_made_drops_everything(source: Source) -> None:
    """When the source fails or answers with something else, nothing is exposed, and the packet says why."""
    outcome = ask(lexical(HITS), units=source)
    assert outcome.ids == []
    assert outcome.notes == ("recheck_failed", "dropped_at_recheck")


def test_each_searcher_vouches_for_what_it_returned_first() -> None:
    """Without a unit source a searcher that can fetch is asked about its own units, and the others are noted."""
    words = Forgetful(PAIR)
    outcome = ask(words, dense(), policy="always_continue")
    assert {"a", "b", "d1"} <= set(outcome.ids)
    assert outcome.notes == ("text_not_rechecked",)


def test_nobody_to_ask_is_noted() -> None:
    """Where no text can be fetched again the text in state is used and the packet says so."""
    outcome = ask(Forgetful(HITS))
    assert (outcome.ids, outcome.notes) == (["hit"], ("text_not_rechecked",))


def test_a_searcher_may_decline_to_vouch_for_a_unit() -> None:
    """A unit that its searcher says it cannot fetch is noted, not dropped; the others are rechecked."""
    words = lexical(PAIR)
    words.vouches_for = lambda unit_id: unit_id == "a"
    words.fetch = lambda unit_ids: {unit_id: PAIR[0] for unit_id in unit_ids if unit_id == "a"}
    outcome = ask(words)
    assert (outcome.ids, outcome.notes) == (["a", "b"], ("text_not_rechecked",))


def test_an_empty_run_needs_no_recheck() -> None:
    """With nothing found nothing is asked of the source, and nothing is noted."""
    source = BrokenSource()
    assert ask(lexical([]), dense([]), units=source).notes == ()


def test_the_recheck_costs_no_reads_and_no_calls() -> None:
    """Reading the current text is part of ending a run and is not charged."""
    outcome = ask(lexical(HITS), units=Source(*HITS))
    assert (outcome.usage.calls, outcome.usage.reads, outcome.usage.rows) == (1, 1, 1)


def test_the_callers_documents_are_left_alone() -> None:
    """A run changes neither the documents nor the metadata that a searcher handed over."""
    document = Document(id="u", page_content=HIT + "\x00", metadata={"tags": ("x",), "title": "T"})
    before = document.model_copy(deep=True)
    outcome = ask(lexical([document]), policy="fixed_lexical")
    assert document == before
    assert outcome.packet.items[0].metadata == {"tags": ["x"]}
    assert outcome.packet.items[0].text == HIT + "\ufffd"
