"""The files of a lexical index: JSON, NumPy arrays and one SQLite file; nothing is pickled.

::

    lexical.json      format, tokenizer, k1, b, number of units; written last
    vocabulary.json   the terms in the order of their ids
    token_ids.npy     int32, the terms of all units      offsets.npy   int64, where each unit's begin
    scores.npy        float64, scores by term            rows.npy      int32, the unit of each score
    indptr.npy        int64, where each term's scores begin
    units.sqlite      the units themselves
    neighbours.npy    int32, (units, 4), the rows of the units most like each; in an index with neighbours
    likeness.npy      float32, (units, 4), how much they are
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bounded_retrieval.errors import StoreCorruptError, StoreMissingError, StoreVersionError
from bounded_retrieval.policies.tokenize import INDEX_TERMS_NAME
from bounded_retrieval.retrievers._arrays import ArrayWriter, read_array
from bounded_retrieval.retrievers._bm25_corpus import TokenCorpus
from bounded_retrieval.retrievers._bm25_index import BM25Settings
from bounded_retrieval.retrievers._bm25_postings import Postings, posting_parts
from bounded_retrieval.retrievers._neighbours import NEIGHBOUR_FILES, Neighbours
from bounded_retrieval.retrievers._regular_files import read_json, regular_size
from bounded_retrieval.retrievers.units import SqliteUnits

LEXICAL_FORMAT = 1
HEADER, VOCABULARY, UNITS = "lexical.json", "vocabulary.json", "units.sqlite"
ARRAYS: dict[str, np.dtype[Any]] = {
    "token_ids.npy": np.dtype(np.int32),
    "offsets.npy": np.dtype(np.int64),
    "scores.npy": np.dtype(np.float64),
    "rows.npy": np.dtype(np.int32),
    "indptr.npy": np.dtype(np.int64),
}
LEXICAL_FILES = (HEADER, VOCABULARY, UNITS, *ARRAYS)
"""Every file of the directory, `units.sqlite` included; those of the neighbours may be missing."""

_SMALL_FILE_BYTES = 65_536
# Every term stands in some text, which its folded spelling, its parts and JSON's quotes make longer by far less.
_VOCABULARY_PER_UNITS_BYTE = 64


class Header(BaseModel):
    """What ``lexical.json`` holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    format: int = Field(ge=LEXICAL_FORMAT, le=LEXICAL_FORMAT)
    tokenizer: str
    k1: float = Field(ge=0)
    b: float = Field(ge=0, le=1)
    units: int = Field(ge=0)
    neighbours: bool = False

    @classmethod
    def of(cls, settings: BM25Settings, units: int, *, neighbours: bool) -> Header:
        """The header of an index of this version."""
        return cls(
            format=LEXICAL_FORMAT,
            tokenizer=INDEX_TERMS_NAME,
            k1=settings.k1,
            b=settings.b,
            units=units,
            neighbours=neighbours,
        )


def write_lexical(directory: Path, header: Header, corpus: TokenCorpus, postings: Postings) -> None:
    """Write every file but the units; readers that have older files of these names open go on with those."""
    terms = sorted(corpus.vocabulary, key=corpus.vocabulary.__getitem__)
    arrays: list[NDArray[Any]] = [corpus.flat, corpus.offsets, postings.data, postings.indices, postings.indptr]
    write_file(directory / VOCABULARY, lambda path: _write_json(path, terms))
    for (name, dtype), values in zip(ARRAYS.items(), arrays, strict=True):
        write_file(directory / name, _array_writer(values.astype(dtype, copy=False)))
    write_file(directory / HEADER, lambda path: _write_json(path, header.model_dump()))


def write_neighbours(directory: Path, neighbours: Neighbours) -> None:
    """Write their files, as `write_lexical` does."""
    for (name, dtype), values in zip(NEIGHBOUR_FILES.items(), (neighbours.rows, neighbours.likeness), strict=True):
        write_file(directory / name, _array_writer(values.astype(dtype, copy=False)))


def write_postings(directory: Path, corpus: TokenCorpus, settings: BM25Settings) -> None:
    """Work out the postings of a corpus and write them, part after part, to files that do not exist.

    Raises:
        OSError: a file cannot be written.
    """
    with (
        ArrayWriter(directory / "scores.npy", ARRAYS["scores.npy"]) as scores,
        ArrayWriter(directory / "rows.npy", ARRAYS["rows.npy"]) as rows,
        ArrayWriter(directory / "indptr.npy", ARRAYS["indptr.npy"]) as indptr,
    ):
        end = np.zeros(1, dtype=np.int64)
        indptr.append(end)
        for part in posting_parts(corpus, k1=settings.k1, b=settings.b):
            scores.append(part.data)
            rows.append(part.indices)
            ends = end[-1] + np.cumsum(part.holding)
            indptr.append(ends)
            end = ends


