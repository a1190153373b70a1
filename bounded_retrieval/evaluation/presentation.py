"""What every form of a report says in the same words: which policies are the same, sentences, number formats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.wording import printable

Report = Mapping[str, Any]
"""What `bounded_retrieval.evaluation.summary.summarise` returns, or the same read back from its JSON."""

SHOWN_DIFFERENCES = 5
"""Most runs that the sentence about the live check names."""

_MINUS = "\u2212"
_NONE = "\u2013"
_PER_POLICY = ("policies", "stop_reasons", "early_stops", "ceilings", "curves")
# Characters that change the direction of what follows: a name must not rearrange the line that it stands in.
_REORDERING = re.compile("[\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """Policies that a report cannot tell apart, shown once.

    Attributes:
        names: of all of them, in the report's order.
    """

    names: tuple[str, ...]

    @property
    def name(self) -> str:
        """The first name: under it the report is read."""
        return self.names[0]

    @property
    def label(self) -> str:
        """All names, in one line."""
        return " = ".join(map(one_line, self.names))


class Arms(NamedTuple):
    """Names of the two policies that an adaptive one chooses between, query by query."""

    stop: str
    go_on: str


def distinct_policies(report: Report) -> list[Shown]:
    """The policies in the report's order; those that are the same in every figure, and in what they do, once.

    Depth, actions and ranking rule are among what is compared, and so is every run of every query.
    """
    groups: list[list[str]] = []
    for name in report["policies"]:
        same = next((group for group in groups if _is_same(report, group[0], name)), None)
        if same is None:
            groups.append([name])
        else:
            same.append(name)
    return [Shown(names=tuple(group)) for group in groups]


def _is_same(report: Report, one: str, other: str) -> bool:
    return all(report.get(part, {}).get(one) == report.get(part, {}).get(other) for part in _PER_POLICY) and all(
        query["runs"].get(one) == query["runs"].get(other) for query in report.get("queries", ())
    )


def adaptive_policies(report: Report) -> list[Shown]:
    """Those of `distinct_policies` that decide whether to stop."""
    return [shown for shown in distinct_policies(report) if shown.name in report["early_stops"]]


def arms_of(report: Report, name: str) -> Arms:
    """What an adaptive policy gives where it stops, and where it goes on; both are policies of the report."""
    arms = report["arms"][name]
    return Arms(arms["stop"], arms["continue"])


def distinct_differences(report: Report) -> list[dict[str, Any]]:
    """The paired differences under the first names of `distinct_policies`, each once, none between equals."""
    first = {name: shown.name for shown in distinct_policies(report) for name in shown.names}
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for each in report["differences"]:
        policy, against = first[each["policy"]], first[each["against"]]
        if policy != against:
            found.setdefault((policy, against, each["measure"]), {**each, "policy": policy, "against": against})
    order = {name: place for place, name in enumerate(report["policies"])}
    return sorted(found.values(), key=lambda each: order[each["policy"]])


def describe_stops(report: Report, name: str) -> list[str]:
    """What an adaptive policy's early stops cost, as sentences that follow its name: the stops, then each cutoff."""
    found = report["early_stops"][name]
    if not found["stops"]:
        return [f"never stopped after the first search, in {found['queries']:,} queries."]
    stops = (
        f"stopped after the first search in {found['stops']:,} of {found['queries']:,} queries; "
        f"{found['held_relevant']:,} of these stops already held a relevant unit."
    )
    return [stops, *(_describe_cutoff(report, cutoff, each) for cutoff, each in found["cutoffs"].items())]


def _describe_cutoff(report: Report, cutoff: str, each: Mapping[str, Any]) -> str:
    low, high = map(percent, each["harm_interval"])
    return (
        f"At k = {cutoff}, one more call would have ranked {each['improved']:,} better, {each['unchanged']:,} the same "
        f"and {each['reduced']:,} worse; harm rate {percent(each['harm_rate'])} "
        f"(exact {describe_confidence(report)} interval {low} to {high})."
    )


