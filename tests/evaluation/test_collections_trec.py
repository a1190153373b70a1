from __future__ import annotations

from pathlib import Path

import pytest

from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation.collections import load_collection

TOPICS = """\
<top>
<num> Number: 301
<title> Pumps &amp; valves
 in R&D

<desc> Description:
Which pumps move water?

<narr> Narrative:
A document is relevant when it names a pump.
</top>

<top>
<num> Number: 302
<title> Topic:  Boilers

<desc> Description:
Which boilers heat water?
</top>
"""
XML_TOPICS = """\
<?xml version="1.0" encoding="UTF-8"?>
<topics task="water">
  <topic number="301" type="single">
    <query>pumps &amp; valves in R&amp;D</query>
    <narrative>Anything that names a pump.</narrative>
  </topic>
  <topic number='302'>
    Boilers that heat
    water
  </topic>
</topics>
"""
QRELS = "301 0 FT-1 1\n301 0 FT-2 0\n302\tQ0\tFT-2\t2\n"
DOCUMENTS = b"""\
<DOC>
<DOCNO> FT-1 </DOCNO>
<DATE>910514</DATE>
<HEADLINE>
<P>Pumps
of  1991</P>
</HEADLINE>
<TEXT>
<P>A pump costs less than &pound;5 &lt; 10.</P>
<P>Caf\xe9.</P>
</TEXT>
</DOC>
<DOC><DOCNO>FT-2</DOCNO><TITLE>Caf\xc3\xa9</TITLE>
<TEXT></TEXT><AUTHOR>nobody</AUTHOR></DOC><doc><docno>FT-3</docno>A boiler heats water.</doc>
<DOC>
<DOCNO>FT-4</DOCNO><TEXT> </TEXT>
</DOC>
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of TREC files, its documents in a folder below."""
    here = tmp_path / "water"
    (here / "docs" / "1991").mkdir(parents=True)
    (here / "topics.301-302.txt").write_text(TOPICS, encoding="utf-8")
    (here / "qrels.txt").write_text(QRELS, encoding="utf-8")
    (here / "docs" / "1991" / "ft911").write_bytes(DOCUMENTS)
    (here / "README.md").write_text("About this collection.", encoding="utf-8")
    (here / "docs" / "LICENSE.txt").write_text("Terms.", encoding="utf-8")
    (here / "docs" / "SOURCE.md").write_text("Whence.", encoding="utf-8")
    (here / ".hidden").write_text("Nothing.", encoding="utf-8")
    return here


def test_a_folder_of_trec_files_is_read(folder: Path) -> None:
    """Topics, judgements and documents are found by their names; labels of TREC's own stay out of the texts."""
    collection = load_collection(folder)
    assert (collection.name, collection.kind, collection.split) == ("water", "trec", "")
    assert [(query.query_id, query.text) for query in collection.queries] == [
        ("301", "Pumps & valves in R&D"),
        ("302", "Boilers"),
    ]
    assert collection.queries[0].metadata == {
        "description": "Which pumps move water?",
        "narrative": "A document is relevant when it names a pump.",
    }
    assert collection.judgements == {"301": {"FT-1": 1, "FT-2": 0}, "302": {"FT-2": 2}}


def test_documents_are_read_whole_with_their_titles(folder: Path) -> None:
    """Each in its own encoding; a title stands in for a blank text, and a document without either is left out."""
    units = {unit.id: unit for unit in load_collection(folder).documents()}
    assert list(units) == ["FT-1", "FT-2", "FT-3"]
    assert units["FT-1"].metadata == {"title": "Pumps of 1991", "source": "docs/1991/ft911"}
    assert units["FT-1"].page_content.split() == ["A", "pump", "costs", "less", "than", "£5", "<", "10.", "Café."]
    assert (units["FT-2"].page_content, units["FT-2"].metadata["title"]) == ("Café", "Café")
    assert units["FT-3"].page_content == "A boiler heats water."
    assert "title" not in units["FT-3"].metadata


def test_topics_as_xml_are_read(folder: Path) -> None:
    """The number is an attribute; the text is the query, or what stands between the tags."""
    (folder / "topics.301-302.txt").write_text(XML_TOPICS, encoding="utf-8")
    queries = load_collection(folder).queries
    assert [(query.query_id, query.text) for query in queries] == [
        ("301", "pumps & valves in R&D"),
        ("302", "Boilers that heat water"),
    ]
    assert queries[0].metadata == {"narrative": "Anything that names a pump."}