def write_vocabulary_and_header(directory: Path, vocabulary: Mapping[str, int], header: Header) -> None:
    """Write the two JSON files of a new directory.

    Raises:
        OSError: a file cannot be written.
    """
    _write_json(directory / VOCABULARY, sorted(vocabulary, key=vocabulary.__getitem__))
    _write_json(directory / HEADER, header.model_dump())


def read_corpus(directory: Path, units: int) -> TokenCorpus:
    """The terms of an index, mapped.

    Raises:
        StoreCorruptError: a file is missing or damaged, or they are not those of so many units.
    """
    flat, offsets = (read_array(directory / name, ARRAYS[name]) for name in ("token_ids.npy", "offsets.npy"))
    _check_spans(directory / "offsets.npy", offsets, spans=units, end=len(flat))
    vocabulary = {term: term_id for term_id, term in enumerate(_read_vocabulary(directory / VOCABULARY))}
    return TokenCorpus(vocabulary=vocabulary, flat=flat, offsets=offsets, source=directory / "token_ids.npy")


def write_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` make a new file beside ``path`` and put it in its place."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    write(partial)
    partial.replace(path)


def read_lexical(directory: Path) -> tuple[Header, TokenCorpus, Postings, SqliteUnits]:
    """Open the files; arrays are memory-mapped, and what stands in the large ones is checked where it is used.

    Raises:
        StoreMissingError: the directory holds none of the files.
        StoreVersionError: another format, or terms of another tokenizer.
        StoreCorruptError: a file is missing, damaged, or does not fit the others; names it.
    """
    if not any((directory / name).exists() for name in LEXICAL_FILES):
        raise StoreMissingError(f"{directory}: no lexical index there")
    header = _read_header(directory / HEADER)
    flat, offsets, data, indices, indptr = (read_array(directory / name, dtype) for name, dtype in ARRAYS.items())
    terms = _read_vocabulary(directory / VOCABULARY)
    _check_spans(directory / "offsets.npy", offsets, spans=header.units, end=len(flat))
    _check_spans(directory / "indptr.npy", indptr, spans=len(terms), end=len(data))
    if len(indices) != len(data):
        raise StoreCorruptError(f"{directory / 'rows.npy'}: {len(indices)} entries, expected {len(data)}")
    units = SqliteUnits(directory / UNITS)
    if len(units) != header.units:
        units.close()
        raise StoreCorruptError(f"{directory / UNITS}: {len(units)} units, expected {header.units}")
    vocabulary = {term: term_id for term_id, term in enumerate(terms)}
    corpus = TokenCorpus(vocabulary=vocabulary, flat=flat, offsets=offsets, source=directory / "token_ids.npy")
    return header, corpus, Postings(data=data, indices=indices, indptr=indptr, source=directory), units


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def _array_writer(values: NDArray[Any]) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        with path.open("wb") as file:
            np.save(file, values, allow_pickle=False)

    return write


def _read_header(path: Path) -> Header:
    held = read_json(path, _SMALL_FILE_BYTES)
    found = held.get("format") if isinstance(held, dict) else None
    if type(found) is int and found != LEXICAL_FORMAT:
        raise StoreVersionError(f"{path}: format {found}; this version reads {LEXICAL_FORMAT}")
    try:
        header = Header.model_validate(held)
    except ValidationError as error:
        raise StoreCorruptError(f"{path}: not the header of a lexical index") from error
    if header.tokenizer != INDEX_TERMS_NAME:
        raise StoreVersionError(f"{path}: tokenizer {header.tokenizer!r}; this version has {INDEX_TERMS_NAME!r}")
    return header


def _read_vocabulary(path: Path) -> list[str]:
    most = max(_SMALL_FILE_BYTES, _VOCABULARY_PER_UNITS_BYTE * regular_size(path.with_name(UNITS)))
    terms = read_json(path, most)
    if not isinstance(terms, list) or set(map(type, terms)) - {str}:
        raise StoreCorruptError(f"{path}: not a list of terms")
    if len(set(terms)) != len(terms):
        raise StoreCorruptError(f"{path}: a term stands there twice")
    return terms


def _check_spans(path: Path, starts: NDArray[np.int64], *, spans: int, end: int) -> None:
    if len(starts) != spans + 1 or starts[0] != 0 or starts[-1] != end or (starts[1:] < starts[:-1]).any():
        raise StoreCorruptError(f"{path}: does not describe {spans} spans that end at {end}")
