"""HTML pages: what a reader sees of them, by headings.

LangChain's ``BSHTMLLoader`` gives one text without headings, menus included; so the page is walked here.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from bounded_retrieval.errors import MAX_PROBLEM_CHARS, SourceError, one_line
from bounded_retrieval.ingest._warnings import ignoring
from bounded_retrieval.ingest.decoding import decode_utf8, with_line_feeds
from bounded_retrieval.ingest.outline import (
    MAX_HEADING_CHARS,
    Block,
    Heading,
    ParsedDocument,
    build_sections,
    first_title_heading,
)
from bounded_retrieval.ingest.unended import write_out_unended

if TYPE_CHECKING:
    from bs4 import BeautifulSoup, Tag

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_UNSEEN = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "title", "meta", "link"})
_CONTROLS = frozenset({"nav", "button", "select", "textarea", "input", "dialog"})
_BOILERPLATE_ROLES = frozenset({"navigation", "search", "banner", "contentinfo"})
_PAGE_FRAME = frozenset({"header", "footer", "aside"})
_HEADING_LINKS = frozenset({"headerlink", "anchor", "anchorjs-link", "hash-link"})

_LINE_BREAKS = frozenset({"br", "li", "tr", "dt", "dd", "option", "optgroup"})
_SECTIONING = frozenset({"address", "article", "aside", "body", "div", "footer", "header", "main", "nav", "section"})
_GROUPING = frozenset({"blockquote", "caption", "dl", "figcaption", "figure", "form", "hr", "ol", "p", "table", "ul"})
_OTHER_BLOCKS = frozenset({"center", "details", "dialog", "dir", "fieldset", "hgroup", "legend", "menu", "search"})
_BLOCKS = _SECTIONING | _GROUPING | _OTHER_BLOCKS | _HEADINGS.keys() | {"pre", "summary"}
_CELLS = frozenset({"td", "th"})
_TAKING_ROOM = _CONTROLS | {"iframe", "svg"}
_LEAVES = frozenset({*_HEADINGS, "pre"})

_HIDING_STYLES = frozenset({("display", "none"), ("visibility", "hidden"), ("visibility", "collapse")})

_LISTS = frozenset({"dir", "menu", "ol", "ul"})
_ROW_ENDS = frozenset({"tr", "tbody", "tfoot"})
_OPTIONAL_ENDS = {
    "p": (_BLOCKS | {"li", "dt", "dd"}, frozenset[str]()),
    "li": (frozenset({"li"}), _LISTS),
    **dict.fromkeys(("dt", "dd"), (frozenset({"dt", "dd"}), frozenset({"dl"}))),
    **dict.fromkeys(_CELLS, (_CELLS | _ROW_ENDS, frozenset({"table"}))),
    "tr": (_ROW_ENDS, frozenset({"table"})),
}
"""Elements that need no end tag: what ends each where it opens inside, and inside what it does not."""

_AS_BROWSERS_READ = {"ascii": "cp1252", "iso8859-1": "cp1252", "iso8859-9": "cp1254", "iso8859-11": "cp874"}
_ASCII_PROBE = rb"<p a='+A-\x41\u0041'>"  # with the marks of UTF-7 and of Python's escapes


def decode_html(data: bytes, where: str) -> str:
    """Decode a page: UTF-8, else the encoding that the page itself declares.

    Raises:
        SourceError: names the first byte that is not UTF-8 where no declared encoding helps.
    """
    try:
        return with_line_feeds(decode_utf8(data, where))
    except SourceError:
        from bs4.dammit import EncodingDetector

        declared = EncodingDetector.find_declared_encoding(data, is_html=True)
        for encoding in _encodings_meant(declared or "utf-8"):
            try:
                return with_line_feeds(data.decode(encoding))
            except ValueError:
                pass
        raise


def _encodings_meant(declared: str) -> list[str]:
    """What to try for a declared encoding: what browsers take it for, then itself.

    A declaration that could be read as ASCII does not stand in UTF-16, whatever it says.
    """
    try:
        if _ASCII_PROBE.decode(declared) != _ASCII_PROBE.decode("ascii"):
            return []
    except (LookupError, ValueError):
        return []
    name = codecs.lookup(declared).name
    return [] if name.startswith("utf") else [_AS_BROWSERS_READ.get(name, name), name]


def parse_html(markup: str, file_title: str, where: str = "page") -> ParsedDocument:
    """Read a page; the title is its ``<title>``, else the first ``<h1>``, else ``file_title``.

    Only the main content is read where the page marks it (``<main>``); scripts, styles, menus, buttons, hidden
    elements and the frame of the page are left out.

    Raises:
        SourceError: the parser does not take it; names ``where`` it is and what is wrong.
    """
    soup = _parse(markup, where)
    blocks = _readable_blocks(soup)
    title_heading = first_title_heading(blocks)
    title = _page_title(soup)
    if len(title) > MAX_HEADING_CHARS:
        title, blocks = "", [title, *blocks]
    if title and title_heading and title_heading.text.casefold() not in title.casefold():
        title_heading = None  # a heading that says more than the title stays in the section paths
    title = title or (title_heading.text if title_heading else file_title)
    return ParsedDocument(title, build_sections(blocks, title_heading))


def _parse(markup: str, where: str) -> BeautifulSoup:
    from bs4 import BeautifulSoup, MarkupResemblesLocatorWarning, XMLParsedAsHTMLWarning
    from bs4.builder import ParserRejectedMarkup

    # Both are about a caller's mistake; here the file's suffix has said that this is HTML.
    with ignoring(MarkupResemblesLocatorWarning, XMLParsedAsHTMLWarning):
        try:
            return BeautifulSoup(write_out_unended(markup), "html.parser")
        except ParserRejectedMarkup as error:
            reason = str(error).splitlines()[-1].strip()  # what the parser said; before it stands advice on encodings
            raise SourceError(f"{where}: not readable HTML ({one_line(reason, MAX_PROBLEM_CHARS)})") from error


def _page_title(soup: BeautifulSoup) -> str:
    tags = _opened(_Walk(soup, lambda tag: tag.name == "svg"))
    title = next((tag for tag in tags if tag.name == "title"), None)
    return _words(_Walk(title, lambda _: False)) if title else ""


def _readable_blocks(soup: BeautifulSoup) -> list[Block]:
    main = _main_content(soup)
    if main is not None:
        blocks = _Page(has_frame=False).read(main)
        if any(_has_words(block) for block in blocks):
            return blocks
    return _Page(has_frame=True).read(soup)


def _main_content(soup: BeautifulSoup) -> Tag | None:
    tags = list(_opened(_Walk(soup, lambda tag: tag.name == "template" or _is_undisplayed(tag))))
    by_name = (tag for tag in tags if tag.name == "main")
    by_role = (tag for tag in tags if tag.get("role") == "main")
    return next(by_name, None) or next(by_role, None)


def _has_words(block: Block) -> bool:
    return bool(block.text if isinstance(block, Heading) else block.strip())


class _Page:
    """Collects the blocks of one walk over a page.

    Args:
        has_frame: whether headers, footers and asides are the frame of the page and not part of an article.
    """

    def __init__(self, *, has_frame: bool) -> None:
        self._has_frame = has_frame
        self._blocks: list[Block] = []
        self._pieces: list[str] = []
        self._with_heading: set[int] = set()

    def read(self, root: Tag) -> list[Block]:
        self._with_heading = _holders_of_headings(root)
        for event in _Walk(root, self._is_left_out, _LEAVES):
            if isinstance(event, str):
                self._add_text(event)
            elif isinstance(event, int):
                self._break_line(event)
            else:
                self._open(event)
        self._end_text()
        return self._blocks

    def _is_left_out(self, tag: Tag) -> bool:
        if tag.name in _UNSEEN or _is_hidden(tag) or tag.get("role") in _BOILERPLATE_ROLES:
            return True
        if tag.name in _CONTROLS:
            return tag.name != "button" or id(tag) not in self._with_heading
        if not self._has_frame or tag.name not in _PAGE_FRAME:
            return False
        return tag.name != "header" or id(tag) not in self._with_heading

    def _open(self, tag: Tag) -> None:
        if tag.name in _HEADINGS:
            self._end_text()
            text = self._heading_text(tag)
            self._blocks.append(Heading(_HEADINGS[tag.name], text) if len(text) <= MAX_HEADING_CHARS else text)
        elif tag.name == "pre":
            self._break_line(2)
            self._pieces.append(_preformatted(_Walk(tag, self._is_left_out)))
            self._break_line(2)
        elif tag.name in _CELLS:
            if self._pieces and not self._pieces[-1].endswith("\n"):
                self._pieces.append(" | ")
        else:
            self._break_line(_line_breaks(tag.name))
            if tag.name == "li":
                self._pieces.append("- ")

    def _heading_text(self, heading: Tag) -> str:
        """The words of a heading without the link to itself that documentation tools add; a button's words count."""

        def is_left_out(tag: Tag) -> bool:
            return _is_hidden(tag) if tag.name == "button" else self._is_left_out(tag)

        text = _words(_Walk(heading, lambda tag: is_left_out(tag) or _is_heading_link(tag))).strip("¶ ")
        if re.search(r"\w", text):
            return text
        with_links = _words(_Walk(heading, is_left_out)).strip("¶ ")
        return with_links if re.search(r"\w", with_links) else text

    def _add_text(self, text: str) -> None:
        text = re.sub(r"\s+", " ", text)
        at_space = not self._pieces or self._pieces[-1].endswith((" ", "\n"))
        if text := text.lstrip(" ") if at_space else text:
            self._pieces.append(text)

    def _break_line(self, count: int) -> None:
        if not self._pieces or not count:
            return
        if self._pieces[-1].strip("\n"):
            self._pieces.append("\n" * count)
        else:
            self._pieces[-1] = max(self._pieces[-1], "\n" * count)

    def _end_text(self) -> None:
        text = "\n".join(line.rstrip() for line in "".join(self._pieces).split("\n"))
        text = re.sub(r"^- *\n+(?=\S)", "- ", text, flags=re.MULTILINE)
        self._blocks.append(re.sub(r"\n{3,}", "\n\n", text).strip("\n"))
        self._pieces.clear()


