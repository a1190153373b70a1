"""The demonstration: index a collection, ask it, and say what came of each request.

Nothing here knows how a request will end: outcomes are read from the packets.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from pydantic import ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from bounded_retrieval.asking import Asker
from bounded_retrieval.console import NOTES, IndexingDisplay, make_console, printable, render_packet
from bounded_retrieval.contracts.candidate import searchable_text
from bounded_retrieval.contracts.chain import ChainResult, Hop
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.contracts.request import PathRequest, RetrievalRequest
from bounded_retrieval.contracts.wording import describe_chain_end, describe_fired
from bounded_retrieval.errors import RequestError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.chain import create_recursive_retrieval
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.policies.coverage import retain_terms
from bounded_retrieval.policies.planners import TemplatePlanner
from bounded_retrieval.policies.reading import ExtractiveReader
from bounded_retrieval.policies.tokenize import find_identifiers
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.retrievers.store import Index, build_index, open_index

SHIPPED = ("lex-02", "voc-05", "abs-06", "pre-05")
"""Requests of the shipped collection that the demonstration makes: one of each kind worth seeing."""

PATH = "HX-200 > maintained by > led by > managed by"
"""What the demonstration follows among the declared relationships of the shipped collection."""

CHAIN_QUESTION = "How many packs does the dock for the KR-7B's battery charge at once?"
CHAIN_TEMPLATES = (
    "Which battery pack does the KR-7B have?",
    "Which dock charges several #1 packs at once?",
    "How many #1 packs does the #2 charge at once?",
)
"""The chain of the demonstration; ``#1`` is the first hop's sub-answer."""

CHAIN_THRESHOLD = 7.0
"""Least score of a sub-answer in the demonstration; the reader's own default answers less often."""

_KINDS = {
    "lexical_hit": "the inventory says it in the same words",
    "vocabulary_mismatch": "the inventory says it in other words",
    "absent_procedure": "the inventory does not hold this",
    "premature_stop": "all the words are there, the need is not met",
}


@dataclass(frozen=True, kw_only=True)
class DemoRequest:
    """A request, why it is made, and what it asks for besides its query."""

    query: str
    about: str
    request: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class _Row:
    """What came of one request, for the summary."""

    query: str
    ended: EvidencePacket | ChainResult
    took_ms: float


def shipped_collection() -> Path:
    """Folder of the shipped device-support inventory (BEIR layout)."""
    return Path(__file__).parent / "data" / "device_support"


def run_demo(folder: Path | None, queries: Sequence[str]) -> None:
    """Index the shipped collection, or the user's files, in a temporary directory and ask it.

    The shipped collection, unless asked the user's own queries, is also followed along a path and asked in a chain.

    Raises:
        RequestError: a query is not valid; before anything is indexed.
        SourceError: a file of the user's cannot be read.
    """
    for query in queries:
        _check_query(query)
    console = make_console()
    source = shipped_collection() / "corpus.jsonl" if folder is None else folder
    is_tour = folder is None and not queries
    with tempfile.TemporaryDirectory(prefix="bounded-retrieval-") as directory:
        kept: list[Document] = []
        held: set[str] = set()
        with IndexingDisplay() as display:
            documents = _keep(read_documents([source], on_skip=display.skip), kept, held)
            report = build_index(documents, Path(directory) / "index", progress=display.progress)
        display.summarise(report, None)
        requests = [DemoRequest(query=query, about="your request") for query in queries]
        requests = requests or (shipped_requests() if folder is None else derived_requests(kept, held))
        with open_index(Path(directory) / "index") as index:
            rows = _ask(index, [*requests, *([path_request()] if is_tour else [])], console)
            rows += [_ask_chain(index, console)] if is_tour else []
    console.print(_summary(rows))


def _check_query(query: str) -> None:
    try:
        RetrievalRequest(query=query)
    except ValidationError as error:
        raise RequestError.from_validation(error, "--ask") from None


