"""An agent that searches with the bounded controller as its tool.

    python examples/agent_with_tool.py      # needs langchain besides

The chat model is scripted, so that the example runs offline: it asks for one search and then quotes what came back.
``query`` is the tool's only argument: no model can raise a limit or choose a policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from langchain.agents import create_agent
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolCall, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from bounded_retrieval import (
    BM25Searcher,
    ChromaSearcher,
    EvidencePacket,
    create_bounded_retrieval,
    create_retrieval_tool,
)
from bounded_retrieval.ingest import read_documents

CORPUS = Path(__file__).resolve().parents[1] / "bounded_retrieval" / "data" / "device_support" / "corpus.jsonl"
QUESTION = "How do I replace the battery pack of the HX-220?"


class ScriptedModel(BaseChatModel):
    """Calls the tool with the user's words, then answers from the tool's artifact."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> ScriptedModel:  # noqa: ARG002
        """A real model would learn of the tools here; this one knows its lines."""
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,  # noqa: ARG002
        run_manager: CallbackManagerForLLMRun | None = None,  # noqa: ARG002
        **_: Any,
    ) -> ChatResult:
        latest = messages[-1]
        reply = answer_from(latest) if isinstance(latest, ToolMessage) else ask_for(str(latest.text))
        return ChatResult(generations=[ChatGeneration(message=reply)])


def ask_for(query: str) -> AIMessage:
    """The model's request for a search."""
    return AIMessage("", tool_calls=[ToolCall(name="bounded_retrieval", args={"query": query}, id="call-1")])


def answer_from(result: ToolMessage) -> AIMessage:
    """The model's last word: what it found, and what nothing says."""
    packet = EvidencePacket.model_validate(result.artifact)
    sources = ", ".join(item.unit_id for item in packet.items)
    missing = ", ".join(packet.missing_terms)
    return AIMessage(f"No passage mentions {missing}, so I cannot say. The nearest passages: {sources}.")


def main() -> None:
    """Ask about a device that does not exist; its neighbours do."""
    procedures = [document for document in read_documents([CORPUS]) if document.metadata["kind"] == "procedure"]
    graph = create_bounded_retrieval(BM25Searcher.from_documents(procedures), ChromaSearcher.from_documents(procedures))
    agent = create_agent(ScriptedModel(), tools=[create_retrieval_tool(graph)])
    result = agent.invoke({"messages": [HumanMessage(QUESTION)]})
    for message in result["messages"]:
        called = ", ".join(call["name"] for call in getattr(message, "tool_calls", []))
        text = str(message.text)
        shown = f"(calls {called})" if called else text if len(text) <= 200 else f"{text[:80]} ... {text[-300:]}"
        print(f"{message.type:>5}: {' '.join(shown.split())}")
    packet = EvidencePacket.model_validate(result["messages"][-2].artifact)
    print(f"\nartifact: {packet.stop_reason.value} ({packet.resolution}), {packet.usage.calls} calls")


if __name__ == "__main__":
    main()
