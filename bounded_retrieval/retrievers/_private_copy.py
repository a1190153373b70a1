"""A copy of a Chroma store for one reader, where Chroma may not write to the store itself."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bounded_retrieval.errors import StoreError
from bounded_retrieval.retrievers._chroma_file import CHROMA
from bounded_retrieval.retrievers._regular_files import copy_folder


def is_writable(store: Path) -> bool:
    """Whether this process may write to the folder of a store and to its SQLite file."""
    return os.access(store, os.W_OK) and os.access(store / CHROMA, os.W_OK)


def private_copy(opened: ExitStack, store: Path) -> Path:
    """Copy a store to a folder that only its owner can enter; leaving ``opened`` deletes the copy.

    Raises:
        StoreError: it cannot be read, or the temporary folder cannot be written.
    """
    try:
        place = tempfile.mkdtemp(prefix="bounded-retrieval-")
        opened.callback(shutil.rmtree, place, ignore_errors=True)
        target = Path(place, store.name)
        target.mkdir()
        copy_folder(store, target)
    except OSError as error:
        raise StoreError(
            f"{store}: may not be written, and no copy can be made in the temporary folder "
            f"({error.strerror or error}); Chroma writes to its folder even to read it"
        ) from error
    return target
