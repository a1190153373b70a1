"""What a user does with the embedded default, in a process without a network; prints a line for each finished step.

Arguments: a work folder; ``all`` steps, or a way to fail on purpose (``python``, ``native``, ``address``); and, where
the kernel is to watch native code, ``watched``.
"""

from __future__ import annotations

import ctypes
import gc
import socket
import struct
import sys
import threading
from pathlib import Path

import refused_network

CALLERS = {"aiohttp", "grpc", "httpx", "httpx2", "huggingface_hub", "langsmith", "opentelemetry", "posthog", "requests"}
"""Packages that are installed and whose clients call services."""


def reach_out(way: str) -> None:
    """Try to reach a port of this machine, through Python or past it."""
    if way == "python":
        try:
            socket.create_connection(("127.0.0.1", 9))
        except OSError:
            return
    libc = ctypes.CDLL(None)
    stream, datagram = int(socket.SOCK_STREAM), int(socket.SOCK_DGRAM)
    descriptor = libc.socket(int(socket.AF_INET), stream if way == "native" else datagram, 0)
    address = struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", 9, socket.inet_aton("127.0.0.1"))
    if way == "native":
        libc.connect(descriptor, address, len(address))
    else:
        libc.sendto(descriptor, b"x", 1, 0, address, len(address))


def import_everything() -> None:
    """The package, every public name and every module that needs no extra."""
    import importlib
    import pkgutil

    import bounded_retrieval

    for name in bounded_retrieval.__all__:
        getattr(bounded_retrieval, name)
    for module in pkgutil.walk_packages(bounded_retrieval.__path__, "bounded_retrieval."):
        if not module.name.endswith((".__main__", ".compliance")):
            importlib.import_module(module.name)


def command(*arguments: str) -> None:
    """One run of the command line that has to end well."""
    from bounded_retrieval.cli import main

    assert main(list(arguments)) == 0, arguments


def index_and_ask(folder: Path) -> None:
    """Index a small folder, ask it, follow a declared path, and ask a chain."""
    from bounded_retrieval import (
        ChainResult,
        EvidencePacket,
        ExtractiveReader,
        TemplatePlanner,
        create_bounded_retrieval,
        create_recursive_retrieval,
        open_index,
    )

    files, index = folder / "files", folder / "index"
    files.mkdir()
    (files / "a.md").write_text("# HX-200\n\nThe HX-200 runs on the BP-7 pack. Hold its button to reset the HX-200.\n")
    (files / "b.html").write_text("<title>BP-7</title><p>The CB-5D dock charges several BP-7 packs at once.</p>")
    (files / "relationships.jsonl").write_text("")
    command("index", str(files), "--to", str(index))
    command("ask", "How do I reset the HX-200?", "--index", str(index))
    with open_index(index) as opened:
        graph = create_bounded_retrieval(opened.lexical, opened.dense, units=opened.units)
        request = {"query": "a parcel smashed by the courier", "request": {"policy": "always_continue"}}
        packet = EvidencePacket.from_result(graph.compile().invoke(request))
        assert packet.usage.dense_calls == 1
        planner = TemplatePlanner(
            ["Which pack does the HX-200 run on?", "Which dock charges several #1 packs at once?"]
        )
        chain = create_recursive_retrieval(graph, planner, ExtractiveReader(threshold=0.1)).compile()
        assert ChainResult.from_result(chain.invoke({"query": "Which dock charges the HX-200's packs?"})).trail


def follow_a_path(folder: Path) -> None:
    """The shipped collection with its relationships, and a path along them."""
    from bounded_retrieval.demo import PATH, shipped_collection

    links = shipped_collection() / "relationships.jsonl"
    index = str(folder / "devices")
    command("index", str(shipped_collection() / "corpus.jsonl"), "--relationships", str(links), "--to", index)
    command("ask", "--path", PATH, "--index", index)


def leave_no_client() -> None:
    """No client of a tracing or usage service, or of HTTP, was made, and no thread is left running."""
    assert "posthog" not in sys.modules
    gc.collect()
    kinds = {type(kept) for kept in gc.get_objects()}
    clients = [kind for kind in kinds if kind.__name__.endswith(("Client", "Session", "Channel"))]
    assert [kind for kind in clients if kind.__module__.partition(".")[0] in CALLERS] == []
    running = [thread.name for thread in threading.enumerate() if thread is not threading.main_thread()]
    assert running == [], running


def say(line: str) -> None:
    """A line to whoever started this."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def every_step(folder: Path) -> None:
    """What a user does, in order."""
    import_everything()
    say("done: import")
    index_and_ask(folder)
    say("done: index, ask, chain")
    follow_a_path(folder)
    say("done: path")
    command("evaluate", "device_support", "--out", str(folder / "report"), "--resamples", "100", "--live", "2")
    say("done: evaluate")
    command("demo")
    say("done: demo")
    leave_no_client()


def main(folder: Path, what: str, *watched: str) -> None:
    """Refuse the network, do what is asked, and say what Python code tried."""
    refused_network.refuse_python()
    if watched:
        refused_network.refuse_native()
    if what == "all":
        every_step(folder)
    else:
        reach_out(what)
    say(f"attempts: {refused_network.attempts}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
