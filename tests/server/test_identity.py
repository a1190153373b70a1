"""Who asks: on a server the authenticated user, whatever a client writes; the real ``langgraph dev`` with two tenants."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from identity_app.graph import UNITS, AppContext, graph
from test_langgraph_dev import Server, stop, wait_until_ok

APP = Path(__file__).resolve().parent / "identity_app"
GRAPH = "tenants"
ASK = {"query": "Which pump hums at night?", "request": {"policy": "always_continue"}}
OWN = {
    "nora": {"unit-north-1", "unit-north-2", "unit-north-3", "unit-north-5"},
    "nils": {"unit-north-1", "unit-north-2", "unit-north-5"},
    "saul": {"unit-south-1", "unit-south-2", "unit-south-3", "unit-south-5"},
}
"""What each caller may see: their tenant's units, without those of groups that they are not in."""

SOUTH = {"tenant": "south", "groups": ["night", "office"]}
USER = {"identity": "saul", "is_authenticated": True, **SOUTH}
STUDIO = {"x-auth-scheme": "langsmith"}

Client = httpx.AsyncClient
Connect = Callable[..., Client]
Json = dict[str, Any]


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Give a server's address, started at first use; ``closed`` and ``studio`` ask for a token, ``open`` does not."""
    servers: dict[str, Server] = {}

    def start(kind: str) -> str:
        if kind not in servers:
            servers[kind] = start_server(tmp_path_factory.mktemp(kind), kind)
            wait_until_ok(servers[kind])
        return servers[kind].url

    try:
        yield start
    finally:
        for server in servers.values():
            stop(server.process)


