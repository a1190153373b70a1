"""What each part of a decision is worth: fusion, assessor and first-hop depth in turn, over several collections.

Run it with ``python benchmarks/ablation.py --collections DIR [NAME ...] [--json FILE] [--plot FILE.svg] [--limit N]``.
DIR holds BEIR folders; NAMEs choose among them. It needs no network. Tables go to the screen and, with ``--json``, as
Markdown beside that file; ``--plot`` draws the curves (with matplotlib). A collection's index is built once and kept in
the user's cache; after that a thousand queries take about five minutes. The same package and collections always give
the same figures. ``--limit`` is for trying the command out: it takes the first queries of each collection.

- Arms, which decide nothing: each fixed search with all 6 rows, what stopping after 2, 3 or 4 lexical rows gives, and
  both searches always, by fusion and depth (``2 + 4``: two lexical rows, then four dense ones).
- Assessors at their own threshold, by fusion and depth, beside arms. A run that stops equals the stopping arm, one that
  goes on equals the arm of its fusion and depth; which of them it is follows from the assessor's coverage of the first
  result and its vetoes. That this holds is checked against real runs of every assessor and depth.
- Curves at the package's own fusion and depth: one threshold for all collections, moved from stopping wherever no veto
  forbids it to never stopping. The floor stops at random: the straight line between the arms. The ceiling is an oracle
  that goes on where that gains most, with at most so many dense calls.
- Settings: the thresholds of the shipped scorecard.

``all`` is the mean over collections, every collection counting alike. Intervals are 95% bootstrap intervals over the
queries, drawn within each collection; the same draws for every policy, so that differences are paired. They cover which
queries were drawn, not which collections. The shipped scorecard was trained on slices of the default collections, so
its figures here are no test of it on unseen ones; ``train_scorecard.py`` records that.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ablation_runs import (
    ALWAYS_OWN,
    BOTH,
    DENSE,
    DEPTHS,
    FIXED,
    LIMITS,
    MACRO,
    MEASURES,
    OWN,
    RESAMPLES,
    SEED,
    STOPS,
    UNDECIDED,
    Pool,
    Rule,
    ceiling,
    default_rule,
    floor,
    observe,
    rounded,
    swept,
)

from bounded_retrieval.contracts.scorecard import shipped_scorecard
from bounded_retrieval.errors import BoundedRetrievalError, RequestError
from bounded_retrieval.evaluation._drawing import rendered
from bounded_retrieval.evaluation.collections import Collection, load_collection
from bounded_retrieval.evaluation.plots import check_matplotlib, policy_quality
from bounded_retrieval.evaluation.presentation import decimals, signed
from bounded_retrieval.evaluation.summary import versions
from bounded_retrieval.evaluation.variants import ALWAYS, Variant
from bounded_retrieval.policies.registry import ASSESSORS, DEFAULT_FUSION, FUSIONS

COLLECTIONS = ("hotpotqa_train100", "musique_train100", "scifact_train")
SHARES = (0.4, 0.5, 0.6, 0.8)
"""Dense calls per query at which the curves are read off; always going on makes one."""


# The tables


Columns = dict[str, Mapping[str, Any]]


def by_collection(pool: Pool, rows: Sequence[tuple[Mapping[str, Any], Columns]]) -> dict[str, list[dict[str, Any]]]:
    """Tables of all collections together and of each, from rows of labels and of columns by collection."""
    return {
        name: [{**labels, **{key: column[name] for key, column in columns.items()}} for labels, columns in rows]
        for name in (MACRO, *pool.observed)
    }


def figures(pool: Pool, policy: Variant | Rule) -> Columns:
    """Both measures with intervals, and dense calls per query."""
    calls = {name: rounded(value) for name, value in pool.means(policy, DENSE).items()}
    return {measure: pool.intervals(policy, measure) for measure in MEASURES} | {DENSE: calls}


def differences(pool: Pool, policy: Rule, others: Mapping[str, Variant]) -> Columns:
    """Paired differences in nDCG@4 to some arms, by their columns' names."""
    return {f"less_{name}": pool.intervals(policy, "ndcg@4", other) for name, other in others.items()}


