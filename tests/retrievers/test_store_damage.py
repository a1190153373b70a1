from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.errors import StoreCorruptError, StoreError, StoreVersionError
from bounded_retrieval.retrievers._bm25_files import LEXICAL_FILES
from bounded_retrieval.retrievers._neighbours import NEIGHBOUR_FILES
from bounded_retrieval.retrievers.store import build_index, open_index


class TinyEmbeddings(Embeddings):
    """Sixteen numbers from a text's hash."""

    embedding_id = "tiny"

    def embed_documents(self, texts):
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return [byte / 255 - 0.5 for byte in hashlib.sha256(text.encode()).digest()[:16]]


def documents(count, suffix=""):
    """Units of one word each, and a word they share."""
    return [Document(id=f"u{n:03}", page_content=f"pump word{n}{suffix}") for n in range(count)]


OLD, NEW = documents(80), documents(80, "new")[:50] + documents(120)[50:]

# Ends itself at the given step. A step is a file operation in the index directory, or a batch embedded.
WRITER = """
import os, signal, sys
root, last = sys.argv[1], int(sys.argv[2])
sys.path.insert(0, sys.argv[3])
import test_store_damage as tests
from bounded_retrieval.retrievers.store import build_index
steps = []
def step(name):
    steps.append(name)
    if len(steps) == last:
        os.kill(os.getpid(), signal.SIGKILL)
def audit(event, args):
    if event in ("open", "os.mkdir", "os.rename", "os.rmdir", "os.remove", "sqlite3.connect"):
        if root in str(args[0]):
            step(event)
class Embedding(tests.TinyEmbeddings):
    def embed_documents(self, texts):
        step("embed")
        return super().embed_documents(texts)
sys.addaudithook(audit)
build_index(tests.NEW, root, embedding=Embedding())
print(" ".join(steps))
"""


def run_writer(root, last, output=None):
    """Build ``NEW`` in another process that kills itself at step ``last`` (0: never); its exit code."""
    arguments = [sys.executable, "-c", WRITER, str(root), str(last), str(Path(__file__).parent)]
    return subprocess.run(arguments, stdout=output, timeout=60, check=False).returncode


def contents(root):
    """What each channel of the index holds."""
    with open_index(root, embedding=TinyEmbeddings()) as index:
        ids = index.units.ids()
        assert index.dense.fetch(ids) == index.lexical.fetch(ids)
        for unit_id in (ids[0], ids[-1]):
            text = index.lexical.fetch([unit_id])[unit_id].page_content
            assert index.dense.search(text, 1)[0].unit_id == unit_id
            assert index.lexical.search(text, 1)[0].unit_id == unit_id
        return list(index.lexical.fetch(ids).values())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """An index that no test opens, to be copied."""
    root = tmp_path_factory.mktemp("built") / "index"
    build_index(OLD, root, embedding=TinyEmbeddings())
    return root


@pytest.fixture
def root(built, tmp_path):
    """A copy of the index."""
    return shutil.copytree(built, tmp_path / "index")


def test_a_writer_killed_at_any_moment_leaves_a_whole_index(built, tmp_path):
    """SIGKILL at random steps and around the final renames: old units until the end, never a mixture, and a new build succeeds."""
    with (tmp_path / "steps").open("w") as output:
        assert run_writer(shutil.copytree(built, tmp_path / "counted"), 0, output) == 0
    steps = (tmp_path / "steps").read_text().split()
    published = len(steps) - steps[::-1].index("os.rename")
    before, after = random.Random(7).sample(range(2, published - 1), 5), (published, published + 1)
    roots = {last: shutil.copytree(built, tmp_path / f"killed{last}") for last in [*before, *after]}
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(run_writer, roots.values(), roots))
    assert codes == [-signal.SIGKILL] * len(roots)
    for last, root in roots.items():
        assert contents(root) == (OLD if last <= published else NEW), (last, steps[last - 1])
        build_index(NEW[:60], root, embedding=TinyEmbeddings())
        assert contents(root) == NEW[:60]
        assert len(list((root / "generations").iterdir())) == 2
        assert sorted(path.name for path in root.iterdir() if path.suffix != ".lock") == [
            "generations",
            "manifest.json",
        ]


def test_a_first_build_that_is_killed_may_be_repeated(tmp_path):
    """What a killed first build leaves is no obstacle to the next."""
    assert run_writer(tmp_path / "index", 40) == -signal.SIGKILL
    assert [path.name for path in (tmp_path / "index" / "generations").iterdir()] == ["000001.partial"]
    build_index(OLD, tmp_path / "index", embedding=TinyEmbeddings())
    assert contents(tmp_path / "index") == OLD


def damage(path, keep):
    """Truncate a file, or delete it."""
    if keep is None:
        path.unlink()
    else:
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * keep)])


