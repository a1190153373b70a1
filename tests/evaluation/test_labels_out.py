"""No decision can be made by the judgements: there is nothing to read, and nothing reads them before the last run."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType, ModuleType
from typing import Any

import pytest
from langgraph.config import get_config
from langgraph.runtime import get_runtime
from small_world import MIXED, query_text, scripted

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment
from bounded_retrieval.evaluation import experiment as experiment_module
from bounded_retrieval.evaluation.collections import Collection, Query
from bounded_retrieval.evaluation.experiment import Experiment, run_experiment
from bounded_retrieval.evaluation.thresholds import draw_slices
from bounded_retrieval.evaluation.variants import Variant, read_variants
from bounded_retrieval.policies.coverage import TermCoverage

BASIC = ("fixed_lexical", "fixed_dense", "always_continue", "reference")
FIRST_GRADE = 770_001
OURS = "bounded_retrieval"


def marked(collection: Collection) -> Collection:
    """The collection with a grade for each judgement that no other number of a run could be."""
    grades = iter(range(FIRST_GRADE, FIRST_GRADE + 1000))
    marked = {query_id: {unit: next(grades) for unit in units} for query_id, units in collection.judgements.items()}
    return replace(collection, judgements=marked)


def is_grade(value: object) -> bool:
    """Whether it can be nothing but a grade of a marked collection."""
    return isinstance(value, int) and FIRST_GRADE <= value < FIRST_GRADE + 1000


def neighbours(thing: object) -> list[object]:
    """What an object holds: fields, items, what a function is closed over and its module's globals, where it is ours."""
    if isinstance(thing, (str, bytes, int, float, FrameType, type(None))):
        return []
    if isinstance(thing, FunctionType):
        own = thing.__module__.startswith(OURS)
        return [
            thing.__closure__,
            thing.__defaults__,
            thing.__kwdefaults__,
            thing.__dict__,
            thing.__globals__ if own else None,
        ]
    if isinstance(thing, (ModuleType, type)):
        own = (thing.__name__ if isinstance(thing, ModuleType) else thing.__module__).startswith(OURS)
        return list(vars(thing).values()) if own else []
    return gc.get_referents(thing)


def everything_from(*roots: object) -> Iterator[object]:
    """All objects within reach, each once."""
    seen: set[int] = set()
    waiting = list(roots)
    while waiting:
        thing = waiting.pop()
        if id(thing) not in seen:
            seen.add(id(thing))
            yield thing
            waiting.extend(neighbours(thing))


@dataclass(eq=False)
class Spy:
    """An assessor that looks for grades in whatever it can reach, the call stack apart, and else behaves."""

    name: str = "spy"
    default_threshold: float = 0.8
    is_pure: bool = True
    looked: list[int] = field(default_factory=list)
    grades: list[int] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {}

    def assess(self, given: AssessmentInput) -> CoverageAssessment:
        if len(self.looked) < 3:
            self._look(given)
        return TermCoverage().assess(given)

    def _look(self, given: AssessmentInput) -> None:
        modules = [module for name, module in sys.modules.items() if name.startswith(OURS)]
        within = list(everything_from(given, get_config(), get_runtime(), *modules))
        self.looked.append(len(within))
        self.grades.extend(value for value in within if is_grade(value))
        self.kinds |= {type(value).__name__ for value in within}


def spied(world: Mapping[str, Any]) -> Spy:
    """A spy after an experiment that it took part in."""
    spy = Spy()
    run_experiment(**world, variants=(Variant(name="spying", policy="adaptive", assessor=spy),), live=1)
    return spy


def test_an_assessor_finds_no_grade_in_anything_within_its_reach() -> None:
    """Not in what it is given, the graph's configuration, the searchers, closures, or the package's globals."""
    world = scripted(MIXED)
    spy = spied(world | {"collection": marked(world["collection"])})
    assert len(spy.looked) == 3
    assert min(spy.looked) > 1000
    assert {"AssessmentInput", "CachedSearcher", "Answering", "Document"} <= spy.kinds
    assert spy.grades == []