def _ask(index: Index, requests: Sequence[DemoRequest], console: Console) -> list[_Row]:
    has_path = any("path" in request.request for request in requests)
    links = RelationshipStore.from_jsonl(shipped_collection() / "relationships.jsonl") if has_path else None
    asker = Asker(index, relationships=links)
    rows = []
    for request in requests:
        started = time.perf_counter()
        packet = asker.ask(request.query, request.request).packet
        rows.append(_Row(query=request.query, ended=packet, took_ms=(time.perf_counter() - started) * 1000))
        console.print(render_packet(f"{request.query}  ({request.about})", packet))
    return rows


def _ask_chain(index: Index, console: Console) -> _Row:
    search = create_bounded_retrieval(index.lexical, index.dense, units=index.units)
    reader = ExtractiveReader(threshold=CHAIN_THRESHOLD)
    chain = create_recursive_retrieval(search, TemplatePlanner(CHAIN_TEMPLATES), reader).compile()
    started = time.perf_counter()
    result = ChainResult.from_result(chain.invoke({"query": CHAIN_QUESTION}))
    row = _Row(query=CHAIN_QUESTION, ended=result, took_ms=(time.perf_counter() - started) * 1000)
    console.print(render_chain(f"{CHAIN_QUESTION}  (a chain: each sub-answer forms the next query)", result))
    return row


def render_chain(query: str, result: ChainResult) -> RenderableType:
    """Whether a chain resolved, which rule ended it, what it cost, and the trail: one row for each hop."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("query", Text(printable(query)))
    facts.add_row("", Text(f"{result.stop_reason.meaning} {result.stop_reason.not_meaning}", style="dim"))
    facts.add_row("cost", Text(_chain_cost(result)))
    for note in result.notes:
        facts.add_row("note", Text(NOTES.get(note, note)))
    first = Text(printable(describe_chain_end(result)), style="bold")
    trail = _trail(result.trail) if result.trail else Text("  no hop was made\n")
    return Group(Panel(Group(first, facts), expand=True), trail)


def _chain_cost(result: ChainResult) -> str:
    spent, most = result.usage, result.limits
    calls = f"{spent.calls} of {most.max_calls} calls ({spent.dense_calls} dense)"
    return f"{len(result.trail)} of {most.max_hops} hops, {calls}, {len(result.documents)} of {most.max_units} units"


def _trail(hops: Sequence[Hop]) -> Table:
    table = Table(title="trail", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("hop", justify="right", no_wrap=True)
    table.add_column("query", overflow="fold")
    table.add_column("sub-answer", overflow="fold")
    table.add_column("new units", no_wrap=True)
    table.add_column("rule fired", no_wrap=True)
    for hop in hops:
        new = f"{hop.new_units} of {len(hop.unit_ids)}"
        texts = Text(printable(hop.query)), Text(printable(hop.sub_answer or "-"))
        table.add_row(str(hop.number), *texts, new, describe_fired(hop))
    return table


def path_request() -> DemoRequest:
    """The demonstration's path over the declared relationships of the shipped collection."""
    return DemoRequest(query=PATH, about="declared relationships, no search", request={"path": PathRequest.parse(PATH)})


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


def _summary(rows: Sequence[_Row]) -> Table:
    table = Table(title="what came of each request", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("request", max_width=34)
    table.add_column("stopped", no_wrap=True)
    table.add_column("searches", no_wrap=True)
    table.add_column("missing", min_width=8)
    table.add_column("ms", justify="right")
    for row in rows:
        usage, ended = row.ended.usage, row.ended
        searches = f"{usage.calls} ({usage.dense_calls} dense)"
        open_still = ended.unresolved if isinstance(ended, ChainResult) else ended.missing_terms
        missing = Text(printable(", ".join(open_still) or "-"))
        table.add_row(Text(printable(row.query)), ended.stop_reason.value, searches, missing, f"{row.took_ms:.0f}")
    return table
