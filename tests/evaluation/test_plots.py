from __future__ import annotations

import sys
from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from sample_report import kitchen_report, renamed, without_adaptive

from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.evaluation import plots
from bounded_retrieval.evaluation._drawing import Scale, name_lines, plain, rendered, shortened, spread, text_width
from bounded_retrieval.evaluation.presentation import Shown

HOSTILE = "my $own$ | `x` \u6f22\n\x1b[31m\u202e " + "n" * 80


def texts(figure: Figure) -> list[str]:
    """Everything that is written in a figure."""
    return [found.get_text() for found in figure.findobj(Text) if found.get_text().strip()]


def crowded(report: dict[str, Any]) -> dict[str, Any]:
    """The report with twenty more policies, all next to another one."""
    for place in range(20):
        for part in ("policies", "stop_reasons"):
            report[part][f"always_continue:fusion_{place}"] = dict(report[part]["always_continue"])
        report["policies"][f"always_continue:fusion_{place}"]["ndcg@4"] += place / 1000
        for query in report["queries"]:
            query["runs"][f"always_continue:fusion_{place}"] = query["runs"]["always_continue"]
    return report


def overlapping(figure: Figure, wanted: set[str]) -> list[tuple[str, str]]:
    """Pairs of these texts that cover each other."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    boxes = [
        (found.get_text(), found.get_window_extent(renderer))
        for found in figure.findobj(Text)
        if found.get_text() in wanted
    ]
    assert len(boxes) >= len(wanted)
    return [
        (one, two)
        for (one, box), (two, other) in combinations(boxes, 2)
        if box.x0 < other.x1 and other.x0 < box.x1 and box.y0 < other.y1 - 1 and other.y0 < box.y1 - 1
    ]


def test_every_picture_is_drawn_as_png_and_svg():
    """Four pictures, each with a caption, in both formats, without a date, their texts as paths."""
    found = plots.render_plots(kitchen_report())
    assert tuple(found) == tuple(plots.captions()) == plots.PICTURES
    for files in found.values():
        assert files["png"].startswith(b"\x89PNG")
        assert b"<svg" in files["svg"]
        assert b"<text" not in files["svg"]
        assert b"<dc:date>" not in files["svg"]


def test_the_same_report_gives_the_same_bytes_whatever_the_settings(monkeypatch):
    """Neither a second drawing, nor the user's settings, nor an absent pyplot changes a byte; settings are left alone."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    first = plots.render_plots(kitchen_report())
    theirs = {
        "font.size": 20,
        "axes.facecolor": "black",
        "svg.fonttype": "none",
        "savefig.dpi": 30,
        "lines.linewidth": 9,
    }
    with mpl.rc_context(theirs):
        assert plots.render_plots(kitchen_report()) == first
        assert {name: mpl.rcParams[name] for name in theirs} == theirs


def test_each_policy_stands_at_its_mean_and_its_calls():
    """Every distinct policy has a mark at its mean, a bar over its interval and a label with its names."""
    report = kitchen_report()
    figure = plots.policy_quality(report)
    axes = figure.axes[0]
    marks = {line.get_ydata()[0] for line in axes.lines if line.get_marker() not in ("None", None, "")}
    bars = [tuple(line.get_ydata()) for line in axes.lines]
    written = texts(figure)
    for shown in ("fixed_dense", "reference", "adaptive"):
        policy = report["policies"][shown]
        assert policy["ndcg@4"] in marks
        assert tuple(policy["intervals"]["ndcg@4"]) in bars
        assert f"{shown}  {policy['ndcg@4']:.3f}" in written
    assert "= adaptive:scorecard" in written


def test_floors_and_ceilings_between_other_rankings_are_told_apart():
    """The reference and the default policy choose between other arms: two floors, two ceilings, each named."""
    written = texts(plots.policy_quality(kitchen_report()))
    assert "oracle: goes on where it pays (ceiling), rrf 3 + 3" in written
    assert "oracle: goes on where it pays (ceiling), score_fusion 4 + 2" in written
    assert "may stand above it" in plots.captions()["policy_quality"]


def test_labels_do_not_cover_each_other():
    """With many policies at the same place each label still has its own."""
    report = crowded(kitchen_report())
    figure = plots.policy_quality(report)
    labels = {text for text in texts(figure) if text.startswith(("always_continue", "fixed_", "reference  ", "= "))}
    labels = {text for text in labels if "threshold" not in text}
    assert len(labels) > 20
    assert overlapping(figure, labels) == []


def test_the_quality_picture_takes_a_mapping_of_its_own_parts_only():
    """A benchmark draws its means over collections: other names, no queries, its own words on the upright axis."""
    report = kitchen_report()
    bare = {part: report[part] for part in ("collection", "settings", "curves")}
    kept = ("queries", "dense_calls", "ndcg@4", "intervals", "actions")
    bare["policies"] = {name: {key: policy[key] for key in kept} for name, policy in report["policies"].items()}
    bare["policies"]["scorecard, cautious"] = bare["policies"].pop("fixed_dense")
    bare |= {"early_stops": dict.fromkeys(report["early_stops"]), "stop_reasons": {}, "ceilings": {}}
    figure = plots.policy_quality(bare, scope="mean over collections")
    assert figure.axes[0].get_ylabel() == "nDCG@4, mean over collections"
    figure.axes[0].set_ylabel("something else")
    assert b"<svg" in rendered(figure, "svg")


