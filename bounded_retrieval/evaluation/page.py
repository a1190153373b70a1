"""An evaluation report as one page of HTML that holds everything it shows and makes no connection.

Queries, titles, texts, ids and names come from outside. They are escaped wherever Python writes them; the page's one
script sets them as text only, and the content security policy allows that script, that style and pictures inside the
page, nothing else.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from bounded_retrieval.contracts.html import Html
from bounded_retrieval.errors import RequestError
from bounded_retrieval.evaluation._page_data import embedded
from bounded_retrieval.evaluation._page_markup import section, shown
from bounded_retrieval.evaluation._page_tables import details, early, ended, head_facts, results
from bounded_retrieval.evaluation.presentation import one_line
from bounded_retrieval.evaluation.summary import FORMAT

_SCRIPTS = ("elements.js", "query.js", "explorer.js")


def page(report: Mapping[str, Any], *, pictures: Mapping[str, str] | None = None) -> str:
    """The page: tables that need no script, then every query to be filtered and opened.

    The same report and pictures give the same page.

    Args:
        report: what `summarise` gives.
        pictures: by caption, which is also the text in place of the picture, an SVG document.

    Raises:
        RequestError: the report is of another format.
    """
    if report.get("format") != FORMAT:
        raise RequestError(f"report: format must be {FORMAT} (got {str(report.get('format'))[:60]!r})")
    parts = {
        ("results", "Results"): section("results", "Results", _figures(pictures or {}), results(report)),
        ("early", "Early stops"): early(report),
        ("ended", "How runs ended"): ended(report),
        ("details", "Differences, settings, versions"): details(report),
        ("queries", "Queries"): section("queries", "Queries", Html(_static("explorer.html"))),
    }
    kept = {names: part for names, part in parts.items() if part}
    title = f"Evaluation of {one_line(report['collection']['name'])}"
    content = "".join(kept.values())
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n{_head(title)}<body>\n'
        '<a class="skip" href="#content" data-jump="content">Skip to the content</a>\n'
        f'<header><h1 dir="auto">{shown(title)}</h1>{head_facts(report)}\n{_contents(kept)}</header>\n'
        f'<main id="content" tabindex="-1">\n{content}</main>\n{_footer(report)}\n'
        f'<script type="application/json" id="report">{embedded(report)}</script>\n'
        f"<script>{_script()}</script>\n</body>\n</html>\n"
    )


@cache
def _static(name: str) -> str:
    return resources.files("bounded_retrieval").joinpath(f"evaluation/static/{name}").read_text(encoding="utf-8")


def _script() -> str:
    """One function around all of the page's script, so that nothing of it is global."""
    return '"use strict";\n(() => {\n' + "".join(map(_static, _SCRIPTS)) + "})();\n"


def _head(title: str) -> str:
    style = _static("page.css")
    policy = (
        f"default-src 'none'; script-src '{_digest(_script())}'; style-src '{_digest(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    # The icon is empty, so that no browser asks for one.
    return (
        f'<head>\n<meta charset="utf-8">\n<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">\n'
        f"<title>{shown(title)}</title>\n<style>{style}</style>\n</head>\n"
    )


def _digest(text: str) -> str:
    """What a content security policy knows an element's text by."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _contents(parts: Mapping[tuple[str, str], str]) -> Html:
    links = "".join(f'<li><a href="#{anchor}" data-jump="{anchor}">{shown(name)}</a></li>' for anchor, name in parts)
    return Html(f'<nav aria-label="On this page"><ul>{links}</ul></nav>')


def _figures(pictures: Mapping[str, str]) -> Html:
    figures = "".join(map(_figure, pictures, pictures.values()))
    return Html(f'<div class="figures">{figures}</div>' if figures else "")


def _figure(caption: str, svg: str) -> str:
    # As an image, a drawing can neither run scripts nor load anything.
    source = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
    text = shown(caption)
    return f'<figure><img src="{source}" alt="{text}"><figcaption aria-hidden="true">{text}</figcaption></figure>'


def _footer(report: Mapping[str, Any]) -> Html:
    made = f"Made by bounded-retrieval {report['versions']['bounded-retrieval']}, report format {FORMAT}."
    return Html(f"<footer><p>{shown(made)} This page holds everything it shows and makes no connection.</p></footer>")