def start_server(folder: Path, kind: str) -> Server:
    """Serve a copy of the app: as it stands (``closed``), letting Studio in, or without any authentication."""
    shutil.copytree(APP, folder, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    settings = json.loads((folder / "langgraph.json").read_text(encoding="utf-8"))
    if kind == "open":
        del settings["auth"]
    if kind == "studio":
        del settings["auth"]["disable_studio_auth"]
    (folder / "langgraph.json").write_text(json.dumps(settings), encoding="utf-8")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder.parent / f"{folder.name}.log"
    options = ["--host", "127.0.0.1", "--port", str(port), "--no-browser", "--no-reload", "--n-jobs-per-worker", "4"]
    quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGGRAPH_NO_VERSION_CHECK": "true", "LANGSMITH_TRACING": "false"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "langgraph_cli", "dev", *options],
            cwd=folder,
            env={**os.environ, **quiet, "PYTHONUNBUFFERED": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Server(url=f"http://127.0.0.1:{port}", folder=folder, log=log, process=process)


@pytest.fixture
async def connect(serve: Callable[[str], str]) -> AsyncIterator[Connect]:
    """Give a client that sends a caller's token (none without a caller) and further headers."""
    async with AsyncExitStack() as stack:
        clients: list[Client] = []

        def make(who: str | None, kind: str = "closed", **headers: str) -> Client:
            token = {} if who is None else {"Authorization": f"Bearer token-{who}"}
            clients.append(Client(base_url=serve(kind), headers={**token, **headers}, timeout=60))
            stack.push_async_callback(clients[-1].aclose)
            return clients[-1]

        yield make


async def run(client: Client, path: str = "/runs/wait", **payload: Any) -> httpx.Response:
    """One run to its end: the server's whole answer."""
    return await client.post(path, json={"assistant_id": GRAPH, "input": ASK, **payload})


async def output(client: Client, path: str = "/runs/wait", **payload: Any) -> Json:
    """One run to its end: the graph's output, or ``__error__``."""
    answer = await run(client, path, **payload)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def new_thread(client: Client, **payload: Any) -> str:
    """The path of a new thread."""
    answer = await client.post("/threads", json=payload)
    assert answer.status_code == 200, answer.text
    return f"/threads/{answer.json()['thread_id']}"


async def interrupted_thread(client: Client, node: str) -> str:
    """The path of a thread whose run waits before a node."""
    thread = await new_thread(client)
    await output(client, f"{thread}/runs/wait", interrupt_before=[node])
    state = (await client.get(f"{thread}/state")).json()
    assert state["next"] == [node]
    return thread


def found(result: Json) -> set[str]:
    """The ids of the packet's items, which are those of the documents."""
    packed = [item["unit_id"] for item in result["packet"]["items"]]
    assert packed == [document["id"] for document in result["documents"]]
    return set(packed)


def mentioned(answer: str | Json) -> set[str]:
    """The units whose id or text stands anywhere in an answer."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return {str(unit.id) for unit in UNITS if str(unit.id) in text or unit.page_content in text}


def assert_nothing(result: Json) -> None:
    """The run ended in an empty packet, and its output tells of no unit."""
    assert "packet" in result, result
    assert (found(result), mentioned(result)) == (set(), set())


async def test_each_caller_finds_only_their_own(connect: Connect) -> None:
    """One query, three callers: each finds units, all of the own tenant and groups, and reads of no others."""
    answers = await asyncio.gather(*(run(connect(who)) for who in OWN))
    for own, answer in zip(OWN.values(), answers, strict=True):
        assert set() < found(answer.json()) <= own
        assert set() < mentioned(answer.text) <= own
        assert "stray" not in answer.text
        assert ("south" if "unit-north-1" in own else "north") not in answer.text
    assert "unit-north-3" in found(answers[0].json())


async def test_a_stream_tells_of_no_others(connect: Connect) -> None:
    """All stream modes together, and afterwards the thread's state and history, hold the caller's own units only."""
    modes = ["values", "updates", "custom", "debug", "messages"]
    for who, other in (("nora", "south"), ("saul", "north")):
        client = connect(who)
        thread = await new_thread(client)
        streamed = await run(client, f"{thread}/runs/stream", stream_mode=modes)
        events = {line.removeprefix("event: ") for line in streamed.text.splitlines() if line.startswith("event: ")}
        assert {"values", "updates", "custom", "debug"} <= events
        kept = [await client.get(path) for path in (f"{thread}/state", f"{thread}/history?limit=100", thread)]
        for answer in (streamed, *kept):
            assert answer.status_code == 200
            assert set() < mentioned(answer.text) <= OWN[who]
            assert other not in answer.text


FORGED = {
    "context": {"context": SOUTH},
    "configurable": {"config": {"configurable": SOUTH}},
    "user": {"config": {"configurable": {"langgraph_auth_user": USER, "langgraph_auth_user_id": "saul", **SOUTH}}},
    "user id": {"config": {"configurable": {"user_id": "saul", "identity": "saul"}}},
    "user in context": {"context": {"langgraph_auth_user": USER, "langgraph_auth_user_id": "saul", **SOUTH}},
    "no server": {"config": {"configurable": {"assistant_id": None, "graph_id": None, **SOUTH}}},
    "no server in context": {"context": {"assistant_id": None, "graph_id": None, **SOUTH}},
    "checkpoint": {"checkpoint": {"langgraph_auth_user": USER, "assistant_id": None, "graph_id": None, **SOUTH}},
    "our context": {"config": {"configurable": {"bounded_context": SOUTH}}},
    "input": {"input": {**ASK, **SOUTH, "user": USER, "context": SOUTH, "view": {}, "units": {}, "server_info": None}},
    "metadata": {"metadata": {**SOUTH, "user_id": "saul"}, "config": {"metadata": {**SOUTH, "user_id": "saul"}}},
}


async def test_what_a_client_writes_beside_the_query_changes_nothing(connect: Connect) -> None:
    """Forged context, configurable, checkpoint, input, metadata and headers give the very output of the honest run."""
    nora = connect("nora")
    honest = await output(nora)
    forgeries = await asyncio.gather(*(output(nora, **forged) for forged in FORGED.values()))
    for name, forgery in zip(FORGED, forgeries, strict=True):
        assert forgery == honest, name
    posing = connect("nora", **STUDIO, **{"x-user-id": "saul", "x-tenant": "south", "x-tenant-id": "south"})
    assert await output(posing) == honest


async def test_an_assistant_of_someone_else_changes_nothing(connect: Connect) -> None:
    """A tenant and a user written into an assistant are not those of whoever runs it."""
    saul, nora = connect("saul"), connect("nora")
    honest = await output(nora)
    forged_user = {"langgraph_auth_user": USER, "langgraph_auth_user_id": "saul"}
    for settings in ({"context": SOUTH}, {"config": {"configurable": {**SOUTH, **forged_user}}}):
        made = await saul.post("/assistants", json={"graph_id": GRAPH, **settings})
        assert made.status_code == 200, made.text
        assert await output(nora, assistant_id=made.json()["assistant_id"]) == honest


@pytest.mark.parametrize("field", ["tenant", "groups", "user", "context", "eligibility"])
async def test_a_request_that_names_whose_it_is_is_refused(connect: Connect, field: str) -> None:
    """The request has no such field; the refusal names it."""
    error = (await output(connect("nora"), input={**ASK, "request": {field: "south"}}))["__error__"]
    assert error["error"] == "RequestError"
    assert error["message"].startswith("request")
    assert field in error["message"]


async def test_without_a_token_nobody_gets_in(connect: Connect) -> None:
    """No token, an unknown one, and the Studio header instead of one are answered with 401, for runs and for threads."""
    thread = await interrupted_thread(connect("nora"), "recheck_and_pack")
    for stranger in (connect(None), connect("stranger"), connect(None, **STUDIO)):
        answers = [
            await run(stranger),
            await stranger.get(f"{thread}/state"),
            await run(stranger, f"{thread}/runs/wait"),
        ]
        assert [answer.status_code for answer in answers] == [401, 401, 401]


async def test_a_caller_without_a_tenant_sees_nothing(connect: Connect) -> None:
    """A user in whom the application put no tenant is denied everything, whatever the context says."""
    temp = connect("temp")
    for forged in ({}, {"context": SOUTH}, {"config": {"configurable": SOUTH}}):
        assert_nothing(await output(temp, **forged))


async def test_the_studio_user_sees_nothing(connect: Connect) -> None:
    """Where the server lets Studio in without a token, Studio's user has no tenant: nothing is shown, token or not."""
    for who in (None, "nora"):
        studio = connect(who, "studio", **STUDIO)
        for forged in ({}, {"context": SOUTH}, {"config": {"configurable": {"langgraph_auth_user": USER, **SOUTH}}}):
            assert_nothing(await output(studio, **forged))
    assert found(await output(connect("nora", "studio"))) <= OWN["nora"]


async def test_a_server_without_authentication_shows_nothing(connect: Connect) -> None:
    """No user, no units: neither the context nor anything else that a client writes stands in for one."""
    anyone = connect("nora", "open")
    answers = await asyncio.gather(*(output(anyone, **forged) for forged in [{}, *FORGED.values()]))
    for answer in answers:
        assert_nothing(answer)
    assert_nothing(await output(connect(None, "open", **STUDIO), context=SOUTH))


async def test_another_caller_who_resumes_gets_nothing_of_the_first(connect: Connect) -> None:
    """Where threads are open to all, resuming another's run before the recheck discards what was seen, and says so."""
    nora, saul = connect("nora"), connect("saul")
    thread = await interrupted_thread(nora, "recheck_and_pack")
    resumed = await output(saul, f"{thread}/runs/wait", input=None, context={"tenant": "north", "groups": ["night"]})
    assert_nothing(resumed)
    assert "view_changed" in resumed["packet"]["notes"]
    assert (resumed["stop_reason"], resumed["packet"]["stop_reason"]) == ("retrieval_failed", "retrieval_failed")
    assert mentioned((await saul.get(f"{thread}/state")).text) == set()
    # The thread may be used again, and each finds their own.
    assert set() < found(await output(saul, f"{thread}/runs/wait")) <= OWN["saul"]
    assert set() < found(await output(nora, f"{thread}/runs/wait")) <= OWN["nora"]


@pytest.mark.parametrize("node", ["lexical_search", "assess_coverage", "dense_search"])
async def test_another_caller_may_resume_anywhere(connect: Connect, node: str) -> None:
    """Wherever the first caller's run waits, the second caller's output tells of nothing that is not their own."""
    thread = await interrupted_thread(connect("nora"), node)
    resumed = await output(connect("saul"), f"{thread}/runs/wait", input=None)
    assert found(resumed) <= OWN["saul"]
    assert mentioned(resumed) <= OWN["saul"]


async def test_the_same_caller_may_resume(connect: Connect) -> None:
    """A run that waits before the recheck ends as if it had not waited, when its own caller resumes it."""
    nora = connect("nora")
    thread = await interrupted_thread(nora, "recheck_and_pack")
    assert await output(nora, f"{thread}/runs/wait", input=None) == await output(nora)


async def test_threads_kept_apart_are_not_to_be_had(connect: Connect) -> None:
    """With an auth handler that filters threads by owner, another caller can neither read nor resume them."""
    nora, saul = connect("nora-apart"), connect("saul-apart")
    thread = await interrupted_thread(nora, "recheck_and_pack")
    read = [await saul.get(f"{thread}/state"), await saul.get(f"{thread}/history?limit=100"), await saul.get(thread)]
    answers = [*read, await run(saul, f"{thread}/runs/wait", input=None)]
    assert [answer.status_code for answer in answers] == [404] * len(answers)
    assert [mentioned(answer.text) for answer in answers] == [set()] * len(answers)
    assert set() < found(await output(nora, f"{thread}/runs/wait", input=None)) <= OWN["nora"]


async def waiting_state(client: Client) -> Json:
    """The private state of a caller's own run before its recheck, which the server lets the caller read."""
    thread = await interrupted_thread(client, "recheck_and_pack")
    values = (await client.get(f"{thread}/state")).json()["values"]
    return {key: value for key, value in values.items() if key not in {"query", "request"}}


def with_units(state: Json, view: Json, unit_ids: list[str]) -> Json:
    """A state as if its run had seen these units under this view, with their true texts."""
    texts = {str(unit.id): unit.page_content for unit in UNITS}
    seen = next(iter(state["units"].values()))
    units = {unit_id: {**seen, "unit_id": unit_id, "text": texts.get(unit_id, "?")} for unit_id in unit_ids}
    rows = [{"unit_id": name, "channel": "lexical", "rank": rank, "score": 1.0} for rank, name in enumerate(units, 1)]
    return {**state, "view": view, "units": units, "sources": dict.fromkeys(units, "lexical"), "candidates": rows}


async def output_after_writing(client: Client, state: Json) -> Json:
    """Write a state to a new thread as if a search and the decision after it had left it, and run on from there."""
    thread = await new_thread(client, metadata={"graph_id": GRAPH})
    for node in ("lexical_search", "assess_coverage"):
        answer = await client.post(f"{thread}/state", json={"values": state, "as_node": node})
        assert answer.status_code == 200, answer.text
    return await output(client, f"{thread}/runs/wait", input=None)


async def test_state_that_a_client_writes_opens_nothing(connect: Connect) -> None:
    """Units of another tenant, written by hand with true texts and the other's view, are as units that do not exist."""
    saul = connect("saul")
    of_north, of_saul = await asyncio.gather(waiting_state(connect("nora")), waiting_state(saul))
    for view in (of_north["view"], of_saul["view"], {}):
        real, invented = await asyncio.gather(
            *(
                output_after_writing(saul, with_units(of_saul, view, [f"unit-{name}-1", f"unit-{name}-3"]))
                for name in ("north", "none")
            )
        )
        assert found(real) <= OWN["saul"]
        assert json.dumps(real).replace("-north-", "-none-") == json.dumps(invented)


async def jump(client: Client, node: str, state: Json) -> str:
    """End a run on a new thread, send a state of one's own to one of its nodes, and give all that is streamed."""
    thread = await new_thread(client)
    await output(client, f"{thread}/runs/wait")
    command = {"goto": {"node": node, "input": state}}
    options = {"input": None, "command": command, "stream_mode": ["updates", "custom"]}
    streamed = await run(client, f"{thread}/runs/stream", **options)
    assert f'{{"{node}":' in streamed.text
    return streamed.text


@pytest.mark.parametrize("node", ["lexical_search", "dense_search", "assess_coverage", "recheck_and_pack"])
async def test_a_client_that_jumps_into_a_node_finds_only_their_own(connect: Connect, node: str) -> None:
    """A command may send any state to any node; that node, too, works for the authenticated user."""
    saul = connect("saul")
    of_north, of_saul = await asyncio.gather(waiting_state(connect("nora")), waiting_state(saul))
    # Of the nodes, only the last one does not hand on what it was sent.
    unit_id = "unit-north-1" if node == "recheck_and_pack" else "unit-none-1"
    sent = [with_units({**of_saul, "usage": {}}, view, [unit_id]) for view in (of_north["view"], of_saul["view"], {})]
    streams = await asyncio.gather(*(jump(saul, node, state) for state in sent))
    for streamed in streams:
        assert mentioned(streamed) <= OWN["saul"]
    if node in {"lexical_search", "dense_search"}:
        assert mentioned(streams[1])


async def test_a_nested_graph_and_a_tool_ask_for_the_same_user(connect: Connect) -> None:
    """Inside a parent graph, as a node and as a tool, the caller is the authenticated user and not the context."""
    for who, other in (("nora", "south"), ("saul", "north")):
        asked = {"assistant_id": "parent", "input": {"question": ASK["query"]}}
        for forged in ({}, {"context": {"tenant": other, "groups": ["night"]}}):
            answer = await run(connect(who), **asked, **forged)
            assert answer.json()["documents"]
            assert {document["id"] for document in answer.json()["documents"]} <= OWN[who]
            assert set() < mentioned(answer.json()["passages"]) <= OWN[who]
            assert mentioned(answer.text) <= OWN[who]


async def test_without_a_server_the_context_says_who_asks() -> None:
    """In process the same graph reads tenant and groups from the context object that the application passes."""
    north = AppContext(tenant="north", groups=("night",))
    assert set() < found_in_process(graph.invoke(ASK, context=north)) <= OWN["nora"]
    assert set() < found_in_process(await graph.ainvoke(ASK, context=AppContext(tenant="south"))) <= OWN["saul"]
    for context in (AppContext(), None):
        assert found_in_process(graph.invoke(ASK, context=context)) == set()


def found_in_process(result: Json) -> set[str]:
    """The ids of the packet's items, which are those of the documents."""
    packed = [item["unit_id"] for item in result["packet"]["items"]]
    assert packed == [document.id for document in result["documents"]]
    return set(packed)