@pytest.mark.parametrize("place", ["searcher", "closure", "globals"])
def test_a_grade_that_were_within_reach_would_be_found(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search itself works: judgements kept by a searcher, by a function of it, or by a module."""
    world = scripted(MIXED)
    judgements = marked(world["collection"]).judgements
    if place == "searcher":
        world["dense"].notes = judgements
    elif place == "closure":
        whole = world["lexical"].search
        world["lexical"].search = lambda *asked: whole(*asked) if judgements else []
    else:
        monkeypatch.setattr(experiment_module, "KEPT", judgements, raising=False)
    assert any(is_grade(grade) for grade in spied(world).grades)


def recorded(world: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Experiment, list[str]]:
    """An experiment, and the packet and trace of each of its runs as JSON, in order."""
    runs: list[str] = []
    ask = experiment_module._ask

    def listening(*arguments: Any) -> dict[str, Any]:
        result = ask(*arguments)
        runs.append(json.dumps([result["packet"], result["trace"]]))
        return result

    with monkeypatch.context() as patch:
        patch.setattr(experiment_module, "_ask", listening)
        return run_experiment(**world, variants=read_variants([*BASIC, "adaptive"]), live=2), runs


def test_other_judgements_change_measures_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every packet, trace and decision stays as it was when another unit is relevant."""
    world = scripted(MIXED)
    swapped = {
        query_id: {"b" + unit[1:]: 3 for unit in units} for query_id, units in world["collection"].judgements.items()
    }
    one, first = recorded(world, monkeypatch)
    other, second = recorded(world | {"collection": replace(world["collection"], judgements=swapped)}, monkeypatch)
    assert len(first) > 60
    assert first == second
    assert one.reached == other.reached
    bare = [
        {name: {key: replace(run, measures={}) for key, run in runs.items()} for name, runs in found.outcomes.items()}
        for found in (one, other)
    ]
    assert bare[0] == bare[1]
    assert one.outcomes["reference"]["q000"].measures != other.outcomes["reference"]["q000"].measures


class Sealed(Mapping[str, Mapping[str, int]]):
    """Judgements that may be read only once they are opened."""

    def __init__(self, judgements: Mapping[str, Mapping[str, int]]) -> None:
        self._judgements = judgements
        self.is_open = False
        self.readings = 0

    def _read(self) -> Mapping[str, Mapping[str, int]]:
        assert self.is_open, "judgements read before the last run"
        self.readings += 1
        return self._judgements

    def __getitem__(self, query_id: str) -> Mapping[str, int]:
        return self._read()[query_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


class Choosing(Collection):
    """Opens its judgements to choose the queries, and closes them again."""

    def judged(self) -> tuple[Query, ...]:
        sealed: Any = self.judgements
        sealed.is_open = True
        chosen = super().judged()
        sealed.is_open = False
        return chosen


@pytest.mark.parametrize("live", [0, 3])
def test_judgements_are_read_only_after_the_last_run(live: int) -> None:
    """But for the choice of the queries that have a relevant unit; a live check runs before that, too."""
    world = scripted(MIXED)
    held = world["collection"]
    sealed = Sealed(held.judgements)
    fields = {
        "name": held.name,
        "kind": held.kind,
        "split": held.split,
        "queries": held.queries,
        "has_documents": False,
    }
    last = "checking live" if live else "deciding"
    while_running: list[int] = []

    def watch(stage: str, done: int, total: int) -> None:
        while_running.append(sealed.readings)
        sealed.is_open = stage == last and done == total

    collection = Choosing(judgements=sealed, **fields)
    found = run_experiment(
        **world | {"collection": collection}, variants=read_variants(BASIC), live=live, progress=watch
    )
    assert len(set(while_running)) == 1
    assert sealed.readings > while_running[0]
    assert found.outcomes["reference"]["q000"].measures["ndcg@4"] == 1


def test_the_queries_can_be_given_and_then_no_judgement_is_read_to_choose_them() -> None:
    """Slices are drawn by ids and texts; here they are all the queries."""
    world = scripted(MIXED)
    sealed = Sealed(world["collection"].judgements)

    def watch(stage: str, done: int, total: int) -> None:
        sealed.is_open = stage == "deciding" and done == total

    collection = replace(world["collection"], judgements=sealed)
    run_experiment(
        **world | {"collection": collection},
        variants=read_variants(BASIC),
        queries=world["collection"].queries,
        live=0,
        progress=watch,
    )
    assert sealed.readings


def test_which_slice_a_query_falls_into_depends_on_no_grade() -> None:
    """As long as it has a relevant unit at all."""
    collection = scripted(MIXED * 5)["collection"]
    others = {query_id: dict.fromkeys(["x", "y"], 2) for query_id in collection.judgements}
    shares = {"selection": 0.5, "certification": 0.5}
    assert draw_slices(collection, shares, 0) == draw_slices(replace(collection, judgements=others), shares, 0)
    assert query_text(0) in {query.text for part in draw_slices(collection, shares, 0).values() for query in part}
