"""Read a JSON object out of a user's file or a line of it, with errors that say where and what is wrong."""

from __future__ import annotations

import json
from typing import Any

from bounded_retrieval.errors import SourceError

_JSON_SPACE = " \t\r\n"


def parse_object(text: str, where: str) -> dict[str, Any]:
    """Parse a line, or a whole file, that should hold one JSON object.

    Args:
        text: the line or the file; its end, for errors, is where it last holds something.
        where: the file, with the line where ``text`` is one, for errors.

    Raises:
        SourceError: the text is not JSON, or another value than an object; names the column, counted from 1, and
            beside it the line where the text has several.
    """
    text = text.rstrip(_JSON_SPACE)
    try:
        record = json.loads(text)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if "\n" in text else ""
        raise SourceError(f"{where}: not JSON ({error.msg}, {line}column {error.colno})") from error
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
