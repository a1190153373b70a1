from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bounded_retrieval.contracts.budget import Usage
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.trace import Scored, UnitsScored
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.policies.fusion import (
    FusedUnit,
    ReciprocalRankFusion,
    ScoreFusion,
    Scores,
    by_channel,
    fuse_found,
    scores_in,
    unscored,
)

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def ranked(channel: str, *unit_ids: str) -> list[Candidate]:
    """One channel's rows in this order."""
    return [
        Candidate(unit_id=unit_id, channel=channel, rank=rank, score=10 - rank)
        for rank, unit_id in enumerate(unit_ids, 1)
    ]


def fuse(lexical: str = "", dense: str = "", k: int = 60) -> list[tuple[str, float]]:
    """Fused ids and scores of two channels, given as ids in order."""
    candidates = ranked("lexical", *lexical.split()) + ranked("dense", *dense.split())
    return [(unit.unit_id, unit.score) for unit in ReciprocalRankFusion(k=k).fuse(by_channel(candidates))]


def order(lexical: str = "", dense: str = "") -> str:
    """Fused ids of two channels."""
    return " ".join(unit_id for unit_id, _ in fuse(lexical, dense))


def test_scores_worked_by_hand() -> None:
    """A unit's score is the sum of 1 / (60 + rank) over the channels that returned it."""
    assert fuse("a b c", "c d") == [
        ("c", 1 / 63 + 1 / 61),
        ("a", 1 / 61),
        ("b", 1 / 62),
        ("d", 1 / 62),
    ]


def test_k_is_the_constant() -> None:
    """Another k changes the scores as the formula says, and 0 is allowed."""
    assert fuse("a b", "b", k=0) == [("b", 1 / 2 + 1), ("a", 1.0)]


def test_a_negative_k_is_refused() -> None:
    """A k below 0 could divide by zero and is refused where it is given."""
    with pytest.raises(ConfigurationError, match=r"k: at least 0 \(got -1\)"):
        ReciprocalRankFusion(k=-1)


TIES = [
    ("a", "b", "a b"),
    ("b", "a", "b a"),
    ("a b", "c d", "a c b d"),
    ("a b", "b a", "a b"),
    ("z a", "a z", "z a"),
    ("a", "", "a"),
    ("", "b a", "b a"),
    ("", "", ""),
]


@pytest.mark.parametrize(("lexical", "dense", "expected"), TIES)
def test_tie_rule(lexical: str, dense: str, expected: str) -> None:
    """Equal scores go to the better best rank, then to the channel that gave it (lexical first), then to the id."""
    assert order(lexical, dense) == expected


def test_what_both_channels_found_beats_what_one_found() -> None:
    """Two third places beat one first place."""
    assert order("a x c", "b y c").split()[0] == "c"


def test_channel_results_are_kept() -> None:
    """Each fused unit says where every channel placed it, with the raw score."""
    (unit,) = ReciprocalRankFusion().fuse(by_channel(ranked("lexical", "a") + ranked("dense", "a")))
    assert {channel: (result.rank, result.score) for channel, result in unit.channels.items()} == {
        "lexical": (1, 9.0),
        "dense": (1, 9.0),
    }


def test_duplicates_in_one_channel_are_removed_first() -> None:
    """A unit's first row counts, later rows of it are removed and the rows behind them move up."""
    rankings = by_channel(ranked("lexical", "a", "b", "a", "c"))
    assert [(row.unit_id, row.rank) for row in rankings["lexical"]] == [("a", 1), ("b", 2), ("c", 3)]
    assert fuse("a b a c") == [("a", 1 / 61), ("b", 1 / 62), ("c", 1 / 63)]


def test_grouping_changes_no_candidate() -> None:
    """Ranking again from 1 copies the rows it was given."""
    rows = ranked("dense", "a", "b")[1:]
    assert by_channel(rows)["dense"][0].rank == 1
    assert rows[0].rank == 2
    assert "lexical" not in by_channel(rows)


lists = st.lists(st.sampled_from("abcdef"), max_size=8)


