"""What the recursive chain finds on real multi-hop questions, beside single searches, and what its stop rules do.

Run it with ``python benchmarks/multihop.py [--collections DIR] [--json FILE] [--limit N]``. It needs the collections
``musique_train100`` or ``hotpotqa_train100`` (their ``SOURCE.md`` says where they come from) and no network. Tables go
to the screen and, as Markdown, beside the JSON. A collection's index is built once, into ``--cache`` (one to three
minutes each), and once more, with the old vectors, after a change in what is indexed of texts; the rest takes two to
four. The same package and collections always give the same figures.
``--limit`` is for trying the command out: it takes the first questions, and a corpus that is cut down with them, so
that its figures compare with nothing.

Labels (sub-answers, supporting passages) are used to score, and by two readers that are oracles and called so: ``gold``
always gives the annotated sub-answer, ``gold if found`` gives it only where the hop found the annotated passage. The
decompositions of MuSiQue, which people wrote, are given to the chains named ``template`` and to the two controls that
search with the sub-questions; every other system sees the question alone.

Terms: a packet of k units is the first k that a system returns, characters unlimited; ``units@8`` says how many there
were on average. ``controller, adaptive`` may use the default rows, 4 lexical and 2 dense, for 4 units and twice as many
for 8; ``lexical + dense, fused`` takes as many rows of each channel as the packet has units. Both have the package's
default assessor and fusion; ``controller, reference`` and the chains ``..., reference`` have term coverage at .8,
reciprocal ranks and half of the same rows for each channel, over the same index (the preset of that name besides
compares words as they stand, and keeps to 3 rows first). A chain is capped at 3 hops, at 4 for a question of 4
hops, unless a row says otherwise. Each hop is one adaptive controller run, by default with 4 units, so that a chain of
one hop cannot fill a packet of 8. Sub-answers are right when they equal the annotated one after SQuAD's normalisation;
a chain's final answer is its latest sub-answer.

The questions are not new to what is measured: the scorecard's points were fitted to half of each of these
collections (by nDCG@4), thresholds, stems, titles, fusion and rows were chosen on them, and the reader's weights were
fitted to half of MuSiQue's sub-questions. What loses here loses all the same; what gains may gain less elsewhere.
Intervals are 95% paired bootstrap intervals over questions.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import string
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from langchain_core.documents import Document

from bounded_retrieval import (
    Budget,
    ChainLimits,
    ChainResult,
    ExtractiveReader,
    TemplatePlanner,
    build_index,
    create_bounded_retrieval,
    create_recursive_retrieval,
    open_index,
)
from bounded_retrieval.contracts.chain import MAX_HOPS, Hop, NextQuery
from bounded_retrieval.policies.chaining import ChainRules
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.policies.fusion import ReciprocalRankFusion
from bounded_retrieval.policies.registry import DEFAULT_ASSESSOR, DEFAULT_FUSION
from bounded_retrieval.policies.tokenize import INDEX_TERMS_NAME

ROOT = Path(__file__).resolve().parents[1]
COLLECTIONS = ("musique_train100", "hotpotqa_train100")
PACKETS = (4, 8)
HOP_UNITS = 4
ALL_CHARS = 200_000
ALL_CALLS = 2 * MAX_HOPS
CANDIDATES_PER_QUESTION = 20
RESAMPLES = 2_000
SEED = 7
RECURSION_LIMIT = 200
THRESHOLDS = {"8": 8.0, "7": 7.0, "none": float("-inf")}
BASELINE = "lexical + dense, fused"
REFERENCE = "controller, reference"
APART = "chain: sub-questions apart, no sub-answers"
COMPARED = (
    ("chain: template, gold", APART),
    ("chain: template, reader 8", APART),
    ("chain: template, reader none", APART),
    ("chain: template, reader 8", "chain: template, gold"),
    ("chain: template, reader none", "chain: template, reader 8"),
    ("chain: question + sub-answer, reader none", "controller, adaptive"),
    ("chain: question + sub-answer, reader none, 8 units a hop", "controller, adaptive"),
    ("controller, adaptive", REFERENCE),
    ("chain: template, reader 8", "chain: template, reader 8, reference"),
    ("chain: template, reader none", "chain: template, reader none, reference"),
    ("chain: question + sub-answer, reader none", "chain: question + sub-answer, reader none, reference"),
)

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_PLACEHOLDER = re.compile(r"#[0-9]+")

Reader = Callable[[str, Sequence[Document]], Any]


@dataclass(frozen=True, kw_only=True)
class Step:
    """One step of an annotated decomposition, and the answers that count as right."""

    template: str
    answers: tuple[str, ...]
    supporting_id: str


@dataclass(frozen=True, kw_only=True)
class Question:
    """A question with its labels; ``steps`` is empty where the collection has no decompositions."""

    query_id: str
    text: str
    answers: tuple[str, ...]
    supporting: frozenset[str]
    steps: tuple[Step, ...]

    @property
    def hops(self) -> int:
        """How many passages the question needs."""
        return len(self.steps) or len(self.supporting)

    @property
    def cap(self) -> int:
        """The declared depth cap: the default 3, and 4 for questions of 4 hops."""
        return max(3, self.hops)


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a system did with one question: its packets by size, its cost, and the chain's result if it was one."""

    packets: Mapping[int, Sequence[str]]
    calls: int
    dense_calls: int
    chain: ChainResult | None = None


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A system under measurement."""

    name: str
    run: Callable[[Question], Outcome]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A setting of the stop rules; ``cap`` none is the declared one of each question."""

    name: str
    rules: ChainRules = field(default_factory=ChainRules)
    cap: int | None = None
    ask_sufficiency: bool = True


