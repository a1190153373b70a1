"""Reports to make pages of: one of real runs, one whose every name and text is hostile, one of many queries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from typing import Any

from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.evaluation.collections import load_collection
from bounded_retrieval.evaluation.experiment import run_experiment
from bounded_retrieval.evaluation.summary import summarise
from bounded_retrieval.evaluation.variants import read_variants
from bounded_retrieval.retrievers.bm25 import BM25Searcher

POLICIES = ("fixed_lexical", "fixed_lexical:6_rows", "fixed_dense", "reference", "adaptive@0.5")
QUERIES = 36
HOSTILE = (
    "</script><script>window.harmed=1</script><img src=x onerror=\"window.harmed=1\">' onclick='window.harmed=1' "
    "{{harmed}} --><!-- ]]> \u2028\u202e\x07&lt;b&gt;"
)


class TrigramSearcher:
    """A dense channel without a model: vectors of character trigrams, compared by their cosine."""

    channel = "dense"

    def __init__(self, documents: Sequence[Document]) -> None:
        self.documents = documents
        self.vectors = [_vector(document.page_content) for document in documents]

    def search(self, query: str, k: int, filter: Filter | None = None) -> list[Candidate]:
        assert filter is None
        asked = _vector(query)
        scores = [sum(weight * vector.get(name, 0) for name, weight in asked.items()) for vector in self.vectors]
        best = sorted(range(len(scores)), key=lambda place: (-scores[place], place))[:k]
        return [
            Candidate(
                unit_id=self.documents[place].id,
                channel="dense",
                rank=rank,
                score=round(scores[place], 6),
                unit=self.documents[place],
            )
            for rank, place in enumerate(best, 1)
        ]


def _vector(text: str) -> Mapping[str, float]:
    counts = Counter(text.casefold()[place : place + 3] for place in range(len(text) - 2))
    length = math.sqrt(sum(count * count for count in counts.values())) or 1.0
    return {name: count / length for name, count in counts.items()}


@cache
def _made() -> dict[str, Any]:
    collection = load_collection("device_support")
    documents = list(collection.documents())
    # The lexical channel misses every other unit, so that going on improves some of the runs that stopped.
    lexical, dense = BM25Searcher.from_documents(documents[::2]), TrigramSearcher(documents)
    units = BM25Searcher.from_documents(documents)
    judged = collection.judged()
    queries = [judged[place * len(judged) // QUERIES] for place in range(QUERIES)]
    experiment = run_experiment(
        collection, lexical, dense, units, variants=read_variants(POLICIES), queries=queries, live=2
    )
    held = {document.id: document for document in documents}
    ranked = {
        unit for outcomes in experiment.outcomes.values() for outcome in outcomes.values() for unit in outcome.ranking
    }
    return summarise(
        experiment,
        documents={unit: held[unit] for unit in ranked},
        about={"units": len(held), "survey": collection.survey(held.keys()).to_dict()},
        resamples=100,
    )


def made_report() -> dict[str, Any]:
    """A report of real runs over the shipped collection; every call gives one of its own."""
    return deepcopy(_made())


def hostile_report() -> dict[str, Any]:
    """The same report, in which every name, id, title and text brings markup along."""
    report = made_report()
    texts = {query["text"] for query in report["queries"]} | {unit["text"] for unit in report["units"].values()}
    titles = {unit["title"] for unit in report["units"].values()}
    ids = {query["query_id"] for query in report["queries"]} | report["units"].keys()
    ids |= {unit for query in report["queries"] for unit in query["relevant"]}
    ids |= {row["unit_id"] for query in report["queries"] for rows in query["channels"].values() for row in rows}
    names = report["policies"].keys() | {report["collection"]["name"]}
    hostile = {text: text + HOSTILE for text in texts | titles | ids | names if text}
    hostile |= {"fixed_dense": "__proto__", report["queries"][0]["query_id"]: "constructor"}
    return _renamed(report, hostile)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(key, key): _renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [_renamed(each, names) for each in value]
    return names.get(value, value) if isinstance(value, str) else value


def long_report(queries: int) -> dict[str, Any]:
    """The report with its queries over and over, under ids of their own; its tables keep their figures."""
    report = made_report()
    report["queries"] = [
        {**report["queries"][place % QUERIES], "query_id": f"copy-{place:05d}"} for place in range(queries)
    ]
    return report


def chosen(report: Mapping[str, Any], policy: str, *, reason: str = "", outcome: str = "", text: str = "") -> list[str]:
    """Ids of the queries that the filters of a page keep, in file order, found in the report itself."""
    kept = []
    for query in report["queries"]:
        run = query["runs"][policy]
        recall = run["packet_recall"]
        outcomes = {"packet-all": recall >= 1 - 1e-9, "packet-some": 0 < recall < 1 - 1e-9, "packet-none": recall <= 0}
        if run.get("stopped_early"):
            outcomes[f"stopped-{run['one_more_call']}"] = True
        words = f"{query['text']}\n{query['query_id']}".lower()
        if reason in ("", run["stop_reason"]) and (not outcome or outcomes.get(outcome)) and text.lower() in words:
            kept.append(query["query_id"])
    return kept
