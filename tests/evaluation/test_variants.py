from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from bounded_retrieval.contracts.assessment import AssessmentInput, CoverageAssessment
from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.errors import ConfigurationError, RequestError
from bounded_retrieval.evaluation.variants import (
    ALWAYS,
    OWN_ROWS,
    REFERENCE,
    Variant,
    default_variants,
    read_variants,
)
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.policies.fusion import ReciprocalRankFusion, ScoreFusion
from bounded_retrieval.policies.registry import ASSESSORS, DEFAULT_ASSESSOR, DEFAULT_FUSION, FUSIONS

LIMITS = Budget()


def read(name: str, budget: Budget | None = None) -> Variant:
    """The variant of a name."""
    (found,) = read_variants([name], budget)
    return found


def test_the_names_of_the_contract_are_all_there_by_default() -> None:
    """Fixed policies, every fusion, the reference, every assessor; each under its own name."""
    found = {variant.name: variant for variant in default_variants()}
    assert {"fixed_lexical", "fixed_dense", "always_continue", "reference", "adaptive"} <= found.keys()
    assert {f"always_continue:{fusion}" for fusion in FUSIONS} <= found.keys()
    assert {f"adaptive:{assessor}" for assessor in ASSESSORS} <= found.keys()
    assert len(found) == len(default_variants())
    own = found["adaptive"]
    assert (own.assessor, own.fusion, own.first_hop_rows) == (DEFAULT_ASSESSOR, DEFAULT_FUSION, OWN_ROWS)
    assert found["always_continue"] is ALWAYS
    assert found["reference"] is REFERENCE


def test_a_name_says_what_runs() -> None:
    """Rows of a fixed policy, a fusion, an assessor, a threshold."""
    three = read("fixed_dense:3_rows")
    assert (three.policy, three.most_rows, three.rows_of(LIMITS)) == ("fixed_dense", 3, 3)
    assert read("always_continue:rrf").fusion == "rrf"
    idf = read("adaptive:idf_coverage@0.75")
    assert (idf.policy, idf.assessor, idf.threshold) == ("adaptive", "idf_coverage", 0.75)
    assert read("adaptive@1").threshold == 1
    assert read("adaptive@0").threshold == 0
    assert [variant.name for variant in read_variants(["reference", "fixed_dense", "reference"])] == [
        "reference",
        "fixed_dense",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "",
        "adaptiv",
        "fixed",
        "fixed_lexical:rrf",
        "fixed_lexical@0.5",
        "fixed_dense:0_rows",
        "fixed_dense:-1_rows",
        "adaptive:3_rows",
        "always_continue@0.5",
        "always_continue:3_rows",
        "adaptive@1.5",
        "adaptive@.",
        "adaptive@nan",
        "adaptive@",
        "reference@0.5",
        "reference:rrf",
        "adaptive:",
        "adaptive\n",
        " adaptive",
    ],
)
def test_other_names_are_refused_in_one_line(name: str) -> None:
    """With the name as it was given."""
    with pytest.raises(RequestError, match="policies: ") as caught:
        read(name)
    assert "\n" not in str(caught.value)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "known"), [("adaptive:none", list(ASSESSORS)), ("always_continue:sum", list(FUSIONS))]
)
def test_unknown_parts_are_refused_with_those_that_there_are(name: str, known: list[str]) -> None:
    """Of assessors and of fusions."""
    with pytest.raises(ConfigurationError, match=", ".join(known)):
        read(name)


def test_depths_follow_from_the_limits_as_a_builders_do() -> None:
    """Two thirds of the rows for the package's own parts; the reference keeps three."""
    narrow = Budget(max_rows=3)
    assert read("adaptive", narrow).first_hop_rows == 2
    assert read("adaptive").first_hop_rows == OWN_ROWS == 4
    assert read("reference", narrow).first_hop_rows == 3
    graph = Variant(name="v", policy="fixed_lexical", most_rows=9)
    assert graph.rows_of(narrow) == 3