VARIANTS = (
    Variant(name="all rules"),
    Variant(name="novelty off", rules=ChainRules(novelty=False)),
    Variant(name="repeated off", rules=ChainRules(repeated=False)),
    Variant(name="sufficiency off", ask_sufficiency=False),
    Variant(name="depth 3 for all", cap=3),
    Variant(name="depth 8", cap=MAX_HOPS),
    Variant(name="min_new_share .25", rules=ChainRules(min_new_share=0.25)),
    Variant(name="min_new_share .5", rules=ChainRules(min_new_share=0.5)),
    Variant(name="similarity .8", rules=ChainRules(similarity=0.8)),
    Variant(name="similarity 1", rules=ChainRules(similarity=1.0)),
    Variant(
        name="all off, depth 8", rules=ChainRules(novelty=False, repeated=False), cap=MAX_HOPS, ask_sufficiency=False
    ),
)


def main() -> None:
    arguments = _arguments()
    os.environ["LANGSMITH_TRACING"] = "false"
    folders = [arguments.collections / name for name in COLLECTIONS]
    found = [folder for folder in folders if (folder / "corpus.jsonl").is_file()]
    if not found:
        sys.exit(f"none of {', '.join(COLLECTIONS)} is in the collections folder; give it with --collections")
    report = {
        "settings": {
            "limit": arguments.limit,
            "packets": list(PACKETS),
            "resamples": RESAMPLES,
            "seed": SEED,
            "baseline": BASELINE,
            "embedding": "minilm-l6-v2-int8",
            "terms": INDEX_TERMS_NAME,
            "assessor": DEFAULT_ASSESSOR,
            "fusion": DEFAULT_FUSION,
        },
        "collections": {folder.name: measure(folder, arguments) for folder in found},
    }
    tables = to_markdown(report)
    print(tables)
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    arguments.json.with_suffix(".md").write_text(tables, encoding="utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The recursive chain on real multi-hop questions.")
    parser.add_argument("--collections", type=Path, default=ROOT.parent / "shared" / "collections", metavar="DIR")
    parser.add_argument(
        "--cache", type=Path, default=ROOT / "build" / "multihop", metavar="DIR", help="for the indexes"
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="by default benchmarks/multihop.json; under build/ with --limit"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="the first N questions, and a cut-down corpus")
    arguments = parser.parse_args()
    if arguments.limit is not None and arguments.limit < 1:
        parser.error("--limit: at least 1")
    folder = ROOT / ("benchmarks" if arguments.limit is None else "build")
    arguments.json = arguments.json or folder / "multihop.json"
    return arguments


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure one collection, whole or cut down."""
    questions = [_question(record) for record in _lines(folder / "questions.jsonl")][: arguments.limit]
    documents = _documents(folder, questions, arguments.limit)
    with open_index(_build(folder.name, documents, arguments.cache)) as index:
        systems = Systems(index, questions, {document.id: document.metadata["title"] for document in documents})
        _tell(folder.name, "recall")
        outcomes = {arm.name: [arm.run(question) for question in questions] for arm in systems.arms()}
        report = {
            "questions": len(questions),
            "units": len(documents),
            "by_hops": {str(hops): count for hops, count in sorted(Counter(q.hops for q in questions).items())},
            "recall": recall_rows(questions, outcomes),
            "recall_by_hops": recall_by_hops(questions, outcomes),
            "differences": difference_rows(questions, outcomes),
        }
        if systems.has_steps:
            _tell(folder.name, "reliability")
            report |= reliability(systems, outcomes)
        report["stop_rules"] = {}
        for name, chain in systems.chains_for_rules().items():
            _tell(folder.name, f"stop rules of {name}")
            report["stop_rules"][name] = stop_rule_rows(systems, chain)
    return report


def _tell(*said: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}]", *said, file=sys.stderr, flush=True)


# Collections and indexes


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _question(record: Mapping[str, Any]) -> Question:
    final = (record["answer"], *record.get("answer_aliases", ()))
    steps = record.get("decomposition", ())
    return Question(
        query_id=record["id"],
        text=record["question"],
        answers=final,
        supporting=frozenset(record["supporting_ids"]),
        steps=tuple(
            Step(
                template=step["question"],
                answers=(step["answer"], *(final if number == len(steps) else ())),
                supporting_id=step["supporting_id"],
            )
            for number, step in enumerate(steps, 1)
        ),
    )


def _documents(folder: Path, questions: Sequence[Question], limit: int | None) -> list[Document]:
    """The corpus; under a limit the first passages of it and those that the questions need."""
    records = _lines(folder / "corpus.jsonl")
    if limit is not None:
        needed = {unit_id for question in questions for unit_id in question.supporting}
        first = CANDIDATES_PER_QUESTION * limit
        records = [record for place, record in enumerate(records) if place < first or record["_id"] in needed]
    return [
        Document(id=record["_id"], page_content=record["text"], metadata={"title": record["title"]})
        for record in records
    ]


def _build(name: str, documents: Sequence[Document], cache: Path) -> Path:
    """Build the index unless it is there with this version's terms; its folder's name holds the documents' hash."""
    content = json.dumps([[document.id, document.metadata["title"], document.page_content] for document in documents])
    folder = cache / f"{name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"
    if not _is_current(folder / "manifest.json"):
        _tell(name, f"building the index of {len(documents):,} units")
        folder.mkdir(parents=True, exist_ok=True)
        build_index(documents, folder)
    return folder


