"""Read an index directory to its last byte and compare it with what its manifest says."""

from __future__ import annotations

from pathlib import Path

from bounded_retrieval.errors import StoreCorruptError
from bounded_retrieval.retrievers._chroma_file import CHROMA, check_structure, content_digest
from bounded_retrieval.retrievers._store_files import (
    DENSE,
    Manifest,
    check_digests,
    generation_folder,
)


def verified_folder(root: Path, manifest: Manifest) -> Path:
    """The folder of the generation that counts, everything in it compared with its digest; of the current format.

    Raises:
        StoreCorruptError: names what is missing, damaged or of another kind.
    """
    folder = generation_folder(root, manifest)
    check_digests(folder, manifest.digests)
    check_structure(folder / DENSE, "integrity_check")
    if content_digest(folder / DENSE) != manifest.dense_rows:
        raise StoreCorruptError(f"{folder / DENSE / CHROMA}: damaged (it does not hold what was written)")
    return folder
