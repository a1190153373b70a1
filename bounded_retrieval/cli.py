"""Command line: arguments and calls only."""

from __future__ import annotations

import argparse
import atexit
import gc
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from bounded_retrieval.errors import BoundedRetrievalError, RequestError, SourceError, one_line, quoted
from bounded_retrieval.evaluation_commands import add_evaluation_commands, path_argument

if TYPE_CHECKING:
    from bounded_retrieval.retrievers.store import IndexReport

EXIT_DONE = 0
EXIT_UNEXPECTED = 1
EXIT_USAGE = 2

_MOST_DIGITS = 18


def command() -> int:
    """The program `bounded-retrieval`: `main`, in a process that ends with it."""
    # Taking apart what was imported, object by object, would take a quarter of the time of an `ask`.
    atexit.register(gc.freeze)
    return main()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code: 0 done, 2 bad usage or input, 1 unexpected."""
    _use_utf8()
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except BoundedRetrievalError as error:
        return _complain(str(error), EXIT_USAGE)
    except KeyboardInterrupt:
        return _complain("interrupted; nothing that was on disk is lost", EXIT_UNEXPECTED)
    except BrokenPipeError:
        # The reader of our output went away (for example `| head`); that is its right.
        sys.stderr.close()
        return EXIT_DONE
    except OSError as error:
        return _complain(f"{error.filename or 'file system'}: {error.strerror or error}", EXIT_UNEXPECTED)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error does."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    from bounded_retrieval import __version__

    parser = _Parser(prog="bounded-retrieval", description="Bounded, inspectable retrieval over your own documents.")
    parser.add_argument("--version", action="version", version=f"bounded-retrieval {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    _add_index(commands)
    _add_ask(commands)
    _add_demo(commands)
    _add_stats(commands)
    add_evaluation_commands(commands, _limit)
    return parser


def _add_index(commands: Any) -> None:
    index = commands.add_parser(
        "index",
        help="index files or folders, or verify an index",
        description="Index .jsonl, .md, .txt, .html and .pdf files or folders. A file named relationships.jsonl in a "
        "folder is taken as its declared relationships and not read as documents.",
    )
    index.add_argument("paths", nargs="*", type=path_argument, metavar="PATH")
    index.add_argument("--to", type=path_argument, metavar="DIR", help="index directory; safe to run again")
    index.add_argument(
        "--verify",
        type=path_argument,
        metavar="DIR",
        help="index nothing; compare every file of an index with its SHA-256",
    )
    _add_building(index)
    index.set_defaults(run=_run_index, usage_error=index.error)


def _add_building(index: Any) -> None:
    index.add_argument("--chunk-chars", type=int, default=900, metavar="N", help="longest unit (default 900)")
    index.add_argument(
        "--embedding", metavar="NAME", help="minilm or wordllama; by default minilm, or what DIR was built with"
    )
    index.add_argument(
        "--add",
        action="store_true",
        help="add to the index: what DIR holds of other files stays, and relationships unless others are found",
    )
    index.add_argument(
        "--dense",
        choices=("auto", "exact", "chroma"),
        default="auto",
        help="search vectors one by one, or through a graph in large indexes (default auto: by the number of units)",
    )
    index.add_argument(
        "--relationships",
        type=path_argument,
        metavar="FILE",
        help="declared relationships and names (.jsonl); not together with a relationships.jsonl in a folder",
    )


def _add_ask(commands: Any) -> None:
    ask = commands.add_parser("ask", help="ask an index", description="One bounded retrieval run over an index.")
    ask.add_argument("query", nargs="?", help="what to find evidence for; may be left out with --path")
    ask.add_argument("--index", required=True, type=path_argument, metavar="DIR")
    ask.add_argument("--policy", metavar="P", help="adaptive, always_continue, fixed_lexical or fixed_dense")
    ask.add_argument("--calibration", type=path_argument, metavar="FILE", help="decide as calibrate has certified")
    ask.add_argument("--threshold", metavar="T", help="coverage at which the adaptive policy stops, 0 to 1")
    ask.add_argument(
        "--limit", action="append", default=[], metavar="NAME=N", help="lower a limit, as in --limit max_rows=4"
    )
    ask.add_argument(
        "--path", metavar="PATH", help="follow declared relationships instead: 'START > relation > relation'"
    )
    ask.add_argument(
        "--relationships", type=path_argument, metavar="FILE", help="relationships to follow (default: the index's)"
    )
    ask.add_argument("--tenant", metavar="NAME", help="ask as a caller of this tenant (default: all is public)")
    ask.add_argument(
        "--group",
        action="append",
        metavar="NAME",
        help="ask as a caller in this group, repeatable; without --tenant sees units of no tenant",
    )
    ask.add_argument("--diagnostics", type=path_argument, metavar="FILE", help="append protected records (mode 0600)")
    ask.add_argument("--json", action="store_true", help="print the packet as JSON and nothing else")
    ask.add_argument("--trace", action="store_true", help="show the decision trace too")
    ask.set_defaults(run=_run_ask)


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo", help="see it work", description="Runs over the shipped collection, or over yours."
    )
    demo.add_argument(
        "folder", nargs="?", type=path_argument, metavar="PATH", help="files or folder to run over instead"
    )
    demo.add_argument("--ask", action="append", default=[], metavar="QUERY", help="your own requests, repeatable")
    demo.set_defaults(run=_run_demo)


def _add_stats(commands: Any) -> None:
    stats = commands.add_parser(
        "stats",
        help="what many recorded runs have in common",
        description="How runs ended and what they cost, bounded runs and chains apart, and what that suggests. Reads "
        "decision traces, outputs of ask --json and outputs of both graphs: .json files (one run, or a list of them) "
        "and .jsonl files (one run a line). A median or a 90th percentile is always a value that occurred.",
    )
    stats.add_argument("files", nargs="+", type=path_argument, metavar="FILE", help=".json or .jsonl")
    stats.add_argument("--json", action="store_true", help="print everything as JSON and nothing else")
    stats.add_argument(
        "--plot", type=path_argument, metavar="FILE", help="draw the stop reasons as .svg or .png (extra: plots)"
    )
    stats.set_defaults(run=_run_stats)


def _run_index(arguments: argparse.Namespace) -> int:
    from bounded_retrieval.console import IndexingDisplay
    from bounded_retrieval.ingest import find_sources, read_documents
    from bounded_retrieval.retrievers.embeddings import load_embedding
    from bounded_retrieval.retrievers.relationships import RelationshipStore
    from bounded_retrieval.retrievers.store import build_index

    if arguments.verify is not None:
        return _run_verify(arguments)
    if not arguments.paths or arguments.to is None:
        arguments.usage_error("PATH and --to DIR are needed, or --verify DIR")
    files = _relationship_files(arguments.paths, arguments.relationships)
    relationships = RelationshipStore.from_jsonl(*files) if files else None
    embedding = None if arguments.embedding is None else load_embedding(arguments.embedding)
    with IndexingDisplay() as display:
        documents = read_documents(arguments.paths, chunk_chars=arguments.chunk_chars, on_skip=display.skip)
        report = build_index(
            documents,
            arguments.to,
            embedding=embedding,
            progress=display.progress,
            relationships=relationships,
            keep=arguments.add,
            whole_sources=find_sources(arguments.paths) if arguments.add else (),
            dense=arguments.dense,
        )
    display.summarise(report, arguments.to)
    if report.replaced_sources:
        display.say(f"replaced the earlier text of {', '.join(report.replaced_sources)}")
    _tell_relationships(report, files)
    return EXIT_DONE


def _tell_relationships(report: IndexReport, files: Sequence[Path]) -> None:
    from bounded_retrieval.console import make_console, printable

    if files:
        line = f"stored {report.relationships:,} relationships from {', '.join(map(str, files))}"
        make_console(stderr=True).print(printable(line), soft_wrap=True)
    elif report.relationships_dropped:
        line = "the relationships that the index held were dropped: none were given (see --relationships)"
        make_console(stderr=True).print(line, soft_wrap=True)


def _run_verify(arguments: argparse.Namespace) -> int:
    from bounded_retrieval.console import make_console, printable
    from bounded_retrieval.retrievers.store import verify_index

    if arguments.paths or any((arguments.to, arguments.embedding, arguments.relationships, arguments.add)):
        arguments.usage_error("--verify DIR: stands alone; nothing is indexed")
    manifest = verify_index(arguments.verify)
    line = f"{arguments.verify}: {manifest.units:,} units, every file as it was written"
    make_console(stderr=True).print(printable(line), soft_wrap=True)
    return EXIT_DONE


def _relationship_files(paths: Sequence[Path], given: Path | None) -> list[Path]:
    from bounded_retrieval.ingest import find_relationships

    found = find_relationships(paths)
    if given is None:
        return found
    others = [path for path in found if path.resolve() != given.resolve()]
    if others:
        raise SourceError(f"--relationships {given}: a folder holds {others[0]} too; only one of them can be taken")
    return [given]


def _run_ask(arguments: argparse.Namespace) -> int:
    from bounded_retrieval.asking import ask_index
    from bounded_retrieval.console import make_console, render_packet, render_trace

    request = _request(arguments)
    if arguments.calibration is not None:
        _check_certified(request)
    query = arguments.query or (arguments.path and str(request["path"]))
    if not query:
        raise RequestError("query: missing; give one, or --path")
    answer = ask_index(query, arguments.index, request, **_asking_options(arguments))
    if arguments.json:
        trace = {"trace": answer.trace.model_dump(mode="json")} if arguments.trace else {}
        print(json.dumps({**answer.packet.model_dump(mode="json"), **trace}, ensure_ascii=False, indent=2))  # noqa: T201
    else:
        console = make_console()
        console.print(render_packet(query, answer.packet))
        if arguments.trace:
            console.print(render_trace(answer.trace))
    return EXIT_DONE if answer.error is None else _complain(f"a search failed: {answer.error}", EXIT_UNEXPECTED)


def _request(arguments: argparse.Namespace) -> dict[str, Any]:
    from bounded_retrieval.contracts.request import PathRequest

    request = {
        "policy": arguments.policy,
        "threshold": _number(arguments.threshold, "threshold"),
        "budget": dict(_limit(text) for text in arguments.limit) or None,
        "path": None if arguments.path is None else PathRequest.parse(arguments.path),
    }
    return {name: value for name, value in request.items() if value is not None}


def _check_certified(request: dict[str, Any]) -> None:
    # A request takes precedence over what a graph was built with, a certificate included; only a deadline, which ends
    # a run and decides nothing, may stand beside it.
    others = ["--policy"] if request.get("policy") not in (None, "adaptive") else []
    others += ["--threshold"] if "threshold" in request else []
    others += [f"--limit {name}" for name in request.get("budget", {}) if name != "deadline_ms"]
    if others:
        raise RequestError(f"--calibration: fixes how a run is decided and its limits; leave out {', '.join(others)}")


def _asking_options(arguments: argparse.Namespace) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if arguments.tenant is not None or arguments.group:
        from bounded_retrieval.asking import Caller

        options["caller"] = Caller(tenant=arguments.tenant, groups=tuple(arguments.group or ()))
    if arguments.relationships is not None:
        from bounded_retrieval.retrievers.relationships import RelationshipStore

        options["relationships"] = RelationshipStore.from_jsonl(arguments.relationships)
    if arguments.calibration is not None:
        from bounded_retrieval.contracts.calibration import Calibration

        options["calibration"] = Calibration.from_file(arguments.calibration)
    if arguments.diagnostics is not None:
        from bounded_retrieval.integrations.diagnostics import JsonlDiagnostics

        options["diagnostics"] = JsonlDiagnostics(arguments.diagnostics)
    return options


def _run_demo(arguments: argparse.Namespace) -> int:
    from bounded_retrieval.demo import run_demo

    run_demo(arguments.folder, arguments.ask)
    return EXIT_DONE


def _run_stats(arguments: argparse.Namespace) -> int:
    from bounded_retrieval.console import make_console
    from bounded_retrieval.statistics import (
        RunStatistics,
        check_picture,
        draw_stop_reasons,
        read_runs,
        render_statistics,
    )

    if arguments.plot is not None:
        check_picture(arguments.plot)
    report = RunStatistics(run for path in arguments.files for run in read_runs(path)).report()
    if arguments.plot is not None:
        draw_stop_reasons(report, arguments.plot)
    if arguments.json:
        print(json.dumps(report, ensure_ascii=False, indent=2))  # noqa: T201
    else:
        console = make_console()
        console.print(render_statistics(report, console), soft_wrap=not console.is_terminal)
    return EXIT_DONE


def _limit(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals:
        raise RequestError(f"--limit: expected NAME=N, as in max_rows=4 (got {quoted(text)})")
    # Python itself reads no whole number of more than 4,300 digits; no limit has nearly as many as this.
    if not re.fullmatch(rf"\s*[+-]?[0-9]{{1,{_MOST_DIGITS}}}\s*", value):
        expected = f"expected a whole number of at most {_MOST_DIGITS} digits"
        raise RequestError(f"--limit {one_line(name, 40)}: {expected} (got {quoted(value, 40)})")
    return name.strip(), int(value)


def _number(text: str | None, name: str) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        raise RequestError(f"--{name}: expected a number (got {quoted(text)})") from None


def _complain(message: str, code: int) -> int:
    from bounded_retrieval.console import render_error

    print(render_error(message), file=sys.stderr)  # noqa: T201
    return code


def _use_utf8() -> None:
    # Evidence may hold any character; a terminal set to another encoding must not end the program.
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(encoding="utf-8", errors="replace")
