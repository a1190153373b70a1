"""How a unit stands in a Milvus collection, and how a filter is put into Milvus' language."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.errors import SourceError, quoted
from bounded_retrieval.retrievers._bm25_corpus import terms_of
from bounded_retrieval.retrievers._facets import EXACT_INTEGER, OPEN, Language, Narrowing, facet, facets_of, narrow

ID_BYTES = 512
TEXT_BYTES = 65_535
FACETS = 4_096
"""What Milvus holds at most of an id, of a text, and of a list."""

K1, B = 1.5, 0.75
"""Constants of BM25, those of the embedded index."""

TERMS_FORMAT = "2"
"""Changes whenever `encode_term`, what stands in a row or what stands beside it changes; a collection records it."""

LENGTH_BITS = 20
"""A unit of `TEXT_BYTES` holds fewer terms than two to this power."""

UNIT_FIELDS = ["text", "metadata"]

_PLAIN_TERM_CHARS = 64
_MARK = "zq"
_ESCAPED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r"}


def encode_term(term: str) -> str:
    """A term as letters and digits, which every analyzer of Milvus leaves whole; distinct for distinct terms."""
    plain = term.isascii() and term.isalnum() and term == term.lower()
    if plain and len(term) <= _PLAIN_TERM_CHARS and not term.startswith(_MARK):
        return term
    return _MARK + blake2b(term.encode(), digest_size=16).hexdigest()


def row_of(unit: Unit, vector: Sequence[float]) -> dict[str, Any]:
    """What is stored of a unit.

    Raises:
        SourceError: something of it is longer than Milvus holds.
    """
    terms = [encode_term(term) for term in terms_of(unit)]
    metadata = unit.to_document().metadata
    row = {
        "id": unit.unit_id,
        "text": unit.text,
        "metadata": metadata,
        "terms": " ".join(terms),
        "length": len(terms),
        "facets": [*facets_of(metadata), *_length_facets(len(terms))],
        "vector": vector,
    }
    _check(row)
    return row


def _check(row: dict[str, Any]) -> None:
    for field, most in (("id", ID_BYTES), ("text", TEXT_BYTES), ("terms", TEXT_BYTES)):
        size = len(row[field].encode())
        if size > most:
            raise SourceError(f"unit {quoted(row['id'])}: its {field}: Milvus holds at most {most} bytes (got {size})")
    if len(row["facets"]) > FACETS:
        raise SourceError(
            f"unit {quoted(row['id'])}: its metadata: Milvus holds at most {FACETS} values (got {len(row['facets'])})"
        )


def document_of(unit_id: str, fields: dict[str, Any]) -> Document:
    """A unit out of a row's `UNIT_FIELDS`."""
    return Document(id=unit_id, page_content=fields["text"], metadata=fields["metadata"] or {})


def counts_in(terms: str) -> Counter[str]:
    """How often each encoded term stands in a row's terms."""
    return Counter(terms.split())


def _length_facets(length: int) -> list[str]:
    return [length_facet(bit) for bit in range(LENGTH_BITS) if length >> bit & 1]


def length_facet(bit: int) -> str:
    """The facet of units whose number of terms has this binary digit: so a sum of lengths is a sum of counts."""
    return facet("length", str(bit))


def held(facets: Sequence[str]) -> str:
    """The condition that a unit has at least one of these facets."""
    return f"array_contains_any(facets, [{', '.join(map(_quoted, facets))}])"


def narrowed(filter: Filter | None) -> Narrowing:
    """A filter in Milvus' language.

    Raises:
        RequestError: names the operator, field or value that is not part of the filter language.
    """
    return narrow(filter, Language(held=held, ordered=_ordered, most=1_000))


def _ordered(field: str, name: str, bound: Any) -> Narrowing:
    path = f"metadata[{_quoted(field)}]"
    sign = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}[name]
    if not _is_sayable(field):
        return OPEN
    if isinstance(bound, str):
        return Narrowing(f"{path} {sign} {_quoted(bound)}", exact=True) if _is_sayable(bound) else OPEN
    if not -EXACT_INTEGER < bound < EXACT_INTEGER:
        return OPEN
    # Written without an exponent, whatever its size.
    number = str(int(bound)) if bound == int(bound) else f"{bound:.400f}".rstrip("0")
    return Narrowing(f"{path} {sign} {number}", exact=bound == int(bound))


def _is_sayable(text: str) -> bool:
    # How others are to be escaped differs between Milvus' versions.
    return text.isprintable() and not any(char in text for char in "\"'\\{}")


def one_of(unit_ids: Iterable[str]) -> str:
    """The condition that a row is one of these; pymilvus writes one of its own that not every id survives."""
    return f"id in [{', '.join(map(quoted_id, unit_ids))}]"


def quoted_id(unit_id: str) -> str:
    """An id as a condition names it."""
    return _quoted("".join(_ESCAPED.get(char, char) for char in unit_id))


def _quoted(text: str) -> str:
    return f'"{text}"'
