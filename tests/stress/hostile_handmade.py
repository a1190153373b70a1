"""Damages that somebody thought out, most of them with a manifest that was made to agree, and what each comes to."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bounded_retrieval.retrievers._store_manifest import INDEX_FORMAT

OPENED, ASKED, SAME, FOUND = "refused when opened", "refused when asked", "same answers", "found by verify"
DEEP = "[" * 200_000


@dataclass(frozen=True)
class Case:
    """A damage to the folder of an index, and the outcome that is right.

    Attributes:
        size: which of the templates.
    """

    damage: Callable[[Path], Any]
    expected: str = OPENED
    size: str = "few"


def generation(root: Path) -> Path:
    """The folder of the generation that counts."""
    return root / "generations" / "000001"


def restamp(root: Path) -> None:
    """Let the manifest agree with the files again, as somebody would who means harm."""
    path = root / "manifest.json"
    held = json.loads(path.read_text())
    for name in held["files"]:
        data = (generation(root) / name).read_bytes()
        held["files"][name], held["digests"][name] = len(data), hashlib.sha256(data).hexdigest()
    path.write_text(json.dumps(held))


def _manifest(size: str = "few", /, **changes: Any) -> Case:
    def damage(root: Path) -> None:
        held = json.loads((root / "manifest.json").read_text())
        held.update(changes)
        kept = {key: value for key, value in held.items() if value != "(left out)"}
        (root / "manifest.json").write_text(json.dumps(kept))

    return Case(damage, size=size)


def _manifest_text(change: Callable[[str], str | bytes]) -> Case:
    def damage(root: Path) -> None:
        text = change((root / "manifest.json").read_text())
        (root / "manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())

    return Case(damage)


def _file(name: str, change: Callable[[bytes], bytes], expected: str = OPENED) -> Case:
    def damage(root: Path) -> None:
        path = generation(root) / name
        path.write_bytes(change(path.read_bytes()))
        restamp(root)

    return Case(damage, expected)


def _array(name: str, change: Callable[[Any], Any], expected: str = OPENED, **options: Any) -> Case:
    def damage(root: Path) -> None:
        path = generation(root) / (name if "/" in name else f"lexical/{name}")
        np.save(path, change(np.load(path)), **options)
        restamp(root)

    return Case(damage, expected)


def _array_header(shape: str, name: str = "lexical/scores.npy") -> Case:
    """Another shape in the header of an array, everything else as it was."""

    def change(data: bytes) -> bytes:
        begin = data.index(b"(")
        return data[:begin] + shape.encode().ljust(data.index(b"\n") - begin) + data[data.index(b"\n") :]

    return _file(name, change)


def _units(statement: str, expected: str, *, stamped: bool = True) -> Case:
    def damage(root: Path) -> None:
        with closing(sqlite3.connect(generation(root) / "lexical" / "units.sqlite")) as connection, connection:
            connection.executescript(statement)
        if stamped:
            restamp(root)

    return Case(damage, expected)


def _chroma(statement: str, expected: str) -> Case:
    def damage(root: Path) -> None:
        path = generation(root) / "dense" / "chroma" / "chroma.sqlite3"
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.executescript(statement)

    return Case(damage, expected, "graph")


def _dense(make: Callable[[Path], Any], expected: str = ASKED, size: str = "graph") -> Case:
    """Something done in Chroma's folder; ``make`` gets it."""
    return Case(lambda root: make(generation(root) / "dense" / "chroma"), expected, size)


def _segment(dense: Path) -> Path:
    return next(path for path in dense.iterdir() if path.is_dir())


def _moved(name: str) -> Case:
    """A folder of the index that is only a link to where it was moved."""

    def damage(root: Path) -> None:
        target = root.parent / "elsewhere"
        if target.exists():
            shutil.rmtree(target)
        (root / name).rename(target)
        (root / name).symlink_to(target)

    return Case(damage)


def _spoilt_schema(dense: Path) -> None:
    # Chroma ends the process over a schema that is no UTF-8.
    path = dense / "chroma.sqlite3"
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE collections", b"CREATE \xceABLE collections"))


def _spoilt_vectors(dense: Path) -> None:
    path = _segment(dense) / "data_level0.bin"
    path.write_bytes(os.urandom(path.stat().st_size))


def _stale_vectors(dense: Path) -> None:
    # Chroma would read an index that its own file knows nothing of.
    (_segment(dense) / "index_metadata.pickle").write_bytes(b"\x80\x04N.")


def _two_words(change: Callable[[str, str], str]) -> Callable[[bytes], bytes]:
    def changed(data: bytes) -> bytes:
        terms = json.loads(data)
        return json.dumps([*terms[:-2], *change(terms[-2], terms[-1])]).encode()

    return changed


