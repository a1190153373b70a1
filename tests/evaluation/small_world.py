"""Tiny collections for the tests of the evaluation: what each channel answers to each query is written down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval.cli import main
from bounded_retrieval.contracts.candidate import Candidate, Channel
from bounded_retrieval.evaluation.collections import Collection, Query

Script = tuple[int, str, str, Mapping[str, int]]
"""One query: how many of its five terms the first lexical unit holds, the units that the lexical and the dense channel
return (a letter each, best first), and the grades by letter."""

GOOD_STOP: Script = (5, "rab", "cde", {"r": 1})
"""Stops with the relevant unit first; going on leaves it there."""

HARMFUL: Script = (5, "abc", "rab", {"r": 1})
"""Stops without the relevant unit; going on ranks it third."""

LATE: Script = (5, "abc", "bcr", {"r": 1})
"""Stops without the relevant unit; going on ranks it fourth."""

LUCKY: Script = (5, "abr", "cda", {"r": 1})
"""Stops with the relevant unit third; going on ranks it fifth."""

GOES_ON: Script = (2, "abr", "rcd", {"r": 1})
"""Has too few of its terms in one unit; going on ranks the relevant unit, which was third, first."""

LOST: Script = (2, "abc", "def", {"r": 1})
"""Goes on and finds nothing relevant."""

MIXED = (GOOD_STOP, HARMFUL, LATE, LUCKY, GOES_ON, LOST)
"""One of each: four stop, two go on."""

_LETTERS = str.maketrans("0123456789", "bdfghkmpvz")


def words(number: int) -> list[str]:
    """The five terms of a query, which no other query has: letters only, so that none looks like an identifier."""
    code = str(number).translate(_LETTERS)
    return [f"{kind}u{code}o" for kind in "jlnrt"]


def query_text(number: int) -> str:
    """What is asked."""
    return f"the {' '.join(words(number))}"


def unit_id(letter: str, number: int) -> str:
    """The id of a query's unit."""
    return f"{letter}-{number:03d}"


def document(letter: str, number: int, terms: int) -> Document:
    """A unit that holds so many of a query's five terms, and its own id, so that no two units are the same text."""
    named = unit_id(letter, number)
    return Document(id=named, page_content=" ".join([*words(number)[:terms], "and", "some", "filling", named]))


class Answering:
    """A searcher that answers each query as written down, scores falling from 1.

    Attributes:
        answers: documents by query text.
        calls: queries with the rows asked for, in order.
    """

    def __init__(self, answers: Mapping[str, Sequence[Document]], channel: Channel) -> None:
        self.answers = dict(answers)
        self.channel = channel
        self.calls: list[tuple[str, int]] = []

    def search(self, query: str, k: int, filter: Mapping[str, Any] | None = None) -> list[Candidate]:
        assert filter is None
        self.calls.append((query, k))
        return [
            Candidate(unit_id=str(each.id), channel=self.channel, rank=rank, score=1 / rank, unit=each)
            for rank, each in enumerate(self.answers.get(query, ())[:k], 1)
        ]

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        held = {str(each.id): each for found in self.answers.values() for each in found}
        return {name: held[name] for name in unit_ids if name in held}


def scripted(scripts: Sequence[Script]) -> dict[str, Any]:
    """Collection, searchers and units of so many queries, by the parameters' names of `run_experiment`."""
    answers: dict[Channel, dict[str, list[Document]]] = {"lexical": {}, "dense": {}}
    held: dict[str, Document] = {}
    for number, (terms, lexical, dense, _) in enumerate(scripts):
        units = {letter: document(letter, number, terms if letter == lexical[:1] else 1) for letter in lexical + dense}
        held |= {str(each.id): each for each in units.values()}
        answers["lexical"][query_text(number)] = [units[letter] for letter in lexical]
        answers["dense"][query_text(number)] = [units[letter] for letter in dense]
    searchers = {channel: Answering(found, channel) for channel, found in answers.items()}
    return {
        "collection": Collection(
            name="manuals",
            kind="beir",
            split="test",
            queries=tuple(Query(query_id=f"q{number:03d}", text=query_text(number)) for number in range(len(scripts))),
            judgements={
                f"q{number:03d}": {unit_id(letter, number): grade for letter, grade in grades.items()}
                for number, (*_, grades) in enumerate(scripts)
            },
            has_documents=True,
            reader=lambda: iter(held.values()),
        ),
        "lexical": searchers["lexical"],
        "dense": searchers["dense"],
        "units": Answering({"all": list(held.values())}, "lexical"),
    }


def write_beir(folder: Path, collection: Collection) -> Path:
    """A collection as a BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    corpus = [json.dumps({"_id": each.id, "text": each.page_content}) for each in collection.documents()]
    queries = [json.dumps({"_id": query.query_id, "text": query.text}) for query in collection.queries]
    judged = [
        f"{query_id}\t{unit}\t{grade}"
        for query_id, units in collection.judgements.items()
        for unit, grade in units.items()
    ]
    (folder / "corpus.jsonl").write_text("\n".join(corpus), encoding="utf-8")
    (folder / "queries.jsonl").write_text("\n".join(queries), encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]), encoding="utf-8")
    return folder


# The command line, over real searchers

HITS: Script = (5, "r", "r", {"r": 1})
MISSES: Script = (2, "r", "a", {"r": 2, "a": 1})
QUERIES = 30
DECLARED = ["--assessor", "term_coverage", "--fusion", "rrf", "--threshold", "0.5", "--threshold", "0.9"]
CERTIFIED = [*DECLARED, "--epsilon", "0.9", "--final", "0.34"]
BASIC = ["--policies", "fixed_dense", "--live", "0", "--resamples", "100"]


@dataclass(frozen=True)
class Place:
    """A BEIR folder, and the cache that keeps its index."""

    folder: Path
    cache: Path

    @property
    def index(self) -> Path:
        """The only index kept."""
        (found,) = (self.cache / "bounded-retrieval" / "collections").iterdir()
        return found


def indexed_place(root: Path) -> Place:
    """A BEIR folder of 30 queries, two of three with all their words in one unit, evaluated once."""
    collection = scripted([HITS if number % 3 else MISSES for number in range(QUERIES)])["collection"]
    found = Place(folder=write_beir(root / "manuals", collection), cache=root / "cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(found.cache))
        assert main(["evaluate", str(found.folder), *BASIC, "--json"]) == 0
    return found


def one_line(text: str) -> str:
    """The only line of an error message, besides those that say that a stage begins."""
    assert "Traceback" not in text
    lines = [line for line in text.strip().splitlines() if not line.endswith(" ...")]
    assert len(lines) == 1, text
    return lines[0]
