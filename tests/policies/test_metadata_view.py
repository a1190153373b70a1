from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.documents import Document

from bounded_retrieval.contracts.candidate import Candidate
from bounded_retrieval.contracts.eligibility import EligibilityView, ViewStamp
from bounded_retrieval.contracts.filters import compile_filter, fields_of
from bounded_retrieval.contracts.normalise import clean_metadata
from bounded_retrieval.contracts.packet import EvidencePacket
from bounded_retrieval.errors import ConfigurationError
from bounded_retrieval.graph.bounded import create_bounded_retrieval
from bounded_retrieval.policies.metadata_view import MetadataView
from bounded_retrieval.testing import ScriptedSearcher

NOON = dt.datetime(2026, 3, 15, 12, 0, 0, tzinfo=dt.UTC)
NORA = {"tenant": "north", "groups": ["night"]}
OPEN = {"tenant": "north"}


def noon() -> dt.datetime:
    """The time that most tests are made at."""
    return NOON


def asking(context: Any = None, **given: Any) -> SimpleNamespace:
    """A runtime as LangGraph hands it over; ``server`` or ``user`` put it on a server."""
    if "user" in given:
        given["server"] = SimpleNamespace(user=given["user"])
    return SimpleNamespace(context=context, server_info=given.get("server"))


def view_of(context: Any = None, *, where: Mapping[str, Any] | None = None, **options: Any) -> EligibilityView:
    """The view of a caller."""
    return MetadataView(**{"now": noon, **options})(asking(context, **(where or {})))


def sees(view: EligibilityView, **metadata: Any) -> bool:
    """Whether a unit with this metadata passes, cleaned as the controller cleans it."""
    return compile_filter(view.search_filter)(clean_metadata(metadata)[0])


class User:
    """An authenticated user with attributes."""

    def __init__(self, identity: str = "saul", **held: Any) -> None:
        self.identity = identity
        self.is_authenticated = True
        for name, value in held.items():
            setattr(self, name, value)


class Proxy:
    """A user whose fields are reached by key alone, as servers hand them over."""

    def __init__(self, **held: Any) -> None:
        self._held = held

    def __getitem__(self, name: str) -> Any:
        return self._held[name]

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


@dataclass(frozen=True)
class Context:
    """A runtime context of the application."""

    tenant: str | None = None
    groups: tuple[str, ...] = ()


# Tenants


@pytest.mark.parametrize(
    ("metadata", "passes"),
    [
        ({"tenant": "north"}, True),
        ({"tenant": ["south", "north"]}, True),
        ({"tenant": "south"}, False),
        ({"tenant": "North"}, False),
        ({"tenant": ""}, False),
        ({"tenant": None}, False),
        ({"tenant": []}, False),
        ({"tenant": 1}, False),
        ({"tenant": True}, False),
        ({"tenant": {"name": "north"}}, False),
        ({}, False),
    ],
)
def test_a_unit_belongs_to_its_tenant(metadata: dict[str, Any], passes: bool) -> None:
    """A caller sees the units of exactly their tenant, and none without a tenant."""
    assert sees(view_of(NORA), **metadata) is passes


def test_a_caller_may_have_several_tenants() -> None:
    """Units of each of them are seen, and of no other."""
    view = view_of({"tenant": ["north", "south"]})
    assert [sees(view, tenant=tenant) for tenant in ("north", "south", "east")] == [True, True, False]


def test_types_of_tenants_are_told_apart() -> None:
    """A tenant that is a number is not one that is a text or a truth value."""
    view = view_of({"tenant": 1})
    assert [sees(view, tenant=tenant) for tenant in (1, "1", True)] == [True, False, False]


@pytest.mark.parametrize("tenant", [None, "", [], [""], [None], {}, {"north": 1}, 1.5, object(), b"north"])
def test_a_caller_without_a_tenant_sees_nothing(tenant: Any) -> None:
    """Whatever stands in its place."""
    view = view_of({"tenant": tenant, "groups": ["night"]})
    assert not any(sees(view, **metadata) for metadata in ({}, OPEN, {"tenant": ""}, {"tenant": None}, NORA))


