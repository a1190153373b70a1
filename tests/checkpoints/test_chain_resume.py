"""A recursive chain that is paused, or whose process is killed, and that goes on elsewhere."""

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
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite import SqliteSaver

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import chain_worker as worker  # noqa: E402 - the worker's own folder is no package

from bounded_retrieval.contracts.chain import ChainLimits  # noqa: E402 - likewise
from bounded_retrieval.graph.chain import create_recursive_retrieval  # noqa: E402
from bounded_retrieval.testing import FixedClock  # noqa: E402

Process = Callable[..., "subprocess.CompletedProcess[str]"]


class Ran:
    """Processes of one chain, with their checkpoints and their log of the searches really made."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "calls.log"
        self.database = str(folder / "checkpoints.sqlite")
        self.environment = {**os.environ, "CALL_LOG": str(self.log), "LANGGRAPH_STRICT_MSGPACK": "true"}

    def process(self, mode: str, kill_at: str, kind: str, way: str) -> subprocess.CompletedProcess[str]:
        """One process."""
        command = [
            sys.executable,
            "-W",
            "error",
            str(HERE / "chain_worker.py"),
            self.database,
            mode,
            kill_at,
            kind,
            way,
        ]
        return subprocess.run(command, env=self.environment, capture_output=True, text=True, check=False)

    def kill(self, kill_at: str, kind: str, way: str) -> None:
        """A first process that is killed there."""
        killed = self.process("start", kill_at, kind, way)
        assert killed.returncode == -signal.SIGKILL, killed.stderr

    def resumed_here(self, kind: str, way: str) -> Any:
        """The output of a chain that goes on in the tests' own process, which spares starting another one."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("CALL_LOG", str(self.log))
            return worker.main(self.database, "resume", "never", kind, way)

    def output(self, mode: str, kind: str, way: str) -> Any:
        """The output of a process that is left alone."""
        finished = self.process(mode, "never", kind, way)
        assert (finished.returncode, finished.stderr) == (0, ""), finished.stderr
        return json.loads(finished.stdout)

    def calls(self) -> list[str]:
        """The searches that were really made, by all processes."""
        return self.log.read_text().splitlines()


@pytest.fixture
def ran(tmp_path: Path) -> Ran:
    """Processes over a SQLite file in a folder of their own."""
    return Ran(tmp_path)


def undisturbed(kind: str, fails_at: int | None = None) -> Any:
    """The output of a chain that nobody killed, or of which one search failed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CALL_LOG", os.devnull)
        graph = worker.build("never", kind, fails_at).compile()
        return worker.shown(graph.invoke({"query": worker.QUESTION}, worker.CONFIG))


# One of each way to be killed between steps: every node once, in different rounds, for both kinds of search.
BETWEEN = [
    ("before:plan_hop:1", "bounded", "sync"),
    ("before:plan_hop:2", "function", "sync"),
    ("before:search_hop:2", "bounded", "async"),
    ("before:check_novelty:1", "function", "async"),
    ("before:check_sufficiency:2", "bounded", "sync"),
    ("before:check_limits:3", "function", "sync"),
    ("before:finish_chain:1", "bounded", "sync"),
]


@pytest.mark.parametrize(("kill_at", "kind", "way"), BETWEEN, ids=lambda value: value)
def test_killed_between_steps(ran: Ran, kill_at: str, kind: str, way: str) -> None:
    """A chain killed between steps and resumed elsewhere ends like one left alone, and no hop is made twice."""
    ran.kill(kill_at, kind, way)
    output = ran.resumed_here(kind, way)
    assert output == undisturbed(kind)
    assert ran.calls() == list(worker.TOPICS[: worker.HOPS])
    assert output["chain"]["usage"]["calls"] == worker.HOPS
    assert output["chain"]["usage"]["tokens"] == 5 * worker.HOPS


@pytest.mark.parametrize("way", ["sync", "async"])
def test_killed_inside_a_bounded_hops_search(ran: Ran, way: str) -> None:
    """A call cut off inside a bounded hop is charged and not made again: the chain ends as if that search had failed."""
    ran.kill("call:2", "bounded", way)
    output = ran.output("resume", "bounded", way) if way == "async" else ran.resumed_here("bounded", way)
    assert ran.calls() == list(worker.TOPICS[:2])
    assert output == undisturbed("bounded", fails_at=2)
    assert (output["stop_reason"], output["chain"]["usage"]["calls"]) == ("retrieval_failed", 2)
    assert [unit["id"] for unit in output["documents"]] == [f"on {worker.TOPICS[0]}"]


def test_killed_inside_a_functions_search(ran: Ran) -> None:
    """A call cut off inside a function's search is charged and not made again either."""
    ran.kill("call:2", "function", "sync")
    output = ran.resumed_here("function", "sync")
    assert len(ran.calls()) == output["chain"]["usage"]["calls"]
    assert len(ran.calls()) == len(set(ran.calls()))


