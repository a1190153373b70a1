"""HTML pages: what a reader sees of them, by headings.

LangChain's ``BSHTMLLoader`` gives one text without headings, menus included; so the page is walked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
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
    from bs4.element import NavigableString

_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_UNSEEN = frozenset({"head", "script", "style", "noscript", "template", "svg", "iframe", "title", "meta", "link"})
_CONTROLS = frozenset({"nav", "button", "select", "textarea", "input", "dialog"})
_BOILERPLATE_ROLES = frozenset({"navigation", "search", "banner", "contentinfo"})
_PAGE_FRAME = frozenset({"header", "footer", "aside"})
_HEADING_LINKS = frozenset({"headerlink", "anchor", "anchorjs-link", "hash-link"})

_LINE_BREAKS = frozenset({"br", "li", "tr", "dt", "dd", "option"})
_SECTIONING = frozenset({"address", "article", "aside", "body", "div", "footer", "header", "main", "section"})
_GROUPING = frozenset({"blockquote", "caption", "dl", "figcaption", "figure", "form", "hr", "ol", "p", "table", "ul"})
_BLOCKS = _SECTIONING | _GROUPING | {"details", "fieldset", "summary"}
_CELLS = frozenset({"td", "th"})


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
        if declared is None or declared.lower() in ("utf-8", "utf8"):
            raise
        try:
            return with_line_feeds(data.decode(declared))
        except (LookupError, ValueError):
            pass
        raise


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
    from bs4 import Tag

    titles = (node for node in _inside(soup, lambda tag: tag.name == "svg") if isinstance(node, Tag))
    title = next((tag for tag in titles if tag.name == "title"), None)
    return _one_line(title.get_text()) if title else ""


def _readable_blocks(soup: BeautifulSoup) -> list[Block]:
    main = soup.find("main") or soup.find(None, {"role": "main"})
    if main is not None:
        blocks = _Page(has_frame=False).read(main)
        if any(_has_words(block) for block in blocks):
            return blocks
    return _Page(has_frame=True).read(soup)


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
        for event in self._walk(root):
            if isinstance(event, str):
                self._add_text(event)
            elif isinstance(event, int):
                self._break_line(event)
            else:
                self._open(event)
        self._end_text()
        return self._blocks

    def _walk(self, root: Tag) -> Iterator[Tag | str | int]:
        """What is met in reading order: an opened tag, a text, or the number of line breaks where a tag ends.

        Without recursion, since pages may nest deeper than Python's stack.
        """
        from bs4.element import NavigableString, PreformattedString, Tag

        stack: list[tuple[Tag, Iterator[object]]] = [(root, iter(root.children))]
        while stack:
            parent, children = stack[-1]
            node = next(children, None)
            if node is None:
                stack.pop()
                yield _line_breaks(parent.name)
            elif isinstance(node, Tag):
                if not self._is_left_out(node):
                    yield node
                    if node.name not in _HEADINGS and node.name != "pre":
                        stack.append((node, iter(node.children)))
            elif isinstance(node, NavigableString) and not isinstance(node, PreformattedString):
                yield str(node)

    def _is_left_out(self, tag: Tag) -> bool:
        if tag.name in _UNSEEN or tag.name in _CONTROLS:
            return True
        if tag.has_attr("hidden") or tag.get("aria-hidden") == "true" or tag.get("role") in _BOILERPLATE_ROLES:
            return True
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
            self._pieces.append(tag.get_text().strip("\n"))
            self._break_line(2)
        elif tag.name in _CELLS:
            if self._pieces and not self._pieces[-1].endswith("\n"):
                self._pieces.append(" | ")
        else:
            self._break_line(_line_breaks(tag.name))
            if tag.name == "li":
                self._pieces.append("- ")

    def _heading_text(self, heading: Tag) -> str:
        """The words of a heading without the link to itself that documentation tools add."""
        from bs4 import Tag

        inside = _inside(heading, lambda tag: self._is_left_out(tag) or _is_heading_link(tag))
        return _one_line("".join(str(node) for node in inside if not isinstance(node, Tag))).strip("¶ ")

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


def _inside(root: Tag, is_left_out: Callable[[Tag], bool]) -> Iterator[Tag | NavigableString]:
    """Tags and texts below a tag in reading order, without those left out and all below them, and without comments.

    Without recursion, since pages may nest deeper than Python's stack.
    """
    from bs4.element import NavigableString, PreformattedString, Tag

    stack = [iter(root.children)]
    while stack:
        node = next(stack[-1], None)
        if node is None:
            stack.pop()
        elif isinstance(node, Tag):
            if not is_left_out(node):
                yield node
                stack.append(iter(node.children))
        elif isinstance(node, NavigableString) and not isinstance(node, PreformattedString):
            yield node


def _one_line(text: str) -> str:
    return " ".join(text.split())
