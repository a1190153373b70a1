"""Read a JSON object out of a line of a user's file, with errors that say where and what is wrong."""

from __future__ import annotations

import json
from typing import Any

from bounded_retrieval.errors import SourceError


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a line that should hold one JSON object.

    Args:
        text: the line.
        where: file and line, for errors.

    Raises:
        SourceError: the text is not JSON, or another value than an object.
    """
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        raise SourceError(f"{where}: not JSON ({error.msg}, column {error.colno})") from error
    except RecursionError as error:
        raise SourceError(f"{where}: not readable JSON (nested too deeply)") from error
    except ValueError as error:  # Python reads no whole number of more than 4,300 digits
        raise SourceError(f"{where}: not readable JSON (a number is too long)") from error
    if not isinstance(record, dict):
        raise SourceError(f"{where}: expected a JSON object (got {kind_of(record)})")
    return record


def kind_of(value: Any) -> str:
    """What a JSON value is, in words."""
    kinds = {str: "text", bool: "true or false", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), "null")
