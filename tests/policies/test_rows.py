from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Candidate, Unit
from bounded_retrieval.policies.rows import Reading, Rows, cut_rows, read_rows


def row(unit_id: str, text: str | None = None, channel: str = "lexical") -> Candidate:
    """A row, with or without its text."""
    unit = None if text is None else Document(id=unit_id, page_content=text)
    return Candidate(unit_id=unit_id, channel=channel, rank=1, score=0.5, unit=unit)


def known(**texts: str) -> dict[str, Unit]:
    """Units by id and text."""
    return {unit_id: Unit.from_document(Document(id=unit_id, page_content=text)) for unit_id, text in texts.items()}


def read(rows: list[Candidate], reads_left: int = 9, fetched: dict[str, Any] | None = None, **texts: str) -> Reading:
    """A reading of these rows."""
    reading = Reading(known=known(**texts), reads_left=reads_left)
    reading.take(rows, fetched or {})
    return reading


def cut(answer: Any, channel: Any, asked: int) -> Rows:
    """An answer read and cut to what was asked for."""
    rows, more = read_rows(answer, channel, asked)
    return cut_rows(rows, asked, more)


def ids(reading: Reading) -> list[str]:
    """The ids that a reading kept."""
    return [candidate.unit_id for candidate in reading.rows]


def test_an_answer_is_cut_to_what_was_asked_for() -> None:
    """Rows beyond those asked for are cut, counted, and not charged."""
    rows = cut([row("a"), row("b"), row("c")], "lexical", 2)
    assert [candidate.unit_id for candidate in rows.valid] == ["a", "b"]
    assert (rows.charged, rows.cut, rows.invalid) == (2, 1, 0)


def test_what_is_no_candidate_is_set_aside_but_charged() -> None:
    """A row of another type is not used, and it still counts as a returned row."""
    rows = cut([None, row("a"), {"unit_id": "b"}], "lexical", 3)
    assert [candidate.unit_id for candidate in rows.valid] == ["a"]
    assert (rows.charged, rows.cut, rows.invalid) == (3, 0, 2)


def test_the_channel_is_the_one_that_was_asked() -> None:
    """A searcher cannot pass its rows off as another channel's."""
    assert cut([row("a", channel="lexical")], "dense", 1).valid[0].channel == "dense"


@pytest.mark.parametrize("answer", [None, "ab", b"ab", {"a": 1}, 5, iter([]), {1}])
def test_an_answer_that_is_no_list_is_an_error(answer: Any) -> None:
    """Anything but a sequence of rows is a failed call, and the message names its type."""
    with pytest.raises(TypeError, match=type(answer).__name__):
        cut(answer, "lexical", 3)


@pytest.mark.parametrize("answer", [[], ()])
def test_an_empty_answer_is_an_answer(answer: Any) -> None:
    """No rows is nothing found, not a failure."""
    assert cut(answer, "lexical", 3).valid == ()


def test_any_sequence_is_an_answer() -> None:
    """A tuple or a deque is as good as a list."""
    for kind in (tuple, deque):
        rows = cut(kind([row("a"), row("b")]), "lexical", 1)
        assert ([candidate.unit_id for candidate in rows.valid], rows.cut) == (["a"], 1)


def test_ranks_count_from_1_without_duplicates() -> None:
    """A unit's later rows are dropped and counted, and ranks run on without gaps."""
    reading = read([row("a", "one"), row("a", "one"), row("b", "two")])
    assert [(candidate.unit_id, candidate.rank) for candidate in reading.rows] == [("a", 1), ("b", 2)]
    assert reading.duplicates == 1
    assert all(candidate.unit is None for candidate in reading.rows)


def test_the_same_text_under_two_ids_is_one_unit() -> None:
    """The first id that a text was seen under stands for it, within an answer and across answers."""
    reading = read([row("a", "one"), row("b", "one"), row("c", "old")], old="old")
    assert ids(reading) == ["a", "old"]
    assert list(reading.fresh) == ["a"]
    assert reading.duplicates == 1


def test_units_that_bring_no_text_are_wanted_in_rank_order() -> None:
    """Only unknown ids without text of their own are asked for, once each, and no more than may be read."""
    rows = [row("k"), row("a"), row("b", "two"), row("a"), row("c"), row("d")]
    assert Reading(known=known(k="known"), reads_left=9).wanted(rows) == ["a", "c", "d"]
    assert Reading(known=known(k="known"), reads_left=3).wanted(rows) == ["a", "c"]
    assert Reading(known={}, reads_left=0).wanted(rows) == []


def test_fetched_texts_are_read() -> None:
    """A unit without text takes the fetched one under its own id."""
    reading = read([row("a")], fetched={"a": Document(id="other", page_content="one")})
    assert reading.fresh["a"].text == "one"
    assert reading.unread == 0


@pytest.mark.parametrize("fetched", [{}, {"a": None}, {"a": "text"}, {"a": Document(page_content=" \n")}])
def test_without_text_a_unit_stays_unread(fetched: dict[str, Any]) -> None:
    """A row whose text is missing, blank or of another type is kept as a reference, counted, and costs no read."""
    reading = read([row("a")], reads_left=1, fetched=fetched)
    assert ids(reading) == ["a"]
    assert (reading.unread, reading.fresh, reading.reads_left) == (1, {}, 1)


def test_reads_are_limited() -> None:
    """Beyond the reads left a unit is kept as a reference only; known and repeated texts cost nothing."""
    reading = read(
        [row("k"), row("a", "one"), row("b", "one"), row("c", "two"), row("d", "three")], reads_left=2, k="known"
    )
    assert list(reading.fresh) == ["a", "c"]
    assert ids(reading) == ["k", "a", "c", "d"]
    assert (reading.reads_left, reading.unread, reading.duplicates) == (0, 1, 1)


def test_the_searchers_rows_are_not_changed() -> None:
    """Candidates and documents that a searcher returned are copied, not edited."""
    document = Document(id="a", page_content="one\x00", metadata={"tags": ("x",)})
    answer = [Candidate(unit_id="a", channel="lexical", rank=7, unit=document)]
    reading = read(list(cut(answer, "dense", 1).valid))
    assert reading.fresh["a"].text == "one\ufffd"
    assert (answer[0].channel, answer[0].rank) == ("lexical", 7)
    assert (document.page_content, document.metadata) == ("one\x00", {"tags": ("x",)})
