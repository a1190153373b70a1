"""Clients of a load test: they ask one graph in several ways at once, while grants change and servers go down."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from scale import scaled
from soak_checks import Checker, Gauge, Output, Request
from soak_servers import Outages
from soak_world import TENANTS, Caller, Grants, question

from bounded_retrieval import BoundedRetriever, create_retrieval_tool
from bounded_retrieval.integrations.langchain import CONTEXT_KEY

Ask = Callable[[str, Caller, int], Output]
AskAsync = Callable[[str, Caller, int], Awaitable[Output]]


@dataclass(frozen=True)
class Crowd:
    """Some clients that ask in one way, one request after the other.

    Attributes:
        graph: name of the graph they ask.
        way: name of the way.
        ask: how; awaited or in a thread.
        clients: how many there are.
    """

    graph: str
    way: str
    ask: Ask | AskAsync
    clients: int
    is_async: bool


def embedded_crowds(graph: Any, clients: int) -> list[Crowd]:
    """So many clients of one compiled graph, spread over five ways to ask it; a seventh of them have threads."""
    share = clients // 14
    ways: list[tuple[str, Any, int, bool]] = [
        ("astream", _by_astream(graph), 3 * share, True),
        ("retriever.ainvoke", _by_retriever(graph), 3 * share, True),
        ("invoke", _by_invoke(graph), share, False),
        ("tool.invoke", _by_tool(graph), share, False),
        ("ainvoke", _by_ainvoke(graph), clients - 8 * share, True),
    ]
    return [Crowd("embedded", way, ask, number, is_async) for way, ask, number, is_async in ways]


def server_crowds(graph: Any, agraph: Any, clients: int) -> list[Crowd]:
    """So many clients of a checkpointed graph, half of them awaiting it. Each request is a thread of its own."""

    def ask(query: str, caller: Caller, number: int) -> Output:
        config: Any = {"configurable": {"thread_id": f"request-{number}"}}
        return Output(form="result", given=graph.invoke({"query": query}, config, context=caller, durability="sync"))

    async def aask(query: str, caller: Caller, number: int) -> Output:
        config: Any = {"configurable": {"thread_id": f"request-{number}"}}
        return Output(
            form="result", given=await agraph.ainvoke({"query": query}, config, context=caller, durability="sync")
        )

    half = clients // 2
    return [
        Crowd("server", "servers, invoke", ask, clients - half, is_async=False),
        Crowd("server", "servers, ainvoke", aask, half, is_async=True),
    ]


def _by_ainvoke(graph: Any) -> AskAsync:
    async def ask(query: str, caller: Caller, _: int) -> Output:
        return Output(form="result", given=await graph.ainvoke({"query": query}, context=caller))

    return ask


def _by_invoke(graph: Any) -> Ask:
    def ask(query: str, caller: Caller, _: int) -> Output:
        return Output(form="result", given=graph.invoke({"query": query}, context=caller))

    return ask


def _by_astream(graph: Any) -> AskAsync:
    async def ask(query: str, caller: Caller, _: int) -> Output:
        streamed, last = [], {}
        modes = ["custom", "updates", "values"]
        async for mode, chunk in graph.astream({"query": query}, context=caller, stream_mode=modes):
            streamed.append(chunk)
            last = chunk if mode == "values" else last
        keys = ("packet", "documents", "stop_reason", "trace")
        return Output(form="result", given={key: last[key] for key in keys}, streamed=tuple(streamed))

    return ask


def _by_retriever(graph: Any) -> AskAsync:
    retriever = BoundedRetriever.from_graph(graph)

    async def ask(query: str, caller: Caller, _: int) -> Output:
        found = await retriever.ainvoke(query, context=caller)
        return Output(form="documents", given=[document.model_dump() for document in found])

    return ask


def _by_tool(graph: Any) -> Ask:
    tool = create_retrieval_tool(graph)

    def ask(query: str, caller: Caller, number: int) -> Output:
        call = {"name": tool.name, "args": {"query": query}, "id": f"call-{number}", "type": "tool_call"}
        message = tool.invoke(call, {"configurable": {CONTEXT_KEY: caller}})
        return Output(form="tool", given=[message.content, message.artifact])

    return ask


class Soak:
    """Runs crowds of clients until every request was made once.

    Args:
        grants: the resolver of the graphs; changed all the time by a thread of its own.
        checker: receives what comes back.
        shares: for each graph its requests' numbers.
        variety: different queries of each tenant.
        change_every_s: pause between two changes of some tenant's grants.
        readings: how often what the process holds is read, at equal shares of the requests.
        outages: what a client waits out once an answer of its was touched by it.
        seed: of the order of changes.
    """

    def __init__(
        self,
        grants: Grants,
        checker: Checker,
        shares: dict[str, range],
        *,
        variety: int,
        change_every_s: float,
        readings: int = scaled(10, 20),
        outages: Sequence[Outages] = (),
        seed: int = 0,
    ) -> None:
        self._gauges: list[tuple[float, Gauge]] = []
        self._grants = grants
        self._checker = checker
        self._shares = shares
        self._queues: dict[str, _Queue] = {}
        self._total = sum(map(len, shares.values()))
        self._variety = variety
        self._change_every_s = change_every_s
        self._readings = readings
        self._outages = outages
        self._random = random.Random(seed)
        self._over = threading.Event()

    def begun(self, graph: str) -> float:
        """The share of a graph's requests that were begun."""
        queues = [queue for queue in self._queues.values() if queue.graph == graph]
        return sum(queue.taken for queue in queues) / len(self._shares[graph])

    def ends(self) -> tuple[list[Gauge], list[Gauge]]:
        """The readings after the first tenth of the requests, and those at the end."""
        early = [gauge for share, gauge in self._gauges if 0.1 <= share <= 0.25]
        return early, [gauge for share, gauge in self._gauges if share >= 0.85]

    async def run(self, crowds: Sequence[Crowd], *besides: Callable[[], None]) -> None:
        """Make all requests; ``besides`` run in threads meanwhile and must end by themselves."""
        self._queues = _divide(self._shares, crowds)
        synchronous = [crowd for crowd in crowds for _ in range(crowd.clients) if not crowd.is_async]
        awaited = [crowd for crowd in crowds for _ in range(crowd.clients) if crowd.is_async]
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(len(synchronous) + len(besides) + 2) as pool:
            watching = [loop.run_in_executor(pool, work) for work in (self._change_grants, self._watch)]
            try:
                await asyncio.gather(
                    *(loop.run_in_executor(pool, work) for work in besides),
                    *(loop.run_in_executor(pool, self._client, crowd) for crowd in synchronous),
                    *(self._aclient(crowd) for crowd in awaited),
                )
            finally:
                self._over.set()
                await asyncio.gather(*watching)

    def _client(self, crowd: Crowd) -> None:
        while (number := self._queues[crowd.way].take()) is not None:
            # A thread gets as much of the interpreter as a whole event loop, so it waits for the others.
            while self._is_ahead(crowd):
                time.sleep(0.01)
            request = self._request(number, crowd)
            try:
                output: Any = crowd.ask(request.query, request.caller, number)
            except Exception as error:  # noqa: BLE001 - whatever it is, the checker judges it
                self._checker.failed(request, error, time.monotonic())
            else:
                self._receive(request, output)
            for outages in self._touched(request):
                outages.wait_for_end()

    async def _aclient(self, crowd: Crowd) -> None:
        while (number := self._queues[crowd.way].take()) is not None:
            request = self._request(number, crowd)
            try:
                output: Any = await crowd.ask(request.query, request.caller, number)  # type: ignore[misc]
            except Exception as error:  # noqa: BLE001 - whatever it is, the checker judges it
                self._checker.failed(request, error, time.monotonic())
            else:
                self._receive(request, output)
            for outages in self._touched(request):
                await outages.await_end()

    def _is_ahead(self, crowd: Crowd) -> bool:
        mine = self._queues[crowd.way]
        return mine.progress > 0.02 + min(queue.progress for queue in self._queues.values() if queue.numbers)

    def _request(self, number: int, crowd: Crowd) -> Request:
        tenant, query = question(number, self._variety)
        return Request(
            number=number,
            graph=crowd.graph,
            way=crowd.way,
            tenant=tenant,
            query=query,
            caller=Caller(tenant),
            before=self._grants.version(tenant),
            started=time.monotonic(),
        )

    def _receive(self, request: Request, output: Output) -> None:
        now, version = time.monotonic(), self._grants.version(request.tenant)
        self._checker.answered(request, output, version, now)

    def _touched(self, request: Request) -> list[Outages]:
        if request.graph != "server":
            return []
        return [outages for outages in self._outages if outages.touched(request.started, time.monotonic())]

    def _change_grants(self) -> None:
        while not self._over.wait(self._change_every_s):
            self._grants.change(self._random.choice(TENANTS))

    def _watch(self) -> None:
        """Read the gauges at equal shares of the requests."""
        for part in range(1, self._readings + 1):
            while self._checker.done < part / self._readings * self._total and not self._over.wait(0.02):
                pass
            self._gauges.append((self._checker.done / self._total, Gauge.read()))


