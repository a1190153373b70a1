from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# No test passes or fails by the clock: how long an example takes says more about the machine than about the package.
settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")

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


@pytest.fixture(scope="session")
def shipped_index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped collection, indexed once by the command line with the default embedding."""
    from bounded_retrieval.cli import main

    directory = tmp_path_factory.mktemp("shipped") / "index"
    corpus = Path(__file__).resolve().parents[1] / "bounded_retrieval" / "data" / "device_support" / "corpus.jsonl"
    assert main(["index", str(corpus), "--to", str(directory)]) == 0
    return directory
