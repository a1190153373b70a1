from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bounded_retrieval.contracts.chain import MAX_SUB_ANSWER_CHARS, Hop, NextQuery, SubAnswer
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.policies.planners import TemplatePlanner

QUESTION = "Who was the first president of the company that published Starfall?"
LINE = ("What company published Starfall?", "Who was the first president of #1?")
NOTHING_MORE = NextQuery(query=None)


def trail(*answers: str | None) -> tuple[Hop, ...]:
    """Hops 1, 2, ... with these sub-answers."""
    return tuple(Hop(number=n, query=f"query {n}", sub_answer=answer) for n, answer in enumerate(answers, 1))


def filled(template: str, *answers: str | None) -> str | None:
    """What the template after these sub-answers becomes."""
    planner = TemplatePlanner([*(f"Step {n}?" for n in range(1, len(answers) + 1)), template])
    return planner.plan("q", trail(*answers)).query


def test_each_template_is_given_in_turn():
    """The first query needs no sub-answer, the second takes the first's, and then nothing is left to look up."""
    planner = TemplatePlanner(LINE)
    assert planner.plan(QUESTION, ()) == NextQuery(query="What company published Starfall?")
    assert planner.plan(QUESTION, trail("Tor Books")) == NextQuery(
        query="Who was the first president of Tor Books?", unresolved=()
    )
    assert planner.plan(QUESTION, trail("Tor Books", "Tom Doherty")) == NOTHING_MORE


def test_a_missing_sub_answer_leaves_the_rest_open():
    """Where a needed sub-answer is missing, that template and every further one stay open, filled in as far as known."""
    planner = TemplatePlanner(
        ["Who wrote X?", "Where was X printed?", "Did #1 live in #2?", "Who ruled #2?", "And #4?"]
    )
    assert planner.plan("q", trail("Ann", None)) == NextQuery(
        query=None, unresolved=("Did Ann live in #2?", "Who ruled #2?", "And #4?")
    )


def test_a_missing_sub_answer_that_is_not_needed_does_not_stop_the_chain():
    """A template that does not use the missing sub-answer is looked up all the same."""
    planner = TemplatePlanner(["Who wrote X?", "Where was Y printed?", "Who ruled #2?"])
    assert planner.plan("q", trail(None)).query == "Where was Y printed?"
    assert planner.plan("q", trail(None, "Ghent")).query == "Who ruled Ghent?"


@pytest.mark.parametrize("blank", [None, "", " \n "])
def test_a_blank_sub_answer_is_none(blank):
    """White space is no sub-answer: nothing is filled in with it, and the decomposition is not complete."""
    planner = TemplatePlanner(LINE)
    assert planner.plan(QUESTION, trail(blank)).unresolved == (LINE[1],)
    assert not planner.is_complete(QUESTION, trail(blank, "Tom Doherty"))


def test_a_failed_hop_keeps_its_template():
    """A hop whose search failed has used up its template: the next one is planned, not the same one again."""
    failed = Hop(number=1, query="query 1", outcome="failed")
    assert TemplatePlanner(["Who wrote X?", "Who printed Y?"]).plan("q", (failed,)).query == "Who printed Y?"


def test_hops_answer_templates_by_their_number():
    """A trail out of order, or with a hop left out, still answers each template by the hop's own number."""
    planner = TemplatePlanner(["A?", "B?", "C of #1 and #2?"])
    first, second = trail("one", "two")
    assert planner.plan("q", (second, first)).query == "C of one and two?"
    assert planner.plan("q", (second,)).query == "A?"
    assert not planner.is_complete("q", (second,))


FILLED = {
    "possessive": ("Who is #1's spouse?", ("Ann",), "Who is Ann's spouse?"),
    "possessive apart": ("Who is #1 's spouse?", ("Ann",), "Who is Ann 's spouse?"),
    "typographic possessive": ("Who is #1\u2019s spouse?", ("Ann",), "Who is Ann\u2019s spouse?"),
    "space before the end": ("Who leads #1 ?", ("Acme",), "Who leads Acme?"),
    "spaces and lines": ("  Who\n leads   #1 ? ", ("Acme",), "Who leads Acme?"),
    "at the start": ("#1 >> spouse", ("Ann",), "Ann >> spouse"),
    "alone": ("#1", ("Ann",), "Ann"),
    "in brackets": ("(#1) [#2] '#1'", ("a", "b"), "(a) [b] 'a'"),
    "joined": ("#1-#2, #1/#2", ("a", "b"), "a-b, a/b"),
    "before a full stop": ("About #1.", ("Ann",), "About Ann."),
    "several": ("Did #2 meet #1 before #2?", ("Ann", "Bob"), "Did Bob meet Ann before Bob?"),
    "answer with a placeholder": ("#1 and #2", ("#2", "x"), "#2 and x"),
    "answer with its own placeholder": ("#1!", ("#1",), "#1!"),
    "answer with a backslash": ("#1", (r"\1 \g<0> C:\new",), r"\1 \g<0> C:\new"),
    "answer of several lines": ("Who leads #1?", ("Acme\n  Ltd ",), "Who leads Acme Ltd?"),
    "in a word": ("C#1 or #1", ("Ann",), "C#1 or Ann"),
    "ordinal": ("the #1st, #1", ("Ann",), "the #1st, Ann"),
    "decimal": ("firmware #1.5 of #1", ("Ann",), "firmware #1.5 of Ann"),
    "name": ("field #1_a of #1", ("Ann",), "field #1_a of Ann"),
    "escaped": ("the ##1 song by #1", ("Ann",), "the #1 song by Ann"),
    "no number": ("# #x #1", ("Ann",), "# #x Ann"),
    "other digits": ("#\u0661 #1", ("Ann",), "#\u0661 Ann"),
    "any length of digits": (f"#{'1' * 5000} #1", ("Ann",), f"#{'1' * 5000} Ann"),
}


