"""Turns an index of this version with a Chroma store into one of an older format, as earlier versions wrote it."""

from __future__ import annotations

import json
from pathlib import Path

from bounded_retrieval.retrievers._chroma_file import content_digest
from bounded_retrieval.retrievers._neighbours import NEIGHBOUR_FILES
from bounded_retrieval.retrievers._regular_files import digest_of
from bounded_retrieval.retrievers._store_files import file_sizes
from bounded_retrieval.retrievers._store_manifest import FORMAT_WITH_VECTORS


def make_older(root: Path, format: int) -> None:
    """Format 3 knew no neighbours; 2 held its vectors in a Chroma store and nowhere else; 1 had no digests besides."""
    manifest = json.loads((root / "manifest.json").read_text())
    folder = root / "generations" / manifest["generation"]
    for name in NEIGHBOUR_FILES:
        (folder / "lexical" / name).unlink()
    if format == FORMAT_WITH_VECTORS:
        held = {**manifest, "files": file_sizes(folder), "format": format}
        held["digests"] = {name: manifest["digests"][name] for name in held["files"]}
        (root / "manifest.json").write_text(json.dumps(held))
        return
    (folder / "dense" / "vectors.npy").unlink()
    (folder / "lexical" / "marks.npy").unlink()
    for path in (folder / "dense" / "chroma").iterdir():
        path.rename(folder / "dense" / path.name)
    (folder / "dense" / "chroma").rmdir()
    held = {name: value for name, value in manifest.items() if name not in ("dense", "dense_rows", "digests")}
    held["files"] = file_sizes(folder)
    if format > 1:
        held["digests"] = {name: digest_of(folder / name) for name in held["files"]}
        held["dense_rows"] = content_digest(folder / "dense")
    (root / "manifest.json").write_text(json.dumps({**held, "format": format}))
