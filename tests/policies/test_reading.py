from __future__ import annotations

import time
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval.contracts.chain import MAX_SUB_ANSWER_CHARS, SubAnswer
from bounded_retrieval.policies._reading_question import parse_question
from bounded_retrieval.policies._reading_score import WEIGHTS
from bounded_retrieval.policies._reading_text import sentences_of, word_key
from bounded_retrieval.policies._reading_words import RELATIONS, Kind
from bounded_retrieval.policies.reading import MAX_PASSAGE_CHARS, ExtractiveReader, candidates

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

any_text = st.text(st.characters(codec=None), max_size=300)
PIECES = """
Who was the of Anna May 5 1987 ( ) , . - \u2013 " '' `` in born 1,200 St. & Jong-il's \u00bd \u00b2 \u0130 \u6771\u4eac >>
"""
near_text = st.lists(st.sampled_from([*PIECES.split(), " ", "\n\n"]), max_size=40).map(" ".join)

FILM = Document(
    id="u1",
    page_content="Lanterns over Quill is a 1987 drama film directed by Mira Oduya and produced by Hal Brandt.",
    metadata={"title": "Lanterns over Quill"},
)
DIRECTOR = Document(
    id="u2",
    page_content=(
        "Mira Oduya (born 4 March 1951 in Tamale) is a Ghanaian film director. In 1979 she married the painter "
        "Jonas Feld. She has lived in Canada since 1990. Oduya was educated at Wexford University."
    ),
    metadata={"title": "Mira Oduya"},
)
BRIDGE = Document(
    id="u3",
    page_content=(
        "The Harrow Bridge crosses the Senn River near the town of Ostby. It was opened on 12 June 1904. The bridge has "
        "14 arches and carries two tracks."
    ),
    metadata={"title": "Harrow Bridge"},
)
PASSAGES = [FILM, DIRECTOR, BRIDGE]

ANSWERS = [
    ("Who directed Lanterns over Quill?", "Mira Oduya", "u1"),
    ("who directed lanterns over quill", "Mira Oduya", "u1"),
    ("Lanterns over Quill >> director", "Mira Oduya", "u1"),
    ("Lanterns over Quill >> producer", "Hal Brandt", "u1"),
    ("Mira Oduya >> spouse", "Jonas Feld", "u2"),
    ("Where was Mira Oduya born?", "Tamale", "u2"),
    ("Mira Oduya >> place of birth", "Tamale", "u2"),
    ("When was Mira Oduya born?", "4 March 1951", "u2"),
    ("Mira Oduya >> educated at", "Wexford University", "u2"),
    ("In which country has Mira Oduya lived since 1990?", "Canada", "u2"),
    ("When was the Harrow Bridge opened?", "12 June 1904", "u3"),
    ("How many arches does the Harrow Bridge have?", "14", "u3"),
    ("Which river does the Harrow Bridge cross?", "Senn River", "u3"),
]


@pytest.mark.parametrize(("query", "text", "unit_id"), ANSWERS)
def test_answers_with_the_span_and_its_unit(query, text, unit_id):
    """Questions by who, where, when, how many and which, and relations, find their span among three passages."""
    assert ExtractiveReader()(query, PASSAGES) == SubAnswer(text=text, unit_ids=(unit_id,))


@pytest.mark.parametrize(
    "query",
    ["Who is the mother of Bert Collins?", "How many people live in Ostby?", "What is the boiling point of lead?"],
)
def test_what_no_passage_holds_has_no_answer(query):
    """A question about something else stays below the threshold."""
    assert ExtractiveReader()(query, PASSAGES) is None


@pytest.mark.parametrize(
    "query", ["", " ", ">>", "?", "Mira Oduya >>", ">> spouse", "Who?", "\x00\x07", "#1 >> spouse", "Hm" * 5_000]
)
def test_odd_questions_raise_nothing(query):
    """A question with missing parts gives an answer or none."""
    answer = ExtractiveReader(threshold=-100)(query, PASSAGES)
    assert answer is None or answer.text


@pytest.mark.parametrize(
    "text", ["", " \n", "\x00\x01\x1f", "東京は日本の首都です。", "no capitals here at all", "(((", "''``\"\""]
)
def test_odd_passages_have_no_answer(text):
    """Texts without a name, a date or a number have no candidate for who, where or when."""
    for query in ("Who directed Lanterns over Quill?", "Where is Quill?", "When was Quill built?"):
        assert ExtractiveReader(threshold=-100)(query, [Document(page_content=text)]) is None


def test_no_passages_have_no_answer():
    """Without a passage there is nothing to take an answer from."""
    assert ExtractiveReader(threshold=-100)("Who directed Lanterns over Quill?", []) is None


def test_passage_without_id_or_title_is_read():
    """An answer from a unit that brings no id names no unit; a title that is no text counts as none."""
    plain = Document(page_content=FILM.page_content, metadata={"title": 7})
    assert ExtractiveReader(threshold=5)("Lanterns over Quill >> director", [plain]) == SubAnswer(text="Mira Oduya")


def test_threshold_decides_what_counts():
    """The same question is answered or not by the declared threshold alone."""
    query = "Who directed Lanterns over Quill?"
    score = max(found.score for found in candidates(query, PASSAGES))
    assert ExtractiveReader(threshold=score)(query, PASSAGES) is not None
    assert ExtractiveReader(threshold=score + 0.1)(query, PASSAGES) is None


def test_every_score_can_be_read_off_its_features():
    """Each candidate carries exactly the declared features, and its score is their weighted sum."""
    for found in candidates("Mira Oduya >> spouse", PASSAGES):
        assert found.features.keys() == WEIGHTS.keys()
        assert found.score == pytest.approx(sum(WEIGHTS[name] * value for name, value in found.features.items()))