def test_units_of_the_shared_tenant_are_everybodys() -> None:
    """For callers with a tenant of their own; groups and validity hold there too."""
    view = view_of(NORA, shared_tenant="all")
    assert sees(view, tenant="all")
    assert not sees(view, tenant="all", groups=["office"])
    assert not sees(view, tenant="all", valid_until="2026-03-14")
    assert not sees(view_of({}, shared_tenant="all"), tenant="all")
    assert not sees(view_of(NORA), tenant="all")


def test_a_collection_may_have_no_tenants() -> None:
    """With ``tenant=None`` groups and validity alone decide."""
    view = view_of({"groups": ["night"]}, tenant=None)
    assert [sees(view, **metadata) for metadata in ({}, {"tenant": "x"}, {"groups": "night"}, {"groups": "day"})] == [
        True,
        True,
        True,
        False,
    ]


def test_a_collection_without_any_of_the_fields_is_open() -> None:
    """With every field named none, whoever is known sees everything, and no field is private."""
    view = view_of({}, tenant=None, groups=None, valid_from=None, valid_until=None)
    assert sees(view, tenant="x", groups=[], valid_until="2000-01-01")
    assert tuple(view.private_fields) == ()


# Groups


@pytest.mark.parametrize(
    ("groups", "passes"),
    [
        (["night", "office"], True),
        (["office"], False),
        ("night", True),
        ("office", False),
        ("nigh", False),
        (None, True),
        ([], False),
        ("", False),
        ([None], False),
        ([["night"]], False),
        ({"night": True}, False),
        (True, False),
        (0, False),
    ],
)
def test_a_unit_with_groups_is_seen_by_their_members(groups: Any, passes: bool) -> None:
    """One group in common is enough; a unit without groups is the whole tenant's, and an odd value is nobody's."""
    assert sees(view_of(NORA), **OPEN, groups=groups) is passes


def test_absent_groups_are_no_groups() -> None:
    """A unit that names no groups is seen by a caller in none."""
    view = view_of({"tenant": "north"})
    assert sees(view, **OPEN)
    assert not sees(view, **OPEN, groups=["night"])


@pytest.mark.parametrize("groups", [["night"], ("night",), {"night"}, frozenset({"night"}), "night"])
def test_a_callers_groups_may_come_in_any_collection(groups: Any) -> None:
    """A list, a tuple, a set or one name."""
    assert sees(view_of({"tenant": "north", "groups": groups}), **OPEN, groups=["night"])


@pytest.mark.parametrize("groups", [None, [], {}, {"night": 1}, 1.5, b"night", [None], [["night"]], iter(["night"])])
def test_odd_groups_of_a_caller_are_none(groups: Any) -> None:
    """Then only units without groups are seen."""
    view = view_of({"tenant": "north", "groups": groups})
    assert sees(view, **OPEN)
    assert not sees(view, **OPEN, groups=["night"])


def test_groups_may_be_left_out_of_the_rule() -> None:
    """With ``groups=None`` the field means nothing."""
    assert sees(view_of({"tenant": "north"}, groups=None), **OPEN, groups=["office"])


# Validity


@pytest.mark.parametrize(
    ("valid_from", "passes"),
    [
        ("2026-03-14", True),
        ("2026-03-15", True),
        ("2026-03-16", False),
        ("2026-03-15T11:59:59", True),
        ("2026-03-15T12:00:00", True),
        ("2026-03-15T12:00:01", False),
        (dt.date(2026, 3, 15), True),
        (dt.date(2026, 3, 16), False),
        (dt.datetime(2026, 3, 15, 12), True),  # noqa: DTZ001
        (dt.datetime(2026, 3, 15, 12, 0, 1), False),  # noqa: DTZ001
        (None, True),
        (2026, False),
        (0, False),
        (1.5, False),
        (True, False),
        ([], False),
        (["2026-03-14"], False),
        ({"at": "2026-03-14"}, False),
        ("soon", False),
    ],
)
def test_a_unit_is_not_seen_before_its_first_moment(valid_from: Any, passes: bool) -> None:
    """The day or second named counts already; a value that is no text denies."""
    assert sees(view_of(NORA), **OPEN, valid_from=valid_from) is passes


