"""What a build takes over, adds to and resumes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval import BM25Searcher, ExactSearcher, RelationshipStore
from bounded_retrieval.cli import main
from bounded_retrieval.contracts.normalise import part_id
from bounded_retrieval.contracts.relationships import Relationship
from bounded_retrieval.errors import EmbeddingMismatchError, SourceError, StoreCorruptError
from bounded_retrieval.retrievers import _bm25_corpus, _bm25_postings, _token_spool, _vector_cache
from bounded_retrieval.retrievers._bm25_files import ARRAYS, VOCABULARY
from bounded_retrieval.retrievers._neighbours import NEIGHBOUR_FILES
from bounded_retrieval.retrievers._vector_cache import VectorCache
from bounded_retrieval.retrievers.store import build_index, open_index, verify_index

WORDS = ("pump", "valve", "gate", "lamp", "filter", "hose", "belt", "fan", "zebra", "motor")


class Sixteen(Embeddings):
    """Sixteen numbers from a text's hash; counts the documents, and fails or ends the process at one of them."""

    embedding_id = "sixteen"

    def __init__(self, fail_at: int = 0, *, kill: bool = False) -> None:
        self.embedded: list[str] = []
        self._fail_at, self._kill = fail_at, kill

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        for text in texts:
            self.embedded.append(text)
            if len(self.embedded) == self._fail_at:
                if self._kill:
                    os.kill(os.getpid(), signal.SIGKILL)
                raise ConnectionError("the model is away")
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [byte / 255 - 0.5 for byte in hashlib.sha256(text.encode()).digest()[:16]]


def unit(n: int, text: str = "", **metadata: object) -> Document:
    """A unit with words of its own and some that others hold."""
    held = f"The {WORDS[n % 7]} of site {n} hums beside the {WORDS[n % 10]}."
    return Document(id=f"u{n * 7 % 1000:03}", page_content=text or held, metadata={"title": f"Site {n}", **metadata})


def files(root: Path) -> dict[str, bytes]:
    """What the index holds of words and vectors, the order of terms aside."""
    folder = root / "generations" / json.loads((root / "manifest.json").read_text())["generation"]
    names = [f"lexical/{name}" for name in (*ARRAYS, *NEIGHBOUR_FILES, "marks.npy", VOCABULARY)] + ["dense/vectors.npy"]
    return {name: (folder / name).read_bytes() for name in names}


def answers(root: Path) -> list[object]:
    """Everything that both channels say to some queries."""
    with open_index(root, embedding=Sixteen()) as index:
        found = [
            searcher.search(query, 9, passing)
            for searcher in (index.lexical, index.dense)
            for query in ("pump of site 3", "zebra lamp", "new valve", "hums")
            for passing in (None, {"year": 2026})
        ]
        return [
            found,
            index.units.ids(),
            index.units.fetch(index.units.ids()),
            sorted(index.lexical._index.corpus.vocabulary),
        ]


def edited() -> list[Document]:
    """Of 200 units some are gone, some have another text, title or metadata, and some are added."""
    units = [unit(n) for n in range(10, 220)]
    units[3] = unit(13, "A new valve.")
    units[4] = unit(14, title="Another title")
    units[5] = unit(15, year=2026)
    return units


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An index of 200 units."""
    build_index([unit(n) for n in range(200)], tmp_path / "index", embedding=Sixteen())
    return tmp_path / "index"


def test_a_build_over_another_is_the_build_from_nothing(root: Path, tmp_path: Path) -> None:
    """Whatever is taken over: the answers, the scores and the vocabulary are those of an index built anew."""
    build_index(edited(), root, embedding=Sixteen())
    build_index(edited(), tmp_path / "anew", embedding=Sixteen())
    assert answers(root) == answers(tmp_path / "anew")
    verify_index(root)


def test_units_that_did_not_change_are_not_tokenised_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a new title or text is tokenised and embedded."""
    tokenised: list[str] = []
    terms_of = _token_spool.terms_of
    monkeypatch.setattr(_token_spool, "terms_of", lambda unit: tokenised.append(unit.unit_id) or terms_of(unit))
    embedding = Sixteen()
    report = build_index(edited(), root, embedding=embedding)
    expected = sorted(document.id for document in [*(unit(n) for n in range(200, 220)), unit(13), unit(14)])
    assert sorted(tokenised) == expected
    assert len(embedding.embedded) == report.embedded == 22
    assert (report.added, report.changed, report.removed, report.unchanged) == (20, 3, 10, 187)