def test_date_question_takes_no_name():
    """Where a date is asked for, a passage without figures has no answer, whatever the threshold."""
    document = Document(page_content="Mira Oduya was born in Tamale.", metadata={"title": "Mira Oduya"})
    assert ExtractiveReader(threshold=-100)("When was Mira Oduya born?", [document]) is None


def test_year_question_takes_the_year_alone():
    """Asked for a year, the reader leaves out the rest of the date."""
    answer = ExtractiveReader(threshold=0)("What year was the Harrow Bridge opened?", [BRIDGE])
    assert answer is not None
    assert answer.text == "1904"


def test_birth_and_death_are_told_apart():
    """The places in a bracket of life dates go to birth before the dash and to death behind it."""
    text = "Jonas Feld (3 May 1944, Lund \u2013 9 July 2011, Oslo) was a painter."
    document = Document(page_content=text, metadata={"title": "Jonas Feld"})
    answers = [ExtractiveReader(threshold=0)(f"Jonas Feld >> place of {end}", [document]) for end in ("birth", "death")]
    assert [answer.text for answer in answers if answer] == ["Lund", "Oslo"]


def test_possessive_is_left_out():
    """An answer in the genitive loses its ending."""
    document = Document(page_content="The film was directed by Mira Oduya's brother.", metadata={"title": "Quill"})
    answer = ExtractiveReader(threshold=0)("Quill >> director", [document])
    assert answer is not None
    assert answer.text == "Mira Oduya"


def test_capital_letter_alone_makes_no_name():
    """The first word of a sentence is no candidate if the passage also writes it small."""
    document = Document(page_content="Painters met there. Many painters came from Lund.", metadata={"title": "Quill"})
    assert {found.text for found in candidates("Who came to Quill?", [document])} == {"Lund"}


def test_document_order_breaks_no_determinism():
    """The same call gives the same answer, and an equal passage given first wins."""
    twin = FILM.model_copy(update={"id": "twin"})
    query = "Lanterns over Quill >> director"
    for documents, unit_id in (([FILM, twin], "u1"), ([twin, FILM], "twin")):
        answers = {ExtractiveReader()(query, documents) for _ in range(3)}
        assert [answer.unit_ids for answer in answers if answer] == [(unit_id,)]


HUGE = [
    "Ab ",
    "abc ",
    "A.",
    "1,",
    "a'",
    "A of the ",
    "May 5 ",
    '"',
    "(",
    " ",
    "東京は日本の首都です。",
    FILM.page_content + " ",
]


@pytest.mark.parametrize("part", HUGE)
def test_a_megabyte_takes_no_seconds(part):
    """Time is bounded for texts of any shape; what lies beyond the declared length is not read."""
    document = Document(page_content=part * (1_000_000 // len(part)))
    started = time.perf_counter()
    answer = ExtractiveReader(threshold=-100)("Tamale >> sport", [document])
    assert time.perf_counter() - started < 10
    assert answer is None or len(answer.text) <= MAX_SUB_ANSWER_CHARS


def test_text_beyond_the_bound_is_not_read():
    """A passage is read up to the declared number of characters."""
    document = Document(page_content=" " * MAX_PASSAGE_CHARS + FILM.page_content)
    assert candidates("Lanterns over Quill >> director", [document]) == []


@untimed
@given(any_text | near_text, st.lists(st.tuples(any_text | near_text, any_text | near_text), max_size=4))
def test_never_raises_and_never_repeats_the_question(query, parts):
    """Any question and passages give an answer that is a part of a passage and no part of the question, or none."""
    documents = [
        Document(id=str(i), page_content=text, metadata={"title": title}) for i, (text, title) in enumerate(parts)
    ]
    answer = ExtractiveReader(threshold=-100)(query, documents)
    assert answer == ExtractiveReader(threshold=-100)(query, documents)
    if answer is not None:
        assert answer.text in parts[int(answer.unit_ids[0])][0]
        assert not f" {query.lower()} ".count(f" {answer.text.lower()} ")


@untimed
@given(near_text)
def test_sentences_hold_every_word_once(text):
    """Cutting into sentences loses no word and repeats none."""
    starts = [word.start for sentence in sentences_of(text) for word in sentence.words]
    assert starts == sorted(set(starts))


def test_relation_table_names_known_kinds():
    """Every line of the relation table has a kind of the type and words to look for."""
    assert {kind for kind, _ in RELATIONS.values()} <= set(get_args(Kind))
    assert all(cues for _, cues in RELATIONS.values())


@pytest.mark.parametrize(
    ("query", "kind", "head"),
    [
        ("Who wrote it?", "person", None),
        ("In which year did it open?", "date", "year"),
        ("What is the name of the river in Ostby?", "place", "river"),
        ("What kind of bridge is it?", "thing", "bridg"),
        ("How much did it cost?", "number", None),
        ("Harrow Bridge >> country", "country", None),
        ("Harrow Bridge >> gauge", "name", None),
    ],
)
def test_question_is_read(query, kind, head):
    """The kind and the asked-for noun come from the first question word, or from the relation."""
    question = parse_question(query)
    assert (question.kind, question.head) == (kind, head)


def test_forms_of_a_word_meet():
    """Inflected forms share a key; short words and figures stay as they are."""
    assert len({word_key(word) for word in ("directed", "director", "directs", "directing")}) == 1
    assert [word_key(word) for word in ("born", "1904", "june's")] == ["born", "1904", "june"]
