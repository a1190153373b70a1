from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from langchain_core.documents import Document
from langchain_core.embeddings import Embeddings

from bounded_retrieval.cli import main
from bounded_retrieval.contracts.relationships import EntityName, Relationship
from bounded_retrieval.errors import (
    ConfigurationError,
    EmbeddingMismatchError,
    SourceError,
    StoreBusyError,
    StoreCorruptError,
    StoreError,
    StoreMissingError,
)
from bounded_retrieval.retrievers.relationships import RelationshipStore
from bounded_retrieval.retrievers.store import build_index, open_index


class TinyEmbeddings(Embeddings):
    """Sixteen numbers from a text's hash; counts the documents it embeds."""

    embedding_id = "tiny"

    def __init__(self):
        self.embedded = []

    def embed_documents(self, texts):
        self.embedded.extend(texts)
        return [self.embed_query(text) for text in texts]

    def embed_query(self, text):
        return [byte / 255 - 0.5 for byte in hashlib.sha256(text.encode()).digest()[:16]]


def documents(count, suffix="", **metadata):
    """Units ``u00``, ``u01``, ... of one word each, and a word they share."""
    return [
        Document(id=f"u{n:02}", page_content=f"pump word{n}{suffix}", metadata={"title": f"Title {n}", **metadata})
        for n in range(count)
    ]


def contents(root, embedding=None):
    """What each channel of the index holds."""
    with open_index(root, embedding=embedding or TinyEmbeddings()) as index:
        ids = index.units.ids()
        assert index.dense.ids() == ids
        lexical = index.lexical.fetch(ids)
        assert index.dense.fetch(ids) == lexical == index.units.fetch(ids)
        return list(lexical.values())


def generations(root):
    """Names of the generations on disk."""
    return sorted(path.name for path in (root / "generations").iterdir())


@pytest.fixture
def root(tmp_path):
    """An index of six units, with the tiny embedding."""
    build_index(documents(6), tmp_path / "index", embedding=TinyEmbeddings())
    return tmp_path / "index"


def test_both_channels_answer_from_a_built_directory(root):
    """Words find a unit lexically, its own text finds it by vector, and filters hold in both."""
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert index.lexical.search("word3", 2)[0].unit == documents(6)[3]
        assert index.dense.search("Title 3\npump word3", 1)[0].unit == documents(6)[3]
        assert [c.unit_id for c in index.lexical.search("pump", 3, {"title": "Title 5"})] == ["u05"]
        assert [c.unit_id for c in index.dense.search("pump", 3, {"title": "Title 5"})] == ["u05"]
        assert (index.manifest.units, index.manifest.dimensions, index.manifest.embedding) == (6, 16, "tiny")


def test_units_are_those_that_the_lexical_searcher_holds_now(root):
    """An edit of the opened index's searcher counts at the recheck, too: what is gone is dropped, what is new is packed."""
    with open_index(root, embedding=TinyEmbeddings()) as index:
        units, first = index.units, index.lexical.ids()[0]
        index.lexical.remove([first])
        index.lexical.add([Document(id="new", page_content="A new text.")])
        assert units.fetch([first, "new"]).keys() == {"new"}


def test_the_embedded_model_is_the_default(tmp_path):
    """Without an embedding, MiniLM is used to build, and opening finds it by its recorded name."""
    texts = ["The valve is closed.", "Cats sleep all day.", "The budget was cut."]
    report = build_index([Document(id=str(n), page_content=text) for n, text in enumerate(texts)], tmp_path)
    assert report.embedded == 3
    with open_index(tmp_path) as index:
        assert index.manifest.embedding == "minilm-l6-v2-int8"
        assert index.dense.search("sleeping kittens", 1)[0].unit_id == "1"
    assert build_index([Document(id="0", page_content=texts[0])], tmp_path).embedded == 0