def _swapped_text(data: bytes) -> bytes:
    return data.replace(b"hums beside", b"hats beside")


def _value(place: int, value: float) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[place] = value
        return values

    return change


MANIFESTS: dict[str, Case] = {
    "no format": _manifest(format="(left out)"),
    "a format that is true": _manifest(format=True),
    "a format that is text": _manifest(format="2"),
    "a format of the future": _manifest(format=INDEX_FORMAT + 1),
    "a format below nought": _manifest(format=-(2**70)),
    "the format before digests": _manifest(format=1),
    "no digests": _manifest(digests={}),
    "the format without vectors": _manifest(format=2),
    "no digest of the dense rows": _manifest("graph", dense_rows=None),
    "a digest that is none": _manifest("graph", dense_rows="0" * 63),
    "no kind of dense search": _manifest(dense="(left out)"),
    "another kind of dense search": _manifest(dense="hnsw"),
    "a graph that is not there": _manifest(dense="chroma", dense_rows="0" * 64),
    "other dimensions": _manifest(dimensions=9),
    "another digest of nothing read": _manifest(digests={"lexical/units.sqlite": "0" * 64}),
    "another kind": _manifest(kind="index"),
    "no files": _manifest(files={}, digests={}),
    "a generation elsewhere": _manifest(generation="../../etc"),
    "an absolute generation": _manifest(generation="/etc"),
    "a generation that is not there": _manifest(generation="000009"),
    "a generation of many digits": _manifest(generation="1" * 5_000),
    "a file elsewhere": _manifest(files={"lexical/../../../manifest.json": 3}),
    "an absolute file": _manifest(files={"/etc/passwd": 3}),
    "a size below nought": _manifest(files={"relationships.jsonl": -1}),
    "two to the seventy units": _manifest(units=2**70),
    "units as text": _manifest(units="60"),
    "no units": _manifest(units=0),
    "another number of units": _manifest(units=61),
    "another k1": _manifest(k1=0.5),
    "another tokenizer": _manifest(tokenizer="words-0"),
    "another embedding": _manifest(embedding="hash-9"),
    "a field more": _manifest(owner="somebody"),
    "a list": _manifest_text(lambda text: f"[{text}]"),
    "nested deeply": _manifest_text(lambda text: DEEP),  # noqa: ARG005 - the form of a change
    "fields nested deeply": _manifest_text(lambda text: '{"a":' * 100_000),  # noqa: ARG005 - likewise
    "a number of ten thousand digits": _manifest_text(
        lambda text: text.replace('"units": 60', f'"units": {"9" * 10_000}')
    ),
    "a k1 that is no number": _manifest_text(lambda text: text.replace('"k1": 1.5', '"k1": NaN')),
    "an infinite k1": _manifest_text(lambda text: text.replace('"k1": 1.5', '"k1": 1e400')),
    "a field twice": _manifest_text(lambda text: text.replace('"k1": 1.5', '"k1": 1.5, "k1": 1.5')),
    "no UTF-8": _manifest_text(lambda text: text.encode().replace(b"hash-8", b"h\xff\xfe-8")),
    "UTF-16": _manifest_text(lambda text: text.encode("utf-16")),
    "a pipe": Case(lambda root: (root / "manifest.json").unlink() or os.mkfifo(root / "manifest.json")),
    "a folder": Case(lambda root: (root / "manifest.json").unlink() or (root / "manifest.json").mkdir()),
    "a manifest of megabytes": _manifest_text(lambda text: text + " " * 2_000_000),
}