@pytest.mark.parametrize(
    "name",
    [*(f"lexical/{name}" for name in (*LEXICAL_FILES, *NEIGHBOUR_FILES)), "lexical/marks.npy", "dense/vectors.npy"],
)
@pytest.mark.parametrize("keep", [None, 0, 0.5], ids=["deleted", "emptied", "halved"])
def test_a_damaged_file_is_named_and_a_new_build_repairs(root, name, keep):
    """A file missing or cut short gives an error that names it, or its folder; building again makes a whole index."""
    (path,) = root.glob(f"generations/000001/{name}")
    damage(path, keep)
    with pytest.raises(StoreCorruptError, match=path.name):
        open_index(root, embedding=TinyEmbeddings())
    report = build_index(OLD, root, embedding=TinyEmbeddings())
    assert report.embedded == 80
    assert contents(root) == OLD


def test_a_missing_generation_is_named(root):
    """A manifest that points at nothing is damage, not a missing index."""
    shutil.rmtree(root / "generations" / "000001")
    with pytest.raises(StoreCorruptError, match="000001: not a folder"):
        open_index(root, embedding=TinyEmbeddings())


@pytest.mark.parametrize("which", ["generations", "generations/000001"])
def test_a_symbolic_link_in_place_of_a_generation_is_refused(root, tmp_path, which):
    """The index neither reads nor writes through a link to somewhere else."""
    (root / which).rename(tmp_path / "elsewhere")
    (root / which).symlink_to(tmp_path / "elsewhere")
    before = sorted((tmp_path / "elsewhere").rglob("*"))
    with pytest.raises(StoreCorruptError, match="not a folder"):
        open_index(root, embedding=TinyEmbeddings())
    with suppress(StoreError):
        build_index(OLD, root, embedding=TinyEmbeddings())
    assert sorted((tmp_path / "elsewhere").rglob("*")) == before


@pytest.mark.parametrize(
    "change",
    [
        {"generation": "../../000001"},
        {"generation": "1"},
        {"generation": "000001\n"},
        {"generation": None},
        {"files": {"../manifest.json": 3}},
        {"files": {"lexical/../../../manifest.json": 3}},
        {"files": {"/etc/passwd": 3}},
        {"files": {"lexical/lexical.json": "3"}},
        {"units": "80"},
        {"units": 0},
        {"dimensions": 0},
        {"dense": None},
        {"dense": "hnsw"},
        {"dense": "chroma"},
        {"dense_rows": "0" * 64},
        {"format": 2},
        {"more": 1},
    ],
)
def test_a_manifest_with_other_values_is_refused(root, change):
    """Names that lead out of the directory, wrong types and unknown fields are damage."""
    held = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps({**held, **change}))
    with pytest.raises(StoreCorruptError, match=r"manifest\.json: damaged"):
        open_index(root, embedding=TinyEmbeddings())


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"format": 1}', "[" * 100_000, "\xff"])
def test_a_manifest_that_is_none_is_refused(root, text):
    """Text that is no JSON, or the JSON of something else, is damage for readers and for writers."""
    (root / "manifest.json").write_text(text, encoding="latin-1")
    for use in (open_index, lambda root, embedding: build_index(OLD, root, embedding=embedding)):
        with pytest.raises(StoreCorruptError, match=r"manifest\.json"):
            use(root, embedding=TinyEmbeddings())


def test_a_wrong_unit_count_is_found(root):
    """A manifest that counts other units than a channel holds is damage of that channel."""
    held = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps({**held, "units": 79}))
    with pytest.raises(StoreCorruptError, match="lexical: 80 units, expected 79"):
        open_index(root, embedding=TinyEmbeddings())


def test_another_format_is_told_apart_from_damage(root):
    """A format of another version is named, whatever else it holds."""
    held = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps({**held, "format": 5, "more": 1}))
    for use in (open_index, lambda root, embedding: build_index(OLD, root, embedding=embedding)):
        with pytest.raises(StoreVersionError, match="format 5; this version reads 4"):
            use(root, embedding=TinyEmbeddings())


def test_another_tokenizer_is_named_and_a_new_build_repairs(root):
    """An index with another tokenizer's terms does not open; building again keeps the vectors."""
    held = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps({**held, "tokenizer": "words-0"}))
    with pytest.raises(
        StoreVersionError, match=r"'words-0'; this version has 'unicode-1, english stems.*'; build the index again"
    ):
        open_index(root, embedding=TinyEmbeddings())
    assert build_index(OLD, root, embedding=TinyEmbeddings()).embedded == 0
    assert contents(root) == OLD


def test_a_database_whose_schema_is_no_text_is_named(tmp_path):
    """SQLite's own message would quote bytes that are no text; the error is one line about the file all the same."""
    build_index(OLD, tmp_path / "index", embedding=TinyEmbeddings())
    (path,) = tmp_path.rglob("units.sqlite")
    content = path.read_bytes()
    damaged = content.replace(b"tableunitsunits\x03CREATE TABLE units", b"tableu\xf4itsunits\x03CREATE TXBLE units")
    assert damaged != content
    path.write_bytes(damaged)
    with pytest.raises(StoreCorruptError, match=r"units\.sqlite: damaged \(its schema is no text\)"):
        open_index(tmp_path / "index", embedding=TinyEmbeddings())
