"""For applications' own tests: fakes, a fixed clock, and the compliance suite for searchers (which needs pytest)."""

from bounded_retrieval.testing.fakes import FailingSearcher, FixedClock, ScriptedSearcher

__all__ = ["FailingSearcher", "FixedClock", "ScriptedSearcher"]
