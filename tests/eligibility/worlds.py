"""Pairs of generated worlds: one holds units that the caller may not see, in the other these do not exist.

A `Case` is plain data. `World` builds it, ``whole`` or without what is hidden; all else is the same in both. Where a
unit is lost while a run is under way, it is hidden from the caller in the whole world and deleted in the other, at the
same call of the resolver.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings
from langchain_core.retrievers import BaseRetriever
from langchain_core.vectorstores import InMemoryVectorStore
from langgraph.config import get_config

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.contracts.filters import compile_filter
from bounded_retrieval.contracts.normalise import clean_metadata, fingerprint
from bounded_retrieval.contracts.relationships import EntityName, Relationship
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.metadata_view import MetadataView
from bounded_retrieval.policies.tokenize import tokenize
from bounded_retrieval.retrievers.bm25 import BM25Searcher
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.testing import FixedClock

QUERY = "replace the HX-200 battery"
MANNERS = ("invoke", "stream", "tool", "retriever")
AWAITED = ("ainvoke", "events", "atool", "aretriever")
POLICIES = ("adaptive", "always_continue", "fixed_lexical", "fixed_dense")
TEXTS = (
    "Replace the HX-200 battery with the small screwdriver.",
    QUERY,
    "HX-200",
    "The HX-2000 has no battery.",
    "Parcels are replaced when the courier broke them.",
    "battery",
    "Charging the battery of the HX-210 takes four hours.",
    "Replace the battery. " * 30,
    "Replace the cover of the HX-200 first.",
    "A lamp for the desk.",
)
NOW = dt.datetime(2026, 6, 1, 12, tzinfo=dt.UTC)
UNCHANGING = 99
"""A call of the resolver that no run makes."""
UNIT_IDS = tuple(f"{letter}{number}" for number in range(3) for letter in "amz")


class Odd:
    """A value that no JSON holds."""

    def __str__(self) -> str:
        return "odd"


Shown = tuple[dict[str, Any], dict[str, Any]]
"""Metadata with which a unit may be seen: in the whole world, and in the other one. Only private fields differ."""

SHOWN: Mapping[str, Sequence[Shown]] = {
    "metadata": (
        ({"tenant": "acme"}, {"tenant": "acme"}),
        ({"tenant": "acme", "groups": ["staff", "board"]}, {"tenant": "acme", "groups": ["staff"]}),
        ({"tenant": "acme", "groups": "staff", "valid_until": "2026-06-01"}, {"tenant": "acme"}),
        ({"tenant": "everyone", "valid_from": "2020-01-01"}, {"tenant": "acme"}),
        ({"tenant": ["acme", "rival"], "kind": "note"}, {"tenant": "acme", "kind": "note"}),
    ),
    "filter": (
        ({"level": "open", "owner": "ann"}, {"level": "open", "owner": "bob"}),
        ({"level": 1}, {"level": "open"}),
        ({"level": ["closed", "open"], "title": "Battery"}, {"level": "open", "title": "Battery"}),
        ({"level": "open", "until": "2027-01-01"}, {"level": 1.0}),
    ),
    "allowed": (({"kind": "note"}, {"kind": "note"}), ({}, {}), ({"owner": "ann"}, {"owner": "bob"})),
}

HIDDEN: Mapping[str, Sequence[dict[str, Any]]] = {
    "metadata": (
        {"tenant": "rival"},
        {"tenant": "acme", "groups": ["board"], "title": "Battery"},
        {"tenant": "acme", "groups": []},
        {"tenant": "acme", "groups": {"staff": True}},
        {"tenant": "acme", "valid_until": "2026-05-31"},
        {"tenant": "acme", "valid_from": "2026-06-01T12:00:01"},
        {"tenant": "acme", "valid_until": 20990101},
        {"tenant": "acme", "valid_until": ["2099-01-01"]},
        {"tenant": True},
        {"tenant": Odd()},
        {"tenant": float("nan"), "size": 2**70},
        {},
    ),
    "filter": (
        {"level": "closed"},
        {"level": ["closed", 0.5, None], "title": "Battery"},
        {"level": True},
        {"level": None},
        {"level": "1"},
        {"level": 1.5, "until": "2027-01-01"},
        {"level": Odd()},
        {"level": {"open": "open"}},
        {"owner": float("inf")},
        {},
    ),
    "allowed": ({"kind": "note"}, {"title": "Battery", "kind": Odd()}, {"kind": [1, "two", None]}),
}

EXACT_FILTER = {"level": {"$in": ["open", 1]}}
OPEN_FILTER = {"$and": [EXACT_FILTER, {"$or": [{"until": {"$exists": False}}, {"until": {"$gte": "2026-06-01"}}]}]}
NARROWING = {"$or": [EXACT_FILTER, {"level": {"$exists": False}}]}

VIEWS = ("metadata", "filter", "exact_filter", "allowed", "allowed_filter", "allowed_narrowed")
FAMILY = {"metadata": "metadata", "filter": "filter", "exact_filter": "filter", "allowed_filter": "filter"}
FILTERS = {
    "filter": OPEN_FILTER,
    "exact_filter": EXACT_FILTER,
    "allowed_filter": OPEN_FILTER,
    "allowed_narrowed": NARROWING,
}
DECIDED_BY_FILTER = frozenset({"metadata", "filter", "exact_filter", "allowed_filter"})
"""Views whose filter lets nothing pass that the caller may not see, so that statistics may be kept under it."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One unit.

    Attributes:
        fate: ``shown``, ``hidden``, ``lost`` (shown, until the moment comes), ``changed`` (its text is another one in
            the unit source by the time of the recheck; gone in the other world), or ``stale`` (shown, but relationships were
            declared for another text; absent in the other world).
        form: which of the metadata that its fate allows it has.
        copies: how many rows a messy searcher gives it.
        junk: whether the messy searcher puts a row after it that is no candidate.
    """

    unit_id: str
    text: str
    fate: str
    form: int = 0
    copies: int = 1
    junk: bool = False


@dataclass(frozen=True, kw_only=True)
class Case:
    """One generated pair of worlds.

    Attributes:
        view: which kind of view the caller has.
        way: ``pure`` (no thread), ``sync`` or ``async``: how the resolver and ``allowed`` are called.
        apart: the units are read from a source of their own, not from the searchers.
        moment: at which call of the resolver units are lost or changed, or the outage begins.
        outage: what fails from then on: nothing, ``resolver``, ``allowed`` or ``identity`` (another view's id).
        declared: in the other world, relationships and names whose source is absent are declared all the same.
        manners: in which ways the graph is run and observed.
    """

    units: tuple[Plan, ...]
    view: str = "metadata"
    way: str = "pure"
    lexical: str | None = "bm25"
    dense: str | None = "exact"
    apart: bool = True
    policy: str = "adaptive"
    threshold: float = 0.8
    first_hop_rows: int = 3
    budget: Budget = field(default_factory=Budget)
    moment: int = UNCHANGING
    outage: str | None = None
    path: Mapping[str, Any] | None = None
    names: tuple[EntityName, ...] = ()
    links: tuple[Relationship, ...] = ()
    declared: bool = True
    statistics: str = "filtered"
    k: int | None = None
    manners: tuple[str, ...] = (*MANNERS, *AWAITED)

    @property
    def family(self) -> str:
        """Which metadata its units have."""
        return FAMILY.get(self.view, "allowed")


@dataclass(frozen=True)
class Caller:
    """Who asks; the runtime context."""

    tenant: str = "acme"
    groups: tuple[str, ...] = ("staff",)
    user_id: str = "ann"


class LetterEmbeddings(Embeddings):
    """Counts letters: cheap, and the same text has the same vector everywhere."""

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        low = text.casefold()
        return [float(low.count(letter)) for letter in "abcehlorstuvwx0127"]


def similarity(left: Sequence[float], right: Sequence[float]) -> float:
    """Cosine of two vectors, 0 where one has no direction."""
    norms = sum(a * a for a in left) ** 0.5 * sum(b * b for b in right) ** 0.5
    return round(sum(a * b for a, b in zip(left, right, strict=True)) / norms, 6) if norms else 0.0


EMBEDDING = LetterEmbeddings()


@dataclass
class ExactSearcher:
    """Ranks all documents that it holds now by a score; equal scores by id. It has no index that could be out of date.

    Attributes:
        filters: whether it honours the filter.
        brings: whether its rows bring their documents.
        plans: units with further rows, for a searcher that gives more than it was asked for.
    """

    documents: dict[str, Document]
    channel: str
    filters: bool = True
    brings: bool = True
    plans: Mapping[str, Plan] = field(default_factory=dict)

    def search(self, query: str, k: int, filter: Any = None) -> list[Any]:
        accepts = compile_filter(filter if self.filters else None)
        passing = [each for each in self.documents.values() if accepts(clean_metadata(each.metadata)[0])]
        scored = [(self.score_of(query, each), each) for each in passing]
        ranked = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: (-pair[0], pair[1].id))
        rows = [row for score, each in ranked for row in self._rows(each, score)]
        return rows if self.plans else rows[:k]

    def score_of(self, query: str, document: Document) -> float:
        text = f"{document.metadata.get('title', '')} {document.page_content}"
        if self.channel == "dense":
            return similarity(EMBEDDING.embed_query(query), EMBEDDING.embed_query(text))
        return float(len(set(tokenize(query)) & set(tokenize(text))))

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        return {unit_id: self.documents[unit_id] for unit_id in unit_ids if unit_id in self.documents}

    def _rows(self, document: Document, score: float) -> list[Any]:
        plan = self.plans.get(document.id)
        row = Candidate(
            unit_id=document.id,
            channel=self.channel,
            rank=1,
            score=score,
            unit=document if self.brings else None,
        )
        return [row] if plan is None else [row] * plan.copies + ["junk"] * plan.junk


class PushingSearcher(ExactSearcher):
    """One that says that it applies filters itself, and is awaited where it can be."""

    def pushes_down(self, filter: Any) -> bool:  # noqa: ARG002  # the same for every filter
        return self.filters

    async def asearch(self, query: str, k: int, filter: Any = None) -> list[Any]:
        return self.search(query, k, filter)


class WordRetriever(BaseRetriever):
    """A LangChain retriever that returns every document with a word of the query."""

    searcher: Any

    def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:  # noqa: ARG002
        return [row.unit for row in self.searcher.search(query, 1_000)]


@dataclass
class Shelf:
    """A unit source apart from the searchers."""

    documents: dict[str, Document]

    def fetch(self, unit_ids: Sequence[str]) -> dict[str, Document]:
        return {unit_id: self.documents[unit_id] for unit_id in unit_ids if unit_id in self.documents}


class World:
    """A case built, ``whole`` or without what is hidden; for one run only.

    Attributes:
        held: what the searchers hold now, by id.
        allowed: ids that the caller may see now.
        listeners: callback handlers of the run, for searchers that should not have them.
    """

    listeners: Sequence[Any] = ()

    def __init__(self, case: Case, *, whole: bool, chroma: Any = None) -> None:
        self.case = case
        self.whole = whole
        self.asked = 0
        self.allowed = {plan.unit_id for plan in case.units if plan.fate != "hidden"}
        absent = () if whole else ("hidden", "stale")
        self.held = {plan.unit_id: self._document(plan) for plan in case.units if plan.fate not in absent}
        self.shelf = Shelf(dict(self.held))
        self.unsaid = set() if case.declared else {plan.unit_id for plan in case.units if plan.fate in absent}
        self.stores: list[Any] = []
        self._chroma = chroma
        self.lexical = self._searcher("lexical", case.lexical)
        self.dense = self._searcher("dense", case.dense)

    def graph(self) -> Any:
        """The graph over this world, not compiled."""
        case = self.case
        return create_bounded_retrieval(
            self.lexical,
            self.dense,
            units=self.shelf if case.apart else None,
            policy=case.policy,
            threshold=case.threshold,
            budget=case.budget,
            first_hop_rows=case.first_hop_rows,
            eligibility=self._resolver(),
            eligibility_timeout_ms=60_000,
            relationships=self._relationships() if case.path else None,
            context_schema=Caller,
            clock=FixedClock(),
        )

    def view(self, runtime: Any) -> Any:
        """The caller's view; at the moment the world changes first."""
        self.asked += 1
        case = self.case
        if self.asked == case.moment:
            self.strike()
        if case.moment < UNCHANGING and get_config()["metadata"].get("langgraph_node") == "recheck_and_pack":
            self.change()
        broken = case.outage if self.asked >= case.moment else None
        if broken == "resolver":
            raise ConnectionError("down")
        if case.view == "metadata":
            view = MetadataView(shared_tenant="everyone", now=lambda: NOW)(runtime)
            return replace(view, view_id="other") if broken == "identity" else view
        return EligibilityView(
            view_id="other" if broken == "identity" else "ann",
            version="1",
            allowed=self._allowed(broken) if case.view.startswith("allowed") else None,
            search_filter=FILTERS.get(case.view),
            private_fields=("owner", "level", "until"),
        )

    def strike(self) -> None:
        """What was lost is hidden, or deleted."""
        for plan in self.case.units:
            if plan.fate == "lost":
                self.allowed.discard(plan.unit_id)
                self._put(plan.unit_id, self._document(replace(plan, fate="hidden")) if self.whole else None)

    def change(self) -> None:
        """What was changed has another text, or is deleted, once it was seen: before that, the new text is what is seen."""
        for plan in self.case.units:
            if plan.fate == "changed" and self.whole:
                document = self.shelf.documents[plan.unit_id]
                self.shelf.documents[plan.unit_id] = document.model_copy(update={"page_content": "Other."})
            elif plan.fate == "changed":
                self.shelf.documents.pop(plan.unit_id, None)

    def _put(self, unit_id: str, document: Document | None) -> None:
        if document is None:
            del self.held[unit_id], self.shelf.documents[unit_id]
        else:
            self.held[unit_id] = self.shelf.documents[unit_id] = document
        for store in self.stores:
            if isinstance(store, InMemoryVectorStore):
                store.delete([unit_id]) if document is None else store.add_documents([document])
            elif document is None:
                store.remove([unit_id])
            else:
                store.add([document])

    def _document(self, plan: Plan) -> Document:
        forms = HIDDEN[self.case.family]
        metadata = forms[plan.form % len(forms)]
        if plan.fate != "hidden":
            shown = SHOWN[self.case.family]
            metadata = shown[plan.form % len(shown)][0 if self.whole else 1]
        return Document(id=plan.unit_id, page_content=plan.text, metadata=metadata)

    def _relationships(self) -> RelationshipStore:
        links = [link for link in self.case.links if link.source_unit not in self.unsaid]
        said = [name for name in self.case.names if name.source_unit not in self.unsaid]
        # An entity none of whose names can be shown does not exist, but one without a name does: so one name stays.
        mentioned = {entity_id for link in self.case.links for entity_id in (link.subject, link.object)}
        unnamed = (mentioned | {name.entity_id for name in self.case.names}) - {name.entity_id for name in said}
        return RelationshipStore(links, [*said, *(name for name in self.case.names if name.entity_id in unnamed)])

    def _searcher(self, channel: str, kind: str | None) -> Any:
        plans = {plan.unit_id: plan for plan in self.case.units}
        make: Mapping[str | None, Callable[[], Any]] = {
            None: lambda: None,
            "bm25": self._bm25,
            "exact": lambda: PushingSearcher(self.held, channel),
            "bare": lambda: ExactSearcher(self.held, channel, brings=False),
            "unfiltered": lambda: ExactSearcher(self.held, channel, filters=False),
            "messy": lambda: ExactSearcher(self.held, channel, filters=False, plans=plans),
            "retriever": lambda: WordRetriever(searcher=ExactSearcher(self.held, channel, filters=False)),
            "store": self._vector_store,
            "chroma": self._chroma_searcher,
        }
        return make[kind]()

    def _bm25(self) -> BM25Searcher:
        searcher = BM25Searcher.from_documents(self.held.values(), statistics=self.case.statistics)
        self.stores.append(searcher)
        return searcher

    def _vector_store(self) -> InMemoryVectorStore:
        store = InMemoryVectorStore(EMBEDDING)
        store.add_documents(list(self.held.values()))
        self.stores.append(store)
        return store

    def _chroma_searcher(self) -> Any:
        """The one searcher of the test, emptied and filled again: making one takes far longer."""
        self._chroma.remove(UNIT_IDS)
        self._chroma.add(self.held.values())
        self.stores.append(self._chroma)
        return self._chroma

    def _resolver(self) -> Any:
        if self.case.way == "async":

            async def resolve(runtime: Any) -> Any:
                return self.view(runtime)

            return resolve

        def ask(runtime: Any) -> Any:
            return self.view(runtime)

        ask.is_pure = self.case.way == "pure"
        return ask

    def _allowed(self, broken: str | None) -> Any:
        def allowed(unit_ids: Sequence[str]) -> set[str]:
            if broken == "allowed":
                raise ConnectionError("down")
            return self.allowed & set(unit_ids)

        async def aallowed(unit_ids: Sequence[str]) -> set[str]:
            return allowed(unit_ids)

        return aallowed if self.case.way == "async" else allowed


def mostly(usual: Sequence[Any], *others: Any) -> st.SearchStrategy[Any]:
    """Draw one of the usual values, if there are any, about four times out of five."""
    if not usual:
        return st.sampled_from(others)
    return st.sampled_from([*list(usual) * (4 * max(1, len(others))), *list(others) * len(usual)])


budgets = st.builds(
    Budget,
    max_calls=mostly([2], 1, 0),
    max_iterations=mostly([2], 1),
    max_rows=mostly([8, 6, 4], 2, 1),
    max_reads=mostly([8, 6, 3], 1, 2, 0),
    max_units=mostly([4, 3], 1, 0),
    max_chars=mostly([4000, 400], 60, 10),
)


@st.composite
def units_of(draw: Any, fates: Sequence[str], *, least: int = 1) -> tuple[Plan, ...]:
    """Distinct units in an order of their own, often more of them hidden than shown."""
    unit_ids = draw(st.lists(st.sampled_from(UNIT_IDS), min_size=least, max_size=len(UNIT_IDS), unique=True))
    return tuple(
        Plan(
            unit_id=unit_id,
            text=draw(st.sampled_from(TEXTS)),
            fate=(fate := draw(st.sampled_from(fates))),
            form=draw(st.integers(0, 11)),
            copies=draw(mostly([1], 2, 3)),
            junk=draw(mostly([False], True)) if fate == "shown" else False,
        )
        for unit_id in unit_ids
    )


def _told_apart(units: Sequence[Plan]) -> tuple[Plan, ...]:
    """Without units that the caller may see and whose text another one has: LangChain's store orders ties anyhow."""
    texts = {plan.text: plan for plan in reversed(units) if plan.fate != "hidden"}
    return tuple(plan for plan in units if plan.fate == "hidden" or texts[plan.text] is plan)


@st.composite
def text_cases(
    draw: Any,
    *,
    views: Sequence[str] = VIEWS,
    lexicals: Sequence[str] = ("bm25", "words", "retriever"),
    denses: Sequence[str | None] = ("exact", "bare", "unfiltered", "messy", "store", None),
    changing: bool = False,
    outages: Sequence[str | None] = (None,),
) -> Case:
    """A case on the text route; with ``changing``, units are lost or something fails while it runs."""
    view = draw(st.sampled_from(views))
    lexical = draw(st.sampled_from([kind for kind in lexicals if kind != "bm25" or view in DECIDED_BY_FILTER]))
    dense = draw(st.sampled_from(denses))
    policy = draw(st.sampled_from(POLICIES if dense else POLICIES[:3]))
    fates = ("shown", "hidden", "hidden", "lost") if changing else ("shown", "hidden")
    units = draw(units_of(fates))
    return Case(
        units=_told_apart(units) if dense == "store" else units,
        view=view,
        way=draw(mostly(["pure"], "sync", "async")),
        lexical={"words": "unfiltered"}.get(lexical, lexical),
        dense=dense,
        apart=draw(st.booleans()),
        policy=policy,
        threshold=draw(st.sampled_from([0.0, 0.5, 0.8, 1.0])),
        first_hop_rows=draw(st.integers(1, 4)),
        budget=(budget := draw(budgets)),
        moment=draw(st.integers(1, 5)) if changing else UNCHANGING,
        outage=draw(st.sampled_from(outages)),
        manners=(draw(mostly(["stream"], *MANNERS)), draw(st.sampled_from(AWAITED))),
        k=draw(mostly([None], 1)) if budget.max_units else None,
    )


@st.composite
def changed_cases(draw: Any) -> Case:
    """A case in which units have another text at the recheck; rows bring the text that the index still holds."""
    case = draw(text_cases(lexicals=("words",), denses=("exact", "unfiltered", "messy"), changing=True))
    units = tuple(replace(plan, fate={"lost": "changed"}.get(plan.fate, plan.fate)) for plan in case.units)
    return replace(case, units=units, apart=True)


ENTITIES = ("pump", "ward", "clinic", "vendor")
NAMES = ("The Pump", "The Unit", "ward", "Clinic", "PUMP")
RELATIONS = ("located in", "maintained by")


@st.composite
def path_cases(draw: Any, *, changing: bool = False, outages: Sequence[str | None] = (None,)) -> Case:
    """A case on the structured route, with hidden names, hidden bridges and hidden alternatives."""
    fates = ("shown", "shown", "hidden") + (("lost",) if changing else ())
    base = draw(text_cases(denses=("exact", None), changing=changing, outages=outages))
    return draw(_paths(replace(base, units=draw(units_of(fates, least=3)))))


@st.composite
def stale_cases(draw: Any) -> Case:
    """A path case in which relationships were declared for an earlier text, with a source that may be seen."""
    base = draw(text_cases(denses=(None,)))
    return draw(_paths(replace(base, units=draw(units_of(("shown", "stale"), least=3))), names=NAMES[:2]))


@st.composite
def _paths(draw: Any, base: Case, names: Sequence[str] = NAMES) -> Case:
    links = draw(st.lists(_links(base.units), min_size=1, max_size=6))
    # A name that is declared by an outdated source is a name all the same, so those declare none.
    named = st.builds(
        EntityName,
        entity_id=st.sampled_from([links[0].subject, *ENTITIES]),
        name=st.sampled_from(names),
        source_unit=mostly([plan.unit_id for plan in base.units if plan.fate != "stale"], "nowhere"),
    )
    declared = draw(st.lists(named, min_size=1, max_size=4))
    budget = base.budget.model_copy(update={"max_reads": max(1, base.budget.max_reads)})
    relations, reached = [links[0].relation], links[0].object
    for _ in range(draw(st.sampled_from([0, 0, 1, 2]))):
        onward = [link for link in links if link.subject == reached] or links
        relations.append((link := draw(st.sampled_from(onward))).relation)
        reached = link.object
    return replace(
        base,
        budget=budget,
        names=tuple(declared),
        links=tuple(links),
        declared=draw(st.booleans()),
        path={
            "start": draw(st.sampled_from([links[0].subject, *(name.name for name in declared)])),
            "relations": relations[: budget.max_reads],
        },
        apart=True,
        moment=draw(st.sampled_from([1, 2, 2])) if base.moment < UNCHANGING else UNCHANGING,
        manners=(draw(mostly(["stream"], "invoke")), draw(st.sampled_from(AWAITED[:2]))),
    )


def _links(units: Sequence[Plan]) -> st.SearchStrategy[Relationship]:
    by_id = {plan.unit_id: plan for plan in units}

    def declare(subject: str, relation: str, target: str, source: str, *, dated: bool) -> Relationship:
        plan = by_id.get(source)
        is_stale = plan is not None and plan.fate == "stale"
        text = "An earlier text." if plan is None or is_stale else plan.text
        return Relationship(
            subject=subject,
            relation=relation,
            object=target,
            source_unit=source,
            source_fingerprint=fingerprint(text) if dated or is_stale else None,
        )

    return st.builds(
        declare,
        st.sampled_from(ENTITIES),
        st.sampled_from(RELATIONS),
        st.sampled_from(ENTITIES),
        mostly([plan.unit_id for plan in units], "nowhere"),
        dated=st.booleans(),
    )


PROPERTIES: Mapping[str, st.SearchStrategy[Case]] = {
    "text": text_cases(),
    "text_while_units_are_lost": text_cases(changing=True),
    "text_while_units_change": changed_cases(),
    "text_while_the_view_fails": text_cases(changing=True, outages=("resolver", "identity")),
    "path": path_cases(),
    "path_while_units_are_lost": path_cases(changing=True),
    "path_while_the_view_fails": path_cases(changing=True, outages=("resolver", "identity")),
    "path_over_outdated_sources": stale_cases(),
}
"""Whatever is drawn, the caller cannot tell the two worlds apart."""

CHROMA = text_cases(denses=("chroma",), changing=True)
"""The same over a real Chroma collection, which takes longer."""

STATISTICS = text_cases(views=("metadata", "filter", "exact_filter"), lexicals=("bm25",))
"""Cases with a lexical index and a view that is a filter."""
