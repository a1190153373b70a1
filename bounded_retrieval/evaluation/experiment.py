"""Run policies side by side over a collection: every search is made once, every decision by the code that ships."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.ports import UnitSource
from bounded_retrieval.contracts.trace import CoverageAssessed, DecisionTrace, EvidencePacked
from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation.caching import cached
from bounded_retrieval.evaluation.collections import Collection, Query
from bounded_retrieval.evaluation.measures import measure, measure_packets
from bounded_retrieval.evaluation.variants import Variant, default_variants

LIVE_QUERIES = 40
"""Queries, evenly spread over the collection, that are run again over the real searchers."""

T = TypeVar("T")

Answers = Mapping[str, Mapping[str, Sequence[Candidate]]]
"""By query id and channel, the rows that the real searcher gave."""

Progress = Callable[[str, int, int], None]
"""Called with the stage (``searching``, ``deciding``, ``checking live``), the runs done and the runs in all."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was inferred after the first search, and what followed from it."""

    coverage: float
    threshold: float
    sufficient: bool
    reasons: tuple[str, ...]
    missing_terms: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One query under one variant.

    Attributes:
        ranking: the fused ranking of every unit that was found, best first.
        packed: what the packet holds of it, in order.
        usage: what the run was charged, by name.
        decision: none where no assessor was asked, or where it failed.
        matched: of each observed unit, the query terms and identifiers that it holds.
        measures: the measures of `measure` and `measure_packets`.
    """

    ranking: tuple[str, ...]
    packed: tuple[str, ...]
    stop_reason: str
    usage: Mapping[str, int]
    decision: Decision | None
    matched: Mapping[str, tuple[str, ...]]
    measures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Reached:
    """How far an assessor's coverage of one query reached, and whether a threshold of 0 would have stopped there."""

    coverage: float
    may_stop: bool

    def stops_at(self, threshold: float) -> bool:
        """Whether the run stops after its first search at this threshold."""
        return self.may_stop and self.coverage >= threshold


