"""The coverage-guided fuzzer of one target, as a program of its own: libFuzzer takes over the process.

``python fuzz_run.py TARGET[,TARGET...] CORPUS [libFuzzer's options]``. CORPUS is a folder to begin with and to grow; the
words of the targets are written beside it. Of several targets the first byte of an input chooses one.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import atheris
from fuzz_targets import TARGETS, Target


def main(names: str, corpus: str, *options: str) -> None:
    """Watch the package's own modules while the targets run."""
    targets = [PLANTED if name == "planted" else TARGETS[name] for name in names.split(",")]
    with atheris.instrument_imports(include=["bounded_retrieval"], enable_loader_override=False):
        for module in MODULES:
            importlib.import_module(module)
        runs = [target.load() for target in targets]
    known = dict.fromkeys(word for target in targets for word in target.words)
    if known:
        words = Path(corpus).with_suffix(".words")
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in known), encoding="ascii")
        options = (*options, f"-dict={words}")
    for place, target in enumerate(targets):
        for number, begin in enumerate(target.begins):
            chosen = bytes([place]) + begin if len(targets) > 1 else begin
            (Path(corpus) / f"begin-{place}-{number}").write_bytes(chosen)

    def run(data: bytes) -> None:
        if len(runs) == 1:
            runs[0](data)
        elif data:
            runs[data[0] % len(runs)](data[1:])

    atheris.Setup([sys.argv[0], corpus, *options], run)
    atheris.Fuzz()


def _escaped(word: str) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word.encode())


PLANTED = Target("fuzz_planted", "path", [b"HX-200"], (" > ",))
MODULES = (
    "bounded_retrieval.evaluation.collections",
    "bounded_retrieval.ingest",
    "bounded_retrieval.policies.replay",
    "bounded_retrieval.retrievers.relationships",
    "bounded_retrieval.statistics",
)
"""Imported first, so that no target's module brings them in unwatched."""

if __name__ == "__main__":
    main(*sys.argv[1:])
