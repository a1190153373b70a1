from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bounded_retrieval.errors import RequestError
from bounded_retrieval.ingest import DEFAULT_CHUNK_CHARS, read_documents
from bounded_retrieval.ingest.outline import ParsedDocument, Section
from bounded_retrieval.ingest.splitting import split_text, to_documents

WORDS = st.text(alphabet="ab.!-\u4e2d\u3002\u0301", min_size=1, max_size=30)
SPACES = st.sampled_from([" ", "\n", "\n\n", "\t", "  \n  \n", "\u00a0", "\u3000", ". ", "\n- ", "\n| "])
TEXTS = st.lists(st.tuples(WORDS, SPACES), max_size=60).map(lambda pairs: "".join(w + s for w, s in pairs))
PATHS = st.lists(st.sampled_from(["Install", "Linux", "A rather long heading about nothing"]), max_size=3).map(tuple)


@given(text=TEXTS, chunk_chars=st.integers(35, 120))
def test_pieces_are_bounded_and_hold_every_word(text, chunk_chars):
    """No piece is longer than allowed or padded, and the words of the pieces are the words of the text."""
    pieces = split_text(text, chunk_chars)
    assert all(0 < len(piece) <= chunk_chars and piece == piece.strip() for piece in pieces)
    assert [word for piece in pieces for word in piece.split()] == text.split()


@given(text=st.text(max_size=400), chunk_chars=st.integers(1, 60))
def test_any_text_is_cut_without_losing_a_character_of_a_word(text, chunk_chars):
    """Even where words are longer than a piece, every character that is not a space is kept in order."""
    pieces = split_text(text, chunk_chars)
    assert all(len(piece) <= chunk_chars for piece in pieces)
    assert "".join("".join(pieces).split()) == "".join(text.split())


def test_a_word_that_fits_exactly_is_not_cut():
    """A word as long as a piece stands whole between its neighbours."""
    word = "x" * 99 + "\u3002"
    assert split_text(f"a {word} b", 100) == ["a", word, "b"]


def test_a_word_that_is_too_long_is_cut_at_its_marks():
    """Text without spaces is cut after East Asian full stops where it has them, else at the limit."""
    assert split_text("\u4e2d" * 30 + "\u3002" + "\u6587" * 30, 40) == ["\u4e2d" * 30 + "\u3002", "\u6587" * 30]
    assert split_text("x" * 90, 40) == ["x" * 40, "x" * 40, "x" * 10]


def test_cuts_prefer_paragraphs_then_sentences_then_lines():
    """A paragraph that fits stays whole; a longer one is cut after a sentence, not where a line was wrapped."""
    first, second = "One two three four.", "Five six seven\neight. Nine ten eleven\ntwelve thirteen."
    assert split_text(f"{first}\n\n{second}", 40) == [
        first,
        "Five six seven\neight.",
        "Nine ten eleven\ntwelve thirteen.",
    ]


def test_list_items_and_table_rows_stay_whole():
    """A list that is too long is cut between its items, not at the sentences inside them."""
    items = ["- First item. It goes on.", "- Second item. It goes on.", "1. Third item. It goes on."]
    assert split_text("\n".join(items), 45) == items


@given(path=PATHS, text=TEXTS.filter(str.strip), chunk_chars=st.integers(100, 300))
def test_units_are_bounded_whatever_the_headings(path, text, chunk_chars):
    """The section path that begins a unit counts towards its size, and no word of the section is lost."""
    documents = to_documents(ParsedDocument("T", (Section(path, text),)), "a.md", chunk_chars)
    assert all(len(document.page_content) <= chunk_chars for document in documents)
    seen = {word for document in documents for word in document.page_content.split()}
    assert seen >= set(text.split())
    assert len({document.id for document in documents}) == len(documents)


def test_every_unit_of_a_section_begins_with_its_path():
    """A short section path stands in each unit, so that each can be found and understood alone."""
    section = Section(("Install", "Linux"), "First half. " * 10 + "\n\n" + "Second half. " * 10)
    documents = to_documents(ParsedDocument("Guide", (section,)), "guide.md", 150)
    assert [document.page_content[:28] for document in documents] == [
        "Install > Linux\nFirst half. ",
        "Install > Linux\nSecond half.",
    ]
    assert documents[0].metadata == {"title": "Guide", "source": "guide.md", "section": "Install > Linux"}


def test_equal_texts_under_one_path_are_one_unit():
    """A text that repeats in a document is given once, at its first place."""
    sections = (Section((), "Same page.", {"page": 1}), Section((), "Other.", {"page": 2}))
    documents = to_documents(ParsedDocument("T", (*sections, Section((), "Same page.", {"page": 3}))), "a.pdf", 900)
    assert [document.metadata["page"] for document in documents] == [1, 2]


def test_a_long_path_stands_once_and_whole():
    """A path that would fill a third of each unit is text at the start of the section and stays in the metadata."""
    section = Section(("Heading " * 10,), " ".join(f"w{number}" for number in range(100)))
    first, *others = to_documents(ParsedDocument("T", (section,)), "a.md", 150)
    assert first.page_content.startswith("Heading Heading")
    assert others
    assert not any("Heading" in other.page_content for other in others)


def test_an_id_is_source_slug_and_digest():
    """The id names the source and the nearest heading, and ends in sixteen hexadecimal digits."""
    (document,) = to_documents(ParsedDocument("T", (Section(("A", "Install on Linux!"), "x"),)), "sub/guide.md", 900)
    assert re.fullmatch(r"sub/guide\.md#install-on-linux-[0-9a-f]{16}", document.id)


def test_equal_texts_under_different_headings_are_different_units():
    """The digest covers the section path, so ids do not collide."""
    sections = (Section(("A", "Notes"), "None."), Section(("B", "Notes"), "None."))
    ids = [document.id for document in to_documents(ParsedDocument("T", sections), "a.md", 900)]
    assert len(set(ids)) == 2


@pytest.mark.parametrize("value", [99, 200_001, 0, -1, True, "900", 900.0, None])
def test_a_unit_size_out_of_bounds_is_refused_by_value(tmp_path, value):
    """The error is raised by the call itself and names the bounds and the value."""
    with pytest.raises(RequestError, match=re.escape(f"from 100 to 200000 (got {value!r})")):
        read_documents([tmp_path], chunk_chars=value)


def test_four_default_units_fit_the_default_packet():
    """Four units of the default size leave room for the separators within 4,000 characters."""
    assert 4 * DEFAULT_CHUNK_CHARS + 3 * 100 <= 4000
