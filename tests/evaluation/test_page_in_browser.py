from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from chromium import Opened, started
from page_reports import chosen, hostile_report, long_report, made_report

from bounded_retrieval.evaluation.page import page as make_page

PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><circle r="4"/></svg>'
POLICY = "reference"
UNFOLD = "document.querySelectorAll('details').forEach((each) => { each.open = true; })"


@pytest.fixture(scope="module")
def browser() -> Iterator:
    """One browser for all tests here; each page has a context of its own."""
    with started() as running:
        yield running


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give the path of a page by the name of its report."""
    folder = tmp_path_factory.mktemp("pages")
    reports = {"made": made_report, "hostile": hostile_report, "long": lambda: long_report(5_000)}

    def write(name: str) -> Path:
        path = folder / f"{name}.html"
        if not path.exists():
            path.write_text(make_page(reports[name](), pictures={"a dot": PICTURE}), encoding="utf-8")
        return path

    return write


@pytest.fixture
def visit(browser, written) -> Iterator[Callable[..., Opened]]:
    """Open a page by the name of its report; at the end nothing may have been logged or fetched."""
    visits: list[Opened] = []

    def open_page(name: str = "made", fragment: str = "", **options) -> Opened:
        visits.append(Opened(browser, written(name), fragment, **options))
        return visits[-1]

    yield open_page
    for each in visits:
        each.close()
    assert [each.complaints + each.requests for each in visits] == [[] for _ in visits]


def listed(page) -> list[str]:
    """Ids of the queries in the list."""
    return page.locator("#rows th .small").all_inner_texts()


def until(page, condition: str, value: str | None = None) -> None:
    """Wait for a condition; the page's own policy forbids the driver to watch it from inside."""
    last = time.monotonic() + 10
    while not page.evaluate(condition, value):
        assert time.monotonic() < last, f"never came true: {condition} ({value})"
        page.wait_for_timeout(20)


def focused(page) -> str:
    """Id of the element that has the focus."""
    return page.evaluate("document.activeElement.id")


def until_focused(page, name: str) -> None:
    """Wait until an element has the focus: what follows a link or a key is done by the page's own events."""
    until(page, "name => document.activeElement.id === name", name)


def test_a_file_is_interactive_and_fetches_nothing(visit) -> None:
    """From file:// with pictures: no error, no warning, no request, and the list in place of the line."""
    page = visit().page
    assert not page.locator("#unscripted").is_visible()
    assert page.locator("#count").inner_text() == "36 of 36 queries"
    assert page.locator("#count").get_attribute("aria-live") == "polite"
    assert listed(page) == [query["query_id"] for query in made_report()["queries"]]
    assert page.evaluate("document.querySelector('figure img').naturalWidth") > 0


def test_without_javascript_tables_and_the_line_are_there(visit) -> None:
    """The list is not, nor are links that would lead nowhere."""
    page = visit(java_script_enabled=False).page
    assert page.locator("#unscripted").is_visible()
    assert page.locator("table.policies").is_visible()
    assert not page.locator("#explorer").is_visible()
    assert page.locator("[data-opens] a").count() == 0


FILTERS = [
    {"reason": "proxy_sufficient"},
    {"reason": "resource_budget_exhausted", "outcome": "packet-none"},
    {"outcome": "packet-all"},
    {"outcome": "packet-some"},
    {"outcome": "stopped-improved"},
    {"outcome": "stopped-unchanged"},
    {"outcome": "stopped-reduced"},
    {"text": "HX"},
    {"text": "LEX-", "outcome": "packet-all"},
]


def test_filters_list_the_queries_that_they_name(visit) -> None:
    """Each filter, set by hand, lists what Python finds in the report, and says how many."""
    page = visit().page
    page.select_option("#policy", label=POLICY)
    for choice in FILTERS:
        page.click("#clear")
        for name in ("reason", "outcome"):
            if name in choice:
                page.select_option(f"#{name}", choice[name])
        expected = chosen(made_report(), POLICY, **choice)
        if "text" in choice:
            page.fill("#text", choice["text"])
        until(page, "said => document.getElementById('count').textContent === said", f"{len(expected)} of 36 queries")
        assert listed(page) == expected, choice