@pytest.mark.parametrize(
    ("valid_until", "passes"),
    [
        ("2026-03-16", True),
        ("2026-03-15", True),
        ("2026-03-14", False),
        ("2026-03-15T12:00:01", True),
        ("2026-03-15T12:00:00", True),
        ("2026-03-15T11:59:59", False),
        (dt.date(2026, 3, 15), True),
        (dt.date(2026, 3, 14), False),
        (dt.datetime(2026, 3, 15, 12), True),  # noqa: DTZ001
        (dt.datetime(2026, 3, 15, 11, 59, 59), False),  # noqa: DTZ001
        (None, True),
        (2027, False),
        (99999999999, False),
        (1.5, False),
        (True, False),
        ([], False),
        (["2027-01-01"], False),
        ({"at": "2027-01-01"}, False),
        ("", False),
        ("2026", False),
    ],
)
def test_a_unit_is_not_seen_after_its_last_moment(valid_until: Any, passes: bool) -> None:
    """The whole day or the second named still counts; a value that is no text denies."""
    assert sees(view_of(NORA), **OPEN, valid_until=valid_until) is passes


@pytest.mark.parametrize(
    ("at", "passes"),
    [
        (dt.datetime(2026, 3, 14, 23, 59, 59, tzinfo=dt.UTC), False),
        (dt.datetime(2026, 3, 15, 0, 0, 0, tzinfo=dt.UTC), True),
        (dt.datetime(2026, 3, 15, 23, 59, 59, 999999, tzinfo=dt.UTC), True),
        (dt.datetime(2026, 3, 16, 0, 0, 0, tzinfo=dt.UTC), False),
        (dt.datetime(2026, 3, 16, 1, 0, 0, tzinfo=dt.timezone(dt.timedelta(hours=2))), True),
        (dt.datetime(2026, 3, 15, 1, 0, 0, tzinfo=dt.timezone(dt.timedelta(hours=2))), False),
    ],
)
def test_a_day_counts_from_its_first_second_to_its_last_in_utc(at: dt.datetime, passes: bool) -> None:
    """Whatever the time zone in which the time is told."""
    view = view_of(NORA, now=lambda: at)
    assert sees(view, **OPEN, valid_from="2026-03-15", valid_until="2026-03-15") is passes


def test_a_list_is_no_last_moment_whatever_it_holds() -> None:
    """A value of another type denies."""
    assert not sees(view_of(NORA), **OPEN, valid_until=["2026-03-15"])


@pytest.mark.parametrize("metadata", [{"valid_until": "never"}, {"valid_from": ""}])
def test_a_text_that_is_no_date_denies(metadata: dict[str, Any]) -> None:
    """A malformed moment shows the unit to nobody."""
    assert not sees(view_of(NORA), **OPEN, **metadata)


def test_validity_may_be_left_out_or_stand_elsewhere() -> None:
    """Each field may have another name or none."""
    assert sees(view_of(NORA, valid_from=None, valid_until=None), **OPEN, valid_from="2999-01-01", valid_until="1999")
    view = view_of(NORA, valid_until="expires")
    assert not sees(view, **OPEN, expires="2026-03-14")
    assert sees(view, **OPEN, valid_until="2026-03-14")


# Who asks


@pytest.mark.parametrize(
    "context", [NORA, Context(tenant="north", groups=("night",)), User(**NORA), Proxy(**NORA), SimpleNamespace(**NORA)]
)
def test_without_a_server_the_context_says_who_asks(context: Any) -> None:
    """A dict, a dataclass or any object, by key or attribute."""
    view = view_of(context)
    assert sees(view, **OPEN, groups=["night"])
    assert not sees(view, tenant="south")


@pytest.mark.parametrize("context", [None, {}, Context(), "north", 5, object(), []])
def test_a_context_that_says_nothing_sees_nothing(context: Any) -> None:
    """Nobody is everybody."""
    view = view_of(context)
    assert not any(sees(view, **metadata) for metadata in ({}, OPEN, {"tenant": None}))


@pytest.mark.parametrize("user", [User(**NORA), Proxy(**NORA), NORA, {"identity": "nora", **NORA}])
def test_on_a_server_the_authenticated_user_says_who_asks(user: Any) -> None:
    """By attribute or key, and whatever the context claims is nothing."""
    view = view_of({"tenant": "south", "groups": ["office"]}, where={"user": user})
    assert sees(view, **OPEN, groups=["night"])
    assert not sees(view, tenant="south")
    assert not sees(view, **OPEN, groups=["office"])