def test_policies_that_share_allowances_are_told_apart_in_words() -> None:
    """Candidate depth, actions and ranking rule."""
    assert read("fixed_dense:3_rows").describe(LIMITS) == {
        "depth": "3",
        "actions": "dense search",
        "ranking": "by dense score",
    }
    assert REFERENCE.describe(LIMITS) == {
        "depth": "3 + 3",
        "actions": "lexical search, then dense search unless term_coverage reaches 0.8",
        "ranking": "rrf",
    }
    assert read("always_continue:score_fusion").describe(LIMITS) == {
        "depth": f"{OWN_ROWS} + {6 - OWN_ROWS}",
        "actions": "lexical search, then dense search",
        "ranking": "score_fusion",
    }
    assert REFERENCE.describe(Budget(max_rows=2))["depth"] == "2 + 0"


def test_both_arms_keep_depths_and_fusion_and_decide_nothing() -> None:
    """Stopping always is a short lexical search; going on always has a name of its own wherever it differs."""
    stop, further = REFERENCE.stop_arm(), REFERENCE.continue_arm()
    assert (stop.policy, stop.rows_of(LIMITS), stop.first_hop_rows) == ("fixed_lexical", 3, 3)
    assert stop.is_like(read("fixed_lexical:3_rows"), LIMITS)
    assert (further.name, further.is_like(ALWAYS, LIMITS)) == ("always_continue", True)
    own = read("adaptive:term_coverage@0.3").continue_arm()
    assert (own.name, own.is_like(read(f"always_continue:{DEFAULT_FUSION}"), LIMITS)) == (
        f"always_continue:{DEFAULT_FUSION}",
        True,
    )
    names = {
        replace(REFERENCE, first_hop_rows=rows, is_reference=False).continue_arm().name for rows in (1, 3, OWN_ROWS, 5)
    }
    assert len(names) == 4


def test_variants_are_alike_if_they_differ_in_nothing_but_names() -> None:
    """Spelled out or by default; an assessor counts where it decides; rows count as far as the limits let them."""
    adaptive = read("adaptive:term_coverage@0.8")
    assert adaptive.is_like(read("adaptive:term_coverage"), LIMITS)
    assert adaptive.is_like(replace(adaptive, assessor=TermCoverage(), fusion=ScoreFusion()), LIMITS)
    assert not adaptive.is_like(read("adaptive:term_coverage@0.9"), LIMITS)
    assert not adaptive.is_like(replace(adaptive, fusion=ReciprocalRankFusion(k=1)), LIMITS)
    assert not adaptive.is_like(replace(adaptive, assessor=TermCoverage(default_threshold=0.5)), LIMITS)
    assert replace(ALWAYS, assessor="scorecard", threshold=0.1).is_like(ALWAYS, LIMITS)
    assert not replace(ALWAYS, first_hop_rows=2).is_like(ALWAYS, LIMITS)
    six = read("fixed_dense:6_rows")
    assert six.is_like(read("fixed_dense"), LIMITS)
    assert not six.is_like(read("fixed_dense"), Budget(max_rows=8))


@dataclass
class Unhashable:
    """An assessor of the caller's own, compared by value and not to be hashed."""

    name: ClassVar[str] = "own"
    default_threshold: float = 0.5

    @property
    def settings(self) -> dict[str, Any]:
        return {}

    def assess(self, given: AssessmentInput) -> CoverageAssessment:
        return TermCoverage().assess(given)


def test_an_assessor_of_the_callers_need_not_hash() -> None:
    """It is compared."""
    with pytest.raises(TypeError):
        hash(Unhashable())
    one = Variant(name="one", policy="adaptive", assessor=Unhashable())
    assert one.is_like(replace(one, name="other", assessor=Unhashable()), LIMITS)
    assert not one.is_like(replace(one, assessor=Unhashable(0.4)), LIMITS)
