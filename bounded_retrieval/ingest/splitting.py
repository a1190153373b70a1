"""Cut sections into units of at most ``chunk_chars`` characters and give them ids.

A unit's text begins with its section's path (``Install > Linux``) on a line of its own, so that it can be found
and understood alone; those characters count. A path longer than a third of ``chunk_chars`` stands only once, at the
start of the section's first unit. The document's title is metadata and not repeated.

An id is the source, the nearest heading as a slug and a digest of path and text, for example
``guide.md#install-2f6c0d9a81b3e447``. Nothing in it counts positions: an edit changes the ids of its own section
only. A text that repeats under the same path of one document is one unit, the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.normalise import clean_text, part_id
from bounded_retrieval.errors import RequestError, quoted
from bounded_retrieval.ingest.outline import ParsedDocument, Section

if TYPE_CHECKING:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

DEFAULT_CHUNK_CHARS = 900
"""Four units of this size and the separators between them fit the default packet of 4,000 characters."""

MIN_CHUNK_CHARS = 100
MAX_CHUNK_CHARS = 200_000

_PATH_SEPARATOR = " > "
_MAX_PATH_SHARE = 3
_SLUG_CHARS = 40

# Tried in this order. Each holds whitespace, so a cut never falls inside a word.
_BREAKS = [
    r"\n\s*\n",  # between paragraphs
    r"\n(?=[ \t]*(?:[-*+|]|\d+[.)]\s))",  # before a list item or table row
    r"[.!?\u2026]['\"\u201d\u2019\u00bb)\]]*\s+",  # after a sentence, closing quotes and brackets included
    r"\n",
    r"\s+",
]
# Scripts written without spaces make "words" longer than a unit; these East Asian marks end a sentence or clause.
_UNSPACED_BREAK = re.compile("[\u3001\u3002\uff01\uff0c\uff1b\uff1f]")


def check_chunk_chars(chunk_chars: int) -> None:
    """Refuse a unit size outside the bounds.

    Raises:
        RequestError: names the bounds and the value.
    """
    is_whole = isinstance(chunk_chars, int) and not isinstance(chunk_chars, bool)
    if not is_whole or not MIN_CHUNK_CHARS <= chunk_chars <= MAX_CHUNK_CHARS:
        bounds = f"from {MIN_CHUNK_CHARS} to {MAX_CHUNK_CHARS}"
        raise RequestError(f"chunk_chars: must be a whole number {bounds} (got {quoted(chunk_chars)})")


def split_text(text: str, chunk_chars: int) -> list[str]:
    """Cut text at paragraphs, else list items, sentences, lines, spaces; inside a word only if it alone is too long.

    No overlap: the words of the pieces in order are the words of the text.
    """
    stripped = text.strip()
    if len(stripped) <= chunk_chars:
        return [stripped] if stripped else []
    pieces = (piece.strip() for piece in _splitter(chunk_chars).split_text(stripped))
    return [part for piece in pieces if piece for part in _cut_long_word(piece, chunk_chars)]


def to_documents(parsed: ParsedDocument, source: str, chunk_chars: int) -> list[Document]:
    """Make the units of one document, in reading order."""
    source = clean_text(source)
    documents: dict[str, Document] = {}
    for section in parsed.sections:
        path = tuple(clean_text(heading) for heading in section.path)
        metadata = _metadata(parsed.title, source, section)
        for text in _section_texts(path, clean_text(section.text), chunk_chars):
            unit_id = _unit_id(source, path, text)
            documents.setdefault(unit_id, Document(id=unit_id, page_content=text, metadata=dict(metadata)))
    return list(documents.values())


def _section_texts(path: tuple[str, ...], text: str, chunk_chars: int) -> list[str]:
    first_line = _PATH_SEPARATOR.join(path)
    if not path:
        return split_text(text, chunk_chars)
    if text == path[-1]:
        return split_text(first_line, chunk_chars)
    if len(first_line) > chunk_chars // _MAX_PATH_SHARE:
        return split_text(f"{first_line}\n\n{text}", chunk_chars)
    return [f"{first_line}\n{piece}" for piece in split_text(text, chunk_chars - len(first_line) - 1)]


def _metadata(title: str, source: str, section: Section) -> dict[str, Any]:
    metadata = {"title": clean_text(title), "source": source, **section.metadata}
    if section.path:
        metadata["section"] = clean_text(_PATH_SEPARATOR.join(section.path))
    return metadata


def _unit_id(source: str, path: tuple[str, ...], text: str) -> str:
    slug = "-".join(re.findall(r"\w+", path[-1].lower()))[:_SLUG_CHARS].strip("-") if path else ""
    return part_id(source, slug, "\n".join([*path, "", text]))


@lru_cache(maxsize=8)
def _splitter(chunk_chars: int) -> RecursiveCharacterTextSplitter:
    from langchain_text_splitters import RecursiveCharacterTextSplitter

    return RecursiveCharacterTextSplitter(
        separators=_BREAKS,
        is_separator_regex=True,
        keep_separator="end",
        chunk_size=chunk_chars,
        chunk_overlap=0,
    )


def _cut_long_word(piece: str, chunk_chars: int) -> Iterator[str]:
    start = 0
    while len(piece) - start > chunk_chars:
        end = start + chunk_chars
        breaks = [match.end() for match in _UNSPACED_BREAK.finditer(piece, start, end)]
        end = breaks[-1] if breaks else end
        yield piece[start:end]
        start = end
    yield piece[start:]
