"""State under a checkpointer, with strict msgpack."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from inventory import HIT, QUERY, Outcome, ask, dense, lexical
from langchain_core.documents import Document
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite import SqliteSaver

from bounded_retrieval.graph.bounded import create_bounded_retrieval

CONFIG = {"configurable": {"thread_id": "one"}}
ODD = Document(
    id="odd",
    page_content="A battery.\x00\ud800",
    metadata={"title": "T", "big": 2**70, "nested": [{"a": (1, None)}], "kind": object},
)
SCRIPT = """
import sys
sys.path.insert(0, {here!r})
import logging
logging.basicConfig(level=logging.WARNING, stream=sys.stdout)
import test_checkpoints as t
from langgraph.checkpoint.serde import _msgpack
assert _msgpack.STRICT_MSGPACK_ENABLED
print(t.paused_and_resumed(t.InMemorySaver()).reason)
"""


@pytest.fixture(params=["memory", "sqlite"])
def saver(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[BaseCheckpointSaver[Any]]:
    """A checkpointer that restores nothing but what strict msgpack allows, and says so each time."""
    monkeypatch.setattr(jsonplus, "_warned_blocked_types", set())
    monkeypatch.setattr(jsonplus, "_warned_unregistered_types", set())
    strict = JsonPlusSerializer(allowed_msgpack_modules=None)
    if request.param == "memory":
        yield InMemorySaver(serde=strict)
        return
    with SqliteSaver.from_conn_string(":memory:") as sqlite:
        sqlite.serde = strict
        yield sqlite


def build(saver: BaseCheckpointSaver[Any], **pauses: Any) -> Any:
    """A graph that stores its state."""
    return create_bounded_retrieval(lexical([ODD]), dense()).compile(checkpointer=saver, **pauses)


def paused_and_resumed(saver: BaseCheckpointSaver[Any]) -> Outcome:
    """One run that is stored and read back before every node."""
    graph = build(saver, interrupt_before="*")
    given: Any = {"query": QUERY, "request": {"budget": {"max_units": 3}}}
    for _ in range(6):
        graph.invoke(given, CONFIG)
        given = None
    return Outcome(graph.invoke(None, CONFIG))


def test_state_survives_strict_msgpack(saver: BaseCheckpointSaver[Any], caplog: pytest.LogCaptureFixture) -> None:
    """A run that is stored and restored before every step ends like one that never paused, and nothing is blocked."""
    caplog.set_level(logging.WARNING)
    resumed = paused_and_resumed(saver)
    straight = ask(lexical([ODD]), dense(), request={"budget": {"max_units": 3}})
    assert (resumed.packet, resumed.trace) == (straight.packet, straight.trace)
    assert [record.getMessage() for record in caplog.records] == []


def test_state_survives_with_the_switch_of_the_environment() -> None:
    """Under ``LANGGRAPH_STRICT_MSGPACK=true`` the same holds in a fresh process, without a warning."""
    script = SCRIPT.format(here=str(Path(__file__).parent))
    environment = os.environ | {"LANGGRAPH_STRICT_MSGPACK": "true"}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr, done.returncode) == ("resource_budget_exhausted\n", "", 0)


def test_stored_state_is_json_native_but_for_documents(saver: BaseCheckpointSaver[Any]) -> None:
    """Every channel of every checkpoint holds plain JSON values of the exact built-in types, and ``Document``s."""
    graph = build(saver)
    graph.invoke({"query": QUERY}, CONFIG)
    for snapshot in graph.get_state_history(CONFIG):
        values = dict(snapshot.values)
        assert all(type(document) is Document for document in values.pop("documents", []))
        assert json.loads(json.dumps(values, allow_nan=False)) == values
        assert types_in(values) <= {dict, list, str, int, float, bool, type(None)}


def types_in(value: Any) -> set[type]:
    """The types of a value and of everything inside it."""
    inner = [*value.keys(), *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []
    return {type(value)}.union(*(types_in(item) for item in inner))


def test_what_a_node_writes_is_json_native() -> None:
    """Also before any checkpointer has touched them, a node's writes have the exact built-in types."""
    for update in (
        create_bounded_retrieval(lexical([ODD]), dense()).compile().stream({"query": QUERY}, stream_mode="updates")
    ):
        for values in update.values():
            plain = {key: value for key, value in values.items() if key != "documents"}
            assert types_in(plain) <= {dict, list, str, int, float, bool, type(None)}


def test_foreign_metadata_is_noted_and_plain() -> None:
    """What had no JSON form reaches packet and documents as text, and the packet notes it."""
    outcome = ask(lexical([ODD]), policy="fixed_lexical")
    assert outcome.notes == ("metadata_converted",)
    assert outcome.packet.items[0].metadata == {
        "big": str(2**70),
        "nested": [{"a": [1, None]}],
        "kind": "<class 'object'>",
    }
    assert outcome.packet.items[0].text == "A battery.\ufffd\ufffd"


def test_a_resume_keeps_the_settings_of_the_request(saver: BaseCheckpointSaver[Any]) -> None:
    """Settings are resolved once: a resume with another context goes on with the first."""
    graph = build(saver, interrupt_before=["lexical_search"])
    graph.invoke({"query": QUERY}, CONFIG, context={"budget": {"max_rows": 2}, "first_hop_rows": 1})
    outcome = Outcome(graph.invoke(None, CONFIG, context={"policy": "fixed_lexical"}))
    assert (outcome.trace.request.policy, outcome.packet.limits.max_rows, outcome.usage.rows) == ("adaptive", 2, 2)


def test_nothing_is_left_for_the_next_request(saver: BaseCheckpointSaver[Any]) -> None:
    """A second query on the same thread gives the packet that a fresh thread gives, without the first one's request."""
    graph = create_bounded_retrieval(lexical([Document(id="hit", page_content=HIT)]), dense()).compile(
        checkpointer=saver
    )
    graph.invoke({"query": QUERY, "request": {"policy": "fixed_dense", "query_id": "first"}}, CONFIG)
    second = Outcome(graph.invoke({"query": "the HX-200 battery"}, CONFIG))
    fresh = Outcome(graph.invoke({"query": "the HX-200 battery"}, {"configurable": {"thread_id": "two"}}))
    assert (second.packet, second.trace) == (fresh.packet, fresh.trace)
    assert second.packet.query_id != "first"


@pytest.mark.parametrize("is_saved", [False, True])
async def test_a_listener_to_events_changes_no_search(is_saved: bool) -> None:
    """On a thread whose events are listened to, both searches are made and answered, as without a listener."""
    graph = create_bounded_retrieval(lexical([ODD]), dense(), policy="always_continue").compile(
        checkpointer=InMemorySaver() if is_saved else None
    )
    events = [event async for event in graph.astream_events({"query": QUERY}, CONFIG, version="v2")]
    heard = Outcome(events[-1]["data"]["output"])
    plain = Outcome(await graph.ainvoke({"query": QUERY}, {"configurable": {"thread_id": "two"}}))
    assert (heard.packet, heard.trace, heard.usage.calls) == (plain.packet, plain.trace, 2)
    assert "channel_failed" not in heard.notes
