"""The SGML of TREC: topics (``<top>`` or ``<topic number=...>``) and documents (``<DOC>``).

Tags are found wherever they stand, in any case of letters; tags inside a text are dropped, and entities that end with
a semicolon are resolved. Topics are UTF-8. The older document collections mix encodings, so each document is read as
UTF-8 or, where it is not that, as Windows-1252.
"""

from __future__ import annotations

import html
import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from langchain_core.documents import Document

from bounded_retrieval.errors import SourceError
from bounded_retrieval.evaluation._gathering import read_id, to_unit
from bounded_retrieval.ingest.decoding import cannot_read, decode_utf8, read_bytes, with_line_feeds

MAX_DOCUMENT_BYTES = 32 * 1024 * 1024
"""Longest accepted document, in bytes."""

_TAG = re.compile(r"</?[a-zA-Z][^<>]*>|<!--")
_COMMENT, _COMMENT_END = "<!--", "-->"
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[a-zA-Z][a-zA-Z0-9]{1,30});")

_TOPIC = re.compile(r"<(top|topic)(\s[^<>]*)?>", re.IGNORECASE)
_TOPIC_END = re.compile(r"</(?:top|topic)\s*>", re.IGNORECASE)
_NUMBER = re.compile(r"""\b(?:number|num|id|qid)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
# The words that TREC's own topics repeat after their tags, as in "<num> Number: 301".
_LABEL = re.compile(
    r"(<num>\s*)Number\s*:|(<title>\s*)Topic\s*:|(<desc>\s*)Description\s*:|(<narr>\s*)Narrative\s*:", re.IGNORECASE
)
_NUMBER_FIELDS = ("num", "number", "qid")
_QUERY_FIELDS = ("title", "query", "question", "summary", "description", "desc")
_OTHER_FIELDS = {"description": ("description", "desc"), "narrative": ("narrative", "narr")}

_DOCUMENT_TAG = re.compile(rb"(</?doc(?:\s[^<>]*)?>)", re.IGNORECASE)
_TITLE_FIELDS = ("title", "headline", "hl", "ttl", "head")
_BODY_FIELDS = ("text", "lp", "leadpara")
_NOT_BODY_FIELDS = ("docno", "docid", "dochdr", *_TITLE_FIELDS)
_FIELDS = frozenset(chain(_NUMBER_FIELDS, _QUERY_FIELDS, _BODY_FIELDS, _NOT_BODY_FIELDS, *_OTHER_FIELDS.values()))
_OPENING = {name: re.compile(rf"<{name}(?:\s[^<>]*)?>", re.IGNORECASE) for name in _FIELDS}
_ENDING = {name: re.compile(rf"</{name}\s*>", re.IGNORECASE) for name in _FIELDS}


@dataclass(frozen=True, kw_only=True)
class Topic:
    """One topic: its number, its text on one line, what else it says, and the line where it begins, from 1."""

    line: int
    number: str
    text: str
    metadata: Mapping[str, str]


def read_topics(path: Path) -> Iterator[Topic]:
    """Stream the topics of a file.

    The text is the title, else the first of query, question, summary and description that there is, else what stands
    between the tags.

    Raises:
        SourceError: names the file and the line of a topic that is not closed or has no number.
    """
    content = with_line_feeds(decode_utf8(read_bytes(path), str(path)))
    starts = list(_TOPIC.finditer(content))
    limits = [*(start.start() for start in starts[1:]), len(content)]
    line, counted = 1, 0
    for start, limit in zip(starts, limits, strict=False):
        line += content.count("\n", counted, start.start())
        counted = start.start()
        end = _TOPIC_END.search(content, start.end(), limit)
        if end is None:
            raise SourceError(f"{path}, line {line}: <{start[1]}> is not closed")
        block = content[start.end() : end.start()]
        if start[1].lower() == "top":
            block = _LABEL.sub(lambda label: "".join(part or "" for part in label.groups()), block)
        yield _topic(start[2] or "", block, line)


def read_sgml_documents(path: Path, source: str) -> Iterator[tuple[int, Document]]:
    """Stream the documents of a file, each with the line where it begins, from 1.

    A title stands in for a blank text; documents with neither are left out.

    Raises:
        SourceError: the file holds no document, or names the line of one without an end or a number.
    """
    empty = True
    for line, block in _blocks(path):
        empty = False
        body = with_line_feeds(_decode(block))
        number = read_id(_field(body, ("docno",)) or None, "DOCNO", f"{path}, line {line}")
        title = " ".join(_field(body, _TITLE_FIELDS).split())
        if (document := to_unit(number, title, _body(body), source)) is not None:
            yield line, document
    if empty:
        raise SourceError(f"{path}: empty (no <DOC> in it)")


def _topic(attributes: str, block: str, line: int) -> Topic:
    declared = _NUMBER.search(attributes)
    number = next(filter(None, declared.groups()), "") if declared else _field(block, _NUMBER_FIELDS)
    plain = _plain(block) if next(_tags(block), None) is None else ""
    others = {name: _one_line(_field(block, tags)) for name, tags in _OTHER_FIELDS.items()}
    query = _one_line(_field(block, _QUERY_FIELDS) or plain)
    return Topic(line=line, number=number.strip(), text=query, metadata={k: v for k, v in others.items() if v})


def _field(block: str, names: tuple[str, ...]) -> str:
    """Content of the first of these tags that has any; it ends at its end tag or, without one, at the next tag."""
    for name in names:
        opening = _OPENING[name].search(block)
        if opening is None:
            continue
        rest = block[opening.end() :]
        ending = _ENDING[name].search(rest)
        end = next(_tags(rest), (len(rest), 0))[0] if ending is None else ending.start()
        if content := _plain(rest[:end]).strip():
            return content
    return ""


def _body(block: str) -> str:
    """The text of a document: that of its text tags, or, where it has none of these, all but number and title."""
    parts = [_plain(block[inner]).strip() for _, inner in _elements(block, _BODY_FIELDS)]
    if parts:
        return "\n\n".join(filter(None, parts))
    left, position = [], 0
    for whole, _ in _elements(block, _NOT_BODY_FIELDS):
        left.append(block[position : whole.start])
        position = whole.stop
    return _plain("".join([*left, block[position:]]))


def _elements(block: str, names: tuple[str, ...]) -> Iterator[tuple[slice, slice]]:
    """Each element of these names with an end tag: as a whole, and what it holds. None of them inside another one."""
    openings = sorted((found.span(), name) for name in names for found in _OPENING[name].finditer(block))
    # Looked up once for all openings, since a block may hold any number without an end.
    endings = {name: [found.span() for found in _ENDING[name].finditer(block)] for name in names}
    position = 0
    for (start, inside), name in openings:
        place = bisect_left(endings[name], (inside, inside))
        if start >= position and place < len(endings[name]):
            end, position = endings[name][place]
            yield slice(start, position), slice(inside, end)


def _plain(markup: str) -> str:
    pieces, position = [], 0
    for start, end in _tags(markup):
        pieces.append(markup[position:start])
        position = end
    text = " ".join([*pieces, markup[position:]])
    return _ENTITY.sub(lambda entity: html.unescape(entity[0]), text)


def _tags(markup: str) -> Iterator[tuple[int, int]]:
    """Where each tag and each comment starts and ends; a comment without an end is none."""
    position, last = 0, markup.rfind(_COMMENT_END)
    while (found := _TAG.search(markup, position)) is not None:
        position = found.end()
        if found[0] == _COMMENT:
            if position > last:
                continue
            position = markup.index(_COMMENT_END, position) + len(_COMMENT_END)
        yield found.start(), position


def _one_line(content: str) -> str:
    return " ".join(content.split())


def _decode(block: bytes) -> str:
    try:
        return block.decode("utf-8")
    except UnicodeDecodeError:
        return block.decode("cp1252", errors="replace")


def _blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """What stands between each pair of document tags, with the line of the first."""
    held: list[bytes] = []
    first = size = 0
    for number, piece in _pieces(path):
        if not first:
            first = number if _DOCUMENT_TAG.fullmatch(piece) and not piece.startswith(b"</") else 0
        elif not _DOCUMENT_TAG.fullmatch(piece):
            held.append(piece)
            size += len(piece)
            if size > MAX_DOCUMENT_BYTES:
                raise SourceError(f"{path}, line {first}: longer than {MAX_DOCUMENT_BYTES} bytes")
        elif piece.startswith(b"</"):
            yield first, b"".join(held)
            held, first, size = [], 0, 0
        else:
            raise _not_closed(path, first)
    if first:
        raise _not_closed(path, first)


def _pieces(path: Path) -> Iterator[tuple[int, bytes]]:
    """The document tags of a file and what stands between them, with their line numbers."""
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                yield from ((number, piece) for piece in _DOCUMENT_TAG.split(line) if piece)
    except OSError as error:
        raise cannot_read(path, error) from error


def _not_closed(path: Path, line: int) -> SourceError:
    return SourceError(f"{path}, line {line}: <DOC> is not closed")
