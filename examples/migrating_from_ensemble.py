"""From ``EnsembleRetriever`` to ``BoundedRetriever``: one line changes, over the same two retrievers.

    python examples/migrating_from_ensemble.py      # needs langchain-classic and langchain-chroma besides

The ensemble makes both searches every time and returns the union. The bounded retriever makes the second search only
where the first left words of the query uncovered, cuts at k, and says why it stopped.
"""

from __future__ import annotations

import warnings
from pathlib import Path

from langchain_chroma import Chroma
from langchain_classic.retrievers import EnsembleRetriever
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever

from bounded_retrieval import BoundedRetriever
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.retrievers.embeddings import load_embedding

with warnings.catch_warnings():
    # langchain-community says at its import that it is being sunset; BM25Retriever still lives there.
    warnings.simplefilter("ignore", DeprecationWarning)
    from langchain_community.retrievers import BM25Retriever

CORPUS = Path(__file__).resolve().parents[1] / "bounded_retrieval" / "data" / "device_support" / "corpus.jsonl"

QUERIES = (
    "LP-120: calibrate the gap sensor",
    "Our parcel turned up smashed by the courier",
    "How do I replace the motor brushes of the PV-30?",
)


def build(documents: list[Document]) -> tuple[BaseRetriever, BaseRetriever]:
    """Both retrievers, over the same BM25 retriever and the same Chroma store."""
    bm25 = BM25Retriever.from_documents(documents, k=4, preprocess_func=lambda text: text.lower().split())
    store = Chroma.from_documents(documents, load_embedding(), collection_name="support")

    before = EnsembleRetriever(retrievers=[bm25, store.as_retriever(search_kwargs={"k": 4})], weights=[0.5, 0.5])
    after = BoundedRetriever.from_retrievers(bm25, store, k=4)
    return before, after


def show(query: str, before: list[Document], after: list[Document]) -> None:
    """Print both answers side by side, and what only one of them says."""
    print(f"\n{query}")
    print(f"  {f'EnsembleRetriever: {len(before)}':<34}BoundedRetriever: {len(after)}")
    for row in range(max(len(before), len(after))):
        left, right = (str(docs[row].id) if row < len(docs) else "" for docs in (before, after))
        print(f"  {left:<34}{right}".rstrip())
    facts = after[0].metadata["bounded_retrieval"] if after else {}
    searched = sorted({channel for document in after for channel in document.metadata["bounded_retrieval"]["channels"]})
    print(f"  stopped: {facts.get('stop_reason')}; packed from: {' and '.join(searched)}")
    print(f"  missing: {', '.join(facts.get('missing_terms', [])) or '-'}")


def main() -> None:
    """Ask three queries of both."""
    before, after = build(list(read_documents([CORPUS])))
    for query in QUERIES:
        show(query, before.invoke(query), after.invoke(query))


if __name__ == "__main__":
    main()
