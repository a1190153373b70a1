"""Bring foreign text and metadata into the JSON-native form that state, checkpoints and packets hold."""

from __future__ import annotations

import datetime as dt
import hashlib
import math
import re
from collections.abc import Mapping
from typing import Any

CONTENT_ID_PREFIX = "sha256:"
"""Begins the id of a unit that is named by its content."""

_PART_DIGITS = 16
_PART_ID = re.compile(rf"(.+)#(?:[^#]*-)?[0-9a-f]{{{_PART_DIGITS}}}", re.DOTALL)

MAX_JSON_INT = 2**63 - 1
MIN_JSON_INT = -(2**63)
MAX_METADATA_DEPTH = 8
MAX_DECIMAL_BITS = 4096
"""Integers above this are written in hexadecimal: beyond 4,300 digits Python refuses to write decimals."""

# NUL cannot be stored by PostgreSQL and lone surrogates cannot be encoded as UTF-8.
_UNSTORABLE = re.compile(r"[\x00\ud800-\udfff]")


DASHES = re.compile("[\u2010-\u2013\u2212]")
"""Dashes that join, as a hyphen does."""


def clean_text(text: str) -> str:
    """Replace NUL and lone surrogates by U+FFFD; every other character is kept."""
    if type(text) is str and text.isascii() and "\0" not in text:
        return text  # nothing to replace, and known without looking at each character
    return _UNSTORABLE.sub("�", text)


def fingerprint(text: str) -> str:
    """Identity of a text: the first 32 hexadecimal digits of the SHA-256 of its UTF-8 bytes."""
    return hashlib.sha256(clean_text(text).encode()).hexdigest()[:32]


def content_id(text: str) -> str:
    """Stable unit id for a document that brings none: ``sha256:`` and the text's fingerprint."""
    return f"{CONTENT_ID_PREFIX}{fingerprint(text)}"


def part_id(source: str, slug: str, text: str) -> str:
    """Stable id of a part of a source, such as ``guide.md#install-2f6c0d9a81b3e447``: it counts no positions.

    Args:
        source: what it is a part of.
        slug: what a person knows it by, without ``#``; may be empty.
        text: what tells it from other parts.
    """
    digest = fingerprint(text)[:_PART_DIGITS]
    return f"{source}#{slug}-{digest}" if slug else f"{source}#{digest}"


def source_of_part(unit_id: str) -> str | None:
    """The source in an id that `part_id` may have made; none in any other."""
    found = _PART_ID.fullmatch(unit_id)
    return None if found is None else found[1]


def clean_metadata(metadata: Mapping[Any, Any]) -> tuple[dict[str, Any], bool]:
    """Copy metadata into JSON-native values.

    numpy scalars become Python ones, dates become ISO 8601 strings, integers beyond 64 bits, non-finite
    floats and values of any other type become ``str``. The argument is never changed.

    Returns:
        The copy, and whether any value had to be turned into a string (the caller notes it).
    """
    changed: list[str] = []
    cleaned = {clean_text(str(key)): _clean_value(value, changed, 1) for key, value in metadata.items()}
    return cleaned, bool(changed)


def _clean_value(value: Any, changed: list[str], depth: int) -> Any:
    if isinstance(value, str):
        return clean_text(value if type(value) is str else str.__str__(value))
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value) if MIN_JSON_INT <= value <= MAX_JSON_INT else _as_text(value, changed)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else _as_text(value, changed)
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    return _clean_other(value, changed, depth)


def _clean_other(value: Any, changed: list[str], depth: int) -> Any:
    if depth < MAX_METADATA_DEPTH:
        if isinstance(value, Mapping):
            return {clean_text(str(k)): _clean_value(v, changed, depth + 1) for k, v in value.items()}
        if isinstance(value, (list, tuple)):
            return [_clean_value(item, changed, depth + 1) for item in value]
        if isinstance(value, (set, frozenset)):
            # Sets come in another order in every process.
            return sorted((_clean_value(item, changed, depth + 1) for item in value), key=repr)
        # numpy scalars (and arrays of one) convert themselves; larger arrays have a size above one.
        if callable(getattr(value, "item", None)) and getattr(value, "size", None) == 1:
            return _clean_value(_from_numpy(value), changed, depth + 1)
    return _as_text(value, changed)


def _from_numpy(value: Any) -> Any:
    item = value.item()
    # Times finer than a microsecond come out as plain numbers; numpy writes them as ISO 8601.
    is_time = getattr(getattr(value, "dtype", None), "kind", "") in ("M", "m")
    return str(value) if is_time and isinstance(item, int) else item


def _as_text(value: Any, changed: list[str]) -> str:
    changed.append(type(value).__name__)
    if isinstance(value, int) and value.bit_length() > MAX_DECIMAL_BITS:
        return hex(value)
    try:
        return clean_text(str(value))
    except Exception:  # noqa: BLE001 - metadata that cannot be written down must not end a search
        return f"<{type(value).__name__}>"
