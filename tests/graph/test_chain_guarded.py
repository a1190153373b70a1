"""A chain over a bounded graph that shows each caller only what that caller may see."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from chain_inventory import CONFIG, QUESTION, TOPICS, document, endless, given
from langchain_core.documents import Document
from langgraph.checkpoint.memory import InMemorySaver

from bounded_retrieval.contracts.chain import ChainResult, Hop, SubAnswer
from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.graph.chain import create_recursive_retrieval
from bounded_retrieval.policies.chaining import ChainRules
from bounded_retrieval.policies.metadata_view import MetadataView
from bounded_retrieval.policies.planners import TemplatePlanner
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.testing import ScriptedSearcher

THREAD: Any = {**CONFIG, "configurable": {"thread_id": "one"}}
RED: dict[str, Any] = {"tenant": "red"}
BLUE: dict[str, Any] = {"tenant": "blue"}
BROKEN: dict[str, Any] = {}
MODES = ["values", "updates", "custom", "messages", "tasks", "debug", "checkpoints"]
GATHERED = ["updates", "custom", "messages"]
NODES = ["plan_hop", "check_novelty", "check_sufficiency", "check_limits", "finish_chain"]
KEYS = ("Who keeps the key?", "Where does #1 live?")


def owned(tenant: str) -> list[Document]:
    """One tenant's units on every topic; ids, texts and sub-answers hold the tenant's name."""
    return [document(f"{tenant}-{topic}", f"The {topic} is kept by {tenant} staff.", tenant=tenant) for topic in TOPICS]


UNITS = [*owned("red"), *owned("blue")]


class Members:
    """Says who may see what by the unit's id, and forgets units on demand."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()

    def __call__(self, runtime: Any) -> EligibilityView:
        tenant = runtime.context["tenant"]
        return EligibilityView(
            view_id=tenant,
            version=str(len(self.revoked)),
            allowed=lambda ids: {name for name in ids if name.startswith(tenant) and name not in self.revoked},
        )


class World:
    """Units of two tenants in one index under a guarded chain, and everything that it reports.

    Attributes:
        members: who may see what.
        words: the index.
    """

    def __init__(self, planner: Any = endless, *, interrupt: str | None = None, **options: Any) -> None:
        self.members = options.pop("eligibility", Members())
        self.words = options.pop("words", None) or BM25Searcher.from_documents(UNITS)
        self.records: list[dict[str, Any]] = []
        bounded = create_bounded_retrieval(
            self.words,
            policy="fixed_lexical",
            eligibility=self.members,
            context_schema=dict,
            diagnostics=self.records.append,
        )
        reader = options.pop("reader", read)
        builder = create_recursive_retrieval(bounded, planner, reader, **options)
        before = [interrupt] if interrupt else []
        self.graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=before)

    def run(self, context: Any = RED) -> Any:
        """One run to its end or its next pause; the result where it ended."""
        output = self.graph.invoke(given(), THREAD, context=context)
        return None if self.graph.get_state(THREAD).next else ChainResult.from_result(output)

    def resume(self, context: Any, *, awaited: bool = False) -> Any:
        """Go on to the end; pauses on the way are passed."""
        output: dict[str, Any] = {}
        while self.graph.get_state(THREAD).next:
            if awaited:
                output = asyncio.run(self.graph.ainvoke(None, THREAD, context=context))
            else:
                output = self.graph.invoke(None, THREAD, context=context)
        return ChainResult.from_result(output)

    def to(self, node: str, hops: int, context: Any = RED) -> None:
        """Run until the chain stands before a node with so many hops made."""
        self.graph.invoke(given(), THREAD, context=context, interrupt_before="*")
        while True:
            state = self.graph.get_state(THREAD)
            if state.next == (node,) and len(state.values.get("trail", ())) == hops:
                return
            assert state.next, "the chain ended before it stood there"
            self.graph.invoke(None, THREAD, context=context, interrupt_before="*")


