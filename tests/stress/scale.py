"""How large a stress test is: short in the test suite, full with ``make stress``."""

from __future__ import annotations

import os


def is_full() -> bool:
    """Whether ``BOUNDED_RETRIEVAL_STRESS`` asks for the full form."""
    return os.environ.get("BOUNDED_RETRIEVAL_STRESS", "0") not in {"", "0"}


def scaled(short: int, full: int) -> int:
    """``full`` in the full form, else ``short``."""
    return full if is_full() else short
