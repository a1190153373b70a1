"""Markdown by its headings.

LangChain's ``MarkdownHeaderTextSplitter`` drops indentation and blank lines, which takes code and lists apart, and
knows no underlined headings; so the headings are found here, and the text between them stays as it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

from bounded_retrieval.ingest.outline import (
    MAX_HEADING_CHARS,
    Block,
    Heading,
    ParsedDocument,
    build_sections,
    first_title_heading,
)

_ATX = re.compile(r" {0,3}(#{1,6})(?:[ \t](.*))?$")
_SETEXT = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_NO_SETEXT_TEXT = re.compile(r"\s*$| {4}|\t|\s*(?:[-*+]\s|[>|]|\d+[.)]\s)")
_FENCE = re.compile(r"\s*(?:(?:[-*+]|\d+[.)])\s+)?(`{3,}(?=[^`]*$)|~{3,})")
_RAW_HTML = re.compile(r" {0,3}<(!--|(?a:pre|script|style|textarea)\b)", re.IGNORECASE)
_RAW_ENDS = {
    "!--": re.compile("-->"),
    **{name: re.compile(f"</{name}>", re.IGNORECASE | re.ASCII) for name in ("pre", "script", "style", "textarea")},
}
_FRONT_MATTER = re.compile(r"\s*(-{3}|\+{3})[ \t]*\n(.*?\n)(?:\1|\.{3})[ \t]*(?:\n|$)", re.DOTALL)
_FRONT_KEY = re.compile(r"[ \t]*[\w-]+[ \t]*[:=](?![=/])")
_TOML_START = re.compile(r"\s*[\w-]+[ \t]*[:=](?!=)")
_YAML_LINE = re.compile(r"\s|$|-(?:\s|$)|[#\]}]|[\"']?[\w.-]+(?: [\w.-]+){0,2}[\"']?[ \t]*[:=](?![=/])")
_FRONT_TITLE = re.compile(r"^title[ \t]*[:=](.+)$", re.MULTILINE)

_CLOSING_MARKS = re.compile(r"(?:^| )#+$")
_ANCHOR = re.compile(r" ?\{[#:.][^{}]*\}$")
_LINK = re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])")
_STARS = re.compile(r"(?<!\\)\*+")
_LETTER = r"[^\W\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]"  # of a script that puts blanks between words
_INSIDE_WORD = re.compile(rf"(?<={_LETTER})\*+(?={_LETTER})")
_OPENING = re.compile(r"(?<!\w)\*+(?=[^\s*])|\*+(?=\w)")
_CLOSING = re.compile(r"(?<=\w)\*+|(?<=\S)\*+(?![\w*])")

_Closing = Callable[[str], object]
"""Says of a line, as true or false, whether it ends the raw block that it stands in."""


def parse_markdown(text: str, file_title: str) -> ParsedDocument:
    """Read Markdown; the title is the first heading of level 1, else that of the front matter, else ``file_title``.

    Front matter (YAML or TOML between marks at the very start) is no text of the document and left out. A ``#`` in
    a fenced or indented code block, a comment or a ``<pre>`` is no heading.
    """
    front = _front_matter(text)
    blocks = list(_blocks(text[front.end() :] if front else text))
    title_heading = first_title_heading(blocks)
    title = title_heading.text if title_heading else (front and _front_title(front[2])) or file_title
    return ParsedDocument(title, build_sections(blocks, title_heading))


def _front_matter(text: str) -> re.Match[str] | None:
    """The front matter and its marks; prose between two rules is none, even where it begins like ``Warning: hot``."""
    match = _FRONT_MATTER.match(text)
    if match is None:
        return None
    if match[1] == "+++":
        return match if _TOML_START.match(match[2]) else None
    is_yaml = _FRONT_KEY.match(match[2]) and all(map(_YAML_LINE.match, match[2].split("\n")))
    return match if is_yaml else None


def _front_title(front_matter: str) -> str | None:
    match = _FRONT_TITLE.search(front_matter)
    title = match[1].strip("\"' \t") if match else ""
    return title if len(title) <= MAX_HEADING_CHARS else None


@dataclass
class _Scanner:
    """Lines seen since the last heading, and what ends the code block or raw HTML that the scan is in."""

    lines: list[str] = field(default_factory=list)
    closing: _Closing | None = None

    def take_text(self) -> str:
        text = "\n".join(self.lines)
        self.lines.clear()
        return text


def _blocks(text: str) -> Iterator[Block]:
    scanner = _Scanner()
    for line in text.split("\n"):
        heading = _read_line(scanner, line)
        if heading is None:
            scanner.lines.append(line)
            continue
        yield scanner.take_text()
        yield heading
    yield scanner.take_text()


def _read_line(scanner: _Scanner, line: str) -> Heading | None:
    if scanner.closing is not None:
        if scanner.closing(line):
            scanner.closing = None
        return None
    scanner.closing = _closing_of(line)
    if scanner.closing is not None:
        return None
    return _atx_heading(line) or _setext_heading(line, scanner.lines)


def _closing_of(line: str) -> _Closing | None:
    """What will end the raw block that this line opens; none where it opens none or ends it itself."""
    fence = _FENCE.match(line)
    if fence:
        return partial(_closes_fence, fence[1])
    raw = _RAW_HTML.match(line)
    if raw is None:
        return None
    closing = _RAW_ENDS[raw[1].lower()]
    return None if closing.search(line, raw.end()) else closing.search


def _closes_fence(opening: str, line: str) -> bool:
    marks = line.strip()
    return len(marks) >= len(opening) and not marks.strip(opening[0])


def _atx_heading(line: str) -> Heading | None:
    match = _ATX.match(line)
    text = _plain(match[2] or "") if match else ""
    return Heading(len(match[1]), text) if match and len(text) <= MAX_HEADING_CHARS else None


def _setext_heading(line: str, lines: list[str]) -> Heading | None:
    """A line of text underlined by ``===`` or ``---``; the text is taken back from ``lines``."""
    match = _SETEXT.match(line)
    if match is None or not lines or _NO_SETEXT_TEXT.match(lines[-1]):
        return None
    if (len(lines) > 1 and lines[-2].strip()) or len(text := _plain(lines[-1])) > MAX_HEADING_CHARS:
        return None
    lines.pop()
    return Heading(1 if match[1][0] == "=" else 2, text)


def _plain(heading: str) -> str:
    """Heading text without closing marks, anchors, links and emphasis."""
    text = _ANCHOR.sub("", _CLOSING_MARKS.sub("", _one_line(heading)))
    without_images = _LINK.sub(r"\1", text)  # a picture may stand inside a link
    return _one_line(_without_emphasis(_LINK.sub(r"\1", without_images)).replace("`", ""))


def _without_emphasis(text: str) -> str:
    """Text without the stars that come in pairs; others, and those inside a word such as ``2**10``, are kept."""
    kept = {run.start(): len(run[0]) for run in _STARS.finditer(text)}
    opened: list[int] = []
    for run in _STARS.finditer(text):
        start = run.start()
        if _INSIDE_WORD.match(text, start):
            continue
        if _CLOSING.match(text, start):
            while opened and kept[start]:
                paired = min(kept[start], kept[opened[-1]])
                kept[start] -= paired
                kept[opened[-1]] -= paired
                if not kept[opened[-1]]:
                    opened.pop()
        if kept[start] and _OPENING.match(text, start):
            opened.append(start)
    return _STARS.sub(lambda run: "*" * kept[run.start()], text)


def _one_line(text: str) -> str:
    return " ".join(text.split())