def test_only_new_titles_and_texts_are_embedded_again(root):
    """A second build embeds the added and the changed units and nothing else; metadata changes without embedding."""
    new = documents(6)
    new[1] = Document(id="u01", page_content="pump other", metadata=new[1].metadata)
    new[2].metadata["title"] = "Other title"
    new[3].metadata["year"] = 2026
    new[4] = Document(id="u99", page_content="pump added")
    embedding = TinyEmbeddings()
    report = build_index(new, root, embedding=embedding)
    assert sorted(embedding.embedded) == ["Other title\npump word2", "Title 1\npump other", "pump added"]
    assert report.embedded == 3
    assert (report.units, report.added, report.changed, report.removed, report.unchanged) == (6, 1, 3, 1, 2)
    assert contents(root) == sorted(new, key=lambda document: document.id)
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert index.dense.search("Title 3\npump word3", 1, {"year": 2026})[0].score == pytest.approx(1)
        assert index.dense.search("x", 9, {"title": "Title 2"}) == []


def test_the_same_documents_again_embed_nothing(root):
    """Running again changes nothing but the generation's name; the order that texts came in shows in digests alone."""
    embedding = TinyEmbeddings()
    before = json.loads((root / "manifest.json").read_text())
    report = build_index(documents(6)[::-1], root, embedding=embedding)
    assert embedding.embedded == []
    assert (report.unchanged, report.added, report.changed, report.removed) == (6, 0, 0, 0)
    after = json.loads((root / "manifest.json").read_text())
    assert (before.pop("generation"), after.pop("generation")) == ("000001", "000002")
    assert before.pop("digests").keys() == after.pop("digests").keys()
    assert before == after


def test_repeated_documents_are_one_unit(root):
    """The same id and text twice counts once."""
    assert build_index(documents(6) + documents(3), root, embedding=TinyEmbeddings()).units == 6


def test_documents_are_read_once_as_a_stream(tmp_path):
    """A generator is enough, and progress tells what is known of its length."""
    seen = []
    stream = (document for document in documents(150))
    report = build_index(stream, tmp_path / "a", embedding=TinyEmbeddings(), progress=lambda *now: seen.append(now))
    assert report.units == 150
    assert ("read", 128, None) in seen
    assert ("embed", 150, 150) in seen
    assert [now for now in seen if now[0] in ("lexical", "neighbours", "dense", "publish")] == [
        (stage, done, 150) for stage in ("lexical", "neighbours", "dense", "publish") for done in (0, 150)
    ]
    build_index(documents(64), tmp_path / "b", embedding=TinyEmbeddings(), progress=lambda *now: seen.append(now))
    assert ("read", 64, 64) in seen


def test_an_open_index_goes_on_answering_after_the_next_build(root):
    """A reader keeps the generation that it opened; the generation before that is deleted."""
    with open_index(root, embedding=TinyEmbeddings()) as index:
        build_index(documents(3, "new"), root, embedding=TinyEmbeddings())
        assert generations(root) == ["000001", "000002"]
        assert index.lexical.search("word5", 1)[0].unit_id == "u05"
        assert index.dense.search("Title 5\npump word5", 1)[0].unit_id == "u05"
    assert len(contents(root)) == 3
    build_index(documents(3), root, embedding=TinyEmbeddings())
    assert generations(root) == ["000002", "000003"]


READER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_store import TinyEmbeddings, open_index
for build in sys.stdin:
    for _ in range(3):
        with open_index(sys.argv[1], embedding=TinyEmbeddings()) as index:
            texts = index.lexical.fetch(index.dense.ids())
            assert len({text.page_content.partition("build")[2] for text in texts.values()}) == 1, texts
            assert len(index.lexical.search("pump", 9)) == len(index.dense.search("pump", 9)) == 6
    print(build, end="", flush=True)
