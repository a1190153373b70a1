from __future__ import annotations

import random
import time
from itertools import combinations

import pytest

from bounded_retrieval.errors import RequestError
from bounded_retrieval.evaluation.slices import (
    DEFAULT_FRACTIONS,
    near_duplicate_groups,
    slice_fingerprint,
    split_slices,
)
from bounded_retrieval.policies.tokenize import tokenize

THREE = {"selection": 0.5, "certification": 0.3, "final": 0.2}
WORDS = [f"{first}{second}{third}" for first in "bcdfgklmnprst" for second in "aeiou" for third in "bcdfgklmnprstvz"]


def distinct_queries(count: int) -> list[tuple[str, str]]:
    """Queries no two of which share a term."""
    return [(f"q{number}", f"{WORDS[number]} {WORDS[-1 - number]}") for number in range(count)]


def random_queries(count: int, vocabulary: int, seed: int, longest: int = 9) -> list[tuple[str, str]]:
    """Queries of words drawn from a few, so that many are nearly the same."""
    chance = random.Random(seed)
    drawn = [chance.choices(WORDS[:vocabulary], k=chance.randint(0, longest)) for _ in range(count)]
    return [(f"q{number}", " ".join(words)) for number, words in enumerate(drawn)]


def groups_by_comparing_all(queries: list[tuple[str, str]], least: float) -> tuple[tuple[str, ...], ...]:
    """The same groups from the definition: every pair compared, groups joined until none is left to join."""
    terms = {query_id: set(tokenize(text)) for query_id, text in queries}
    groups = {query_id: {query_id} for query_id in terms}
    for one, other in combinations(terms, 2):
        union = terms[one] | terms[other]
        if not union or len(terms[one] & terms[other]) / len(union) >= least:
            joined = groups[one] | groups[other]
            groups.update(dict.fromkeys(joined, joined))
    return tuple(sorted({tuple(sorted(group)) for group in groups.values() if len(group) > 1}))


def test_slices_have_their_shares_and_every_query_once():
    """With nothing alike, sizes are exact and the slices together are the queries."""
    slices = split_slices(distinct_queries(400), fractions=THREE)
    assert {name: len(ids) for name, ids in slices.items()} == {"selection": 200, "certification": 120, "final": 80}
    assert sorted(sum(slices.values(), ())) == sorted(query_id for query_id, _ in distinct_queries(400))
    assert all(list(ids) == sorted(ids) for ids in slices.values())


@pytest.mark.parametrize(("queries", "sizes"), [(7, [4, 2, 1]), (11, [6, 3, 2]), (13, [6, 4, 3]), (3, [1, 1, 1])])
def test_shares_that_do_not_come_out_even_go_by_the_largest_remainder(queries, sizes):
    """Of few queries each slice has its share rounded, together all of them."""
    slices = split_slices(distinct_queries(queries), fractions=THREE)
    assert [len(ids) for ids in slices.values()] == sizes


def test_the_default_is_two_halves():
    """Selection and certification, half of the queries each."""
    assert dict(DEFAULT_FRACTIONS) == {"selection": 0.5, "certification": 0.5}
    assert {name: len(ids) for name, ids in split_slices(distinct_queries(100)).items()} == {
        "selection": 50,
        "certification": 50,
    }


def test_the_order_of_the_queries_is_irrelevant():
    """A shuffled file gives the same slices, near-duplicates and all."""
    queries = random_queries(200, 25, seed=1)
    expected = split_slices(queries, fractions=THREE, seed=4)
    for seed in range(5):
        shuffled = random.Random(seed).sample(queries, len(queries))
        assert split_slices(shuffled, fractions=THREE, seed=4) == expected
        assert near_duplicate_groups(shuffled) == near_duplicate_groups(queries)


def test_the_seed_decides_which_query_goes_where():
    """Another seed cuts otherwise, as chance would: about half of a half is the same."""
    one, other = (set(split_slices(distinct_queries(400), seed=seed)["selection"]) for seed in (0, 1))
    assert 70 <= len(one & other) <= 130


def test_the_cut_is_fixed_for_good():
    """A published fingerprint of a slice must be found again."""
    slices = split_slices(distinct_queries(20), fractions=THREE, seed=3)
    assert slices["final"] == ("q11", "q13", "q16", "q17")


def test_near_duplicates_stand_in_one_slice():
    """No pair that is nearly the same is parted, directly or through others between them."""
    queries = random_queries(300, 30, seed=2)
    groups = near_duplicate_groups(queries)
    assert len(groups) > 5
    slice_of = {query_id: name for name, ids in split_slices(queries, fractions=THREE).items() for query_id in ids}
    for group in groups:
        assert len({slice_of[query_id] for query_id in group}) == 1


def test_near_duplicates_leave_the_sizes_exact():
    """Small groups are made up for by the other queries."""
    copies = [(f"copy of {query_id}", f"{text.upper()}?") for query_id, text in distinct_queries(30)]
    slices = split_slices([*distinct_queries(170), *copies], fractions=THREE)
    assert [len(ids) for ids in slices.values()] == [100, 60, 40]


def test_a_group_beyond_every_share_takes_its_slice_over():
    """Where most queries are one, the slices without it share the rest by their shares."""
    same = [(f"same {number}", "reset the controller") for number in range(70)]
    slices = split_slices([*same, *distinct_queries(30)], fractions=THREE)
    assert [len(ids) for ids in slices.values()] == [70, 18, 12]


