from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.documents import Document

from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.html import MAX_TERM_ROWS, MAX_UNIT_COLUMNS, Html, rows_to_html
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.packet import EvidenceItem, EvidencePacket, PathStep
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.contracts.wording import NOTES, WHY_NOT, printable
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

DOCS = Path(__file__).resolve().parents[2] / "docs" / "stop-reasons.md"

TAGS = {"div", "style", "table", "caption", "thead", "tbody", "tfoot", "tr", "th", "td", "b", "br", "code", "pre", "p"}
ATTRIBUTES = {"class", "scope", "tabindex", "dir"}
HOSTILE = [
    "<script>alert(1)</script>",
    "</pre></td></table><img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    '" onmouseover="alert(1)',
    "</style><style>body{display:none}</style>",
    "<!-- ",
    "&lt;script&gt; &#60;b&#62;",
    "a\x00b\x1b[31mc\x9bd\x08",
    "safe \u202etxt.exe",
    "$\\href{javascript:alert(1)}{x}$",
]
ANY_TEXT = st.one_of(
    st.sampled_from(HOSTILE), st.text(max_size=60), st.text(alphabet="<>&\"'/=! scriptb\n\x00\x1b\u202e", max_size=30)
)


class Page(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and the text between them."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[tuple[str, str | None], ...]]] = []
        self.open: list[str] = []
        self.comments: list[str] = []
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, tuple(attrs)))
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)

    handle_decl = unknown_decl = handle_pi = handle_comment


def check_harmless(markup: str) -> Page:
    """Only our own tags and attributes, well nested, nothing loaded or linked, no control characters."""
    page = Page(markup)
    assert page.open == page.comments == []
    assert {tag for tag, _ in page.tags} <= TAGS
    assert {name for _, attrs in page.tags for name, _ in attrs} <= ATTRIBUTES
    assert [tag for tag, _ in page.tags].count("style") == 1
    assert "url(" not in markup.partition("</style>")[0]
    assert "@import" not in markup.partition("</style>")[0]
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", markup)
    return page


def make_packet(text: str = "text", **fields: Any) -> EvidencePacket:
    """A packet whose every free field holds the given text."""
    item = EvidenceItem(
        unit_id=text,
        fingerprint="0" * 32,
        title=text,
        text=text,
        metadata={text: [text, {text: text}], "source": text, "section": text},
        channels={"lexical": {"rank": 1, "score": 2.5}, "dense": {"rank": 12, "score": None}},
        fused_score=1 / 61,
    )
    default = {
        "query_id": text,
        "items": (item,),
        "stop_reason": StopReason.PROXY_SUFFICIENT,
        "resolution": "provisional",
        "path": (PathStep(subject=text, relation=text, object=text, source_unit=text),),
        "missing_terms": (text,),
        "limits": Budget(),
        "usage": Usage(calls=2, dense_calls=1, rows=6, units=1, chars=1234),
        "notes": (text, "channel_failed"),
    }
    return EvidencePacket.model_validate(default | fields)


def run(query: str, documents: list[Document], dense: Any = None, **options: Any) -> DecisionTrace:
    """The trace of one run over scripted answers."""
    lexical = ScriptedSearcher(documents, "lexical")
    graph = create_bounded_retrieval(lexical, dense or ScriptedSearcher(documents[:1], "dense"), **options).compile()
    return DecisionTrace.from_result(graph.invoke({"query": query}))


def rows_of(markup: str, heading: str) -> list[list[str]]:
    """Cells of the table that holds a heading or caption, row by row, without their markup."""
    (table,) = [table for table in re.findall(r"<table>.*?</table>", markup, re.DOTALL) if heading in table]
    return [
        [re.sub(r"<br>", " ", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)]
        for row in re.findall(r"<tr>(.*?)</tr>", table, re.DOTALL)
    ]


@given(ANY_TEXT)
def test_no_text_of_a_packet_becomes_markup(text: str) -> None:
    """Whatever stands in ids, titles, texts, metadata, paths, terms and notes is shown as text."""
    page = check_harmless(make_packet(clean_text(text))._repr_html_())
    # A unit's text keeps every character but control characters; the parser joins text of neighbouring cells.
    assert printable(clean_text(text)) in page.text


@settings(max_examples=60, deadline=None)
@given(ANY_TEXT)
def test_no_text_of_a_trace_becomes_markup(text: str) -> None:
    """Whatever stands in the query, its terms and unit ids is shown as text."""
    documents = [Document(id=f"{text}{number}", page_content=f"pump {text}") for number in range(3)]
    trace = run(f"pump HX-200 {text}", documents)
    page = check_harmless(trace._repr_html_())
    assert printable(clean_text(trace.request.query)) in page.text


@given(st.lists(ANY_TEXT, min_size=1, max_size=4), ANY_TEXT)
def test_no_text_of_a_table_becomes_markup(cells: list[str], caption: str) -> None:
    """Headings, cells and caption of a notebook's own tables are escaped too."""
    check_harmless(rows_to_html(cells, [cells, cells], caption))


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_adds_no_tag(text: str) -> None:
    """A packet full of hostile text has exactly the tags and attributes of one full of harmless text."""
    assert Page(make_packet(clean_text(text))._repr_html_()).tags == Page(make_packet()._repr_html_()).tags


