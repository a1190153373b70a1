"""The words in which packets and traces are shown, wherever they are shown: terminal, notebook, report."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel

from bounded_retrieval.contracts.assessment import QueryWeights
from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.chain import ChainResult, Hop
from bounded_retrieval.contracts.packet import EvidenceItem, EvidencePacket, PathStep
from bounded_retrieval.contracts.trace import (
    CoverageAssessed,
    EvidencePacked,
    PathAttempted,
    RequestInspected,
    SearchAttempted,
    UnitsScored,
)

# Retrieved text must not be able to move the cursor, set colours or write to the clipboard.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

NOTES = MappingProxyType(
    {
        "assessor_failed": "the assessor failed, which counts as not sufficient",
        "channel_failed": "a search failed; its call stays charged",
        "documents_cut": "some units that hops found did not fit the documents' limits",
        "dropped_at_recheck": "something was gone or changed by the time of the recheck and was dropped",
        "eligibility_failed": "who may see what could not be established, so nothing was shown",
        "fused_by_rank": "not every score for the fusion could be had, or was a finite number: ranks decided the order",
        "invalid_rows": "a search returned rows that were no candidates",
        "metadata_converted": "some metadata had no JSON form and was turned into text",
        "recheck_failed": "a check could not be made, so what it should have vouched for was dropped",
        "relationships_failed": "the declared relationships, or their sources, could not be read",
        "rows_cut": "a search returned more rows than asked for; they were cut",
        "text_not_rechecked": "nothing could give the current text, so the text as found was used",
        "unit_too_long": "a unit too long to fit the packet alone was skipped",
        "units_unread": "some units could not be read within the limits",
        "view_changed": "the run began under another caller's view; what was seen then was discarded",
        "hop_failed": "a hop's search failed",
        "planner_failed": "the planner failed, which ended the chain",
        "reader_failed": "a reader failed, so its hop has no sub-answer",
        "sufficiency_failed": "the sufficiency test failed, which counts as not passed",
        "unusable_query": "the planner's next query was blank or too long to be made",
    }
)
"""Every note that a packet or a chain can carry, and what it says."""

WHY_NOT = MappingProxyType(
    {
        "already_attempted": "this search has been made",
        "cancelled": "the caller ended the run",
        "deadline": "the running time is used up",
        "eligibility_failed": "who may see what could not be established",
        "max_calls": "no call is left",
        "max_iterations": "no iteration is left",
        "max_reads": "no read is left",
        "max_rows": "no row is left",
        "no_dense_channel": "there is no dense searcher",
        "no_lexical_channel": "there is no lexical searcher",
        "policy": "the policy does not include it",
        "recursion_limit": "the caller's recursion limit has no room for it",
        "view_changed": "the run began under another caller's view",
    }
)
"""Every reason why an action was not legal, and what it says."""

NO_SCORES = MappingProxyType(
    {
        "cancelled": "the caller ended the run first",
        "deadline": "the running time was used up first",
        "failed": "a searcher failed to score them",
        "no_scores": "a searcher gives no scores",
    }
)
"""Every reason why units could not be scored for the fusion, and what it says."""

COUNTED = MappingProxyType(
    {
        "calls": "calls",
        "iterations": "iterations",
        "rows": "rows",
        "reads": "units read",
        "units": "units packed",
        "chars": "characters",
    }
)
"""What is counted against a limit: the field of `Usage`, and its word. The field of `Budget` is ``max_<field>``."""

NOTHING_MISSING = "no query term is missing from the packed units"
EVERY_HOP_FOLLOWED = "no relation of the path"


def printable(text: str) -> str:
    """Text without control characters other than line breaks and tabs."""
    return _CONTROL.sub("\ufffd", text.replace("\r\n", "\n"))


def describe_missing(packet: EvidencePacket) -> str:
    """The words of the query that no packed unit holds (or the relations that were not followed), or that none is."""
    if packet.missing_terms:
        return ", ".join(packet.missing_terms)
    return EVERY_HOP_FOLLOWED if packet.path else NOTHING_MISSING


def describe_step(step: PathStep) -> str:
    """One followed hop and its source."""
    return f"{step.subject} -- {step.relation} --> {step.object} (source: {step.source_unit})"


def describe_cost(limits: Budget, usage: Usage) -> str:
    """Spend beside its limit, in words."""
    parts = [
        f"{getattr(usage, field):,} of {getattr(limits, f'max_{field}'):,} {word}"
        for field, word in COUNTED.items()
        if field != "iterations"
    ]
    scored = [f"{usage.scored_units:,} scores looked up"] if usage.scored_units else []
    return ", ".join([f"{parts[0]} ({usage.dense_calls} dense)", *parts[1:], *scored])


def describe_contributions(item: EvidenceItem) -> str:
    """What each channel added to an item's fused score; nothing where one channel gave all of it, or none is known."""
    if len(item.contributions) < 2:  # noqa: PLR2004 - a sum has two parts
        return ""
    return " + ".join(f"{channel} {added:.4f}" for channel, added in item.contributions.items())


