"""What the builder hands to the nodes: the parts they call, and the defaults they resolve against."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from langgraph.runtime import Runtime

from bounded_retrieval.contracts.eligibility import Resolver
from bounded_retrieval.contracts.ports import Assessor, DiagnosticSink, Searcher, Stem, Tokenizer, UnitSource
from bounded_retrieval.contracts.relationships import RelationshipSource
from bounded_retrieval.nodes.time_limits import TimeLimit
from bounded_retrieval.policies.fusion import Fusion
from bounded_retrieval.policies.settings import BuilderDefaults

_logger = logging.getLogger(__name__)

Cancelled = Callable[[Runtime[Any]], bool]


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Collaborators of one graph. They hold no per-request state.

    Attributes:
        stem: how the lexical index folds a term's forms; none where it has every form for itself.
        units: where the recheck reads every unit; none lets each searcher vouch for what it returned.
        clock: seconds from any fixed point, as `time.monotonic`.
        eligibility: gives each caller's view; none means that everything is public.
        eligibility_limit: how long the resolver and its views may take.
        relationships: what the structured route follows.
    """

    lexical: Searcher | None
    dense: Searcher | None
    units: UnitSource | None
    assessor: Assessor
    fusion: Fusion
    tokenizer: Tokenizer
    tokenizer_name: str
    stem: Stem | None
    defaults: BuilderDefaults
    cancelled: Cancelled | None
    diagnostics: DiagnosticSink | None
    clock: Callable[[], float]
    eligibility: Resolver | None = None
    eligibility_limit: TimeLimit | None = None
    relationships: RelationshipSource | None = None

    def searcher(self, channel: str) -> Searcher | None:
        """The searcher of a channel, where there is one."""
        return self.lexical if channel == "lexical" else self.dense

    @property
    def is_guarded(self) -> bool:
        """Whether a resolver says who may see what; calls then run detached from the run's callbacks."""
        return self.eligibility is not None

    def report(self, record: dict[str, Any]) -> None:
        """Hand a protected record to the application's sink, and to nobody else. One that fails does not end a run."""
        if self.diagnostics is None:
            return
        try:
            self.diagnostics(record)
        except Exception as error:  # noqa: BLE001 - whatever the sink raises, the run goes on
            # The record, and with it the message, may hold what the log's readers may not see.
            _logger.warning("the diagnostics sink failed: %s", type(error).__name__)
