"""What many runs have in common: read recorded runs, count how they ended and what they cost, suggest what to change.

Counts only: no query, sub-answer or text of a unit is kept or shown. What is suggested follows from declared rules
(`RULES`), each with its threshold, and never from fewer than `LEAST_RUNS` runs.
"""

from __future__ import annotations

from bounded_retrieval.statistics.counting import RunStatistics
from bounded_retrieval.statistics.reading import Run, read_runs
from bounded_retrieval.statistics.rules import LEAST_RUNS, RULES
from bounded_retrieval.statistics.showing import check_picture, draw_stop_reasons, render_statistics

__all__ = [
    "LEAST_RUNS",
    "RULES",
    "Run",
    "RunStatistics",
    "check_picture",
    "draw_stop_reasons",
    "read_runs",
    "render_statistics",
]
