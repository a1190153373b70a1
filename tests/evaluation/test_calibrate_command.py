from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from small_world import BASIC, CERTIFIED, DECLARED, HITS, QUERIES, Place, one_line, query_text, scripted, write_beir

from bounded_retrieval.console import make_console
from bounded_retrieval.contracts.calibration import Calibration
from bounded_retrieval.evaluation.collections import load_collection
from bounded_retrieval.evaluation.thresholds import Verdict, draw_slices
from bounded_retrieval.evaluation_display import render_verdict
from bounded_retrieval.retrievers.store import open_index


def changed(artefact: Path, folder: Path, **changes: Any) -> Path:
    """A copy of the artefact in which some fields say something else."""
    path = folder / "changed.json"
    path.write_text(json.dumps(json.loads(artefact.read_text(encoding="utf-8")) | changes), encoding="utf-8")
    return path


def test_an_artefact_says_what_was_certified_and_with_what(artefact: Path, place: Place) -> None:
    """Settings, index, collection, slices and figures; the file is that of the contract, whole."""
    found = Calibration.from_file(artefact)
    assert found.to_json() == artefact.read_text(encoding="utf-8")
    assert (found.assessor, found.fusion, found.measure, found.against) == (
        "term_coverage",
        "rrf",
        "ndcg@4",
        "always_continue:rrf",
    )
    assert found.threshold in (0.5, 0.9)
    assert (found.epsilon, found.confidence) == (0.9, 0.95)
    with open_index(place.index) as index:
        assert {"tokenizer": found.tokenizer, "embedding": found.embedding} == index.built_with
    collection = load_collection(place.folder)
    assert found.collection["fingerprint"] == collection.fingerprint
    assert {name: part.queries for name, part in found.slices.items()} == {
        "selection": 10,
        "certification": 10,
        "final": 10,
    }
    assert draw_slices(collection, found.fractions, found.seed).keys() == found.slices.keys()
    assert all(each.upper_bound <= 0.9 for each in found.candidates)
    assert found.unit_lengths["units"] > 0


def test_the_same_calibration_again_writes_the_same_bytes_and_tells_it_as_json(
    run: Any, place: Place, artefact: Path, tmp_path: Path
) -> None:
    """Lengths are stated on standard error before any policy is run; nothing but JSON on the other."""
    again = tmp_path / "again.json"
    code, out, err = run("calibrate", place.folder, *CERTIFIED, "--out", again, "--json")
    told = json.loads(out)
    assert (code, told["certified"], told["baseline"]) == (0, True, "always_continue:rrf")
    assert told["calibration"] == json.loads(artefact.read_text(encoding="utf-8"))
    assert again.read_bytes() == artefact.read_bytes()
    assert "units that the selection queries find" in err
    assert err.index("units that the selection queries find") < err.index("deciding")
    assert query_text(1) not in out + err


