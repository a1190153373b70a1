"""The graph as Studio gets it: the real ``langgraph dev`` server, started as ``make studio`` starts it."""

from __future__ import annotations

import asyncio
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

ROOT = Path(__file__).resolve().parents[2]
GRAPH = "bounded_retrieval"
STOPS = "How do I pair the HX-210 probe with the GT-40 gateway?"
CONTINUES = "Our parcel turned up smashed by the courier"
# Every term is held, and the points stay below the default threshold: another threshold decides otherwise.
BORDERLINE = "Where is the battery of the KR-70?"
PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Server:
    url: str
    folder: Path
    log: Path
    process: subprocess.Popen[bytes]

    def read_log(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the server needs of a fresh clone: no index yet, and nothing that it writes lands in the checkout."""
    folder = tmp_path_factory.mktemp("clone")
    shutil.copy(ROOT / "langgraph.json", folder)
    shutil.copytree(ROOT / GRAPH, folder / GRAPH, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture(scope="module")
def server(clone: Path) -> Iterator[Server]:
    """The running server; it is stopped in every case."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = clone.parent / f"{clone.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", f"exec {studio_command(port)}"],
            cwd=clone,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "BOUNDED_RETRIEVAL_INDEX": ""},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    started = Server(url=f"http://127.0.0.1:{port}", folder=clone, log=log, process=process)
    try:
        wait_until_ok(started)
        yield started
    finally:
        stop(process)


def studio_command(port: int) -> str:
    """The very line that ``make studio`` runs, with this environment's programs."""
    settings = [f"VENV={sys.prefix}", f"PORT={port}"]
    # The tests may themselves be run by make, which would pass its flags on and announce folders.
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    recipe = subprocess.run(
        ["make", "--no-print-directory", "--dry-run", f"--assume-old={sys.prefix}/.installed", *settings, "studio"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assignments, _, command = recipe.stdout.replace("\\\n", " ").strip().partition(sys.prefix)
    return f"env {assignments}{sys.prefix}{command}"


def wait_until_ok(server: Server) -> None:
    """Return as soon as the server answers; fail with its log if it does not."""
    give_up = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < give_up and server.process.poll() is None:
        try:
            with urlopen(f"{server.url}/ok", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (URLError, ConnectionError, TimeoutError):
            time.sleep(0.1)
    pytest.fail(f"the server did not start:\n{server.read_log()}")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End the server and whatever it started; ask first."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, sign)
            process.wait(timeout=10)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue


@pytest.fixture
async def client(server: Server) -> AsyncIterator[LangGraphClient]:
    """A client of the running server."""
    async with get_client(url=server.url, api_key=None) as client:
        yield client


async def run(client: LangGraphClient, query: str, thread: str | None = None, **options: Any) -> dict[str, Any]:
    """One run to its end; with ``assistant`` by another assistant than the graph's own."""
    assistant = options.pop("assistant", GRAPH)
    return await client.runs.wait(thread, assistant, input={"query": query, **options.pop("more", {})}, **options)


async def assistant_id(client: LangGraphClient) -> str:
    """The id of the assistant that the server made for the graph."""
    (own,) = await client.assistants.search(graph_id=GRAPH, metadata={"created_by": "system"})
    return own["assistant_id"]


def generations(folder: Path) -> list[Path]:
    """The generations of every index made below the folder."""
    return sorted(folder.glob("build/studio-index/*/generations/*"))


async def test_first_uses_at_once_make_one_index(server: Server, client: LangGraphClient) -> None:
    """The server and another process that both find no index come to one and the same, and both answer."""
    code = (
        f"from bounded_retrieval.graph.studio import graph; print(graph.invoke({{'query': {STOPS!r}}})['stop_reason'])"
    )
    other = await asyncio.create_subprocess_exec(
        *[sys.executable, "-c", code], cwd=server.folder, stdout=subprocess.PIPE
    )
    try:
        assert (await run(client, STOPS))["stop_reason"] == "proxy_sufficient"
        answer, _ = await asyncio.wait_for(other.communicate(), PATIENCE_SECONDS)
    finally:
        if other.returncode is None:
            other.kill()
            await other.wait()
    assert answer == b"proxy_sufficient\n"
    assert [path.name for path in generations(server.folder)] == ["000001"]


async def test_the_drawing_explains_itself(client: LangGraphClient) -> None:
    """Every node has its name, and each conditional edge says when it is taken; xray shows the same, there being no subgraph."""
    drawing = await client.assistants.get_graph(await assistant_id(client), xray=True)
    assert [node["id"] for node in drawing["nodes"]] == [
        "__start__",
        "inspect_request",
        "lexical_search",
        "assess_coverage",
        "dense_search",
        "follow_path",
        "recheck_and_pack",
        "__end__",
    ]
    assert {
        (edge["source"], edge["target"], edge.get("data"), edge.get("conditional", False)) for edge in drawing["edges"]
    } == {
        ("__start__", "inspect_request", None, False),
        ("inspect_request", "lexical_search", "text", True),
        ("inspect_request", "dense_search", "fixed_dense", True),
        ("inspect_request", "follow_path", "structured", True),
        ("follow_path", "recheck_and_pack", None, False),
        ("lexical_search", "assess_coverage", None, False),
        ("dense_search", "assess_coverage", None, False),
        ("assess_coverage", "dense_search", "continue", True),
        ("assess_coverage", "recheck_and_pack", "stop", True),
        ("recheck_and_pack", "__end__", None, False),
    }
    assert await client.assistants.get_graph(await assistant_id(client)) == drawing


async def test_the_input_form_asks_for_the_query_only(client: LangGraphClient) -> None:
    """The input needs a query, may have a request, and has nothing else; the output is packet, documents, reason and trace."""
    schemas = await client.assistants.get_schemas(await assistant_id(client))
    assert schemas["input_schema"]["required"] == ["query"]
    assert set(schemas["input_schema"]["properties"]) == {"query", "request"}
    assert all(field["description"] for field in schemas["input_schema"]["properties"].values())
    assert set(schemas["output_schema"]["properties"]) == {"packet", "documents", "stop_reason", "trace"}


async def test_the_context_form_shows_settings_with_defaults_and_bounds(client: LangGraphClient) -> None:
    """Policy, threshold, first rows and every limit have a description, the default that applies, and the values allowed."""
    schema = (await client.assistants.get_schemas(await assistant_id(client)))["context_schema"]
    fields, limits = schema["properties"], schema["$defs"]["StudioBudget"]["properties"]
    assert set(fields) == {"policy", "threshold", "budget", "first_hop_rows"}
    assert fields["policy"]["enum"] == ["adaptive", "always_continue", "fixed_lexical", "fixed_dense"]
    assert fields["policy"]["default"] == "adaptive"
    assert [fields["threshold"][key] for key in ("type", "minimum", "maximum", "default")] == ["number", 0, 1, 0.27]
    assert [fields["first_hop_rows"][key] for key in ("type", "minimum", "default")] == ["integer", 1, 4]
    assert {name: (limit["minimum"], limit["maximum"]) for name, limit in limits.items() if "minimum" in limit} == {
        "max_calls": (0, 2),
        "max_iterations": (0, 2),
        "max_rows": (0, 6),
        "max_reads": (0, 6),
        "max_units": (0, 4),
        "max_chars": (0, 4000),
    }
    assert all(limit["default"] == limit.get("maximum") for limit in limits.values())
    assert all(field["description"] for field in [*fields.values(), *limits.values()])


async def test_a_run_gives_a_packet_with_its_stop_reason(client: LangGraphClient) -> None:
    """``runs.wait`` answers with evidence, the reason for stopping, and what it cost."""
    result = await run(client, STOPS)
    assert (result["stop_reason"], result["packet"]["usage"]["calls"]) == ("proxy_sufficient", 1)
    assert [document["id"] for document in result["documents"]] == [
        item["unit_id"] for item in result["packet"]["items"]
    ]
    assert "HX-210" in result["documents"][0]["page_content"]


async def test_a_path_is_followed_on_the_server(client: LangGraphClient) -> None:
    """A request with a path follows the shipped collection's declared relationships."""
    path = {"start": "HX-200", "relations": ["maintained by", "led by"]}
    result = await run(client, "who leads the team?", more={"request": {"path": path}})
    assert result["stop_reason"] == "path_followed"
    assert [step["object"] for step in result["packet"]["path"]] == ["team:field-repair", "role:repair-lead"]


async def test_streaming_gives_one_event_a_step(client: LangGraphClient) -> None:
    """``custom`` streams the trace's events as they happen, ``updates`` one update for each node that ran."""
    custom: list[dict[str, Any]] = []
    updates: list[dict[str, Any]] = []
    streams = {"custom": custom, "updates": updates}
    async for part in client.runs.stream(None, GRAPH, input={"query": CONTINUES}, stream_mode=["updates", "custom"]):
        if part.event in streams:
            streams[part.event].append(part.data)
    nodes = [name for update in updates for name in update]
    steps = [
        "inspect_request",
        "lexical_search",
        "assess_coverage",
        "dense_search",
        "assess_coverage",
        "recheck_and_pack",
    ]
    assert [name for name in nodes if name in steps] == steps
    kinds = ["request_inspected", *["search_attempted", "coverage_assessed"] * 2, "units_scored", "evidence_packed"]
    assert [event["event"] for event in custom] == kinds
    assert custom == updates[-1]["recheck_and_pack"]["trace"]["events"]


async def test_an_assistant_with_another_threshold_decides_otherwise(client: LangGraphClient) -> None:
    """A threshold in an assistant's context changes the calls made; null fields and a run's own context work too."""
    lenient = await client.assistants.create(
        GRAPH, context={"threshold": 0.0, "policy": None, "budget": {"max_rows": 2}}, name="lenient"
    )
    default, changed, lowered = await asyncio.gather(
        run(client, BORDERLINE),
        run(client, BORDERLINE, assistant=lenient["assistant_id"]),
        run(client, BORDERLINE, context={"policy": "always_continue", "budget": {"max_calls": 1}}),
    )
    assert [result["packet"]["usage"]["calls"] for result in (default, changed, lowered)] == [2, 1, 1]
    assert (changed["stop_reason"], lowered["stop_reason"]) == ("proxy_sufficient", "resource_budget_exhausted")
    assert changed["packet"]["limits"]["max_rows"] == 2


async def test_concurrent_threads_do_not_see_each_other(client: LangGraphClient) -> None:
    """Two threads running at once, twice each, give what separate runs give."""
    queries = [STOPS, CONTINUES]
    alone = await asyncio.gather(*(run(client, query) for query in queries))
    threads = [(await client.threads.create())["thread_id"] for _ in queries]
    for asked in (queries, queries[::-1]):
        together = await asyncio.gather(
            *(run(client, query, thread) for query, thread in zip(asked, threads, strict=True))
        )
        assert together == (alone if asked is queries else alone[::-1])


BAD = {
    "unknown field": ({"more": {"request": {"speed": 9}}}, "RequestError: request.speed: unknown field"),
    "judgements": ({"more": {"request": {"qrels": {"u1": 1}}}}, "RequestError: request: qrels refused: labels never"),
    "limit raised": ({"context": {"budget": {"max_rows": 9}}}, "RequestError: context.budget.max_rows: may only lower"),
    "out of bounds": ({"context": {"threshold": 2}}, "RequestError: context.threshold: Input should be less"),
    "unknown limit": ({"context": {"budget": {"max_cost": 1}}}, "RequestError: context.budget.max_cost: unknown field"),
}


async def test_bad_requests_are_refused_by_name_and_the_server_goes_on(client: LangGraphClient) -> None:
    """The error names the field; the next run is as good as ever."""
    refusals = await asyncio.gather(
        *(run(client, STOPS, **options) for options, _ in BAD.values()), return_exceptions=True
    )
    for refusal, (_, message) in zip(refusals, BAD.values(), strict=True):
        assert isinstance(refusal, Exception)
        assert message in str(refusal)
    assert (await run(client, STOPS))["stop_reason"] == "proxy_sufficient"


def test_another_index_can_be_served(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """``BOUNDED_RETRIEVAL_INDEX`` names the index; one that is not there ends the start with a message that names it."""
    source = str(ROOT / GRAPH / "graph" / "studio.py")
    (index,) = {path.parents[1] for path in generations(server.folder)}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOUNDED_RETRIEVAL_INDEX", str(index))
    assert runpy.run_path(source)["graph"].invoke({"query": STOPS})["stop_reason"] == "proxy_sufficient"
    monkeypatch.setenv("BOUNDED_RETRIEVAL_INDEX", str(tmp_path / "nowhere"))
    with pytest.raises(Exception, match="nowhere: no index there"):
        runpy.run_path(source)
    assert list(tmp_path.iterdir()) == []


def test_the_server_blocked_nothing_and_called_nobody(server: Server) -> None:
    """After all that: no blocking call on the event loop, no failed search, one index, and connections to itself only."""
    log = server.read_log()
    assert "Blocking call" not in log
    assert "search_failed" not in log
    assert [path.name for path in generations(server.folder)] == ["000001"]
    connections = psutil.Process(server.process.pid).net_connections()
    assert {link.raddr.ip for link in connections if link.raddr} <= {"127.0.0.1"}
    assert {link.laddr.ip for link in connections} == {"127.0.0.1"}
