from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import parse_qsl

import pytest
from page_reports import HOSTILE, chosen, hostile_report, made_report

from bounded_retrieval.errors import RequestError
from bounded_retrieval.evaluation.page import page

VOID = {"meta", "link", "img", "br", "input"}
DRAWING = '<svg xmlns="http://www.w3.org/2000/svg"><script>window.harmed=1</script><circle r="4"/></svg>'


class Reader(HTMLParser):
    """Reads a page: its elements with their attributes, and the text inside those that a test asks for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert not self._open

    def handle_starttag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_startendtag(self, tag, attrs) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.append("")

    def handle_endtag(self, tag) -> None:
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data) -> None:
        for place in self._open:
            self.texts[place] += data

    def text_of(self, tag: str, **attributes: str) -> list[str]:
        """Texts of the elements of a name that have these attributes."""
        return [
            text
            for (name, own), text in zip(self.elements, self.texts, strict=True)
            if name == tag and attributes.items() <= own.items()
        ]


@pytest.fixture(scope="module")
def read() -> Reader:
    """The page of the report of real runs."""
    return Reader(page(made_report()))


def embedded(reader: Reader) -> dict:
    """What the page's script reads."""
    return json.loads(*reader.text_of("script", id="report"))


def digest(text: str) -> str:
    """What a content security policy names a text by."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@pytest.mark.parametrize("format", ["bounded-retrieval-evaluation-0", None, "<b>\n" * 50])
def test_another_format_is_refused(format: str | None) -> None:
    """In one line that names the field, what it must be and what it is."""
    with pytest.raises(RequestError, match=r"^report: format must be \S+-1 [(]got ") as raised:
        page({"format": format})
    assert len(str(raised.value)) < 200
    assert "\n" not in str(raised.value)


def test_the_same_report_gives_the_same_page() -> None:
    """Also one that was written as JSON and read again."""
    report = made_report()
    again = json.loads(json.dumps(report))
    pictures = {"quality": DRAWING}
    assert page(report, pictures=pictures) == page(again, pictures=dict(pictures))


def test_the_policy_allows_one_script_and_one_style(read: Reader) -> None:
    """By their hashes; nothing is fetched and no attribute holds a script or a style."""
    policy = next(own["content"] for _, own in read.elements if own.get("http-equiv") == "Content-Security-Policy")
    scripts = [
        text for (name, own), text in zip(read.elements, read.texts, strict=True) if name == "script" and not own
    ]
    (script,), (style,) = scripts, read.text_of("style")
    assert policy == (
        f"default-src 'none'; script-src {digest(script)}; style-src {digest(style)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    for _, own in read.elements:
        assert not [name for name in own if name.startswith("on") or name == "style"]
        assert all(own[name].startswith(("#", "data:")) for name in ("href", "src") if name in own)


def test_the_script_sets_text_only(read: Reader) -> None:
    """Nothing in it parses markup or runs text."""
    (script,) = (
        text for (name, own), text in zip(read.elements, read.texts, strict=True) if name == "script" and not own
    )
    parses = r"innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|eval\(|new Function|Contextual|srcdoc"
    assert not re.search(parses, script)
    assert "textContent" in script


def test_hostile_names_and_texts_change_no_element() -> None:
    """Every element and attribute is there as without them, and the script reads what they are."""
    plain, hostile = Reader(page(made_report())), Reader(page(hostile_report()))
    shape = [(name, sorted(own)) for name, own in plain.elements]
    assert [(name, sorted(own)) for name, own in hostile.elements] == shape
    source = page(hostile_report())
    assert "<script>window" not in source
    assert "\u202e" in embedded(hostile)["queries"][1]["text"]
    assert {query["id"] for query in embedded(hostile)["queries"]} >= {"constructor"}
    assert all(query["text"].endswith(HOSTILE) for query in embedded(hostile)["queries"])


def test_texts_that_cannot_be_encoded_are_replaced() -> None:
    """A lone surrogate and NUL would keep the page from being written or read."""
    report = made_report()
    report["queries"][0]["text"] = "half \ud800 a pair\x00"
    report["collection"]["name"] = "lone \udfff\x00"
    reader = Reader(page(report).encode().decode())
    assert embedded(reader)["queries"][0]["text"] == "half \ufffd a pair\x00"
    assert reader.text_of("h1") == ["Evaluation of lone \ufffd\ufffd"]


def test_every_count_opens_as_many_queries(read: Reader) -> None:
    """Each linked count is the number of queries that its choice keeps."""
    report = made_report()
    linked = 0
    for (_, own), text in zip(read.elements, read.texts, strict=True):
        choice = dict(parse_qsl(own.get("data-opens") or "", strict_parsing=False))
        if choice and len(choice) > 1:
            linked += 1
            assert text == f"{len(chosen(report, **choice)):,}", choice
    reasons = {name: len(found) for name, found in report["stop_reasons"].items() if name != "fixed_lexical:6_rows"}
    assert linked == 5 * sum(reasons.values()) + 3 * len(report["early_stops"])


def test_policies_that_are_the_same_are_shown_once(read: Reader) -> None:
    """Under the first name, beside which the others stand; the script can look at each of them."""
    opened = [dict(parse_qsl(own["data-opens"])) for _, own in read.elements if "data-opens" in own]
    names = [choice["policy"] for choice in opened if len(choice) == 1]
    assert names == [name for name in made_report()["policies"] if name != "fixed_lexical:6_rows"]
    assert "likewise fixed_lexical:6_rows" in read.text_of("span")
    assert [policy["name"] for policy in embedded(read)["policies"]] == list(made_report()["policies"])


def test_tables_say_what_the_report_says(read: Reader) -> None:
    """Each policy's row holds its measures with the interval, its calls, and what it did."""
    report = made_report()
    policy = report["policies"]["reference"]
    (row,) = (text for text in read.text_of("tr") if text.startswith("reference") and policy["actions"] in text)
    low, high = policy["intervals"]["ndcg@4"]
    expected = [f"{policy['ndcg@4']:.3f}{low:.3f} to {high:.3f}", f"{policy['recall@4']:.3f}", policy["depth"]]
    expected += [f"{policy['calls']:,}{policy['calls'] / 36:.2f}", *policy["stop_reasons"], policy["ranking"]]
    assert [part for part in expected if part not in row] == []
    (best,) = (text for text in read.text_of("table") if text.startswith("Ceilings"))
    assert f"{report['ceilings']['reference']['ndcg@4']:.3f}" in best


