"""A run that is resumed by somebody else: what was seen under one view is never shown under another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from inventory import QUERY, Outcome, documents
from langchain_core.documents import Document
from langgraph.checkpoint.memory import InMemorySaver

from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.candidate import Unit
from bounded_retrieval.contracts.eligibility import EligibilityView, ViewStamp
from bounded_retrieval.contracts.relationships import Relationship
from bounded_retrieval.contracts.trace import EvidencePacked
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.replay import replay
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.testing import ScriptedSearcher

NODES = ["assess_coverage", "dense_search", "recheck_and_pack"]
CONFIG: Any = {"configurable": {"thread_id": "one"}}
FIRST: dict[str, Any] = {"view_id": "viewer-one", "version": "1"}
OTHER: dict[str, Any] = {"view_id": "viewer-two", "version": "1"}
NEWER: dict[str, Any] = {"view_id": "viewer-one", "version": "2"}
BROKEN: dict[str, Any] = {}
RAW = "raw-error-7f3"
GATHERED = ["updates", "custom", "messages"]

UNITS = documents(
    **{f"seen-{number}": f"Sighting {number} of the battery." for number in range(1, 4)},
    **{f"late-{number}": f"Latecomer {number} of charging." for number in range(1, 4)},
)

at_every_node = pytest.mark.parametrize("node", NODES)
both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])
to_nobody = pytest.mark.parametrize(
    ("context", "note"), [(OTHER, "view_changed"), (BROKEN, "eligibility_failed")], ids=["other", "broken"]
)


def resolver(runtime: Any) -> EligibilityView:
    """The view that the runtime context names; none where it names none."""
    if not runtime.context:
        raise RuntimeError(RAW)
    return EligibilityView(allowed=set, **runtime.context)


class Paused:
    """A run over two searchers that one viewer began and that stands before a node."""

    def __init__(self, node: str, **options: Any) -> None:
        self.records: list[dict[str, Any]] = []
        self.words = ScriptedSearcher(UNITS[:3], "lexical")
        self.meanings = ScriptedSearcher(UNITS[3:], "dense")
        builder = create_bounded_retrieval(
            self.words,
            self.meanings,
            **{"eligibility": resolver, "context_schema": dict, "diagnostics": self.records.append, **options},
        )
        self.graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=[node])
        self.graph.invoke({"query": QUERY, "request": self.request}, CONFIG, context=FIRST)
        assert node in self.graph.get_state(CONFIG).next
        assert len(self.words.calls) <= 1

    request: dict[str, Any] = {}  # noqa: RUF012

    def resume(self, context: dict[str, Any], *, awaited: bool = False) -> Outcome:
        """Go on to the end; a node that is reached again is passed once more."""
        result: dict[str, Any] = {}
        for _ in range(3):
            if awaited:
                result = asyncio.run(self.graph.ainvoke(None, CONFIG, context=context))
            else:
                result = self.graph.invoke(None, CONFIG, context=context)
            if not self.graph.get_state(CONFIG).next:
                break
        return Outcome(result)

    def streamed(self, context: dict[str, Any], modes: list[str], *, awaited: bool = False) -> list[Any]:
        """All that a resumed run emits in these modes, up to its end or its next pause."""

        async def collect() -> list[Any]:
            return [chunk async for chunk in self.graph.astream(None, CONFIG, context=context, stream_mode=modes)]

        if awaited:
            return asyncio.run(collect())
        return list(self.graph.stream(None, CONFIG, context=context, stream_mode=modes))


class OnAPath(Paused):
    """A run that follows a path of one hop."""

    request = {"path": {"start": "A", "relations": ["r"]}}  # noqa: RUF012

    def __init__(self, node: str, **options: Any) -> None:
        hop = Relationship(subject="A", relation="r", object="B", source_unit="seen-1")
        super().__init__(node, relationships=RelationshipStore([hop]), **options)


def traces_of_the_first(given: Any) -> list[str]:
    """The words in something that only the first viewer's units brought."""
    text = repr(given)
    return [word for word in ("seen-", "late-", "Sighting", "Latecomer", RAW) if word in text]


def replayed(outcome: Outcome) -> bool:
    """Whether the trace gives the packet again."""
    ended = outcome.trace.events[-1]
    assert isinstance(ended, EvidencePacked)
    units = {unit_id: held(unit_id) for unit_id in [*(unit.unit_id for unit in ended.ranking), *ended.packed]}
    return replay(outcome.trace, units) == outcome.packet