def _is_current(manifest: Path) -> bool:
    return manifest.is_file() and json.loads(manifest.read_text(encoding="utf-8"))["tokenizer"] == INDEX_TERMS_NAME


# Systems


class Cached:
    """A searcher that remembers its answers by query text and rows; whoever calls it still counts each call."""

    def __init__(self, searcher: Any) -> None:
        self._searcher = searcher
        self._answers: dict[tuple[str, int], Any] = {}

    def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002 - nothing here filters
        """Search once for each query and number of rows."""
        if (query, k) not in self._answers:
            self._answers[query, k] = self._searcher.search(query, k)
        return self._answers[query, k]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._searcher, name)


class CachedController:
    """A compiled controller that remembers its results by query and request; their usage still counts every call."""

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._results: dict[str, Any] = {}

    def invoke(self, given: Mapping[str, Any]) -> Any:
        """Run once for each input."""
        key = json.dumps(given, sort_keys=True)
        if key not in self._results:
            self._results[key] = self._graph.invoke(given)
        return self._results[key]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._graph, name)


class CachedReader:
    """An extractive reader that remembers its answers; it always gives the same one to the same passages."""

    def __init__(self, threshold: float) -> None:
        self._reader = ExtractiveReader(threshold=threshold)
        self._answers: dict[tuple[str, ...], Any] = {}

    def __call__(self, query: str, documents: Sequence[Document]) -> Any:
        """Read once for each query and list of passages."""
        key = (query, *(document.id or "" for document in documents))
        if key not in self._answers:
            self._answers[key] = self._reader(query, documents)
        return self._answers[key]


@dataclass(frozen=True)
class OracleReader:
    """Gives annotated sub-answers, by the text of the query; an experiment's part and no reader.

    Args:
        known: per query its annotated answer and passage.
        only_if_found: says nothing where the annotated passage is not among the documents.
    """

    known: Mapping[str, tuple[str, str]]
    only_if_found: bool = False

    def __call__(self, query: str, documents: Sequence[Document]) -> str | None:
        """The annotated answer of the query, if there is one."""
        answer, supporting_id = self.known.get(query, (None, ""))
        is_found = any(document.id == supporting_id for document in documents)
        return answer if is_found or not self.only_if_found else None


def ask_again_with_answer(question: str, trail: Sequence[Hop]) -> str | None:
    """Plan the question itself, then the question and the latest sub-answer, while there is one."""
    if not trail:
        return question
    return None if trail[-1].sub_answer is None else f"{question} {trail[-1].sub_answer}"


@dataclass(frozen=True)
class AskAgainWithTitle:
    """Plans the question itself, then the question and the title of the best passage that the latest hop found new.

    A title that has no word beyond the question's is passed over: it would ask the same again.
    """

    titles: Mapping[str, str]

    def plan(self, question: str, trail: Sequence[Hop]) -> str | None:
        """The next query; none when the latest hop found no such passage."""
        if not trail:
            return question
        known = {unit_id for hop in trail[:-1] for unit_id in hop.unit_ids}
        new = (self.titles[unit_id] for unit_id in trail[-1].unit_ids if unit_id not in known)
        words = set(_normalise(question).split())
        title = next((title for title in new if set(_normalise(title).split()) - words), None)
        return None if title is None else f"{question} {title}"


