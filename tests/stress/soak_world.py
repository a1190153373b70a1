"""The world of the load tests: tenants with units of their own and shared ones, and grants that change all the time.

Every unit's text holds its id, so that a unit anywhere in an output is found by a search for ids. What a tenant's
callers may see goes round in `STATES` states; each change is a new version of the tenant's view.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval import EligibilityView

TENANTS = tuple(f"t{number:02}" for number in range(60))
SHARED = "s00"
STATES = 3
DEVICES = ("pump", "gateway", "sensor", "printer")
TASKS = ("clean the filter", "replace the battery", "reset the passcode")
QUERIES = tuple(
    f"{task} of the {device}{tail}"
    for (device, task), tail in zip(
        itertools.product(DEVICES, TASKS), itertools.cycle(["", " somehow tonight", " now"])
    )
)
"""Some pass the assessor's test after the lexical search; those with words that no unit has go on to the dense one."""

UNIT_ID = re.compile(r"[ts]\d\d-u\d\d")
DIMENSIONS = 48
"""As many as a SHA-384 has bytes."""


class HashedWords(Embeddings):
    """A cheap embedding, equal in every process: each word adds one fixed direction, and each text a little of its own.

    Without that, many units were equally near, and which of them a store returns would be its own affair.
    """

    embedding_id = "hashed-words-48"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        vector = [byte / 1000 for byte in hashlib.sha384(text.encode()).digest()]
        for word in re.findall(r"\w+", text.lower()):
            vector[_direction(word)] += 1.0
        return vector


@lru_cache(maxsize=4096)
def _direction(word: str) -> int:
    return int.from_bytes(hashlib.sha256(word.encode()).digest()[:4], "big") % DIMENSIONS


def documents(owners: Iterable[str] = (*TENANTS, SHARED)) -> list[Document]:
    """Twelve units for each owner."""
    found = []
    for owner in owners:
        for number, (device, task) in enumerate(itertools.product(DEVICES, TASKS)):
            unit_id = f"{owner}-u{number:02}"
            text = f"To {task} of the {device}, follow sheet {unit_id}. Allow {number + 3} minutes."
            found.append(Document(id=unit_id, page_content=text, metadata={"tenant": owner, "unit": unit_id}))
    return found


@lru_cache(maxsize=len(TENANTS) * STATES)
def allowed_units(tenant: str, state: int) -> frozenset[str]:
    """What a tenant's callers may see in a state: most of their own units and of the shared ones, others each time."""
    units = [f"{owner}-u{number:02}" for owner in (tenant, SHARED) for number in range(len(DEVICES) * len(TASKS))]
    return frozenset(unit for unit in units if _draw(f"{tenant}/{state}/{unit}") % 10 < 7)


def _draw(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


@dataclass
class Caller:
    """The runtime context of one request, which also notes the versions that its views had.

    Attributes:
        tenant: who asks.
        states: the states to give in turn, the last one for ever; none takes the grants that are in force.
        versions: of the view at each call of the resolver.
    """

    tenant: str
    states: Sequence[int] = ()
    versions: list[int] = field(default_factory=list)


class Grants:
    """The versions of all tenants' views; a resolver. Even tenants' views decide by ids, odd ones' by their filter."""

    def __init__(self) -> None:
        self._versions = dict.fromkeys(TENANTS, 0)
        self._lock = threading.Lock()
        self.changes = 0

    def version(self, tenant: str) -> int:
        """The version in force now."""
        return self._versions[tenant]

    def change(self, tenant: str) -> None:
        """Grant and revoke: the tenant's next version."""
        with self._lock:
            self._versions[tenant] += 1
            self.changes += 1

    def __call__(self, runtime: Any) -> EligibilityView:
        """The caller's view, in the version in force or in the state that the caller is to be given."""
        caller: Caller = runtime.context
        script = caller.states
        version = script[min(len(caller.versions), len(script) - 1)] if script else self.version(caller.tenant)
        caller.versions.append(version)
        return self.view(caller.tenant, version)

    def view(self, tenant: str, version: int) -> EligibilityView:
        """A tenant's view in a version."""
        granted = allowed_units(tenant, version % STATES)
        own: dict[str, Any] = {"tenant": {"$in": [tenant, SHARED]}}
        if int(tenant[1:]) % 2:
            rule = {"$and": [own, {"unit": {"$in": sorted(granted)}}]}
            return EligibilityView(view_id=tenant, version=str(version), search_filter=rule)
        return EligibilityView(
            view_id=tenant,
            version=str(version),
            allowed=lambda unit_ids: granted & set(unit_ids),
            search_filter=own,
            private_fields=("unit",),
        )


class ScriptedGrants(Grants):
    """The same for callers that bring their states along; called without a thread of its own, which takes less time."""

    is_pure = True


def question(number: int, variety: int) -> tuple[str, str]:
    """Who asks what in the request of this number; each tenant has so many different queries."""
    drawn = _draw(f"request {number}")
    return TENANTS[drawn % len(TENANTS)], QUERIES[drawn // len(TENANTS) % variety]


def mentioned(given: Any) -> set[str]:
    """The ids of units that stand anywhere in an output."""
    return set(UNIT_ID.findall(json.dumps(given, default=repr)))


def digest(given: Any) -> str:
    """A short text that is equal for equal outputs."""
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=repr).encode()).hexdigest()[:24]
