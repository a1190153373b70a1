from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval.contracts.chain import ChainLimits, SubAnswer
from bounded_retrieval.errors import AsyncOnlyError, ConfigurationError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.chain import create_recursive_retrieval
from bounded_retrieval.graph.chain_state import LOG
from bounded_retrieval.testing import ScriptedSearcher

otel = pytest.importorskip("opentelemetry.sdk.trace", reason="needs the extra otel and its SDK")

QUESTION = "who directs the harbour museum secretquestion"
NUMBERS = {"hop", "units", "new_units", "calls"}
ATTRIBUTES = {f"bounded_retrieval.{name}" for name in (*NUMBERS, "query_id", "outcome")}
SECRETS = ("secretquestion", "secrethop", "secretunit", "secrettitle", "secretanswer", "secretpart", "secreterror")

Telling = tuple[Any, Any]


def plan(_question: str, trail: Any) -> str | None:
    """Two hops, and nothing left to look up."""
    return ("alpha secrethop", "beta secrethop")[len(trail)] if len(trail) < 2 else None


def search(query: str) -> list[Document]:
    """Two documents of the query's own, one that every query finds."""
    word = query.partition(" ")[0]
    found = [f"{word}-1", f"{word}-2", "shared"]
    return [Document(id=i, page_content=f"secretunit {i}", metadata={"title": "secrettitle"}) for i in found]


def read(_query: str, _documents: Any) -> SubAnswer:
    """The same answer for every hop."""
    return SubAnswer(text="secretanswer")


def fail(*_: Any) -> Any:
    """Play a part that is down."""
    raise ConnectionError("secreterror")


@pytest.fixture
def telling() -> Iterator[Telling]:
    """A tracer, and the exporter that keeps its finished spans in memory."""
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), otel.TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider.get_tracer("tests"), exporter
    provider.shutdown()


def run(tracer: Any = None, **parts: Any) -> dict[str, Any]:
    """One chain with the parts above, unless others are given."""
    given = {"search": search, "planner": plan, "reader": read, "spans": tracer} | parts
    graph = create_recursive_retrieval(given.pop("search"), given.pop("planner"), given.pop("reader"), **given)
    return graph.compile().invoke({"query": QUESTION, "request": {"query_id": "q-1"}})


def told(exporter: Any) -> list[dict[str, Any]]:
    """The attributes of each finished span, without their common prefix."""
    spans = exporter.get_finished_spans()
    return [{k.removeprefix("bounded_retrieval."): v for k, v in span.attributes.items()} for span in spans]


def test_each_hop_is_one_span_with_ids_and_counts(telling: Telling) -> None:
    """Two hops are two finished spans whose attributes are exactly the id, the number, the outcome and counts."""
    tracer, exporter = telling
    result = run(tracer)
    assert (result["stop_reason"], len(result["trail"])) == ("no_next_query", 2)
    assert [span.name for span in exporter.get_finished_spans()] == ["bounded_retrieval.hop"] * 2
    assert told(exporter) == [
        {"query_id": "q-1", "hop": 1, "outcome": "answered", "units": 3, "new_units": 3, "calls": 1},
        {"query_id": "q-1", "hop": 2, "outcome": "answered", "units": 3, "new_units": 2, "calls": 1},
    ]


def test_a_span_holds_no_text(telling: Telling) -> None:
    """Nothing that a span exports holds a word of the question, a hop's query, a unit or a sub-answer."""
    tracer, exporter = telling
    run(tracer)
    for span in exporter.get_finished_spans():
        assert set(span.attributes) == ATTRIBUTES
        assert all(isinstance(span.attributes[f"bounded_retrieval.{name}"], int) for name in NUMBERS)
        assert (span.events, span.links, span.status.description) == ((), (), None)
        assert not [secret for secret in SECRETS if secret in span.to_json()]


def test_a_span_covers_search_and_reader(telling: Telling) -> None:
    """A hop's span is open while its search and its reader are at work, and closed before the next hop is planned."""
    tracer, exporter = telling
    closed: list[tuple[str, int]] = []

    def note(name: str, answer: Any) -> Any:
        closed.append((name, len(exporter.get_finished_spans())))
        return answer

    run(
        tracer,
        planner=lambda question, trail: note("plan", plan(question, trail)),
        search=lambda query: note("search", search(query)),
        reader=lambda query, documents: note("read", read(query, documents)),
    )
    assert closed == [("plan", 0), ("search", 0), ("read", 0), ("plan", 1), ("search", 1), ("read", 1), ("plan", 2)]


