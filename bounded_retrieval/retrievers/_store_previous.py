"""What a build takes over from the generation that counts: marks, terms, vectors and the Chroma store of its units."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bounded_retrieval.contracts.candidate import Unit, searchable_text
from bounded_retrieval.errors import StoreCorruptError, StoreError
from bounded_retrieval.policies.tokenize import INDEX_TERMS_NAME
from bounded_retrieval.retrievers import _chroma_store
from bounded_retrieval.retrievers._arrays import ArrayWriter, read_array
from bounded_retrieval.retrievers._bm25_corpus import TokenCorpus
from bounded_retrieval.retrievers._bm25_files import UNITS, read_corpus
from bounded_retrieval.retrievers._neighbours import Neighbours, read_neighbours
from bounded_retrieval.retrievers._store_files import copy_chroma, generation_folder, writing
from bounded_retrieval.retrievers._store_manifest import (
    DENSE,
    FORMAT_WITH_NEIGHBOURS,
    FORMAT_WITH_VECTORS,
    LEXICAL,
    MARKS,
    Manifest,
)
from bounded_retrieval.retrievers._store_verify import verified_folder
from bounded_retrieval.retrievers._vectors import VECTORS, Rows, Vectors, read_vectors, unit_length
from bounded_retrieval.retrievers.units import SqliteUnits

COLLECTION = "units"
MARK_BYTES = 16
"""Of the title and text of a unit, and as many again of its metadata."""

_BATCH = 1_000


def marks_of(unit: Unit) -> bytes:
    """What tells whether a unit changed: digests of its title and text, and of its metadata."""
    text = f"{len(unit.title)} {searchable_text(unit.title, unit.text)}"
    parts = (text, json.dumps(unit.metadata, sort_keys=True))
    return b"".join(hashlib.sha256(part.encode()).digest()[:MARK_BYTES] for part in parts)


@dataclass(frozen=True, kw_only=True)
class PreviousGeneration:
    """The generation that counts; rows are those of its units.

    Attributes:
        units: the units.
        units_file: the file that they are read from.
        marks: of each unit, uint8, shape (units, 32); see `marks_of`.
        vectors: gives the vectors of rows, float32, shape (rows, dimensions).
        corpus: the terms; none where they are those of another tokenizer.
        neighbours: who resembles whom; none in an index of an older format.
        chroma: the folder of its Chroma store, where there is one over the vectors.
    """

    units: SqliteUnits
    units_file: Path
    marks: NDArray[np.uint8]
    vectors: Callable[[Rows], Vectors]
    dimensions: int
    corpus: TokenCorpus | None
    neighbours: Neighbours | None
    chroma: Path | None

    @classmethod
    def read(cls, opened: ExitStack, root: Path, manifest: Manifest, work: Path) -> PreviousGeneration:
        """Read and compare everything once; leaving ``opened`` closes it.

        Args:
            opened: holds what is open.
            root: of the index.
            manifest: what says that it counts.
            work: a folder for files that an older format makes necessary.

        Raises:
            StoreError: it is damaged; the vectors of an older format cannot be read.
        """
        # What is taken over gets new digests, so it has to agree with the old ones, where there are any.
        find = verified_folder if manifest.digests else generation_folder
        folder = find(root, manifest)
        file = folder / LEXICAL / UNITS
        units = opened.enter_context(closing(SqliteUnits(file)))
        has_vectors = manifest.format >= FORMAT_WITH_VECTORS
        if has_vectors:
            marks = read_array(folder / LEXICAL / MARKS, np.dtype(np.uint8)).reshape(-1, 2 * MARK_BYTES)
            path = folder / DENSE / VECTORS
        else:
            marks = np.frombuffer(b"".join(map(marks_of, units.units())), dtype=np.uint8).reshape(-1, 2 * MARK_BYTES)
            path = _vectors_from_chroma(folder / DENSE, units, manifest.dimensions, work)
        is_current = manifest.tokenizer == INDEX_TERMS_NAME
        has_neighbours = manifest.format >= FORMAT_WITH_NEIGHBOURS
        has_graph = has_vectors and manifest.chroma is not None
        if not len(marks) == len(units) == manifest.units:
            raise StoreCorruptError(f"{folder / LEXICAL}: {len(units)} units, expected {manifest.units}")
        return cls(
            units=units,
            units_file=file,
            marks=marks,
            # Mapped anew each time, so that what was read does not stay in memory.
            vectors=lambda rows: read_vectors(path, manifest.units, manifest.dimensions)[rows],
            dimensions=manifest.dimensions,
            corpus=read_corpus(folder / LEXICAL, manifest.units) if is_current else None,
            neighbours=read_neighbours(folder / LEXICAL, manifest.units) if has_neighbours else None,
            chroma=folder / str(manifest.chroma) if has_graph else None,
        )


def _vectors_from_chroma(store: Path, units: SqliteUnits, dimensions: int, work: Path) -> Path:
    """Write the vectors of an index of an older format, by row."""
    copy, path, ids = work / "old_chroma", work / "old_vectors.npy", units.ids()
    copy_chroma(store, copy)
    with ExitStack() as opened, writing(work), ArrayWriter(path, np.dtype(np.float32), dimensions) as file:
        collection: Any = _chroma_store.open_collection(opened, copy, COLLECTION)
        for start in range(0, len(ids), _BATCH):
            wanted = ids[start : start + _BATCH]
            try:
                found = collection.get(ids=wanted, include=["embeddings"])
            except Exception as error:
                raise StoreError(f"{store}: cannot be read ({_chroma_store.first_line(error)})") from error
            vectors = dict(zip(found["ids"], found["embeddings"], strict=True))
            if vectors.keys() != set(wanted) or len(vectors[wanted[0]]) != dimensions:
                raise StoreCorruptError(f"{store}: does not hold the vectors of the units")
            file.append(unit_length(np.array([vectors[unit_id] for unit_id in wanted], dtype=np.float32)))
        if collection.count() != len(ids):
            raise StoreCorruptError(f"{store}: does not hold the vectors of the units")
    return path
