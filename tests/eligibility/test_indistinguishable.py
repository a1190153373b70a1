from __future__ import annotations

import logging
import os
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from langgraph.config import get_stream_writer

sys.path.insert(0, str(Path(__file__).parent))
import observing
import worlds
from worlds import Case, ExactSearcher, Plan, WordRetriever, World

from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.nodes import eligibility, follow_path, recheck_and_pack, running, searching
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.chroma import ChromaSearcher

EXAMPLES = int(os.environ.get("BOUNDED_RETRIEVAL_WORLDS", "50"))
"""Worlds for each property."""

quick = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))

# A seeded bug only has to be found; making the case small would take most of the time. The same cases every time, since
# the rarer bugs show in one case of some hundreds.
seeded = settings(
    quick, max_examples=2_000, derandomize=True, database=None, phases=(Phase.generate,), report_multiple_bugs=False
)

EVERYTHING = Case(
    units=(
        Plan(unit_id="m0", text=worlds.TEXTS[0], fate="shown"),
        Plan(unit_id="a0", text=worlds.TEXTS[0], fate="hidden"),
        Plan(unit_id="z0", text=worlds.TEXTS[6], fate="shown"),
        Plan(unit_id="z1", text=worlds.QUERY, fate="hidden"),
    ),
    view="exact_filter",
    lexical="unfiltered",
    policy="always_continue",
)
"""A case that is run in every manner."""


@pytest.fixture(scope="module")
def chroma() -> Iterator[ChromaSearcher]:
    """One collection in memory; each world fills it anew."""
    searcher = ChromaSearcher.from_documents([], worlds.EMBEDDING)
    yield searcher
    searcher.close()


@pytest.mark.parametrize("name", worlds.PROPERTIES)
def test_hidden_units_and_units_that_do_not_exist_look_the_same(name: str) -> None:
    """Nothing that a run lets out differs between a world with units that the caller may not see and one without."""

    @quick
    @given(worlds.PROPERTIES[name])
    def look(case: Case) -> None:
        assert observing.differences(case) == []

    look()


