from __future__ import annotations

import pytest
from sample_report import kitchen_report, renamed, without_adaptive

from bounded_retrieval.evaluation.presentation import (
    adaptive_policies,
    arms_of,
    decimals,
    describe_confidence,
    describe_live,
    describe_stops,
    describe_survey,
    distinct_differences,
    distinct_policies,
    one_line,
    percent,
    signed,
)


def test_policies_that_are_the_same_are_shown_once_with_all_names():
    """The default assessor by its name is the default policy; the reference is another one."""
    labels = [shown.label for shown in distinct_policies(kitchen_report())]
    assert "adaptive = adaptive:scorecard" in labels
    assert "reference" in labels
    assert [shown.label for shown in adaptive_policies(kitchen_report())] == [
        "reference",
        "adaptive = adaptive:scorecard",
    ]


@pytest.mark.parametrize("part", ["figure", "depth", "actions", "ranking", "run"])
def test_one_difference_keeps_policies_apart(part):
    """Policies with another figure, depth, action, ranking rule or run of one query are two."""
    report = kitchen_report()
    if part == "run":
        report["queries"][3]["runs"]["adaptive"]["packed"].reverse()
        report["queries"][3]["runs"]["adaptive"]["packed"].append("one more")
    else:
        report["policies"]["adaptive"]["reads" if part == "figure" else part] = "another"
    names = [shown.names for shown in distinct_policies(report)]
    assert ("adaptive",) in names
    assert ("adaptive:scorecard",) in names


def test_differences_are_between_policies_that_are_shown():
    """No difference is of or against a second name, none is between equals, and none stands twice."""
    report = kitchen_report()
    shown = {each.name for each in distinct_policies(report)}
    found = [(each["policy"], each["against"], each["measure"]) for each in distinct_differences(report)]
    assert len(found) == len(set(found))
    assert {name for policy, against, _ in found for name in (policy, against)} <= shown
    assert all(policy != against for policy, against, _ in found)
    assert ("adaptive", "always_continue:score_fusion", "ndcg@4") in found


def test_a_baseline_under_its_second_name_is_found_under_its_first():
    """Differences to a policy that is shown under an earlier name are kept under that name, not those to itself."""
    report = renamed(renamed(kitchen_report(), "adaptive:scorecard", "later"), "adaptive", "first")
    one = next(each for each in report["differences"] if each["policy"] == "reference")
    report["differences"] = [{**one, "against": "later"}, {**one, "policy": "later", "against": "first"}]
    assert distinct_differences(report) == [{**one, "against": "first"}]


def test_arms_are_policies_of_the_report():
    """An adaptive policy's arms are named by the report: its own depths and fusion."""
    report = kitchen_report()
    assert arms_of(report, "reference") == ("fixed_lexical:3_rows", "always_continue")
    assert arms_of(report, "adaptive") == ("fixed_lexical:4_rows", "always_continue:score_fusion")
    assert set(arms_of(report, "adaptive")) <= report["policies"].keys()


def test_stops_are_described_with_the_harm_and_its_interval():
    """The sentences give the counts, and the harm rate at the report's own confidence."""
    report = kitchen_report()
    report["settings"]["confidence"] = 0.9
    found = report["early_stops"]["adaptive"]
    found["cutoffs"]["3"] |= {
        "improved": 2,
        "unchanged": 9,
        "reduced": 1,
        "harm_rate": 0.166667,
        "harm_interval": [0.02, 0.5],
    }
    first, third, fourth = describe_stops(report, "adaptive")
    assert first.startswith(f"stopped after the first search in {found['stops']} of 24 queries; ")
    assert third == (
        "At k = 3, one more call would have ranked 2 better, 9 the same and 1 worse; harm rate 16.7% "
        "(exact 90% interval 2.0% to 50.0%)."
    )
    assert fourth.startswith("At k = 4, ")


def test_no_stop_has_no_harm_rate():
    """A policy that never stopped says so, and no rate is made of nothing."""
    report = kitchen_report()
    report["early_stops"]["adaptive"]["stops"] = 0
    assert describe_stops(report, "adaptive") == ["never stopped after the first search, in 24 queries."]


def test_the_live_check_names_what_differed():
    """Equal, different and absent checks are three sentences; at most five runs are named."""
    report = kitchen_report()
    assert describe_live(report).endswith("every packet and every trace was the same.")
    report["live_check"]["different"] = [["adaptive", f"q\n{place}"] for place in range(7)]
    assert describe_live(report).endswith(
        ": 7 gave another packet or another trace (adaptive on q 0, adaptive on q 1, adaptive on q 2, adaptive on q 3, "
        "adaptive on q 4 and 2 more)."
    )
    report["live_check"] = {"queries": 0, "runs": 0, "different": []}
    assert describe_live(report) == "No query was run again over the real searchers."


def test_a_survey_says_what_cannot_be_measured():
    """Every finding that is not empty has a line with its first ids; empty ones have none."""
    survey = kitchen_report()["collection"]["survey"]
    assert describe_survey(survey) == [
        "24 of 24 queries have a relevant unit and can be measured",
        "judgements: 4 of grade 1, 24 of grade 2 (graded)",
    ]
    survey |= {"other_splits": 1, "duplicate_query_texts": 2, "missing_units": {"count": 3, "first": ["a", "b\u202e"]}}
    assert describe_survey(survey)[2:] == [
        "judged by another split only, left out: 1 query",
        "relevant units that the index does not hold: 3 (a, b\ufffd, ...)",
        "queries whose text an earlier query has too: 2",
    ]


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (decimals(0.12345), "0.123"),
        (decimals(-0.00049), "0.000"),
        (decimals(-0.2, 1), "\u22120.2"),
        (decimals(None), "\u2013"),
        (signed(0.02), "+0.020"),
        (signed(-0.02), "\u22120.020"),
        (signed(0.0004), "0.000"),
        (signed(-0.0004), "0.000"),
        (signed(None), "\u2013"),
        (percent(0.0494), "4.9%"),
        (percent(None), "\u2013"),
    ],
)
def test_numbers_have_one_format(shown, text):
    """A zero has no sign, a minus is a minus, and nothing is a dash."""
    assert shown == text


@pytest.mark.parametrize(("confidence", "text"), [(0.95, "95%"), (0.999, "99.9%"), (0.57, "57%")])
def test_confidence_is_a_percentage_without_float_noise(confidence, text):
    """As many decimals as were asked for."""
    assert describe_confidence({"settings": {"confidence": confidence}}) == text


def test_one_line_is_one_printable_line():
    """No line break, no escape sequence, no reordering, no lone surrogate."""
    assert one_line("a\r\n b\u2028c\x1b[31m\u202ed\ud800") == "a b c\ufffd[31m\ufffdd\ufffd"


def test_a_report_without_adaptive_policies_has_none_to_show():
    """Fixed policies are shown, and nothing is adaptive."""
    report = without_adaptive(kitchen_report())
    assert adaptive_policies(report) == []
    assert [shown.name for shown in distinct_policies(report)][:2] == ["fixed_lexical", "fixed_dense"]
