from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.calibration import MAX_FILE_BYTES, Calibration, CandidateFigures, Slice
from bounded_retrieval.contracts.trace import DecisionTrace
from bounded_retrieval.errors import BoundedRetrievalError, ConfigurationError, RequestError, SourceError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.coverage import TermCoverage
from bounded_retrieval.policies.fusion import ReciprocalRankFusion
from bounded_retrieval.policies.registry import ASSESSORS, assessor_named
from bounded_retrieval.testing.fakes import ScriptedSearcher

HALF = [Document(id=f"u{place}", page_content=text) for place, text in enumerate(["the pump", "a filter", "some sand"])]


def candidate(threshold: float = 0.45, bound: float | None = 0.02, verdict: str = "certified") -> dict[str, Any]:
    """Figures of one candidate."""
    figures = {"threshold": threshold, "selection_loss": -0.1, "selection_dense_share": 0.5, "verdict": verdict}
    return figures if bound is None else figures | {"certification_loss": 0.0, "upper_bound": bound}


def calibration(**changes: Any) -> Calibration:
    """An artefact whose threshold is no assessor's default."""
    fields: dict[str, Any] = {
        "assessor": "term_coverage",
        "assessor_settings": dict(assessor_named(changes.get("assessor", "term_coverage")).settings),
        "threshold": 0.45,
        "fusion": "rrf",
        "first_hop_rows": 2,
        "limits": Budget(max_rows=5),
        "tokenizer": "words",
        "embedding": "vectors",
        "measure": "ndcg@4",
        "against": "always_continue",
        "epsilon": 0.02,
        "confidence": 0.95,
        "collection": {"name": "manuals", "fingerprint": "f"},
        "slices": {
            "selection": Slice(queries=10, fingerprint="s"),
            "certification": Slice(queries=11, fingerprint="c"),
        },
        "fractions": {"selection": 0.5, "certification": 0.5},
        "seed": 3,
        "candidates": (CandidateFigures(**candidate(changes.get("threshold", 0.45))),),
        "figures": {"fixed_dense": {"selection": 0.5}},
        "unit_lengths": {"units": 3},
        "versions": {"python": "3.11"},
    }
    return Calibration(**fields | changes)


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Path]:
    """Write an artefact, with some of its fields replaced."""

    def write(**changes: Any) -> Path:
        path = tmp_path / "calibration.json"
        path.write_text(json.dumps(json.loads(calibration().to_json()) | changes), encoding="utf-8")
        return path

    return write


# The file


