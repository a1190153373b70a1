from __future__ import annotations

import hashlib
import json
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.cli import main
from bounded_retrieval.errors import StoreCorruptError, StoreError, StoreMissingError, StoreVersionError
from bounded_retrieval.retrievers.store import build_index, open_index, verify_index

sys.path.insert(0, str(Path(__file__).parent))
from older_index import make_older

DOCUMENTS = [Document(id=f"u{n:02}", page_content=f"The pump of site {n} hums.") for n in range(20)]


class CountingEmbeddings(Embeddings):
    """Four numbers from a text's hash; counts the texts."""

    embedding_id = "four"

    def __init__(self) -> None:
        self.count = 0

    def embed_documents(self, texts: list[str]) -> list[list[float]]:
        self.count += len(texts)
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text: str) -> list[float]:
        return [byte / 255 - 0.5 for byte in hashlib.sha256(text.encode()).digest()[:4]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An index."""
    build_index(DOCUMENTS, tmp_path / "index", embedding=CountingEmbeddings())
    return tmp_path / "index"


def generation(root: Path) -> Path:
    """The folder of the first generation."""
    return root / "generations" / "000001"


def ask(root: Path) -> list[str]:
    """The texts that the index finds, through both channels."""
    with open_index(root, embedding=CountingEmbeddings()) as index:
        rows = [*index.lexical.search("pump site 3", 3), *index.dense.search("The pump of site 3 hums.", 1)]
    return [row.unit.page_content for row in rows]


def change_metadata(root: Path) -> None:
    """Change what opening does not read: a unit's metadata in the file of the texts."""
    with closing(sqlite3.connect(generation(root) / "lexical" / "units.sqlite")) as connection, connection:
        connection.execute("UPDATE texts SET title = 'Other'")


def change_vector(root: Path) -> None:
    """Change what opening does not compare: a vector, for another one."""
    path = generation(root) / "dense" / "vectors.npy"
    vectors = np.load(path)
    vectors[[3, 4]] = vectors[[4, 3]]
    np.save(path, vectors)


def change_graph(root: Path) -> None:
    """Change what even searching does not compare: a vector in Chroma's file."""
    with closing(sqlite3.connect(generation(root) / "dense" / "chroma" / "chroma.sqlite3")) as connection, connection:
        connection.execute("UPDATE embeddings_queue SET vector = x'00000000000000000000000000000000' WHERE seq_id = 3")


CHANGES = [(change_metadata, "auto"), (change_vector, "auto"), (change_graph, "chroma")]


@pytest.fixture
def made(tmp_path: Path) -> Callable[[str], Path]:
    """Makes an index of a kind."""

    def make(dense: str) -> Path:
        build_index(DOCUMENTS, tmp_path / dense, embedding=CountingEmbeddings(), dense=dense)
        return tmp_path / dense

    return make


def test_an_index_that_was_asked_is_as_it_was_written(made: Callable[[str], Path]) -> None:
    """Chroma writes to its file whenever it is opened; verifying looks at what the file holds."""
    root = made("chroma")
    before = (generation(root) / "dense" / "chroma" / "chroma.sqlite3").read_bytes()
    assert ask(root) == ask(root)
    assert (generation(root) / "dense" / "chroma" / "chroma.sqlite3").read_bytes() != before
    assert verify_index(root).units == 20
    with open_index(root, embedding=CountingEmbeddings(), verify=True) as index:
        assert len(index.units) == 20


@pytest.mark.parametrize(("change", "dense"), CHANGES)
def test_verifying_finds_what_opening_does_not_read(made: Callable[[str], Path], change, dense: str) -> None:
    """The index opens and answers; verifying it names the file."""
    root = made(dense)
    change(root)
    assert ask(root)
    for verify in (verify_index, lambda root: open_index(root, embedding=CountingEmbeddings(), verify=True)):
        with pytest.raises(StoreCorruptError, match=r"(units\.sqlite|vectors\.npy|chroma\.sqlite3): damaged"):
            verify(root)


@pytest.mark.parametrize(("change", "dense"), CHANGES)
def test_a_build_takes_nothing_over_that_is_damaged(made: Callable[[str], Path], change, dense: str) -> None:
    """Building again over an index that verifying would refuse embeds every unit anew; adding to it is refused."""
    root = made(dense)
    change(root)
    embedding = CountingEmbeddings()
    with pytest.raises(StoreCorruptError, match="damaged"):
        build_index(DOCUMENTS, root, embedding=embedding, keep=True)
    assert build_index(DOCUMENTS, root, embedding=embedding).embedded == embedding.count == 20
    assert verify_index(root).generation == "000002"
    assert build_index(DOCUMENTS, root, embedding=embedding).embedded == 0


def test_a_text_that_is_not_the_one_written_is_never_given(root: Path) -> None:
    """A text is compared with its fingerprint when it is read, verified or not."""
    path = generation(root) / "lexical" / "units.sqlite"
    path.write_bytes(path.read_bytes().replace(b"site 3 hums", b"site 3 hats"))
    with (
        open_index(root, embedding=CountingEmbeddings()) as index,
        pytest.raises(StoreCorruptError, match=r"units\.sqlite: a text is not the one"),
    ):
        index.units.fetch(["u03"])


@pytest.mark.parametrize("format", [1, 2, 3])
@pytest.mark.parametrize("keep", [False, True])
def test_an_index_of_an_older_format_is_told_to_be_built_again(
    made: Callable[[str], Path], format: int, keep: bool
) -> None:
    """It does not open; the next build reads its vectors from where they are, and embeds none of its units."""
    root = made("chroma")
    expected = ask(root)
    make_older(root, format)
    for use in (ask, verify_index):
        with pytest.raises(StoreVersionError, match=f"format {format}; this version reads 4; build the index again"):
            use(root)
    given = [Document(id="v", page_content="A valve.")] + ([] if keep else DOCUMENTS)
    report = build_index(given, root, embedding=CountingEmbeddings(), keep=keep)
    assert (report.embedded, report.added, report.unchanged, report.dense) == (1, 1, 20, "exact")
    assert ask(root) == expected
    assert verify_index(root).format == 4


def renumber(root: Path, number: str) -> None:
    """Give the generation that counts another number."""
    held = json.loads((root / "manifest.json").read_text())
    (root / "generations" / held["generation"]).rename(root / "generations" / number)
    (root / "manifest.json").write_text(json.dumps({**held, "generation": number}))


def test_the_number_after_999999_has_seven_digits(root: Path) -> None:
    """Builds go on counting, the last two generations stay as ever, and after 999,999,999 the error says what to do."""
    (root / "generations" / "999998").mkdir()  # somebody's; it counts for nothing
    renumber(root, "999999")
    build_index(DOCUMENTS, root, embedding=CountingEmbeddings())
    assert verify_index(root).generation == "1000000"
    build_index(DOCUMENTS[:5], root, embedding=CountingEmbeddings())
    assert sorted(path.name for path in (root / "generations").iterdir()) == ["1000000", "1000001"]
    renumber(root, "999999999")
    with pytest.raises(StoreError, match=r"no number is left after 999999999; delete .* to build it anew"):
        build_index(DOCUMENTS, root, embedding=CountingEmbeddings())
    assert verify_index(root).units == 5


@pytest.mark.parametrize("name", ["index.lock", "manifest.json.partial", "manifest.json"])
def test_a_build_writes_through_no_link(root: Path, tmp_path: Path, name: str) -> None:
    """A link in the place of a file that a build writes leads nowhere: what it points at is as it was."""
    theirs = tmp_path / "theirs"
    theirs.write_text("theirs")
    (root / name).unlink(missing_ok=True)
    (root / name).symlink_to(theirs)
    if name == "manifest.json.partial":
        build_index(DOCUMENTS[:5], root, embedding=CountingEmbeddings())
        assert verify_index(root).units == 5
    else:
        with pytest.raises(StoreError, match=f"{name}: not a regular file"):
            build_index(DOCUMENTS[:5], root, embedding=CountingEmbeddings())
    assert theirs.read_text() == "theirs"


@pytest.mark.parametrize("dense", ["exact", "chroma"])
def test_the_dense_searcher_of_an_index_is_not_edited(made: Callable[[str], Path], dense: str) -> None:
    """Units come and go by building again: neither kind has a way to add or remove any."""
    with open_index(made(dense), embedding=CountingEmbeddings()) as index:
        assert not hasattr(index.dense, "add")
        assert not hasattr(index.dense, "remove")


def test_the_command_verifies(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line and exit code 0 for an index as it was written, one line that names the file and exit code 2 for damage."""
    assert main(["index", "--verify", str(root)]) == 0
    assert capsys.readouterr().err == f"{root}: 20 units, every file as it was written\n"
    change_metadata(root)
    assert main(["index", "--verify", str(root)]) == 2
    assert (
        capsys.readouterr()
        .err.splitlines()[0]
        .endswith("units.sqlite: damaged (its SHA-256 is not the one that the manifest names)")
    )
    shutil.rmtree(root)
    assert main(["index", "--verify", str(root)]) == 2
    assert "no index there" in capsys.readouterr().err
    with pytest.raises(StoreMissingError):
        verify_index(root)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "PATH and --to DIR are needed"),
        (["docs"], "PATH and --to DIR are needed"),
        (["--to", "x"], "PATH and --to DIR are needed"),
        (["docs", "--verify", "x"], "--verify DIR: stands alone"),
        (["--to", "x", "--verify", "x"], "--verify DIR: stands alone"),
    ],
)
def test_the_command_says_what_it_needs(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    """Exit code 2 and one line that says where help is, as of any other bad usage."""
    with pytest.raises(SystemExit) as end:
        main(["index", *arguments])
    captured = capsys.readouterr()
    assert end.value.code == 2
    assert message in captured.err
    assert "--help" in captured.err
    assert captured.err.count("\n") == 1