"""


def test_readers_meet_whole_generations_only(root):
    """While a build runs, every opening by another process sees one build's units in both channels."""
    arguments = [sys.executable, "-c", READER, str(root), str(Path(__file__).parent)]
    pipe = subprocess.PIPE
    with subprocess.Popen(arguments, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as reader:
        for number in range(10):
            reader.stdin.write(f"{number}\n")
            reader.stdin.flush()
            build_index(documents(6, f"build{number}"), root, embedding=TinyEmbeddings())
            assert reader.stdout.readline() == f"{number}\n", reader.stderr.read()


def test_a_second_writer_is_refused_at_once(root):
    """While one build reads its documents, another one gets an error and disturbs nothing."""

    def slow():
        yield from documents(3)
        with pytest.raises(StoreBusyError, match="another process is writing"):
            build_index(documents(1), root, embedding=TinyEmbeddings())

    build_index(slow(), root, embedding=TinyEmbeddings())
    assert contents(root) == documents(3)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        ([], "no units"),
        ([*documents(3), Document(id="bad", page_content=" ")], "'bad'"),
        ([*documents(3), Document(id="u01", page_content="other")], "'u01'"),
    ],
)
def test_bad_documents_leave_the_old_index(root, stream, message):
    """An empty stream, a blank text or an ambiguous id ends the build; the old index answers, nothing is left over."""
    with pytest.raises(SourceError, match=message):
        build_index(iter(stream), root, embedding=TinyEmbeddings())
    assert contents(root) == documents(6)
    assert generations(root) == ["000001"]


@pytest.mark.parametrize("stage", ["read", "embed", "lexical", "neighbours", "dense", "publish"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=["disk", "ctrl-c"])
def test_an_error_at_any_stage_leaves_the_old_index(root, stage, error):
    """Whatever ends a build before it is published, the old index answers and the next build succeeds."""

    def fail(now, _done, _total):
        if now == stage:
            raise error

    with pytest.raises(type(error)):
        build_index(documents(70, "new"), root, embedding=TinyEmbeddings(), progress=fail)
    assert generations(root) == ["000001"]
    assert contents(root) == documents(6)
    build_index(documents(70, "new"), root, embedding=TinyEmbeddings())
    assert contents(root) == documents(70, "new")


def test_a_first_build_that_fails_leaves_no_index(tmp_path):
    """After a failed first build there is no index, and a second try may begin."""
    with pytest.raises(SourceError):
        build_index([Document(page_content="")], tmp_path, embedding=TinyEmbeddings())
    with pytest.raises(StoreMissingError):
        open_index(tmp_path)
    build_index(documents(2), tmp_path, embedding=TinyEmbeddings())
    assert contents(tmp_path) == documents(2)


def test_another_embedding_is_refused(root):
    """Building or opening with another embedding names both identities and the way out; nothing is written."""
    other = TinyEmbeddings()
    other.embedding_id = "other"
    for use in (lambda: build_index(documents(6), root, embedding=other), lambda: open_index(root, embedding=other)):
        with pytest.raises(EmbeddingMismatchError, match=r"'tiny' \(got 'other'\); use another directory, or delete"):
            use()
    for use in (lambda: build_index(documents(6), root), lambda: open_index(root)):
        with pytest.raises(EmbeddingMismatchError, match=r"give the embedding it was built with \('tiny'\)"):
            use()
    assert contents(root) == documents(6)


def test_an_embedding_that_gives_too_few_vectors_is_named(root):
    """A faulty embedding ends the build with its name, and the old index answers."""

    class Faulty(TinyEmbeddings):
        def embed_documents(self, texts):
            return super().embed_documents(texts)[1:]

    with pytest.raises(ConfigurationError, match="embedding tiny"):
        build_index(documents(9), root, embedding=Faulty())
    assert contents(root) == documents(6)


def test_an_index_that_is_not_there_says_how_to_make_one(tmp_path):
    """A missing or empty directory, or a file, gives the command that would make the index."""
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "none", tmp_path, tmp_path / "file"):
        with pytest.raises(StoreMissingError, match=f"bounded-retrieval index PATH --to {path}"):
            open_index(path)