@pytest.mark.parametrize(
    "where",
    [{"user": None}, {"server": SimpleNamespace()}, {"server": SimpleNamespace(user=None, context=NORA)}, {"user": {}}],
)
def test_on_a_server_nobody_is_denied(where: dict[str, Any]) -> None:
    """A server without a user, or with one without a tenant, shows nothing, though the context has a tenant."""
    view = view_of(NORA, where=where)
    assert not any(sees(view, **metadata) for metadata in ({}, OPEN, NORA))


@pytest.mark.parametrize("where", [{"user": None}, {"server": SimpleNamespace()}])
def test_a_server_without_a_user_is_denied_without_tenants_too(where: dict[str, Any]) -> None:
    """Also where a collection has no tenants at all."""
    assert not sees(view_of(NORA, tenant=None, where=where))


def test_a_context_that_is_not_trusted_says_nothing() -> None:
    """With ``trust_context=False`` only a server's user is somebody; with or without tenants the context is nobody."""
    assert sees(view_of({}, trust_context=False, where={"user": User(**NORA)}), **OPEN)
    assert not sees(view_of(NORA, trust_context=False), **OPEN)
    assert not sees(view_of(NORA, trust_context=False, tenant=None))
    assert view_of(NORA, trust_context=False).view_id == view_of(None).view_id


def test_a_user_without_a_field_does_not_take_it_from_the_context() -> None:
    """A user's missing groups are none."""
    view = view_of(NORA, where={"user": User(tenant="north")})
    assert sees(view, **OPEN)
    assert not sees(view, **OPEN, groups=["night"])


def test_claims_say_where_tenant_and_groups_stand() -> None:
    """They turn the user or the context into a mapping with the usual names."""

    def claims(caller: Any) -> dict[str, Any]:
        return {"tenant": caller["org"]["id"], "groups": caller["org"]["roles"], "identity": caller["sub"]}

    caller = {"sub": "s-1", "org": {"id": "north", "roles": ["night"]}, "tenant": "south"}
    for view in (view_of(caller, claims=claims), view_of({}, claims=claims, where={"user": caller})):
        assert sees(view, **OPEN, groups=["night"])
        assert not sees(view, tenant="south")


@pytest.mark.parametrize("answer", [None, {}, "north", [], {"tenant": None}])
def test_claims_that_say_nothing_show_nothing(answer: Any) -> None:
    """No tenant claimed is none."""
    assert not sees(view_of(NORA, claims=lambda _: answer), **OPEN)


def test_claims_are_asked_of_nobody() -> None:
    """A caller who is not there has no claims to be read."""

    def claims(_: Any) -> dict[str, Any]:
        raise AssertionError

    assert not sees(view_of(None, claims=claims), **OPEN)


# What a view says of itself


def ids(*callers: Any, **options: Any) -> list[str]:
    """The ids of these callers' views."""
    return [view_of(caller, **options).view_id for caller in callers]


def test_equal_callers_have_one_view() -> None:
    """However their groups are ordered, whatever holds them, and at any time."""
    first, *others = ids(
        {"tenant": "north", "groups": ["night", "office"]},
        {"tenant": "north", "groups": ("office", "night")},
        Context(tenant="north", groups=("night", "office")),
        SimpleNamespace(tenant=["north"], groups={"office", "night"}),
    )
    assert set(others) == {first}
    assert ids(NORA) == ids(NORA, now=lambda: NOON + dt.timedelta(days=400))


def test_other_callers_have_other_views() -> None:
    """Another tenant, other groups, another identity or none: none of them shares a view with another."""
    callers = [
        {"tenant": "north"},
        {"tenant": "south"},
        {"tenant": 1},
        {"tenant": "1"},
        {"tenant": ["north", "south"]},
        {"tenant": "north", "groups": ["night"]},
        {"tenant": "north", "groups": ["night", "office"]},
        {"tenant": "north", "identity": "nora"},
        {"tenant": "north", "identity": "nils"},
        {"tenant": "south", "identity": "nora"},
        {"tenant": "north", "identity": "night"},
        None,
    ]
    found = ids(*callers)
    assert len(set(found)) == len(callers)


def test_a_known_person_keeps_a_view_while_groups_change() -> None:
    """The id says who it is, the version what they may see."""
    before = view_of({"identity": "nora", "tenant": "north", "groups": ["night"]})
    after = view_of({"identity": "nora", "tenant": "north", "groups": ["office"]})
    assert before.view_id == after.view_id
    assert before.version != after.version
    assert view_of(NORA).version == view_of(NORA, now=lambda: NOON + dt.timedelta(days=1)).version


