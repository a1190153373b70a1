"""What errors say: each names what is wrong in one line, and each promise of the documents about errors is kept."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval import (
    BM25Searcher,
    BoundedRetriever,
    Budget,
    ChainLimits,
    MetadataView,
    RelationshipStore,
    build_index,
    create_bounded_retrieval,
    create_recursive_retrieval,
    create_retrieval_tool,
    errors,
    open_index,
)
from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.errors import BoundedRetrievalError
from bounded_retrieval.testing import FailingSearcher, ScriptedSearcher

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "bounded_retrieval"
CLASSES = {name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}

SAID_ELSEWHERE = {
    "evaluation/_drawing.py": "message",
    "evaluation/report.py": "place",
    "nodes/finish_chain.py": "ChainResult.from_result(output)",
    "retrievers/_store_dense.py": "str(error)",
    "retrievers/store.py": "str(error)",
    "statistics/showing.py": "message",
}
"""Errors whose text is another error's or a name's, by module: what is passed in place of a text."""


@dataclass(frozen=True)
class Raised:
    """One place of the package that makes one of its errors.

    Attributes:
        place: module and line.
        text: the message, ``{}`` for each value in it; or what stands in place of a text.
        is_text: whether the message stands there.
    """

    place: str
    text: str
    is_text: bool


def raised_in(path: Path) -> Iterator[Raised]:
    """Every error of this package that a module makes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CLASSES:
            said = node.args[0]
            place = f"{path.relative_to(SOURCES).as_posix()}:{node.lineno}"
            text = _text_of(said)
            yield Raised(place, ast.unparse(said) if text is None else text, text is not None)


def _text_of(node: ast.expr) -> str | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return None


RAISED = [each for path in sorted(SOURCES.rglob("*.py")) for each in raised_in(path)]


def test_every_message_names_what_it_is_about() -> None:
    """It begins with a field, a file or a part and a colon, or with a value that does, and stays one line."""
    named = re.compile(r"[^:\n]*\{\}[^:\n]*(: |, line | fixes ).+|[\w.,\[\] =-]+: .+")
    assert len(RAISED) > 300
    assert [each for each in RAISED if each.is_text and not named.fullmatch(each.text)] == []


def test_every_message_stands_where_it_is_raised() -> None:
    """A reader of the code sees the text; the few that pass one on are listed."""
    passed_on = {(each.place.partition(":")[0], each.text) for each in RAISED if not each.is_text}
    assert passed_on == set(SAID_ELSEWHERE.items())


@pytest.mark.parametrize("char", ["\n", "\r", "\x1b", "\x85", "\u2028", "\x00"], ids=ascii)
def test_a_message_stays_one_line_whatever_a_file_is_called(char: str) -> None:
    """Line breaks and control characters are written as escapes; pickled errors keep the text."""
    error = errors.SourceError(f"notes{char}2.md: does not exist")
    assert len(str(error).splitlines()) == 1
    assert str(error).isprintable()
    assert str(error).endswith("2.md: does not exist")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_other_characters_of_a_message_are_kept() -> None:
    """Letters of every script, blanks, quotes and backslashes stand as they are."""
    text = r"Größe «装置» c:\temp\new: at most 3 (got 'é')"
    assert str(errors.RequestError(text)) == text


UNITS = [Document(id="a", page_content="The pump hums at night.", metadata={"tenant": "acme"})]


def ask(query: str = "pump", *, request: dict[str, Any] | None = None, limit: int = 10, **options: Any) -> Any:
    """One run of a small controller."""
    graph = create_bounded_retrieval(BM25Searcher.from_documents(UNITS), **options).compile()
    return graph.invoke({"query": query, "request": request or {}}, {"recursion_limit": limit})


def chain(**request: Any) -> Any:
    """One run of a small chain."""
    searcher = ScriptedSearcher(UNITS, "lexical")
    search = create_bounded_retrieval(searcher).compile()
    graph = create_recursive_retrieval(search, lambda *_: None).compile()
    return graph.invoke({"query": "pump", "request": request})


def failing() -> Any:
    """A controller no search of which answers."""
    return create_bounded_retrieval(FailingSearcher(), FailingSearcher())


def nested(levels: int) -> dict[str, Any]:
    """A filter of so many levels."""
    return {"$not": nested(levels - 1)} if levels > 1 else {"kind": "note"}


@dataclass(frozen=True)
class Promise:
    """What a document says of an error, how to get it, and its message.

    Attributes:
        page: the document.
        says: its words.
        call: raises the error; takes an empty folder.
        message: what the error says, as a whole; ``...`` stands for the folder.
    """

    page: str
    says: str
    call: Callable[[Path], Any]
    message: str


