"""The scorecard's table: how many points each sign of a good lexical result is worth, and where that comes from."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Sign = Literal["phrases", "lead", "coverage", "terms", "length"]

COUNTS: dict[str, int] = {"terms": 1_000, "length": 1_000_000}
"""Signs that count something, with the highest edge that makes sense; the others are shares."""


class FactorPoints(BaseModel):
    """Points of one sign: those of the highest edge that its value reaches, none below the first.

    Attributes:
        name: which sign.
        edges: ascending, each above 0; at most 1 but for ``terms`` (up to 1,000) and ``length`` (characters, up to
            1,000,000), which are counts.
        points: as many, never falling: a better sign is never worth less.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Sign
    edges: tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] = Field(min_length=1)
    points: tuple[Annotated[int, Field(ge=0)], ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if len(self.edges) != len(self.points):
            raise ValueError(f"{self.name}: {len(self.edges)} edges and {len(self.points)} points")
        if list(self.edges) != sorted(set(self.edges)) or list(self.points) != sorted(self.points):
            raise ValueError(f"{self.name}: edges rise and points never fall")
        most = COUNTS.get(self.name, 1)
        if self.edges[-1] > most:
            kind = "counts" if self.name in COUNTS else "shares"
            raise ValueError(f"{self.name}: edges are {kind} of at most {most} (got {self.edges[-1]:.10g})")
        return self

    def of(self, value: float) -> int:
        """The points of a value."""
        reached = [points for edge, points in zip(self.edges, self.points, strict=True) if value >= edge]
        return reached[-1] if reached else 0


class ScorecardTable(BaseModel):
    """All signs with their points, which add up to about 100, and the thresholds chosen for them.

    Attributes:
        format: name and version of the table's format.
        factors: the signs, none twice.
        thresholds: by setting (``default``, ``economy``, ``quality``), the share of the points at which to stop.
        provenance: what it was trained on, how, and by what command.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal["bounded-retrieval-scorecard-1"] = "bounded-retrieval-scorecard-1"
    factors: tuple[FactorPoints, ...] = Field(min_length=1)
    thresholds: dict[str, Annotated[float, Field(ge=0, le=1)]]
    provenance: dict[str, Any]

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        names = [factor.name for factor in self.factors]
        if len(set(names)) < len(names):
            raise ValueError(f"factors: a sign is there twice ({', '.join(names)})")
        return self

    @property
    def most(self) -> int:
        """The most points that a result can have."""
        return sum(factor.points[-1] for factor in self.factors)


@cache
def shipped_scorecard() -> ScorecardTable:
    """The table that comes with the package."""
    text = resources.files("bounded_retrieval").joinpath("data/scorecard.json").read_text(encoding="utf-8")
    return ScorecardTable.model_validate_json(text)