@untimed
@given(lists, lists)
def test_every_unit_is_ranked_once(lexical: list[str], dense: list[str]) -> None:
    """The fused ranking holds each returned unit exactly once, by falling score."""
    fused = fuse(" ".join(lexical), " ".join(dense))
    assert sorted(unit_id for unit_id, _ in fused) == sorted({*lexical, *dense})
    scores = [score for _, score in fused]
    assert scores == sorted(scores, reverse=True)


# Fusion of scores


def summed(
    lexical: dict[str, float],
    dense: dict[str, float],
    looked_up: dict[str, dict[str, float]] | None = None,
    attainable: float | None = None,
    dense_weight: float = 0.7,
) -> list[FusedUnit]:
    """Score fusion of two channels' rows, given as scores in rank order, and of scores that were looked up."""
    rankings = by_channel(scored("lexical", lexical) + scored("dense", dense))
    return ScoreFusion(dense_weight=dense_weight).fuse(
        rankings, all_scores(lexical, dense, looked_up or {}, attainable=attainable)
    )


def all_scores(lexical: Any, dense: Any, more: Any, *, attainable: float | None = None) -> Scores:
    """The scores of the rows and those looked up."""
    known = {"lexical": lexical | more.get("lexical", {}), "dense": dense | more.get("dense", {})}
    return Scores(**known, attainable=attainable)


def scored(channel: str, scores: dict[str, float | None]) -> list[Candidate]:
    """One channel's rows in this order, with these scores."""
    return [
        Candidate(unit_id=unit_id, channel=channel, rank=rank, score=score)
        for rank, (unit_id, score) in enumerate(scores.items(), 1)
    ]


def test_score_fusion_worked_by_hand() -> None:
    """Lexical shares of the best, times .3, and cosines from the lowest to 1, times .7, are added up for every unit."""
    fused = summed({"a": 4.0, "b": 2.0}, {"b": 0.8, "c": 0.4}, {"lexical": {"c": 1.0}, "dense": {"a": 0.2}})
    assert [unit.unit_id for unit in fused] == ["b", "a", "c"]
    assert [unit.score for unit in fused] == pytest.approx([0.15 + 0.525, 0.3, 0.075 + 0.175])
    assert [dict(unit.contributions) for unit in fused] == [
        {"lexical": pytest.approx(0.15), "dense": pytest.approx(0.525)},
        {"lexical": pytest.approx(0.3), "dense": 0.0},
        {"lexical": pytest.approx(0.075), "dense": pytest.approx(0.175)},
    ]


def test_lexical_scores_are_shares_of_what_is_attainable() -> None:
    """Where the most that a unit could score is known, a result far below it hardly counts; else the best is whole."""
    lexical, dense = {"a": 4.0, "b": 2.0}, {"b": 0.8}
    shares = [
        {unit.unit_id: unit.contributions["lexical"] for unit in summed(lexical, dense, attainable=most)}
        for most in (8.0, None, 3.0)
    ]
    assert shares[0] == {"a": pytest.approx(0.15), "b": pytest.approx(0.075)}
    assert shares[1] == shares[2] == {"a": pytest.approx(0.3), "b": pytest.approx(0.15)}


def test_crowded_similarities_decide_as_others_do() -> None:
    """Similarities squeezed into the range from .8 to 1 give the same order and the same sums."""

    def squeezed(similarities: dict[str, float]) -> dict[str, float]:
        return {unit_id: 0.8 + value / 5 for unit_id, value in similarities.items()}

    lexical, dense, more = {"a": 4.0, "b": 3.0}, {"c": 0.6, "d": 0.5}, {"a": 0.1, "b": 0.3}
    wide, narrow = summed(lexical, dense, {"dense": more}), summed(lexical, squeezed(dense), {"dense": squeezed(more)})
    assert [unit.unit_id for unit in narrow] == [unit.unit_id for unit in wide]
    assert [unit.score for unit in narrow] == pytest.approx([unit.score for unit in wide])