@pytest.mark.parametrize("name", ["notes.txt", "generations/notes", "generations/000001x", "manifest.json"])
def test_a_foreign_directory_is_refused_and_left_alone(tmp_path, name):
    """A directory that holds anything but an index is not written to, not even a lock file."""
    path = tmp_path / "home" / name
    path.parent.mkdir(parents=True)
    path.write_text('{"name": "web app"}')
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StoreError, match=r"is no index; give an empty or a new directory|not the manifest of an index"):
        build_index(documents(2), tmp_path / "home", embedding=TinyEmbeddings())
    assert sorted(tmp_path.rglob("*")) == before
    assert path.read_text() == '{"name": "web app"}'


def test_a_file_in_the_directorys_place_is_refused(tmp_path):
    """The directory may not be a file."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match="file: not a directory"):
        build_index(documents(2), tmp_path / "file", embedding=TinyEmbeddings())
    with pytest.raises(StoreError, match="below: cannot be written"):
        build_index(documents(2), tmp_path / "file" / "below", embedding=TinyEmbeddings())
    assert (tmp_path / "file").read_text() == "mine"


def test_other_files_beside_an_index_are_kept(root):
    """What someone else put into an index directory survives builds."""
    (root / "notes.txt").write_text("mine")
    (root / "generations" / "notes").mkdir()
    build_index(documents(2), root, embedding=TinyEmbeddings())
    build_index(documents(2), root, embedding=TinyEmbeddings())
    assert (root / "notes.txt").read_text() == "mine"
    assert generations(root) == ["000002", "000003", "notes"]


def test_ids_and_text_of_any_script_go_through(tmp_path):
    """Quotes, slashes and other scripts in ids, texts and metadata come back from both channels."""
    odd = [
        Document(id="a/../b'\"", page_content="Ünïcode 中文 text", metadata={"title": "Ti'tle", "list": ["a", "b"]}),
        Document(id="\u2028", page_content="{} %s ?", metadata={"nested": {"a": [1, None]}}),
    ]
    build_index(odd, tmp_path, embedding=TinyEmbeddings())
    assert contents(tmp_path) == odd


def declared(object_id="team:1"):
    """One relationship and one name."""
    link = Relationship(subject="device:1", relation="maintained_by", object=object_id, source_unit="u00")
    return RelationshipStore([link], [EntityName(entity_id="device:1", name="Device", source_unit="u01")])


def test_an_index_keeps_the_relationships_it_was_given(root):
    """They come back with the index, are counted, and stand in the manifest with their size."""
    report = build_index(documents(6), root, embedding=TinyEmbeddings(), relationships=declared())
    assert (report.relationships, report.unchanged) == (1, 6)
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert list(index.relationships.relationships()) == list(declared().relationships())
        assert list(index.relationships.names()) == list(declared().names())
        path = root / "generations" / index.manifest.generation / "relationships.jsonl"
        assert index.manifest.files["relationships.jsonl"] == path.stat().st_size
    build_index(documents(6), root, embedding=TinyEmbeddings(), relationships=declared("team:2"))
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert [r.object for r in index.relationships.relationships_of("device:1", "maintained by")] == ["team:2"]


def test_a_build_without_relationships_drops_the_old_ones(root):
    """A directory holds exactly what it was given: no relationships are none, an empty store is an empty store."""
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert index.relationships is None
    build_index(documents(6), root, embedding=TinyEmbeddings(), relationships=RelationshipStore())
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert len(index.relationships) == 0
    build_index(documents(6), root, embedding=TinyEmbeddings(), relationships=declared())
    assert build_index(documents(6), root, embedding=TinyEmbeddings()).relationships == 0
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert index.relationships is None
        assert "relationships.jsonl" not in index.manifest.files


def test_an_open_index_keeps_its_relationships(root):
    """A reader goes on seeing the relationships that it opened, even when their generation is deleted."""
    build_index(documents(6), root, embedding=TinyEmbeddings(), relationships=declared())
    with open_index(root, embedding=TinyEmbeddings()) as index:
        build_index(documents(6), root, embedding=TinyEmbeddings())
        build_index(documents(6), root, embedding=TinyEmbeddings())
        assert len(index.relationships.relationships_of("device:1", "maintained by")) == 1


@pytest.mark.parametrize("damage", ["missing", "longer", "spoilt"])
def test_damaged_relationships_are_named(root, damage):
    """A missing, longer or spoilt file makes the index damaged, by the file's name; the next build mends it."""
    build_index(documents(6), root, embedding=TinyEmbeddings(), relationships=declared())
    path = root / "generations" / "000002" / "relationships.jsonl"
    whole = path.read_bytes()
    path.unlink()
    if damage != "missing":
        path.write_bytes(whole + b" " if damage == "longer" else b"x" + whole[1:])
    with pytest.raises(StoreCorruptError, match=r"relationships\.jsonl"):
        open_index(root, embedding=TinyEmbeddings())
    build_index(documents(6), root, embedding=TinyEmbeddings(), relationships=declared())
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert len(index.relationships) == 1


