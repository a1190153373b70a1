"""A report of a real, small experiment: 24 queries about a kitchen, two real searchers, six policies and their arms."""

from __future__ import annotations

from contextlib import closing
from copy import deepcopy
from functools import cache
from typing import Any
from zlib import crc32

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.evaluation.collections import Collection, Query
from bounded_retrieval.evaluation.experiment import Experiment, run_experiment
from bounded_retrieval.evaluation.summary import summarise, timings
from bounded_retrieval.evaluation.variants import read_variants
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher

# A tool, what it does in its unit's words, and one question in the same words and one in others.
TOOLS = [
    ("whisk", "beats egg whites until stiff", "what beats egg whites", "tool for frothing albumen"),
    ("colander", "drains boiled noodles in the sink", "what drains boiled noodles", "straining cooked pasta"),
    ("mandoline", "slices potatoes very thin", "what slices potatoes thin", "cutter for wafer-like crisps"),
    ("mortar", "grinds pepper and spices by hand", "what grinds pepper by hand", "crushing seeds manually"),
    ("ladle", "serves soup from a deep pot", "what serves soup from a pot", "dishing out broth"),
    ("peeler", "takes the skin off carrots", "what takes skin off carrots", "removing rind of vegetables"),
    ("rolling pin", "flattens dough for pastry", "what flattens dough", "making pastry thinner"),
    ("grater", "shreds hard cheese", "what shreds hard cheese", "flaking parmesan"),
    ("kettle", "boils water for tea", "what boils water for tea", "heating a drink quickly"),
    ("sieve", "sifts flour without lumps", "what sifts flour", "flouring without clumps"),
    ("steamer", "cooks greens over hot steam", "what cooks greens over steam", "gentle cooking of spinach"),
    ("skillet", "fries onions in butter", "what fries onions in butter", "browning shallots"),
]
TALK = [
    "The kitchen was painted in spring, and the potatoes were late.",
    "Butter, cheese and eggs are kept in the cold room.",
    "Tea is served at four; soup is served at noon.",
    "Pepper and spices came from the harbour, flour from the mill.",
    "The sink is cleaned by hand after the boiled noodles.",
    "Hard cheese is cheaper in autumn, and pastry in winter.",
]


POLICIES = ("fixed_lexical", "fixed_dense", "always_continue", "reference", "adaptive", "adaptive:scorecard")


class TrigramEmbeddings(Embeddings):
    """Counts hashed character trigrams: like words have like vectors, and the same text has the same everywhere."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        counts = [0.01] * 96
        for place in range(len(text) - 2):
            counts[crc32(text[place : place + 3].casefold().encode()) % 96] += 1
        return counts


def kitchen() -> Collection:
    """Two questions for each tool; the tool answers both, a unit that mentions its purpose is useful for some."""
    units = [
        Document(id=name, page_content=f"The {name} {does}.", metadata={"title": name}) for name, does, *_ in TOOLS
    ]
    units += [Document(id=f"talk-{place}", page_content=text) for place, text in enumerate(TALK)]
    queries = [
        Query(query_id=f"{name}-{kind}", text=text)
        for name, _, *texts in TOOLS
        for kind, text in zip(("same", "other"), texts, strict=True)
    ]
    judgements = {query.query_id: {query.query_id.rpartition("-")[0]: 2} for query in queries}
    for name, useful in {"kettle": "talk-2", "ladle": "talk-2", "mortar": "talk-3", "grater": "talk-5"}.items():
        judgements[f"{name}-same"][useful] = 1
    return Collection(
        name="kitchen",
        kind="beir",
        split="test",
        queries=tuple(queries),
        judgements=judgements,
        has_documents=True,
        reader=lambda: iter(units),
    )


@cache
def kitchen_experiment() -> Experiment:
    """The policies over the kitchen; two queries are checked live."""
    collection = kitchen()
    units = list(collection.documents())
    lexical = BM25Searcher.from_documents(units)
    with closing(lexical), closing(ChromaSearcher.from_documents(units, TrigramEmbeddings())) as dense:
        return run_experiment(collection, lexical, dense, lexical, variants=read_variants(POLICIES), live=2)


@cache
def _kitchen_report() -> dict[str, Any]:
    collection = kitchen()
    documents = {str(unit.id): unit for unit in collection.documents()}
    about = {"units": len(documents), "embedding": "trigrams", "survey": collection.survey(documents).to_dict()}
    return summarise(kitchen_experiment(), documents=documents, about=about, resamples=500)


def kitchen_report() -> dict[str, Any]:
    """A report of the kitchen, the caller's to change."""
    return deepcopy(_kitchen_report())


def kitchen_timings() -> dict[str, Any]:
    """What the kitchen's experiment took."""
    return timings(kitchen_experiment())


def renamed(report: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """The report with one policy under another name, wherever it stands."""
    for part in ("policies", "early_stops", "stop_reasons", "arms", "ceilings", "curves"):
        report[part] = {new if name == old else name: value for name, value in report[part].items()}
    for arms in report["arms"].values():
        arms.update({part: new for part, name in arms.items() if name == old})
    for each in report["differences"]:
        each.update({part: new for part in ("policy", "against") if each[part] == old})
    for query in report["queries"]:
        query["runs"] = {new if name == old else name: run for name, run in query["runs"].items()}
    return report


def without_adaptive(report: dict[str, Any]) -> dict[str, Any]:
    """The report as if no adaptive policy had been run."""
    adaptive = set(report["early_stops"])
    for part in ("policies", "stop_reasons"):
        report[part] = {name: value for name, value in report[part].items() if name not in adaptive}
    for part in ("early_stops", "arms", "ceilings", "curves"):
        report[part] = {}
    report["differences"] = [each for each in report["differences"] if not adaptive & {each["policy"], each["against"]}]
    for query in report["queries"]:
        query["runs"] = {name: run for name, run in query["runs"].items() if name not in adaptive}
    return report