def held(unit_id: str) -> Unit:
    """A unit of the collection."""
    return Unit.from_document(next(unit for unit in UNITS if unit.id == unit_id))


@both_ways
@to_nobody
@at_every_node
def test_another_viewer_gets_an_empty_packet(node: str, context: Any, note: str, awaited: bool) -> None:
    """What was seen and spent before is forgotten, no further search is made, and the note says why."""
    paused = Paused(node)
    outcome = paused.resume(context, awaited=awaited)
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", (note,))
    assert outcome.usage == Usage()
    assert outcome.packet.resolution == "unresolved"
    assert (len(paused.words.calls), len(paused.meanings.calls)) == (1, int(node == "recheck_and_pack"))
    assert traces_of_the_first([outcome.packet, outcome.trace, outcome.packet.to_documents()]) == []
    assert replayed(outcome)


@both_ways
@to_nobody
@at_every_node
def test_the_latest_state_holds_nothing_of_the_first_viewer(node: str, context: Any, note: str, awaited: bool) -> None:
    """After the resumed run the thread's state has neither units nor ids that were seen before."""
    paused = Paused(node)
    paused.resume(context, awaited=awaited)
    state = paused.graph.get_state(CONFIG)
    assert state.next == ()
    assert note in repr(state.values["packet"])
    assert traces_of_the_first([state.values, state.tasks]) == []


@both_ways
@to_nobody
@at_every_node
@pytest.mark.parametrize("mode", GATHERED)
def test_what_the_nodes_emit_holds_nothing_of_the_first_viewer(
    node: str, context: Any, note: str, awaited: bool, mode: str
) -> None:
    """No update, event or message of the resumed run shows a unit that was seen before."""
    chunks = Paused(node).streamed(context, [mode], awaited=awaited)
    assert traces_of_the_first(chunks) == []
    assert mode == "messages" or note in repr(chunks)


@to_nobody
@at_every_node
def test_every_state_after_the_first_node_is_clean(node: str, context: Any, note: str) -> None:
    """Once the node before which the run stood has run, no state holds what was seen before."""
    paused = Paused(node)
    _, *later = paused.streamed(context, ["values"])
    assert later
    assert traces_of_the_first(later) == []
    assert note in repr(later)


class Ticking:
    """A clock that moves on by so many seconds whenever it is read."""

    def __init__(self, seconds: float) -> None:
        self.now = 0.0
        self.seconds = seconds

    def __call__(self) -> float:
        self.now += self.seconds
        return self.now


def interrupting(what: str) -> dict[str, Any]:
    """Options of a graph whose second search is kept from starting by the caller or by the clock."""
    if what == "cancelled":
        return {"cancelled": lambda runtime: runtime.context != FIRST}
    return {"clock": Ticking(0.3), "budget": Budget(deadline_ms=1000)}


by_interruption = pytest.mark.parametrize("what", ["cancelled", "deadline"])


@to_nobody
@by_interruption
def test_a_resumed_run_that_is_interrupted_at_once_shows_nothing_either(what: str, context: Any, note: str) -> None:
    """A search that clock or caller keep from starting emits nothing that another viewer saw."""
    chunks = Paused("dense_search", **interrupting(what)).streamed(context, GATHERED)
    assert traces_of_the_first(chunks) == []
    assert note in repr(chunks)


@to_nobody
@by_interruption
def test_a_resumed_run_that_is_interrupted_at_once_ends_empty(what: str, context: Any, note: str) -> None:
    """Output and state of such a run are as if it had not been interrupted."""
    paused = Paused("dense_search", **interrupting(what))
    outcome = paused.resume(context)
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", (note,))
    assert traces_of_the_first([outcome.packet, outcome.trace, paused.graph.get_state(CONFIG).values]) == []
    assert replayed(outcome)


