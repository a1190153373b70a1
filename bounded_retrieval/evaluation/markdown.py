"""A report as Markdown: tables that read well as plain text, too."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.evaluation.presentation import (
    Report,
    Shown,
    adaptive_policies,
    decimals,
    describe_confidence,
    describe_live,
    describe_stops,
    describe_survey,
    distinct_differences,
    distinct_policies,
    interval,
    one_line,
    percent,
    signed,
    signed_interval,
)

_SPECIAL = re.compile(r"[\\`*_\[\]<>|$~&#!]")
_FIRST = re.compile(r"(?P<number>\d+)(?=[.)](?:\s|$))|(?=[-+=](?:[-=\s]|$))")  # of a list or a rule
_PLAIN_NAME = re.compile(r"[\w:@.+-]+", re.ASCII)

_MEASURES = ("ndcg@4", "packet_ndcg@4")
_ABOUT = ("units", "embedding", "tokenizer")

_NOT_SAID = """
- It measures rankings and packets against judgements. No answer was written, so nothing is said about answers.
- Units without a judgement count as not relevant; where judgements are few, a better ranking can score lower.
- A stop is `proxy_sufficient` when words were counted, whatever the units say. How often that was a mistake on these \
queries is no promise for others.
- Intervals cover which queries were drawn, not which collection, index or embedding; they are not corrected for how \
many comparisons stand here.
- What one more call would have changed, the curves over thresholds and the oracle were computed afterwards from the \
judgements. No run saw them, no rule can be the oracle, and a threshold read off a curve is not certified by it.
"""


def to_markdown(
    report: Report, timings: Mapping[str, Any] | None = None, pictures: Mapping[str, str] | None = None
) -> str:
    """The report as one Markdown document; the same text for the same arguments.

    Args:
        report: what `summarise` returned.
        timings: what `bounded_retrieval.evaluation.summary.timings` returned; a last table shows them.
        pictures: by caption, the path of each picture as seen from the document.
    """
    sections = {
        "What was measured": _measured(report),
        "Policies": _policies(report),
        "Pictures": _pictures(pictures or {}),
        "Paired differences": _differences(report),
        "What early stops cost": _early_stops(report),
        "Stop reasons against outcomes": _reasons(report),
        "Oracle ceilings": _ceilings(report),
        "Live check": escaped(describe_live(report)),
        "What this does not say": _NOT_SAID.strip(),
        "Time": "" if timings is None else _time(timings),
    }
    parts = [f"# Evaluation: {escaped(report['collection']['name'])}"]
    parts += [f"## {title}\n\n{text}" for title, text in sections.items() if text]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Foreign text as one line that Markdown shows as it is, in a table too."""
    line = _SPECIAL.sub(lambda found: f"\\{found[0]}", one_line(text))
    first = _FIRST.match(line)
    return line if first is None else f"{first['number'] or ''}\\{line[first.end() :]}"


def _code(name: str) -> str:
    return f"`{name}`" if _PLAIN_NAME.fullmatch(name) else escaped(name)


def _named(shown: Shown) -> str:
    return " = ".join(map(_code, shown.names))


def _labels(report: Report) -> dict[str, str]:
    return {shown.name: _named(shown) for shown in distinct_policies(report)}


