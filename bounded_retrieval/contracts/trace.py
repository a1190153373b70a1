"""The decision trace: one typed event per step, enough to replay the decision.

No event holds a unit's text, a raw error or (unless the run has a deadline) a clock value, so equal requests over
equal answers give equal bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from bounded_retrieval.contracts.assessment import CoverageAssessment, Observation, QueryWeights
from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Channel
from bounded_retrieval.contracts.eligibility import ViewStamp
from bounded_retrieval.contracts.packet import PathStep, read_part
from bounded_retrieval.contracts.settings import RunSettings
from bounded_retrieval.contracts.stop import StopReason

Action = Literal["lexical_search", "dense_search", "follow_path", "recheck_and_pack"]
Outcome = Literal["answered", "failed", "not_started"]
Interruption = Literal["cancelled", "deadline", "view_changed"]
PathOutcome = Literal["followed", "unresolved", "ambiguous", "failed", "not_started"]


class _Event(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Reference(_Event):
    """A returned row.

    Attributes:
        unit_id: which unit.
        rank: from 1, duplicates removed.
        score: raw, where the channel has one.
    """

    unit_id: Annotated[str, Field(min_length=1)]
    rank: Annotated[int, Field(ge=1)]
    score: float | None


class Ranked(_Event):
    """A unit of the fused ranking.

    Attributes:
        unit_id, fused_score: which unit, and what the ranking is ordered by.
    """

    unit_id: str
    fused_score: float


class Skipped(_Event):
    """A unit that was not packed whole.

    Attributes:
        unit_id, chars: which unit, and how many characters it has.
        limit: what was in the way.
    """

    unit_id: str
    chars: int
    limit: Literal["max_units", "max_chars", "fits_alone"]


class LegalAction(_Event):
    """An action at a decision.

    Attributes:
        action, legal: which action, and whether it could have been taken.
        why_not: the reason wherever it was not legal.
    """

    action: Action
    legal: bool
    why_not: str | None = None


class RequestInspected(RunSettings):
    """The settings of the run, resolved once: request, then runtime context, then builder.

    Attributes:
        event: names the kind of event, as in every other one.
        next_action: where the run goes first.
    """

    event: Literal["request_inspected"] = "request_inspected"
    next_action: Action


class SearchAttempted(_Event):
    """One search: what was asked for, what came of it, what it was charged.

    Attributes:
        event: names the kind of event.
        channel: which channel was to be searched.
        requested: rows asked for; 0 when the call was not started.
        excluded: how many units that were there already the searcher was to leave out.
        outcome: what came of it.
        why_not: the limit or interruption that kept the call from starting.
        returned: rows kept, in channel order.
        dropped: rows left out of ``returned`` because the recheck dropped their unit.
        new_units: how many units no earlier search had returned.
        cut, duplicates, invalid, unread: rows beyond those asked for, rows repeating a unit of this answer, rows
            that were no candidates, and units that could not be read (no read left, or no text to be had).
        interruption: set when the clock or the caller ended the run by the time the call came back, or when the
            caller's view is no longer the one under which the run began.
        view: the view in force, where the application gave a resolver.
        filter_pushed_down: where that view has a filter, whether the searcher applied all of it itself; otherwise
            what was left of it was enforced on the rows that came back.
        elapsed_ms: running time so far; recorded only when the run has a deadline.
        usage: what the run has spent by now.
    """

    event: Literal["search_attempted"] = "search_attempted"
    channel: Channel
    requested: int
    excluded: int = 0
    outcome: Outcome
    why_not: str | None = None
    returned: tuple[Reference, ...] = ()
    dropped: int = 0
    new_units: int = 0
    cut: int = 0
    duplicates: int = 0
    invalid: int = 0
    unread: int = 0
    interruption: Interruption | None = None
    view: ViewStamp | None = None
    filter_pushed_down: bool | None = None
    elapsed_ms: float | None = None
    usage: Usage


class PathAttempted(_Event):
    """The structured route: which hops were followed, and why it ended.

    Attributes:
        event: names the kind of event.
        outcome: ``unresolved`` in every case in which a hop has no source that could be shown.
        steps: the hops followed, in order; after the recheck only those before the first one whose source it dropped.
        why_not, interruption, view, elapsed_ms, usage: as in `SearchAttempted`.
    """

    event: Literal["path_attempted"] = "path_attempted"
    outcome: PathOutcome
    why_not: str | None = None
    steps: tuple[PathStep, ...] = ()
    interruption: Interruption | None = None
    view: ViewStamp | None = None
    elapsed_ms: float | None = None
    usage: Usage


class CoverageAssessed(_Event):
    """A decision: the facts, the inference, what was left, what was legal and what was chosen.

    Attributes:
        event: names the kind of event.
        observations: facts about the units that are still eligible.
        dropped_observations: how many others there were.
        assessment: what the assessor inferred; none where it failed.
        usage: what the run has spent by now.
        remaining: what is left of each counted limit.
        legal_actions: every action, and why the others were not legal.
        action: the one that was chosen.
        steps_suffice: whether the caller's recursion limit leaves room for one more search.
        stop_reason: why the run ends here; none when it goes on.
        weights: how much each query term counts in the lexical channel, where the assessor asked for it.
    """

    event: Literal["coverage_assessed"] = "coverage_assessed"
    observations: tuple[Observation, ...]
    dropped_observations: int = 0
    assessment: CoverageAssessment | None
    usage: Usage
    remaining: dict[str, int]
    steps_suffice: bool
    legal_actions: tuple[LegalAction, ...]
    action: Action
    stop_reason: StopReason | None
    weights: QueryWeights | None = None


class Scored(_Event):
    """A unit that a channel did not return.

    Attributes:
        unit_id, score: which unit, and the raw score that the channel gives it.
    """

    unit_id: str
    score: float


class UnitsScored(_Event):
    """Each channel's scores of units that only the other one returned; no rows, and no unit that was not observed.

    Attributes:
        event: names the kind of event.
        scores: by channel, those looked up; a unit that the channel does not hold is left out.
        attainable: what no unit's lexical score for the query exceeds; none where the searcher does not say.
        why_not: why the scores could not be had, so that ranks decide: ``no_scores`` (a channel gives none),
            ``failed``, or the interruption that came first.
        usage: what the run has spent by now.
    """

    event: Literal["units_scored"] = "units_scored"
    scores: dict[Channel, tuple[Scored, ...]]
    attainable: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    why_not: str | None = None
    usage: Usage


class EvidencePacked(_Event):
    """The end of the run: what the recheck left, in which order, and what was packed.

    Attributes:
        event: names the kind of event.
        dropped: how many units the recheck dropped.
        fused_by: name of the fusion that made the ranking; empty on the structured route.
        ranking: every unit that is left, best first.
        packed, chars: ids of the packet's units in order, and the packet's characters, separators included.
        skipped: units that were not packed whole.
        stop_reason, missing_terms, notes: as in the packet.
        view: the view in force, where the application gave a resolver.
        usage: what the whole run spent.
    """

    event: Literal["evidence_packed"] = "evidence_packed"
    dropped: int
    fused_by: str = ""
    ranking: tuple[Ranked, ...]
    packed: tuple[str, ...]
    skipped: tuple[Skipped, ...]
    chars: int
    stop_reason: StopReason
    missing_terms: tuple[str, ...]
    notes: tuple[str, ...]
    view: ViewStamp | None = None
    usage: Usage


TraceEvent = Annotated[
    RequestInspected | SearchAttempted | PathAttempted | CoverageAssessed | UnitsScored | EvidencePacked,
    Field(discriminator="event"),
]


class DecisionTrace(BaseModel):
    """What one run did, enough to replay the decision. ``to_json`` gives the same bytes for the same events.

    Attributes:
        events: one for each step, in order.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    events: tuple[TraceEvent, ...]

    @classmethod
    def from_result(cls, result: Mapping[str, Any] | DecisionTrace) -> DecisionTrace:
        """Read the trace out of a graph's output, or from its own fields.

        Raises:
            KeyError: the output has no ``trace`` (for example because ``output_keys`` left it out).
            RequestError: it is neither, or the trace is not valid.
        """
        return result if isinstance(result, cls) else read_part(result, "trace", cls)

    def to_json(self, indent: int | None = None) -> str:
        """JSON text of the events."""
        return self.model_dump_json(indent=indent)

    def _repr_html_(self) -> str:
        from bounded_retrieval.contracts.html import trace_to_html

        return trace_to_html(self)

    @property
    def request(self) -> RequestInspected:
        """The first event."""
        return next(event for event in self.events if isinstance(event, RequestInspected))

    @property
    def searches(self) -> tuple[SearchAttempted, ...]:
        """The searches in order, those that were not started included."""
        return tuple(event for event in self.events if isinstance(event, SearchAttempted))

    @property
    def decisions(self) -> tuple[CoverageAssessed, ...]:
        """The decisions in order, one after each search."""
        return tuple(event for event in self.events if isinstance(event, CoverageAssessed))

    @property
    def scored(self) -> UnitsScored | None:
        """The scores that were looked up for the fusion, where any were."""
        return next((event for event in self.events if isinstance(event, UnitsScored)), None)

    @property
    def path(self) -> PathAttempted | None:
        """What came of the structured route, where the run took it."""
        return next((event for event in self.events if isinstance(event, PathAttempted)), None)