def test_a_failed_build_keeps_the_old_relationships(root):
    """When a build with other relationships fails, the old ones answer."""
    build_index(documents(6), root, embedding=TinyEmbeddings(), relationships=declared())
    with pytest.raises(SourceError, match="no units"):
        build_index([], root, embedding=TinyEmbeddings(), relationships=declared("team:2"))
    with open_index(root, embedding=TinyEmbeddings()) as index:
        assert next(index.relationships.relationships()).object == "team:1"


@pytest.fixture
def folder(tmp_path):
    """A folder of one document and one relationship file, and the relationship file of another folder."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "unit.txt").write_text("The pump is blue.")
    declared().to_jsonl(tmp_path / "docs" / "relationships.jsonl")
    declared("team:2").to_jsonl(tmp_path / "other.jsonl")
    return tmp_path


def kept_object(index_directory):
    """The object of the one relationship that an index keeps; none without a store."""
    with open_index(index_directory) as index:
        store = index.relationships
        return store and (len(index.units), next(store.relationships()).object)


def test_the_command_takes_the_relationships_of_a_folder(folder, capsys):
    """A file of that name in the folder becomes the index's relationships, is no document, and is counted."""
    assert main(["index", str(folder / "docs"), "--to", str(folder / "index")]) == 0
    assert kept_object(folder / "index") == (1, "team:1")
    stored = capsys.readouterr().err.splitlines()[-1]
    assert stored == f"stored 1 relationships from {folder / 'docs' / 'relationships.jsonl'}"


def test_the_command_takes_a_relationship_file(folder, capsys):
    """A file given by option is taken; indexing again without it drops its relationships, and says so once."""
    arguments = ["index", str(folder / "docs" / "unit.txt"), "--to", str(folder / "index")]
    assert main([*arguments, "--relationships", str(folder / "other.jsonl")]) == 0
    assert kept_object(folder / "index") == (1, "team:2")
    assert f"stored 1 relationships from {folder / 'other.jsonl'}\n" in capsys.readouterr().err
    assert main(arguments) == 0
    assert kept_object(folder / "index") is None
    assert "relationships that the index held were dropped" in capsys.readouterr().err
    assert main(arguments) == 0
    assert "relationships" not in capsys.readouterr().err


def test_the_command_refuses_two_sources_of_relationships(folder, capsys):
    """An option and a file in a folder together are an error that names both; the same file twice is none."""
    arguments = ["index", str(folder / "docs"), "--to", str(folder / "index"), "--relationships"]
    assert main([*arguments, str(folder / "other.jsonl")]) == 2
    message = capsys.readouterr().err
    assert str(folder / "other.jsonl") in message
    assert str(folder / "docs" / "relationships.jsonl") in message
    assert not (folder / "index").exists()
    assert main([*arguments, str(folder / "docs" / "relationships.jsonl")]) == 0


def test_the_command_names_a_faulty_relationship_file(folder, capsys):
    """A faulty line ends the command before anything is indexed, with file, line and field in one line."""
    (folder / "docs" / "relationships.jsonl").write_text('{"subject": "a"}')
    assert main(["index", str(folder / "docs"), "--to", str(folder / "index")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (folder / "index").exists()