def test_a_count_opens_its_queries(visit) -> None:
    """A link in a table chooses policy, reason and outcome, and takes the focus to the list."""
    page = visit().page
    links = page.locator("#ended td a", has_text=re.compile("^[1-9]"))
    link = links.nth(links.count() - 1)
    choice = dict(part.split("=") for part in link.get_attribute("href")[1:].split("&"))
    link.click()
    until_focused(page, "queries-heading")
    assert listed(page) == chosen(
        made_report(),
        page.locator("#policy option:checked").inner_text(),
        reason=choice["reason"],
        outcome=choice.get("outcome", ""),
    )
    assert len(listed(page)) > 0


def test_a_query_is_opened_by_keyboard_alone(visit) -> None:
    """Its heading takes the focus, its packed units are shown, and Escape gives the focus back to its row."""
    report = made_report()
    place, query = next(
        (place, each) for place, each in enumerate(report["queries"]) if each["runs"][POLICY]["stopped_early"]
    )
    page = visit().page
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.evaluate("document.getElementById('text').focus()")
    for _ in range(200):
        page.keyboard.press("Tab")
        if focused(page) == f"open-{place}":
            break
    page.keyboard.press("Enter")
    page.wait_for_selector("#opened-heading")
    until_focused(page, "opened-heading")
    assert page.locator("#opened-heading").inner_text() == query["text"]
    packed = page.locator("#opened article > section", has=page.locator("h4", has_text=re.compile("^Packed$"))).locator(
        "tbody tr code"
    )
    assert packed.all_inner_texts() == query["runs"][POLICY]["packed"]
    opened = page.locator("#opened").inner_text()
    for words in (*query["runs"][POLICY]["decision"]["reasons"], "stop after the first search", "not made; it would"):
        assert words in opened
    page.keyboard.press("Escape")
    page.wait_for_selector("#rows")
    until_focused(page, f"open-{place}")
    assert page.locator("#opened").inner_text() == ""


def test_every_query_can_be_opened(visit) -> None:
    """Nothing that a report holds of a run keeps it from being shown; the policies take turns."""
    report = made_report()
    policies = list(report["policies"])
    page = visit().page
    shown = page.evaluate(
        """async (policies) => {
          const shown = [];
          const { queries } = JSON.parse(document.getElementById("report").textContent);
          for (const [place, { id }] of queries.entries()) {
            const changed = new Promise((done) => addEventListener("hashchange", done, { once: true }));
            location.replace(`#${new URLSearchParams({ policy: policies[place % policies.length], query: id })}`);
            await changed;
            shown.push([...document.querySelectorAll("#opened dd > span > code")].slice(0, 3).map((each) => each.textContent));
          }
          return shown;
        }""",
        policies,
    )
    turns = [(query, policies[place % len(policies)]) for place, query in enumerate(report["queries"])]
    assert shown == [[query["query_id"], name, query["runs"][name]["stop_reason"]] for query, name in turns]


def test_the_address_holds_the_state(visit) -> None:
    """A link sent to someone and a reload show the same; Back undoes choices one by one, typing leaves none."""
    report = made_report()
    page = visit().page
    page.select_option("#policy", label="fixed_dense")
    page.select_option("#outcome", "packet-all")
    page.locator("#text").press_sequentially("the", delay=5)
    expected = chosen(report, "fixed_dense", outcome="packet-all", text="the")
    until(page, "() => location.hash.includes('text=the')")
    assert listed(page) == expected
    page.locator("button.open").first.click()
    page.wait_for_selector("#opened-heading")
    heading = page.locator("#opened-heading").inner_text()
    page.reload()
    assert page.locator("#opened-heading").inner_text() == heading
    assert visit(fragment=page.evaluate("location.hash")).page.locator("#opened-heading").inner_text() == heading
    page.go_back()
    page.wait_for_selector("#rows th")
    assert (listed(page), page.input_value("#text")) == (expected, "the")
    page.go_back()
    until(page, "() => document.getElementById('outcome').value === ''")
    assert len(listed(page)) == 36
    page.go_back()
    until(page, "name => document.querySelector('#policy option:checked').textContent === name", POLICY)