def test_without_a_tracer_there_is_no_span(telling: Telling, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain that was given no tracer makes no span, not even of a tracer that is there for the whole process."""
    from opentelemetry import trace

    tracer, exporter = telling
    monkeypatch.setattr(trace, "get_tracer", lambda *_, **__: tracer)
    result = run()
    assert len(result["trail"]) == 2
    assert exporter.get_finished_spans() == ()


def test_spans_change_nothing_else(telling: Telling) -> None:
    """With and without a tracer a chain has the same output."""
    assert run(telling[0]) == run()


def test_a_failed_hop_is_a_span_too(telling: Telling) -> None:
    """A hop whose search raised is one span with that outcome, without the error."""
    tracer, exporter = telling
    result = run(tracer, search=fail)
    assert result["stop_reason"] == "retrieval_failed"
    assert told(exporter) == [
        {"query_id": "q-1", "hop": 1, "outcome": "failed", "units": 0, "new_units": 0, "calls": 1}
    ]
    (span,) = exporter.get_finished_spans()
    assert "secreterror" not in span.to_json()


def test_a_failed_reader_leaves_a_finished_span(telling: Telling) -> None:
    """A reader that raises ends nothing: both hops have their spans."""
    tracer, exporter = telling
    run(tracer, reader=fail)
    assert [each["outcome"] for each in told(exporter)] == ["answered"] * 2


def test_no_hop_is_no_span(telling: Telling) -> None:
    """A chain that ends before its first hop has no span."""
    tracer, exporter = telling
    assert run(tracer, planner=fail)["trail"] == []
    assert exporter.get_finished_spans() == ()


def test_the_depth_cap_bounds_the_spans(telling: Telling) -> None:
    """There are as many spans as hops, never more than the cap."""
    tracer, exporter = telling
    result = run(tracer, planner=lambda _question, trail: f"step{len(trail)}", limits=ChainLimits(max_hops=4))
    assert (result["stop_reason"], [each["hop"] for each in told(exporter)]) == ("depth_cap", [1, 2, 3, 4])


def test_a_bounded_search_counts_its_calls(telling: Telling) -> None:
    """Over the bounded controller a hop's span counts the calls that the controller made."""
    tracer, exporter = telling
    lexical = ScriptedSearcher([Document(id="a", page_content="secretunit")], "lexical")
    dense = ScriptedSearcher([Document(id="b", page_content="secretunit too")], "dense")
    bounded = create_bounded_retrieval(lexical, dense, policy="always_continue")
    run(tracer, search=bounded, planner=lambda _question, trail: None if trail else "alpha secrethop")
    assert [(each["calls"], each["units"]) for each in told(exporter)] == [(2, 2)]


async def test_awaited_chains_have_the_same_spans(telling: Telling) -> None:
    """``ainvoke`` with asynchronous parts makes the same spans, one a hop."""
    tracer, exporter = telling

    async def asearch(query: str) -> list[Document]:
        return search(query)

    graph = create_recursive_retrieval(asearch, plan, read, spans=tracer).compile()
    await graph.ainvoke({"query": QUESTION, "request": {"query_id": "q-2"}})
    assert [(each["query_id"], each["hop"], each["new_units"]) for each in told(exporter)] == [
        ("q-2", 1, 3),
        ("q-2", 2, 2),
    ]


def test_a_span_belongs_to_the_callers_trace(telling: Telling) -> None:
    """Where the caller has a span open, the hops are its children."""
    tracer, exporter = telling
    with tracer.start_as_current_span("caller") as caller:
        run(tracer)
    *hops, _ = exporter.get_finished_spans()
    assert [span.parent.span_id for span in hops] == [caller.get_span_context().span_id] * 2


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the chain's logger said, in order."""
    return [record.getMessage() for record in caplog.records if record.name == "bounded_retrieval.chain"]


def test_each_hop_is_one_log_line_and_the_end_another(caplog: pytest.LogCaptureFixture) -> None:
    """At INFO there is a line for each hop with its counts, and one at the end with the stop reason."""
    caplog.set_level(logging.INFO, logger="bounded_retrieval.chain")
    run()
    assert lines(caplog) == [
        "chain q-1 hop 1: answered, {'units': 3, 'new_units': 3, 'calls': 1}",
        "chain q-1 hop 2: answered, {'units': 3, 'new_units': 2, 'calls': 1}",
        "chain q-1 ended, hops 2: no_next_query",
    ]
    assert {record.levelno for record in caplog.records if record.name == LOG.name} == {logging.INFO}


PARTS = {
    "resolved": {},
    "failed search": {"search": fail},
    "failed planner": {"planner": fail},
    "failed reader": {"reader": fail},
    "failed test": {"sufficiency": fail},
    "open parts": {"planner": lambda _question, _trail: {"query": None, "unresolved": ["secretpart"]}},
    "repeated": {"planner": lambda _question, _trail: "alpha secrethop"},
    "asks back": {"reader": lambda _query, _documents: None, "on_stop": "clarify", "clarifier": lambda *_: "secretpart?"},
}  # fmt: skip


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS.keys())
def test_no_log_record_of_the_package_holds_a_text(caplog: pytest.LogCaptureFixture, parts: dict[str, Any]) -> None:
    """However a chain ends, no record of the package, at any level, holds a text or an error, in its message or fields."""
    caplog.set_level(logging.DEBUG, logger="bounded_retrieval")
    result = run(**parts)
    records = [record for record in caplog.records if record.name.startswith("bounded_retrieval")]
    assert len(records) == len(result["trail"]) + 1
    for record in records:
        assert not [secret for secret in SECRETS if secret in f"{record.getMessage()} {record.__dict__}"]
        assert (record.exc_info, record.stack_info) == (None, None)