def test_a_refusal_writes_nothing_names_the_best_fixed_policy_and_exits_with_2(
    run: Any, place: Place, tmp_path: Path
) -> None:
    """Ten or fifteen queries can certify no loss of a thousandth."""
    arguments = ["calibrate", place.folder, *DECLARED, "--epsilon", "0.001", "--out", tmp_path / "c.json"]
    code, out, _ = run(*arguments, "--json")
    told = json.loads(out)
    assert (code, told["certified"], told["calibration"]) == (2, False, None)
    assert told["best_fixed"]["policy"] in {"fixed_lexical", "fixed_dense", "always_continue:rrf"}
    assert {each["verdict"] for each in told["candidates"]} == {"not_certified", "not_tested"}
    assert list(tmp_path.iterdir()) == []
    code, out, _ = run(*arguments)
    assert code == 2
    assert f"{told['best_fixed']['policy']} (" in out
    assert "nothing was written" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (
            ["--final", "0.5"],
            "selection needs at least 10 judged queries (got 8 of 30, for a share of 0.25); 40 in all are enough where",
        ),
        (["--final", "0.6"], "final: 0 to 0.5 (got 0.6)"),
        (["--final", "-0.1"], "final: 0 to 0.5 (got -0.1)"),
        (["--threshold", "1.5"], "threshold: 0 to 1 (got 1.5)"),
        (["--threshold", "high"], "--threshold"),
        (
            [part for place in range(9) for part in ("--threshold", f"0.{place}")],
            "threshold: at most 8 candidates (got 9)",
        ),
        (["--epsilon", "2"], "epsilon: 0 to 1 (got 2.0)"),
        (["--confidence", "0.5"], "confidence: above .5 and below 1 (got 0.5)"),
        (["--measure", "map"], "measure: one of ndcg@3, ndcg@4"),
        (["--against", "reference"], "--against"),
        (["--assessor", "best"], "assessor: unknown name 'best'"),
        (["--fusion", "sum"], "fusion: unknown name 'sum'"),
        (["--seed", "-1"], "seed: 0 or more (got -1)"),
        (["--limit", "max_rows=1000"], "max_rows"),
        (["--limit", "deadline_ms=5000"], "deadline_ms: an experiment has none (got 5000)"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line_with_exit_code_2(
    *, run: Any, place: Place, tmp_path: Path, arguments: list[str], named: str
) -> None:
    """And nothing is written."""
    code, out, err = run("calibrate", place.folder, *arguments, "--out", tmp_path / "c.json")
    assert (code, out) == (2, "")
    assert named in one_line(err)
    assert list(tmp_path.iterdir()) == []


def test_where_the_artefact_cannot_be_written_nothing_is_run(run: Any, place: Place, tmp_path: Path) -> None:
    """A folder in its place, or no folder to write it to."""
    for target, named in (
        (tmp_path, "a directory; --out takes the file"),
        (tmp_path / "no" / "c.json", "no such directory, for --out"),
    ):
        code, out, err = run("calibrate", place.folder, *DECLARED, "--out", target)
        assert (code, out) == (2, "")
        assert named in one_line(err)
        assert "searching" not in err
    assert list(tmp_path.iterdir()) == []


def test_too_few_queries_are_said_before_an_index_is_built(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slice, its share and how many are enough."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = write_beir(tmp_path / "manuals", scripted([HITS] * 15)["collection"])
    code, out, err = run("calibrate", folder, *DECLARED, "--out", tmp_path / "c.json")
    assert (code, out) == (2, "")
    assert err == (
        "bounded-retrieval: manuals: slice selection needs at least 10 judged queries (got 8 of 15, for a share of "
        "0.5); 20 in all are enough where none are nearly alike\n"
    )
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_may_not_be_written_to_is_said_before_anything_is_run(
    run: Any, place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the words of the other commands."""
    monkeypatch.setattr("os.access", lambda *_: False)
    code, out, err = run("calibrate", place.folder, *DECLARED, "--out", tmp_path / "c.json")
    assert (code, out, one_line(err)) == (2, "", f"bounded-retrieval: {tmp_path}: cannot be written to")
    assert "searching" not in err


# The artefact in other commands


def test_the_final_slice_is_evaluated_with_what_was_certified(run: Any, place: Place, artefact: Path) -> None:
    """Its queries and no others; the policy is called calibrated."""
    options = ["--policies", "fixed_dense", "--live", "0", "--resamples", "100", "--json"]
    code, out, _ = run("evaluate", place.folder, "--calibration", artefact, "--slice", "final", *options)
    report = json.loads(out)
    assert code == 0
    assert report["collection"]["slice"] == "final"
    assert report["policies"]["calibrated"]["queries"] == 10
    assert "term_coverage" in report["policies"]["calibrated"]["actions"]


def test_the_certification_slice_evaluated_again_gives_the_figures_of_the_artefact(
    run: Any, place: Place, artefact: Path
) -> None:
    """Loss and dense calls."""
    found = Calibration.from_file(artefact)
    options = ["--policies", "fixed_dense", "--live", "0", "--resamples", "100", "--json"]
    code, out, _ = run("evaluate", place.folder, "--calibration", artefact, "--slice", "certification", *options)
    report = json.loads(out)
    assert code == 0
    (loss,) = (
        -each["mean"]
        for each in report["differences"]
        if (each["policy"], each["against"], each["measure"]) == ("calibrated", found.against, found.measure)
    )
    (chosen,) = (each for each in found.candidates if each.threshold == found.threshold)
    assert loss == pytest.approx(chosen.certification_loss, abs=2e-6)
    assert report["policies"]["calibrated"]["dense_calls"] / 10 == pytest.approx(chosen.certification_dense_share)


def test_every_policy_beside_a_calibration_has_its_limits(
    run: Any, place: Place, artefact: Path, tmp_path: Path
) -> None:
    """And limits that contradict it are refused."""
    limits = json.loads(artefact.read_text(encoding="utf-8"))["limits"] | {"max_rows": 5}
    path = changed(artefact, tmp_path, limits=limits)
    code, out, _ = run("evaluate", place.folder, "--calibration", path, *BASIC, "--json")
    report = json.loads(out)
    assert (code, report["settings"]["limits"]["max_rows"]) == (0, 5)
    assert report["policies"]["fixed_dense"]["rows"] <= 5 * QUERIES
    code, out, err = run("evaluate", place.folder, "--calibration", path, *BASIC, "--limit", "max_rows=4")
    assert (code, out) == (2, "")
    assert "budget: max_rows=4, but the calibration was certified at 5" in one_line(err)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"embedding": "another"}, "calibration: was made with embedding another, the index has "),
        ({"tokenizer": "another"}, "calibration: was made with tokenizer another, the index has "),
        (
            {"assessor_settings": {"default_threshold": 0.7}},
            "calibration: was made with another term_coverage; calibrate again",
        ),
        ({"fusion": "sum"}, "fusion: unknown name 'sum'"),
        ({"threshold": 2}, "changed.json: calibration.threshold"),
        ({"threshold": 0.7}, "changed.json: calibration.candidates: threshold must be that of a certified candidate"),
        ({"slices": {}}, "changed.json: calibration.slices: slice selection is missing"),
        ({"format": "bounded-retrieval-calibration-0"}, "changed.json: no calibration (format: expected"),
    ],
)
@pytest.mark.parametrize("command", ["ask", "evaluate"])
def test_a_calibration_that_does_not_fit_is_refused(
    *, run: Any, place: Place, artefact: Path, tmp_path: Path, command: str, changes: Any, named: str
) -> None:
    """In one line, whichever command it is given to."""
    path = changed(artefact, tmp_path, **changes)
    given = [query_text(1), "--index", place.index] if command == "ask" else [place.folder, *BASIC]
    code, out, err = run(command, *given, "--calibration", path)
    assert (code, out) == (2, "")
    assert named in one_line(err)


@pytest.mark.parametrize(
    ("arguments", "changes", "named"),
    [
        (["--slice", "last"], {}, "slice: one of selection, certification, final (got 'last')"),
        (
            ["--slice", "final"],
            {"collection": {"fingerprint": "other"}},
            "manuals: not the collection that the calibration was made on",
        ),
        (["--slice", "final"], {"seed": 4}, "manuals: slice final holds other queries than when it was drawn"),
    ],
)
def test_a_slice_that_is_not_the_one_that_was_drawn_is_refused(
    *, run: Any, place: Place, artefact: Path, tmp_path: Path, arguments: list[str], changes: Any, named: str
) -> None:
    """By name, by collection, or by its queries."""
    path = changed(artefact, tmp_path, **changes)
    code, out, err = run("evaluate", place.folder, "--calibration", path, *arguments, *BASIC)
    assert (code, out) == (2, "")
    assert named in one_line(err)


def test_a_question_is_decided_as_certified(run: Any, place: Place, artefact: Path, tmp_path: Path) -> None:
    """Threshold, depths and assessor stand in the trace; another threshold in the artefact decides otherwise."""
    reasons = {}
    first = json.loads(artefact.read_text(encoding="utf-8"))["candidates"][0] | {"verdict": "certified"}
    for threshold in (0.4, 0.45):
        path = changed(artefact, tmp_path, threshold=threshold, candidates=[first | {"threshold": threshold}])
        code, out, _ = run("ask", query_text(0), "--index", place.index, "--calibration", path, "--json", "--trace")
        found = json.loads(out)
        assert code == 0
        settled = found["trace"]["events"][0]
        assert (settled["threshold"], settled["policy"]) == (threshold, "adaptive")
        assert settled["first_hop_rows"] == Calibration.from_file(path).first_hop_rows
        (decided, *_) = (event for event in found["trace"]["events"] if event["event"] == "coverage_assessed")
        assert decided["assessment"]["assessor"] == "term_coverage"
        reasons[threshold] = (found["stop_reason"], found["usage"]["calls"])
    assert reasons[0.4] == ("proxy_sufficient", 1)
    assert reasons[0.45][1] == 2


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--threshold", "0.1"], "leave out --threshold"),
        (["--limit", "max_rows=4"], "leave out --limit max_rows"),
        (["--policy", "always_continue"], "leave out --policy"),
        (
            ["--limit", "max_rows=4", "--threshold", "0.1", "--limit", "max_chars=100"],
            "leave out --threshold, --limit max_rows, --limit max_chars",
        ),
    ],
)
def test_a_question_cannot_override_what_was_certified(
    run: Any, place: Place, artefact: Path, arguments: list[str], named: str
) -> None:
    """What would be another decision than the certificate speaks of is refused by name."""
    code, out, err = run("ask", query_text(1), "--index", place.index, "--calibration", artefact, *arguments)
    assert (code, out) == (2, "")
    message = one_line(err)
    assert "--calibration: fixes how a run is decided and its limits" in message
    assert message.endswith(named)


def test_what_overrides_nothing_may_stand_beside_a_calibration(run: Any, place: Place, artefact: Path) -> None:
    """A deadline, and the policy that it is for."""
    options = ["--policy", "adaptive", "--limit", "deadline_ms=60000", "--json"]
    code, out, _ = run("ask", query_text(1), "--index", place.index, "--calibration", artefact, *options)
    assert (code, json.loads(out)["limits"]["deadline_ms"]) == (0, 60000)


# The verdict as a person sees it


def shown(verdict: Verdict, path: Path | None) -> str:
    """What is printed of a verdict."""
    console = make_console()
    with console.capture() as captured:
        console.print(render_verdict(verdict, path), soft_wrap=True)
    return captured.get()


def test_a_verdict_tells_every_candidate_and_what_may_be_said(artefact: Path) -> None:
    """In the order of the test, with the claim and where it was written."""
    found = Calibration.from_file(artefact)
    verdict = Verdict(
        calibration=found,
        candidates=found.candidates,
        baseline=found.against,
        best_fixed=("fixed_dense", 0.5),
        unit_lengths=found.unit_lengths,
    )
    text = shown(verdict, Path("c.json"))
    places = [text.index(f"{each.threshold:g}") for each in found.candidates]
    assert places == sorted(places)
    assert f"term_coverage at {found.threshold:g}" in text
    assert "always_continue:rrf is at most 0.9" in text
    assert "c.json" in text