def arm_rows(pool: Pool) -> dict[str, list[dict[str, Any]]]:
    return by_collection(
        pool,
        [
            ({"policy": variant.name, **variant.describe(LIMITS)}, figures(pool, variant))
            for variant in (*FIXED, *STOPS, *BOTH)
        ],
    )


def assessor_rows(pool: Pool) -> dict[str, list[dict[str, Any]]]:
    rows = []
    for assessor in ASSESSORS:
        for fusion in FUSIONS:
            for depth in DEPTHS:
                rule = default_rule(assessor, fusion, depth)
                arm = rule.variant.continue_arm()
                others = {"always_rrf": ALWAYS, "fixed_dense": FIXED[1], "never_stopping": arm}
                labels = {"assessor": assessor, "threshold": rule.threshold, "fusion": fusion}
                labels |= {"depth": arm.describe(LIMITS)["depth"]}
                rows.append((labels, figures(pool, rule) | differences(pool, rule, others)))
    return by_collection(pool, rows)


def setting_rows(pool: Pool) -> dict[str, list[dict[str, Any]]]:
    """The shipped scorecard at each of its thresholds, the one with the fewest dense calls first."""
    others = {"fixed_lexical": FIXED[0], "fixed_dense": FIXED[1], "always_rrf": ALWAYS, "always_own": ALWAYS_OWN}
    rows = []
    for setting, threshold in sorted(shipped_scorecard().thresholds.items(), key=lambda pair: pair[1]):
        rule = Rule(assessor="scorecard", threshold=threshold)
        best = {"to_best_fixed": to_best(pool, rule, FIXED), "to_best_undecided": to_best(pool, rule, UNDECIDED)}
        columns = figures(pool, rule) | differences(pool, rule, others) | best
        rows.append(({"setting": setting, "threshold": threshold}, columns))
    return by_collection(pool, rows)


def to_best(pool: Pool, rule: Rule, among: Sequence[Variant]) -> dict[str, dict[str, Any]]:
    """The difference to the best of some policies on each collection; for ``all`` that of the worst collection."""
    means = {variant: pool.means(variant, "ndcg@4") for variant in among}
    found = {}
    for name in pool.observed:
        best = max(among, key=lambda variant: means[variant][name])
        difference = pool.intervals(rule, "ndcg@4", best)[name]
        found[name] = {"collection": name, "policy": best.name, "difference": difference}
    return {MACRO: min(found.values(), key=lambda each: each["difference"][0]), **found}


def curve_report(pool: Pool) -> dict[str, Any]:
    """All curves, and a table of what each gives at some numbers of dense calls."""
    curves = {assessor: swept(pool, assessor) for assessor in ASSESSORS}
    curves |= {"floor": floor(pool), "ceiling": ceiling(pool)}
    return {
        "fusion": DEFAULT_FUSION,
        "depth": ALWAYS_OWN.describe(LIMITS)["depth"],
        "curves": {name: curve.points() for name, curve in curves.items()},
        "at": [{DENSE: share, **{name: curve.at(share) for name, curve in curves.items()}} for share in SHARES],
    }


# The report


def measure(collections: Sequence[Collection], limit: int | None) -> dict[str, Any]:
    """Everything, as JSON-native data.

    Raises:
        RequestError: two collections have the same name, or one that of their mean.
    """
    names = [MACRO, *(collection.name for collection in collections)]
    if len(set(names)) < len(names):
        raise RequestError(f"collections: names must differ, from {MACRO!r} too (got {', '.join(names[1:])})")
    pool = Pool.of({collection.name: observe(collection, limit) for collection in collections})
    packages = versions()
    return {
        "environment": {
            "python": packages.pop("python"),
            "platform": f"{platform.system()} {platform.machine()}",
            "packages": packages,
        },
        "settings": {
            "limit": limit,
            "limits": LIMITS.model_dump(),
            "resamples": RESAMPLES,
            "seed": SEED,
            "confidence": 0.95,
        },
        "collections": {name: dict(each.about) for name, each in pool.observed.items()},
        "arms": arm_rows(pool),
        "assessors": assessor_rows(pool),
        "curves": curve_report(pool),
        "scorecard_settings": setting_rows(pool),
    }


