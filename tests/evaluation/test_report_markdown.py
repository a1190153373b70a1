from __future__ import annotations

import re

import pytest
from sample_report import kitchen_report, kitchen_timings, renamed, without_adaptive

from bounded_retrieval.evaluation.markdown import escaped, to_markdown

HOSTILE = "a|b `c` $x$ <script>\n# [l](u)\x1b[31m *i* _u_ \\"


def section(text: str, title: str) -> str:
    """One section without its heading."""
    found = re.search(rf"^## {re.escape(title)}\n\n(.*?)(?=^## |\Z)", text, re.DOTALL | re.MULTILINE)
    assert found is not None, title
    return found[1].strip()


def rows(text: str) -> list[list[str]]:
    """The cells of a section's table, headers first; without the line of dashes."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if not all(re.fullmatch("-+:?", cell) for cell in row)]


def test_the_sections_are_there_in_order():
    """What was measured comes first, what it does not say last, pictures and times only where there are any."""
    text = to_markdown(kitchen_report())
    assert text.startswith("# Evaluation: kitchen\n\n## What was measured\n")
    assert re.findall("^## (.*)$", text, re.MULTILINE) == [
        "What was measured",
        "Policies",
        "Paired differences",
        "What early stops cost",
        "Stop reasons against outcomes",
        "Oracle ceilings",
        "Live check",
        "What this does not say",
    ]
    assert text.endswith("\n")
    assert to_markdown(kitchen_report()) == text


def test_what_was_measured_is_stated():
    """Collection, survey, index, limits, draws and versions stand at the top."""
    report = kitchen_report()
    report["collection"]["slice"] = "final"
    said = section(to_markdown(report), "What was measured")
    assert f"kitchen (beir, split `test`), fingerprint `{report['collection']['fingerprint']}`" in said
    assert "- 24 queries have a relevant unit and are measured" in said
    assert "- judgements: 4 of grade 1, 24 of grade 2 (graded)" in said
    assert "- index: units 18, embedding trigrams" in said
    assert "- slice: final" in said
    assert "`max_rows` 6, `max_reads` 6, `max_units` 4, `max_chars` 4,000" in said
    assert "deadline" not in said
    assert "- intervals: 95%, percentile bootstrap over queries (500 resamples, seed 0)" in said
    assert f"bounded-retrieval {report['versions']['bounded-retrieval']}" in said


def test_a_policy_has_one_row_with_what_it_is():
    """Figures, spend, depth, actions and ranking rule stand side by side; equal policies share a row."""
    report = kitchen_report()
    header, *found = rows(section(to_markdown(report), "Policies"))
    by_name = {row[0]: dict(zip(header, row, strict=True)) for row in found}
    row, policy = by_name["`adaptive` = `adaptive:scorecard`"], report["policies"]["adaptive"]
    low, high = policy["intervals"]["ndcg@4"]
    assert row["nDCG@4 [95%]"] == f"{policy['ndcg@4']:.3f} [{low:.3f}, {high:.3f}]"
    assert (row["calls"], row["dense calls"], row["rows"]) == tuple(
        str(policy[name]) for name in ("calls", "dense_calls", "rows")
    )
    assert (row["depth"], row["ranking rule"]) == ("4 + 2", r"score\_fusion")
    assert row["actions"] == "lexical search, then dense search unless scorecard reaches 0.27"
    assert len(found) == 8


def test_differences_have_both_measures_in_one_row():
    """A pair's ranking and packet differences stand together, with signs and counts."""
    report = kitchen_report()
    header, *found = rows(section(to_markdown(report), "Paired differences"))
    assert header == [
        "policy",
        "against",
        "nDCG@4",
        "better / equal / worse",
        "packet nDCG@4",
        "better / equal / worse",
    ]
    row = next(row for row in found if row[:2] == ["`reference`", "`fixed_dense`"])
    one = next(
        each
        for each in report["differences"]
        if (each["policy"], each["against"], each["measure"]) == ("reference", "fixed_dense", "ndcg@4")
    )
    assert row[2].startswith(f"{one['mean']:+.3f} [")
    assert row[3] == f"{one['better']} / {one['equal']} / {one['worse']}"
    assert "\u2212" in section(to_markdown(report), "Paired differences")