@pytest.mark.parametrize("assessor", list(ASSESSORS))
def test_an_artefact_survives_its_file(assessor: str, tmp_path: Path) -> None:
    """With the settings of every assessor; written again it is the same bytes."""
    made = calibration(assessor=assessor)
    path = tmp_path / "calibration.json"
    path.write_text(made.to_json(), encoding="utf-8")
    read = Calibration.from_file(path)
    assert read == made
    assert read.to_json() == made.to_json()
    assert read.to_json().endswith("}\n")
    assert Calibration.from_file(str(path)) == read


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (b"", "not JSON"),
        (b"[]", "expected a JSON object (got a list)"),
        (b"{", "not JSON"),
        (b"\xff\xfe", "byte 0 (0xff): the file looks like UTF-16; save it as UTF-8"),
        (b'{"name": "caf\xe9"}', "byte 13 (0xe9): not UTF-8"),
        (b'{"id":"a","text":"x"\n', "not JSON (Expecting ',' delimiter, column 21)"),
        (b'{\n "id":"a"\n\n', "not JSON (Expecting ',' delimiter, line 2, column 10)"),
        (b"{}", "no calibration (format: expected bounded-retrieval-calibration-1, got None)"),
        (b'{"format": "bounded-retrieval-evaluation-1"}', "got 'bounded-retrieval-evaluation-1'"),
        (b'{"format": "a\\nb"}', r"got 'a\nb'"),
    ],
)
def test_what_is_no_calibration_is_refused_in_one_line_that_names_the_file(
    content: bytes, named: str, tmp_path: Path
) -> None:
    """Whatever else the file is."""
    path = tmp_path / "calibration.json"
    path.write_bytes(content)
    with pytest.raises(SourceError) as caught:
        Calibration.from_file(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"format": "bounded-retrieval-calibration-2"}, "format"),
        ({"threshold": 1.5}, "threshold"),
        ({"threshold": "0.5"}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"first_hop_rows": 0}, "first_hop_rows"),
        ({"first_hop_rows": 2.5}, "first_hop_rows"),
        ({"epsilon": -0.1}, "epsilon"),
        ({"epsilon": float("inf")}, "epsilon"),
        ({"confidence": 1}, "confidence"),
        ({"confidence": 0.5}, "confidence"),
        ({"limits": {"max_rows": 10**6}}, "limits.max_rows"),
        ({"limits": {"rows": 6}}, "limits.rows"),
        ({"slices": {"selection": {"queries": 0, "fingerprint": "s"}}}, "slices.selection.queries"),
        ({"candidates": [{"threshold": 0.5}]}, "candidates.0"),
        ({"assessor": None}, "assessor"),
        ({"seed": "0"}, "seed"),
        ({"surplus": 1}, "surplus"),
    ],
)
def test_a_field_that_is_not_what_it_should_be_is_named(changes: Any, field: str, written: Callable[..., Path]) -> None:
    """With the file, in one line."""
    path = written(**changes)
    with pytest.raises(SourceError) as caught:
        Calibration.from_file(path)
    message = str(caught.value)
    assert message.startswith(f"{path}")
    assert field in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"threshold": 0.0}, "candidates: threshold must be that of a certified candidate (0.0 is none of the"),
        (
            {"threshold": 0.9, "candidates": [candidate(), candidate(0.9, 0.7, "not_certified")]},
            "candidates: threshold must be that of a certified candidate (0.9 is not certified)",
        ),
        ({"candidates": []}, "candidates: threshold must be that of a certified candidate (0.45 is none of the"),
        ({"candidates": [candidate(), candidate()]}, "candidates: two candidates have one threshold"),
        (
            {"candidates": [candidate(bound=None)]},
            "candidates: the candidate 0.45 is certified, so upper_bound must be a number (got None)",
        ),
        (
            {"candidates": [candidate(bound=0.020001)]},
            "candidates: the candidate 0.45 is certified with upper_bound 0.020001, which contradicts epsilon 0.02",
        ),
        (
            {"candidates": [candidate(), candidate(0.5, 0.01, "not_certified")]},
            "candidates: the candidate 0.5 is not_certified with upper_bound 0.01, which contradicts epsilon 0.02",
        ),
        (
            {"candidates": [candidate(), candidate(0.5, 0.7, "not_tested")]},
            "candidates: the candidate 0.5 is not_tested, but the candidates are tested in this order until one",
        ),
        (
            {"candidates": [candidate(0.5, 0.7, "not_certified"), candidate()]},
            "candidates: the candidate 0.45 is certified, but the candidates are tested in this order until one",
        ),
        (
            {"candidates": [candidate(), candidate(0.5, 0.7, "not_certified"), candidate(0.6, 0.7, "not_tested")]},
            "candidates: the candidate 0.6 is not_tested, so upper_bound must be null (got 0.7)",
        ),
        ({"candidates": [candidate() | {"selection_loss": 9.0}]}, "candidates.0.selection_loss: "),
        ({"candidates": [candidate() | {"selection_dense_share": -3.0}]}, "candidates.0.selection_dense_share: "),
        ({"slices": {}}, "slices: slice selection is missing (got '')"),
        (
            {"slices": {"selection": {"queries": 10, "fingerprint": "s"}}},
            "slices: slice certification is missing (got 'selection')",
        ),
    ],
)
def test_an_artefact_that_contradicts_itself_is_refused(
    changes: Any, problem: str, written: Callable[..., Path]
) -> None:
    """In one line with the file and the field: what it names as certified must have been."""
    path = written(**changes)
    with pytest.raises(SourceError) as caught:
        Calibration.from_file(path)
    assert str(caught.value).startswith(f"{path}: calibration.{problem}")
    assert "\n" not in str(caught.value)
    assert "; " not in str(caught.value)


def test_candidates_after_the_first_that_failed_are_not_tested(written: Callable[..., Path]) -> None:
    """A bound that is told as epsilon may have been above it."""
    tested = [candidate(), candidate(0.9, 0.02, "not_certified"), candidate(0.5, None, "not_tested")]
    found = Calibration.from_file(written(candidates=tested))
    assert [each.verdict for each in found.candidates] == ["certified", "not_certified", "not_tested"]


def test_a_byte_order_mark_is_no_part_of_an_artefact(tmp_path: Path) -> None:
    """As in every other file that is read."""
    path = tmp_path / "calibration.json"
    path.write_text(calibration().to_json(), encoding="utf-8-sig")
    assert Calibration.from_file(path) == calibration()


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """Missing, a folder, or larger than any calibration."""
    with pytest.raises(SourceError, match=r"gone\.json: cannot be read \(No such file or directory\)"):
        Calibration.from_file(tmp_path / "gone.json")
    with pytest.raises(SourceError, match=r"cannot be read \(Is a directory\)"):
        Calibration.from_file(tmp_path)
    large = tmp_path / "large.json"
    large.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(SourceError, match="larger than"):
        Calibration.from_file(large)