def test_what_reverses_text_stays_out_of_our_lines() -> None:
    """A right-to-left override is replaced wherever our own words follow, and kept in a unit's text, whose block ends it."""
    markup = make_packet("a\u202eb")._repr_html_()
    assert re.search('<pre [^>]*dir="auto">\na\u202eb</pre>', markup)
    assert "\u202e" not in re.sub("<pre .*?</pre>", "", markup, flags=re.DOTALL)
    trace = run("pump", [Document(id="a\u202eb", page_content="pump")])
    assert "\u202e" not in trace._repr_html_()


def test_mathjax_is_kept_away() -> None:
    """A dollar sign in a retrieved text is a dollar: both names that tell MathJax to pass by are set."""
    for markup in (make_packet()._repr_html_(), rows_to_html(("a",), [("$5 and $6",)])):
        assert markup.startswith('<div class="bounded-retrieval tex2jax_ignore mathjax_ignore">')


def test_lone_surrogates_in_metadata_can_be_shown() -> None:
    """Text that has no UTF-8 form is replaced, so that a notebook can be saved."""
    item = make_packet().items[0].model_copy(update={"metadata": {"odd": "\ud800"}})
    markup = make_packet().model_copy(update={"items": (item,)})._repr_html_()
    assert "odd: \ufffd" in markup
    markup.encode()


@pytest.mark.parametrize("reason", StopReason)
def test_every_stop_reason_is_shown_with_what_it_does_not_mean(reason: StopReason) -> None:
    """The value, its meaning, its non-meaning and the resolution stand in the first row."""
    page = check_harmless(make_packet(stop_reason=reason, resolution="unresolved")._repr_html_())
    for expected in (reason.value, reason.meaning, reason.not_meaning, "(unresolved)"):
        assert expected in page.text


def test_an_empty_packet_says_that_there_is_no_evidence() -> None:
    """A packet without items, path, notes or missing terms is a valid page."""
    packet = make_packet(items=(), path=(), notes=(), missing_terms=(), stop_reason=StopReason.RETRIEVAL_FAILED)
    page = check_harmless(packet._repr_html_())
    assert "no evidence" in page.text
    assert "no query term is missing" in page.text


def test_cost_stands_beside_its_limit() -> None:
    """Each counted thing has a row with what was spent and what was allowed; the deadline only where there is one."""
    cost = rows_of(make_packet()._repr_html_(), ">cost<")
    assert [row[:3] for row in cost if row[0] in ("calls", "of these, dense", "rows", "characters")] == [
        ["calls", "2", "2"],
        ["of these, dense", "1", "\u2013"],
        ["rows", "6", "6"],
        ["characters", "1,234", "4,000"],
    ]
    assert "deadline_ms" not in str(cost)
    assert "deadline_ms" in make_packet(limits=Budget(deadline_ms=1500))._repr_html_()


def test_evidence_has_source_rank_and_score_in_each_channel() -> None:
    """An item's row names title, id, source and section, then rank and score in each channel, or that it has none."""
    row = rows_of(make_packet("unit-1")._repr_html_(), "evidence, best first")[1]
    assert "<b>unit-1</b> <code>unit-1</code> unit-1, unit-1" in row[1]
    assert row[2:5] == ["rank 1 score 2.500", "rank 12 no score", "0.0164"]
    only_dense = make_packet().items[0].model_copy(update={"channels": {}})
    assert rows_of(make_packet(items=(only_dense,))._repr_html_(), "evidence, best first")[1][2:4] == [
        "\u2013",
        "\u2013",
    ]


def test_white_space_of_a_text_is_kept() -> None:
    """Leading line breaks, indentation, tabs and blank lines reach the page as they are, in a block that scrolls."""
    text = "\n\n  1. Open\n\tthe lid.\n\n2. Wait.  "
    markup = make_packet(text)._repr_html_()
    # A browser drops the one line break that follows the tag.
    assert f'<pre class="long" tabindex="0" dir="auto">\n{text}</pre>' in markup


def test_a_trace_has_one_row_for_each_step() -> None:
    """The steps stand in order under their event names, and every decision has its own tables."""
    trace = run("replace the HX-200 battery", [Document(id="a", page_content="Replace the battery.")])
    markup = trace._repr_html_()
    assert [re.sub("<.*?>", "", row[1]) for row in rows_of(markup, "what happened")[1:]] == [
        e.event for e in trace.events
    ]
    assert markup.count("decision at step") == len(trace.decisions) == 2