@dataclass(frozen=True, kw_only=True)
class LiveCheck:
    """The cached and the live runs of some queries compared: packets and traces must be equal."""

    queries: int
    runs: int
    different: tuple[tuple[str, str], ...]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that was observed; `summarise` draws the conclusions.

    Attributes:
        queries: those that were run, in file order: all with a relevant unit.
        outcomes: by variant and query id; both arms of every adaptive variant are among the variants.
        reached: by adaptive variant and query id, for thresholds other than the one it ran at.
        answers: per query id and channel, the rows that the real searcher gave.
        live: whether real searchers gave the same packets.
        seconds: per stage, wall-clock; and per variant the latencies of the live runs in milliseconds.
    """

    collection: Collection
    budget: Budget
    variants: tuple[Variant, ...]
    queries: tuple[Query, ...]
    outcomes: Mapping[str, Mapping[str, Outcome]]
    reached: Mapping[str, Mapping[str, Reached]]
    answers: Answers
    live: LiveCheck
    seconds: Mapping[str, float]
    latencies: Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class _Laboratory:
    """The searchers that an experiment runs over, real or cached, and what graphs are built with."""

    lexical: Any
    dense: Any
    units: UnitSource | None
    budget: Budget

    def compiled(self, variant: Variant) -> Any:
        return variant.build(self.lexical, self.dense, self.units, self.budget).compile(name=variant.name)

    def answers(self, queries: Sequence[Query]) -> Answers:
        """What cached searchers keep of each query."""
        return {q.query_id: {"lexical": self.lexical.rows(q.text), "dense": self.dense.rows(q.text)} for q in queries}


def run_experiment(  # noqa: PLR0913 - all but the parts are keywords with defaults
    collection: Collection,
    lexical: Any,
    dense: Any,
    units: UnitSource | None = None,
    *,
    variants: Sequence[Variant] | None = None,
    budget: Budget | None = None,
    queries: Sequence[Query] | None = None,
    live: int = LIVE_QUERIES,
    progress: Progress | None = None,
    retrieved: Callable[[Answers], None] | None = None,
) -> Experiment:
    """Run every variant over every query that has a relevant unit.

    Each channel is asked once for each query, for as many rows as the greediest variant may take; the graphs then run
    over those answers. The judgements are read only after all runs have ended.

    Args:
        collection: what is asked, and what of it is relevant.
        lexical: a synchronous searcher over the collection's units.
        dense: likewise.
        units: where the recheck reads current text.
        variants: what to compare; by default `default_variants`. The arms of adaptive ones are added.
        budget: limits of every run; by default the reference limits.
        queries: those of the collection to run, with a relevant unit each; by default all that have one.
        live: how many queries to run again over the real searchers; 0 for none.
        progress: told how far it is.
        retrieved: given what both channels returned, before any policy is run.

    Raises:
        RequestError: a name stands for two variants, or the budget has a deadline, which no two runs would meet alike.
        SourceError: no query has a relevant unit.
    """
    tell = progress or (lambda _stage, _done, _total: None)
    limits = budget or Budget()
    chosen = _with_arms(default_variants(limits) if variants is None else variants, limits)
    queries = _some(collection, queries)
    real = _Laboratory(lexical=lexical, dense=dense, units=units, budget=limits)
    watch = _Watch()
    kept = _retrieve(real, queries, limits.max_rows, tell)
    answers = kept.answers(queries)
    watch.stop("retrieval")
    if retrieved is not None:
        retrieved(answers)
    raw, reached = _decide(kept, chosen, queries, tell)
    watch.stop("policies")
    checked, latencies = _check_live(real, kept, chosen, _spread(queries, live), tell)
    watch.stop("live")
    return Experiment(
        collection=collection,
        budget=limits,
        variants=chosen,
        queries=queries,
        outcomes=_measured(collection, raw),
        reached=reached,
        answers=answers,
        live=checked,
        seconds=watch.seconds,
        latencies=latencies,
    )


def _some(collection: Collection, queries: Sequence[Query] | None) -> tuple[Query, ...]:
    found = tuple(collection.judged() if queries is None else queries)
    if not found:
        raise SourceError(f"{collection.name}: no query has a relevant unit")
    return found


def _decide(
    kept: _Laboratory, variants: Sequence[Variant], queries: Sequence[Query], tell: Progress
) -> tuple[dict[str, dict[str, Outcome]], dict[str, dict[str, Reached]]]:
    """Every variant's runs, without measures, and what every adaptive one reached."""
    adaptive = [variant for variant in variants if variant.policy == "adaptive"]
    runs = len(set(_first_alike(variants).values())) + len(set(_first_alike(adaptive).values()))
    steps = _Steps(total=runs * len(queries), tell=tell)
    raw = _once(variants, lambda variant: _run(kept.compiled(variant), queries, steps))
    return raw, _once(adaptive, lambda variant: _reach(kept, variant, queries, steps))


def _once(variants: Sequence[Variant], make: Callable[[Variant], T]) -> dict[str, T]:
    """What is made of each variant, by name; once for those that differ in nothing but their names."""
    first = _first_alike(variants)
    made = {variant.name: make(variant) for variant in variants if first[variant.name] == variant.name}
    return {name: made[alike] for name, alike in first.items()}


def _first_alike(variants: Sequence[Variant]) -> dict[str, str]:
    """By name, the first variant that runs alike. Compared, not hashed: an assessor of the caller's need not hash."""
    unnamed = [variant.unnamed() for variant in variants]
    return {variant.name: variants[unnamed.index(own)].name for variant, own in zip(variants, unnamed, strict=True)}


class _Watch:
    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def stop(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage], self._since = round(now - self._since, 3), now


@dataclass(kw_only=True)
class _Steps:
    """Counts runs over all variants."""

    total: int
    tell: Progress
    done: int = 0

    def step(self) -> None:
        self.done += 1
        self.tell("deciding", self.done, self.total)


def _with_arms(variants: Sequence[Variant], limits: Budget) -> tuple[Variant, ...]:
    if limits.deadline_ms is not None:
        raise RequestError(f"deadline_ms: an experiment has none (got {limits.deadline_ms})")
    named: dict[str, Variant] = {}
    arms = [arm for v in variants if v.policy == "adaptive" for arm in (v.stop_arm(), v.continue_arm())]
    for variant in (*variants, *arms):
        known = named.setdefault(variant.name, variant)
        if not known.is_like(variant, limits):
            raise RequestError(f"policies: {variant.name!r} stands for two policies")
    return tuple(named.values())


