# ruff: noqa: ARG002  # the scripted model keeps LangChain's signatures
from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from bounded_retrieval import (
    BoundedContext,
    EvidencePacket,
    RetrievalFailedError,
    create_bounded_retrieval,
    create_retrieval_tool,
)
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

DOCUMENTS = [
    Document(id=f"u{number}", page_content=f"The pump of site {number} hums at night.", metadata={"n": number})
    for number in range(8)
]
QUERY = "Which pump hums at night?"


class ScriptedModel(BaseChatModel):
    """Makes the given tool calls in its first turn and says what it read in its second."""

    queries: list[str]

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:
        return self

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        read = [message for message in messages if isinstance(message, ToolMessage)]
        calls = [
            ToolCall(name="bounded_retrieval", args={"query": query}, id=f"call-{number}")
            for number, query in enumerate(self.queries)
        ]
        reply = AIMessage(f"I read {len(read)}.") if read else AIMessage("", tool_calls=calls)
        return ChatResult(generations=[ChatGeneration(message=reply)])


@dataclass(frozen=True)
class AgentContext:
    """An agent's own runtime context, which says something about our run besides."""

    user: str
    policy: str | None = None


def _graph() -> Any:
    return create_bounded_retrieval(
        ScriptedSearcher(DOCUMENTS[:4], "lexical"), ScriptedSearcher(DOCUMENTS[4:], "dense"), threshold=0.5
    )


def _agent(queries: Sequence[str] = (QUERY,), graph: Any = None, **options: Any) -> Any:
    tool = create_retrieval_tool(_graph() if graph is None else graph)
    return create_agent(ScriptedModel(queries=list(queries)), tools=[tool], **options)


def _artifacts(result: dict[str, Any]) -> list[EvidencePacket]:
    return [
        EvidencePacket.model_validate(message.artifact)
        for message in result["messages"]
        if isinstance(message, ToolMessage)
    ]


GIVEN = {"messages": [HumanMessage("Go on.")]}


async def test_the_tool_message_carries_the_packet() -> None:
    """The agent's tool message has text for the model and the packet, as a plain dict, as its artifact."""
    result = _agent().invoke(GIVEN)
    (message,) = [message for message in result["messages"] if isinstance(message, ToolMessage)]
    assert type(message.artifact) is dict
    assert message.artifact == _graph().compile().invoke({"query": QUERY})["packet"]
    assert "u0" in message.content
    assert "proxy_sufficient" in message.content
    assert result["messages"][-1].content == "I read 1."
    assert _artifacts(await _agent().ainvoke(GIVEN)) == _artifacts(result)


@pytest.mark.parametrize("saver", [None, InMemorySaver()], ids=["plain", "checkpointed"])
async def test_several_calls_in_one_turn_each_get_their_packet(saver: Any) -> None:
    """Tool calls of one turn run at the same time and do not see each other, under a checkpointer too."""
    queries = [QUERY, "Does a fan squeak?", QUERY]
    config = {"configurable": {"thread_id": "one"}}
    expected = [_graph().compile().invoke({"query": query})["packet"] for query in queries]
    for result in (
        _agent(queries, checkpointer=saver).invoke(GIVEN, config),
        await _agent(queries).ainvoke(GIVEN, config),
    ):
        assert [packet.model_dump(mode="json") for packet in _artifacts(result)] == expected


async def test_the_agents_context_reaches_the_run() -> None:
    """Our settings are read from the agent's own context object, and nothing else of it is."""
    agent = _agent(context_schema=AgentContext)
    plain, always = AgentContext(user="dana"), AgentContext(user="dana", policy="always_continue")
    assert [packet.usage.calls for packet in _artifacts(agent.invoke(GIVEN, context=plain))] == [1]
    assert [packet.usage.calls for packet in _artifacts(agent.invoke(GIVEN, context=always))] == [2]
    assert [packet.usage.calls for packet in _artifacts(await agent.ainvoke(GIVEN, context=always))] == [2]


def test_json_in_configurable_sets_nothing() -> None:
    """What a client can write into configurable changes no setting; an instance given in this process does."""
    settings = {"policy": "always_continue"}
    as_json = _agent().invoke(GIVEN, {"configurable": {"bounded_context": settings}})
    instance = _agent().invoke(GIVEN, {"configurable": {"bounded_context": BoundedContext(**settings)}})
    assert [packet.usage.calls for packet in (*_artifacts(as_json), *_artifacts(instance))] == [1, 2]


def test_the_agents_stream_shows_the_decisions() -> None:
    """With subgraphs=True the events of the run inside the tool can be followed in the agent's stream."""
    parts = list(_agent().stream(GIVEN, stream_mode="custom", subgraphs=True))
    assert [part["event"] for _, part in parts] == [
        "request_inspected",
        "search_attempted",
        "coverage_assessed",
        "evidence_packed",
    ]
    assert {namespace[0].partition(":")[0] for namespace, _ in parts} == {"tools"}


def test_a_failed_search_stops_the_agent_with_the_packet() -> None:
    """When no attempt answered, the error reaches the caller of the agent; no empty answer hides it."""
    agent = _agent(graph=create_bounded_retrieval(FailingSearcher(), FailingSearcher()))
    with pytest.raises(RetrievalFailedError) as failure:
        agent.invoke(GIVEN)
    assert failure.value.packet.usage.calls == 2


@pytest.fixture
def strict_saver(monkeypatch: pytest.MonkeyPatch) -> InMemorySaver:
    """A checkpointer that revives only what strict msgpack allows; each type is warned of afresh."""
    for name in ("_warned_unregistered_types", "_warned_blocked_types", "_warned_unreconstructable_types"):
        monkeypatch.setattr(jsonplus, name, set())
    return InMemorySaver(serde=JsonPlusSerializer(allowed_msgpack_modules=None))


async def test_the_agents_state_survives_strict_msgpack(
    strict_saver: InMemorySaver, caplog: pytest.LogCaptureFixture
) -> None:
    """Saved and revived, every message of the agent and every step of the run is what it was, without a warning."""
    config: Any = {"configurable": {"thread_id": "one"}}
    with caplog.at_level(logging.WARNING):
        agent = _agent(checkpointer=strict_saver)
        result = await agent.ainvoke(GIVEN, config)
        revived = agent.get_state(config).values
        everything = list(strict_saver.list(None))
        second = agent.invoke(GIVEN, config)
    assert revived["messages"] == result["messages"]
    assert _artifacts(revived) == _artifacts(result)
    assert second["messages"][: len(result["messages"])] == result["messages"]
    steps = [saved for saved in everything if "units" in saved.checkpoint["channel_values"]]
    assert steps, "the run inside the tool was checkpointed too"
    assert caplog.records == []


def test_the_strict_checkpointer_would_have_warned(
    strict_saver: InMemorySaver, caplog: pytest.LogCaptureFixture
) -> None:
    """A control: a packet put into the state as an object is blocked by the same checkpointer, with a warning."""
    serde = strict_saver.serde
    packet = _artifacts(_agent().invoke(GIVEN))[0]
    revived = serde.loads_typed(serde.dumps_typed({"packet": packet}))
    assert not isinstance(revived["packet"], EvidencePacket)
    assert any("EvidencePacket" in record.getMessage() for record in caplog.records)
