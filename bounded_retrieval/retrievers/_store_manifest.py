"""``manifest.json`` of an index directory: which generation counts, and what it was built with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from bounded_retrieval.errors import (
    StoreCorruptError,
    StoreError,
    StoreMissingError,
    StoreVersionError,
    field_path,
    one_line,
)
from bounded_retrieval.retrievers._bm25_files import LEXICAL_FILES, UNITS
from bounded_retrieval.retrievers._neighbours import NEIGHBOUR_FILES
from bounded_retrieval.retrievers._regular_files import read_json
from bounded_retrieval.retrievers._vectors import VECTORS

MANIFEST = "manifest.json"
LEXICAL, DENSE = "lexical", "dense"
RELATIONSHIPS = "relationships.jsonl"
CHROMA_FOLDER = "chroma"
MARKS = "marks.npy"
INDEX_FORMAT = 4
FORMAT_WITH_VECTORS = 3
FORMAT_WITH_NEIGHBOURS = 4
INDEX_KIND: Literal["bounded-retrieval index"] = "bounded-retrieval index"

GENERATION = re.compile(r"[0-9]{6}|[1-9][0-9]{6,8}")
_FORMAT_WITH_DIGESTS = 2
_KNOWN_FORMATS = (1, _FORMAT_WITH_DIGESTS, FORMAT_WITH_VECTORS, INDEX_FORMAT)
_MAX_MANIFEST_BYTES = 1_000_000
FILE = rf"(?:{re.escape(RELATIONSHIPS)}|(?:{LEXICAL}|{DENSE})(?:/\w[\w.-]*){{1,3}})"
_FileName = Annotated[str, Field(pattern=f"^{FILE}$")]
_Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]

# Opening reads all the others whole, so that comparing them with their digests costs little beside it.
READ_PIECEMEAL = frozenset(
    [
        *(f"{LEXICAL}/{name}" for name in (UNITS, "token_ids.npy", "rows.npy", "scores.npy", MARKS, *NEIGHBOUR_FILES)),
        f"{DENSE}/{VECTORS}",
    ]
)

CHROMA_FILES = f"{DENSE}/{CHROMA_FOLDER}/"  # looked at when they are first searched

DenseKind = Literal["exact", "chroma"]


class Manifest(BaseModel):
    """What ``manifest.json`` holds; no clock values.

    Attributes:
        embedding, dimensions: identity of the embedding of the dense channel, and the length of its vectors.
        k1, b: the constants of BM25.
        generation: name of the folder that counts.
        files: size in bytes of every file of the generation that no reader ever writes.
        digests: SHA-256 of each of those files; none in format 1.
        dense: how the dense channel is searched: ``exact``, every vector, or ``chroma``, a graph beside them; none in
            formats 1 and 2, which held a Chroma store and no other vectors.
        dense_rows: SHA-256 of what the tables of the Chroma store hold, where there is one; readers write to its file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    kind: Literal["bounded-retrieval index"]
    format: int = Field(ge=1, le=INDEX_FORMAT)
    package_version: str
    tokenizer: str
    embedding: str
    dimensions: int = Field(ge=1)
    k1: float
    b: float
    units: int = Field(ge=1)
    generation: str = Field(pattern=rf"^(?:{GENERATION.pattern})$")
    files: dict[_FileName, Annotated[int, Field(ge=0)]]
    digests: dict[_FileName, _Digest] = {}
    dense: DenseKind | None = None
    dense_rows: _Digest | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        if not {f"{LEXICAL}/{name}" for name in LEXICAL_FILES} <= self.files.keys():
            raise ValueError("files")
        if self.format >= _FORMAT_WITH_DIGESTS and self.digests.keys() != self.files.keys():
            raise ValueError("digests")
        has_vectors = self.format >= FORMAT_WITH_VECTORS
        if has_vectors and not {f"{LEXICAL}/{MARKS}", f"{DENSE}/{VECTORS}"} <= self.files.keys():
            raise ValueError("files")
        if self.format == INDEX_FORMAT and not {f"{LEXICAL}/{name}" for name in NEIGHBOUR_FILES} <= self.files.keys():
            raise ValueError("files")
        if (self.dense is None) == has_vectors:
            raise ValueError("dense")
        if (self.dense_rows is None) != (self.format == 1 or self.dense == "exact"):
            raise ValueError("dense_rows")
        return self

    @property
    def chroma(self) -> str | None:
        """The folder of the Chroma store in that of the generation, where there is one."""
        if self.format < FORMAT_WITH_VECTORS:
            return DENSE
        return f"{DENSE}/{CHROMA_FOLDER}" if self.dense == "chroma" else None


def read_manifest(root: Path) -> Manifest:
    """Read and check ``manifest.json``.

    Raises:
        StoreMissingError: there is none.
        StoreVersionError: it is of another format.
        StoreCorruptError: it is damaged, or not the manifest of an index.
    """
    path = root / MANIFEST
    if not exists(path):
        hint = f"bounded-retrieval index PATH --to {root}"
        raise StoreMissingError(f"{root}: no index there; make one with: {hint}")
    held = read_json(path, _MAX_MANIFEST_BYTES)
    if not isinstance(held, dict) or held.get("kind") != INDEX_KIND:
        raise StoreCorruptError(f"{path}: not the manifest of an index")
    found = held.get("format")
    if type(found) is int and found not in _KNOWN_FORMATS:
        raise StoreVersionError(f"{path}: format {found}; this version reads {INDEX_FORMAT}")
    try:
        return Manifest.model_validate(held)
    except ValidationError as error:
        first = error.errors()[0]
        place = field_path(first["loc"]) or first["msg"].removeprefix("Value error, ")
        raise StoreCorruptError(f"{path}: damaged (field {one_line(place, 60)})") from error


def exists(path: Path) -> bool:
    """Whether something stands there, be it a link to nothing.

    Raises:
        StoreError: that cannot be told.
    """
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror or error}") from error
    return True
