"""What the load tests hold against every answer: the answer that the same request gets when it is the only one."""

from __future__ import annotations

import gc
import statistics
import threading
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil
import psycopg
from scale import scaled
from soak_servers import Outages
from soak_world import STATES, Caller, allowed_units, digest, mentioned

from bounded_retrieval import EvidencePacket, RetrievalFailedError
from bounded_retrieval.integrations.wording import packet_for_model

Form = Literal["result", "documents", "tool"]
Key = tuple[str, str, str, tuple[int, ...]]
"""Which graph, tenant, query, and the state of the view at each call of the resolver (one if they are all the same)."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request as it was made.

    Attributes:
        graph, way: name of the graph that was asked, and how.
        before: version of the tenant's view when it was made.
        started: clock value then, in seconds.
    """

    number: int
    graph: str
    way: str
    tenant: str
    query: str
    caller: Caller
    before: int
    started: float


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a caller got, in one of the forms, and what was streamed on the way."""

    form: Form
    given: Any
    streamed: tuple[Any, ...] = ()


def of_result(result: Mapping[str, Any]) -> list[Any]:
    """A graph's output, with the versions of views in its trace told apart by state only."""
    trace = [_by_state(event) for event in result["trace"]["events"]]
    documents = [document.model_dump() for document in result["documents"]]
    return [result["packet"], documents, result["stop_reason"], trace]


def _by_state(event: Mapping[str, Any]) -> dict[str, Any]:
    view = event.get("view")
    return dict(event) if not view else {**event, "view": {**view, "version": int(view["version"]) % STATES}}


class Reference:
    """What each request gives when nothing else goes on; asked of a graph in one thread.

    Args:
        graphs: compiled graphs by name; their resolver must go by ``Caller.states``.
    """

    def __init__(self, graphs: Mapping[str, Any]) -> None:
        self._graphs = graphs
        self._known: dict[Key, dict[Form, str]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def knows(self, key: Key) -> bool:
        """Whether this was asked before."""
        return key in self._known

    def digests(self, key: Key) -> dict[Form, str]:
        """The digest of the answer in each form."""
        if key not in self._known:
            graph, tenant, query, states = key
            result = self._graphs[graph].invoke({"query": query}, context=Caller(tenant, states))
            packet = EvidencePacket.from_result(result)
            self._known[key] = {
                "result": digest(of_result(result)),
                "documents": digest([document.model_dump() for document in packet.to_documents()]),
                "tool": digest([packet_for_model(packet), packet.model_dump(mode="json")]),
            }
        return self._known[key]


@dataclass
class Verdict:
    """How many of the requests went wrong, in each way, with an example of each."""

    requests: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)

    def note(self, fault: str, example: object) -> None:
        """Count a fault."""
        self.counts[fault] += 1
        self.examples.setdefault(fault, repr(example)[:600])

    def __str__(self) -> str:
        found = ", ".join(f"{self.counts[name]:,} {name}" for name in ("wrong", "leaked", "lost", "unexpected"))
        return f"{self.requests:,} requests: {found}"


FAULTS = ("wrong", "leaked", "lost", "doubled", "unexpected", "outdated")
"""``wrong``: another answer than when alone. ``leaked``: a unit that its caller may not see. ``lost``, ``doubled``: no
answer, or two. ``unexpected``: an error that no outage explains. ``outdated``: a view that was not in force."""


