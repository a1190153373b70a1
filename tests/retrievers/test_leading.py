from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bounded_retrieval.retrievers import _leading
from bounded_retrieval.retrievers._leading import leading


def plainly(values: np.ndarray, k: int, slack: float, above: float) -> list[int]:
    """The same by sorting everything."""
    counting = sorted((value for value in values.tolist() if value > above), reverse=True)
    bar = counting[k - 1] - slack if len(counting) >= k else -np.inf
    return [row for row, value in enumerate(values.tolist()) if value > above and value >= bar]


@given(
    held=st.lists(st.integers(0, 6), max_size=120),
    k=st.integers(1, 20),
    slack=st.sampled_from([0.0, 1.0, 2.5]),
    above=st.sampled_from([-np.inf, 0.0, 3.0]),
)
def test_the_leading_rows_are_those_that_sorting_finds(held: list[int], k: int, slack: float, above: float) -> None:
    """With ties, few values that count, blocks that are not full, and more asked for than there is."""
    values = np.array(held, dtype=np.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_leading, "_BLOCK", 7)
        assert leading(values, k, slack, above).tolist() == plainly(values, k, slack, above)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_hundred_thousand_values(kind: type) -> None:
    """At full block size, for 32 and 64 bits."""
    values = np.random.default_rng(5).random(100_001).round(4).astype(kind)
    for k in (1, 6, 97, 98, 5_000):
        assert leading(values, k, 0.001).tolist() == plainly(values, k, 0.001, -np.inf)
