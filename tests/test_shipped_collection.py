from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bounded_retrieval.asking import Asker
from bounded_retrieval.contracts.stop import StopReason
from bounded_retrieval.demo import shipped_collection
from bounded_retrieval.retrievers.store import open_index


def _lines(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (shipped_collection() / name).read_text(encoding="utf-8").splitlines()]


def _judgements() -> dict[str, dict[str, int]]:
    judged: dict[str, dict[str, int]] = defaultdict(dict)
    for line in (shipped_collection() / "qrels" / "test.tsv").read_text(encoding="utf-8").splitlines()[1:]:
        query_id, unit_id, score = line.split("\t")
        judged[query_id][unit_id] = int(score)
    return judged


@pytest.fixture(scope="module")
def asker(shipped_index: Path) -> Iterator[Asker]:
    """The controller over the shipped collection."""
    with open_index(shipped_index) as index:
        yield Asker(index)


def _requests(kind: str) -> list[dict[str, Any]]:
    return [record for record in _lines("queries.jsonl") if record["metadata"]["kind"] == kind]


def test_the_collection_is_whole() -> None:
    """About 150 units and 60 requests, ids unique, every judgement names a unit that exists, no unit over 1,000 characters."""
    units, requests = _lines("corpus.jsonl"), _lines("queries.jsonl")
    ids = [unit["_id"] for unit in units]
    assert 140 <= len(units) == len(set(ids)) == len({unit["text"] for unit in units})
    assert 55 <= len(requests) == len({request["_id"] for request in requests})
    assert max(len(unit["text"]) for unit in units) <= 1000
    assert {unit_id for judged in _judgements().values() for unit_id in judged} <= set(ids)


def test_clear_lexical_hits_stop_after_one_call(asker: Asker) -> None:
    """A request in the inventory's own words stops after the lexical search, with a useful unit in the packet."""
    judged = _judgements()
    for request in _requests("lexical_hit"):
        packet = asker.ask(request["text"]).packet
        assert (packet.stop_reason, packet.usage.calls) == (StopReason.PROXY_SUFFICIENT, 1), request
        assert {item.unit_id for item in packet.items} & set(judged[request["_id"]]), request


def test_vocabulary_mismatch_is_rescued_by_the_dense_hop(asker: Asker) -> None:
    """Everyday words that only the dense search connects: the answer is in the packet, and not without that search."""
    judged = _judgements()
    for request in _requests("vocabulary_mismatch"):
        answers = {unit_id for unit_id, score in judged[request["_id"]].items() if score == 2}
        adaptive = asker.ask(request["text"]).packet
        assert adaptive.usage.dense_calls == 1, request
        assert answers & {item.unit_id for item in adaptive.items}, request
        lexical = asker.ask(request["text"], {"policy": "fixed_lexical", "budget": {"max_rows": 3}}).packet
        assert not answers & {item.unit_id for item in lexical.items}, request


def test_similar_identifiers_are_not_confused(asker: Asker) -> None:
    """With look-alike models about, the unit with the exact identifier comes first."""
    judged = _judgements()
    for request in _requests("similar_identifier"):
        packet = asker.ask(request["text"]).packet
        assert packet.items[0].unit_id in judged[request["_id"]], request


def test_premature_stops_happen_and_say_no_more_than_they_know(asker: Asker) -> None:
    """All words are there and the need is not met: the run stops, provisionally, without the unit that meets it."""
    judged = _judgements()
    for request in _requests("premature_stop"):
        packet = asker.ask(request["text"]).packet
        answers = {unit_id for unit_id, score in judged[request["_id"]].items() if score == 2}
        assert (packet.stop_reason, packet.resolution) == (StopReason.PROXY_SUFFICIENT, "provisional"), request
        assert not answers & {item.unit_id for item in packet.items}, request


def test_absent_procedures_end_unresolved_with_what_is_missing(asker: Asker) -> None:
    """A procedure that is not in the inventory ends unresolved after both calls, and names missing words."""
    for request in _requests("absent_procedure"):
        packet = asker.ask(request["text"]).packet
        assert (packet.resolution, packet.usage.calls) == ("unresolved", 2), request
        assert packet.missing_terms, request


def test_half_missing_needs_bring_the_half_that_exists(asker: Asker) -> None:
    """Of a two-part need the existing part is found, the run ends unresolved, and words of the other part are missing."""
    judged = _judgements()
    for request in _requests("half_missing"):
        packet = asker.ask(request["text"]).packet
        assert packet.resolution == "unresolved", request
        assert packet.missing_terms, request
        assert {item.unit_id for item in packet.items} & set(judged[request["_id"]]), request


def test_negative_notes_are_found(asker: Asker) -> None:
    """A note that something is not possible is evidence like any other."""
    judged = _judgements()
    found = [
        bool({item.unit_id for item in asker.ask(request["text"]).packet.items} & set(judged[request["_id"]]))
        for request in _requests("negative_note")
    ]
    assert all(found), found
