"""Bytes of a file as text: UTF-8, with or without a byte order mark, every line end as a line feed."""

from __future__ import annotations

import codecs
from pathlib import Path

from bounded_retrieval.errors import SourceError

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def read_bytes(path: Path) -> bytes:
    """The whole file.

    Raises:
        SourceError: names the file and the operating system's reason.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise cannot_read(path, error) from error


def cannot_read(path: Path, error: OSError) -> SourceError:
    """The error for a file or folder that the operating system does not give."""
    return SourceError(f"{path}: cannot be read ({error.strerror or type(error).__name__})")


def decode_utf8(data: bytes, where: str) -> str:
    """Decode UTF-8 and drop a byte order mark; ``where`` is what an error names.

    Raises:
        SourceError: names the first byte, counted from 0, that is not UTF-8.
    """
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        kind = "the file looks like UTF-16; save it as UTF-8" if data.startswith(_UTF16_MARKS) else "not UTF-8"
        raise SourceError(f"{where}: byte {error.start} (0x{data[error.start]:02x}): {kind}") from error


def with_line_feeds(text: str) -> str:
    """Turn the line ends of Windows and old Macs into line feeds."""
    return text.replace("\r\n", "\n").replace("\r", "\n")
