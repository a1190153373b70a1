from __future__ import annotations

import json

import pytest
from langchain_core.documents import Document
from pydantic import ValidationError

from bounded_retrieval.contracts.budget import Budget, Usage
from bounded_retrieval.contracts.packet import METADATA_KEY, SEPARATOR, EvidenceItem, EvidencePacket
from bounded_retrieval.contracts.stop import StopReason


def item(unit_id: str, text: str, **fields: object) -> EvidenceItem:
    """An evidence item with the given fields."""
    given = {
        "unit_id": unit_id,
        "fingerprint": f"of {text}",
        "title": "",
        "text": text,
        "metadata": {},
        "channels": {"lexical": {"rank": 1, "score": 2.5}},
        "fused_score": 1 / 61,
    }
    return EvidenceItem.model_validate(given | fields)


def packet(*items: EvidenceItem, **fields: object) -> EvidencePacket:
    """A packet of these items with the given fields."""
    given = {
        "query_id": "q-1",
        "items": items,
        "stop_reason": StopReason.PROXY_SUFFICIENT,
        "resolution": "provisional",
        "missing_terms": ("screwdriver",),
        "limits": Budget(),
        "usage": Usage(),
    }
    return EvidencePacket.model_validate(given | fields)


def test_text_joins_items_with_the_declared_separator() -> None:
    """The packet's text is the items' texts in order with one separator between each two."""
    assert packet(item("a", "one"), item("b", "two"), item("c", "three")).text == f"one{SEPARATOR}two{SEPARATOR}three"


def test_empty_packet_is_valid() -> None:
    """A packet without items has an empty text, no documents and survives a round trip."""
    empty = packet(stop_reason=StopReason.RETRIEVAL_FAILED, resolution="unresolved")
    assert empty.text == ""
    assert empty.to_documents() == []
    assert EvidencePacket.model_validate_json(empty.model_dump_json()) == empty


def test_documents_carry_text_title_metadata_and_facts() -> None:
    """Each document has the item's id, whole text and metadata, and packet facts under one key."""
    found = packet(item("a", "one", title="Battery", metadata={"device": "HX-200"}), item("b", "two"))
    first, second = found.to_documents()
    assert (first.id, first.page_content) == ("a", "one")
    assert first.metadata["title"] == "Battery"
    assert first.metadata["device"] == "HX-200"
    assert first.metadata[METADATA_KEY] == {
        "query_id": "q-1",
        "position": 1,
        "fingerprint": "of one",
        "channels": {"lexical": {"rank": 1, "score": 2.5}},
        "fused_score": 1 / 61,
        "contributions": {},
        "stop_reason": "proxy_sufficient",
        "resolution": "provisional",
        "missing_terms": ["screwdriver"],
        "notes": [],
    }
    assert second.metadata[METADATA_KEY]["position"] == 2
    assert "title" not in second.metadata


def test_documents_are_json_native() -> None:
    """What stands in a document's metadata can be written as JSON as it is."""
    (document,) = packet(item("a", "one")).to_documents()
    assert json.loads(json.dumps(document.metadata)) == document.metadata


def test_making_documents_does_not_change_the_packet() -> None:
    """A document's metadata can be edited without the packet noticing."""
    found = packet(item("a", "one", metadata={"device": "HX-200"}))
    before = found.model_dump_json()
    document = found.to_documents()[0]
    document.metadata.clear()
    assert found.model_dump_json() == before


def test_from_result_reads_a_graphs_output() -> None:
    """A packet is read from the dict that a graph returns, and a packet object is taken as it is."""
    found = packet(item("a", "one"))
    dumped = {"packet": found.model_dump(mode="json"), "documents": [Document(page_content="one")]}
    assert EvidencePacket.from_result(dumped) == found
    assert EvidencePacket.from_result({"packet": found}) is found


def test_from_result_without_a_packet_names_what_is_there() -> None:
    """An output without a packet gives an error that lists what it has instead."""
    with pytest.raises(KeyError, match=r"packet: not in the graph's output, which has \['documents', 'trace'\]"):
        EvidencePacket.from_result({"trace": {}, "documents": []})


def test_packets_refuse_unknown_fields_and_changes() -> None:
    """A packet has its declared fields only and is frozen."""
    with pytest.raises(ValidationError, match="confidence"):
        packet(confidence=1)
    with pytest.raises(ValidationError, match="frozen"):
        packet().notes = ("x",)


def test_resolution_has_two_values() -> None:
    """There is no third resolution, such as one that claims an answer."""
    with pytest.raises(ValidationError, match="resolution"):
        packet(resolution="answered")