def read(query: str, documents: Sequence[Document]) -> SubAnswer:  # noqa: ARG001
    """A reader that quotes the first document and names it."""
    return SubAnswer(text=documents[0].page_content, unit_ids=(documents[0].id or "",))


def traces(tenant: str, given_out: Any) -> list[str]:
    """What only a tenant's units brought: their ids and their texts. The view's own name is no secret."""
    return [word for word in (f"{tenant}-", f"by {tenant}") if word in repr(given_out)]


def everything(graph: Any) -> list[Any]:
    """All that a thread's checkpoints hold."""
    return [[state.values, state.tasks, state.metadata] for state in graph.get_state_history(THREAD)]


def test_each_tenant_sees_its_own() -> None:
    """A control: each tenant's chain finds that tenant's units on every topic."""
    for context, tenant in ((RED, "red"), (BLUE, "blue")):
        result = World().run(context)
        assert [hop.unit_ids for hop in result.trail] == [(f"{tenant}-{topic}",) for topic in TOPICS[:3]]
        assert len(result.documents) == 3


@pytest.mark.parametrize("eligibility", [None, MetadataView()], ids=["allowed", "filter"])
def test_no_unit_of_another_tenant_anywhere(eligibility: Any) -> None:
    """Trail, documents, every stream with its subgraphs and every checkpoint are free of the other tenant's units."""
    options = {} if eligibility is None else {"eligibility": eligibility}
    world = World(**options)
    parts = list(world.graph.stream(given(), THREAD, context=RED, stream_mode=MODES, subgraphs=True))
    result = ChainResult.from_result(world.graph.get_state(THREAD).values)
    assert len(result.trail) == 3
    assert {mode for _, mode, _ in parts} >= {"values", "updates", "custom", "tasks", "debug", "checkpoints"}
    for seen in (parts, result, everything(world.graph)):
        assert traces("red", seen)
        assert traces("blue", seen) == []


def test_a_chain_by_another_tenant_on_the_same_thread_is_its_own() -> None:
    """A new question of another tenant on one thread is no change of view and shows that tenant's units only."""
    world = World()
    world.run(RED)
    result = world.run(BLUE)
    assert len(result.documents) == 3
    assert traces("red", result) == []


def test_nothing_is_shown_where_the_view_is_unknown() -> None:
    """A resolver that fails ends the chain before its first plan, with a note and no raw error."""
    result = World().run(BROKEN)
    assert (result.stop_reason.value, result.trail, result.documents) == ("retrieval_failed", (), ())
    assert "eligibility_failed" in result.notes
    assert result.unresolved == (QUESTION,)


def delete(world: World, unit_id: str) -> None:
    """Take a unit out of the index."""
    world.words.documents = [unit for unit in world.words.documents if unit.id != unit_id]


def change(world: World, unit_id: str) -> None:
    """Give a unit another text."""
    world.words.documents = [
        document(unit_id, "Another text.") if unit.id == unit_id else unit for unit in world.words.documents
    ]


def revoke(world: World, unit_id: str) -> None:
    """Take the right to see a unit away."""
    world.members.revoked.add(unit_id)


SECRET = "red-key"
HOME = "red-home"


class Answering(ScriptedSearcher):
    """Answers each query with the one unit that belongs to it."""

    def search(self, query: str, k: int, filter: Any = None) -> list[Any]:
        wanted = HOME if "live" in query else SECRET
        rows = super().search(query, k, filter)
        return [row for row in rows if row.unit_id == wanted]


def with_a_secret(**options: Any) -> World:
    """A chain of two hops that stands before its end; the first one read "Ann", from which the second query was made."""
    units = [document(SECRET, "Ann keeps the key."), document(HOME, "She lives in Ghent.")]
    world = World(
        TemplatePlanner(KEYS),
        words=Answering(units, "lexical"),
        reader=lambda query, _: "Ann" if "keeps" in query else "Ghent",
        **options,
    )
    world.to("finish_chain", 2)
    return world


GONE = {"revoked": revoke, "deleted": delete, "changed": change}


