"""The embedded default needs no network: not at import, not at run time, not in native code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("offline_worker.py")
TRY_FILTER = "import sys; sys.path.insert(0, sys.argv[1]); import refused_network; refused_network.refuse_native()"

# Settings that would keep a library quiet, or send it somewhere: none of them may be what keeps the promise.
QUIETENING = (
    "HF_ HUGGINGFACE TRANSFORMERS_ LANGSMITH LANGCHAIN LANGGRAPH ANONYMIZED CHROMA DO_NOT_TRACK ORT_ OTEL_ POSTHOG"
)

CAN_WATCH = (
    subprocess.run([sys.executable, "-c", TRY_FILTER, str(WORKER.parent)], capture_output=True, check=False).returncode
    == 0
)
watched = pytest.mark.skipif(
    not CAN_WATCH, reason="native code is not watched: the kernel takes no seccomp filter here"
)


def work_without_network(folder: Path, what: str) -> subprocess.CompletedProcess[str]:
    """Run the worker with an empty home folder and none of the settings that would quieten a library."""
    home = folder / "home"
    home.mkdir()
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(tuple(QUIETENING.split()))}
    environment = {name: value for name, value in kept.items() if not name.lower().endswith("_proxy")}
    environment.update(HOME=str(home), XDG_CACHE_HOME=str(home), XDG_CONFIG_HOME=str(home))
    command = [sys.executable, str(WORKER), str(folder), what, *(["watched"] if CAN_WATCH else [])]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1500, check=False
    )


def test_the_embedded_default_never_reaches_out(tmp_path: Path) -> None:
    """Import, index, ask, path, chain, evaluation and demonstration end well, try no address, and leave no client, thread or file."""
    run = work_without_network(tmp_path, "all")
    assert run.returncode == 0, run.stderr
    finished = [line for line in run.stdout.splitlines() if line.startswith(("done:", "attempts:"))]
    assert finished == [
        "done: import",
        "done: index, ask, chain",
        "done: path",
        "done: evaluate",
        "done: demo",
        "attempts: []",
    ]
    # No library leaves an id, a model or settings behind: there is our cache of a built collection, and matplotlib's fonts.
    assert {path.name for path in (tmp_path / "home").iterdir()} <= {"bounded-retrieval", "matplotlib"}


def test_what_python_code_tries_is_seen(tmp_path: Path) -> None:
    """A control: a connection that the caller swallows the failure of is in the list."""
    run = work_without_network(tmp_path, "python")
    assert run.returncode == 0, run.stderr
    assert "attempts: [" in run.stdout
    assert "127.0.0.1" in run.stdout


@watched
@pytest.mark.parametrize("way", ["native", "address"])
def test_what_native_code_tries_ends_the_process(tmp_path: Path, way: str) -> None:
    """A control: a connection, and a datagram to an address, that do not pass through Python."""
    run = work_without_network(tmp_path, way)
    assert run.returncode == -signal.SIGSYS
    assert "attempts" not in run.stdout