def test_hidden_units_in_a_chroma_collection_and_units_that_do_not_exist_look_the_same(chroma: ChromaSearcher) -> None:
    """The same over a real vector index."""

    @settings(quick, max_examples=max(8, EXAMPLES // 6))
    @given(worlds.CHROMA)
    def look(case: Case) -> None:
        assert observing.differences(case, chroma) == []

    look()


@settings(quick, max_examples=10)
@given(st.one_of(*worlds.PROPERTIES.values()))
def test_one_world_looks_the_same_twice(case: Case) -> None:
    """Two observations of one world are equal, so a difference between two worlds is one."""
    look = partial(World, replace(case, manners=EVERYTHING.manners), whole=True)
    assert observing.differing(observing.observe(look), observing.observe(look)) == []


SHOWS_TEXT = {
    "invoke: packet",
    "invoke: documents",
    "invoke: callbacks",
    "invoke: tracer",
    "invoke: collector",
    "stream: values",
    "stream: updates",
    "stream: checkpoints",
    "stream: tasks",
    "stream: debug",
    "stream: saved",
    "events: all",
    "events: saved",
    "tool: content",
    "tool: artifact",
    "retriever: documents",
    "aretriever: documents",
    "atool: callbacks",
}
SHOWS_FACTS = {"invoke: trace", "stream: custom", "ainvoke: trace", "events: callbacks"}

EDITS: dict[str, tuple[dict[str, Any], set[str]]] = {
    "one digit of a text": ({"text": worlds.TEXTS[0].replace("200", "201")}, SHOWS_TEXT | SHOWS_FACTS),
    "a hexadecimal word": ({"text": f"{worlds.TEXTS[0]} 0x12"}, SHOWS_TEXT | SHOWS_FACTS),
    "an id": ({"unit_id": "m1"}, SHOWS_TEXT | SHOWS_FACTS),
    "a title": ({"form": 2}, SHOWS_TEXT - {"tool: content"}),
    "whether it may be seen": ({"fate": "hidden"}, SHOWS_TEXT | SHOWS_FACTS),
}


@pytest.mark.parametrize("edit", EDITS)
def test_worlds_that_differ_visibly_are_told_apart(edit: str) -> None:
    """What is left out of an observation hides no difference in a unit that may be seen, in any place."""
    change, places = EDITS[edit]
    first, *others = EVERYTHING.units
    edited = replace(EVERYTHING, units=(replace(first, **change), *others))
    seen = [observing.observe(partial(World, case, whole=False)) for case in (EVERYTHING, edited)]
    assert places <= set(observing.differing(*seen))


class Leaking(World):
    """A world whose lexical searcher lets out what it holds, hidden or not."""

    leak: Callable[[World, str], None]

    def _searcher(self, channel: str, kind: str | None) -> Any:
        if channel == "dense":
            return super()._searcher(channel, kind)
        world = self

        class Leak(ExactSearcher):
            def search(self, query: str, k: int, filter: Any = None) -> list[Any]:
                for document in self.documents.values():
                    world.leak(document.page_content)
                return super().search(query, k, filter)

        return Leak(self.held, channel)


def _to_listeners(world: World, _text: str) -> None:
    searcher = ExactSearcher(world.held, "lexical", filters=False)
    WordRetriever(searcher=searcher).invoke(worlds.QUERY, {"callbacks": list(world.listeners)})


def _to_an_error(_world: World, text: str) -> None:
    if text == worlds.QUERY:
        raise ValueError(text)


LEAKS: dict[str, tuple[Callable[[World, str], Any], set[str]]] = {
    "log": (lambda _, text: logging.getLogger("app").debug("read %s", text), {"log"}),
    "stdout": (lambda _, text: print(text), {"stdout"}),  # noqa: T201  # it is what a leak looks like
    "stderr": (lambda _, text: sys.stderr.write(text), {"stderr"}),
    "warnings": (lambda _, text: warnings.warn(text, stacklevel=1), {"warnings"}),
    "stream writer": (lambda _, text: get_stream_writer()(text), {"stream: custom"}),
    "callbacks": (_to_listeners, {"invoke: callbacks", "stream: tracer", "aretriever: callbacks", "tool: tracer"}),
    "a failure": (_to_an_error, {"invoke: packet", "tool: error", "aretriever: error", "events: all"}),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_of_a_searcher_is_found_where_it_is(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden text in a log line, an output stream, a warning, the custom stream, a callback or an error is noticed."""
    leak, places = LEAKS[name]
    monkeypatch.setattr(Leaking, "leak", leak, raising=False)
    case = replace(EVERYTHING, policy="fixed_lexical")
    seen = [observing.observe(partial(Leaking, case, whole=whole)) for whole in (True, False)]
    assert places <= set(observing.differing(*seen))


def _open(channel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = searching._call

    def without_view(search: Any) -> Any:
        access = replace(search.access, view=None)
        return call(replace(search, access=access) if search.channel == channel else search)

    monkeypatch.setattr(searching, "_call", without_view)


def _bug_open_lexical_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lexical search has neither a filter nor a check of what came back."""
    _open("lexical", monkeypatch)


def _bug_open_dense_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """The dense search has neither a filter nor a check of what came back."""
    _open("dense", monkeypatch)


def _bug_open_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recheck asks whether a unit is as it was, and not who may see it."""

    def everything(_access: Any, unit_ids: Any, *_: Any) -> Any:
        return frozenset(unit_ids)
        yield

    monkeypatch.setattr(recheck_and_pack, "eligible_ids", everything)


def _bug_attached_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searchers run under the callbacks of the run."""
    monkeypatch.setattr(running, "untraced", nullcontext)


def _bug_cut_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as many rows are asked for as are needed, so that hidden ones take the place of others."""
    monkeypatch.setattr(eligibility.Access, "rows_to_fetch", lambda _self, asked, _searcher: asked)


def _bug_counted_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hidden rows are taken out only after they were counted."""
    eligible = searching._eligible

    def counting(search: Any, rows: Any) -> Any:
        kept = yield from eligible(search, rows)
        return [row if row in kept else None for row in rows]

    monkeypatch.setattr(searching, "_eligible", counting)


def _bug_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note says that something was taken out."""
    eligible = searching._eligible

    def noting(search: Any, rows: Any) -> Any:
        kept = yield from eligible(search, rows)
        if len(kept) < len(rows):
            search.state["notes"].append("removed")
        return kept

    monkeypatch.setattr(searching, "_eligible", noting)


def _bug_shared_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lexical scores count all units."""
    make = BM25Searcher.from_documents
    monkeypatch.setattr(BM25Searcher, "from_documents", lambda documents, **_: make(documents, statistics="corpus"))


def _bug_private_fields(monkeypatch: pytest.MonkeyPatch) -> None:
    """Private fields stay in the metadata."""
    read = Unit.from_document
    monkeypatch.setattr(Unit, "from_document", lambda document, unit_id=None, _private=(): read(document, unit_id))


def _bug_hidden_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name counts whether or not its source may be seen."""
    monkeypatch.setattr(follow_path, "find_start", lambda named, *_: sorted({name.entity_id for name in named}))


def _bug_hidden_alternatives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relationship whose source may not be seen is an alternative."""
    find = follow_path.find_hops

    def confused(relationships: Any, shown: Any) -> Any:
        hidden = [each for each in relationships if each.source_unit not in shown]
        found = find(relationships, shown)
        return [*found, *hidden] if found else found

    monkeypatch.setattr(follow_path, "find_hops", confused)


def _bug_outdated_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relationship whose source has another text by now fails the run."""
    find = follow_path.find_hops

    def strict(relationships: Any, names: Any, shown: Any) -> Any:
        for each in relationships:
            unit = shown.get(each.source_unit)
            if unit is not None and each.source_fingerprint not in (None, unit.fingerprint):
                raise ValueError("outdated")
        return find(relationships, names, shown)

    monkeypatch.setattr(follow_path, "find_hops", strict)


def _bug_reasons_at_the_recheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A note says that a dropped unit was changed rather than gone."""
    read_again = recheck_and_pack._read_again

    def telling(*args: Any) -> Any:
        reasons, found, notes = yield from read_again(*args)
        return reasons, found, [*notes, *(["changed"] if "changed" in reasons.values() else [])]

    monkeypatch.setattr(recheck_and_pack, "_read_again", telling)


BUGS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (_bug_open_lexical_search, "text"),
    (_bug_open_dense_search, "text"),
    (_bug_open_recheck, "text_while_units_are_lost"),
    (_bug_open_recheck, "path_while_units_are_lost"),
    (_bug_attached_callbacks, "text"),
    (_bug_cut_first, "text"),
    (_bug_counted_first, "text"),
    (_bug_noted, "text"),
    (_bug_shared_statistics, "text_under_a_filter"),
    (_bug_private_fields, "text"),
    (_bug_private_fields, "path"),
    (_bug_hidden_names, "path"),
    (_bug_hidden_alternatives, "path"),
    (_bug_outdated_sources, "path_over_outdated_sources"),
    (_bug_reasons_at_the_recheck, "text_while_units_change"),
]


@pytest.mark.parametrize(("bug", "name"), BUGS, ids=[f"{bug.__name__[5:]}-{name}" for bug, name in BUGS])
def test_a_seeded_bug_is_found(bug: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one bug seeded, some pair of worlds can be told apart."""
    bug(monkeypatch)

    strategies = {**worlds.PROPERTIES, "text_under_a_filter": worlds.STATISTICS}

    @seeded
    @given(strategies[name])
    def look(case: Case) -> None:
        assert observing.differences(case) == []

    with pytest.raises(AssertionError):
        look()


def test_shared_statistics_tell_of_hidden_units() -> None:
    """With lexical statistics of all units, some worlds differ in what a run returns."""
    told: Counter[str] = Counter()

    @settings(quick, max_examples=100, database=None, phases=(Phase.generate,))
    @given(worlds.STATISTICS)
    def look(case: Case) -> None:
        told[observing.statistics_show(case)] += 1

    look()
    assert told.total() > told["nothing"]
