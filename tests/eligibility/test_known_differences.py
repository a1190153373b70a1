"""Small pairs of worlds that once could be told apart, and the documented limits: those that still can be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.documents import Document
from langchain_core.retrievers import BaseRetriever
from langchain_core.tracers.context import register_configure_hook

sys.path.insert(0, str(Path(__file__).parent))
import observing
from worlds import QUERY, TEXTS, Caller, Case, ExactSearcher, Odd, Plan, World

from bounded_retrieval.contracts.normalise import content_id
from bounded_retrieval.contracts.relationships import EntityName, Relationship

SHOWN = Plan(unit_id="z0", text=TEXTS[0], fate="shown")
HIDDEN = Plan(unit_id="a0", text=QUERY, fate="hidden")
PATH = {"start": "pump", "relations": ["located in"]}


def link(source: str) -> Relationship:
    """The pump is located in the ward, says the source."""
    return Relationship(subject="pump", relation="located in", object="ward", source_unit=source)


def text(*units: Plan, view: str = "allowed", **options: Any) -> Case:
    """A case with one lexical search of words, which ignores filters."""
    return Case(units=units, view=view, **{"lexical": "unfiltered", "dense": None, **options})


LIMIT = pytest.mark.xfail(strict=True, raises=AssertionError, reason="a documented limit, see docs/security.md")

CASES = {
    "allowed fails, and only a hidden unit was found": text(HIDDEN, moment=1, outage="allowed"),
    "allowed fails, and only a hidden unit says so": text(
        HIDDEN, moment=1, outage="allowed", path=PATH, links=(link("a0"),)
    ),
    "a row of a hidden unit is no candidate": text(
        SHOWN,
        Plan(unit_id="a0", text=QUERY, fate="hidden", junk=True),
        lexical=None,
        dense="messy",
        policy="fixed_dense",
    ),
    "equal scores in LangChain's store in memory": text(
        Plan(unit_id="m0", text=TEXTS[6], fate="hidden"),
        Plan(unit_id="m1", text=TEXTS[7], fate="hidden"),
        Plan(unit_id="z0", text=TEXTS[4], fate="shown"),
        Plan(unit_id="z1", text=TEXTS[4], fate="shown"),
        lexical=None,
        dense="store",
        policy="fixed_dense",
    ),
}
BEHIND_THE_CAP = text(SHOWN, *(Plan(unit_id=f"a{n}", text=QUERY, fate="hidden") for n in range(205)))


@LIMIT
def test_a_unit_behind_more_hidden_ones_than_rows_are_asked_for_is_found() -> None:
    """With 205 hidden units before it, a visible one is found as if it stood first."""
    assert observing.differences(BEHIND_THE_CAP) == []


@pytest.mark.parametrize("name", CASES)
def test_a_generated_kind_of_world_looks_the_same(name: str) -> None:
    """A hidden unit and one that does not exist look the same."""
    assert observing.differences(CASES[name]) == []


class HiddenName(World):
    """The other world does not hold the name that a hidden unit declares."""

    def _relationships(self) -> Any:
        self.case = self.case if self.whole else observing.replace(self.case, names=())
        return super()._relationships()


class OutOfDate(World):
    """The lexical index holds metadata from before the unit was hidden, and its rows bring it."""

    def _searcher(self, channel: str, kind: str | None) -> Any:
        old = {unit_id: each.model_copy(update={"metadata": {"level": "open"}}) for unit_id, each in self.held.items()}
        return ExactSearcher(old, channel) if channel == "lexical" else super()._searcher(channel, kind)


class PrivateValue(World):
    """A private field of a unit that may be seen holds a value that is turned into text."""

    def _document(self, plan: Plan) -> Document:
        metadata = {"owner": Odd() if self.whole else "ann"}
        return Document(id=plan.unit_id, page_content=plan.text, metadata=metadata)


class ListRetriever(BaseRetriever):
    """Returns its documents, whatever the query."""

    documents: Sequence[Document]

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> Any:  # noqa: ARG002
        return list(self.documents)


class NamedByContent(World):
    """Documents without ids: a hidden one has the text, and so the id, of one that may be seen."""

    def _searcher(self, channel: str, kind: str | None) -> Any:
        if channel == "dense":
            return super()._searcher(channel, kind)
        secret = [Document(page_content=TEXTS[0], metadata={"file": "secret.pdf"})] * self.whole
        self.allowed = {content_id(TEXTS[0])}
        return ListRetriever(documents=[*secret, Document(page_content=TEXTS[0], metadata={"file": "public.pdf"})])


OTHERS: dict[str, tuple[type[World], Case]] = {
    "a name that only a hidden unit declares": (
        HiddenName,
        text(
            SHOWN,
            HIDDEN,
            path=PATH,
            links=(link("z0"),),
            names=(EntityName(entity_id="ward", name="W", source_unit="a0"),),
        ),
    ),
    "metadata in the index from before": (OutOfDate, text(SHOWN, HIDDEN, view="exact_filter")),
}


@LIMIT
def test_a_hidden_document_without_an_id_lends_its_text_s_id_nothing() -> None:
    """A hidden document and a visible one of the same text, both without an id, are told apart."""
    kind = partial(NamedByContent, text(apart=False))
    seen = [observing.observe(partial(kind, whole=whole)) for whole in (True, False)]
    assert observing.differing(*seen) == []


@pytest.mark.parametrize("name", OTHERS)
def test_a_special_kind_of_world_looks_the_same(name: str) -> None:
    """A hidden unit, or a private value, and one that does not exist look the same."""
    kind, case = OTHERS[name]
    seen = [observing.observe(partial(kind, case, whole=whole)) for whole in (True, False)]
    assert observing.differing(*seen) == []


def test_a_private_value_that_is_turned_into_text_looks_like_any_other() -> None:
    """Whether a private field holds something that JSON does not shows nowhere."""
    seen = [observing.observe(partial(PrivateValue, text(SHOWN), whole=whole)) for whole in (True, False)]
    assert observing.differing(*seen) == []


HANDLER: ContextVar[Any] = ContextVar("handler", default=None)
register_configure_hook(HANDLER, inheritable=True)


class Heard(BaseCallbackHandler):
    """Remembers every document that a retriever emitted."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_retriever_end(self, documents: Sequence[Document], **_: Any) -> None:
        self.heard += [document.page_content for document in documents]


def test_a_handler_in_a_context_variable_hears_of_no_hidden_unit() -> None:
    """A handler that LangChain takes from a registered context variable does not hear a searcher's documents."""
    handler = Heard()
    token = HANDLER.set(handler)
    try:
        World(text(SHOWN, HIDDEN, lexical="retriever"), whole=True).graph().compile().invoke(
            {"query": QUERY}, context=Caller()
        )
    finally:
        HANDLER.reset(token)
    assert QUERY not in handler.heard