def test_topics_as_lines_and_documents_as_json_are_read(folder: Path) -> None:
    """With a byte order mark and line ends of Windows."""
    (folder / "topics.301-302.txt").write_bytes(b"\xef\xbb\xbf301\tpumps\r\n302\tboilers, \tlarge\r\n")
    (folder / "docs" / "1991" / "ft911").write_bytes(b'\xef\xbb\xbf\r\n{"id": "FT-1", "text": "A pump."}\r\n')
    collection = load_collection(folder)
    assert [query.text for query in collection.queries] == ["pumps", "boilers, \tlarge"]
    units = [(unit.id, unit.page_content, unit.metadata) for unit in collection.documents()]
    assert units == [("FT-1", "A pump.", {"source": "docs/1991/ft911"})]


def test_json_queries_beside_judgements_of_trec_make_a_trec_folder(folder: Path) -> None:
    """The names of BEIR alone do not make a BEIR folder."""
    (folder / "topics.301-302.txt").rename(folder / "docs.away")
    (folder / "docs.away").write_bytes(DOCUMENTS.replace(b"FT-", b"LA-"))
    (folder / "queries.jsonl").write_text('{"_id": "302", "text": "boilers"}\n', encoding="utf-8")
    collection = load_collection(folder)
    assert (collection.kind, [query.query_id for query in collection.queries]) == ("trec", ["302"])
    assert collection.survey([]).judged_without_query.first == ("301",)
    assert [unit.id for unit in collection.documents()][:3] == ["LA-1", "LA-2", "LA-3"]


def test_files_in_question_are_named(folder: Path) -> None:
    """Two files of judgements are not decided between, and one given decides; neither is read as documents."""
    (folder / "qrels.part2").write_text("301 0 FT-3 1\n", encoding="utf-8")
    with pytest.raises(
        SourceError, match=r"judgements .*: qrels.part2, qrels.txt; name one as qrels \(on .*: --qrels\)$"
    ):
        load_collection(folder)
    collection = load_collection(folder, qrels=folder / "qrels.part2")
    assert collection.judgements == {"301": {"FT-3": 1}}
    assert len(list(collection.documents())) == 3
    (folder / "queries.tsv").write_text("301\tpumps\n", encoding="utf-8")
    named = r"queries .*: queries.tsv, topics.301-302.txt; name one as queries \(on the command line: --queries\)$"
    with pytest.raises(SourceError, match=named):
        load_collection(folder, qrels=folder / "qrels.txt")


def test_a_file_given_as_labels_is_no_document(folder: Path) -> None:
    """Whatever its name, and wherever in the folder it stands."""
    given = folder / "docs" / "judged.txt"
    given.write_text("301 0 FT-3 1\n", encoding="utf-8")
    collection = load_collection(folder, qrels=given)
    assert collection.judgements == {"301": {"FT-3": 1}}
    assert len(list(collection.documents())) == 3


def test_labels_below_the_folder_are_found_where_it_has_none(folder: Path) -> None:
    """A file of documents below may be named after topics where the folder has its own."""
    (folder / "docs" / "hot-topics").write_bytes(b"<DOC><DOCNO>T-1</DOCNO>Hot.</DOC>")
    assert [unit.id for unit in load_collection(folder).documents()] == ["T-1", "FT-1", "FT-2", "FT-3"]
    (folder / "labels").mkdir()
    (folder / "qrels.txt").rename(folder / "labels" / "qrels.txt")
    assert load_collection(folder).judgements["302"] == {"FT-2": 2}


def test_missing_labels_are_named(folder: Path) -> None:
    """First the judgements, then the queries."""
    (folder / "topics.301-302.txt").rename(folder / "README")
    with pytest.raises(SourceError, match=r"no queries \(a file named \*topics\* or \*queries\*\) there"):
        load_collection(folder)
    (folder / "qrels.txt").rename(folder / "LICENSE")
    with pytest.raises(SourceError, match=r"no judgements \(a file named \*qrels\*\) there"):
        load_collection(folder)


def test_a_folder_of_labels_has_no_documents(folder: Path) -> None:
    """What is passed over is no document."""
    (folder / "docs" / "1991" / "ft911").rename(folder / ".away")
    collection = load_collection(folder)
    assert not collection.has_documents
    with pytest.raises(SourceError, match="no documents"):
        collection.documents()