def describe_live(report: Report) -> str:
    """Whether the runs over kept answers equalled runs over the real searchers, in one sentence."""
    check = report["live_check"]
    if not check["runs"]:
        return "No query was run again over the real searchers."
    again = f"{_count(check['queries'], 'query was', 'queries were')} run again over the real searchers"
    runs = f"({_count(check['runs'], 'run', 'runs')})"
    different = check["different"]
    if not different:
        return f"{again} {runs}: every packet and every trace was the same."
    named = [f"{one_line(policy)} on {one_line(query_id)}" for policy, query_id in different[:SHOWN_DIFFERENCES]]
    more = len(different) - len(named)
    also = f" and {more:,} more" if more else ""
    gave = f"{len(different):,} gave another packet or another trace"
    return f"{again} {runs}: {gave} ({', '.join(named)}{also})."


def describe_survey(survey: Mapping[str, Any]) -> list[str]:
    """What a survey of a collection found, a line for each finding; `survey` is `Survey.to_dict()`."""
    judged = f"{survey['judged']:,} of {_count(survey['queries'], 'query', 'queries')}"
    return [
        f"{judged} have a relevant unit and can be measured",
        *_describe_grades(survey),
        *_describe_left_out(survey),
    ]


def _describe_grades(survey: Mapping[str, Any]) -> Iterator[str]:
    if survey["grades"]:
        counts = ", ".join(f"{count:,} of grade {grade}" for grade, count in survey["grades"].items())
        yield f"judgements: {counts} ({'graded' if survey['graded'] else 'not graded'})"


def _describe_left_out(survey: Mapping[str, Any]) -> Iterator[str]:
    if survey["other_splits"]:
        yield f"judged by another split only, left out: {_count(survey['other_splits'], 'query', 'queries')}"
    findings = {
        "without_judgements": "without a judgement, not measured",
        "nothing_relevant": "judged, but nothing relevant, not measured",
        "judged_without_query": "judged ids without a query",
        "missing_units": "relevant units that the index does not hold",
    }
    for name, words in findings.items():
        if survey[name]["count"]:
            yield f"{words}: {_describe_ids(survey[name])}"
    if survey["duplicate_query_texts"]:
        yield f"queries whose text an earlier query has too: {survey['duplicate_query_texts']:,}"


def _describe_ids(found: Mapping[str, Any]) -> str:
    ids = ", ".join(map(one_line, found["first"]))
    return f"{found['count']:,} ({ids}{', ...' if found['count'] > len(found['first']) else ''})"


def describe_confidence(report: Report) -> str:
    """Confidence of the report's intervals, as a percentage: ``95%``."""
    return f"{100 * report['settings']['confidence']:.10g}%"


def decimals(value: float | None, places: int = 3) -> str:
    """A figure with so many decimals; a dash where there is none, and no sign before a zero."""
    if value is None:
        return _NONE
    text = f"{value:.{places}f}"
    return text.removeprefix("-") if _is_zero(text) else text.replace("-", _MINUS)


def signed(value: float | None, places: int = 3) -> str:
    """A difference with its sign; one that is 0 to so many decimals has none."""
    text = decimals(value, places)
    return f"+{text}" if value is not None and value > 0 and not _is_zero(text) else text


def percent(share: float | None, places: int = 1) -> str:
    """A share from 0 to 1 as a percentage; a dash where there is none."""
    return _NONE if share is None else f"{decimals(100 * share, places)}%"


def interval(bounds: Sequence[float]) -> str:
    """Both bounds of a mean in brackets."""
    return f"[{', '.join(map(decimals, bounds))}]"


def signed_interval(bounds: Sequence[float]) -> str:
    """Both bounds of a difference in brackets, with their signs."""
    return f"[{', '.join(map(signed, bounds))}]"


def one_line(text: str) -> str:
    """Text without line breaks, control characters, and characters that reorder what is beside them."""
    return _REORDERING.sub("\ufffd", printable(" ".join(clean_text(text).split())))


def _count(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _is_zero(text: str) -> bool:
    return not text.strip("-0.")
