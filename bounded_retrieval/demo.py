"""The demonstration: index a collection, ask it, and say what came of each request.

Nothing here knows how a request will end: outcomes are read from the packets.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from langchain_core.documents import Document
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from bounded_retrieval.asking import Answer, Asker
from bounded_retrieval.console import IndexingDisplay, make_console, printable, render_packet
from bounded_retrieval.contracts.candidate import searchable_text
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.policies.coverage import retain_terms
from bounded_retrieval.policies.tokenize import find_identifiers
from bounded_retrieval.retrievers.store import build_index, open_index

SHIPPED = ("lex-02", "voc-05", "abs-06", "pre-05")
"""Requests of the shipped collection that the demonstration makes: one of each kind worth seeing."""

_KINDS = {
    "lexical_hit": "the inventory says it in the same words",
    "vocabulary_mismatch": "the inventory says it in other words",
    "absent_procedure": "the inventory does not hold this",
    "premature_stop": "all the words are there, the need is not met",
}


@dataclass(frozen=True, kw_only=True)
class DemoRequest:
    """A request and why it is made."""

    query: str
    about: str


def shipped_collection() -> Path:
    """Folder of the shipped device-support inventory (BEIR layout)."""
    return Path(__file__).parent / "data" / "device_support"


def run_demo(folder: Path | None, queries: Sequence[str]) -> None:
    """Index the shipped collection, or the user's files, in a temporary directory and ask it.

    Raises:
        SourceError: a file of the user's cannot be read.
    """
    console = make_console()
    source = shipped_collection() / "corpus.jsonl" if folder is None else folder
    with tempfile.TemporaryDirectory(prefix="bounded-retrieval-") as directory:
        kept: list[Document] = []
        held: set[str] = set()
        with IndexingDisplay() as display:
            documents = _keep(read_documents([source], on_skip=display.skip), kept, held)
            report = build_index(documents, Path(directory) / "index", progress=display.progress)
        display.summarise(report, None)
        requests = [DemoRequest(query=query, about="your request") for query in queries]
        requests = requests or (shipped_requests() if folder is None else derived_requests(kept, held))
        rows: list[tuple[DemoRequest, Answer, float]] = []
        with open_index(Path(directory) / "index") as index:
            asker = Asker(index)
            for request in requests:
                started = time.perf_counter()
                answer = asker.ask(request.query)
                rows.append((request, answer, (time.perf_counter() - started) * 1000))
                console.print(render_packet(f"{request.query}  ({request.about})", answer.packet))
    console.print(_summary(rows))


def shipped_requests() -> list[DemoRequest]:
    """The demonstration's requests of the shipped collection, in the declared order."""
    lines = (shipped_collection() / "queries.jsonl").read_text(encoding="utf-8").splitlines()
    by_id = {record["_id"]: record for record in map(json.loads, lines)}
    return [
        DemoRequest(query=by_id[query_id]["text"], about=_KINDS[by_id[query_id]["metadata"]["kind"]])
        for query_id in SHIPPED
    ]


def derived_requests(documents: Sequence[Document], held: Collection[str]) -> list[DemoRequest]:
    """Requests made from the user's own documents: their own words, two units' words at once, and words of none.

    Args:
        documents: what the requests take their words from.
        held: every identifier in the collection.
    """
    openings = [opening for document in documents if (opening := _opening(document))]
    openings.sort(key=lambda words: (-len(words), words))
    requests = []
    if openings:
        requests.append(DemoRequest(query=" ".join(openings[0]), about="the first words of one unit"))
        absent = next(name for number in range(len(held) + 1) if (name := f"zx-{number}") not in held)
        query = f"{' '.join(openings[0][:2])} {absent.upper()}"
        requests.append(DemoRequest(query=query, about=f"{absent.upper()} stands nowhere in the files"))
    if len(openings) > 1:
        both = (*openings[0][:4], *openings[-1][:4])
        requests.append(DemoRequest(query=" ".join(both), about="words of two units at once"))
    return requests


def _opening(document: Document, words: int = 8) -> tuple[str, ...]:
    return retain_terms(document.page_content[:400]).terms[:words]


def _keep(documents: Iterable[Document], kept: list[Document], held: set[str], most: int = 200) -> Iterator[Document]:
    for document in documents:
        if len(kept) < most:
            kept.append(document)
        held.update(find_identifiers(searchable_text(str(document.metadata.get("title", "")), document.page_content)))
        yield document


def _summary(rows: Sequence[tuple[DemoRequest, Answer, float]]) -> Table:
    table = Table(title="what came of each request", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("request", max_width=34)
    table.add_column("stopped", no_wrap=True)
    table.add_column("searches", no_wrap=True)
    table.add_column("missing", min_width=8)
    table.add_column("ms", justify="right")
    for request, answer, took_ms in rows:
        packet = answer.packet
        searches = f"{packet.usage.calls} ({packet.usage.dense_calls} dense)"
        missing = Text(printable(", ".join(packet.missing_terms) or "-"))
        table.add_row(Text(printable(request.query)), packet.stop_reason.value, searches, missing, f"{took_ms:.0f}")
    return table