def test_ceilings_say_what_may_stand_above_them(read: Reader) -> None:
    """They bound the policies that choose between the same two rankings, not every policy."""
    (said,) = (text for text in read.text_of("p") if "ceiling" in text)
    assert "between the same two rankings" in said
    assert "may stand above it" in said


def test_the_head_says_what_was_measured(read: Reader) -> None:
    """Collection, survey, limits, intervals and the live check."""
    (head,) = read.text_of("header")
    for words in (
        "device_support (shipped, split test)",
        "36, each with a unit judged relevant",
        "59 of 66 queries have a relevant unit",
        "2 calls, 2 iterations, 6 rows, 6 units read, 4 units packed, 4,000 characters",
        "95%, bootstrap over queries (100 resamples)",
        "2 queries were run again over the real searchers (18 runs): every packet and every trace was the same.",
    ):
        assert words in head


def test_tables_have_captions_and_headings(read: Reader) -> None:
    """Each in a region that the keyboard reaches and that its caption names, with unique ids on the page."""
    regions = [own for _, own in read.elements if own.get("role") == "region"]
    tables = read.text_of("table")
    assert len(regions) == len(tables) == 7
    assert all(own["tabindex"] == "0" for own in regions)
    ids = [own["id"] for _, own in read.elements if "id" in own]
    assert len(ids) == len(set(ids))
    assert {own["aria-labelledby"] for own in regions} <= set(ids)
    assert {own.get("scope") for name, own in read.elements if name == "th"} == {"row", "col"}


def test_without_a_script_a_line_stands_for_the_list(read: Reader) -> None:
    """The line is shown and the list is hidden until the script turns that round."""
    line = next(own for _, own in read.elements if own.get("id") == "unscripted")
    listed = next(own for _, own in read.elements if own.get("id") == "explorer")
    assert "hidden" not in line
    assert "hidden" in listed
    assert read.text_of("p", id="unscripted") == ["The list of queries needs JavaScript; everything above does not."]