def test_a_view_names_nobody() -> None:
    """Neither id nor version holds a name, a tenant or a group; both fit a stamp."""
    caller = {"identity": "nora.ostrom", "user_id": "u-4711", "tenant": "northwind", "groups": ["nightshift"]}
    view = view_of(caller)
    text = f"{view.view_id} {view.version}"
    assert [word for word in ("nora", "ostrom", "4711", "north", "night") if word in text] == []
    assert ViewStamp(view_id=view.view_id, version=view.version)
    denied = view_of(None)
    assert ViewStamp(view_id=denied.view_id, version=denied.version)


def test_long_and_odd_names_fit_too() -> None:
    """Whatever the tenant is called, the view's id stays short and one line."""
    view = view_of({"tenant": "n\n\ud800\x00" * 5_000, "groups": [f"g{number}" for number in range(1_000)]})
    assert len(view.view_id) < 60
    assert view.view_id.isprintable()


def test_every_field_of_the_rule_is_private() -> None:
    """Exactly the fields named are kept from everybody, and they are those that the filter reads."""
    assert set(view_of(NORA).private_fields) == {"tenant", "groups", "valid_from", "valid_until"}
    view = view_of({"org": "north"}, tenant="org", groups=None, valid_until="expires")
    assert set(view.private_fields) == {"org", "valid_from", "expires"} == fields_of(view.search_filter)


def test_the_resolver_is_pure_and_brings_no_function() -> None:
    """A view is a filter, so that nothing is called for it."""
    assert MetadataView.is_pure
    assert view_of(NORA).allowed is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tenant": ""}, "tenant: "),
        ({"tenant": "$and"}, "tenant: "),
        ({"groups": 5}, "groups: "),
        ({"valid_from": "$gt"}, "valid_from: "),
        ({"valid_until": ["x"]}, "valid_until: "),
        ({"tenant": None, "shared_tenant": "all"}, "shared_tenant: "),
    ],
)
def test_what_is_no_field_is_refused(options: dict[str, Any], message: str) -> None:
    """In one line that begins with the parameter's name."""
    with pytest.raises(ConfigurationError) as caught:
        MetadataView(**options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_time_goes_on_without_being_told() -> None:
    """By default it is the time now."""
    view = MetadataView()(asking(NORA))
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    assert sees(view, **OPEN, valid_from=(now - day).date(), valid_until=(now + day).date())
    assert not sees(view, **OPEN, valid_from=(now + day).date().isoformat())


# In a graph


UNITS = [
    Document(id="n1", page_content="The north battery.", metadata={"tenant": "north"}),
    Document(id="n2", page_content="The night battery.", metadata={"tenant": "north", "groups": ["night"]}),
    Document(id="n3", page_content="The old battery.", metadata={"tenant": "north", "valid_until": "2026-03-14"}),
    Document(id="s1", page_content="The south battery.", metadata={"tenant": "south"}),
    Document(id="x1", page_content="The stray battery.", metadata={"shelf": 1}),
]


class Unfiltered(ScriptedSearcher):
    """A searcher that takes no notice of filters."""

    def search(self, query: str, k: int, filter: Any = None) -> list[Candidate]:  # noqa: ARG002
        return super().search(query, k)


@pytest.mark.parametrize(
    ("context", "expected"),
    [(NORA, ["n1", "n2"]), ({"tenant": "north"}, ["n1"]), ({"tenant": "south"}, ["s1"]), ({}, []), (None, [])],
)
@pytest.mark.parametrize("searcher", [ScriptedSearcher, Unfiltered])
def test_each_caller_gets_their_units_through_a_graph(searcher: Any, context: Any, expected: list[str]) -> None:
    """Whether or not the searcher filters; no private field is handed over."""
    builder = create_bounded_retrieval(
        searcher(UNITS, "lexical"), eligibility=MetadataView(now=noon), context_schema=dict, policy="fixed_lexical"
    )
    packet = EvidencePacket.from_result(builder.compile().invoke({"query": "battery"}, context=context))
    assert [item.unit_id for item in packet.items] == expected
    assert [item.metadata for item in packet.items] == [{}] * len(expected)
    assert packet.stop_reason == "policy_complete"
