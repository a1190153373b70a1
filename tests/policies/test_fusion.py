from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.policies.fusion import ReciprocalRankFusion, by_channel

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
