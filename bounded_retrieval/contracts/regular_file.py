"""Which paths of a user's are read: files, also through links, but nothing that may never answer or never end.

A file that is read whole is read here, in the words that `bounded_retrieval.ingest` has for what is wrong with it.
"""

from __future__ import annotations

import codecs
import stat
from pathlib import Path

from bounded_retrieval.errors import SourceError

_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def check_regular(path: Path) -> None:
    """Refuse a pipe, a socket or a device; what is missing, or a folder, is left to the reader's own error.

    Raises:
        SourceError: names the path.
    """
    try:
        mode = path.stat().st_mode
    except OSError:
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise SourceError(f"{path}: not a regular file")


def read_text(path: Path, most: int, kind: str) -> str:
    """The text of a file of at most ``most`` bytes, UTF-8 with or without a byte order mark.

    Raises:
        SourceError: names the path and the operating system's reason, the limit, or the first byte that is not UTF-8,
            counted from 0. A file above the limit is said to be no ``kind``.
    """
    check_regular(path)
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from None
    if len(data) > most:
        raise SourceError(f"{path}: larger than {most} bytes; no {kind}")
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        why = "the file looks like UTF-16; save it as UTF-8" if data.startswith(_UTF16_MARKS) else "not UTF-8"
        raise SourceError(f"{path}: byte {error.start} (0x{data[error.start]:02x}): {why}") from None