@both_ways
@pytest.mark.parametrize("context", [FIRST, NEWER], ids=["same", "newer"])
@at_every_node
def test_the_same_viewer_goes_on(node: str, context: Any, awaited: bool) -> None:
    """Under the same ``view_id``, in whatever version, the run ends like one that never paused."""
    outcome = Paused(node).resume(context, awaited=awaited)
    straight = Outcome(
        create_bounded_retrieval(
            ScriptedSearcher(UNITS[:3], "lexical"),
            ScriptedSearcher(UNITS[3:], "dense"),
            eligibility=resolver,
            context_schema=dict,
        )
        .compile()
        .invoke({"query": QUERY}, context=FIRST)
    )
    assert outcome.packet == straight.packet
    assert outcome.ids
    assert replayed(outcome)
    assert outcome.trace.searches[0].view == ViewStamp(**FIRST)
    last = outcome.trace.events[-1]
    assert isinstance(last, EvidencePacked)
    assert last.view == ViewStamp(**context)


def test_a_new_version_may_deny_what_an_old_one_allowed() -> None:
    """The recheck goes by the version in force at the end."""

    def stricter(runtime: Any) -> EligibilityView:
        may_see = {"seen-1"} if runtime.context["version"] == "2" else {"seen-1", "seen-2", "seen-3"}
        return EligibilityView(allowed=lambda unit_ids: may_see & set(unit_ids), **runtime.context)

    outcome = Paused("recheck_and_pack", eligibility=stricter).resume(NEWER)
    assert (outcome.ids, outcome.notes) == (["seen-1"], ("dropped_at_recheck",))
    assert replayed(outcome)


def test_a_change_of_view_is_a_protected_record() -> None:
    """From which view to which is in the diagnostics; the raw error of a resolver too, and nowhere else."""
    paused = Paused("recheck_and_pack")
    paused.resume(OTHER)
    changed = next(record for record in paused.records if record["event"] == "view_changed")
    assert (changed["from"], changed["to"]) == (FIRST, OTHER)
    broken = Paused("recheck_and_pack")
    broken.resume(BROKEN)
    failed = next(record for record in broken.records if record["event"] == "eligibility_failed")
    assert str(failed["error"]) == RAW


def test_coming_back_to_the_first_view_does_not_bring_anything_back() -> None:
    """What another viewer's step forgot stays forgotten when the first one goes on."""
    saver_graph = Paused("recheck_and_pack")
    graph = saver_graph.graph
    graph.update_state(CONFIG, {}, as_node="dense_search")
    graph.invoke(None, CONFIG, context=OTHER)
    assert graph.get_state(CONFIG).next == ("recheck_and_pack",)
    outcome = saver_graph.resume(FIRST)
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", ("view_changed",))
    assert replayed(outcome)


def test_a_second_request_on_the_thread_begins_under_its_own_view() -> None:
    """A new query of another viewer on the same thread is no change of view."""
    paused = Paused("recheck_and_pack")
    paused.resume(FIRST)
    paused.graph.invoke({"query": QUERY}, CONFIG, context=OTHER)
    outcome = paused.resume(OTHER)
    assert outcome.ids
    assert outcome.notes == ()
    assert outcome.trace.searches[0].view == ViewStamp(**OTHER)


def test_a_pause_before_anything_was_seen_belongs_to_nobody() -> None:
    """A run that stands before its first search is whoever resumes it's."""
    outcome = Paused("lexical_search").resume(OTHER)
    assert outcome.ids
    assert outcome.notes == ()
    assert outcome.trace.searches[0].view == ViewStamp(**OTHER)


@both_ways
@to_nobody
def test_a_path_followed_by_somebody_else_is_forgotten(context: Any, note: str, awaited: bool) -> None:
    """On the structured route, too, the packet is empty and claims no path."""
    paused = OnAPath("recheck_and_pack")
    outcome = paused.resume(context, awaited=awaited)
    assert (outcome.ids, outcome.reason, outcome.notes) == ([], "retrieval_failed", (note,))
    assert (outcome.packet.path, outcome.usage) == ((), Usage())
    assert traces_of_the_first([outcome.packet, outcome.trace, paused.graph.get_state(CONFIG).values]) == []
    assert replayed(outcome)


def test_a_path_goes_on_for_the_same_viewer() -> None:
    """A control: under the same view the path is packed."""
    outcome = OnAPath("recheck_and_pack").resume(NEWER)
    assert (outcome.ids, outcome.reason) == (["seen-1"], "path_followed")
    assert replayed(outcome)


def test_a_view_does_not_survive_in_the_callers_documents() -> None:
    """A resumed run changes none of the collection's documents."""
    before = [unit.model_copy(deep=True) for unit in UNITS]
    Paused("dense_search").resume(OTHER)
    assert before == UNITS
    assert all(isinstance(unit, Document) for unit in UNITS)