class Checker:
    """Receives every answer and every error, from any thread.

    An answer under views that changed meanwhile is looked up at the end, in one thread again.

    Args:
        requests: how many there will be, numbered from 0.
        reference: the right answers.
        outages: of ``chroma`` and ``postgres``.
    """

    def __init__(self, requests: int, reference: Reference, outages: Mapping[str, Outages]) -> None:
        self.verdict = Verdict(requests)
        self.latencies: dict[str, array[float]] = {}
        self._reference = reference
        self._outages = outages
        self._ended = bytearray(requests)
        self._later: Counter[tuple[Key, Form, str, bool]] = Counter()
        self._sketches: dict[str, str] = {}
        self._lock = threading.Lock()

    @property
    def done(self) -> int:
        """How many requests have ended."""
        return len(self._ended) - self._ended.count(0)

    def answered(self, request: Request, output: Output, version: int, now: float) -> None:
        """Check an answer that came at the time ``now``, when the tenant's view had that version."""
        with self._lock:
            self._end(request, now)
            versions = request.caller.versions
            if not _in_force(request.before, versions, version) or not _stamped(output, versions):
                self.verdict.note("outdated", (request, version))
            if _leaks(request, output):
                self.verdict.note("leaked", (request, output))
            states = tuple(version % STATES for version in versions)
            key = (request.graph, request.tenant, request.query, states[:1] if len(set(states)) == 1 else states)
            given = digest(of_result(output.given) if output.form == "result" else output.given)
            is_down = self._is_down("chroma", request, now)
            if self._reference.knows(key) and self._reference.digests(key)[output.form] == given:
                self.verdict.counts["right"] += 1
            else:
                self._later[key, output.form, given, is_down] += 1
                self._sketches[given] = _sketch(output)

    def failed(self, request: Request, error: BaseException, now: float) -> None:
        """Check that an outage explains an error."""
        with self._lock:
            self._end(request, now)
            if _leaks(request, Output(form="result", given=str(error))):
                self.verdict.note("leaked", (request, error))
            explained = isinstance(error, psycopg.Error) and self._is_down("postgres", request, now)
            explained |= isinstance(error, RetrievalFailedError) and self._is_down("chroma", request, now)
            if explained:
                self.verdict.counts["failed in an outage"] += 1
            else:
                self.verdict.note("unexpected", (request, error))

    def finish(self) -> Verdict:
        """Look up what is left over, and count what is missing."""
        for (key, form, given, is_down), times in self._later.items():
            self.verdict.counts["under a changing view"] += times * (len(key[3]) > 1)
            if self._reference.digests(key)[form] == given:
                continue
            # While the server of a graph was down, its search may have failed; anything else is wrong.
            graph, *rest = key
            without: Key = (f"{graph} without dense", *rest)  # type: ignore[assignment]
            if is_down and graph == "server" and self._reference.digests(without)[form] == given:
                self.verdict.counts["without the dense channel in an outage"] += times
                continue
            self.verdict.note("wrong", (key, form, is_down, self._sketches[given]))
            self.verdict.counts["wrong"] += times - 1
        self.verdict.counts["lost"] += self._ended.count(0)
        return self.verdict

    def _end(self, request: Request, now: float) -> None:
        if self._ended[request.number]:
            self.verdict.note("doubled", request)
        self._ended[request.number] = 1
        self.latencies.setdefault(request.way, array("d")).append(now - request.started)

    def _is_down(self, server: str, request: Request, now: float) -> bool:
        outages = self._outages.get(server)
        return request.graph == "server" and outages is not None and outages.touched(request.started, now)


def _sketch(output: Output) -> str:
    """What an answer holds, in short."""
    units = sorted(mentioned(output.given))
    if output.form != "result":
        return repr(units)
    events = output.given["trace"]["events"]
    searches = [(event["channel"], event["outcome"]) for event in events if event["event"] == "search_attempted"]
    return repr((units, searches, output.given["stop_reason"], output.given["packet"]["notes"]))[:400]


def _in_force(before: int, versions: Sequence[int], after: int) -> bool:
    """Whether the versions that the run saw are ones that were in force while it ran, in that order."""
    seen = [before, *versions, after]
    return bool(versions) and seen == sorted(seen)


def _stamped(output: Output, versions: Sequence[int]) -> bool:
    """Whether the versions in the trace are those that the resolver gave, the last one at the recheck."""
    if output.form != "result":
        return True
    stamps = [int(event["view"]["version"]) for event in output.given["trace"]["events"] if event.get("view")]
    return set(stamps) <= set(versions) and stamps[-1] == versions[-1]


def _leaks(request: Request, output: Output) -> set[str]:
    """Units in an output that its caller might not see at the recheck, or in the stream at no time in the run."""
    states = [version % STATES for version in request.caller.versions]
    granted = [frozenset(), *(allowed_units(request.tenant, state) for state in states)]
    return (mentioned(output.given) - granted[-1]) | (mentioned(output.streamed) - frozenset().union(*granted))


@dataclass(frozen=True)
class Gauge:
    """What the process held at one time; memory in bytes."""

    memory: float
    objects: float
    threads: float
    files: float

    @classmethod
    def read(cls) -> Gauge:
        """As it is now, garbage collected."""
        gc.collect()
        # First: the list of a million objects takes 8 MB, which the process keeps and which is no growth of what it holds.
        objects = len(gc.get_objects())
        process = psutil.Process()
        return cls(process.memory_info().rss, objects, process.num_threads(), process.num_fds())


GROWTH: Mapping[str, tuple[float, float]] = {
    "memory": (0.05, scaled(32, 0) * 2**20),
    "objects": (0.05, scaled(20_000, 0)),
    "threads": (0.0, 16),
    "files": (0.0, 24),
}
"""By how much each may be higher at the end than after the first tenth: a share of it, and at least so much. The first
tenth of the short form is over before all is warm."""


def medians(early: Sequence[Gauge], late: Sequence[Gauge]) -> dict[str, tuple[float, float]]:
    """The medians of two series of readings."""
    return {
        name: (
            statistics.median(getattr(gauge, name) for gauge in early),
            statistics.median(getattr(gauge, name) for gauge in late),
        )
        for name in GROWTH
    }


def grown(early: Sequence[Gauge], late: Sequence[Gauge]) -> list[str]:
    """What grew beyond its bound between two series of readings, by their medians; one line each."""
    found = []
    for name, (first, last) in medians(early, late).items():
        share, least = GROWTH[name]
        if last - first > max(share * first, least):
            found.append(f"{name}: {first:,.0f} after the first tenth, {last:,.0f} at the end")
    return found