def test_a_term_table_marks_what_each_unit_holds() -> None:
    """Rows are terms and identifiers, columns units with where they came from; the last column says what none holds."""
    documents = [Document(id="a", page_content="Replace the battery."), Document(id="b", page_content="The HX-200.")]
    markup = run("replace the HX-200 battery", documents, budget=Budget(max_calls=1))._repr_html_()
    assert [[re.sub("<.*?>", "", cell) for cell in row] for row in rows_of(markup, "looked for")] == [
        ["looked for", "kind", "a lexical 1", "b lexical 2", "any unit"],
        ["replace", "term", "\u2713", "\u2013", "\u2713"],
        ["hx-200", "term", "\u2013", "\u2713", "\u2713"],
        ["battery", "term", "\u2713", "\u2013", "\u2713"],
        ["hx-200", "identifier, exact", "\u2013", "\u2713", "\u2713"],
        ["terms held", "", "2 of 3, best", "1 of 3", ""],
    ]
    missing = run("pump HX-200", [Document(id="a", page_content="The pump.")], budget=Budget(max_calls=1))
    assert [row[-1] for row in rows_of(missing._repr_html_(), "looked for")[1:]] == ["\u2713", "missing", "missing", ""]


def test_actions_are_legal_or_say_why_not() -> None:
    """Each action of a decision is shown as legal or not, with the reason in words, and which one was chosen."""
    markup = run("pump", [Document(id="a", page_content="Lamp.")], budget=Budget(max_calls=1))._repr_html_()
    assert [[re.sub("<.*?>", "", cell) for cell in row] for row in rows_of(markup, ">why not<")[1:]] == [
        ["lexical_search", "not legal", "already_attempted: this search has been made", ""],
        ["dense_search", "not legal", "max_calls: no call is left", ""],
        ["recheck_and_pack", "legal", "\u2013", "chosen"],
    ]


def test_a_unit_that_was_not_looked_at_says_so() -> None:
    """A unit too long to fit the packet has no terms, and its column says why."""
    long = Document(id="long", page_content="pump " * 2000)
    markup = run("pump", [long], budget=Budget(max_calls=1))._repr_html_()
    assert "too long (10,000 characters): not looked at" in markup


def test_a_failed_search_and_a_trace_without_events_are_pages() -> None:
    """A run in which nothing answered is shown, and so is a trace that holds nothing yet."""
    graph = create_bounded_retrieval(FailingSearcher(), FailingSearcher()).compile()
    result = graph.invoke({"query": "pump"})
    assert "failed" in check_harmless(DecisionTrace.from_result(result)._repr_html_()).text
    assert "retrieval_failed" in check_harmless(EvidencePacket.from_result(result)._repr_html_()).text
    trace = DecisionTrace.from_result(result)
    check_harmless(DecisionTrace(events=())._repr_html_())
    check_harmless(DecisionTrace(events=trace.events[1:])._repr_html_())


def test_a_table_of_many_terms_and_units_is_cut_and_says_so() -> None:
    """A query of hundreds of terms over many units gives a table of bounded size that names what it leaves out."""
    words = [f"word{chr(97 + number // 26)}{chr(97 + number % 26)}" for number in range(150)]
    documents = [Document(id=f"u{number}", page_content=f"{words[0]} {number}") for number in range(30)]
    budget = Budget(max_calls=1, max_rows=40, max_reads=40)
    markup = run(" ".join(words), documents, budget=budget, first_hop_rows=40)._repr_html_()
    table = rows_of(markup, "looked for")
    assert (len(table), len(table[0])) == (MAX_TERM_ROWS + 2, MAX_UNIT_COLUMNS + 3)
    assert "50 more terms not shown; 6 more units not shown" in markup


def test_cells_by_kind() -> None:
    """Numbers stand right with thousands separated, none is a dash, markup of ours passes, long text keeps its lines."""
    row = [1234, None, "a<b", Html("<b>x</b>"), "one\ntwo", True, "w" * 201]
    markup = rows_to_html(range(7), [row])
    for expected in (
        '<td class="number">1,234</td>',
        "<td>\u2013</td>",
        "<td>a&lt;b</td>",
        "<td><b>x</b></td>",
        "\none\ntwo</pre>",
    ):
        assert expected in markup
    assert "<td>True</td>" in markup
    assert f"{'w' * 201}</pre>" in markup


def test_joining_markup_with_text_makes_text() -> None:
    """Markup counts as safe only as it was made: joined with anything it is escaped again."""
    assert "&lt;b&gt;x&lt;/b&gt;&lt;i&gt;" in rows_to_html(("a",), [(Html("<b>x</b>") + "<i>",)])


def test_the_same_packet_gives_the_same_page() -> None:
    """Rendering has no counter, clock or random id, so that a saved notebook does not change."""
    assert make_packet()._repr_html_() == make_packet()._repr_html_()


def test_every_documented_note_and_reason_has_words() -> None:
    """Each note and each reason of docs/stop-reasons.md is explained wherever packets and traces are shown."""
    text = DOCS.read_text(encoding="utf-8")
    notes = text.partition("## Notes")[2].partition("## ")[0]
    reasons = text.partition("## Why an action was not legal")[2].partition("`why_not` is one of")[2]
    assert set(re.findall(r"^\| `(\w+)`", notes, re.MULTILINE)) <= set(NOTES)
    assert set(re.findall(r"`(\w+)`", reasons)) <= set(WHY_NOT)