def test_a_file_of_documents_goes_with_queries_and_judgements(folder: Path) -> None:
    """Both have to be given."""
    corpus, topics, qrels = folder / "docs" / "1991" / "ft911", folder / "topics.301-302.txt", folder / "qrels.txt"
    collection = load_collection(corpus, queries=topics, qrels=qrels)
    assert (collection.name, collection.kind) == ("ft911", "trec")
    assert collection.fingerprint == load_collection(folder).fingerprint
    assert [unit.metadata["source"] for unit in collection.documents()] == ["ft911"] * 3
    with pytest.raises(RequestError, match="missing: qrels; on the command line: --queries and --qrels"):
        load_collection(corpus, queries=topics)
    with pytest.raises(RequestError, match="missing: queries and qrels; "):
        load_collection(corpus)
    with pytest.raises(RequestError, match=r"^split: a file given as qrels has no splits \(got 'dev'\)$"):
        load_collection(corpus, split="dev", queries=topics, qrels=qrels)
    with pytest.raises(RequestError, match="missing: queries; "):
        load_collection(corpus, qrels=qrels)


def test_there_are_no_splits(folder: Path) -> None:
    """The default and none are accepted."""
    assert load_collection(folder, split="") == load_collection(folder, split="test")
    with pytest.raises(RequestError, match=r"split: a collection of TREC files has no splits \(got 'train'\)"):
        load_collection(folder, split="train")


BAD_TOPICS = {
    "not closed": (TOPICS.replace("</top>", "", 1), "line 1: <top> is not closed"),
    "not closed at the end": (TOPICS.removesuffix("</top>\n"), "line 13: <top> is not closed"),
    "no number": (TOPICS.replace("<num> Number: 302\n", ""), "line 13: query id is missing or blank"),
    "no text": ("<top>\n<num> 1\n</top>\n", "line 1: query is missing or blank"),
    "repeated": (TOPICS.replace("302", "301"), r"line 13: query id '301' was used before \(in line 1\)"),
    "no topic": ("<topics>\n</topics>\n", "empty"),
    "not UTF-8": (TOPICS.encode().replace(b"Boilers", b"\xff"), "not UTF-8"),
}


@pytest.mark.parametrize(("content", "message"), BAD_TOPICS.values(), ids=BAD_TOPICS.keys())
def test_what_is_wrong_with_topics_is_named_with_its_line(folder: Path, content: str | bytes, message: str) -> None:
    """The line is that where the topic begins."""
    path = folder / "topics.301-302.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SourceError, match=message) as caught:
        load_collection(folder)
    assert str(path) in str(caught.value)


BAD_DOCUMENTS = {
    "not closed": (b"<DOC>\n<DOCNO>1</DOCNO>\n<DOC>\n<DOCNO>2</DOCNO></DOC>", "line 1: <DOC> is not closed"),
    "not closed at the end": (b"<DOC><DOCNO>1</DOCNO>a</DOC>\n<DOC>\n", "line 2: <DOC> is not closed"),
    "no number": (b"\n<DOC>\n<TEXT>a</TEXT>\n</DOC>", "line 2: DOCNO is missing or blank"),
    "another unit": (
        b"<DOC><DOCNO>1</DOCNO>a</DOC>\n<DOC><DOCNO>1</DOCNO>b</DOC>",
        "line 2: id '1' was used by another unit",
    ),
    "no document": (b"<html>a</html>", "empty"),
    "another kind": (b"%PDF-1.7", "neither documents of TREC"),
    "empty": (b" \n", "neither documents of TREC"),
}


@pytest.mark.parametrize(("content", "message"), BAD_DOCUMENTS.values(), ids=BAD_DOCUMENTS.keys())
def test_what_is_wrong_with_documents_is_named_with_its_line(folder: Path, content: bytes, message: str) -> None:
    """Labels can be read without them."""
    path = folder / "docs" / "1991" / "ft911"
    path.write_bytes(content)
    collection = load_collection(folder)
    with pytest.raises(SourceError, match=message) as caught:
        list(collection.documents())
    assert str(path) in str(caught.value)


BAD_QRELS = {
    "another number of columns": ("301 0 FT-1 1\n301 0 FT-2\n", "line 2: expected 4 columns as before"),
    "five columns": ("301 0 FT-1 1 x\n", "line 1: expected 3 columns by tabs or 4 columns by blanks"),
    "grade": ("301 0 FT-1 one\n", "line 1: grade must be a whole number"),
    "conflict": (
        "301 0 FT-1 1\n301 1 FT-1 0\n",
        "line 2: unit 'FT-1' has grade 0 for query '301', and grade 1 in line 1",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD_QRELS.values(), ids=BAD_QRELS.keys())
def test_what_is_wrong_with_judgements_of_trec_is_named_with_its_line(folder: Path, content: str, message: str) -> None:
    """The number of columns is that of the first line."""
    (folder / "qrels.txt").write_text(content, encoding="utf-8")
    with pytest.raises(SourceError, match=message):
        load_collection(folder)