def test_early_stops_are_sentences_and_a_table():
    """For each adaptive policy the stops in words, and a row for each cutoff."""
    report = kitchen_report()
    report["early_stops"]["reference"] |= {"stops": 0, "held_relevant": 0}
    for each in report["early_stops"]["reference"]["cutoffs"].values():
        each |= {"mean_change": None, "harm_rate": None, "harm_interval": [0, 1]}
    said = section(to_markdown(report), "What early stops cost")
    assert "`reference` never stopped after the first search, in 24 queries." in said
    assert "`adaptive` = `adaptive:scorecard` stopped after the first search in 13 of 24 queries;" in said
    assert [row[:3] for row in rows(said)[1:]] == [
        ["`reference`", "3", "0"],
        ["`reference`", "4", "0"],
        ["`adaptive` = `adaptive:scorecard`", "3", "13"],
        ["`adaptive` = `adaptive:scorecard`", "4", "13"],
    ]
    assert rows(said)[1][6:9] == ["\u2013", "\u2013", "[0.0%, 100.0%]"]


def test_every_reason_that_ended_a_run_is_explained():
    """Each reason of the table has what it means and what it does not say; no other has."""
    said = section(to_markdown(kitchen_report()), "Stop reasons against outcomes")
    in_table = {row[1] for row in rows(said)[1:]}
    explained = set(re.findall("^- (`[a-z_]+`): .*This .*not", said, re.MULTILINE))
    assert {"`proxy_sufficient`", "`policy_complete`"} <= in_table
    assert explained | {"`policy_complete`"} == in_table
    assert (
        "- `policy_complete`: A fixed policy made its one declared call. This says nothing about the evidence." in said
    )


def test_beside_the_ceilings_stands_what_they_bound():
    """The oracle chooses between the policy's own two rankings; what it leaves to gain is a difference."""
    report = kitchen_report()
    said = section(to_markdown(report), "Oracle ceilings")
    assert "chooses between the same two rankings as the policy" in said
    assert "a policy that ranks otherwise may stand above it" in said
    row = rows(said)[1]
    gap = report["ceilings"]["reference"]["ndcg@4"] - report["policies"]["reference"]["ndcg@4"]
    assert row[0] == "`reference`"
    assert row[3] == f"{gap:+.3f}"


def test_pictures_and_times_are_added():
    """A picture's caption is its alternative text; times say that they differ from run to run."""
    text = to_markdown(kitchen_report(), kitchen_timings(), {"What [it] shows.": "plots/a.png"})
    assert section(text, "Pictures") == r"![What \[it\] shows.](plots/a.png)"
    said = section(text, "Time")
    assert said.startswith("Wall clock, different from run to run: retrieval ")
    assert ["`fixed_dense`", "2"] in [row[:2] for row in rows(said)]


def test_without_adaptive_policies_nothing_is_said_of_stops():
    """Sections about early stops and ceilings are left out, the others stay."""
    text = to_markdown(without_adaptive(kitchen_report()))
    assert "early stops" not in text
    assert "Oracle ceilings" not in text
    assert "Stop reasons against outcomes" in text


def test_hostile_names_stay_in_their_cells():
    """No name ends a cell, a line or a code span, begins a tag or a link, or moves the cursor."""
    report = renamed(kitchen_report(), "adaptive", HOSTILE)
    report["collection"]["name"] = HOSTILE
    text = to_markdown(report)
    assert "\x1b" not in text
    assert re.search(r"(?<!\\)<script>", text) is None
    assert r"a\|b \`c\` \$x\$ \<script\> \# \[l\](u)" in text
    for title in ("Policies", "Paired differences", "What early stops cost", "Oracle ceilings"):
        header, *found = rows(section(text, title))
        assert {len(row) for row in found} == {len(header)}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("1. one", r"1\. one"),
        ("2) two", r"2\) two"),
        ("- dash", r"\- dash"),
        ("---", r"\---"),
        ("3.11.7", "3.11.7"),
        ("-0.5", "-0.5"),
        ("a\n\nb", "a b"),
        ("term_coverage", r"term\_coverage"),
        ("~~a~~ & <b>", r"\~\~a\~\~ \& \<b\>"),
    ],
)
def test_foreign_text_is_shown_as_it_is(text, shown):
    """What Markdown would read as a list, a rule, emphasis or HTML is escaped, figures are not."""
    assert escaped(text) == shown
