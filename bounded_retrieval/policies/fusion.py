"""Fuse the channels' rankings into one."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from typing_extensions import TypeIs

from bounded_retrieval.contracts.candidate import Candidate, Channel
from bounded_retrieval.contracts.packet import ChannelResult
from bounded_retrieval.contracts.trace import UnitsScored
from bounded_retrieval.errors import ConfigurationError

CHANNEL_ORDER: tuple[Channel, ...] = ("lexical", "dense")

Rankings = Mapping[Channel, Sequence[Candidate]]

FEW_TERMS, MANY_TERMS = 2, 12
SHORT_QUERY_WEIGHT, LONG_QUERY_WEIGHT = 0.7, 0.3
"""Weight of the dense channel for a query of so few terms or fewer, and of so many or more; evenly in between."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """What both channels say of the observed units.

    Attributes:
        lexical, dense: the raw score of each observed unit that the channel can score, returned by it or not.
        attainable: what no unit's lexical score for the query exceeds; none where the searcher does not say.
        terms: how many terms of the query were looked for; none where that is not known.
    """

    lexical: Mapping[str, float]
    dense: Mapping[str, float]
    attainable: float | None = None
    terms: int | None = None


@dataclass(frozen=True, kw_only=True)
class FusedUnit:
    """One unit of the fused ranking.

    Attributes:
        score: what units are ordered by: the sum of the contributions.
        channels: where each channel that returned it placed it.
        contributions: what each channel added to the score.
    """

    unit_id: str
    score: float
    channels: Mapping[Channel, ChannelResult]
    contributions: Mapping[Channel, float] = field(default_factory=dict)


class RankFusion(Protocol):
    """Turns per-channel rankings (ranks from 1, no unit twice in a channel) into one ranking, best first."""

    @property
    def name(self) -> str:
        """Stands in the trace."""
        ...

    def fuse(self, rankings: Rankings) -> list[FusedUnit]:
        """Rank every unit that any channel returned, each exactly once."""
        ...


class ScoringFusion(Protocol):
    """A fusion with ``uses_scores = True``: it is called with the channels' scores too.

    Where those cannot be had, `ReciprocalRankFusion` takes its place for the run.
    """

    @property
    def name(self) -> str:
        """Stands in the trace."""
        ...

    @property
    def uses_scores(self) -> bool:
        """True."""
        ...

    def fuse(self, rankings: Rankings, scores: Scores) -> list[FusedUnit]:
        """Rank every unit that any channel returned, each exactly once."""
        ...


Fusion = RankFusion | ScoringFusion


@dataclass(frozen=True, kw_only=True)
class ReciprocalRankFusion:
    """Reciprocal rank fusion: the sum over channels of ``1 / (k + rank)``.

    Source: Cormack, Clarke and Büttcher, SIGIR 2009, who use k = 60. Ties go to the better best rank, then to the
    channel that gave it (lexical first), then to the smaller unit id.

    Attributes:
        k: at least 0; the larger, the less the first ranks stand out from the later ones.
    """

    name: ClassVar[str] = "rrf"
    k: int = 60

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ConfigurationError(f"k: at least 0 (got {self.k})")

    def fuse(self, rankings: Rankings) -> list[FusedUnit]:
        """Rank every unit that any channel returned."""
        gained = {
            channel: {candidate.unit_id: 1 / (self.k + candidate.rank) for candidate in candidates}
            for channel, candidates in rankings.items()
        }
        return _add_up(rankings, gained)


@dataclass(frozen=True, kw_only=True)
class ScoreFusion:
    """Weighted sum of both channels' scores over every observed unit, whichever channel returned it.

    Lexical scores count as shares of the highest that a unit could have for the query (where that is not known, of the
    highest observed one), and as 0 below 0: where hardly a word of the query was found, they hardly count. Dense scores
    are similarities of at most 1, and count from the lowest observed one (0) to 1 (1), so that those of an embedding
    whose similarities crowd between .7 and .9 count as much as others; where one exceeds 1, the highest observed one
    takes the place of 1. A unit that a channel cannot score adds 0. Ties as in `ReciprocalRankFusion`.
    Compare Bruch, Gai and Ingber, "An Analysis of Fusion Functions for Hybrid Retrieval" (arXiv 2210.11934), who also
    find a convex combination of scores ahead of reciprocal ranks.

    Attributes:
        dense_weight: weight of the dense channel, 0 to 1; the lexical one has the rest. If none, the more terms a query
            has to be found by, the less the dense channel weighs: .7 up to two terms, .04 less for each further one,
            .3 from twelve on; .5 where the number of terms is not known.
    """

    name: ClassVar[str] = "score_fusion"
    uses_scores: ClassVar[bool] = True
    dense_weight: float | None = None

    def __post_init__(self) -> None:
        weight = self.dense_weight
        if weight is not None and not (isinstance(weight, int | float) and 0 <= weight <= 1):
            raise ConfigurationError(f"dense_weight: 0 to 1 (got {weight!r})")

    def fuse(self, rankings: Rankings, scores: Scores) -> list[FusedUnit]:
        """Rank every unit that any channel returned."""
        observed = dict.fromkeys(c.unit_id for channel in CHANNEL_ORDER for c in rankings.get(channel, ()))
        lexical = {unit_id: max(0.0, scores.lexical.get(unit_id, 0.0)) for unit_id in observed}
        highest = max([*lexical.values(), scores.attainable or 0.0]) or 1.0
        dense = _spread({unit_id: scores.dense[unit_id] for unit_id in observed if unit_id in scores.dense})
        weight = self.weight_for(scores.terms)
        return _add_up(
            rankings,
            {
                "lexical": {unit_id: (1 - weight) * (score / highest) for unit_id, score in lexical.items()},
                "dense": {unit_id: weight * dense.get(unit_id, 0.0) for unit_id in observed},
            },
        )

    def weight_for(self, terms: int | None) -> float:
        """The weight of the dense channel, 0 to 1, for a query of so many terms."""
        if self.dense_weight is not None:
            return self.dense_weight
        if terms is None:
            return (SHORT_QUERY_WEIGHT + LONG_QUERY_WEIGHT) / 2
        many = min(1.0, max(0.0, (terms - FEW_TERMS) / (MANY_TERMS - FEW_TERMS)))
        # Two decimals are all that there is; rounded, so that equal queries weigh alike to the last bit everywhere.
        return round(SHORT_QUERY_WEIGHT + (LONG_QUERY_WEIGHT - SHORT_QUERY_WEIGHT) * many, 2)


def _spread(similarities: Mapping[str, float]) -> dict[str, float]:
    """Similarities from 0 for the lowest to 1 for 1, or for the highest where that is above 1."""
    # Halves, so that the distance of two huge scores stays finite.
    halves = {unit_id: each / 2 for unit_id, each in similarities.items()}
    lowest, most = min(halves.values(), default=0.0), max([*halves.values(), 0.5])
    return {unit_id: (each - lowest) / ((most - lowest) or 1.0) for unit_id, each in halves.items()}


@dataclass(frozen=True, kw_only=True)
class Fused:
    """A fused ranking, the name of what made it, and a note where something took the fusion's place that need not have.

    Attributes:
        notes: ``fused_by_rank`` where the fusion failed, or its answer was no ranking of the units given.
    """

    ranking: list[FusedUnit]
    by: str
    notes: tuple[str, ...] = ()


def fuse_found(
    fusion: Fusion,
    rankings: Rankings,
    scores: Scores | None,
    on_failure: Callable[[Exception], None] = lambda _: None,
) -> Fused:
    """Fuse with what there is: a fusion of scores gives way to reciprocal ranks where the run has no scores.

    So it does where only one channel returned anything: the order is that channel's own then. Any fusion gives way to
    them where it raises, where a score or contribution of its answer is no finite number, and where a unit stands in
    its answer twice, not at all, or without having been returned; ``on_failure`` is told what it raised.
    """
    given: tuple[Any, ...] = (rankings,)
    if needs_scores(fusion):
        if scores is None or len(rankings) < len(CHANNEL_ORDER):
            return _by_rank(rankings)
        given = (rankings, scores)
    try:
        ranking = list(fusion.fuse(*given))
        is_whole = _is_ranking(ranking, rankings)
    except Exception as error:  # noqa: BLE001 - whatever a fusion raises, the units that were found are still there
        on_failure(error)
        is_whole = False
    return Fused(ranking=ranking, by=fusion.name) if is_whole else _by_rank(rankings, "fused_by_rank")


def _by_rank(rankings: Rankings, *notes: str) -> Fused:
    stand_in = ReciprocalRankFusion()
    return Fused(ranking=stand_in.fuse(rankings), by=stand_in.name, notes=notes)


def _is_ranking(ranking: Sequence[FusedUnit], rankings: Rankings) -> bool:
    """Whether an answer ranks every returned unit exactly once, by finite numbers, with places and parts by channel."""
    ids = [unit.unit_id for unit in ranking]
    returned = {candidate.unit_id for candidates in rankings.values() for candidate in candidates}
    # Nothing can be ordered by any other number, and JSON, so the trace, has none.
    numbers = (number for unit in ranking for number in (unit.score, *unit.contributions.values()))
    by_channel = all({*unit.channels, *unit.contributions} <= set(CHANNEL_ORDER) for unit in ranking)
    placed = all(isinstance(place, ChannelResult) for unit in ranking for place in unit.channels.values())
    is_whole = len(ids) == len(returned) and set(ids) == returned
    return is_whole and by_channel and placed and all(map(math.isfinite, numbers))


def needs_scores(fusion: Fusion) -> TypeIs[ScoringFusion]:
    """Whether a fusion is called with the channels' scores."""
    return bool(getattr(fusion, "uses_scores", False))


