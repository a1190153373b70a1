from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from hostile_index import HashEmbeddings
from indexers_worker import corpus
from scale import scaled

from bounded_retrieval.cli import main
from bounded_retrieval.errors import StoreBusyError
from bounded_retrieval.retrievers.store import build_index, open_index, verify_index

ROUNDS = scaled(2, 40)
WRITERS = 3
UNITS = 130


@contextmanager
def writer(root: Path, number: int, where: str = "no") -> Iterator[subprocess.Popen[str]]:
    """A process that will index the directory, ready to begin; ended at last if it did not end."""
    worker = Path(__file__).with_name("indexers_worker.py")
    command = [sys.executable, str(worker), str(root), str(number), str(UNITS), where]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def begin(process: subprocess.Popen[str]) -> None:
    """Give a writer the word."""
    process.stdin.write("\n")
    process.stdin.flush()


def authors(root: Path) -> set[str]:
    """The writers whose texts the index holds, in both channels, when it holds all units."""
    verify_index(root)
    with open_index(root, embedding=HashEmbeddings()) as index:
        texts = index.lexical.fetch(index.dense.ids())
        assert len(texts) == len(index.dense) == UNITS
        assert index.dense.fetch(list(texts)) == texts
    return {unit.page_content.rpartition(" ")[2] for unit in texts.values()}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An index by writer 9."""
    build_index(corpus(9, UNITS), tmp_path / "index", embedding=HashEmbeddings())
    return tmp_path / "index"


@contextmanager
def holder(root: Path) -> Iterator[subprocess.Popen[str]]:
    """A writer in the middle of its work."""
    with writer(root, 1, "held") as process:
        begin(process)
        assert process.stdout.readline() == "held\n"
        yield process


def test_writers_that_begin_at_once_leave_one_whole_index(root: Path) -> None:
    """Of processes that index one directory at the same time each builds or refuses with one line; the result is one writer's."""
    told: Counter[str] = Counter()
    for _ in range(ROUNDS):
        with writer(root, 1) as one, writer(root, 2) as two, writer(root, 3) as three:
            processes = (one, two, three)
            starts = [Thread(target=begin, args=[process]) for process in processes]
            for start in starts:
                start.start()
            answers = [process.stdout.read() for process in processes]
            for start in starts:
                start.join()
        refusal = f"refused: {root}: another process is writing this index\n"
        assert set(answers) <= {"built\n", refusal}, answers
        assert "built\n" in answers
        built = {str(number) for number, answer in enumerate(answers, 1) if answer == "built\n"}
        found = authors(root)
        assert len(found) == 1
        assert found <= built
        told.update(answer.partition(":")[0].strip() for answer in answers)
    print(f"indexers at once: {ROUNDS} rounds of {WRITERS}: {dict(told)}, every result whole")


def test_a_second_indexer_refuses_at_once_and_the_old_index_answers(root: Path) -> None:
    """While one process is indexing, another gets an error that says so, and readers see the old index."""
    with holder(root):
        with pytest.raises(StoreBusyError, match="another process is writing this index"):
            build_index(corpus(2, UNITS), root, embedding=HashEmbeddings())
        assert authors(root) == {"9"}


def test_the_command_refuses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While a first build is under way, `index` of the same directory is one line and exit code 2."""
    (tmp_path / "note.txt").write_text("The pump hums.")
    with holder(tmp_path / "index"):
        assert main(["index", str(tmp_path / "note.txt"), "--to", str(tmp_path / "index")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"{tmp_path / 'index'}: another process is writing this index")


def test_a_killed_indexer_blocks_nobody(root: Path) -> None:
    """The lock of a process that was killed is gone with it; the next build succeeds and deletes what was left."""
    with holder(root) as process:
        assert (root / "generations" / "000002.partial").is_dir()
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert authors(root) == {"9"}
        build_index(corpus(2, UNITS), root, embedding=HashEmbeddings())
    assert authors(root) == {"2"}
    assert sorted(path.name for path in (root / "generations").iterdir()) == ["000001", "000002"]


def test_a_stopped_indexer_is_refused_for_as_long_as_it_lives(root: Path) -> None:
    """A process that hangs keeps the lock, which is never broken: others refuse, readers go on, and its end frees it."""
    with holder(root) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreBusyError):
            build_index(corpus(2, UNITS), root, embedding=HashEmbeddings())
        assert authors(root) == {"9"}
        process.send_signal(signal.SIGKILL)
        process.wait()
        build_index(corpus(2, UNITS), root, embedding=HashEmbeddings())
    assert authors(root) == {"2"}