def test_a_field_of_the_file_may_not_be_changed_afterwards() -> None:
    """An artefact says what was certified."""
    with pytest.raises(ValueError, match="frozen"):
        calibration().threshold = 0.1


# The graph that is built with it


def searchers() -> tuple[ScriptedSearcher, ScriptedSearcher]:
    """Both channels over three units."""
    return ScriptedSearcher(HALF, "lexical"), ScriptedSearcher(HALF[::-1], "dense")


def test_a_graph_decides_as_it_was_certified(written: Callable[..., Path]) -> None:
    """Assessor, threshold, fusion, depths and limits; from the artefact or its path."""
    for given in (calibration(), written(), str(written())):
        graph = create_bounded_retrieval(*searchers(), calibration=given).compile()
        result = graph.invoke({"query": "pump filter"})
        trace = DecisionTrace.from_result(result)
        (settled,) = (event for event in trace.events if event.event == "request_inspected")
        assert (settled.threshold, settled.first_hop_rows, settled.limits.max_rows) == (0.45, 2, 5)
        assert (trace.decisions[0].assessment.assessor, trace.decisions[0].assessment.coverage) == (
            "term_coverage",
            0.5,
        )
        assert result["stop_reason"] == "proxy_sufficient"
    graph = create_bounded_retrieval(*searchers(), calibration=calibration(threshold=0.55)).compile()
    assert graph.invoke({"query": "pump filter"})["stop_reason"] != "proxy_sufficient"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"assessor": TermCoverage()}, "calibration: fixes assessor; leave out one or the other"),
        ({"fusion": ReciprocalRankFusion()}, "calibration: fixes fusion;"),
        ({"threshold": 0.5}, "calibration: fixes threshold;"),
        ({"threshold": 0.45, "fusion": ReciprocalRankFusion()}, "calibration: fixes fusion, threshold;"),
        ({"first_hop_rows": 3}, "calibration: fixes first_hop_rows;"),
        ({"preset": "reference"}, "preset, calibration: give one or the other"),
        ({"budget": Budget(max_rows=6)}, "budget: max_rows=6, but the calibration was certified at 5"),
        ({"budget": {"max_rows": 4}}, "budget: max_rows=4, but the calibration was certified at 5"),
        ({"budget": Budget(max_rows=5, max_chars=100)}, "budget: max_chars=100, but"),
    ],
)
def test_what_contradicts_the_certificate_is_refused(given: Any, named: str) -> None:
    """Every part that it fixes, in one line."""
    with pytest.raises(ConfigurationError) as caught:
        create_bounded_retrieval(*searchers(), calibration=calibration(), **given)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_does_not_contradict_it_may_be_given() -> None:
    """The same limits and depths, and a deadline, which decides nothing."""
    budget = Budget(max_rows=5, deadline_ms=60_000)
    graph = create_bounded_retrieval(*searchers(), calibration=calibration(), budget=budget, first_hop_rows=2)
    trace = DecisionTrace.from_result(graph.compile().invoke({"query": "pump filter"}))
    assert trace.events[0].limits == budget


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"assessor_settings": {"default_threshold": 0.7}},
            "calibration: was made with another term_coverage; calibrate again",
        ),
        ({"assessor_settings": {}}, "another term_coverage"),
        ({"assessor": "term_cover"}, "assessor: unknown name 'term_cover'"),
        ({"fusion": "sum"}, "fusion: unknown name 'sum'"),
    ],
)
def test_a_calibration_of_other_parts_is_refused(changes: Any, named: str, written: Callable[..., Path]) -> None:
    """Settings or names that this version does not have."""
    with pytest.raises(ConfigurationError) as caught:
        create_bounded_retrieval(*searchers(), calibration=written(**changes))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("given", "kind"), [({}, "dict"), (0.8, "float"), (b"c.json", "bytes")])
def test_what_is_no_calibration_at_all_is_refused(given: Any, kind: str) -> None:
    """With what it is."""
    with pytest.raises(ConfigurationError, match=rf"expected a Calibration or the path of one \(got {kind}\)"):
        create_bounded_retrieval(*searchers(), calibration=given)


def test_limits_beside_it_that_are_no_limits_are_refused_by_name() -> None:
    """In one line, as without a calibration."""
    with pytest.raises(RequestError, match=r"budget.*max_rows") as caught:
        create_bounded_retrieval(*searchers(), calibration=calibration(), budget={"max_rows": 10**6})
    assert isinstance(caught.value, BoundedRetrievalError)
    assert "\n" not in str(caught.value)
