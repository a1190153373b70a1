from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fork_worker import CASES, OWNERS
from soak_world import HashedWords, documents

from bounded_retrieval import build_index

WORKER = Path(__file__).with_name("fork_worker.py")
LIMIT_S = 900


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """What the worker found in a case; all cases run at once over one small index."""
    folder = tmp_path_factory.mktemp("fork") / "index"
    build_index(documents(OWNERS), folder, embedding=HashedWords(), dense="chroma")
    with ExitStack() as running:
        started = {
            case: running.enter_context(
                subprocess.Popen(
                    [sys.executable, WORKER, case, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
                )
            )
            for case in CASES
        }
        for process in started.values():
            running.callback(process.kill)
        ended = {case: (process.communicate(timeout=LIMIT_S), process.returncode) for case, process in started.items()}

    def of(case: str) -> Any:
        (output, errors), status = ended[case]
        assert status == 0, errors
        return json.loads(output)

    return of


def test_an_exact_index_goes_on_in_a_child(found: Callable[[str], Any]) -> None:
    """Whatever the parent did with an index without a graph, the child does too, and nobody loads Chroma."""
    case = found("exact")
    assert case["answer"] == dict.fromkeys(("invoke", "ainvoke", "threads", "open", "build", "memory"), True)
    assert case["status"] == 7
    assert case["parent goes on"] == [True, True]
    assert case["chroma"] is False


def test_a_child_of_a_process_that_used_an_index_gets_one_clear_error(found: Callable[[str], Any]) -> None:
    """Whatever a forked child asks of Chroma, inherited or its own, is refused at once, with what to do instead."""
    answers = dict(found("after_use")["answer"])
    del answers["lexical"]
    assert [name for name, answer in answers.items() if not str(answer).startswith("ForkedError: ")] == []
    assert all("spawn" in answer and "\n" not in answer for answer in answers.values())


def test_the_lexical_channel_survives_a_fork(found: Callable[[str], Any]) -> None:
    """A graph over the inherited BM25 index alone gives in the child what it gives in the parent."""
    case = found("after_use")
    assert case["answer"]["lexical"]["items"]
    assert case["answer"]["lexical"] == case["lexical alone"]


def test_such_a_child_ends_and_its_parent_goes_on(found: Callable[[str], Any]) -> None:
    """The child's interpreter ends by itself with its own status, and the parent's index is as it was."""
    case = found("after_use")
    assert case["status"] == 7
    assert case["parent goes on"] == [True, True]


def test_without_the_check_a_child_would_hang(found: Callable[[str], Any]) -> None:
    """A control: Chroma itself never answers in a forked child."""
    assert found("unguarded")["answer"] == "hangs"


def test_workers_of_a_preloaded_application_answer(found: Callable[[str], Any]) -> None:
    """What a parent has imported and loaded serves its forked workers; each opens the index for itself."""
    case = found("preloaded")
    assert len(case["workers"]) >= 2
    for worker in case["workers"]:
        assert worker["status"] == 7
        assert worker["answer"]["packets"] == [case["alone"]] * 8
        assert worker["answer"]["lexical"]
        assert worker["answer"]["vector"]
    assert case["parent goes on"]


def test_a_fork_while_other_threads_are_at_work(found: Callable[[str], Any]) -> None:
    """A child forked while threads load the model, embed and read units has a model and files of its own."""
    case = found("busy")
    assert len(case["ends"]) >= 2
    assert all(end == {"answer": [384, ["t00-u00"]], "status": 7} for end in case["ends"])
    assert case["parent goes on"]


def test_processes_started_by_spawn_and_forkserver_answer(found: Callable[[str], Any]) -> None:
    """Such processes open an index that the parent has open, and all get the same packets at the same time."""
    assert found("started") == {"spawn": True, "forkserver": True}
