"""Give one fuzz target large inputs of every shape, and print one JSON line for each: what it is and its time.

``python fuzz_large.py TARGET[,TARGET...] SIZE LIMIT EVERY [SHAPE...]``: inputs of about SIZE bytes, at most LIMIT
seconds each (a longer one prints where it was and ends the process), one in EVERY of those that stand inside others;
only shapes whose names begin with one of those given, where any are. The time is that of the processor, so that other work on the machine counts for little.
"""

from __future__ import annotations

import faulthandler
import json
import sys
import time

from fuzz_targets import TARGETS, Run


def main(names: str, size: str, limit: str, every: str, *wanted: str) -> None:
    """Run every input once."""
    for name in names.split(","):
        run = TARGETS[name].load()
        for begin in TARGETS[name].begins:
            run(begin)
        for shape, data in TARGETS[name].large(int(size), int(every)):
            if not wanted or shape.startswith(wanted):
                _run(run, data, f"{name}: {shape}", float(limit))


def _run(run: Run, data: bytes, shape: str, limit: float) -> None:
    print(json.dumps({"shape": shape}), flush=True)
    faulthandler.dump_traceback_later(limit, exit=True)
    start = time.process_time()
    run(data)
    seconds = time.process_time() - start
    faulthandler.cancel_dump_traceback_later()
    print(json.dumps({"shape": shape, "seconds": seconds}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