LEXICAL: dict[str, Case] = {
    "a header of another version": _file(
        "lexical/lexical.json", lambda data: data.replace(b'"format":1', b'"format":2')
    ),
    "a header without a format": _file("lexical/lexical.json", lambda data: data.replace(b'"format":1,', b"")),
    "a header with NaN": _file("lexical/lexical.json", lambda data: data.replace(b"1.5", b"NaN")),
    "a header with a field twice": _file("lexical/lexical.json", lambda data: data.replace(b'"b"', b'"k1":1.5,"b"')),
    "a header of other units": _file(
        "lexical/lexical.json", lambda data: data.replace(b'"units":60', b'"units":6000000000')
    ),
    "a vocabulary nested deeply": _file("lexical/vocabulary.json", lambda data: DEEP.encode()),  # noqa: ARG005 - likewise
    "a vocabulary of numbers": _file("lexical/vocabulary.json", lambda data: b"[1,2,3]"),  # noqa: ARG005 - likewise
    "a term twice": _file("lexical/vocabulary.json", _two_words(lambda one, _: [one, one])),
    "a term less": _file("lexical/vocabulary.json", _two_words(lambda one, _: [one])),
    "an array of 2**60 rows": _array_header(f"({2**60},), }}"),
    "an array of 10**30 rows": _array_header(f"({10**30},), }}"),
    "an array of -1 rows": _array_header("(-1,), }"),
    "an array of two dimensions": _array_header("(2, 3), }"),
    "an array header that calls": _array_header("__import__('os').abort()}"),
    "an array header nested deeply": _array_header("(" * 60),
    "an array of objects": _array("scores.npy", lambda values: values.astype(object), allow_pickle=True),
    "an array of other numbers": _array("scores.npy", lambda values: values.astype(np.float32)),
    "an array shorter": _array("rows.npy", lambda values: values[:-1]),
    "spans that run backwards": _array("offsets.npy", _value(3, 2**62)),
    "spans that begin late": _array("indptr.npy", _value(0, 1)),
    "a row of no unit": _array("rows.npy", lambda values: values + 60, ASKED),
    "rows below nought": _array("rows.npy", lambda values: values - 60, ASKED),
    "rows in no order": _array("rows.npy", lambda values: values[::-1].copy(), ASKED),
    "scores that are no numbers": _array("scores.npy", lambda values: values * np.nan, ASKED),
    "scores without end": _array("scores.npy", lambda values: values + np.inf, ASKED),
    "scores too high": _array("scores.npy", lambda values: values * 1e300, ASKED),
    "scores below nought": _array("scores.npy", lambda values: -values, ASKED),
    "terms of no vocabulary": _array("token_ids.npy", lambda values: values + 2**30, SAME),
    "neighbours of no unit": _array("neighbours.npy", lambda values: values + 60, ASKED),
    "neighbours far below nought": _array("neighbours.npy", lambda values: values - 60, ASKED),
    "neighbours of too many units": _array("neighbours.npy", lambda values: values[:-1]),
    "neighbours in columns": _array("neighbours.npy", np.asfortranarray),
    "a likeness that is no number": _array("likeness.npy", lambda values: values * np.nan, ASKED),
    "a likeness above 1": _array("likeness.npy", lambda values: values + 1, ASKED),
    "a likeness below nought": _array("likeness.npy", lambda values: values - 2, ASKED),
    "marks that are none": _array("marks.npy", lambda values: values + 1, SAME),
    "relationships that are none": _file("relationships.jsonl", lambda data: data + b'{"subject": 1}\n'),
    "relationships nested deeply": _file("relationships.jsonl", lambda data: DEEP.encode()),  # noqa: ARG005 - likewise
    "a relationship of two megabytes": _file("relationships.jsonl", lambda data: b" " * 2_000_000 + data),
}

UNITS: dict[str, Case] = {
    "another text": _file("lexical/units.sqlite", _swapped_text, ASKED),
    "a title that is none": _units("UPDATE texts SET title = NULL", ASKED),
    "a title that is a number": _units("UPDATE texts SET title = x'00ff'", ASKED),
    "another title, not stamped": _units("UPDATE texts SET title = 'Site 0'", FOUND, stamped=False),
    "another tenant, not stamped": _units(
        "UPDATE texts SET metadata = replace(metadata, 'brook', 'acme ')", FOUND, stamped=False
    ),
    "metadata that is none": _units("UPDATE texts SET metadata = 'null'", ASKED),
    "metadata that is no JSON": _units("UPDATE texts SET metadata = '{'", ASKED),
    "metadata nested deeply": _units(f"UPDATE texts SET metadata = '{DEEP[:60_000]}'", ASKED),
    "a unit without a text": _units("UPDATE units SET place = 1000 WHERE row = 3", ASKED),
    "a row that nobody has": _units("UPDATE units SET row = 1000 WHERE row = 3", OPENED),
    "a row below nought": _units("UPDATE units SET row = -1 WHERE row = 3", ASKED),
    "rows exchanged": _units("UPDATE units SET row = row + 1000; UPDATE units SET row = 1059 - row", ASKED),
    "a text more": _units("INSERT INTO texts VALUES (1000, '', '', '', '')", SAME),
    "no units": _units("DELETE FROM units", OPENED),
    "no texts": _units("DELETE FROM texts", OPENED),
    "a unit less": _units("DELETE FROM units WHERE row = 59", OPENED),
    "a unit less in the middle": _units("DELETE FROM units WHERE row = 30", ASKED),
    "another schema": _units("ALTER TABLE texts RENAME TO words", OPENED),
    "a view in place of a table": _units(
        "ALTER TABLE texts RENAME TO words; CREATE VIEW texts AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i "
        "+ 1 FROM n LIMIT 60) SELECT i - 1 AS place, '' AS fingerprint, '' AS title, '{}' AS metadata, '' AS text FROM n",
        ASKED,
    ),
}