@pytest.mark.parametrize("way", GONE)
def test_a_unit_that_is_gone_takes_its_sub_answer_with_it(way: str) -> None:
    """A unit lost after its hop is in no document and no hop, and its sub-answer is gone: the chain is unresolved."""
    world = with_a_secret()
    GONE[way](world, SECRET)
    result = world.resume(RED)
    first, second = result.trail
    assert (first.unit_ids, first.sub_answer, first.answer_unit_ids) == ((), None, ())
    assert (second.unit_ids, second.sub_answer) == ((HOME,), "Ghent")
    assert [unit.id for unit in result.documents] == [HOME]
    assert KEYS[0] in result.unresolved
    assert not result.resolved
    assert "dropped_at_recheck" in result.notes
    assert SECRET not in repr(result)


@pytest.mark.parametrize("way", GONE)
def test_a_control_without_a_loss_resolves(way: str) -> None:
    """The same chain resolves where another unit is lost, or none."""
    world = with_a_secret()
    GONE[way](world, "red-elsewhere")
    result = world.resume(RED)
    assert (result.resolved, result.stop_reason.value) == (True, "sufficient")
    assert [hop.sub_answer for hop in result.trail] == ["Ann", "Ghent"]


def test_a_query_made_from_a_lost_sub_answer_does_not_show_it() -> None:
    """What was read from a unit that is gone stands nowhere in the result, also not inside a later hop's query."""
    world = with_a_secret()
    revoke(world, SECRET)
    assert "Ann" not in repr(world.resume(RED))


def test_a_clarifier_does_not_see_what_was_lost() -> None:
    """A clarifier, whose words the caller reads, is given the trail without the units and sub-answers that are gone."""
    seen: list[Any] = []

    def clarify(_question: str, _unresolved: Sequence[str], trail: Sequence[Hop]) -> str:
        seen.extend(trail)
        return " ".join(hop.sub_answer or "nothing" for hop in trail)

    world = with_a_secret(on_stop="clarify", clarifier=clarify)
    revoke(world, SECRET)
    result = world.resume(RED)
    assert result.clarification == "nothing Ghent"
    assert SECRET not in repr(seen)


def test_a_unit_without_a_part_in_the_answer_may_go() -> None:
    """Where the reader named another unit as its source, losing a unit does not cost the sub-answer."""
    words = ScriptedSearcher([document("red-a"), document("red-b")], "lexical")
    world = World(TemplatePlanner(["Who?"]), words=words)
    world.to("finish_chain", 1)
    revoke(world, "red-b")
    result = world.resume(RED)
    assert result.trail[0].unit_ids == ("red-a",)
    assert (result.trail[0].sub_answer, result.resolved) == ("Text of red-a.", True)


def test_a_lost_unit_is_not_in_the_latest_state() -> None:
    """After the end the thread's latest state holds nothing of a unit that was dropped, except in declared queries."""
    world = with_a_secret()
    revoke(world, SECRET)
    world.resume(RED)
    assert SECRET not in repr(world.graph.get_state(THREAD).values)
    assert "keeps the key." not in repr(world.graph.get_state(THREAD).values)


def test_what_was_lost_is_a_protected_record() -> None:
    """Which units were dropped, and why, is told to the diagnostics of the bounded graph."""
    world = with_a_secret()
    revoke(world, SECRET)
    world.resume(RED)
    dropped = [record for record in world.records if record["event"] == "dropped_at_recheck"]
    assert [record["reasons"] for record in dropped] == [{SECRET: "denied"}]


to_another = pytest.mark.parametrize(
    ("context", "note"), [(BLUE, "view_changed"), (BROKEN, "eligibility_failed")], ids=["other", "broken"]
)
both_ways = pytest.mark.parametrize("awaited", [False, True], ids=["invoke", "ainvoke"])


