"""Which paths of a user's are read: files, also through links, but nothing that may never answer or never end."""

from __future__ import annotations

import stat
from pathlib import Path

from bounded_retrieval.errors import SourceError


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