def test_a_chain_that_raises_has_its_last_line(caplog: pytest.LogCaptureFixture) -> None:
    """Under ``on_stop="fail"`` the line at the end is written before the error is raised, and holds no text of it."""
    from bounded_retrieval.errors import ChainStoppedError

    caplog.set_level(logging.INFO, logger="bounded_retrieval.chain")
    with pytest.raises(ChainStoppedError):
        run(search=fail, on_stop="fail")
    assert lines(caplog)[-1] == "chain q-1 ended, hops 1: retrieval_failed"


def test_above_info_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """At WARNING the chain says nothing."""
    caplog.set_level(logging.WARNING, logger="bounded_retrieval.chain")
    run()
    assert lines(caplog) == []


def test_what_a_search_does_hangs_under_its_hop(telling: Telling) -> None:
    """A span that the search opens is a child of the hop's span."""
    tracer, exporter = telling

    def tracing(query: str) -> list[Document]:
        with tracer.start_as_current_span("inner"):
            return search(query)

    run(tracer, search=tracing)
    inner, hop, *_ = exporter.get_finished_spans()
    assert (inner.name, inner.parent.span_id) == ("inner", hop.context.span_id)


def test_a_hop_that_an_exception_leaves_ends_its_span(telling: Telling) -> None:
    """Under invoke an async search raises; the hop's span is finished all the same, and holds nothing of the error."""
    tracer, exporter = telling

    async def later(_query: str) -> list[Document]:
        return []

    with pytest.raises(AsyncOnlyError):
        run(tracer, search=later)
    (span,) = exporter.get_finished_spans()
    assert (span.events, span.status.description) == ((), None)


class BrokenTracer:
    """Raises whenever it is used."""

    def start_as_current_span(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no collector")


def test_a_tracer_that_raises_ends_no_chain() -> None:
    """The hop is made without a span, and only the diagnostics are told."""
    records: list[dict[str, Any]] = []
    result = run(BrokenTracer(), diagnostics=records.append)
    assert result == run()
    assert {record["event"] for record in records} == {"span_failed"}


@pytest.mark.parametrize("spans", [5, "x", object()])
def test_what_is_no_tracer_is_refused(spans: Any) -> None:
    """The builder names the parameter and the type."""
    with pytest.raises(ConfigurationError, match=rf"^spans: .*{type(spans).__name__}"):
        run(spans)


def test_a_query_id_cannot_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """Line breaks and escapes of a caller's id are written out."""
    caplog.set_level(logging.INFO, LOG.name)
    graph = create_recursive_retrieval(search, plan, read).compile()
    graph.invoke({"query": QUESTION, "request": {"query_id": "q\nINFO forged \x1b[31m"}})
    assert all("q\\nINFO forged \\x1b[31m" in record.getMessage() for record in caplog.records)
    assert not any("\n" in record.getMessage() for record in caplog.records)
