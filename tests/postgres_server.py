"""A real PostgreSQL server for the tests that need one: import the fixture ``postgres`` into a ``conftest.py``."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


def _binaries() -> Path | None:
    # Debian keeps each version's programs in a folder of its own.
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin/pg_ctl"), reverse=True), shutil.which("pg_ctl")]
    return next((Path(program).parent for program in found if program), None)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Connection string of a real PostgreSQL server, started for the tests in a directory of its own."""
    binaries = _binaries()
    if binaries is None:
        pytest.skip("PostgreSQL is not installed (pg_ctl not found)")
    # Not pytest's temporary folder: the server's user may not enter it.
    root = Path(tempfile.mkdtemp(prefix="bounded-retrieval-postgres-"))
    # initdb and the server refuse to run as root.
    as_user = ["runuser", "-u", "postgres", "--"] if os.geteuid() == 0 else []
    if as_user:
        shutil.chown(root, "postgres")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    subprocess.run(
        [*as_user, binaries / "initdb", "-D", root / "data", "-U", "tests", "--auth=trust"],
        check=True,
        capture_output=True,
        cwd="/",
    )
    options = f"-p {port} -k {root} -c listen_addresses=127.0.0.1 -c fsync=off"
    server = [*as_user, binaries / "pg_ctl", "-D", root / "data", "-w", "-l", root / "log"]
    subprocess.run([*server, "-o", options, "start"], check=True, capture_output=True, cwd="/")
    try:
        yield f"postgresql://tests@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*server, "-m", "immediate", "stop"], check=True, capture_output=True, cwd="/")
        shutil.rmtree(root)