def describe_weight(term: str, weights: QueryWeights) -> str:
    """How much a term counts, and how many units hold it where that is known; nothing for a term without a weight."""
    if term not in weights.terms:
        return ""
    holding = weights.holding.get(term)
    units = "" if holding is None else f" (in {holding:,} unit{'' if holding == 1 else 's'})"
    return f"{weights.terms[term]:.3f}{units}"


def describe_source(item: EvidenceItem) -> str:
    """Where an item is from: its ``source`` metadata, else its id, and the section where it has one."""
    section = item.metadata.get("section")
    source = item.metadata.get("source", item.unit_id)
    return f"{source}, {section}" if section else f"{source}"


def describe_event(event: BaseModel) -> str:
    """What happened in one step of a trace."""
    describe = _EVENTS.get(type(event))
    return event.model_dump_json() if describe is None else describe(event)


def describe_choice(event: CoverageAssessed) -> str:
    """What a decision came to: stop, and why, or go on, and with what."""
    return f"stop: {event.stop_reason.value}" if event.stop_reason else f"go on: {event.action}"


def describe_chain_end(result: ChainResult) -> str:
    """Whether a chain resolved, and if not, what is open; the first line wherever a chain is shown."""
    if result.resolved:
        return f"RESOLVED ({result.stop_reason.value}): nothing that was looked up stayed open"
    return f"UNRESOLVED ({result.stop_reason.value}): still open: {'; '.join(result.unresolved)}"


def describe_fired(hop: Hop) -> str:
    """The rules that fired after a hop, or that none did."""
    return ", ".join(check.rule.value for check in hop.checks if check.fired) or "none"


def _describe_path(event: PathAttempted) -> str:
    why_not = f": {event.why_not}" if event.why_not else ""
    return "; ".join([f"path: {event.outcome}{why_not}", *map(describe_step, event.steps)])


def _describe_request(event: RequestInspected) -> str:
    if event.path is not None:
        return f"path: {event.path}; next: {event.next_action}"
    identifiers = f"; identifiers: {', '.join(event.identifiers)}" if event.identifiers else ""
    return (
        f"policy {event.policy}, threshold {event.threshold:g}, {event.assessor}, {event.fusion}; "
        f"terms: {', '.join(event.terms)}{identifiers}; next: {event.next_action}"
    )


def _describe_search(event: SearchAttempted) -> str:
    if event.outcome != "answered":
        return f"{event.channel}: {event.outcome}{': ' + event.why_not if event.why_not else ''}"
    rows = ", ".join(
        f"{row.unit_id}" + (f" {row.score:.3f}" if row.score is not None else "") for row in event.returned
    )
    counts = {"cut": event.cut, "duplicates": event.duplicates, "invalid": event.invalid, "unread": event.unread}
    also = "".join(f"; {count} {name}" for name, count in counts.items() if count)
    others = f" other than the {event.excluded} there" if event.excluded else ""
    return f"{event.channel}: asked for {event.requested}{others}, {event.new_units} new: {rows or 'nothing'}{also}"


def _describe_decision(event: CoverageAssessed) -> str:
    inferred = "; ".join(event.assessment.reasons) if event.assessment else "the assessor failed"
    refused = [f"{action.action}: {action.why_not}" for action in event.legal_actions if not action.legal]
    terms = () if event.weights is None else event.weights.terms
    weights = ", ".join(f"{term} {describe_weight(term, event.weights)}" for term in terms if event.weights)
    weighed = f"; weights: {weights}" if weights else ""
    return f"{inferred}{weighed}; {describe_choice(event)}; not legal: {', '.join(refused)}"


def _describe_scoring(event: UnitsScored) -> str:
    if event.why_not is not None:
        return f"no scores ({NO_SCORES.get(event.why_not, event.why_not)}), so ranks decide"
    found = [
        f"{channel}: {', '.join(f'{each.unit_id} {each.score:.3f}' for each in scores) or 'nothing'}"
        for channel, scores in event.scores.items()
    ]
    looked = (
        f"scores looked up, {'; '.join(found)}" if found else "both channels returned every unit; nothing looked up"
    )
    return looked if event.attainable is None else f"{looked}; highest possible lexical score: {event.attainable:.3f}"


def _describe_packing(event: EvidencePacked) -> str:
    skipped = ", ".join(f"{skip.unit_id} ({skip.chars:,} characters, {skip.limit})" for skip in event.skipped)
    dropped = f"; {event.dropped} dropped at the recheck" if event.dropped else ""
    packed = f"packed {', '.join(event.packed) or 'nothing'}{'; not packed: ' + skipped if skipped else ''}{dropped}"
    # One channel's list stands in its own order, whatever ranked it.
    is_fused = event.fused_by and event.ranking and 0 < event.usage.dense_calls < event.usage.calls
    return f"ranked by {event.fused_by}; {packed}" if is_fused else packed


_EVENTS: Mapping[type[BaseModel], Callable[[Any], str]] = MappingProxyType(
    {
        RequestInspected: _describe_request,
        SearchAttempted: _describe_search,
        PathAttempted: _describe_path,
        CoverageAssessed: _describe_decision,
        UnitsScored: _describe_scoring,
        EvidencePacked: _describe_packing,
    }
)