@dataclass(frozen=True)
class SubQuestionsApart:
    """A control: plans every sub-question as it stands, placeholders cut out, whatever was found."""

    queries: Mapping[str, Sequence[str]]

    def plan(self, question: str, trail: Sequence[Hop]) -> NextQuery:
        """The next sub-question."""
        left = self.queries[question][len(trail) :]
        return NextQuery(query=left[0] if left else None)


def say_nothing(_query: str, _documents: Sequence[Document]) -> None:
    """Read nothing: for chains whose planner needs no sub-answers."""


@dataclass(frozen=True, kw_only=True)
class ChainParts:
    """Planner and reader of a chain, and the units that each of its hops may find."""

    planner: Any
    reader: Reader
    units_a_hop: int = HOP_UNITS
    is_reference: bool = False


class Systems:
    """Everything that is measured over one index."""

    def __init__(self, index: Any, questions: Sequence[Question], titles: Mapping[str, str]) -> None:
        self.questions = questions
        self.has_steps = all(question.steps for question in questions)
        self.readers = {name: CachedReader(threshold) for name, threshold in THRESHOLDS.items()}
        self._titles = titles
        self._units = index.units
        self._searchers = (Cached(index.lexical), Cached(index.dense))
        self.hop_searches = {k: self._controller(max_rows=6 * k // 4, max_units=k) for k in PACKETS}
        self.reference_searches = {
            k: self._controller(
                first_hop_rows=3 * k // 4,
                max_rows=6 * k // 4,
                max_units=k,
                assessor=TermCoverage(default_threshold=0.8),
                fusion=ReciprocalRankFusion(),
            )
            for k in PACKETS
        }
        if self.has_steps:
            self.template = TemplatePlanner({q.text: [step.template for step in q.steps] for q in questions})
            self.gold_queries = {q.query_id: _gold_queries(self.template, q) for q in questions}

    def _controller(self, *, max_rows: int, max_units: int, **parts: Any) -> Any:
        """A controller of that size; what ``parts`` leaves open is the builder's default."""
        budget = Budget(max_rows=max_rows, max_reads=max_rows, max_units=max_units, max_chars=ALL_CHARS)
        graph = create_bounded_retrieval(*self._searchers, units=self._units, budget=budget, **parts)
        return CachedController(graph.compile(name="bounded_retrieval"))

    def arms(self) -> list[Arm]:
        """The systems whose recall is compared."""
        lexical, dense = self._searchers
        fused = {
            k: self._controller(first_hop_rows=k, max_rows=2 * k, max_units=k, policy="always_continue")
            for k in PACKETS
        }
        arms = [
            Arm(name="lexical", run=lambda question: _search_once(lexical, question.text, 0)),
            Arm(name="dense", run=lambda question: _search_once(dense, question.text, 1)),
            Arm(name=BASELINE, run=lambda question: _run_controllers(fused, question.text)),
            Arm(name="controller, adaptive", run=lambda question: _run_controllers(self.hop_searches, question.text)),
            Arm(name=REFERENCE, run=lambda question: _run_controllers(self.reference_searches, question.text)),
        ]
        if self.has_steps:
            joined = {q.query_id: " ".join(_bare(step.template) for step in q.steps) for q in self.questions}
            arms.append(
                Arm(
                    name="sub-questions as one query, fused",
                    run=lambda question: _run_controllers(fused, joined[question.query_id]),
                )
            )
        chains = self._chains()
        return [*arms, *(Arm(name=name, run=self.runner(parts, VARIANTS[0])) for name, parts in chains.items())]

    def _chains(self) -> dict[str, ChainParts]:
        title = AskAgainWithTitle(self._titles)
        return {
            **(self._chains_of_steps() if self.has_steps else {}),
            **{
                f"chain: question + sub-answer, reader {name}": ChainParts(planner=ask_again_with_answer, reader=reader)
                for name, reader in self.readers.items()
            },
            "chain: question + sub-answer, reader none, 8 units a hop": ChainParts(
                planner=ask_again_with_answer, reader=self.readers["none"], units_a_hop=8
            ),
            "chain: question + sub-answer, reader none, reference": ChainParts(
                planner=ask_again_with_answer, reader=self.readers["none"], is_reference=True
            ),
            "chain: question + title": ChainParts(planner=title, reader=say_nothing),
            "chain: question + title, 8 units a hop": ChainParts(planner=title, reader=say_nothing, units_a_hop=8),
        }

    def _chains_of_steps(self) -> dict[str, ChainParts]:
        known = self._known(lambda question, number: self.gold_queries[question.query_id][number])
        bridging = self._known(_query_with_gold_answer, leave_out_last=True)
        apart = SubQuestionsApart({q.text: [_bare(step.template) for step in q.steps] for q in self.questions})
        return {
            APART: ChainParts(planner=apart, reader=say_nothing),
            "chain: template, gold": ChainParts(planner=self.template, reader=OracleReader(known)),
            "chain: template, gold if found": ChainParts(
                planner=self.template, reader=OracleReader(known, only_if_found=True)
            ),
            **{
                f"chain: template, reader {name}": ChainParts(planner=self.template, reader=reader)
                for name, reader in self.readers.items()
            },
            **{
                f"chain: template, reader {name}, reference": ChainParts(
                    planner=self.template, reader=self.readers[name], is_reference=True
                )
                for name in ("8", "none")
            },
            "chain: template, reader 8, 8 units a hop": ChainParts(
                planner=self.template, reader=self.readers["8"], units_a_hop=8
            ),
            "chain: question + sub-answer, gold": ChainParts(
                planner=ask_again_with_answer, reader=OracleReader(bridging)
            ),
        }

    def _known(
        self, query_of: Callable[[Question, int], str], *, leave_out_last: bool = False
    ) -> dict[str, tuple[str, str]]:
        """What an oracle knows, by query; the last answer is left out where it would be searched for."""
        return {
            query_of(question, number): (step.answers[0], step.supporting_id)
            for question in self.questions
            for number, step in enumerate(question.steps[: -1 if leave_out_last else None])
        }

    def chains_for_rules(self) -> dict[str, ChainParts]:
        """The chains whose stop rules are switched off in turn."""
        chains = self._chains()
        names = ["question + sub-answer, reader 8", "question + sub-answer, reader none", "question + title"]
        if self.has_steps:
            names = ["template, gold", "template, reader 8", "template, reader none", *names]
        return {name: chains[f"chain: {name}"] for name in names}

    def runner(self, parts: ChainParts, variant: Variant) -> Callable[[Question], Outcome]:
        """Compile a chain once and run it on a question."""
        searches = self.reference_searches if parts.is_reference else self.hop_searches
        chain = create_recursive_retrieval(
            searches[parts.units_a_hop],
            parts.planner,
            parts.reader,
            sufficiency=None if variant.ask_sufficiency else lambda _question, _trail: False,
            limits=ChainLimits(max_hops=MAX_HOPS, max_calls=ALL_CALLS, max_units=max(PACKETS), max_chars=ALL_CHARS),
            rules=variant.rules,
        ).compile()

        def run(question: Question) -> Outcome:
            limits = {"max_hops": variant.cap or question.cap, "max_calls": ALL_CALLS}
            request = {"query_id": question.query_id, "limits": limits}
            given = {"query": question.text, "request": request}
            result = ChainResult.from_result(chain.invoke(given, {"recursion_limit": RECURSION_LIMIT}))
            unit_ids = [document.id or "" for document in result.documents]
            return Outcome(
                packets={k: unit_ids[:k] for k in PACKETS},
                calls=result.usage.calls,
                dense_calls=result.usage.dense_calls,
                chain=result,
            )

        return run


def _bare(template: str) -> str:
    return " ".join(_PLACEHOLDER.sub(" ", template).split())


def _gold_queries(planner: TemplatePlanner, question: Question) -> list[str]:
    """The queries of a decomposition whose earlier sub-answers are the annotated ones."""
    trail: list[Hop] = []
    for number, step in enumerate(question.steps, 1):
        query = planner.plan(question.text, trail).query
        if query is None:
            raise RuntimeError(f"{question.query_id}: step {number} cannot be filled in")
        trail.append(Hop(number=number, query=query, sub_answer=step.answers[0]))
    return [hop.query for hop in trail]


def _query_with_gold_answer(question: Question, number: int) -> str:
    return question.text if number == 0 else f"{question.text} {question.steps[number - 1].answers[0]}"


def _search_once(searcher: Any, query: str, dense_calls: int) -> Outcome:
    return Outcome(
        packets={k: [row.unit_id for row in searcher.search(query, k)] for k in PACKETS},
        calls=1,
        dense_calls=dense_calls,
    )


def _run_controllers(graphs: Mapping[int, Any], query: str) -> Outcome:
    """One run for each packet size; the calls are those of the largest."""
    packets = {k: graph.invoke({"query": query})["packet"] for k, graph in graphs.items()}
    usage = packets[max(PACKETS)]["usage"]
    return Outcome(
        packets={k: [item["unit_id"] for item in packet["items"]] for k, packet in packets.items()},
        calls=usage["calls"],
        dense_calls=usage["dense_calls"],
    )


# Recall


def recall_rows(questions: Sequence[Question], outcomes: Mapping[str, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """Recall and cost of every system, and how far its recall is from the baseline's."""
    baseline = {k: _recalls(questions, outcomes[BASELINE], k) for k in PACKETS}
    rows = []
    for name, found in outcomes.items():
        row: dict[str, Any] = {"system": name}
        for k in PACKETS:
            recalls = _recalls(questions, found, k)
            row[f"recall_{k}"] = _mean(recalls)
            row[f"all_found_{k}"] = _mean(recalls == 1)
            row[f"units_{k}"] = _mean(len(outcome.packets[k]) for outcome in found)
            row[f"over_baseline_{k}"] = None if name == BASELINE else difference(recalls, baseline[k])
        rows.append(row | _costs(found))
    return rows


def recall_by_hops(questions: Sequence[Question], outcomes: Mapping[str, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """Recall at the larger packet, and the share with all found, by the question's number of hops."""
    hops = np.array([question.hops for question in questions])
    rows = []
    for name, found in outcomes.items():
        recalls = _recalls(questions, found, max(PACKETS))
        by_hops = {str(n): recalls[hops == n] for n in sorted(set(hops.tolist()))}
        rows.append(
            {
                "system": name,
                "by_hops": {n: {"recall": _mean(r), "all_found": _mean(r == 1)} for n, r in by_hops.items()},
            }
        )
    return rows


def difference_rows(questions: Sequence[Question], outcomes: Mapping[str, Sequence[Outcome]]) -> list[dict[str, Any]]:
    """The paired differences in recall that are stated besides those from the baseline."""
    return [
        {
            "system": mine,
            "less": other,
            **{
                f"recall_{k}": difference(
                    _recalls(questions, outcomes[mine], k), _recalls(questions, outcomes[other], k)
                )
                for k in PACKETS
            },
        }
        for mine, other in COMPARED
        if mine in outcomes and other in outcomes
    ]


def _recalls(questions: Sequence[Question], outcomes: Sequence[Outcome], k: int) -> np.ndarray:
    return np.array(
        [
            len(question.supporting.intersection(outcome.packets[k])) / len(question.supporting)
            for question, outcome in zip(questions, outcomes, strict=True)
        ]
    )


def _costs(outcomes: Sequence[Outcome]) -> dict[str, float]:
    return {
        "hops": _mean([len(outcome.chain.trail) if outcome.chain else 1 for outcome in outcomes]),
        "calls": _mean([outcome.calls for outcome in outcomes]),
        "dense_calls": _mean([outcome.dense_calls for outcome in outcomes]),
    }


def difference(mine: np.ndarray, other: np.ndarray) -> list[float]:
    """The mean paired difference, and its 95% bootstrap interval over questions."""
    differences = mine - other
    drawn = np.random.default_rng(SEED).integers(0, len(differences), (RESAMPLES, len(differences)))
    low, high = np.percentile(differences[drawn].mean(axis=1), [2.5, 97.5])
    return [_rounded(differences.mean()), _rounded(low), _rounded(high)]


def _mean(values: Iterable[Any]) -> float:
    return _rounded(np.mean(list(values)))


def _rounded(value: Any) -> float:
    return round(float(value), 4) + 0.0  # no negative zero


# Reliability


def reliability(systems: Systems, outcomes: Mapping[str, Sequence[Outcome]]) -> dict[str, Any]:
    """How reliable each hop is, alone and in the chain, and what a chain's reliability is by its length."""
    asked = {question.query_id: _ask_gold_queries(systems, question) for question in systems.questions}
    rows: list[dict[str, Any]] = []
    products: list[dict[str, Any]] = []
    for name in systems.readers:
        judged = [
            Judged(question=question, alone=asked[question.query_id][name], chain=_right_steps(question, outcome))
            for question, outcome in zip(systems.questions, outcomes[f"chain: template, reader {name}"], strict=True)
        ]
        rows += [{"reader": name, **row} for row in hop_rows(judged)]
        products += [{"reader": name, **row} for row in product_rows(judged)]
    return {"hop_reliability": rows, "chain_reliability": products}


@dataclass(frozen=True, kw_only=True)
class Alone:
    """One hop whose earlier sub-answers were the annotated ones."""

    found: bool
    answered: bool
    right: bool


@dataclass(frozen=True, kw_only=True)
class Judged:
    """One question: each hop alone, and which steps the chain itself got right."""

    question: Question
    alone: Sequence[Alone]
    chain: Sequence[bool]


def _ask_gold_queries(systems: Systems, question: Question) -> dict[str, list[Alone]]:
    """Search and read every hop with the annotated earlier sub-answers, by reader."""
    hops: dict[str, list[Alone]] = {name: [] for name in systems.readers}
    for query, step in zip(systems.gold_queries[question.query_id], question.steps, strict=True):
        documents = systems.hop_searches[HOP_UNITS].invoke({"query": query})["documents"]
        found = any(document.id == step.supporting_id for document in documents)
        for name, reader in systems.readers.items():
            answer = reader(query, documents)
            right = answer is not None and is_right(answer.text, step.answers)
            hops[name].append(Alone(found=found, answered=answer is not None, right=right))
    return hops


def _right_steps(question: Question, outcome: Outcome) -> list[bool]:
    """For each step, whether the chain made its hop and took the right sub-answer from it."""
    trail = {hop.number: hop.sub_answer for hop in outcome.chain.trail} if outcome.chain else {}
    return [is_right(trail.get(number), step.answers) for number, step in enumerate(question.steps, 1)]


def is_right(answer: str | None, expected: Iterable[str]) -> bool:
    """Whether an answer equals one of the expected ones after SQuAD's normalisation."""
    return answer is not None and _normalise(answer) in {_normalise(text) for text in expected}


def _normalise(text: str) -> str:
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def hop_rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """One row for each hop number."""
    rows = []
    for number in range(1, max(len(one.alone) for one in judged) + 1):
        having = [one for one in judged if len(one.alone) >= number]
        alone = [one.alone[number - 1] for one in having]
        reached = [one.chain[number - 1] for one in having if all(one.chain[: number - 1])]
        rows.append(
            {
                "hop": number,
                "questions": len(having),
                "passage_found": _mean(hop.found for hop in alone),
                "answered": _mean(hop.answered for hop in alone),
                "right": _mean(hop.right for hop in alone),
                "right_where_found": _mean_or_none([hop.right for hop in alone if hop.found]),
                "reached_with_all_right": len(reached),
                "right_after_right": _mean_or_none(reached),
            }
        )
    return rows


def _mean_or_none(values: Sequence[Any]) -> float | None:
    return _mean(values) if values else None


def product_rows(judged: Sequence[Judged]) -> list[dict[str, Any]]:
    """For each chain length, the product of its hops' reliabilities against the chains that were right throughout."""
    rows = []
    for hops in sorted({len(one.alone) for one in judged}):
        group = [one for one in judged if len(one.alone) == hops]
        by_place = list(zip(*(one.alone for one in group), strict=True))
        rows.append(
            {
                "hops": hops,
                "questions": len(group),
                "passage_product": _rounded(prod(np.mean([hop.found for hop in place]) for place in by_place)),
                "passages_all_found": _mean(all(hop.found for hop in one.alone) for one in group),
                "right_by_hop": [_mean(hop.right for hop in place) for place in by_place],
                "right_product": _rounded(prod(np.mean([hop.right for hop in place]) for place in by_place)),
                "chains_all_right": _mean(all(one.chain) for one in group),
                "final_right": _mean(one.chain[-1] for one in group),
            }
        )
    return rows


# Stop rules


def stop_rule_rows(systems: Systems, parts: ChainParts) -> list[dict[str, Any]]:
    """The chain under each setting of the rules, against itself under all of them."""
    has_test = hasattr(parts.planner, "is_complete")
    deepest = max(question.cap for question in systems.questions)
    rows: list[dict[str, Any]] = []
    base: np.ndarray | None = None
    for variant in VARIANTS:
        if (not has_test and variant.name == "sufficiency off") or (variant.cap == deepest == 3):
            continue
        run = systems.runner(parts, variant)
        outcomes = [run(question) for question in systems.questions]
        recalls = _recalls(systems.questions, outcomes, max(PACKETS))
        base = recalls if base is None else base
        rows.append(
            {
                "rules": variant.name,
                **_costs(outcomes),
                "recall_8": _mean(recalls),
                "over_all_rules": difference(recalls, base),
                **_endings(systems.questions, outcomes),
            }
        )
    return rows


def _endings(questions: Sequence[Question], outcomes: Sequence[Outcome]) -> dict[str, Any]:
    ended = [(question, out.chain) for question, out in zip(questions, outcomes, strict=True) if out.chain is not None]
    right = [is_right(_final_answer(chain), question.answers) for question, chain in ended]
    resolved = [chain.resolved for _, chain in ended]
    reasons = Counter(chain.stop_reason.value for _, chain in ended)
    return {
        "resolved": _mean(resolved),
        "final_right": _mean(right),
        "right_where_resolved": _mean_or_none([is_so for is_so, done in zip(right, resolved, strict=True) if done]),
        "stop_reasons": dict(sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))),
    }


def _final_answer(chain: ChainResult) -> str | None:
    return next((hop.sub_answer for hop in reversed(chain.trail) if hop.sub_answer is not None), None)


# Tables


def to_markdown(report: Mapping[str, Any]) -> str:
    """All tables, as Markdown."""
    limit = report["settings"]["limit"]
    parts = [
        "# Multi-hop questions",
        "",
        "Made by `python benchmarks/multihop.py`; its docstring says what is measured.",
    ]
    if limit is not None:
        parts.append(f"Cut down to {limit} questions and as small a corpus: these figures compare with nothing.")
    parts.append("")
    for name, found in report["collections"].items():
        hops = ", ".join(f"{count} of {number} hops" for number, count in found["by_hops"].items())
        parts += [f"## {name}", "", f"{found['questions']} questions ({hops}), {found['units']:,} units.", ""]
        parts += ["### Recall of the supporting passages", "", _recall_table(found["recall"]), ""]
        parts += ["Other paired differences:", "", _difference_table(found["differences"]), ""]
        if len(found["by_hops"]) > 1:
            parts += ["By the question's hops, at 8 units (recall / all found):", "", _hops_table(found), ""]
        if "hop_reliability" in found:
            parts += ["### Reliability of the hops (`template` chains)", "", _hop_table(found["hop_reliability"]), ""]
            parts += ["How it multiplies:", "", _product_table(found["chain_reliability"]), ""]
        for chain, rows in found["stop_rules"].items():
            parts += [f"### Stop rules: {chain}", "", _rules_table(rows), ""]
    return "\n".join(parts).rstrip() + "\n"


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(value: Sequence[float] | None) -> str:
    return "-" if value is None else f"{value[0]:+.3f} [{value[1]:+.3f}, {value[2]:+.3f}]"


def _recall_table(rows: Sequence[Mapping[str, Any]]) -> str:
    header = ["system", "recall@4", "all@4", f"@4 less `{BASELINE}`", "recall@8", "all@8", "@8 less it"]
    return _table(
        [*header, "units@8", "hops", "calls", "dense"],
        (
            [
                row["system"],
                *(
                    text
                    for k in PACKETS
                    for text in (
                        _share(row[f"recall_{k}"]),
                        _share(row[f"all_found_{k}"]),
                        _interval(row[f"over_baseline_{k}"]),
                    )
                ),
                *(f"{row[name]:.2f}" for name in ("units_8", "hops", "calls", "dense_calls")),
            ]
            for row in rows
        ),
    )


def _difference_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        ["system", "less", "recall@4", "recall@8"],
        ([row["system"], row["less"], *(_interval(row[f"recall_{k}"]) for k in PACKETS)] for row in rows),
    )


def _hops_table(found: Mapping[str, Any]) -> str:
    return _table(
        ["system", *(f"{hops} hops" for hops in found["by_hops"])],
        (
            [
                row["system"],
                *(f"{_share(one['recall'])} / {_share(one['all_found'])}" for one in row["by_hops"].values()),
            ]
            for row in found["recall_by_hops"]
        ),
    )


def _hop_table(rows: Sequence[Mapping[str, Any]]) -> str:
    given = "given gold sub-answers before"
    return _table(
        [
            "reader threshold",
            "hop",
            "questions",
            f"passage found, {given}",
            f"answered, {given}",
            f"right, {given}",
            "right where found",
            "in the chain: right, those before being right",
            "of",
        ],
        (
            [
                row["reader"],
                row["hop"],
                row["questions"],
                *(_share(row[name]) for name in ("passage_found", "answered", "right", "right_where_found")),
                _share(row["right_after_right"]),
                row["reached_with_all_right"],
            ]
            for row in rows
        ),
    )


def _product_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        [
            "reader threshold",
            "hops",
            "questions",
            "passage: product",
            "all found",
            "right: hop by hop",
            "product",
            "whole chains right",
            "last sub-answer right",
        ],
        (
            [
                row["reader"],
                row["hops"],
                row["questions"],
                _share(row["passage_product"]),
                _share(row["passages_all_found"]),
                " x ".join(map(_share, row["right_by_hop"])),
                *(_share(row[name]) for name in ("right_product", "chains_all_right", "final_right")),
            ]
            for row in rows
        ),
    )


def _rules_table(rows: Sequence[Mapping[str, Any]]) -> str:
    return _table(
        [
            "rules",
            "hops",
            "calls",
            "dense",
            "recall@8",
            "less `all rules`",
            "resolved",
            "final answer right",
            "right where resolved",
            "stop reasons",
        ],
        (
            [
                row["rules"],
                *(f"{row[name]:.2f}" for name in ("hops", "calls", "dense_calls")),
                _share(row["recall_8"]),
                _interval(row["over_all_rules"]),
                *(_share(row[name]) for name in ("resolved", "final_right", "right_where_resolved")),
                ", ".join(f"{reason} {count}" for reason, count in row["stop_reasons"].items()),
            ]
            for row in rows
        ),
    )


if __name__ == "__main__":
    main()