def test_large_groups_are_spread_over_the_slices():
    """Groups are placed largest first, each where the share is emptiest."""
    queries = [
        (f"{word} {number}", f"{word} manual")
        for word, size in zip(WORDS, (5, 4, 3, 2), strict=False)
        for number in range(size)
    ]
    slices = split_slices(queries)
    assert sorted(len(ids) for ids in slices.values()) == [7, 7]


@pytest.mark.parametrize(
    ("one", "other", "are_alike"),
    [
        ("Reset the HX-200", "reset, the hx-200!", True),
        ("how to reset a router", "how to reset router", True),  # 4 of 5 terms
        ("how to reset router", "how to restart router", False),  # 3 of 5
        ("reset reset reset", "reset", True),
        ("?", "!", True),
        ("?", "reset", False),
    ],
)
def test_what_is_nearly_the_same(one, other, are_alike):
    """Sets of terms are compared: case, punctuation, order and repeats do not count."""
    assert near_duplicate_groups([("a", one), ("b", other)]) == ((("a", "b"),) if are_alike else ())


def test_groups_go_from_neighbour_to_neighbour():
    """Of a chain of queries each like the next, the ends are in one group though they share little."""
    words = WORDS[:20]
    queries = [(f"q{at}", " ".join(words[at : at + 10])) for at in range(11)]
    assert near_duplicate_groups(queries) == (tuple(sorted(query_id for query_id, _ in queries)),)


@pytest.mark.parametrize("least", [0.1, 0.35, 0.5, 0.6, 2 / 3, 0.7, 0.75, 0.8, 0.9, 1])
def test_the_index_finds_the_groups_that_comparing_all_pairs_finds(least):
    """No pair is missed and none is made up, at any similarity, exact fractions included."""
    for seed in range(12):
        queries = random_queries(50, 3 + 2 * seed, seed=seed, longest=12)
        assert near_duplicate_groups(queries, near_duplicate=least) == groups_by_comparing_all(queries, least)


def test_a_similarity_hit_exactly_counts():
    """14 of 25 terms reach .56, though .56 * 25 is a little more than 14 in binary."""
    queries = [("a", " ".join(WORDS[:25])), ("b", " ".join(WORDS[:14]))]
    assert near_duplicate_groups(queries, near_duplicate=0.56) == (("a", "b"),)
    assert near_duplicate_groups(queries, near_duplicate=0.5601) == ()


def test_many_queries_of_one_pattern_take_no_time():
    """20,000 queries that share ten words and differ in two are told apart without comparing all pairs."""
    queries = [
        (f"q{number}", f"please tell me what is the capital city of {WORDS[number % 900]} number {number}")
        for number in range(20_000)
    ]
    started = time.process_time()
    groups = near_duplicate_groups(queries)
    assert time.process_time() - started < 4
    assert len(groups) == 900
    assert {len(group) for group in groups} == {22, 23}


def test_a_fingerprint_is_of_the_set():
    """Order is irrelevant; any other id, or another cut between ids, gives another one."""
    assert slice_fingerprint(["b", "a"]) == slice_fingerprint(iter(("a", "b")))
    assert len({slice_fingerprint(ids) for ids in (["a", "b"], ["ab"], ["a,b"], ['a", "b'], ["a"], [])}) == 6
    assert slice_fingerprint(["a", "b"]) == "3554d2b8a1e34099053865de8576d1460b807430ec8c6b85315c9607ba93d308"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fractions": {}}, "fractions: at least one slice (got none)"),
        ({"fractions": {"a": 0.5, "b": 0.4}}, "fractions: together 1 (got 0.9)"),
        ({"fractions": {"a": 1.5, "b": -0.5}}, "fractions.a: above 0 and at most 1 (got 1.5)"),
        ({"fractions": {"a": 1, "b": 0}}, "fractions.b: above 0 and at most 1 (got 0)"),
        ({"fractions": {"a": float("nan"), "b": 0.5}}, "fractions.a: above 0 and at most 1 (got nan)"),
        ({"fractions": {"a": 0.99, "b": 0.01}}, "fractions.b: no query for it (got 0.01 of 10 queries)"),
        ({"near_duplicate": 0}, "near_duplicate: above 0 and at most 1 (got 0)"),
        ({"near_duplicate": 1.1}, "near_duplicate: above 0 and at most 1 (got 1.1)"),
    ],
)
def test_what_cannot_be_cut_is_refused_in_one_line(options, message):
    """The message names the argument, its limit and the value."""
    with pytest.raises(RequestError) as error:
        split_slices(distinct_queries(10), **options)
    assert str(error.value) == message


def test_an_id_given_twice_is_refused():
    """One query in two slices would be tested on what it was chosen by."""
    with pytest.raises(RequestError, match=r"queries: ids must be unique \(got 'a' twice\)"):
        split_slices([("a", "one"), ("b", "two"), ("a", "three")])


def test_no_query_is_refused():
    """Nothing can be cut from nothing."""
    with pytest.raises(RequestError, match=r"fractions\.selection: no query for it \(got 0\.5 of 0 queries\)"):
        split_slices([])