def _line_breaks(name: str) -> int:
    """Line breaks before and after an element: two around a block, one around a row or list item."""
    if name in _BLOCKS:
        return 2
    return 1 if name in _LINE_BREAKS else 0


def _holders_of_headings(root: Tag) -> set[int]:
    """The ``id`` of every tag with a heading somewhere in it; each is climbed to once, however deep they nest."""
    holders: set[int] = set()
    for heading in root.find_all(list(_HEADINGS)):
        for parent in heading.parents:
            if id(parent) in holders:
                break
            holders.add(id(parent))
    return holders


def _is_heading_link(tag: Tag) -> bool:
    return not _HEADING_LINKS.isdisjoint(tag.get_attribute_list("class"))


def _is_hidden(tag: Tag) -> bool:
    return tag.get("aria-hidden") == "true" or _is_undisplayed(tag)


def _is_undisplayed(tag: Tag) -> bool:
    styles = (style.partition("!")[0].partition(":") for style in str(tag.get("style") or "").lower().split(";"))
    return tag.has_attr("hidden") or any((name.strip(), value.strip()) in _HIDING_STYLES for name, _, value in styles)


class _Walk:
    """Goes over what is below a tag in reading order, without recursion since pages may nest deeper than the stack.

    Args:
        root: the tag.
        is_left_out: which tags are passed over with all that is in them.
        leaves: names of the tags that are met while nothing below them is.
    """

    def __init__(self, root: Tag, is_left_out: Callable[[Tag], bool], leaves: frozenset[str] = frozenset()) -> None:
        self._is_left_out = is_left_out
        self._leaves = leaves
        self._stack = [(root, iter(root.children))]
        self._unended: Tag | None = None  # a tag left out whose end tag may be missing, while in it

    def __iter__(self) -> Iterator[Tag | str | int]:
        """Opened tags, texts, and the number of line breaks where a tag ends."""
        from bs4.element import NavigableString, PreformattedString, Tag

        while self._stack:
            parent, children = self._stack[-1]
            node = next(children, None)
            if node is None:
                self._stack.pop()
                yield _line_breaks(parent.name) if self._unended is None else 0
                self._unended = None if parent is self._unended else self._unended
            elif isinstance(node, Tag):
                yield self._meet(node)
            elif isinstance(node, NavigableString) and not isinstance(node, PreformattedString):
                yield str(node) if self._unended is None else 0

    def _meet(self, tag: Tag) -> Tag | str | int:
        is_left_out = self._is_left_out(tag)
        if self._unended is not None:
            ending, keeping = _OPTIONAL_ENDS[self._unended.name]
            if tag.name not in ending:
                if tag.name not in keeping and not is_left_out:
                    self._enter(tag)
                return 0
        self._unended = tag if is_left_out and tag.name in _OPTIONAL_ENDS else None
        if self._unended is not None or not (is_left_out or tag.name in self._leaves):
            self._enter(tag)
        if not is_left_out:
            return tag
        return _line_breaks(tag.name) or (" " if tag.name in _TAKING_ROOM else 0)

    def _enter(self, tag: Tag) -> None:
        self._stack.append((tag, iter(tag.children)))


def _opened(events: Iterable[Tag | str | int]) -> Iterator[Tag]:
    return (event for event in events if not isinstance(event, (str, int)))


def _words(events: Iterable[Tag | str | int]) -> str:
    """The text on one line, where blocks, line breaks and cells hold words apart."""
    pieces = (event if isinstance(event, str) else " " if _parts_words(event) else "" for event in events)
    return _one_line("".join(pieces))


def _preformatted(events: Iterable[Tag | str | int]) -> str:
    """The text as it stands, where blocks and rows are on lines of their own."""
    pieces = [""]
    for event in events:
        if isinstance(event, str):
            pieces.append(event)
        elif not isinstance(event, int) and event.name == "br":
            pieces.append("\n")
        elif _parts_words(event) and not pieces[-1].endswith("\n"):
            pieces.append(" " if not isinstance(event, int) and event.name in _CELLS else "\n")
    return "".join(pieces).strip("\n")


def _parts_words(event: Tag | int) -> bool:
    return event > 0 if isinstance(event, int) else event.name in _CELLS or _line_breaks(event.name) > 0


def _one_line(text: str) -> str:
    return " ".join(text.split())
