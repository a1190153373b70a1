from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import worker  # noqa: E402 - the worker's own folder is no package

Process = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(params=["sqlite", "postgres"])
def saver(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where checkpoints go: a SQLite file, or a fresh database of a real PostgreSQL server."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'checkpoints.sqlite'}"
    import psycopg

    dsn: str = request.getfixturevalue("postgres")
    name = f"t{abs(hash(str(tmp_path))):x}"
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
    return f"postgres:{dsn.rsplit('/', 1)[0]}/{name}"


@pytest.fixture
def process(tmp_path: Path) -> Process:
    """Runs one process of the worker and logs the searches it really makes."""
    environment = {**os.environ, "CALL_LOG": str(tmp_path / "calls.log"), "LANGGRAPH_STRICT_MSGPACK": "true"}

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "error", str(HERE / "worker.py"), *arguments]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


def _packet_when_failing(channel: str | None) -> dict[str, Any]:
    graph = worker.build("never", fails=channel).compile()
    os.environ.setdefault("CALL_LOG", os.devnull)
    packet: dict[str, Any] = graph.invoke({"query": "Which pump hums?"})["packet"]
    return packet


def _packet(finished: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    packet: dict[str, Any] = json.loads(finished.stdout)
    return packet


@pytest.mark.parametrize("manner", ["sync plain", "async parent"])
@pytest.mark.parametrize("channel", ["lexical", "dense"])
def test_killed_inside_a_search(saver: str, process: Process, tmp_path: Path, channel: str, manner: str) -> None:
    """A search cut off by a kill is charged and not made again; the packet is that of a run whose search failed there."""
    way, shape = manner.split()
    killed = process(saver, "start", f"call:{channel}", way, shape)
    assert killed.returncode == -signal.SIGKILL
    packet = _packet(process(saver, "resume", "never", way, shape))
    assert packet == _packet_when_failing(channel)
    assert (tmp_path / "calls.log").read_text().split() == ["lexical", "dense"]


@pytest.mark.parametrize("node", worker.NODES)
def test_killed_between_supersteps(process: Process, tmp_path: Path, node: str) -> None:
    """A run killed between steps and resumed ends in the packet of a run that was left alone."""
    saver = f"sqlite:{tmp_path / 'checkpoints.sqlite'}"
    killed = process(saver, "start", f"before:{node}", "sync", "plain")
    assert killed.returncode == -signal.SIGKILL
    assert _packet(process(saver, "resume", "never", "sync", "plain")) == _packet_when_failing(None)


def test_an_undisturbed_run_is_the_same_with_a_checkpointer(saver: str, process: Process) -> None:
    """Checkpointing changes nothing, and gives no warning under strict msgpack."""
    for way in ("sync", "async"):
        where = f"{saver}{way}" if saver.startswith("sqlite") else saver
        assert _packet(process(where, "start", "never", way, "plain")) == _packet_when_failing(None)
