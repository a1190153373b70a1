"""The parts of a report's page that need no script: facts, tables, and what the numbers do not say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bounded_retrieval.contracts.html import Html
from bounded_retrieval.evaluation._page_data import reasons_of
from bounded_retrieval.evaluation._page_markup import (
    code,
    codes,
    column,
    facts,
    figure,
    flattened,
    folded,
    items,
    joined,
    lines,
    opens,
    section,
    small,
    table,
)
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
    percent,
    signed,
)

LINKED_CUTOFF = "4"
"""The cutoff whose early stops the list of queries can be filtered by."""

_LIMITS = {
    "max_calls": "calls",
    "max_iterations": "iterations",
    "max_rows": "rows",
    "max_reads": "units read",
    "max_units": "units packed",
    "max_chars": "characters",
    "deadline_ms": "milliseconds",
}
_MEASURES = {"ndcg@4": "nDCG@4", "packet_ndcg@4": "nDCG@4 of the packet"}
_HOLDS = ("all", "some", "none")
_CHANGES = ("improved", "unchanged", "reduced")
_CAVEATS = (
    "A stop reason says why a run ended. It never says that the evidence is sufficient, correct or complete.",
    "Judgements are incomplete: a unit that nobody judged counts as not relevant, whatever it says.",
    "Improved, unchanged, reduced, harm and ceilings were told afterwards from the judgements, which no run has seen.",
    "Intervals say how much the figures would vary over other queries of the same kind, not over other collections.",
    "Policies share their limits, but not candidate depth, actions and ranking: these stand beside each result.",
)
_CEILINGS = (
    "The rule behind a ceiling chooses between the same two rankings as its policy, query by query; a policy that "
    "ranks otherwise (a fixed one, say) may stand above it."
)


def head_facts(report: Report) -> Html:
    """What was measured, on what, within which limits."""
    collection, settings = report["collection"], report["settings"]
    limits = [f"{settings['limits'][n]:,} {word}" for n, word in _LIMITS.items() if settings["limits"].get(n)]
    split = joined(", split ", code(collection["split"])) if collection["split"] else ""
    pairs = [
        ("collection", joined(code(collection["name"]), f" ({collection['kind']}", split, ")")),
        ("queries", f"{len(report['queries']):,}, each with a unit judged relevant"),
        ("policies", f"{len(report['policies']):,}"),
        ("limits of every run", ", ".join(limits)),
        ("intervals", f"{describe_confidence(report)}, bootstrap over queries ({settings['resamples']:,} resamples)"),
        ("version", f"bounded-retrieval {report['versions']['bounded-retrieval']}"),
        ("live check", describe_live(report)),
    ]
    if "survey" in collection:
        pairs.insert(2, ("survey", items(describe_survey(collection["survey"]), "plain")))
    return facts(pairs)


def results(report: Report) -> Html:
    """Policies side by side, then what the numbers do not say."""
    lows, highs = zip(*(policy["intervals"]["ndcg@4"] for policy in report["policies"].values()), strict=True)
    columns = (
        "policy",
        column("nDCG@4", f"{describe_confidence(report)} interval"),
        "recall@4",
        "packet recall",
        column("calls", "per query"),
        column("dense calls", "per query"),
        column("rows", "per query"),
        column("runs ended by", "stop reason and runs"),
        "candidate depth",
        "actions",
        "ranking",
    )
    rows = [_policy_row(report, each, (min(lows), max(highs))) for each in distinct_policies(report)]
    return joined(
        table("policies", "Policies side by side, at the same limits", columns, rows, kind="policies"),
        Html(f'<div class="note"><h3>What these numbers do not say</h3>{items(_CAVEATS)}</div>'),
    )


def _policy_row(report: Report, shown: Shown, span: tuple[float, float]) -> list[Any]:
    policy = report["policies"][shown.name]
    bounds = policy["intervals"]["ndcg@4"]
    reasons = [
        joined(code(reason), " ", opens(f"{count:,}", policy=shown.name, reason=reason))
        for reason, count in policy["stop_reasons"].items()
    ]
    whisker = _whisker(policy["ndcg@4"], bounds, span)
    return [
        _names(shown, link=True),
        joined(Html(f"<b>{decimals(policy['ndcg@4'])}</b>"), small(_between(bounds)), whisker),
        figure(decimals(policy["recall@4"])),
        figure(decimals(policy["packet_recall"])),
        *(
            figure(f"{policy[name]:,}", decimals(policy[name] / policy["queries"], 2))
            for name in ("calls", "dense_calls", "rows")
        ),
        items(reasons, "plain"),
        policy["depth"],
        policy["actions"],
        policy["ranking"],
    ]


def _names(shown: Shown, *, link: bool = False) -> Html:
    name = code(shown.name)
    others = small(joined("likewise ", codes(shown.names[1:]))) if shown.names[1:] else ""
    return joined(opens(name, policy=shown.name) if link else name, others)


def _whisker(mean: float, bounds: Sequence[float], span: tuple[float, float]) -> Html:
    """A mean and its interval, drawn on the scale of all policies."""
    low, high = span
    across = [60.0 if high <= low else 2 + 116 * (value - low) / (high - low) for value in (*bounds, mean)]
    left, right, middle = (f"{place:.1f}" for place in across)
    return Html(
        '<svg class="whisker" viewBox="0 0 120 12" aria-hidden="true" focusable="false">'
        f'<path d="M{left} 6H{right}M{left} 2V10M{right} 2V10"/><circle cx="{middle}" cy="6" r="3"/></svg>'
    )


def early(report: Report) -> Html:
    """What early stops cost, and the ceilings; nothing where no policy decides."""
    adaptive = adaptive_policies(report)
    if not adaptive:
        return Html("")
    sentences = [joined(codes(each.names), " ", lines(describe_stops(report, each.name))) for each in adaptive]
    return section("early", "What early stops cost", items(sentences), _stops(report, adaptive), _ceilings(report))


def _stops(report: Report, adaptive: Sequence[Shown]) -> Html:
    columns = (
        "policy",
        "k",
        column("early stops", "of queries"),
        "held a relevant unit",
        column("improved", "the stop did harm"),
        "unchanged",
        column("reduced", "the stop did good"),
        column("harm rate", "exact interval"),
        column("mean change", "in nDCG@k, by going on"),
    )
    rows = [
        _stop_row(shown, cutoff, report["early_stops"][shown.name])
        for shown in adaptive
        for cutoff in report["early_stops"][shown.name]["cutoffs"]
    ]
    return table("early", "Early stops: what one more call would have changed in nDCG@k", columns, rows)


def _stop_row(shown: Shown, cutoff: str, found: Mapping[str, Any]) -> list[Any]:
    each = found["cutoffs"][cutoff]
    counts: list[Any] = [f"{each[word]:,}" for word in _CHANGES]
    if cutoff == LINKED_CUTOFF:
        pairs = zip(counts, _CHANGES, strict=True)
        counts = [opens(count, policy=shown.name, outcome=f"stopped-{word}") for count, word in pairs]
    return [
        _names(shown),
        figure(cutoff),
        figure(f"{found['stops']:,}", f"of {found['queries']:,}"),
        figure(f"{found['held_relevant']:,}"),
        *map(figure, counts),
        figure(percent(each["harm_rate"]), _between(each["harm_interval"], percent)),
        figure(signed(each["mean_change"])),
    ]


def _ceilings(report: Report) -> Html:
    columns = (
        "policy",
        "nDCG@4 reached",
        column("nDCG@4, ceiling", f"{describe_confidence(report)} interval"),
        "dense calls made",
        "dense calls, ceiling",
    )
    caption = "Ceilings: a stop rule that knew the judgements and went on only where that ranks better"
    rows = list(_ceiling_rows(report))
    return joined(table("ceilings", caption, columns, rows), Html(f"<p>{_CEILINGS}</p>"))


def _ceiling_rows(report: Report) -> Iterator[list[Any]]:
    for shown in adaptive_policies(report):
        policy, best = report["policies"][shown.name], report["ceilings"][shown.name]
        yield [
            _names(shown),
            figure(decimals(policy["ndcg@4"])),
            figure(decimals(best["ndcg@4"]), _between(best["interval"])),
            figure(f"{policy['dense_calls']:,}"),
            figure(f"{best['dense_calls']:,}"),
        ]


def ended(report: Report) -> Html:
    """Stop reason against outcome, and what each stop reason says."""
    columns = (
        "policy",
        "stop reason",
        "queries",
        "nDCG@4",
        "recall@4",
        *(column(f"packet holds {word}", "of what is judged relevant") for word in _HOLDS),
    )
    rows = [
        _outcome_row(shown, reason, found)
        for shown in distinct_policies(report)
        for reason, found in report["stop_reasons"][shown.name].items()
    ]
    meanings = [(code(reason), *said) for reason, said in reasons_of(report).items()]
    return section(
        "ended",
        "How runs ended",
        table("outcomes", "Stop reason against outcome", columns, rows),
        table("reasons", "What each stop reason says", ("stop reason", "means", "does not mean"), meanings),
    )


def _outcome_row(shown: Shown, reason: str, found: Mapping[str, Any]) -> list[Any]:
    chosen = {"policy": shown.name, "reason": reason}
    return [
        _names(shown),
        code(reason),
        figure(opens(f"{found['queries']:,}", **chosen)),
        figure(decimals(found["ndcg@4"])),
        figure(decimals(found["recall@4"])),
        *(figure(opens(f"{found[f'packet_holds_{word}']:,}", **chosen, outcome=f"packet-{word}")) for word in _HOLDS),
    ]


def details(report: Report) -> Html:
    """Paired differences, and everything that the report states of its making."""
    differences = distinct_differences(report)
    columns = (
        "policy",
        "against",
        "measure",
        column("mean difference", f"{describe_confidence(report)} interval"),
        "queries better",
        "equal",
        "worse",
    )
    compared = table("differences", "Policies compared query by query", columns, map(_difference_row, differences))
    settings = report["settings"]
    made = [
        *flattened({key: value for key, value in report["collection"].items() if key != "survey"}, "collection: "),
        *flattened(settings["limits"], "limits: "),
        *flattened({key: value for key, value in settings.items() if key != "limits"}),
        *flattened(report["versions"], "version: "),
    ]
    return section(
        "details",
        "Differences, settings, versions",
        folded(f"Paired differences ({len(differences):,})", compared) if differences else "",
        folded("Collection, settings and versions", facts(made)),
    )


def _difference_row(each: Mapping[str, Any]) -> list[Any]:
    return [
        code(each["policy"]),
        code(each["against"]),
        _MEASURES.get(each["measure"], each["measure"]),
        figure(signed(each["mean"]), _between(each["interval"], signed)),
        *(figure(f"{each[word]:,}") for word in ("better", "equal", "worse")),
    ]


def _between(bounds: Sequence[float], show: Any = decimals) -> str:
    return " to ".join(map(show, bounds))
