"""Fuse the channels' rankings into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

from bounded_retrieval.contracts.candidate import Candidate, Channel
from bounded_retrieval.contracts.packet import ChannelResult
from bounded_retrieval.errors import ConfigurationError

CHANNEL_ORDER: tuple[Channel, ...] = ("lexical", "dense")

Rankings = Mapping[Channel, Sequence[Candidate]]


@dataclass(frozen=True, kw_only=True)
class FusedUnit:
    """One unit of the fused ranking: its score and where each channel placed it."""

    unit_id: str
    score: float
    channels: Mapping[Channel, ChannelResult]


class Fusion(Protocol):
    """Turns per-channel rankings (ranks from 1, no unit twice in a channel) into one ranking, best first."""

    @property
    def name(self) -> str:
        """Stands in the trace."""
        ...

    def fuse(self, rankings: Rankings) -> list[FusedUnit]:
        """Rank every unit that any channel returned, each exactly once."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReciprocalRankFusion:
    """Reciprocal rank fusion: the sum over channels of ``1 / (k + rank)``.

    Source: Cormack, Clarke and Büttcher, SIGIR 2009, who use k = 60. Ties go to the better best rank, then to the
    channel that gave it (lexical first), then to the smaller unit id.
    """

    name: ClassVar[str] = "rrf"
    k: int = 60

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ConfigurationError(f"k: at least 0 (got {self.k})")

    def fuse(self, rankings: Rankings) -> list[FusedUnit]:
        """Rank every unit that any channel returned."""
        places: dict[str, dict[Channel, ChannelResult]] = {}
        for channel in CHANNEL_ORDER:
            for candidate in rankings.get(channel, ()):
                result = ChannelResult(rank=candidate.rank, score=candidate.score)
                places.setdefault(candidate.unit_id, {})[channel] = result
        fused = [
            FusedUnit(unit_id=unit_id, score=self._score(channels), channels=channels)
            for unit_id, channels in places.items()
        ]
        return sorted(fused, key=_tie_rule)

    def _score(self, channels: Mapping[Channel, ChannelResult]) -> float:
        return sum(1 / (self.k + result.rank) for result in channels.values())


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