def _retrieve(real: _Laboratory, queries: Sequence[Query], depth: int, tell: Progress) -> _Laboratory:
    channels = [cached(real.lexical, depth), cached(real.dense, depth)]
    for done, query in enumerate(queries, 1):
        for channel in channels:
            channel.rows(query.text)
        tell("searching", done, len(queries))
    return replace(real, lexical=channels[0], dense=channels[1])


def _run(
    graph: Any, queries: Sequence[Query], steps: _Steps, settings: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    for query in queries:
        outcomes[query.query_id] = _observe(_ask(graph, query, settings))
        steps.step()
    return outcomes


def _ask(graph: Any, query: Query, settings: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any]:
    request = {"query_id": query.query_id, **settings}
    result: dict[str, Any] = graph.invoke({"query": query.text, "request": request})
    return result


def _observe(result: dict[str, Any]) -> Outcome:
    trace = DecisionTrace.from_result(result)
    packed = trace.events[-1]
    if not isinstance(packed, EvidencePacked):
        raise TypeError(f"a run ends in evidence_packed (got {packed.event})")
    observations = trace.decisions[-1].observations if trace.decisions else ()
    return Outcome(
        ranking=tuple(ranked.unit_id for ranked in packed.ranking),
        packed=packed.packed,
        stop_reason=packed.stop_reason.value,
        usage=packed.usage.model_dump(),
        decision=_decision(trace.decisions[0]) if trace.decisions else None,
        matched={o.unit_id: (*o.matched_terms, *o.matched_identifiers) for o in observations},
    )


def _decision(event: CoverageAssessed) -> Decision | None:
    found = event.assessment
    if found is None:
        return None
    return Decision(
        coverage=found.coverage,
        threshold=found.threshold,
        sufficient=found.sufficient,
        reasons=found.reasons,
        missing_terms=found.missing_terms,
    )


def _reach(kept: _Laboratory, variant: Variant, queries: Sequence[Query], steps: _Steps) -> dict[str, Reached]:
    # At threshold 0 only a veto (a missing identifier, no unit that fits) keeps an assessor from stopping.
    outcomes = _run(kept.compiled(variant), queries, steps, {"threshold": 0.0})
    return {
        query_id: Reached(
            coverage=0.0 if outcome.decision is None else outcome.decision.coverage,
            may_stop=outcome.decision is not None and outcome.decision.sufficient,
        )
        for query_id, outcome in outcomes.items()
    }


def _spread(queries: Sequence[Query], most: int) -> tuple[Query, ...]:
    if most >= len(queries):
        return tuple(queries)
    return tuple(queries[place * len(queries) // most] for place in range(most))


def _check_live(
    real: _Laboratory, kept: _Laboratory, variants: Sequence[Variant], queries: Sequence[Query], tell: Progress
) -> tuple[LiveCheck, dict[str, tuple[float, ...]]]:
    pairs = {variant.name: (real.compiled(variant), kept.compiled(variant)) for variant in variants}
    latencies: dict[str, list[float]] = {name: [] for name in pairs}
    different: list[tuple[str, str]] = []
    for done, query in enumerate(queries, 1):
        # Variants by turns, so that what else the machine does falls on all of them alike.
        for name, (live, replayed) in pairs.items():
            # Each run pays for its own query's vector, as a user's does.
            getattr(real.dense, "forget_queries", lambda: None)()
            started = time.perf_counter()
            answer = _ask(live, query)
            latencies[name].append((time.perf_counter() - started) * 1000)
            if _public(answer) != _public(_ask(replayed, query)):
                different.append((name, query.query_id))
        tell("checking live", done, len(queries))
    check = LiveCheck(queries=len(queries), runs=len(queries) * len(pairs), different=tuple(different))
    return check, {name: tuple(values) for name, values in latencies.items()}


def _public(result: dict[str, Any]) -> tuple[Any, Any]:
    return result["packet"], result["trace"]


def _measured(collection: Collection, raw: Mapping[str, Mapping[str, Outcome]]) -> dict[str, dict[str, Outcome]]:
    measured: dict[str, dict[str, Outcome]] = {}
    for name, outcomes in raw.items():
        ranked = measure(collection.judgements, {query_id: o.ranking for query_id, o in outcomes.items()})
        packed = measure_packets(collection.judgements, {query_id: o.packed for query_id, o in outcomes.items()})
        measured[name] = {
            query_id: replace(outcome, measures=ranked[query_id] | packed[query_id])
            for query_id, outcome in outcomes.items()
        }
    return measured
