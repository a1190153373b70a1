from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

COLLECTIONS = "BOUNDED_RETRIEVAL_COLLECTIONS"


@pytest.fixture(scope="session")
def collection_path() -> Callable[[str], Path]:
    """Give the folder of a BEIR-format test collection by name; skip the test where it is not there."""
    beside = Path(__file__).resolve().parents[1].parent / "shared" / "collections"
    root = Path(os.environ.get(COLLECTIONS, beside))

    def find(name: str) -> Path:
        folder = root / name
        if not (folder / "corpus.jsonl").is_file():
            pytest.skip(f"collection {name} is not in {root} (set {COLLECTIONS})")
        return folder

    return find