PROMISES = [
    Promise(
        "README.md",
        "A request that carries `qrels`, `answer` or the like is refused by name",
        lambda _: ask(request={"qrels": {}, "answer": "42"}),
        "request: answer, qrels refused: labels never reach the decision",
    ),
    Promise(
        "docs/security.md",
        "`tenant`, `view`, `user` and their like in a request are refused by name",
        lambda _: ask(request={"tenant": "acme"}),
        "request: tenant refused: who may see what is settled by the application's resolver, never by a request",
    ),
    Promise(
        "docs/architecture.md",
        "unknown fields *inside* `request` are refused by name",
        lambda _: ask(request={"treshold": 0.5}),
        "request.treshold: unknown field (got 0.5)",
    ),
    Promise(
        "docs/decisions.md",
        "Requests may not raise a limit, and asking for it is an error.",
        lambda _: ask(request={"budget": {"max_rows": 7}}),
        "request.budget.max_rows: may only lower the limit 6 (got 7)",
    ),
    Promise(
        "docs/security.md",
        "A query holds at most 20,000 characters",
        lambda _: ask("x" * 20_001),
        "request.query: at most 20000 characters (got 20001)",
    ),
    Promise(
        "docs/security.md",
        "a path 200 hops and at most `max_reads`",
        lambda _: ask(
            request={"path": {"start": "HX-200", "relations": ["led by"] * 7}},
            relationships=RelationshipStore(),
        ),
        "path.relations: at most max_reads 6 hops (got 7)",
    ),
    Promise(
        "docs/security.md",
        "a filter 16 levels",
        lambda _: compile_filter(nested(17)),
        "filter: nested deeper than 16 levels",
    ),
    Promise(
        "docs/security.md",
        "An unknown operator is an error that names it.",
        lambda _: compile_filter({"year": {"$near": 2024}}),
        "filter: unknown operator '$near' on 'year'",
    ),
    Promise(
        "docs/architecture.md",
        "below 5 `inspect_request` refuses",
        lambda _: ask(limit=4),
        "recursion_limit: a run needs at least 5 (got 4)",
    ),
    Promise(
        "README.md",
        "`MetadataView` needs it unless each searcher can be asked for its units",
        lambda _: create_bounded_retrieval(FailingSearcher(), eligibility=MetadataView()),
        "units: MetadataView decides by units' current metadata; give units=, since FailingSearcher cannot be asked for it",
    ),
    Promise(
        "README.md",
        "When no permitted attempt answered, the retriever and the controller's tool raise `RetrievalFailedError`",
        lambda _: BoundedRetriever.from_graph(failing()).invoke("pump"),
        "retrieval_failed: no permitted attempt answered (2 of 2 calls charged)",
    ),
    Promise(
        "README.md",
        "When no permitted attempt answered, the retriever and the controller's tool raise `RetrievalFailedError`",
        lambda _: create_retrieval_tool(failing()).invoke({"query": "pump"}),
        "retrieval_failed: no permitted attempt answered (2 of 2 calls charged)",
    ),
    Promise(
        "docs/recursive-chain.md",
        "A request may lower limits",
        lambda _: chain(limits={"max_hops": 4}),
        "request.limits.max_hops: may only lower the limit 3 (got 4)",
    ),
    Promise(
        "docs/studio.md",
        "a directory without one ends the start with a message that names it",
        open_index,
        "...: no index there; make one with: bounded-retrieval index PATH --to ...",
    ),
]


@pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.says[:60])
def test_a_promised_error_says_what_is_wrong(promise: Promise, tmp_path: Path) -> None:
    """The page has these words, and the error exactly this message, of one of the package's own types."""
    page = " ".join((ROOT / promise.page).read_text(encoding="utf-8").split())
    assert promise.says in page
    with pytest.raises(BoundedRetrievalError) as caught:
        promise.call(tmp_path)
    assert str(caught.value).replace(str(tmp_path), "...") == promise.message


def test_the_ceiling_of_hops_cannot_be_raised() -> None:
    """``max_hops`` has a ceiling of 8 that nothing raises: not the builder's limits, nor a copy that skipped checking."""
    with pytest.raises(ValueError, match="less than or equal to 8"):
        ChainLimits(max_hops=9)
    unchecked = ChainLimits().model_copy(update={"max_hops": 9})
    with pytest.raises(errors.RequestError, match=r"^limits\.max_hops: .*less than or equal to 8 \(got 9\)$"):
        create_recursive_retrieval(lambda _: [], lambda *_: None, limits=unchecked)


def test_an_index_of_another_embedding_is_an_error(tmp_path: Path) -> None:
    """Opening with another one is never a silent switch: the message names both and the directory."""
    from bounded_retrieval.retrievers.embeddings import load_embedding

    build_index(UNITS, tmp_path / "index", embedding=load_embedding("wordllama"))
    with pytest.raises(errors.EmbeddingMismatchError) as caught:
        open_index(tmp_path / "index", embedding=load_embedding("minilm"))
    for named in (str(tmp_path / "index"), "wordllama", load_embedding("minilm").embedding_id):
        assert named in str(caught.value)


def test_the_table_of_diagnostics_lists_every_record() -> None:
    """Each event that a protected record can have stands in the table, and no other."""
    text = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    table = text.partition("\n| event | says |\n")[2].partition("\n\n")[0]
    told = {name for line in table.splitlines()[1:] for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    assert told == set(recorded_events())


def recorded_events() -> Iterator[str]:
    """Names of the events in the records that nodes hand to the diagnostics: in the record, or given to a reporter."""
    streamed = {"hop", "chain_finished"}
    for path in (SOURCES / "nodes").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Dict):
                fields = {ast.unparse(key): value for key, value in zip(node.keys, node.values, strict=True) if key}
                yield from _names(fields.get("'event'")) - streamed
            elif isinstance(node, ast.Call) and ast.unparse(node).startswith(
                ("search.report(", "partial(search.report")
            ):
                yield from _names(next(each for each in node.args if isinstance(each, ast.Constant)))


def _names(node: ast.expr | None) -> set[str]:
    if node is None:
        return set()
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {text for text in texts if isinstance(text, str) and text.isidentifier()}


def test_limits_are_checked_in_a_builder_too() -> None:
    """A budget that is no budget is refused by the field's name and the bound."""
    unchecked = Budget().model_copy(update={"max_rows": 1000})
    with pytest.raises(errors.RequestError, match=r"budget\.max_rows: .*less than or equal to 200 \(got 1000\)$"):
        create_bounded_retrieval(ScriptedSearcher(UNITS, "lexical"), budget=unchecked)