def test_similarities_above_1_count_up_to_the_highest() -> None:
    """Inner products of any size are spread between the lowest and the highest, however large."""
    for size in (3.0, 1e308):
        fused = {
            unit.unit_id: unit.contributions["dense"]
            for unit in summed({"a": 1.0}, {"b": size, "c": 0.0}, {"dense": {"a": -size}})
        }
        assert fused == {"a": 0.0, "b": pytest.approx(0.7), "c": pytest.approx(0.35)}


def test_score_fusion_keeps_where_each_channel_placed_a_unit() -> None:
    """A channel that only scored a unit contributes to it and has not placed it."""
    _, unit = summed({"a": 4.0}, {"b": 0.8}, {"dense": {"a": 0.2}}, dense_weight=0.9)
    assert (unit.unit_id, list(unit.channels), list(unit.contributions)) == ("a", ["lexical"], ["lexical", "dense"])
    assert (unit.channels["lexical"].rank, unit.channels["lexical"].score) == (1, 4.0)


def test_reciprocal_ranks_have_contributions_too() -> None:
    """Of reciprocal ranks only a channel that returned a unit contributes to it."""
    both, one = ReciprocalRankFusion().fuse(by_channel(ranked("lexical", "a", "b") + ranked("dense", "a")))
    assert dict(both.contributions) == {"lexical": 1 / 61, "dense": 1 / 61}
    assert dict(one.contributions) == {"lexical": 1 / 62}


def test_a_unit_that_a_channel_cannot_score_gains_nothing_there() -> None:
    """A score that nobody gave counts as 0, in the channel that lacks it only."""
    fused = {unit.unit_id: unit.contributions for unit in summed({"a": 4.0}, {"b": 0.8, "c": 0.6})}
    assert fused["a"] == {"lexical": pytest.approx(0.3), "dense": 0.0}
    assert fused["b"] == {"lexical": 0.0, "dense": pytest.approx(0.35)}


def test_lexical_scores_below_0_count_as_0_and_the_lowest_cosine_too() -> None:
    """Neither a negative lexical score nor a negative cosine takes anything away."""
    fused = {unit.unit_id: unit.contributions for unit in summed({"a": 2.0, "b": -3.0}, {"b": -0.5, "c": 0.25})}
    assert fused["b"] == {"lexical": 0.0, "dense": 0.0}
    assert fused["c"]["dense"] == pytest.approx(0.35)
    assert fused["a"]["lexical"] == pytest.approx(0.3)


def test_a_lexical_channel_without_a_positive_score_gains_nobody_anything() -> None:
    """Where the highest lexical score is 0 or less, nothing is divided by it."""
    for worst in (0.0, -1.0):
        assert [unit.contributions["lexical"] for unit in summed({"a": worst}, {"b": 0.8})] == [0.0, 0.0]


SCORE_TIES = [
    ({"a": 1.0}, {"b": 0.5}, 0.0, "a b"),
    ({"b": 2.0, "a": 2.0}, {"a": 0.5}, 0.0, "b a"),
    ({"z": 1.0, "y": 1.0}, {"x": 0.0}, 0.0, "z y x"),
    ({"b": 0.0}, {"a": 0.0}, 0.5, "b a"),
    ({"a": 0.0, "c": 0.0}, {"c": 0.0, "b": 0.0}, 0.5, "a c b"),
]


@pytest.mark.parametrize(("lexical", "dense", "weight", "expected"), SCORE_TIES)
def test_equal_sums_fall_back_to_the_tie_rule(lexical: Any, dense: Any, weight: float, expected: str) -> None:
    """Equal sums go to the better best rank, then to the lexical channel, then to the smaller id."""
    assert " ".join(unit.unit_id for unit in summed(lexical, dense, dense_weight=weight)) == expected


