"""Fuzz targets for files that a user brings: documents, relationships, calibrations, collections.

Each writes the bytes to a file and reads it; see `fuzz_values` for what a target may let pass.
"""

from __future__ import annotations

import atexit
import os
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from fuzz_choices import Choices, edited, to_json
from fuzz_values import refusing

from bounded_retrieval.contracts.budget import Budget
from bounded_retrieval.contracts.calibration import Calibration, CandidateFigures, Slice
from bounded_retrieval.contracts.normalise import clean_metadata, clean_text
from bounded_retrieval.evaluation._labels import judged_ids, read_judgements, read_queries
from bounded_retrieval.evaluation._sgml import read_sgml_documents
from bounded_retrieval.evaluation.collections import load_collection
from bounded_retrieval.ingest import read_documents
from bounded_retrieval.retrievers.relationships import RelationshipStore

CHUNK_CHARS = 200

SMALL = 10_000
"""Files below so many bytes are read twice."""

FOLDER = "BOUNDED_RETRIEVAL_FUZZ_FOLDER"
"""Environment variable that names a folder for the files; a fuzzer ends without tidying up."""


def jsonl(data: bytes) -> None:
    """JSON Lines."""
    _read(_file("units.jsonl", data))


def markdown(data: bytes) -> None:
    """Markdown."""
    _read(_file("page.md", data))


def text(data: bytes) -> None:
    """Plain text: the units' words stand in the file in their order; what repeats is there once."""
    units = _read(_file("page.txt", data))
    whole, position = "".join(clean_text(data.decode("utf-8")).split()) if units else "", 0
    for unit in units:
        words = "".join(unit.page_content.split())
        place = whole.find(words, position)
        assert place >= position
        position = place + len(words)


def html(data: bytes) -> None:
    """HTML."""
    _read(_file("page.html", data))


def pdf(data: bytes) -> None:
    """PDF."""
    _read(_file("page.pdf", data))


def relationships(data: bytes) -> None:
    """Declared relationships: a store that was read is written and read back as the same, and finds what it holds."""
    path = _file("relationships.jsonl", data)
    with refusing():
        store = RelationshipStore.from_jsonl(path)
        copy = path.with_name("copy.jsonl")
        store.to_jsonl(copy)
        again = RelationshipStore.from_jsonl(copy)
        assert list(again.relationships()) == list(store.relationships())
        assert list(again.names()) == list(store.names())
        for link in store.relationships():
            assert link in store.relationships_of(link.subject, link.relation.upper().lower())
            assert link.subject in {name.entity_id for name in store.entities_named(link.subject)}
        for name in store.names():
            assert name in store.entities_named(name.name)


def calibration(data: bytes) -> None:
    """A calibration that was read writes the same bytes whenever it is read again."""
    if data[:1] != b"{":
        choices = Choices(data)
        data = to_json(edited(_calibration(), choices))
    path = _file("calibration.json", data)
    with refusing():
        found = Calibration.from_file(path).to_json()
        path.write_text(found, encoding="utf-8")
        assert Calibration.from_file(path).to_json() == found


def queries(data: bytes) -> None:
    """Queries of a collection, in any of their forms; each has an id of its own and a text."""
    path = _file("queries", data)
    with refusing():
        found = read_queries(path)
        assert found == read_queries(path)
        assert len({query.query_id for query in found}) == len(found) > 0
        assert all(query.text == query.text.strip() != "" for query in found)


def judgements(data: bytes) -> None:
    """Judgements of a collection, in any of their forms."""
    path = _file("qrels", data)
    with refusing():
        found = read_judgements(path)
        assert found == read_judgements(path)
        assert all(grades for grades in found.values())
        assert set(found) == judged_ids(path)


def sgml(data: bytes) -> None:
    """Documents of TREC: every unit has an id and a text."""
    path = _file("documents", data)
    with refusing():
        for line, unit in read_sgml_documents(path, "documents"):
            assert line >= 1
            assert unit.id
            assert unit.id.strip()
            assert unit.page_content.strip()
            assert clean_text(unit.page_content) == unit.page_content


def csv(data: bytes) -> None:
    """A table of queries with commas."""
    _load_table(_file("queries.csv", data))


def tsv(data: bytes) -> None:
    """A table of queries with tabs."""
    _load_table(_file("queries.tsv", data))


def beir(data: bytes) -> None:
    """A BEIR folder whose three files are parts of the bytes."""
    folder = _folder() / "beir"
    (folder / "qrels").mkdir(parents=True, exist_ok=True)
    parts = [*data.split(b"\x1e"), b"", b"", b""]
    for name, part in zip(("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"), parts, strict=False):
        (folder / name).write_bytes(part)
    with refusing():
        collection = load_collection(folder)
        assert collection.judged()
        assert len(collection.fingerprint) == len(load_collection(folder).fingerprint)
        collection.survey({document.id for document in collection.documents()})


@cache
def _folder() -> Path:
    """One folder for the process: the one that `FOLDER` names, else one that is removed when the process ends."""
    if given := os.environ.get(FOLDER):
        return Path(given)
    folder = tempfile.TemporaryDirectory(prefix="fuzz-")
    atexit.register(folder.cleanup)
    return Path(folder.name)


def _file(name: str, data: bytes) -> Path:
    path = _folder() / name
    path.write_bytes(data)
    return path


def _read(path: Path) -> list[Any]:
    """The units of a file: the same at a second reading, with ids of their own, cleaned, and none of them blank."""
    with refusing():
        units = list(read_documents([path], chunk_chars=CHUNK_CHARS))
        if path.stat().st_size < SMALL:
            assert units == list(read_documents([path], chunk_chars=CHUNK_CHARS))
        assert units
        assert len({unit.id for unit in units}) == len(units)
        for unit in units:
            assert unit.page_content.strip()
            assert clean_text(unit.page_content) == unit.page_content
            assert clean_metadata(unit.metadata) == (unit.metadata, False)
            assert len(unit.page_content) <= CHUNK_CHARS or path.suffix == ".jsonl"
        return units
    return []


def _load_table(path: Path) -> None:
    with refusing():
        collection = load_collection(path)
        assert collection.judged()
        assert collection.fingerprint == load_collection(path).fingerprint


@cache
def _calibration() -> dict[str, Any]:
    return Calibration(
        assessor="term_coverage",
        assessor_settings={"tokenizer": "unicode-1"},
        threshold=0.45,
        fusion="rrf",
        first_hop_rows=2,
        limits=Budget(max_rows=5),
        tokenizer="words",
        embedding="vectors",
        measure="ndcg@4",
        against="always_continue",
        epsilon=0.02,
        confidence=0.95,
        collection={"name": "manuals"},
        slices={name: Slice(queries=10, fingerprint="s") for name in ("selection", "certification")},
        fractions={"selection": 0.5, "certification": 0.5},
        seed=3,
        candidates=(
            CandidateFigures(
                threshold=0.45,
                selection_loss=-0.1,
                selection_dense_share=0.5,
                certification_loss=0.0,
                certification_dense_share=0.5,
                upper_bound=0.02,
                verdict="certified",
            ),
        ),
        figures={"fixed_dense": {"selection": 0.5}},
        unit_lengths={"units": 3},
        versions={"python": "3.11"},
    ).model_dump(mode="json")
