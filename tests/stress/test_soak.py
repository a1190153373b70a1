from __future__ import annotations

import asyncio
import mmap
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chromadb
import psycopg
import pytest
from chromadb.config import Settings
from langchain_chroma import Chroma
from langgraph.checkpoint.postgres import PostgresSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from scale import scaled
from soak_checks import FAULTS, Checker, Gauge, Output, Reference, Request, Verdict, grown, medians
from soak_clients import Crowd, Soak, embedded_crowds, percentiles, server_crowds
from soak_servers import POOLED, ChromaServer, PostgresServer, has_connection
from soak_world import (
    QUERIES,
    STATES,
    Caller,
    Grants,
    HashedWords,
    ScriptedGrants,
    documents,
    question,
)
from waiting import START_S

from bounded_retrieval import (
    BM25Searcher,
    ChromaSearcher,
    EligibilityView,
    Scorecard,
    ScoreFusion,
    create_bounded_retrieval,
)
from bounded_retrieval.retrievers.langchain import VectorStoreSearcher

CLIENTS = 64
SERVER_CLIENTS = 8
REQUESTS = scaled(600, 50_000)
SERVER_REQUESTS = scaled(48, 2_000)
VARIETY = scaled(2, len(QUERIES))
RESTARTS = scaled(1, 4)
PAUSE_S = 0.3
PATIENT: dict[str, Any] = {"eligibility_timeout_ms": 60_000, "context_schema": Caller}
"""A machine that is busy with other things must not deny anybody anything."""


@dataclass(frozen=True)
class Searchers:
    """Both channels over the same units, in this process."""

    lexical: BM25Searcher
    dense: ChromaSearcher

    def graph(self, grants: Grants, lexical: Any = None) -> Any:
        """A compiled graph with every part that calls a searcher: weights, scores, current texts."""
        return create_bounded_retrieval(
            lexical or self.lexical,
            self.dense,
            units=self.lexical,
            eligibility=grants,
            assessor=Scorecard(),
            fusion=ScoreFusion(),
            **PATIENT,
        ).compile()

    def builder(self, grants: Grants, dense: Any) -> Any:
        """A graph over this lexical channel and another dense one."""
        return create_bounded_retrieval(self.lexical, dense, units=self.lexical, eligibility=grants, **PATIENT)


class Unreachable(VectorStoreSearcher):
    """A vector store's searcher whose server is down."""

    def search(self, query: str, k: int, filter: Any = None) -> Any:  # noqa: ARG002
        raise ConnectionError


@pytest.fixture(scope="module")
def searchers() -> Iterator[Searchers]:
    """BM25 and embedded Chroma over all tenants' units."""
    lexical = BM25Searcher.from_documents(documents())
    dense = ChromaSearcher.from_documents(documents(), HashedWords())
    yield Searchers(lexical, dense)
    dense.close()


@contextmanager
def chroma_server(directory: Path) -> Iterator[tuple[ChromaServer, Chroma]]:
    """A Chroma server that holds the units, and LangChain's vector store over it."""
    server = ChromaServer(directory)
    server.start()
    try:
        with chromadb.HttpClient("127.0.0.1", server.port, settings=Settings(anonymized_telemetry=False)) as client:
            store = Chroma("units", HashedWords(), client=client, collection_metadata={"hnsw:space": "cosine"})
            store.add_documents(documents())
            yield server, store
            for part in (client, client._admin_client):
                part._server._session.close()  # which closing the client does not do
    finally:
        server.stop()


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A PostgreSQL server."""
    server = PostgresServer()
    try:
        server.start()
        yield server
        server.stop()
    finally:
        server.remove()


@asynccontextmanager
async def checkpointers(server: PostgresServer) -> AsyncIterator[tuple[Any, Any, Callable[[], bool]]]:
    """A checkpointer for ``invoke``, one for ``ainvoke``, and whether both have a connection."""
    loop = asyncio.get_running_loop()
    with ConnectionPool(server.url, **POOLED) as pool:
        async with AsyncConnectionPool(server.url, **POOLED) as apool:
            PostgresSaver(pool).setup()
            await apool.wait(START_S)

            async def try_other() -> None:
                async with apool.connection(timeout=1) as connection:
                    await connection.execute("SELECT 1")

            def are_reached() -> bool:
                with suppress(psycopg.Error):
                    asyncio.run_coroutine_threadsafe(try_other(), loop).result()
                    return has_connection(pool)
                return False

            yield PostgresSaver(pool), AsyncPostgresSaver(apool), are_reached


def faults_in(verdict: Verdict) -> list[str]:
    """What went wrong, one line each."""
    found = [fault for fault in FAULTS if verdict.counts[fault]]
    return [f"{fault}: {verdict.counts[fault]:,}; {verdict.examples.get(fault)}" for fault in found]


def prepared(reference: Reference, graphs: dict[str, range]) -> Reference:
    """The reference with the answers to every request of these graphs in every state of the view."""
    for graph, numbers in graphs.items():
        for tenant, query in {question(number, VARIETY) for number in numbers}:
            for state in range(STATES):
                reference.digests((graph, tenant, query, (state,)))
    return reference


SHARES = {"embedded": range(REQUESTS - SERVER_REQUESTS), "server": range(REQUESTS - SERVER_REQUESTS, REQUESTS)}


def answers_alone(searchers: Searchers, store: Chroma) -> Reference:
    """The answers to all requests when nothing else goes on, and to those of the servers when Chroma's is down."""
    scripted, started = ScriptedGrants(), time.monotonic()
    graphs = {
        "embedded": searchers.graph(scripted),
        "server": searchers.builder(scripted, store).compile(),
        "server without dense": searchers.builder(scripted, Unreachable(store, "dense")).compile(),
    }
    reference = prepared(Reference(graphs), SHARES)
    print(f"\n{len(reference):,} answers of single requests in {time.monotonic() - started:.0f} s")
    return reference