@pytest.mark.parametrize(
    ("terms", "weight"),
    [(None, 0.5), (0, 0.7), (1, 0.7), (2, 0.7), (3, 0.66), (7, 0.5), (11, 0.34), (12, 0.3), (90, 0.3)],
)
def test_the_more_terms_a_query_has_the_less_the_dense_channel_weighs(terms: int | None, weight: float) -> None:
    """.7 up to two terms, .04 less for each further one, .3 from twelve on, .5 where nobody says; it is what counts."""
    fusion, rankings = ScoreFusion(), by_channel(scored("lexical", {"a": 4.0}) + scored("dense", {"b": 0.8}))
    assert fusion.weight_for(terms) == weight
    fused = fusion.fuse(rankings, Scores(lexical={"a": 4.0}, dense={"b": 0.8, "a": 0.0}, terms=terms))
    gained = {unit.unit_id: dict(unit.contributions) for unit in fused}
    assert gained["a"] == {"lexical": pytest.approx(1 - weight), "dense": 0.0}
    assert gained["b"] == {"lexical": 0.0, "dense": pytest.approx(0.8 * weight)}


def test_a_weight_of_ones_own_holds_for_every_query() -> None:
    """Where a weight is given, the number of terms changes nothing."""
    assert {ScoreFusion(dense_weight=0.0).weight_for(terms) for terms in (None, 1, 7, 90)} == {0.0}


@pytest.mark.parametrize("weight", [-0.1, 1.1, float("nan"), "0.5"])
def test_a_weight_outside_0_to_1_is_refused(weight: Any) -> None:
    """A weight that is no share is refused where it is given."""
    with pytest.raises(ConfigurationError, match=r"dense_weight: 0 to 1 \(got"):
        ScoreFusion(dense_weight=weight)


number = st.floats(-2, 9, allow_nan=False).map(lambda value: round(value, 3))
ids = st.sampled_from("abcdefgh")
score_maps = st.dictionaries(ids, number, min_size=1, max_size=6)
weights = st.integers(0, 20).map(lambda value: value / 20)


def again(
    lexical: dict[str, float],
    dense: dict[str, float],
    scores: dict[str, dict[str, float]],
    weight: float,
    attainable: float | None,
) -> list[tuple[str, float]]:
    """Score fusion written down once more, from its definition."""
    units = set(lexical) | set(dense)
    top = max(attainable or 0.0, *(scores["lexical"].get(unit, 0.0) for unit in units))
    known = [scores["dense"][unit] for unit in units if unit in scores["dense"]]
    low, high = min(known), max(1.0, *known)
    total = {}
    for unit in units:
        share = max(scores["lexical"].get(unit, 0.0), 0.0) / top if top > 0 else 0.0
        spread = (scores["dense"][unit] - low) / (high - low) if unit in scores["dense"] and high > low else 0.0
        total[unit] = (1 - weight) * share + weight * spread

    def place(unit: str) -> tuple[float, int, int, str]:
        ranks = [
            (list(each).index(unit) + 1, position) for position, each in enumerate((lexical, dense)) if unit in each
        ]
        return (-total[unit], *min(ranks), unit)

    return [(unit, total[unit]) for unit in sorted(units, key=place)]


@untimed
@given(st.tuples(*[score_maps] * 4), weights, st.none() | st.floats(0.5, 20))
def test_score_fusion_is_what_its_definition_says(maps: Any, weight: float, attainable: float | None) -> None:
    """An independent computation gives the same order and the same sums, whatever was looked up."""
    lexical, dense, more, others = maps
    fused = summed(lexical, dense, {"lexical": others, "dense": more}, dense_weight=weight, attainable=attainable)
    expected = again(lexical, dense, {"lexical": lexical | others, "dense": dense | more}, weight, attainable)
    assert [unit.unit_id for unit in fused] == [unit_id for unit_id, _ in expected]
    assert [unit.score for unit in fused] == pytest.approx([score for _, score in expected])


@untimed
@given(score_maps, score_maps, score_maps, weights)
def test_contributions_add_up(lexical: Any, dense: Any, more: Any, weight: float) -> None:
    """A fused score is exactly the sum of what the channels contributed, each of which contributed to every unit."""
    for unit in summed(lexical, dense, {"dense": more}, dense_weight=weight):
        assert unit.score == sum(unit.contributions.values())
        assert list(unit.contributions) == ["lexical", "dense"]