def test_an_undisturbed_chain_is_the_same_with_a_checkpointer(ran: Ran) -> None:
    """Checkpointing changes nothing, and gives no warning under strict msgpack."""
    assert ran.output("start", "bounded", "sync") == undisturbed("bounded")


@pytest.mark.parametrize("kind", ["function", "bounded"])
@pytest.mark.parametrize("node", worker.NODES)
def test_a_pause_before_a_node_changes_nothing(tmp_path: Path, node: str, kind: str, monkeypatch: Any) -> None:
    """A chain that pauses before each turn of a node ends like one that does not, and no hop is made twice."""
    log = tmp_path / "calls.log"
    monkeypatch.setenv("CALL_LOG", str(log))
    graph = worker.build("never", kind).compile(checkpointer=InMemorySaver(), interrupt_before=[node])
    output = graph.invoke({"query": worker.QUESTION}, worker.CONFIG)
    pauses = 0
    while graph.get_state(worker.CONFIG).next:
        pauses += 1
        output = graph.invoke(None, worker.CONFIG)
    assert pauses == (1 if node == "finish_chain" else worker.HOPS)
    assert log.read_text().splitlines() == list(worker.TOPICS[: worker.HOPS])
    assert worker.shown(output) == undisturbed(kind)


def test_a_pause_goes_on_in_another_graph(tmp_path: Path) -> None:
    """A second graph over the same checkpoints goes on where the first one paused, within the same budget."""
    asked: list[str] = []

    def search(query: str) -> Any:
        asked.append(query)
        return [worker.document(query)]

    def builder() -> Any:
        return create_recursive_retrieval(search, worker.plan, worker.read, limits=ChainLimits(max_calls=2))

    with SqliteSaver.from_conn_string(str(tmp_path / "checkpoints.sqlite")) as saver:
        builder().compile(checkpointer=saver, interrupt_before=["check_limits"]).invoke(
            {"query": worker.QUESTION}, worker.CONFIG
        )
        assert len(asked) == 1
        output = builder().compile(checkpointer=saver).invoke(None, worker.CONFIG)
    assert (output["stop_reason"], asked) == ("resource_budget_exhausted", list(worker.TOPICS[:2]))


def test_a_pause_is_not_charged_as_running_time() -> None:
    """Time that passes while a chain is paused does not count for its deadline; time that it ran before does."""
    clock = FixedClock()

    def search(query: str) -> Any:
        clock.advance(0.4)
        return [worker.document(query)]

    builder = create_recursive_retrieval(
        search, worker.plan, worker.read, limits=ChainLimits(deadline_ms=1_000), clock=clock
    )
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=["check_limits"])
    output = graph.invoke({"query": worker.QUESTION}, worker.CONFIG)
    while graph.get_state(worker.CONFIG).next:
        clock.advance(60.0)
        output = graph.invoke(None, worker.CONFIG)
    assert (output["stop_reason"], len(output["trail"])) == ("deadline_exceeded", 3)
