"""Read an index directory to its last byte and compare it with what its manifest says."""

from __future__ import annotations

from pathlib import Path

from bounded_retrieval.errors import StoreCorruptError
from bounded_retrieval.retrievers._chroma_file import CHROMA, check_structure, content_digest
from bounded_retrieval.retrievers._store_files import check_digests, generation_folder
from bounded_retrieval.retrievers._store_manifest import Manifest


def verified_folder(root: Path, manifest: Manifest) -> Path:
    """The folder of the generation that counts, everything in it compared with its digest; of a format with digests.

    Raises:
        StoreCorruptError: names what is missing, damaged or of another kind.
    """
    folder = generation_folder(root, manifest)
    check_digests(folder, manifest.digests)
    if manifest.chroma is not None:
        store = folder / manifest.chroma
        check_structure(store, "integrity_check")
        if content_digest(store) != manifest.dense_rows:
            raise StoreCorruptError(f"{store / CHROMA}: damaged (it does not hold what was written)")
    return folder
