"""What the builder hands to the nodes: the parts they call, and the defaults they resolve against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.ports import Assessor, DiagnosticSink, Searcher, Tokenizer, UnitSource
from bounded_retrieval.policies.fusion import Fusion
from bounded_retrieval.policies.settings import BuilderDefaults

Cancelled = Callable[[Runtime[Any]], bool]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Collaborators of one graph. They hold no per-request state.

    Attributes:
        units: where the recheck reads every unit; none lets each searcher vouch for what it returned.
        clock: seconds from any fixed point, as `time.monotonic`.
    """

    lexical: Searcher | None
    dense: Searcher | None
    units: UnitSource | None
    assessor: Assessor
    fusion: Fusion
    tokenizer: Tokenizer
    tokenizer_name: str
    defaults: BuilderDefaults
    cancelled: Cancelled | None
    diagnostics: DiagnosticSink | None
    clock: Callable[[], float]

    def searcher(self, channel: str) -> Searcher | None:
        """The searcher of a channel, where there is one."""
        return self.lexical if channel == "lexical" else self.dense

    def report(self, record: dict[str, Any]) -> None:
        """Hand a protected record to the application's sink, and to nobody else."""
        if self.diagnostics is not None:
            self.diagnostics(record)