def test_bars_of_early_stops_are_the_counts():
    """For each cutoff the pieces of the bar are better, same and worse; below stands what held a relevant unit."""
    report = kitchen_report()
    report["early_stops"]["reference"]["cutoffs"]["3"] |= {
        "improved": 5,
        "unchanged": 4,
        "reduced": 3,
        "harm_rate": 5 / 12,
    }
    figure = plots.early_stops(report)
    widths = [patch.get_width() for patch in figure.axes[0].patches]
    assert widths[:3] == [5, 4, 3]
    assert report["early_stops"]["reference"]["held_relevant"] in widths
    low, high = (100 * bound for bound in report["early_stops"]["reference"]["cutoffs"]["3"]["harm_interval"])
    assert f"5 / 4 / 3, 41.7% [{low:.1f}, {high:.1f}]" in texts(figure)


def test_bars_of_stop_reasons_add_up_to_the_queries():
    """Each policy's bar is as long as there are queries, and a reason unknown to this version is drawn, too."""
    report = kitchen_report()
    counts = report["policies"]["fixed_dense"]["stop_reasons"]
    counts |= {"policy_complete": counts["policy_complete"] - 3, "a_new_reason": 3}
    figure = plots.stop_reasons(report)
    ends: dict[float, float] = {}
    for patch in figure.axes[0].patches:
        ends[patch.get_y()] = ends.get(patch.get_y(), 0) + patch.get_width()
    assert set(ends.values()) == {24}
    assert len(ends) == 8
    assert "a_new_reason" in texts(figure)


def test_marks_say_without_colour_what_they_stand_for():
    """Harm, no change and good differ by hatch as well as by colour."""
    patches = plots.early_stops(kitchen_report()).legends[0].get_patches()
    assert (
        len({patch.get_hatch() for patch in patches}) == len({to_hex(patch.get_facecolor()) for patch in patches}) == 4
    )


def test_each_query_is_at_its_coverage_and_gain():
    """A panel for each adaptive policy holds the gains of its own arms and the bins' means below."""
    report = kitchen_report()
    figure = plots.coverage_against_gain(report)
    assert len(figure.axes) == 4
    cloud, bins = figure.axes[2:]
    expected = {
        (
            round(query["runs"]["adaptive"]["decision"]["coverage"], 2),
            round(
                query["runs"]["always_continue:score_fusion"]["ndcg@4"]
                - query["runs"]["fixed_lexical:4_rows"]["ndcg@4"],
                2,
            ),
        )
        for query in report["queries"]
        if query["runs"]["adaptive"]["decision"]
    }
    offsets = [offset for each in cloud.collections for offset in each.get_offsets()]
    assert {(float(x), float(y)) for x, y in offsets} == expected
    assert sum(line.get_marker() == "D" for line in bins.lines) >= 2
    assert "threshold 0.27" in texts(figure)


@pytest.mark.parametrize("name", plots.PICTURES)
def test_hostile_names_are_drawn_as_text(name):
    """Formulas, control characters, other scripts and long names are cut down and drawn, never interpreted."""
    report = renamed(renamed(kitchen_report(), "adaptive", HOSTILE), "adaptive:scorecard", "$x^{$")
    report["collection"]["name"] = HOSTILE
    figure = getattr(plots, name)(report)
    assert rendered(figure, "png").startswith(b"\x89PNG")
    written = texts(figure)
    assert any("my $own$ | `x` ?" in text for text in written)
    assert not any("\x1b" in text or "\u202e" in text or "n" * 60 in text for text in written)


@pytest.mark.parametrize("name", plots.PICTURES)
def test_without_adaptive_policies_the_pictures_say_so(name):
    """A report of fixed policies only has its four pictures, too."""
    figure = getattr(plots, name)(without_adaptive(kitchen_report()))
    assert rendered(figure, "svg")
    said = any(text.startswith("No policy of this report") for text in texts(figure))
    assert said == (name in ("early_stops", "coverage_against_gain"))


def test_pictures_are_written_under_their_names(tmp_path: Path):
    """Two files for each picture, in a folder that is created."""
    found = plots.draw_plots(kitchen_report(), tmp_path / "new" / "plots")
    assert {name: [path.name for path in paths] for name, paths in found.items()} == {
        name: [f"{name}.png", f"{name}.svg"] for name in plots.PICTURES
    }
    assert all(path.stat().st_size > 1000 for paths in found.values() for path in paths)


def test_without_matplotlib_the_extra_is_named(monkeypatch):
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigurationError, match=r'pip install "bounded-retrieval\[plots\]"'):
        plots.check_matplotlib()
    with pytest.raises(ConfigurationError, match="matplotlib"):
        plots.render_plots(kitchen_report())


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ([], []),
        ([1, 9], [1, 9]),
        ([5, 5], [4, 6]),
        ([0, 0, 0], [1, 3, 5]),
        ([9, 10], [7, 9]),
        ([3, 4, 9], [2.5, 4.5, 9]),
    ],
)
def test_things_are_moved_no_further_than_needed(places, expected):
    """Neighbours share what both have to give way; the ends bound them; order is kept."""
    assert spread(places, [2] * len(places), 0, 10) == pytest.approx(expected)


def test_scales_and_texts_are_measured():
    """Points and values are each other's inverse; a longer text is wider; what the font lacks is a question mark."""
    scale = Scale(0.2, 0.8, 300, 100)
    assert scale.points(0.5) == pytest.approx(200)
    assert scale.value(scale.points(0.37)) == pytest.approx(0.37)
    assert text_width("reference") > text_width("ref") > 0
    assert plain("a\u6f22b") == "a?b"
    assert shortened("x" * 50, 10) == "x" * 9 + "\u2026"


def test_many_names_of_one_policy_are_counted():
    """A label has at most four lines."""
    assert name_lines(Shown(names=tuple("abcd"))) == ["a", "= b", "= c", "= d"]
    assert name_lines(Shown(names=tuple("abcdefg"))) == ["a", "= b", "= c", "= 4 more"]
