"""What every document format is parsed into: a title and sections with the headings above them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

TITLE_LEVEL = 1

MAX_HEADING_CHARS = 1_000
"""Longest heading or title: it is repeated in every unit below it. What is longer is text like any other."""


@dataclass(frozen=True, eq=False)
class Heading:
    """A heading and its level, from 1. Two headings with the same words are still two headings."""

    level: int
    text: str


Block = Heading | str
"""A heading, or text between two headings."""


@dataclass(frozen=True)
class Section:
    """Text under one heading.

    Attributes:
        path: headings from the outermost to the nearest, the document's title left out.
        text: the section's own text, without that of deeper sections; not blank.
        metadata: more about it, such as the page it is on.
    """

    path: tuple[str, ...]
    text: str
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ParsedDocument:
    """A document as its title and its sections in order. Without any section it holds no text."""

    title: str
    sections: tuple[Section, ...]


def first_title_heading(blocks: Sequence[Block]) -> Heading | None:
    """The first heading of level 1 that has words."""
    headings = (block for block in blocks if isinstance(block, Heading))
    return next((heading for heading in headings if heading.level == TITLE_LEVEL and heading.text), None)


def build_sections(blocks: Iterable[Block], title_heading: Heading | None) -> tuple[Section, ...]:
    """Group blocks into sections; ``title_heading`` is the document's title and no part of any path.

    A heading with nothing below it is a section whose text is its own words, so that no word is lost; one that
    only has deeper headings below it lives on in their paths. A heading without words is passed over.
    """
    sections: list[Section] = []
    headings: list[Heading] = []
    body: list[str] = []
    told: set[Heading] = set()

    def close_section(next_level: int) -> None:
        text = "\n\n".join(body).strip("\n")
        body.clear()
        if not text.strip():
            nearest = next((heading for heading in reversed(headings) if heading.text), None)
            if nearest is None or nearest in told or next_level > nearest.level:
                return
            text = nearest.text
        told.update(headings)
        path = tuple(heading.text for heading in headings if heading is not title_heading and heading.text)
        sections.append(Section(path, text))

    for block in blocks:
        if isinstance(block, Heading):
            close_section(block.level)
            while headings and headings[-1].level >= block.level:
                headings.pop()
            headings.append(block)
        else:
            body.append(block)
    close_section(0)
    return tuple(sections)
