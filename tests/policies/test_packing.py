from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bounded_retrieval.contracts.packet import SEPARATOR
from bounded_retrieval.policies.packing import Packing, pack

untimed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def packed(*lengths: int, max_units: int = 4, max_chars: int = 100) -> Packing:
    """What is packed of units of these lengths, ranked a, b, c."""
    named = dict(zip("abcdefgh", lengths, strict=False))
    return pack(list(named), named, max_units, max_chars)


def skips(packing: Packing) -> dict[str, str]:
    """Why each skipped unit was skipped."""
    return {skip.unit_id: skip.limit for skip in packing.skipped}


def test_units_are_taken_in_rank_order() -> None:
    """What fits is packed in the order of the ranking, and its characters are counted with separators."""
    packing = packed(10, 20, 30)
    assert packing.unit_ids == ("a", "b", "c")
    assert packing.chars == 10 + 20 + 30 + 2 * len(SEPARATOR)
    assert packing.skipped == ()


def test_separators_count() -> None:
    """Two units that would fit without the separator do not fit with it."""
    assert packed(49, 49, max_chars=100).unit_ids == ("a", "b")
    assert packed(49, 50, max_chars=100).unit_ids == ("a",)


def test_a_unit_that_fits_to_the_character_is_packed() -> None:
    """A single unit may fill the packet, since no separator stands beside it."""
    assert packed(100, max_chars=100).chars == 100


def test_a_unit_too_long_alone_is_skipped_and_noted() -> None:
    """A unit longer than the packet is never cut: it is skipped, with its length and the limit, and the next is taken."""
    packing = packed(101, 20)
    assert packing.unit_ids == ("b",)
    assert skips(packing) == {"a": "fits_alone"}
    assert packing.skipped[0].chars == 101


def test_a_smaller_later_unit_is_taken() -> None:
    """A unit that does not fit the characters left does not keep a smaller one behind it out."""
    packing = packed(60, 50, 30)
    assert packing.unit_ids == ("a", "c")
    assert skips(packing) == {"b": "max_chars"}


def test_max_units_is_named_as_the_limit() -> None:
    """Beyond ``max_units`` every further unit is skipped for that limit, even one that would fit."""
    packing = packed(1, 1, 1, 200, max_units=2)
    assert packing.unit_ids == ("a", "b")
    assert skips(packing) == {"c": "max_units", "d": "fits_alone"}


def test_limits_of_0_pack_nothing() -> None:
    """Without a unit or a character allowed the packet is empty."""
    assert packed(1, max_units=0).unit_ids == ()
    assert packed(1, max_chars=0).unit_ids == ()
    assert packed() == Packing(unit_ids=(), chars=0, skipped=())


@untimed
@given(st.lists(st.integers(0, 60), max_size=8), st.integers(0, 5), st.integers(0, 120))
def test_never_over_the_limits(lengths: list[int], max_units: int, max_chars: int) -> None:
    """Whatever the lengths: within both limits, counted as the joined text would be, and every unit packed or skipped once."""
    packing = packed(*lengths, max_units=max_units, max_chars=max_chars)
    named = dict(zip("abcdefgh", lengths, strict=False))
    text = SEPARATOR.join("x" * named[unit_id] for unit_id in packing.unit_ids)
    assert packing.chars == len(text) <= max_chars
    assert len(packing.unit_ids) <= max_units
    assert sorted([*packing.unit_ids, *skips(packing)]) == list(named)
    assert list(packing.unit_ids) == sorted(packing.unit_ids)


@untimed
@given(st.lists(st.integers(0, 60), max_size=8), st.integers(0, 5), st.integers(0, 120))
def test_nothing_that_would_fit_is_left_out(lengths: list[int], max_units: int, max_chars: int) -> None:
    """Every unit skipped for characters would have burst the packet at its turn."""
    packing = packed(*lengths, max_units=max_units, max_chars=max_chars)
    for skip in packing.skipped:
        before = [unit_id for unit_id in packing.unit_ids if unit_id < skip.unit_id]
        spent = sum(lengths["abcdefgh".index(unit_id)] for unit_id in before) + len(SEPARATOR) * len(before)
        assert skip.limit == "max_units" or spent + skip.chars > max_chars
