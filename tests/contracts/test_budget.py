from __future__ import annotations

import pytest
from pydantic import ValidationError

from bounded_retrieval.contracts.budget import MAX_ITERATIONS, Budget, Usage, remaining

LIMITS = [
    ("max_calls", 2, 2),
    ("max_iterations", 2, 2),
    ("max_rows", 6, 200),
    ("max_reads", 6, 200),
    ("max_units", 4, 50),
    ("max_chars", 4000, 200_000),
    ("deadline_ms", None, 600_000),
]


@pytest.mark.parametrize(("name", "default", "ceiling"), LIMITS)
def test_defaults_and_ceilings(name: str, default: int | None, ceiling: int) -> None:
    """Each limit has its declared default, accepts 0 and its hard ceiling, and nothing beyond either."""
    assert getattr(Budget(), name) == default
    for accepted in (0, ceiling):
        assert getattr(Budget(**{name: accepted}), name) == accepted
    for refused in (-1, ceiling + 1):
        with pytest.raises(ValidationError, match=name):
            Budget(**{name: refused})


def test_the_table_is_complete() -> None:
    """No limit exists that the table above does not list."""
    assert set(Budget.model_fields) == {name for name, _, _ in LIMITS}


@pytest.mark.parametrize("value", [True, 1.0, "1", float("nan"), [1]])
@pytest.mark.parametrize("name", [name for name, _, _ in LIMITS])
def test_limits_are_whole_numbers(name: str, value: object) -> None:
    """Nothing but an integer is taken for a limit; no text, float or boolean is coerced."""
    with pytest.raises(ValidationError, match=name):
        Budget(**{name: value})


@pytest.mark.parametrize("name", [name for name, default, _ in LIMITS if default is not None])
def test_only_the_deadline_may_be_none(name: str) -> None:
    """A counted limit cannot be switched off."""
    with pytest.raises(ValidationError, match=name):
        Budget(**{name: None})


def test_unknown_limits_are_refused() -> None:
    """A misspelt limit is an error, not an unlimited run."""
    with pytest.raises(ValidationError, match="max_call"):
        Budget(max_call=1)


def test_budget_and_usage_are_frozen() -> None:
    """Neither limits nor spend can be changed in place."""
    with pytest.raises(ValidationError, match="frozen"):
        Budget().max_calls = 1
    with pytest.raises(ValidationError, match="frozen"):
        Usage().calls = 1


def test_max_iterations_is_hard_wired() -> None:
    """Two iterations are the most a run can be given."""
    assert MAX_ITERATIONS == 2
    with pytest.raises(ValidationError, match="max_iterations"):
        Budget(max_iterations=MAX_ITERATIONS + 1)


def test_usage_starts_at_nothing() -> None:
    """A run that has done nothing has spent nothing."""
    assert set(Usage().model_dump().values()) == {0}


def test_remaining_is_limit_minus_spend() -> None:
    """What is left of each counted limit is the limit minus the spend."""
    usage = Usage(calls=1, dense_calls=1, iterations=1, rows=5, reads=2, units=3, chars=100)
    assert remaining(Budget(), usage) == {
        "calls": 1,
        "iterations": 1,
        "rows": 1,
        "reads": 4,
        "units": 1,
        "chars": 3900,
    }


def test_remaining_is_never_negative() -> None:
    """Even a spend above a limit leaves 0, not less."""
    usage = Usage(calls=9, iterations=9, rows=999, reads=999, units=99, chars=999_999)
    assert set(remaining(Budget(), usage).values()) == {0}


def test_a_deadline_is_not_counted_down() -> None:
    """The deadline is a clock value and stands in no remainder, so traces without one hold no clock value."""
    assert remaining(Budget(deadline_ms=5), Usage()) == remaining(Budget(), Usage())
