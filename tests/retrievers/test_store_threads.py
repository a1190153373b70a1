from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bounded_retrieval.retrievers.store import open_index


def test_threads_open_ask_and_close_one_index(shipped_index: Path) -> None:
    """Threads of one process may open and close the same directory at the same time."""

    def ask(number: int) -> list[str]:
        with open_index(shipped_index) as index:
            channel = index.dense if number % 2 else index.lexical
            return [candidate.unit_id for candidate in channel.search("replace the HX-200 battery", 2)]

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(64)))
    assert len({tuple(answer) for answer in answers[::2]}) == len({tuple(answer) for answer in answers[1::2]}) == 1
    assert all(answers)