@both_ways
@to_another
@pytest.mark.parametrize("node", NODES)
def test_another_caller_who_resumes_gets_nothing(node: str, context: Any, note: str, awaited: bool) -> None:
    """What the first caller's hops saw, read and asked is forgotten: no document, no hop, no further search."""
    world = World()
    world.to(node, 3 if node == "finish_chain" else 1)
    searched = sum(record["event"] == "rechecked" for record in world.records)
    result = world.resume(context, awaited=awaited)
    assert (result.stop_reason.value, result.notes) == ("retrieval_failed", (note,))
    assert (result.trail, result.documents, result.unresolved) == ((), (), (QUESTION,))
    assert (result.usage.calls, result.usage.tokens, result.resolved) == (0, 0, False)
    assert sum(record["event"] == "rechecked" for record in world.records) <= searched + 1
    state = world.graph.get_state(THREAD)
    for seen in (result, [state.values, state.tasks]):
        assert traces("red", seen) == []
        assert not any(topic in repr(seen) for topic in TOPICS)


@to_another
@pytest.mark.parametrize("node", NODES)
def test_what_the_nodes_emit_shows_nothing_of_the_first_caller(node: str, context: Any, note: str) -> None:
    """No update, event or message of the resumed run holds a unit, sub-answer or query of the first caller's hops."""
    world = World()
    world.to(node, 3 if node == "finish_chain" else 1)
    parts = list(world.graph.stream(None, THREAD, context=context, stream_mode=GATHERED, subgraphs=True))
    assert note in repr(parts)
    assert traces("red", parts) == []
    assert not any(topic in repr(parts) for topic in TOPICS)


@pytest.mark.parametrize("node", ["search_hop", *NODES])
def test_the_same_caller_who_resumes_goes_on(node: str) -> None:
    """Under the same view a chain that paused ends like one that did not."""
    straight = World().run()
    world = World()
    world.to(node, {"finish_chain": 3, "search_hop": 0}.get(node, 1))
    assert world.resume(RED) == straight


@to_another
def test_a_pause_between_hops_in_the_search_itself(context: Any, note: str) -> None:
    """A chain that stands before its second search is not searched for another caller with the first one's query."""
    world = World()
    world.to("search_hop", 1)
    result = world.resume(context)
    assert (result.stop_reason.value, result.notes, result.trail) == ("retrieval_failed", (note,), ())
    assert traces("red", result) == []


def test_coming_back_brings_nothing_back() -> None:
    """What another caller's step forgot stays forgotten when the first one goes on."""
    world = World()
    world.to("check_sufficiency", 1)
    world.graph.invoke(None, THREAD, context=BLUE, interrupt_before="*")
    assert world.graph.get_state(THREAD).next == ("finish_chain",)
    result = world.resume(RED)
    assert (result.stop_reason.value, result.notes) == ("retrieval_failed", ("view_changed",))
    assert (result.trail, result.documents) == ((), ())


def test_a_newer_version_of_the_view_goes_on_and_is_asked_last() -> None:
    """Under a newer version of the same view the chain goes on, and the last word is that version's."""
    world = World()
    world.to("check_limits", 1)
    revoke(world, f"red-{TOPICS[0]}")
    result = world.resume(RED)
    assert len(result.trail) == 3
    assert [unit.id for unit in result.documents] == [f"red-{topic}" for topic in TOPICS[1:3]]


def test_tenants_at_once_do_not_meet() -> None:
    """Forty chains at once of two tenants over one graph each hold their own tenant's units only."""
    graph = create_recursive_retrieval(
        create_bounded_retrieval(
            BM25Searcher.from_documents(UNITS), policy="fixed_lexical", eligibility=Members(), context_schema=dict
        ),
        endless,
        read,
        rules=ChainRules(novelty=False),
    ).compile()

    async def all_at_once() -> list[Any]:
        contexts = [RED, BLUE] * 20
        return await asyncio.gather(*(graph.ainvoke(given(), CONFIG, context=context) for context in contexts))

    for output, (own, other) in zip(asyncio.run(all_at_once()), [("red", "blue"), ("blue", "red")] * 20, strict=True):
        assert len(output["documents"]) == 3
        assert traces(own, output)
        assert traces(other, output) == []
