from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from small_world import CERTIFIED, Place, indexed_place

from bounded_retrieval.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A BEIR folder of 30 queries, indexed once by the command line."""
    return indexed_place(tmp_path_factory.mktemp("evaluated"))


@pytest.fixture
def run(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command: its exit code, what it printed, and what it said on standard error."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.cache))

    def called(*arguments: Any) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as stopped:
            code = int(stopped.code or 0)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return called


@pytest.fixture(scope="session")
def artefact(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a calibration with a final slice wrote."""
    path = tmp_path_factory.mktemp("calibrated") / "calibration.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(place.cache))
        assert main(["calibrate", str(place.folder), *CERTIFIED, "--out", str(path)]) == 0
    return path
