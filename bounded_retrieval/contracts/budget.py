"""What a run may spend (`Budget`) and what it has spent (`Usage`), kept as two types on purpose."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

MAX_ITERATIONS = 2
"""Controller iterations (one search and its assessment) in one run. No parameter raises it."""


class Budget(BaseModel):
    """Limits of one run. Every limit is hard and checked before spending; 0 forbids the thing counted.

    A builder's budget is a ceiling: a request or a runtime context may lower its limits, never raise them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, revalidate_instances="always")

    max_calls: Annotated[int, Field(ge=0, le=2, description="logical retrieval calls, failed ones too")] = 2
    max_iterations: Annotated[int, Field(ge=0, le=MAX_ITERATIONS, description="controller iterations")] = MAX_ITERATIONS
    max_rows: Annotated[int, Field(ge=0, le=200, description="candidate rows returned, duplicates too")] = 6
    max_reads: Annotated[int, Field(ge=0, le=200, description="distinct units materialised for inspection")] = 6
    max_units: Annotated[int, Field(ge=0, le=50, description="whole units in the packet")] = 4
    max_chars: Annotated[int, Field(ge=0, le=200_000, description="packet characters, separators included")] = 4000
    deadline_ms: Annotated[
        int | None,
        Field(ge=0, le=600_000, description="running time in milliseconds, checked before and after each call"),
    ] = None


Spent = Annotated[int, Field(ge=0)]


class Usage(BaseModel):
    """What one run has spent.

    Attributes:
        calls: retrieval calls, failed ones too.
        dense_calls: those of them that went to the dense channel.
        iterations: searches with their assessment.
        rows: candidate rows returned, duplicates too.
        reads: distinct units read.
        scored_units: observed units whose score was looked up.
        units: whole units in the packet.
        chars: characters of the packet, separators included.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    calls: Spent = 0
    dense_calls: Spent = 0
    iterations: Spent = 0
    rows: Spent = 0
    reads: Spent = 0
    scored_units: Spent = 0
    units: Spent = 0
    chars: Spent = 0


def remaining(limits: Budget, usage: Usage) -> dict[str, int]:
    """What is left of each counted limit, never below 0. The deadline is a clock value and not part of it."""
    return {
        "calls": max(0, limits.max_calls - usage.calls),
        "iterations": max(0, limits.max_iterations - usage.iterations),
        "rows": max(0, limits.max_rows - usage.rows),
        "reads": max(0, limits.max_reads - usage.reads),
        "units": max(0, limits.max_units - usage.units),
        "chars": max(0, limits.max_chars - usage.chars),
    }