def test_parts_of_any_size_give_the_same_files(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, terms and vectors moved a few at a time make the very same files."""
    build_index(edited(), root, embedding=Sixteen())
    expected = files(root)
    monkeypatch.setattr(_bm25_corpus, "_PART_TOKENS", 50)
    monkeypatch.setattr(_token_spool, "_HELD", 70)
    monkeypatch.setattr("bounded_retrieval.retrievers._store_build._PART", 7)
    parts = _bm25_postings.posting_parts
    monkeypatch.setattr(
        "bounded_retrieval.retrievers._bm25_files.posting_parts",
        lambda *given, **named: parts(*given, **named, part_tokens=90),
    )
    build_index([unit(n) for n in range(200)], tmp_path / "other", embedding=Sixteen())
    build_index(edited(), tmp_path / "other", embedding=Sixteen())
    assert files(tmp_path / "other") == expected


def test_the_files_hold_what_a_searcher_in_memory_computes(root: Path) -> None:
    """Scores of the index are those of `BM25Searcher.from_documents` and `ExactSearcher.from_documents`."""
    lexical, dense = BM25Searcher.from_documents(edited()), ExactSearcher.from_documents(edited(), Sixteen())
    lexical.use_neighbours(dense)
    build_index(edited(), root, embedding=Sixteen())
    with open_index(root, embedding=Sixteen()) as index:
        for query in ("pump of site 33", "zebra", "belt fan"):
            assert index.lexical.search(query, 50) == lexical.search(query, 50)
            assert index.dense.search(query, 50) == dense.search(query, 50)


def test_adding_keeps_what_is_not_given(root: Path, tmp_path: Path) -> None:
    """The index then holds the old units and the new ones, which take the place of old ones of their ids."""
    embedding = Sixteen()
    more = [unit(5, "A new valve."), unit(6, year=2026), unit(7), *(unit(n) for n in range(200, 230))]
    report = build_index(more, root, embedding=embedding, keep=True)
    assert (report.units, report.added, report.changed, report.removed, report.unchanged) == (230, 30, 2, 0, 198)
    assert len(embedding.embedded) == report.embedded == 31
    given = {document.id: document for document in [*(unit(n) for n in range(200)), *more]}
    build_index(given.values(), tmp_path / "anew", embedding=Sixteen())
    assert answers(root) == answers(tmp_path / "anew")
    verify_index(root)


def test_adding_to_an_index_of_another_tokenizer_tokenises_the_old_units_again(root: Path, tmp_path: Path) -> None:
    """Their vectors are kept, and the answers are those of an index built anew."""
    held = json.loads((root / "manifest.json").read_text())
    (root / "manifest.json").write_text(json.dumps({**held, "tokenizer": "words-0"}))
    report = build_index([unit(5, "A new valve."), unit(300)], root, embedding=Sixteen(), keep=True)
    assert (report.units, report.added, report.changed, report.unchanged, report.embedded) == (201, 1, 1, 199, 2)
    given = {document.id: document for document in [*(unit(n) for n in range(200)), unit(5, "A new valve."), unit(300)]}
    build_index(given.values(), tmp_path / "anew", embedding=Sixteen())
    assert answers(root) == answers(tmp_path / "anew")


def part(source: str, text: str) -> Document:
    """A part of a source, with the id that readers give it."""
    return Document(id=part_id(source, "pump", text), page_content=text, metadata={"source": source})


@pytest.mark.parametrize("tokenizer", [None, "words-0"])
def test_parts_of_a_source_that_is_given_again_replace_its_earlier_parts(
    root: Path, tmp_path: Path, tokenizer: str | None
) -> None:
    """An edited file's old text is gone; other sources, and units that only look alike, stay."""
    twin = Document(id="a.md#pump-notes", page_content="No part.", metadata={"source": "a.md"})
    stay = [part("a.md", "Stays."), part("b.md", "Of another file."), twin, *(unit(n) for n in range(200))]
    build_index([*stay, part("a.md", "Hold button 9.")], root, embedding=Sixteen())
    if tokenizer is not None:
        held = json.loads((root / "manifest.json").read_text())
        (root / "manifest.json").write_text(json.dumps({**held, "tokenizer": tokenizer}))
    again = [part("a.md", "Stays."), part("a.md", "Hold button 77.")]
    report = build_index(again, root, embedding=Sixteen(), keep=True, whole_sources=["a.md", "c.md"])
    assert (report.units, report.added, report.removed, report.unchanged) == (204, 1, 1, 203)
    assert report.replaced_sources == ("a.md",)
    build_index([*stay, again[1]], tmp_path / "anew", embedding=Sixteen())
    assert answers(root) == answers(tmp_path / "anew")
    verify_index(root)


def test_parts_stay_where_nobody_says_that_all_are_given(root: Path) -> None:
    """One part given again, or a new one, takes nothing away from the others."""
    build_index([part("a.md", "One."), part("a.md", "Two.")], root, embedding=Sixteen())
    report = build_index([part("a.md", "Three.")], root, embedding=Sixteen(), keep=True)
    assert (report.units, report.removed, report.replaced_sources) == (3, 0, ())


def test_a_unit_that_only_looks_like_a_part_stays(root: Path) -> None:
    """An id alone is not enough: somebody else may name units so."""
    other = part("a.md", "Three.")
    other.metadata["source"] = "export.jsonl"
    build_index([part("a.md", "One."), other], root, embedding=Sixteen())
    report = build_index([part("a.md", "Two.")], root, embedding=Sixteen(), keep=True, whole_sources=["a.md"])
    assert (report.units, report.removed) == (2, 1)


def test_adding_nothing_and_adding_to_nothing(root: Path, tmp_path: Path) -> None:
    """Without a document the index stays as it is; where there is none, adding builds one, of something."""
    before = answers(root)
    report = build_index([], root, embedding=Sixteen(), keep=True)
    assert (report.units, report.unchanged, report.embedded) == (200, 200, 0)
    assert answers(root) == before
    assert build_index([unit(1)], tmp_path / "new", embedding=Sixteen(), keep=True).added == 1
    with pytest.raises(SourceError, match="no units"):
        build_index([], tmp_path / "other", embedding=Sixteen(), keep=True)


def test_adding_keeps_relationships_unless_others_are_given(root: Path) -> None:
    """None given: the old ones stay. Some given: they take their place."""
    one, two = (
        RelationshipStore([Relationship(subject="s", relation="r", object=name, source_unit="u007")] * 1)
        for name in ("a", "b")
    )
    build_index([unit(1)], root, embedding=Sixteen(), keep=True, relationships=one)
    report = build_index([unit(2)], root, embedding=Sixteen(), keep=True)
    assert (report.relationships, report.relationships_dropped) == (1, False)
    build_index([unit(2)], root, embedding=Sixteen(), keep=True, relationships=two)
    with open_index(root, embedding=Sixteen()) as index:
        assert [each.object for each in index.relationships.relationships()] == ["b"]


def test_nothing_is_added_to_a_damaged_index(root: Path) -> None:
    """What is to stay has to be whole; the error names the file, and building without adding mends it."""
    path = root / "generations" / "000001" / "lexical" / "marks.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StoreCorruptError, match=r"marks\.npy: damaged"):
        build_index([unit(300)], root, embedding=Sixteen(), keep=True)
    assert build_index([unit(n) for n in range(9)], root, embedding=Sixteen()).embedded == 9


def test_the_command_replaces_the_earlier_text_of_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Edited or emptied: what it used to say is gone and the file is named; other files stay."""
    folder = tmp_path / "notes"
    folder.mkdir()
    for name in ("pump", "valve", "belt"):
        (folder / f"{name}.md").write_text(f"The {name} hums.")
    arguments = ["--to", str(tmp_path / "index"), "--embedding", "wordllama"]
    assert main(["index", str(folder), *arguments]) == 0
    (folder / "pump.md").write_text("The pump is silent.")
    (folder / "valve.md").write_text("")
    capsys.readouterr()
    assert main(["index", str(folder), "--add", *arguments]) == 0
    told = capsys.readouterr().err
    assert "1 added, 0 changed, 2 removed, 1 unchanged" in told
    assert "replaced the earlier text of pump.md, valve.md" in told
    with open_index(tmp_path / "index") as index:
        texts = [document.page_content for document in index.units.fetch(index.units.ids()).values()]
    assert sorted(texts) == ["The belt hums.", "The pump is silent."]


def test_the_command_adds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`index --add` names only what is new; with `--verify` it is refused."""
    for name in ("pump", "valve"):
        (tmp_path / f"{name}.txt").write_text(f"The {name} hums.")
    arguments = ["--to", str(tmp_path / "index"), "--embedding", "wordllama"]
    assert main(["index", str(tmp_path / "pump.txt"), *arguments]) == 0
    assert main(["index", str(tmp_path / "valve.txt"), "--add", *arguments]) == 0
    assert "1 added, 0 changed, 0 removed, 1 unchanged; 1 embedded" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["index", "--add", "--verify", str(tmp_path / "index")])


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from test_store_growth import Sixteen, build_index, unit
build_index([unit(n) for n in range(300)], sys.argv[1], embedding=Sixteen(200, kill=True))
"""


def _kill(root: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(root), str(Path(__file__).parent)], check=False)
    assert done.returncode == -signal.SIGKILL


def _fail(root: Path) -> None:
    with pytest.raises(ConnectionError):
        build_index([unit(n) for n in range(300)], root, embedding=Sixteen(200))


@pytest.mark.parametrize("end", [_kill, _fail])
def test_vectors_made_before_a_build_ended_are_not_made_again(tmp_path: Path, end: Callable[[Path], None]) -> None:
    """The next build embeds only the rest, whatever the order, and leaves nothing of the one before."""
    root = tmp_path / "index"
    end(root)
    assert (root / "vectors.partial").exists()
    embedding = Sixteen()
    report = build_index([unit(n) for n in range(300)][::-1], root, embedding=embedding)
    assert report.embedded == len(embedding.embedded) == 300 - 192  # batches of 64; the fourth was not finished
    build_index([unit(n) for n in range(300)], tmp_path / "anew", embedding=Sixteen())
    assert answers(root) == answers(tmp_path / "anew")
    assert sorted(path.name for path in root.iterdir() if path.suffix != ".lock") == ["generations", "manifest.json"]


def test_the_old_index_answers_while_vectors_are_kept(root: Path) -> None:
    """A build over an index that fails leaves it as it was, with the vectors beside it for the next."""
    before = answers(root)
    with pytest.raises(ConnectionError):
        build_index([unit(n) for n in range(100, 400)], root, embedding=Sixteen(150))
    assert answers(root) == before
    assert (root / "vectors.partial").exists()
    assert build_index([unit(n) for n in range(100, 400)], root, embedding=Sixteen()).embedded == 200 - 128
    verify_index(root)


def test_a_bad_document_ends_a_build_before_anything_is_embedded(tmp_path: Path) -> None:
    """All documents are read first, so that hours of embedding are not lost over the last of them."""
    embedding = Sixteen()
    with pytest.raises(SourceError, match="blank"):
        build_index([*(unit(n) for n in range(300)), Document(page_content=" ")], tmp_path, embedding=embedding)
    assert embedding.embedded == []


def _cut(data: bytes) -> bytes:
    return data[:-5]


def _flip(data: bytes) -> bytes:
    place = len(data) - 3 * 84 + 50  # in the vector of the third record from the end
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


def _not_a_number(data: bytes) -> bytes:
    return data[:-8] + np.array([np.nan, np.nan], np.float32).tobytes()


@pytest.mark.parametrize(
    ("change", "kept"),
    [
        (_cut, 191),
        (_flip, 189),
        (_not_a_number, 191),
        (lambda data: data + b"more", 192),
        (lambda data: data[:0], 0),
        (lambda data: data[:20], 0),
        (lambda data: b"[" * 5000 + b"\n" + data, 0),
        (lambda data: data.replace(b'"dimensions": 16', b'"dimensions": -1'), 0),
        (lambda data: data.replace(b'"dimensions": 16', b'"dimensions": 1 '), 0),
        (lambda data: data.replace(b"sixteen", b"another"), 0),
    ],
)
def test_kept_vectors_that_are_damaged_are_made_again(
    tmp_path: Path, change: Callable[[bytes], bytes], kept: int
) -> None:
    """Records up to the first that is not whole are taken, others not; the index is that of an undisturbed build."""
    _fail(tmp_path / "index")
    path = tmp_path / "index" / "vectors.partial"
    path.write_bytes(change(path.read_bytes()))
    report = build_index([unit(n) for n in range(300)], tmp_path / "index", embedding=Sixteen())
    assert report.embedded == 300 - kept
    build_index([unit(n) for n in range(300)], tmp_path / "anew", embedding=Sixteen())
    assert answers(tmp_path / "index") == answers(tmp_path / "anew")


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_kept_vectors_that_are_no_file_are_put_aside(tmp_path: Path, kind: str) -> None:
    """A link is not followed and a pipe not waited for; what a link leads to is as it was."""
    _fail(tmp_path / "index")
    path = tmp_path / "index" / "vectors.partial"
    path.rename(tmp_path / "theirs")
    before = (tmp_path / "theirs").read_bytes()
    path.symlink_to(tmp_path / "theirs") if kind == "link" else os.mkfifo(path)
    assert build_index([unit(n) for n in range(300)], tmp_path / "index", embedding=Sixteen()).embedded == 300
    assert (tmp_path / "theirs").read_bytes() == before


def test_an_embedding_that_changes_its_dimensions_is_named(tmp_path: Path) -> None:
    """Within one build, too."""

    class Growing(Sixteen):
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            vectors = super().embed_documents(texts)
            return vectors if len(self.embedded) <= 64 else [[*vector, 1.0] for vector in vectors]

    with pytest.raises(EmbeddingMismatchError, match="holds vectors of 16 dimensions, embedding sixteen gives 17"):
        build_index([unit(n) for n in range(99)], tmp_path, embedding=Growing())


def test_the_cache_finds_what_it_was_given(tmp_path: Path) -> None:
    """By digest, in any order, after it was opened again; digests that only begin alike are told apart."""
    digests = np.random.default_rng(3).integers(0, 256, (50, 16), dtype=np.uint8)
    vectors = np.eye(50, 8, dtype=np.float32)
    with VectorCache(tmp_path / "v", "e") as cache:
        assert cache.append(digests[:20], vectors[:20]).tolist() == list(range(20))
        assert cache.append(digests[20:], vectors[20:]).tolist() == list(range(20, 50))
    with VectorCache(tmp_path / "v", "e") as cache:
        similar = digests[7].copy()
        similar[15] ^= 1
        wanted = np.stack([digests[40], similar, digests[0]])
        assert cache.find(wanted).tolist() == [40, -1, 0]
        assert (cache.dimensions, cache.count) == (8, 50)
        assert (cache.vectors(np.array([3, 40])) == vectors[[3, 40]]).all()
    assert _vector_cache.DIGEST_BYTES == 16