VECTORS: dict[str, Case] = {
    "no numbers": _array("dense/vectors.npy", lambda values: values * np.nan, ASKED),
    "numbers without end": _array("dense/vectors.npy", lambda values: values + np.inf, ASKED),
    "numbers too high": _array("dense/vectors.npy", lambda values: values * np.float32(1e30), ASKED),
    "vectors too long": _array("dense/vectors.npy", lambda values: values * np.float32(1.5), ASKED),
    "other numbers": _array("dense/vectors.npy", lambda values: values.astype(np.float64)),
    "objects": _array("dense/vectors.npy", lambda values: values.astype(object), allow_pickle=True),
    "a vector less": _array("dense/vectors.npy", lambda values: values[:-1]),
    "a dimension less": _array("dense/vectors.npy", lambda values: values[:, :-1].copy()),
    "one row of all": _array("dense/vectors.npy", lambda values: values.reshape(1, -1)),
    "in columns": _array("dense/vectors.npy", np.asfortranarray),
    "a shape of 2**59 rows": _array_header(f"({2**59}, 8), }}", "dense/vectors.npy"),
    "a shape of 10**30 rows": _array_header(f"({10**30}, 8), }}", "dense/vectors.npy"),
}

DENSE: dict[str, Case] = {
    "a schema that is no text": _dense(_spoilt_schema),
    "a pipe beside the store": _dense(lambda dense: os.mkfifo(dense / "chroma.sqlite3-journal"), OPENED),
    "a pipe among the vectors": _dense(
        lambda dense: (_segment(dense) / "data_level0.bin").unlink() or os.mkfifo(_segment(dense) / "data_level0.bin"),
        OPENED,
    ),
    "a link among the vectors": _dense(lambda dense: (_segment(dense) / "more.bin").symlink_to("/etc/passwd"), OPENED),
    "vectors of another index": _dense(_stale_vectors, OPENED),
    "vectors that nobody stored, spoilt": _dense(
        lambda dense: [path.write_bytes(os.urandom(5_000)) for path in _segment(dense).iterdir()], SAME
    ),
    "stored vectors gone": _dense(lambda dense: (_segment(dense) / "data_level0.bin").unlink(), OPENED, "many"),
    "stored vectors spoilt": _dense(_spoilt_vectors, size="many"),
    "no collection": _chroma("DELETE FROM collections", ASKED),
    "another collection": _chroma("UPDATE collections SET name = 'others'", ASKED),
    "another embedding recorded": _chroma("UPDATE collection_metadata SET str_value = 'hash-9'", ASKED),
    "no rows": _chroma("DELETE FROM embeddings", ASKED),
    "a queue that is none": _chroma("UPDATE embeddings_queue SET vector = x'00'", ASKED),
    "metadata that is no JSON": _chroma(
        "UPDATE embedding_metadata SET string_value = '{' WHERE key = '_bounded_retrieval_metadata'", ASKED
    ),
    "metadata nested deeply": _chroma(
        f"UPDATE embedding_metadata SET string_value = '{DEEP[:60_000]}' WHERE key = '_bounded_retrieval_metadata'",
        ASKED,
    ),
    # Under a filter that leaves few units the graph is not asked.
    "another year": _chroma("UPDATE embedding_metadata SET int_value = 7 WHERE key = 'year'", SAME),
    "units exchanged": _chroma(
        "UPDATE embeddings_queue SET id = printf('u%04d', 59 - CAST(substr(id, 2) AS INTEGER))", FOUND
    ),
    "tables gone": _chroma("DROP TABLE segments", ASKED),
    "nothing but a database": _dense(
        lambda dense: (dense / "chroma.sqlite3").write_bytes(
            (dense.parents[1] / "lexical" / "units.sqlite").read_bytes()
        )
    ),
}

FOLDERS: dict[str, Case] = {
    f"a link in place of {name}": _moved(name)
    for name in ("generations", "generations/000001", "generations/000001/lexical", "generations/000001/dense")
} | {
    "a file in place of the generations": Case(
        lambda root: shutil.rmtree(root / "generations") or (root / "generations").write_text("x")
    ),
    "no dense folder": Case(lambda root: shutil.rmtree(generation(root) / "dense")),
    "an empty generation": Case(lambda root: shutil.rmtree(generation(root)) or generation(root).mkdir()),
}

HANDMADE: dict[str, Case] = {
    f"{group}: {name}": case
    for group, cases in {
        "manifest": MANIFESTS,
        "lexical": LEXICAL,
        "units": UNITS,
        "vectors": VECTORS,
        "dense": DENSE,
        "folders": FOLDERS,
    }.items()
    for name, case in cases.items()
}
