"""Count the lines of Python that run, as a measure of work that no other load on the machine can change.

What runs inside one call of C is not seen: that regular expressions are linear is proved elsewhere, and the rest shows
in the time that large inputs take.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def lines_of(run: Callable[[bytes], None], data: bytes) -> int:
    """How many lines run, in the package and in what it calls."""
    count = 0

    def trace_line(_frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace_line

    before = sys.gettrace()
    sys.settrace(trace_line)
    try:
        run(data)
    finally:
        sys.settrace(before)
    return count
