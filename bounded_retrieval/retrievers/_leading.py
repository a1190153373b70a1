"""The largest of many values, found without ordering or even touching most of them twice."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1_024


def leading(values: NDArray[Any], k: int, slack: float, above: float = -np.inf) -> NDArray[np.int64]:
    """Rows, ascending, of the values that are at most ``slack`` smaller than the ``k``-th largest.

    Args:
        values: shape (rows,), none of them NaN.
        k: 1 or more.
        slack: 0 or more.
        above: only values larger than this count.
    """
    rows = _in_leading_blocks(values, k, slack, above)
    if len(rows) <= k:
        return rows
    held = values[rows]
    bar = np.partition(held, len(rows) - k)[len(rows) - k]
    found: NDArray[np.int64] = rows[held >= bar - slack]
    return found


def _in_leading_blocks(values: NDArray[Any], k: int, slack: float, above: float) -> NDArray[np.int64]:
    """At least the rows wanted, and few others.

    Each of the k blocks with the largest maxima holds a value as large as the smallest of these, so the k-th largest
    of all is no smaller.
    """
    count = len(values) // _BLOCK
    if count <= k:
        return np.flatnonzero(values > above)
    end = count * _BLOCK
    blocks = values[:end].reshape(count, _BLOCK)
    maxima = blocks.max(axis=1)
    limit = np.partition(maxima, count - k)[count - k] - slack
    chosen = np.flatnonzero((maxima >= limit) & (maxima > above))
    inside = np.flatnonzero((blocks[chosen] >= limit) & (blocks[chosen] > above))
    tail = values[end:]
    in_tail = np.flatnonzero((tail >= limit) & (tail > above))
    return np.concatenate([chosen[inside // _BLOCK] * _BLOCK + inside % _BLOCK, end + in_tail])
