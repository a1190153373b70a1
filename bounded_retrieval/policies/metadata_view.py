"""A ready resolver for the common case: tenants, groups and validity dates in the units' metadata."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from bounded_retrieval.contracts.eligibility import EligibilityView
from bounded_retrieval.contracts.filters import Filter
from bounded_retrieval.contracts.normalise import fingerprint
from bounded_retrieval.errors import ConfigurationError

NOTHING: Filter = {"$not": {}}
"""Passes no unit."""

_DENIED = EligibilityView(view_id="nobody", version="1", search_filter=NOTHING)


def utc_now() -> dt.datetime:
    """The time now, in UTC."""
    return dt.datetime.now(dt.UTC)


class MetadataView:
    """A resolver: gives each caller a view made of metadata fields, as `EligibilityView.search_filter`.

    A unit may be seen by a caller when all of these hold on its current metadata:

    - its ``tenant`` is the caller's (or ``shared_tenant``, where one is named);
    - it has no ``groups``, or one of the caller's groups is among them (a list, or one name);
    - ``valid_from`` is absent or not later than now, ``valid_until`` absent or not earlier. Both are ISO 8601 in UTC,
      as ``YYYY-MM-DD`` (the whole day counts, at both ends) or as ``YYYY-MM-DDTHH:MM:SS``, also with ``Z`` or
      ``+00:00``. Anything else denies.

    The caller's tenant and groups come from the authenticated user (``runtime.server_info.user``) whenever a server is
    present, and only without one from the runtime context; never from the request or the state. They are looked up
    under the same names as the units' fields, as keys or attributes. Without a user or a context, and without a
    tenant where tenants are in use, a caller sees nothing. Code on a server that starts the graph in a thread of an
    executor hides the server from it, and with it the user: an application that only ever runs on a server says
    ``trust_context=False``.

    Args:
        tenant: metadata field with the unit's tenant; None where the collection has no tenants.
        groups: metadata field with the groups that may see the unit; None where there are none.
        valid_from: metadata field with the unit's first moment; None where there is none.
        valid_until: metadata field with its last; None where there is none.
        shared_tenant: value of the tenant field that marks units for every tenant's callers.
        claims: turns the user or the context into a mapping with the keys ``tenant`` and ``groups`` (as named above),
            where they stand elsewhere.
        trust_context: whether the context may say who asks when there is no server.
        now: the time now, timezone-aware.
    """

    is_pure = True
    needs_current_metadata = True

    def __init__(  # noqa: PLR0913 - one keyword for each field's name
        self,
        *,
        tenant: str | None = "tenant",
        groups: str | None = "groups",
        valid_from: str | None = "valid_from",
        valid_until: str | None = "valid_until",
        shared_tenant: str | None = None,
        claims: Callable[[Any], Mapping[str, Any]] | None = None,
        trust_context: bool = True,
        now: Callable[[], dt.datetime] = utc_now,
    ) -> None:
        fields = {"tenant": tenant, "groups": groups, "valid_from": valid_from, "valid_until": valid_until}
        for name, field in fields.items():
            if field is not None and (not isinstance(field, str) or not field or field.startswith("$")):
                raise ConfigurationError(f"{name}: expected the name of a metadata field (got {field!r})")
        self._tenant, self._groups, self._valid_from, self._valid_until = fields.values()
        if shared_tenant is not None and tenant is None:
            raise ConfigurationError(f"shared_tenant: needs a tenant field (got {shared_tenant!r})")
        self._shared_tenant = shared_tenant
        self._claims = claims
        self._trust_context = trust_context
        self._now = now

    def __call__(self, runtime: Any) -> EligibilityView:
        """The caller's view."""
        caller = self._caller(runtime)
        if caller is None:
            return _DENIED
        claims = caller if self._claims is None else self._claims(caller)
        tenants, groups = self._claimed(claims, self._tenant), self._claimed(claims, self._groups)
        if self._tenant is not None and not tenants:
            return _DENIED
        membership = self._membership(tenants, groups)
        return EligibilityView(
            view_id=f"metadata:{_digest([tenants, _identity(claims) or groups])}",
            version=_digest(membership),
            search_filter={"$and": [*membership, *self._validity()] or [{}]},
            private_fields=frozenset(self._fields()),
        )

    def _caller(self, runtime: Any) -> Any:
        """Who asks: the authenticated user on a server (none without one), else the runtime context."""
        server = getattr(runtime, "server_info", None)
        if server is not None:
            return getattr(server, "user", None)
        return getattr(runtime, "context", None) if self._trust_context else None

    def _fields(self) -> list[str]:
        named = (self._tenant, self._groups, self._valid_from, self._valid_until)
        return [field for field in named if field is not None]

    def _claimed(self, claims: Any, field: str | None) -> list[Any]:
        value = None if field is None else _look_up(claims, field)
        values = [value] if isinstance(value, (str, int)) else value
        if not isinstance(values, (list, tuple, set, frozenset)):
            return []
        return sorted((item for item in values if isinstance(item, (str, int)) and item != ""), key=repr)

    def _membership(self, tenants: list[Any], groups: list[Any]) -> list[Filter]:
        rules: list[Filter] = []
        if self._tenant is not None:
            shared = [] if self._shared_tenant is None else [self._shared_tenant]
            rules.append({self._tenant: {"$in": [*tenants, *shared]}})
        if self._groups is not None:
            ungrouped: Filter = {self._groups: {"$exists": False}}
            rules.append({"$or": [ungrouped, {self._groups: {"$in": groups}}]})
        return rules

    def _validity(self) -> list[Filter]:
        now = self._now().astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S")
        rules: list[Filter] = []
        if self._valid_from is not None:
            begun: Filter = {self._valid_from: {"$date": True, "$lte": now}}
            rules.append({"$or": [{self._valid_from: {"$exists": False}}, begun]})
        if self._valid_until is not None:
            # A date without a time is earlier than any time of that day, and yet that whole day counts.
            today = {"$gte": now[:10], "$lte": now[:10]}
            lasting: list[Filter] = [{self._valid_until: {"$date": True, "$gte": now}}, {self._valid_until: today}]
            rules.append({"$or": [{self._valid_until: {"$exists": False}}, *lasting]})
        return rules


def _identity(claims: Any) -> str:
    named = (_look_up(claims, name) for name in ("identity", "user_id"))
    return next((found for found in named if isinstance(found, str)), "")


def _look_up(holder: Any, name: str) -> Any:
    if isinstance(holder, Mapping):
        return holder.get(name)
    found = getattr(holder, name, None)
    if found is None and hasattr(holder, "__getitem__"):
        with suppress(LookupError, TypeError, AttributeError):
            found = holder[name]
    return found


def _digest(rules: Sequence[Any]) -> str:
    # Who asks and what for should not be readable in states and traces.
    return fingerprint(json.dumps(rules, sort_keys=True))[:16]
