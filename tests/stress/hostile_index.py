"""A small index, damages of every kind to the files of a copy of it, and what asking the copy then comes to."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.contracts.relationships import EntityName, Relationship
from bounded_retrieval.errors import BoundedRetrievalError
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.retrievers.store import Index, build_index, open_index, verify_index

WORDS = ("pump", "valve", "gate", "lamp", "filter", "hose", "belt", "fan")
QUERIES = ("pump of site 3", "valve beside the lamp", "site 17", "belt fan filter", "zebra")
FILTERS = ({"year": 2026}, {"tenant": "acme", "year": {"$lt": 2026}})
LONGEST_MESSAGE = 600

SIZES = {"few": 60, "graph": 60, "many": 1_100}
"""Units of the indexes; all but ``few`` have a Chroma store, which keeps vectors in files of its own only above a thousand."""


class HashEmbeddings(Embeddings):
    """Eight numbers from a text's hash."""

    embedding_id = "hash-8"

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [byte / 255 - 0.5 for byte in hashlib.sha256(text.encode()).digest()[:8]]


def corpus(units: int) -> list[Document]:
    """Units with a title and metadata of which a caller's view could be made."""
    return [
        Document(
            id=f"u{n:04}",
            page_content=f"The {WORDS[n % 8]} of site {n} hums beside the {WORDS[n % 7]}.",
            metadata={"title": f"Site {n}", "year": 2025 + n % 2, "tenant": ("acme", "brook")[n % 3 == 0]},
        )
        for n in range(units)
    ]


def links() -> RelationshipStore:
    """A few relationships and names."""
    made = [
        Relationship(subject=f"site:{n}", relation="kept by", object=f"team:{n % 2}", source_unit=f"u{n:04}")
        for n in range(6)
    ]
    return RelationshipStore(made, [EntityName(entity_id="team:1", name="Team One", source_unit="u0001")])


def build(root: Path, size: str) -> None:
    """Write one of the indexes."""
    dense = "exact" if size == "few" else "chroma"
    build_index(corpus(SIZES[size]), root, embedding=HashEmbeddings(), relationships=links(), dense=dense)


def answers(index: Index) -> list[Any]:
    """What an index answers to a fixed set of questions of every kind, as JSON knows it."""
    found: list[Any] = []
    for searcher in (index.lexical, index.dense):
        for query in QUERIES:
            rows = searcher.search(query, 4)
            found.append([[row.unit_id, row.score, row.unit.page_content, row.unit.metadata] for row in rows])
        found += [[row.unit_id for row in searcher.search("site pump", 4, each)] for each in FILTERS]
        found.append(searcher.score(QUERIES[0], ["u0003", "u0017", "u0042"]))
    found.append(index.lexical.weigh(QUERIES[1], ["valve", "lamp"]).model_dump(mode="json"))
    held = index.units.fetch(index.units.ids())
    found.append([[unit.id, unit.page_content, unit.metadata] for unit in held.values()])
    found.append([link.model_dump() for link in index.relationships.relationships_of("site:3", "kept by")])
    return found


Damage = Callable[[Path, random.Random], None]


def _rewritten(change: Callable[[bytearray, random.Random], Any]) -> Damage:
    def damage(path: Path, rng: random.Random) -> None:
        data = bytearray(path.read_bytes())
        changed = change(data, rng)
        path.write_bytes(data if changed is None else changed)

    return damage


def _flip(data: bytearray, rng: random.Random, bits: int = 1) -> None:
    for _ in range(bits if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    start = rng.randrange(max(1, len(data)))
    end = min(len(data), start + rng.randrange(1, 3_000))
    data[start:end] = rng.randbytes(end - start)


def _replaced(make: Callable[[Path], None]) -> Damage:
    def damage(path: Path, _: random.Random) -> None:
        path.unlink()
        make(path)

    return damage


def _device(path: Path) -> None:
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 5))  # /dev/zero, which never ends
    except PermissionError:
        path.symlink_to("/dev/zero")


def _sparse(path: Path, _: random.Random) -> None:
    os.truncate(path, 2**41)


ANYWHERE: dict[str, Damage] = {
    "cut short": _rewritten(lambda data, rng: data[: rng.randrange(max(1, len(data)))]),
    "one bit": _rewritten(_flip),
    "one bit, again": _rewritten(_flip),
    "eight bits": _rewritten(lambda data, rng: _flip(data, rng, 8)),
    "300 bits": _rewritten(lambda data, rng: _flip(data, rng, 300)),
    "a stretch of noise": _rewritten(_overwrite),
    "emptied": _rewritten(lambda data, rng: data[:0]),  # noqa: ARG005 - the form of a change
    "longer": _rewritten(lambda data, rng: data + rng.randbytes(rng.randrange(1, 9_000))),
    "two terabytes": _sparse,
    "gone": _replaced(lambda path: None),  # noqa: ARG005 - nothing takes its place
    "a folder": _replaced(Path.mkdir),
    "a link to a file elsewhere": _replaced(lambda path: path.symlink_to("/etc/passwd")),
    "a link to itself": _replaced(lambda path: path.symlink_to(path.name)),
    "a link to nothing": _replaced(lambda path: path.symlink_to("nowhere")),
    "a pipe": _replaced(os.mkfifo),
    "a device": _replaced(_device),
}

# What may happen to the files of an index that is open. Cutting a mapped file short ends the process by the operating
# system's rules for mapped files; docs/security.md says so.
WHILE_OPEN = {name: ANYWHERE[name] for name in ("one bit", "eight bits", "300 bits", "a stretch of noise")}


def copy_of(template: Path, root: Path) -> Path:
    """A copy to be damaged, in place of the last one."""
    if root.exists():
        shutil.rmtree(root)
    return Path(shutil.copytree(template, root))


def files_of(root: Path) -> list[Path]:
    """The files of an index in an order that does not depend on the random name of Chroma's folder; the lock says nothing."""
    files = [path for path in root.rglob("*") if path.is_file() and path.name != "index.lock"]
    return sorted(files, key=lambda path: (path.name, path))


def ask(root: Path, meanwhile: Callable[[], None] = lambda: None) -> dict[str, Any]:
    """Open and ask: the ``answers``, or the ``error`` and whether it came when ``opened`` or when ``asked``."""
    step = "opened"
    try:
        with open_index(root, embedding=HashEmbeddings()) as index:
            step = "asked"
            meanwhile()
            return {"answers": answers(index)}
    except BoundedRetrievalError as error:
        return {"error": str(error), "step": step}


def complaint(error: str, root: Path) -> str:
    """What is wrong with an error's message; nothing if it is one short line that names a file or the dense store."""
    if "\n" in error or not error.isprintable():
        return "not one printable line"
    if len(error) > LONGEST_MESSAGE:
        return f"{len(error)} characters"
    named = (str(root), "collection 'units'", "dense searcher", "dense store")
    return "" if any(name in error for name in named) else "names no file"


def verified(root: Path) -> str:
    """What verifying says: nothing if everything is as it was written."""
    try:
        verify_index(root)
    except BoundedRetrievalError as error:
        return str(error)
    return ""