def plot(report: Mapping[str, Any]) -> bytes:
    """The curves with the policies that decide nothing and the scorecard's settings, as an SVG file."""
    queries = sum(each["queries"] for each in report["collections"].values())
    lines = {name: _by_calls(points, queries) for name, points in report["curves"]["curves"].items()}
    ends = {
        name: [[point[DENSE], point["ndcg@4"]] for point in lines[curve]]
        for name, curve in (("random", "floor"), ("oracle", "ceiling"))
    }
    # The picture of a single collection's report: means stand for it, dense calls as if of all the queries.
    figure = policy_quality(
        {
            "collection": {"name": f"mean over {len(report['collections'])} collections"},
            "settings": report["settings"],
            "policies": {name: _drawn(row, queries) for name, row in _shown(report).items()},
            "curves": {name: {"points": lines[name], **ends} for name in ASSESSORS},
            "early_stops": dict.fromkeys(ASSESSORS),
            **{part: {} for part in ("stop_reasons", "ceilings")},
        }
    )
    figure.axes[0].set_ylabel("nDCG@4, mean over collections")
    return rendered(figure, "svg")


def _by_calls(points: Iterable[Mapping[str, Any]], queries: int) -> list[dict[str, Any]]:
    return [{**point, DENSE: point[DENSE] * queries} for point in points]


