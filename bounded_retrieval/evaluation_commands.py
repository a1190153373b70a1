"""The commands ``evaluate`` and ``calibrate``: arguments and calls only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bounded_retrieval.errors import RequestError, quoted

_COLLECTION = (
    "a BEIR folder, a folder of TREC files, a .csv or .tsv of queries and relevant ids (with --index), "
    "ir_datasets:ID, or device_support (the shipped one)"
)

_NOT_CERTIFIED = 2


def add_evaluation_commands(commands: Any, limit: Callable[[str], tuple[str, int]]) -> None:
    """Add both commands; ``limit`` reads a ``NAME=N``."""
    _add_evaluate(commands, limit)
    _add_calibrate(commands, limit)


def path_argument(text: str) -> Path:
    """A path as it was given; an empty one would stand for the current folder.

    Raises:
        ArgumentTypeError: the path is empty.
    """
    return Path(source_argument(text))


def source_argument(text: str) -> str:
    """A path or the name of a data set, as it was given.

    Raises:
        ArgumentTypeError: it is empty.
    """
    if not text:
        raise argparse.ArgumentTypeError("a path is expected (got '')")
    return text


def _add_evaluate(commands: Any, limit: Callable[[str], tuple[str, int]]) -> None:
    evaluate = commands.add_parser(
        "evaluate",
        help="compare policies on a test collection",
        description="Run every policy over a test collection: what its stops save, and what they leave undiscovered.",
    )
    _add_collection(evaluate)
    evaluate.add_argument(
        "--policies",
        metavar="NAMES",
        help="comma separated: fixed_lexical, fixed_dense, always_continue[:FUSION], reference, "
        "adaptive[:ASSESSOR][@THRESHOLD]; by default all of them",
    )
    evaluate.add_argument(
        "--out", type=path_argument, metavar="DIR", help="write JSON, Markdown, plots and an HTML page there"
    )
    evaluate.add_argument("--no-plots", action="store_true", help="leave the plots out (they need the extra: plots)")
    evaluate.add_argument("--calibration", type=path_argument, metavar="FILE", help="add the calibrated policy")
    evaluate.add_argument("--slice", metavar="NAME", help="evaluate on one slice of that calibration, as in final")
    evaluate.add_argument("--resamples", type=int, default=10_000, metavar="N", help="bootstrap samples (10000)")
    evaluate.add_argument("--live", type=int, default=40, metavar="N", help="queries run again without cache (40)")
    evaluate.add_argument("--confidence", type=float, default=0.95, metavar="P", help="of the intervals (0.95)")
    _add_common(evaluate, limit)
    evaluate.set_defaults(run=_run_evaluate)


def _add_calibrate(commands: Any, limit: Callable[[str], tuple[str, int]]) -> None:
    calibrate = commands.add_parser(
        "calibrate",
        help="choose a threshold and certify it",
        description="Choose among declared thresholds on one slice of the queries and certify the choice on another. "
        "Where none can be certified, says so, names the best fixed policy, writes nothing and exits with 2.",
    )
    _add_collection(calibrate)
    calibrate.add_argument("--out", required=True, type=path_argument, metavar="FILE", help="the artefact to write")
    calibrate.add_argument("--assessor", metavar="NAME", help="by default the package's")
    calibrate.add_argument(
        "--threshold", action="append", type=float, default=[], metavar="T", help="a candidate, 1 to 8 of them"
    )
    calibrate.add_argument("--fusion", metavar="NAME", help="by default the package's")
    calibrate.add_argument("--against", choices=["always_continue", "best_fixed"], help="by default always_continue")
    calibrate.add_argument("--measure", metavar="NAME", help="what a loss is taken in (ndcg@4)")
    calibrate.add_argument("--epsilon", type=float, metavar="E", help="mean loss that is tolerated (0.02)")
    calibrate.add_argument("--confidence", type=float, metavar="P", help="of the certificate (0.95)")
    calibrate.add_argument("--final", type=float, default=0.0, metavar="SHARE", help="queries to set apart unseen (0)")
    _add_common(calibrate, limit)
    calibrate.set_defaults(run=_run_calibrate)


def _add_collection(command: argparse.ArgumentParser) -> None:
    command.add_argument("collection", type=source_argument, metavar="COLLECTION", help=_COLLECTION)
    command.add_argument("--split", default="test", metavar="NAME", help="judgements to take: test, train or dev")
    command.add_argument("--queries", type=path_argument, metavar="FILE", help="queries from this file instead")
    command.add_argument("--qrels", type=path_argument, metavar="FILE", help="judgements from this file instead")
    command.add_argument(
        "--index", type=path_argument, metavar="DIR", help="an index of its units; by default one is built"
    )
    command.add_argument("--embedding", default="minilm", metavar="NAME", help="what to build it with (minilm)")


def _add_common(command: argparse.ArgumentParser, limit: Callable[[str], tuple[str, int]]) -> None:
    command.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=N",
        help="set a limit of every run, as in --limit max_rows=8",
    )
    command.add_argument("--seed", type=int, default=0, metavar="N", help="of everything that is drawn (0)")
    command.add_argument("--json", action="store_true", help="print the results as JSON and nothing else")
    command.set_defaults(read_limit=limit)


def _run_evaluate(arguments: argparse.Namespace) -> int:
    from bounded_retrieval.console import ProgressDisplay, make_console
    from bounded_retrieval.contracts.calibration import Calibration
    from bounded_retrieval.evaluating import EvaluationOptions, evaluate_collection
    from bounded_retrieval.evaluation.report import check_report_folder, write_report
    from bounded_retrieval.evaluation_display import render_report

    plots = arguments.out is not None and not arguments.no_plots
    if arguments.out is not None:
        check_report_folder(arguments.out, plots=plots)
    options = EvaluationOptions(
        index=arguments.index,
        embedding=arguments.embedding,
        policies=_names(arguments.policies),
        budget=_budget(arguments),
        resamples=arguments.resamples,
        seed=arguments.seed,
        confidence=arguments.confidence,
        calibration=None if arguments.calibration is None else Calibration.from_file(arguments.calibration),
        part=arguments.slice,
        live=arguments.live,
    )
    with ProgressDisplay() as display:
        report, clocked = evaluate_collection(_collection(arguments), options, display)
        if arguments.out is not None:
            for path in write_report(report, arguments.out, timings=clocked, plots=plots):
                display.say(f"wrote {path}")
    if arguments.json:
        brief = {name: value for name, value in report.items() if name not in ("queries", "units")}
        print(json.dumps(brief, ensure_ascii=False, indent=2))  # noqa: T201
    else:
        console = make_console()
        console.print(render_report(report, console), soft_wrap=not console.is_terminal)
    return 0


def _run_calibrate(arguments: argparse.Namespace) -> int:
    from bounded_retrieval.console import ProgressDisplay, make_console
    from bounded_retrieval.evaluating import calibrate_collection, settings_with, verdict_to_dict, with_final
    from bounded_retrieval.evaluation.thresholds import CalibrationSettings
    from bounded_retrieval.evaluation.writing import check_file, write_bytes
    from bounded_retrieval.evaluation_display import render_verdict

    check_file(arguments.out, "--out")
    settings = settings_with(
        CalibrationSettings(thresholds=tuple(arguments.threshold), seed=arguments.seed),
        assessor=arguments.assessor,
        fusion=arguments.fusion,
        against=arguments.against,
        measure=arguments.measure,
        epsilon=arguments.epsilon,
        confidence=arguments.confidence,
        budget=_budget(arguments),
        fractions=with_final(CalibrationSettings().fractions, arguments.final),
    )
    with ProgressDisplay() as display:
        verdict = calibrate_collection(
            _collection(arguments), settings, display, index=arguments.index, embedding=arguments.embedding
        )
    found = verdict.calibration
    if found is not None:
        write_bytes(arguments.out.parent, {arguments.out.name: found.to_json().encode()})
    if arguments.json:
        print(json.dumps(verdict_to_dict(verdict), ensure_ascii=False, indent=2))  # noqa: T201
    else:
        console = make_console()
        lines = render_verdict(verdict, None if found is None else arguments.out)
        console.print(lines, soft_wrap=not console.is_terminal)
    return _NOT_CERTIFIED if found is None else 0


def _collection(arguments: argparse.Namespace) -> Any:
    from bounded_retrieval.evaluation.collections import load_collection

    return load_collection(
        arguments.collection, split=arguments.split, queries=arguments.queries, qrels=arguments.qrels
    )


def _names(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if text is not None and not names:
        raise RequestError(f"--policies: at least one name is expected (got {quoted(text)})")
    return names


def _budget(arguments: argparse.Namespace) -> Any:
    from pydantic import ValidationError

    from bounded_retrieval.contracts.budget import Budget

    limits = dict(arguments.read_limit(text) for text in arguments.limit)
    try:
        return Budget(**limits) if limits else None
    except ValidationError as error:
        raise RequestError.from_validation(error, "--limit") from None