@untimed
@given(score_maps, score_maps, score_maps, st.randoms(use_true_random=False))
def test_the_order_in_which_scores_are_told_changes_nothing(lexical: Any, dense: Any, more: Any, chance: Any) -> None:
    """Neither the order of the scores, nor that of the channels, nor a score of a unit that nobody returned matters."""
    rankings = by_channel(scored("lexical", lexical) + scored("dense", dense))
    scores = {"lexical": lexical | more, "dense": dense | more}
    shuffled = {}
    for channel in ("dense", "lexical"):
        pairs = [*scores[channel].items(), ("nobody", 99.0)]
        chance.shuffle(pairs)
        shuffled[channel] = dict(pairs)
    turned = dict(reversed(list(rankings.items())))
    assert ScoreFusion().fuse(turned, Scores(**shuffled)) == ScoreFusion().fuse(rankings, Scores(**scores))


# What is fused by what


def test_without_scores_ranks_decide() -> None:
    """A fusion of scores gives way to reciprocal ranks where there are none, and its name is not claimed."""
    rankings = by_channel(scored("lexical", {"a": 1.0}) + scored("dense", {"b": 2.0}))
    fused = fuse_found(ScoreFusion(), rankings, None)
    assert (fused.by, fused.ranking) == ("rrf", ReciprocalRankFusion().fuse(rankings))


@pytest.mark.parametrize("channel", ["lexical", "dense"])
def test_one_list_keeps_its_own_order(channel: str) -> None:
    """With one channel only, its order stands, whatever its scores say."""
    rankings = by_channel(scored(channel, {"a": 1.0, "b": 2.0}))
    fused = fuse_found(ScoreFusion(), rankings, Scores(lexical={}, dense={}))
    assert (fused.by, [unit.unit_id for unit in fused.ranking]) == ("rrf", ["a", "b"])


def test_with_scores_they_decide_and_ranks_otherwise() -> None:
    """A fusion of scores is handed them; one of ranks is called without them."""
    rankings = by_channel(scored("lexical", {"a": 1.0, "b": 0.9}) + scored("dense", {"b": 0.7}))
    scores = Scores(lexical={"a": 1.0, "b": 0.9}, dense={"a": 0.1, "b": 0.7})
    by_score, by_rank = (fuse_found(fusion, rankings, scores) for fusion in (ScoreFusion(), ReciprocalRankFusion(k=3)))
    assert (by_score.by, by_score.ranking) == ("score_fusion", ScoreFusion().fuse(rankings, scores))
    assert (by_rank.by, by_rank.ranking) == ("rrf", ReciprocalRankFusion(k=3).fuse(rankings))


def test_only_what_the_other_channel_returned_has_to_be_scored() -> None:
    """Per channel those units stand, in the order in which they were first returned, that it did not return itself."""
    rankings = by_channel(ranked("lexical", "a", "b", "c") + ranked("dense", "d", "b"))
    assert unscored(rankings) == {"lexical": ["d"], "dense": ["a", "c"]}
    assert unscored({}) == {"lexical": [], "dense": []}


def test_scores_are_those_of_the_rows_and_those_looked_up() -> None:
    """Both kinds are put together; a row without a score, a failed look-up or none at all leaves no scores."""
    rankings = by_channel(scored("lexical", {"a": 4.0}) + scored("dense", {"b": 0.8}))
    found = UnitsScored(scores={"dense": (Scored(unit_id="a", score=0.2),)}, attainable=9.0, usage=Usage())
    assert scores_in(rankings, found) == Scores(lexical={"a": 4.0}, dense={"b": 0.8, "a": 0.2}, attainable=9.0)
    assert scores_in(rankings, found, 3) == Scores(
        lexical={"a": 4.0}, dense={"b": 0.8, "a": 0.2}, attainable=9.0, terms=3
    )
    assert scores_in(rankings, None) is None
    assert scores_in(rankings, found.model_copy(update={"why_not": "failed"})) is None
    unscored_row = by_channel(scored("lexical", {"a": None}) + scored("dense", {"b": 0.8}))
    assert scores_in(unscored_row, found) is None