def unscored(rankings: Rankings) -> dict[Channel, list[str]]:
    """Per channel, the units that only another channel returned: those whose score would have to be looked up."""
    returned = {channel: {c.unit_id for c in rankings.get(channel, ())} for channel in CHANNEL_ORDER}
    everything = dict.fromkeys(c.unit_id for channel in CHANNEL_ORDER for c in rankings.get(channel, ()))
    return {channel: [u for u in everything if u not in returned[channel]] for channel in CHANNEL_ORDER}


def returned_scores(rankings: Rankings) -> dict[Channel, dict[str, float]] | None:
    """The scores that came with the rows; none where some row has none."""
    scores: dict[Channel, dict[str, float]] = {}
    for channel in CHANNEL_ORDER:
        scores[channel] = {}
        for candidate in rankings.get(channel, ()):
            if candidate.score is None:
                return None
            scores[channel][candidate.unit_id] = candidate.score
    return scores


def scores_in(rankings: Rankings, scored: UnitsScored | None, terms: int | None = None) -> Scores | None:
    """Every channel's scores of the observed units: those of its rows and those looked up; none without either.

    ``terms`` is the number of the query's terms.
    """
    scores = returned_scores(rankings)
    if scores is None or scored is None or scored.why_not is not None:
        return None
    for channel, found in scored.scores.items():
        scores[channel].update({each.unit_id: each.score for each in found})
    return Scores(lexical=scores["lexical"], dense=scores["dense"], attainable=scored.attainable, terms=terms)