def _shown(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Rows of the policies in the picture, by the names they have there."""
    arms = {row["policy"]: row for row in report["arms"][MACRO]}
    cell = (report["curves"]["fusion"], report["curves"]["depth"])
    own = [row for row in report["assessors"][MACRO] if (row["fusion"], row["depth"]) == cell]
    others = [row for row in report["scorecard_settings"][MACRO] if row["setting"] != "default"]
    return {
        **{variant.name: arms[variant.name] for variant in (*FIXED, OWN.stop_arm(), ALWAYS, ALWAYS_OWN)},
        **{row["assessor"]: row for row in own},
        **{f"scorecard, {row['setting']}": row for row in others},
    }


def _drawn(row: Mapping[str, Any], queries: int) -> dict[str, Any]:
    mean, *interval = row["ndcg@4"]
    return {
        "queries": queries,
        DENSE: row[DENSE] * queries,
        "ndcg@4": mean,
        "intervals": {"ndcg@4": interval},
        "actions": row.get("actions", ""),
    }


# Markdown


def to_markdown(report: Mapping[str, Any]) -> str:
    """All tables, as Markdown."""
    settings = report["settings"]
    parts = ["# Ablation: fusion, assessor, first-hop depth", ""]
    parts += ["Made by `python benchmarks/ablation.py`; its docstring says what is measured.", ""]
    if settings["limit"] is not None:
        parts += [f"Cut down to the first {settings['limit']} queries: these figures compare with nothing.", ""]
    for name, about in report["collections"].items():
        parts.append(f"- {name}: {about['queries']:,} queries, {about['units']:,} units; {about['embedding']}")
    parts += ["", f"Intervals: 95%, {settings['resamples']:,} resamples, seed {settings['seed']}.", ""]
    parts += ["## Curves", "", _curve_text(report["curves"]), "", _curve_table(report["curves"]), ""]
    for name in (MACRO, *report["collections"]):
        parts += [f"## {'All collections alike' if name == MACRO else name}", ""]
        parts += ["### Arms", "", _arm_table(report["arms"][name]), ""]
        parts += ["### Assessors at their own threshold", "", _assessor_table(report["assessors"][name]), ""]
        parts += ["### Settings of the scorecard", "", _setting_table(report["scorecard_settings"][name]), ""]
    return "\n".join(parts).rstrip() + "\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    rule = ["---", *["---:"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, rule, *rows))


def _interval(found: Sequence[float], shown: Any = decimals) -> str:
    return f"{shown(found[0])} [{shown(found[1])}, {shown(found[2])}]"


_difference = partial(_interval, shown=signed)


def _figures(row: Mapping[str, Any]) -> list[str]:
    return [*(_interval(row[measure]) for measure in MEASURES), f"{row[DENSE]:.2f}"]


_HEADER = ("nDCG@4", "packet nDCG@4", "dense calls")


def _arm_table(rows: Iterable[Mapping[str, Any]]) -> str:
    columns = ("policy", "depth", "ranking", *_HEADER)
    return _table(columns, ([f"`{row['policy']}`", row["depth"], row["ranking"], *_figures(row)] for row in rows))


def _assessor_table(rows: Iterable[Mapping[str, Any]]) -> str:
    others = ("always_rrf", "fixed_dense", "never_stopping")
    words = ("less `always_continue`", "less `fixed_dense`", "less never stopping")
    return _table(
        ("assessor", "fusion", "depth", *_HEADER, *words),
        (
            [
                f"`{row['assessor']}` at {row['threshold']:g}",
                *(row[name] for name in ("fusion", "depth")),
                *_figures(row),
                *(_difference(row[f"less_{name}"]) for name in others),
            ]
            for row in rows
        ),
    )


def _setting_table(rows: Iterable[Mapping[str, Any]]) -> str:
    others = {variant.name: f"less `{variant.name}`" for variant in UNDECIDED}
    names = ("fixed_lexical", "fixed_dense", "always_rrf", "always_own")
    return _table(
        ("setting", *_HEADER, *others.values(), "to the best fixed search", "to the best of these four"),
        (
            [
                f"`{row['setting']}` at {row['threshold']:g}",
                *_figures(row),
                *(_difference(row[f"less_{name}"]) for name in names),
                *(_best(row[name]) for name in ("to_best_fixed", "to_best_undecided")),
            ]
            for row in rows
        ),
    )


def _best(found: Mapping[str, Any]) -> str:
    return f"{_difference(found['difference'])} (`{found['policy']}`, {found['collection']})"


def _curve_text(found: Mapping[str, Any]) -> str:
    return (
        f"{found['fusion']}, {found['depth']} rows: mean nDCG@4 over the collections at so many dense calls per query, "
        "one threshold for all collections. No threshold read off a curve is certified by it."
    )


def _curve_table(found: Mapping[str, Any]) -> str:
    names = ("floor", *ASSESSORS, "ceiling")
    header = {"floor": "random stopping", "ceiling": "oracle"}
    return _table(
        ("dense calls", *(header.get(name, f"`{name}`") for name in names)),
        ([f"{row[DENSE]:.0%}", *(decimals(row[name]) for name in names)] for row in found["at"]),
    )


# The command


def main() -> None:
    arguments = _arguments()
    os.environ["LANGSMITH_TRACING"] = "false"
    try:
        if arguments.plot is not None:
            check_matplotlib()
        collections = [load_collection(arguments.collections / name) for name in arguments.names]
        report = measure(collections, arguments.limit)
    except BoundedRetrievalError as error:
        sys.exit(str(error))
    tables = to_markdown(report)
    print(tables)
    if arguments.json is not None:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        arguments.json.with_suffix(".md").write_text(tables, encoding="utf-8")
    if arguments.plot is not None:
        arguments.plot.parent.mkdir(parents=True, exist_ok=True)
        arguments.plot.write_bytes(plot(report))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--collections", type=Path, required=True, metavar="DIR", help="folder of BEIR folders")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default {', '.join(COLLECTIONS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here and the tables beside it")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the curves; needs matplotlib")
    parser.add_argument("--limit", type=int, metavar="N", help="the first N queries of each collection")
    arguments = parser.parse_args()
    if arguments.limit is not None and arguments.limit < 1:
        parser.error("--limit: at least 1")
    arguments.names = list(dict.fromkeys(arguments.names)) or list(COLLECTIONS)
    return arguments


if __name__ == "__main__":
    main()