@pytest.mark.parametrize(
    "fragment", ["#policy=none&reason=x&outcome=y&sort=z&page=-4&query=nothing", "#%", "#page=1e9", "#__proto__=1"]
)
def test_an_address_that_says_nothing_shows_the_list(visit, fragment: str) -> None:
    """What it names and there is not, is left out; a query that is not there is said so."""
    page = visit(fragment=fragment).page
    assert len(listed(page)) == 36
    said = "There is no query of the id in the address. " if "query" in fragment else ""
    assert page.locator("#count").inner_text() == f"{said}36 of 36 queries"


def test_hostile_data_is_only_text(visit) -> None:
    """Names, ids, titles and texts that bring markup are shown as they are, and nothing of them runs."""
    report = hostile_report()
    policy = next(name for name in report["early_stops"] if name.startswith(POLICY))
    plain = visit().page
    page = visit("hostile", fragment=f"#{urlencode({'policy': policy})}").page
    assert listed(page)[0] == "constructor"
    for each in (plain, page):
        each.locator("button.open").first.click()
        each.wait_for_selector("#opened-heading")
    assert page.locator("#opened-heading").text_content() == report["queries"][0]["text"]
    count = "['script', 'img', 'b', 'style', 'a'].map((name) => document.querySelectorAll(name).length)"
    assert page.evaluate(count) == plain.evaluate(count)
    assert page.evaluate(
        "[...document.querySelectorAll('*')].every(({attributes}) => ![...attributes].some(({name}) => name.startsWith('on')))"
    )
    page.go_back()
    page.select_option("#policy", label="__proto__")
    assert listed(page) == [query["query_id"] for query in report["queries"]]
    assert page.evaluate("window.harmed === undefined && ({}).harmed === undefined")


def check_with_axe(page, **options) -> None:
    """Run the accessibility checks on what is shown."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    found = axe.run(page, options=options)
    assert found.violations_count == 0, found.generate_report()


def test_axe_finds_nothing(visit) -> None:
    """In the whole page with its folded parts opened, and in an opened query; contrast is looked at apart."""
    page = visit(fragment="#text=lex-01").page
    without_contrast = {"color-contrast": {"enabled": False}}
    page.evaluate(UNFOLD)
    check_with_axe(page, rules=without_contrast)
    page.locator("button.open").first.click()
    page.wait_for_selector("#opened-heading")
    page.evaluate(UNFOLD)
    check_with_axe(page, rules=without_contrast)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_stand_out(visit, scheme: str) -> None:
    """The contrast of both colour schemes, in the list and in an opened query."""
    page = visit(color_scheme=scheme, fragment="#text=lex-01").page
    # These tables look as the others do, and are long.
    page.evaluate("document.querySelectorAll('#ended, #details').forEach((each) => each.remove())")
    check_with_axe(page, runOnly=["color-contrast"])
    page.locator("button.open").first.click()
    page.wait_for_selector("#opened-heading")
    page.evaluate(UNFOLD)
    check_with_axe(page, runOnly=["color-contrast"])


@pytest.mark.parametrize("name", ["made", "hostile"])
def test_a_narrow_window_holds_the_page(visit, name: str) -> None:
    """At 320 px nothing runs out of the page; wide tables scroll in their regions."""
    page = visit(name, viewport={"width": 320, "height": 640}).page
    page.evaluate(UNFOLD)
    fits = "document.documentElement.scrollWidth <= 320"
    assert page.evaluate(fits)
    assert page.evaluate(
        "[...document.querySelectorAll('.scroll')].some((each) => each.scrollWidth > each.clientWidth)"
    )
    page.locator("button.open").first.click()
    page.wait_for_selector("#opened-heading")
    assert page.evaluate(fits)


def test_thousands_of_queries_are_paged(visit) -> None:
    """5,000 queries become interactive in seconds, 50 at a time; filtering and turning pages stay quick."""
    began = time.monotonic()
    page = visit("long").page
    assert len(listed(page)) == 50
    assert page.locator("#count").inner_text() == "5,000 of 5,000 queries, 1 to 50 shown"
    assert time.monotonic() - began < 15
    page.click("#later")
    until(page, "() => document.getElementById('where').textContent === 'Page 2 of 100'")
    until_focused(page, "queries-heading")
    assert listed(page)[0] == "copy-00050"
    page.fill("#text", "copy-0499")
    until(page, "() => document.getElementById('count').textContent === '10 of 5,000 queries'")
    assert listed(page) == [f"copy-0499{digit}" for digit in range(10)]
    assert not page.locator("#pages").is_visible()