def restarting(
    soak: Soak, chroma: ChromaServer, postgres: PostgresServer, are_reached: Callable[[], bool]
) -> Callable[[], None]:
    """What restarts the two servers in turn at equal shares of the requests to them."""

    def restart_servers() -> None:
        for step in range(2 * RESTARTS):
            while soak.begun("server") < (step + 1) / (2 * RESTARTS + 1):
                time.sleep(0.01)
            if step % 2:
                postgres.restart(PAUSE_S, are_reached)
            else:
                chroma.restart(PAUSE_S)

    return restart_servers


def show(verdict: Verdict, checker: Checker, soak: Soak, took: float, changes: int) -> None:
    """Print the figures of a soak."""
    in_flight = sum(map(sum, checker.latencies.values())) / took
    print(f"{verdict}, in {took:.0f} s ({len(checker.latencies)} ways, {in_flight:.0f} in flight on average)")
    print(f"{changes:,} changes of grants, {2 * RESTARTS} restarts of servers: ", end="")
    print(", ".join(f"{count:,} {name}" for name, count in sorted(verdict.counts.items()) if name not in FAULTS))
    for way, seconds in checker.latencies.items():
        print(f"{way} ({len(seconds):,}): {percentiles(seconds)}")
    for name, (first, last) in medians(*soak.ends()).items():
        print(f"{name}: {first:,.0f} after the first tenth, {last:,.0f} at the end")