class _Queue:
    """Numbers of the requests that are to be made in one way; any thread may take the next."""

    def __init__(self, graph: str, numbers: range) -> None:
        self.graph = graph
        self.numbers = numbers
        self.taken = 0
        self._lock = threading.Lock()

    @property
    def progress(self) -> float:
        """The share of them that was taken."""
        return self.taken / len(self.numbers)

    def take(self) -> int | None:
        """The next number; none after the last."""
        with self._lock:
            if self.taken == len(self.numbers):
                return None
            self.taken += 1
            return self.numbers[self.taken - 1]


def _divide(shares: dict[str, range], crowds: Sequence[Crowd]) -> dict[str, _Queue]:
    """Each graph's numbers, divided among the ways to ask it by the number of clients."""
    queues = {}
    for graph, numbers in shares.items():
        own = [crowd for crowd in crowds if crowd.graph == graph]
        clients, before = sum(crowd.clients for crowd in own), 0
        for crowd in own:
            first, last = (len(numbers) * part // clients for part in (before, before + crowd.clients))
            queues[crowd.way] = _Queue(graph, numbers[first:last])
            before += crowd.clients
    return queues


def percentiles(seconds: Sequence[float]) -> str:
    """The latencies that are usually asked for, in milliseconds."""
    ordered = sorted(seconds)
    marks = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
    found = {name: ordered[min(len(ordered) - 1, int(mark * len(ordered)))] for name, mark in marks.items()}
    return ", ".join(f"{name} {value * 1000:,.0f} ms" for name, value in {**found, "max": ordered[-1]}.items())