def _measured(report: Report) -> str:
    collection, settings = report["collection"], report["settings"]
    split = f", split {_code(collection['split'])}" if collection["split"] else ""
    queries = len(report["queries"])
    fingerprint = f"fingerprint {_code(collection['fingerprint'])}"
    draws = f"({settings['resamples']:,} resamples, seed {settings['seed']})"
    lines = [
        f"collection: {escaped(collection['name'])} ({escaped(collection['kind'])}{split}), {fingerprint}",
        f"{queries:,} {'query has' if queries == 1 else 'queries have'} a relevant unit and are measured",
        *map(escaped, describe_survey(collection["survey"]) if "survey" in collection else ()),
        *_about(collection),
        f"limits of every run: {', '.join(_limits(settings['limits']))}",
        f"intervals: {describe_confidence(report)}, percentile bootstrap over queries {draws}",
        f"versions: {', '.join(f'{escaped(name)} {escaped(each)}' for name, each in report['versions'].items())}",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _about(collection: Mapping[str, Any]) -> Iterator[str]:
    found = [f"{name} {_value(collection[name])}" for name in _ABOUT if name in collection]
    if found:
        yield f"index: {', '.join(found)}"
    known = {"name", "kind", "split", "fingerprint", "survey", *_ABOUT}
    yield from (f"{escaped(name)}: {_value(value)}" for name, value in collection.items() if name not in known)


def _value(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escaped(str(value))


def _limits(limits: Mapping[str, Any]) -> Iterator[str]:
    return (f"`{name}` {value:,}" for name, value in limits.items() if value is not None)


def _policies(report: Report) -> str:
    columns = {
        "policy": "",
        f"nDCG@4 [{describe_confidence(report)}]": ":",
        **dict.fromkeys(("recall@4", "packet nDCG@4", "packet recall", "calls", "dense calls", "rows", "reads"), ":"),
        **dict.fromkeys(("depth", "actions", "ranking rule"), ""),
    }
    rows = [_policy(_named(shown), report["policies"][shown.name]) for shown in distinct_policies(report)]
    about = "Means over queries; calls, rows and reads are totals. Depth is in candidate rows."
    return f"{about}\n\n{_table(columns, rows)}"


def _policy(name: str, policy: Mapping[str, Any]) -> list[str]:
    return [
        name,
        f"{decimals(policy['ndcg@4'])} {interval(policy['intervals']['ndcg@4'])}",
        *(decimals(policy[measure]) for measure in ("recall@4", "packet_ndcg@4", "packet_recall")),
        *(f"{policy[spent]:,}" for spent in ("calls", "dense_calls", "rows", "reads")),
        *(escaped(policy[word]) for word in ("depth", "actions", "ranking")),
    ]


def _pictures(pictures: Mapping[str, str]) -> str:
    return "\n\n".join(f"![{escaped(caption)}]({path})" for caption, path in pictures.items())


def _differences(report: Report) -> str:
    labels = _labels(report)
    pairs: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for each in distinct_differences(report):
        pairs.setdefault((each["policy"], each["against"]), {})[each["measure"]] = each
    if not pairs:
        return ""
    columns = {"policy": "", "against": ""}
    for measure in ("nDCG@4", "packet nDCG@4"):
        columns |= {measure: ":", f"{measure}, better / equal / worse": ":"}
    rows = [
        [labels[policy], labels[against], *(cell for measure in _MEASURES for cell in _difference(found[measure]))]
        for (policy, against), found in pairs.items()
    ]
    about = (
        f"The policy minus the other on the same queries, with its {describe_confidence(report)} interval; beside it, "
        "on how many queries the policy was better, equal or worse."
    )
    table = _table(columns, rows)
    for measure in ("packet nDCG@4", "nDCG@4"):
        table = table.replace(f"{measure}, better / equal / worse", "better / equal / worse", 1)
    return f"{about}\n\n{table}"


def _difference(found: Mapping[str, Any]) -> tuple[str, str]:
    counts = " / ".join(f"{found[word]:,}" for word in ("better", "equal", "worse"))
    return f"{signed(found['mean'])} {signed_interval(found['interval'])}", counts


def _early_stops(report: Report) -> str:
    adaptive = adaptive_policies(report)
    if not adaptive:
        return ""
    parts = ["Each run that stopped after its first search, compared afterwards with making the second search too."]
    for shown in adaptive:
        first, *cutoffs = describe_stops(report, shown.name)
        parts.append(f"{_named(shown)} {escaped(first)}")
        parts += ["\n".join(f"- {escaped(line)}" for line in cutoffs)] if cutoffs else []
    columns = {
        "policy": "",
        **dict.fromkeys(("k", "stops", "better", "same", "worse"), ":"),
        **dict.fromkeys(("mean change", "harm rate", "exact interval", "held relevant"), ":"),
    }
    rows = [
        _cutoff(_named(shown), cutoff, report["early_stops"][shown.name])
        for shown in adaptive
        for cutoff in report["early_stops"][shown.name]["cutoffs"]
    ]
    return "\n\n".join([*parts, _table(columns, rows)])


def _cutoff(name: str, cutoff: str, found: Mapping[str, Any]) -> list[str]:
    each = found["cutoffs"][cutoff]
    return [
        name,
        cutoff,
        f"{found['stops']:,}",
        *(f"{each[word]:,}" for word in ("improved", "unchanged", "reduced")),
        signed(each["mean_change"]),
        percent(each["harm_rate"]),
        f"[{', '.join(map(percent, each['harm_interval']))}]",
        f"{found['held_relevant']:,}",
    ]


def _reasons(report: Report) -> str:
    columns = {
        "policy": "",
        "stop reason": "",
        **dict.fromkeys(("queries", "nDCG@4", "recall@4", "packet holds all", "some", "none"), ":"),
    }
    rows = [
        [
            _named(shown),
            _code(reason),
            f"{found['queries']:,}",
            *(decimals(found[measure]) for measure in ("ndcg@4", "recall@4")),
            *(f"{found[f'packet_holds_{share}']:,}" for share in ("all", "some", "none")),
        ]
        for shown in distinct_policies(report)
        for reason, found in report["stop_reasons"][shown.name].items()
    ]
    seen = {reason for found in report["stop_reasons"].values() for reason in found}
    meanings = [f"- `{each}`: {each.meaning} {each.not_meaning}" for each in StopReason if each in seen]
    about = "Of the relevant units, how many runs' packets held all, some or none."
    return "\n\n".join([about, _table(columns, rows), "\n".join(meanings)])


def _ceilings(report: Report) -> str:
    adaptive = adaptive_policies(report)
    if not adaptive:
        return ""
    columns = {"policy": "", **dict.fromkeys(("nDCG@4", "oracle nDCG@4", "left to gain"), ":")}
    columns |= dict.fromkeys(("dense calls", "oracle's dense calls"), ":")
    rows = []
    for shown in adaptive:
        own, best = report["policies"][shown.name], report["ceilings"][shown.name]
        rows.append(
            [
                _named(shown),
                decimals(own["ndcg@4"]),
                f"{decimals(best['ndcg@4'])} {interval(best['interval'])}",
                signed(best["ndcg@4"] - own["ndcg@4"]),
                f"{own['dense_calls']:,}",
                f"{best['dense_calls']:,}",
            ]
        )
    about = (
        "The oracle makes the second search exactly where that ranks better in nDCG@4. It chooses between the same two "
        "rankings as the policy, and no rule that does so can do better; a policy that ranks otherwise may stand above "
        "it."
    )
    return f"{about}\n\n{_table(columns, rows)}"


def _time(timings: Mapping[str, Any]) -> str:
    seconds = ", ".join(f"{escaped(stage)} {value:,.1f} s" for stage, value in timings["seconds"].items())
    parts = [f"Wall clock, different from run to run: {seconds}." if seconds else "Wall clock."]
    if timings["latency_ms"]:
        rows = [
            [_code(name), f"{found['runs']:,}", f"{found['p50']:,.1f}", f"{found['p95']:,.1f}"]
            for name, found in timings["latency_ms"].items()
        ]
        columns = {"policy": "", **dict.fromkeys(("live runs", "median ms", "95th percentile ms"), ":")}
        parts.append(_table(columns, rows))
    return "\n\n".join(parts)


def _table(columns: Mapping[str, str], rows: Iterable[Sequence[str]]) -> str:
    """A table; a column's value is its alignment: ``:`` for numbers, nothing for text."""
    rule = [f"---{side}" for side in columns.values()]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (list(columns), rule, *rows))