async def test_a_soak(searchers: Searchers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all requests of 64 clients at once, under changing grants and restarts, none is wrong, leaked or lost."""
    if not PostgresServer.is_installed():
        pytest.skip("PostgreSQL is not installed (pg_ctl not found)")
    monkeypatch.setenv("LANGGRAPH_STRICT_MSGPACK", "true")
    with chroma_server(tmp_path) as (chroma, store), postgres_server() as postgres:
        reference, grants = answers_alone(searchers, store), Grants()
        outages = {"chroma": chroma.outages, "postgres": postgres.outages}
        checker = Checker(REQUESTS, reference, outages)
        soak = Soak(grants, checker, SHARES, variety=VARIETY, change_every_s=0.05, outages=tuple(outages.values()))
        async with checkpointers(postgres) as (saver, asaver, are_reached):
            builder, started = searchers.builder(grants, store), time.monotonic()
            await soak.run(
                [
                    *embedded_crowds(searchers.graph(grants), CLIENTS - SERVER_CLIENTS),
                    *server_crowds(builder.compile(saver), builder.compile(asaver), SERVER_CLIENTS),
                ],
                restarting(soak, chroma, postgres, are_reached),
            )
            took = time.monotonic() - started
        verdict = checker.finish()
    show(verdict, checker, soak, took, grants.changes)
    assert faults_in(verdict) == []
    assert grown(*soak.ends()) == []
    assert verdict.counts["right"] + verdict.counts["under a changing view"] > 0.9 * REQUESTS
    assert min(verdict.counts["right"], verdict.counts["under a changing view"]) > 0.02 * REQUESTS
    assert all(any(outage.times) for outage in outages.values())


PLANTED_REQUESTS = scaled(50, 400)


@pytest.fixture(scope="module")
def alone(searchers: Searchers) -> Reference:
    """The answers to the requests of the small soaks when nothing else goes on."""
    return Reference({"embedded": searchers.graph(ScriptedGrants())})


async def soaked(
    searchers: Searchers,
    alone: Reference,
    grants: Grants,
    *,
    lexical: Any = None,
    crowds: Callable[[Any], list[Crowd]] = lambda graph: embedded_crowds(graph, 20),
    checker_type: type[Checker] = Checker,
) -> Verdict:
    """The verdict on a small soak of one graph that has a fault, held against one that has none."""
    checker = checker_type(PLANTED_REQUESTS, alone, {})
    shares = {"embedded": range(PLANTED_REQUESTS)}
    soak = Soak(grants, checker, shares, variety=2, change_every_s=0.004, readings=0)
    await soak.run(crowds(searchers.graph(grants, lexical)))
    return checker.finish()


async def test_a_soak_without_a_fault_passes(searchers: Searchers, alone: Reference) -> None:
    """A control: the small soak of the planted faults finds nothing where there is none, though views change in runs."""
    verdict = await soaked(searchers, alone, Grants())
    assert faults_in(verdict) == []
    assert verdict.counts["under a changing view"] > 0


class TenantBlind(Grants):
    """A view that forgets to ask whose units they are."""

    def view(self, tenant: str, version: int) -> EligibilityView:
        return EligibilityView(view_id=tenant, version=str(version), search_filter={})


class Belated(Grants):
    """A view that decides by the version before, as one behind a cache would."""

    def view(self, tenant: str, version: int) -> EligibilityView:
        return replace(super().view(tenant, max(0, version - 1)), version=str(version))


@pytest.mark.parametrize("grants", [TenantBlind, Belated])
async def test_a_faulty_view_is_found(searchers: Searchers, alone: Reference, grants: type[Grants]) -> None:
    """Units of others, and units that are revoked, are found in the outputs."""
    verdict = await soaked(searchers, alone, grants())
    assert verdict.counts["leaked"] > 0
    assert verdict.counts["lost"] == 0


class Frozen(Grants):
    """A resolver that gives the version of the process's start."""

    def __call__(self, runtime: Any) -> EligibilityView:
        runtime.context.states = (0,)
        return super().__call__(runtime)


async def test_an_outdated_view_is_found(searchers: Searchers, alone: Reference) -> None:
    """A version that was no longer in force when the request was made is found."""
    assert (await soaked(searchers, alone, Frozen())).counts["outdated"] > 0


class Absentminded(BM25Searcher):
    """A searcher that keeps the query of a call in itself, where the next caller's takes its place."""

    query = ""

    def search(self, query: str, k: int, filter: Any = None) -> Any:
        self.query = query
        time.sleep(0.002)
        return super().search(self.query, k, filter)


async def test_state_shared_between_requests_is_found(searchers: Searchers, alone: Reference) -> None:
    """Answers to another request's query are wrong."""
    lexical = Absentminded(searchers.lexical._index)
    assert (await soaked(searchers, alone, Grants(), lexical=lexical)).counts["wrong"] > 0


class Careless(Checker):
    """Stands for a server that drops the answer to one request in ten, and gives another one twice."""

    def answered(self, request: Request, output: Output, version: int, now: float) -> None:
        if request.number % 10 != 3:
            super().answered(request, output, version, now)
        if request.number % 10 == 4:
            super().answered(request, output, version, now)


async def test_a_lost_answer_and_a_second_one_are_found(searchers: Searchers, alone: Reference) -> None:
    """Each request is counted: none may end without a result or an error, or twice."""
    verdict = await soaked(searchers, alone, Grants(), checker_type=Careless)
    assert (verdict.counts["lost"], verdict.counts["doubled"]) == (PLANTED_REQUESTS // 10, PLANTED_REQUESTS // 10)


async def test_an_error_outside_an_outage_is_found(searchers: Searchers, alone: Reference) -> None:
    """An error of a checkpointer that was not restarted is a fault, and so is any other error at any time."""

    def crowds(_: Any) -> list[Crowd]:
        def ask(query: str, caller: Caller, number: int) -> Output:
            raise psycopg.OperationalError if number % 2 else ValueError(query, caller)

        return [Crowd("embedded", "failing", ask, 4, is_async=False)]

    assert (await soaked(searchers, alone, Grants(), crowds=crowds)).counts["unexpected"] == PLANTED_REQUESTS


def test_growth_is_found() -> None:
    """Memory, objects, threads and open files that are not given back are each reported; a process at rest is not."""
    before = [Gauge.read()]
    assert grown(before, [Gauge.read()]) == []
    # Pages of its own: what the process freed before could hold a leak of ordinary objects without growing.
    leak = b"x" * (64 * 2**20 + int(before[0].memory / 10))
    over, leaked = threading.Event(), []
    threads = [threading.Thread(target=over.wait) for _ in range(40)]
    with ExitStack() as files:
        files.enter_context(mmap.mmap(-1, len(leak))).write(leak)
        del leak
        for thread in threads:
            thread.start()
            leaked.append([{"leaked": []} for _ in range(10_000 + int(before[0].objects / 200))])
            files.enter_context(Path(__file__).open("rb"))
        found = grown(before, [Gauge.read()])
        over.set()
    for thread in threads:
        thread.join()
    assert [line.split(":")[0] for line in found] == ["memory", "objects", "threads", "files"]