def test_pictures_stand_inside_the_page() -> None:
    """As images, in which no script runs, with their caption as the text in their place."""
    caption = 'quality "against" <b>calls</b>'
    reader = Reader(page(made_report(), pictures={caption: DRAWING, "stops": "<svg/>"}))
    images = [own for name, own in reader.elements if name == "img"]
    assert [own["alt"] for own in images] == [caption, "stops"]
    kind, _, data = images[0]["src"].partition(",")
    assert (kind, base64.b64decode(data).decode()) == ("data:image/svg+xml;base64", DRAWING)
    assert reader.text_of("figcaption") == [caption, "stops"]


def test_without_adaptive_policies_nothing_is_said_of_early_stops() -> None:
    """Neither a section nor a link to it."""
    report = made_report()
    for name in list(report["early_stops"]):
        for part in ("policies", "early_stops", "stop_reasons", "arms", "ceilings", "curves"):
            report[part].pop(name)
        report["differences"] = [each for each in report["differences"] if name not in each.values()]
    reader = Reader(page(report))
    assert not [own for _, own in reader.elements if own.get("href") == "#early" or own.get("id") == "early"]
    assert embedded(reader)["start"] == 0


def test_the_data_hold_each_run_and_each_unit_once(read: Reader) -> None:
    """And everything that the report holds of a query can be found again."""
    data, report = embedded(read), made_report()
    assert data["policies"][data["start"]]["name"] == "reference"
    ids = [unit[0] for unit in data["units"]]
    assert len(ids) == len(set(ids))
    for kept, query in zip(data["queries"], report["queries"], strict=True):
        assert len({json.dumps(run) for run in kept["runs"]}) == len(kept["runs"]) < len(data["policies"])
        for policy, number in zip(report["policies"], kept["use"], strict=True):
            check_run(kept["runs"][number], query["runs"], policy, (ids, report["arms"]))
        for unit, held in kept["matched"]:
            assert {kept["terms"][place] for place in held} == set(query["matched"][ids[unit]])


def check_run(kept: Mapping, runs: Mapping, policy: str, known: tuple[list[str], Mapping]) -> None:
    """Compare what the page holds of a run with the report."""
    ids, arms = known
    run = runs[policy]
    assert [ids[unit] for unit in kept["ranking"]] == run["ranking"]
    assert [ids[unit] for unit in kept["packed"]] == run["packed"]
    assert (kept["reason"], kept["ndcg@4"]) == (run["stop_reason"], run["ndcg@4"])
    if policy in arms:
        stop, further = (runs[arms[policy][arm]]["ndcg@4"] for arm in ("stop", "continue"))
        assert kept["gain"] == pytest.approx(further - stop, abs=1e-6)
        assert (kept["more"], kept["stopped"]) == (run["one_more_call"], run["stopped_early"])
        assert kept["decision"] == run["decision"]


def test_terms_stand_in_the_order_of_the_query() -> None:
    """Those that no tokenizer of ours gives come last."""
    report = made_report()
    query = report["queries"][0]
    query["text"] = "the Dés of HX-200 cost: 200, des"
    query["matched"] = {"a": ["zz", "200", "des"], "b": ["hx-200", "cost"]}
    query["runs"]["reference"]["decision"] = None
    for run in query["runs"].values():
        run["decision"] = run.get("decision") and {**run["decision"], "missing_terms": ["aa"]}
    terms = embedded(Reader(page(report)))["queries"][0]["terms"]
    assert [term for term in terms if term != "aa"] == ["des", "hx-200", "cost", "200", "zz"]


def test_a_stop_reason_that_is_not_known_is_shown() -> None:
    """A later version may have more of them."""
    report = json.loads(json.dumps(made_report()).replace("no_new_evidence", "moon_phase"))
    reader = Reader(page(report))
    assert "moon_phaseThis version does not know this stop reason." in " ".join(reader.text_of("tr"))
    assert list(embedded(reader)["reasons"])[-1] == "moon_phase"
