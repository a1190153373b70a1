"""A question-answering chain (LCEL) whose retriever says why it stopped searching.

    python examples/rag_chain.py

The chat model is scripted, so that the example runs offline: put your own in its place. What it is given is real.
"""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.retrievers import BaseRetriever
from langchain_core.runnables import Runnable, RunnablePassthrough

from bounded_retrieval import BoundedRetriever
from bounded_retrieval.ingest import read_documents

CORPUS = Path(__file__).resolve().parents[1] / "bounded_retrieval" / "data" / "device_support" / "corpus.jsonl"

PROMPT = ChatPromptTemplate.from_messages(
    [
        ("system", "Answer from the passages only, and name their ids.\n\n{passages}\n\n{caveat}"),
        ("human", "{question}"),
    ]
)

QUESTION = "Our parcel turned up smashed by the courier"
SCRIPTED_ANSWER = "Report it within three working days of delivery, with photographs [policy-transit]."


def build_chain(retriever: BaseRetriever, model: BaseChatModel) -> Runnable[Any, dict[str, Any]]:
    """A chain from ``{"question"}`` to question, documents, passages, caveat and answer."""
    return (
        RunnablePassthrough.assign(documents=itemgetter("question") | retriever)
        | RunnablePassthrough.assign(passages=passages, caveat=caveat)
        | RunnablePassthrough.assign(answer=PROMPT | model | StrOutputParser())
    )


def passages(given: dict[str, Any]) -> str:
    """The documents as text for the model, each with its id."""
    return "\n\n".join(f"[{document.id}] {document.page_content}" for document in given["documents"])


def caveat(given: dict[str, Any]) -> str:
    """What the retriever knows about its own search: the packet's facts, which every document carries."""
    facts = facts_of(given["documents"])
    missing = ", ".join(facts.get("missing_terms", [])) or "none"
    return f"The search stopped with {facts.get('stop_reason', 'nothing found')}. Words no passage holds: {missing}."


def facts_of(documents: list[Document]) -> dict[str, Any]:
    """Packet facts of the first document; empty where nothing was found."""
    facts: dict[str, Any] = documents[0].metadata["bounded_retrieval"] if documents else {}
    return facts


def main() -> None:
    """Ask one question whose words are not those of the company's policies."""
    policies = [document for document in read_documents([CORPUS]) if document.metadata["kind"] == "policy"]
    retriever = BoundedRetriever.from_documents(policies)
    chain = build_chain(retriever, FakeListChatModel(responses=[SCRIPTED_ANSWER]))
    result = chain.invoke({"question": QUESTION})
    print(f"question: {result['question']}")
    for document in result["documents"]:
        found = document.metadata["bounded_retrieval"]["channels"]
        places = ", ".join(f"{channel} rank {place['rank']}" for channel, place in found.items())
        print(f"  - {document.id}: {document.metadata['title']} ({places})")
    print(f"told the model: {result['caveat']}")
    print(f"answer (scripted): {result['answer']}")


if __name__ == "__main__":
    main()