def _add_up(rankings: Rankings, gained: Mapping[Channel, Mapping[str, float]]) -> list[FusedUnit]:
    """Rank every returned unit by the sum of what it gained in each channel, with its place in each."""
    places: dict[str, dict[Channel, ChannelResult]] = {}
    for channel in CHANNEL_ORDER:
        for candidate in rankings.get(channel, ()):
            result = ChannelResult(rank=candidate.rank, score=candidate.score)
            places.setdefault(candidate.unit_id, {})[channel] = result
    fused = []
    for unit_id, channels in places.items():
        parts = {channel: gained[channel][unit_id] for channel in CHANNEL_ORDER if unit_id in gained.get(channel, ())}
        fused.append(FusedUnit(unit_id=unit_id, score=sum(parts.values()), channels=channels, contributions=parts))
    return sorted(fused, key=_tie_rule)


def _tie_rule(unit: FusedUnit) -> tuple[float, int, int, str]:
    best_rank, position = min(
        (unit.channels[channel].rank, position)
        for position, channel in enumerate(CHANNEL_ORDER)
        if channel in unit.channels
    )
    return (-unit.score, best_rank, position, unit.unit_id)


def by_channel(candidates: Sequence[Candidate]) -> dict[Channel, list[Candidate]]:
    """Group candidates by channel, keeping only a unit's first row in each and ranking again from 1."""
    rankings: dict[Channel, list[Candidate]] = {}
    for channel in CHANNEL_ORDER:
        seen: dict[str, Candidate] = {}
        for candidate in candidates:
            if candidate.channel == channel:
                seen.setdefault(candidate.unit_id, candidate)
        if seen:
            rankings[channel] = [
                candidate if candidate.rank == rank else candidate.model_copy(update={"rank": rank})
                for rank, candidate in enumerate(seen.values(), 1)
            ]
    return rankings
