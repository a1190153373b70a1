"""What a page's script reads: every query of a report with its runs, each distinct run and each unit once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from bounded_retrieval.contracts.html import Html
from bounded_retrieval.contracts.normalise import clean_text
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.evaluation.presentation import arms_of
from bounded_retrieval.policies.tokenize import tokenize

_MEASURES = ("ndcg@4", "recall@4", "packet_ndcg@4", "packet_recall")
_FIRST_SHOWN = ("calibrated", "adaptive")
# A script element ends where its text says so; U+2028 and U+2029 are line ends to some readers of JSON.
_ESCAPED = str.maketrans({char: f"\\u{ord(char):04x}" for char in "<>&\u2028\u2029"})


def embedded(report: Mapping[str, Any]) -> Html:
    """The data as the text of a script element: JSON in which no character can end the element."""
    text = json.dumps(page_data(report), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Html(clean_text(text).translate(_ESCAPED))


def page_data(report: Mapping[str, Any]) -> dict[str, Any]:
    """Policies, stop reasons, units and queries; units stand for their ids by number, runs for their policies.

    Each query's ``runs`` are its distinct ones; ``use`` says, for each policy in turn, which of them is its own.
    """
    units = _Units(report["units"])
    queries = [_query(query, report, units) for query in report["queries"]]
    policies = [
        {"name": name, "decides": name in report["early_stops"], "actions": policy["actions"]}
        for name, policy in report["policies"].items()
    ]
    return {
        "policies": policies,
        "start": _start(policies),
        "reasons": reasons_of(report),
        "units": units.rows,
        "queries": queries,
    }


def reasons_of(report: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    """What each stop reason of a report means and does not mean, in the order of their declaration."""
    found = {reason for reasons in report["stop_reasons"].values() for reason in reasons}
    known = {reason.value: (reason.meaning, reason.not_meaning) for reason in StopReason if reason.value in found}
    unknown = ("This version does not know this stop reason.", "This says nothing about the evidence.")
    return known | dict.fromkeys(sorted(found - known.keys()), unknown)


class _Units:
    """Numbers units as they come up, and keeps what is quoted of each."""

    def __init__(self, excerpts: Mapping[str, Mapping[str, Any]]) -> None:
        self.rows: list[list[Any]] = []
        self._excerpts = excerpts
        self._numbers: dict[str, int] = {}

    def number(self, unit_id: str) -> int:
        if unit_id not in self._numbers:
            self._numbers[unit_id] = len(self.rows)
            quoted = self._excerpts.get(unit_id)
            self.rows.append([unit_id, *((quoted["title"], quoted["text"], quoted["chars"]) if quoted else ("",))])
        return self._numbers[unit_id]

    def numbers(self, unit_ids: Iterable[str]) -> list[int]:
        return [self.number(unit_id) for unit_id in unit_ids]


def _start(policies: list[dict[str, Any]]) -> int:
    """Which policy is shown first: the one that ships, else one that decides anything."""
    names = [policy["name"] for policy in policies]
    deciding = [policy["name"] for policy in policies if policy["decides"]]
    return names.index(next((name for name in (*_FIRST_SHOWN, *deciding) if name in names), names[0]))


def _query(query: Mapping[str, Any], report: Mapping[str, Any], units: _Units) -> dict[str, Any]:
    channels = {
        channel: [[units.number(row["unit_id"]), row["rank"], row["score"]] for row in rows]
        for channel, rows in query["channels"].items()
    }
    terms = _terms(query)
    places = {term: place for place, term in enumerate(terms)}
    distinct: dict[str, int] = {}
    runs: list[dict[str, Any]] = []
    use: list[int] = []
    for name in report["policies"]:
        run = _run(name, query["runs"], report, units)
        number = distinct.setdefault(json.dumps(run), len(runs))
        runs += [run] if number == len(runs) else []
        use.append(number)
    return {
        "id": query["query_id"],
        "text": query["text"],
        "terms": terms,
        "relevant": [[units.number(unit_id), grade] for unit_id, grade in query["relevant"].items()],
        "channels": channels,
        "matched": [
            [units.number(unit_id), sorted({places[term] for term in held})]
            for unit_id, held in query["matched"].items()
        ],
        "runs": runs,
        "use": use,
    }


def _terms(query: Mapping[str, Any]) -> list[str]:
    """Every term that any policy looked for, in the order of the query."""
    looked = {term for held in query["matched"].values() for term in held}
    for run in query["runs"].values():
        looked.update((run.get("decision") or {}).get("missing_terms", ()))
    ordered = [term for term in dict.fromkeys(tokenize(query["text"])) if term in looked]
    return ordered + sorted(looked.difference(ordered))


def _run(name: str, runs: Mapping[str, Any], report: Mapping[str, Any], units: _Units) -> dict[str, Any]:
    run = runs[name]
    kept = {
        "ranking": units.numbers(run["ranking"]),
        "packed": units.numbers(run["packed"]),
        "reason": run["stop_reason"],
        "calls": run["calls"],
        "dense_calls": run["dense_calls"],
        **{measure: run[measure] for measure in _MEASURES},
    }
    if name in report["early_stops"]:
        kept |= {
            "decision": run["decision"],
            "stopped": run["stopped_early"],
            "more": run["one_more_call"],
            "gain": _gain(name, runs, report),
        }
    return kept


def _gain(name: str, runs: Mapping[str, Any], report: Mapping[str, Any]) -> float:
    """What one more call adds to nDCG@4."""
    arms = arms_of(report, name)
    return round(float(runs[arms.go_on]["ndcg@4"] - runs[arms.stop]["ndcg@4"]), 6)
