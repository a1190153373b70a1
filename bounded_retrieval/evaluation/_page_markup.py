"""Markup of a page: text from outside is escaped on its way in, and names no element and no attribute."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from bounded_retrieval.contracts.html import Html
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.wording import printable


def shown(value: Any) -> Html:
    """A value as text inside markup, or as an attribute's value in quotes; `Html` stays as it is."""
    return value if isinstance(value, Html) else Html(html.escape(printable(clean_text(str(value)))))


def joined(*parts: Any) -> Html:
    """The parts after one another."""
    return Html("".join(map(shown, parts)))


def code(name: str) -> Html:
    """A name from outside, whose direction does not reach beyond it."""
    return Html(f'<code dir="auto">{shown(name)}</code>')


def codes(names: Iterable[str]) -> Html:
    """Several names, parted by commas."""
    return Html(", ".join(map(code, names)))


def lines(texts: Iterable[Any]) -> Html:
    """Each text on a line of its own."""
    return Html("<br>".join(map(shown, texts)))


def small(text: Any) -> Html:
    """What is said below a figure or a heading."""
    return Html(f'<span class="small">{shown(text)}</span>')


def figure(value: Any, below: Any = "") -> Html:
    """A figure that does not wrap, and what is said below it."""
    return Html(f'<span class="figure">{shown(value)}{small(below) if below else ""}</span>')


def opens(text: Any, **choices: str) -> Html:
    """What the page's script makes a link to the queries so chosen, and what is plain text without it."""
    return Html(f'<span data-opens="{shown(urlencode(choices))}">{shown(text)}</span>')


def items(entries: Iterable[Any], kind: str = "") -> Html:
    """A list."""
    rows = "".join(f"<li>{shown(entry)}</li>" for entry in entries)
    return Html(f'<ul class="{kind}">{rows}</ul>' if kind else f"<ul>{rows}</ul>")


def facts(pairs: Iterable[tuple[Any, Any]]) -> Html:
    """Names and what they stand for."""
    rows = "".join(f"<div><dt>{shown(name)}</dt><dd>{shown(value)}</dd></div>" for name, value in pairs)
    return Html(f"<dl>{rows}</dl>")


def column(name: str, below: str = "") -> Html:
    """The heading of a column, with its unit below it."""
    return joined(name, small(below)) if below else shown(name)


def table(anchor: str, caption: str, columns: Sequence[Any], rows: Iterable[Sequence[Any]], *, kind: str = "") -> Html:
    """A table that scrolls sideways in a region of its own, which the keyboard reaches.

    Args:
        anchor: names it on the page.
        caption: stands above it, and names the region.
        columns: headings.
        rows: cells; the first of a row is its heading.
        kind: class of the table.
    """
    head = "".join(f'<th scope="col">{shown(heading)}</th>' for heading in columns)
    body = "".join(f"<tr>{_cells(row)}</tr>" for row in rows)
    style = f' class="{kind}"' if kind else ""
    return Html(
        f'<div class="scroll" role="region" tabindex="0" aria-labelledby="{anchor}-caption"><table{style}>'
        f'<caption><span id="{anchor}-caption">{shown(caption)}</span></caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def section(anchor: str, heading: str, *parts: Any) -> Html:
    """A part of the page under a heading, which takes the focus where a link leads to it."""
    return Html(
        f'<section id="{anchor}" aria-labelledby="{anchor}-heading">'
        f'<h2 id="{anchor}-heading" tabindex="-1">{shown(heading)}</h2>{joined(*parts)}</section>\n'
    )


def folded(summary: str, *parts: Any) -> Html:
    """What is there to be opened."""
    return Html(f"<details><summary>{shown(summary)}</summary>{joined(*parts)}</details>")


def flattened(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Every plain value of a nested mapping, under its names."""
    pairs: list[tuple[str, str]] = []
    for name, value in values.items():
        path = f"{prefix}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            pairs += flattened(value, f"{path}: ")
        else:
            pairs.append((path, _plain(value)))
    return pairs


def _plain(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_plain, value)) or "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return "none" if value is None else str(value)


def _cells(row: Sequence[Any]) -> str:
    first, *others = row
    return f'<th scope="row">{shown(first)}</th>' + "".join(f"<td>{shown(cell)}</td>" for cell in others)