@pytest.mark.parametrize(("template", "answers", "expected"), FILLED.values(), ids=FILLED.keys())
def test_a_template_is_filled_in(template, answers, expected):
    """Placeholders are found where they stand alone, filled in once, and left alone inside words and numbers."""
    assert filled(template, *answers) == expected


def test_a_longer_number_is_another_placeholder():
    """``#1`` is not found inside ``#10``."""
    planner = TemplatePlanner([*(f"Step {n}?" for n in range(1, 11)), "Is #10 like #1?"])
    assert planner.plan("q", trail("one")).query == "Step 2?"
    hops = (*trail("one", *"bcdefgh"), Hop.model_construct(number=9, query="q9", sub_answer="nine"))
    tenth = Hop.model_construct(number=10, query="q10", sub_answer="ten")
    assert planner.plan("q", (*hops, tenth)).query == "Is ten like one?"


REFUSED: dict[str, tuple[Any, str]] = {
    "itself": (["Who is #1?"], "templates: template 1 uses #1, but none is there by then (got 'Who is #1?')"),
    "later": (["A?", "Who is #1?", "#2 and #4?"], "template 3 uses #4, but only #1 to #2 are there by then"),
    "zero": (["A?", "Who is #0?"], "template 2 uses #0"),
    "blank": (["A?", " \n"], "template 2 is blank or no text (got ' \\n')"),
    "no text": (["A?", None], "template 2 is blank or no text (got None)"),
    "none": ([], "templates: at least one template (got none)"),
    "no question": ({}, "templates: at least one question with its templates (got none)"),
    "one text": ("What company published X?", "templates: expected a sequence of templates (got str)"),
    "set": ({"A?", "B?"}, "templates: expected a sequence of templates (got set)"),
    "nothing": (None, "templates: expected a sequence of templates (got NoneType)"),
    "none for a question": ({"Q?": []}, "templates['Q?']: at least one template"),
    "one text for a question": ({"Q?": "A?"}, "templates['Q?']: expected a sequence of templates (got str)"),
    "later for a question": ({"Q?": ["#1?"]}, "templates['Q?']: template 1 uses #1"),
    "blank question": ({" ?": ["A?"]}, "templates[' ?']: expected the text of a question"),
    "numbered question": ({1: ["A?"]}, "templates[1]: expected the text of a question"),
    "question twice": ({"Q?": ["A?"], "q": ["B?"]}, "templates['q']: the same question is there twice"),
}


@pytest.mark.parametrize(("templates", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_decomposition_that_cannot_work_is_refused(templates, message):
    """What can never be filled in is refused when the planner is made, in one line that names the template."""
    with pytest.raises(ConfigurationError) as caught:
        TemplatePlanner(templates)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_long_template_is_cut_in_the_message():
    """The message stays readable whatever the template's length."""
    with pytest.raises(ConfigurationError) as caught:
        TemplatePlanner([f"{'x' * 5000} #1"])
    assert len(str(caught.value)) < 200


def test_each_question_has_its_own_decomposition():
    """A mapping is looked up without regard to case, spaces and final punctuation, and to nothing else."""
    planner = TemplatePlanner({QUESTION: LINE, "Other?": ["Another one?"]})
    assert planner.plan(f"  {QUESTION.upper().rstrip('?')} ", ()).query == LINE[0]
    assert planner.plan("other", ()).query == "Another one?"
    assert planner.plan("What else?", ()) == NextQuery(query=None, unresolved=("What else?",))
    assert not planner.is_complete("What else?", trail("a", "b"))


def test_two_spellings_of_one_question_may_agree():
    """The same question twice with the same templates is no contradiction."""
    assert TemplatePlanner({"Q?": ["A?"], "q": ["A?"]}).plan("Q", ()).query == "A?"


@pytest.mark.parametrize(
    ("answers", "complete"),
    [((), False), (("a",), False), ((None, "b"), False), (("a", None), False), (("a", "b"), True)],
)
def test_complete_means_a_sub_answer_for_every_template(answers, complete):
    """The planner's own sufficiency test passes only when no template is without a sub-answer."""
    assert TemplatePlanner(LINE).is_complete(QUESTION, trail(*answers)) is complete


def test_a_planner_can_be_copied_and_sent_to_another_process():
    """A planner holds plain values and no caller's objects."""
    given_templates = list(LINE)
    planner = TemplatePlanner(given_templates)
    given_templates.clear()
    for copied in (copy.deepcopy(planner), pickle.loads(pickle.dumps(planner))):
        assert copied.plan(QUESTION, ()) == planner.plan(QUESTION, ()) == NextQuery(query=LINE[0])


@given(answer=st.text(min_size=1, max_size=MAX_SUB_ANSWER_CHARS + 10))
def test_any_sub_answer_is_put_in_once_and_as_it_stands(answer):
    """Whatever a reader gives, the query holds it with white space as one space, or stays open."""
    text = " ".join(SubAnswer(text=answer).text.split())
    plan = TemplatePlanner(["A?", "<#1> #1"]).plan("q", trail(SubAnswer(text=answer).text))
    assert plan == (NextQuery(query=f"<{text}> {text}") if text else NextQuery(query=None, unresolved=("<#1> #1",)))


@given(template=st.text(alphabet="#019 aé?.\n", max_size=30))
def test_any_template_is_refused_or_planned(template):
    """No text of a template breaks the planner in another way than by being refused."""
    try:
        planner = TemplatePlanner(["A?", template])
    except ConfigurationError:
        return
    plan = planner.plan("q", trail("Ann"))
    assert plan.query
    assert planner.plan("q", trail("Ann", "b")) == NOTHING_MORE
