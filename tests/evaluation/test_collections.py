from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation.collections import SHIPPED, Collection, Query, load_collection

CORPUS = [
    {"_id": "d1", "title": "Pumps", "text": "A pump moves water."},
    {"_id": "d2", "text": "A valve stops water."},
    {"_id": "d3", "title": "Only a title", "text": " "},
    {"_id": "d4", "text": ""},
]
QUERIES = [
    {"_id": "q1", "text": "what moves water", "metadata": {"kind": "easy"}},
    {"_id": "q2", "text": " what stops water "},
    {"_id": "q3", "text": "what boils water"},
    {"_id": "q4", "text": "what heats water"},
]
HEADER = "query-id\tcorpus-id\tscore\n"
QRELS = f"{HEADER}q1\td1\t2\nq1\td2\t0\nq2\td2\t1\n"


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    """A file of JSON Lines."""
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A BEIR folder: q1 and q2 are judged by the split test, q3 by train, q4 by none."""
    here = tmp_path / "pumps"
    (here / "qrels").mkdir(parents=True)
    write_lines(here / "corpus.jsonl", CORPUS)
    write_lines(here / "queries.jsonl", QUERIES)
    (here / "qrels" / "test.tsv").write_text(QRELS, encoding="utf-8")
    (here / "qrels" / "train.tsv").write_text(f"{HEADER}q3\td1\t1\n", encoding="utf-8")
    return here


def ids(collection: Collection) -> list[str]:
    """Ids of a collection's queries, in their order."""
    return [query.query_id for query in collection.queries]


def test_a_beir_folder_gives_queries_judgements_and_whole_units(folder: Path) -> None:
    """Everything is read as it stands: texts without the blanks around them, grades of 0 too, titles apart."""
    collection = load_collection(folder)
    assert (collection.name, collection.kind, collection.split) == ("pumps", "beir", "test")
    assert collection.queries[0] == Query(query_id="q1", text="what moves water", metadata={"kind": "easy"})
    assert collection.queries[1].text == "what stops water"
    assert collection.judgements == {"q1": {"d1": 2, "d2": 0}, "q2": {"d2": 1}}
    units = [(unit.id, unit.page_content, unit.metadata.get("title")) for unit in collection.documents()]
    assert units[:2] == [("d1", "A pump moves water.", "Pumps"), ("d2", "A valve stops water.", None)]


def test_a_title_stands_in_for_a_blank_text_and_a_unit_without_either_is_left_out(folder: Path) -> None:
    """BEIR corpora hold such units; neither ends the reading."""
    units = list(load_collection(str(folder)).documents())
    assert [unit.id for unit in units] == ["d1", "d2", "d3"]
    assert units[2].page_content == "Only a title"


def test_documents_may_be_read_again(folder: Path) -> None:
    """Each call begins a stream of its own."""
    collection = load_collection(folder)
    assert list(collection.documents()) == list(collection.documents())


def test_queries_that_only_another_split_judges_are_left_out_and_counted(folder: Path) -> None:
    """A query that no split judges stays, since it may be one without an answer."""
    collection = load_collection(folder)
    assert ids(collection) == ["q1", "q2", "q4"]
    assert collection.left_out == 1
    other = load_collection(folder, split="train")
    assert (ids(other), other.left_out, other.split) == (["q3", "q4"], 2, "train")
    assert [query.query_id for query in other.judged()] == ["q3"]


@pytest.mark.parametrize("split", ["dev", "", "../qrels/test"])
def test_a_missing_split_is_refused_by_naming_those_there_are(folder: Path, split: str) -> None:
    """A split is a name, never a path."""
    with pytest.raises(RequestError, match=r"split: .*has no split .*there are: test, train"):
        load_collection(folder, split=split)


def test_judgements_given_take_the_place_of_the_splits(folder: Path, tmp_path: Path) -> None:
    """All queries are kept, there is no split, and a split beside them is refused."""
    qrels = tmp_path / "mine.txt"
    qrels.write_text("q3 0 d1 1\nq4 0 d2 1\n", encoding="utf-8")
    collection = load_collection(folder, qrels=qrels)
    assert (ids(collection), collection.split, collection.left_out) == (["q1", "q2", "q3", "q4"], "", 0)
    assert [query.query_id for query in collection.judged()] == ["q3", "q4"]
    with pytest.raises(RequestError, match=r"^split: a file given as qrels has no splits \(got 'train'\)$"):
        load_collection(folder, split="train", qrels=qrels)


def test_queries_given_take_the_place_of_the_folder_s(folder: Path, tmp_path: Path) -> None:
    """The judgements of the split stay."""
    queries = tmp_path / "queries.tsv"
    queries.write_text("query_id\ttext\nq2\twhat shuts water off\n", encoding="utf-8")
    assert load_collection(folder, queries=queries).queries == (Query(query_id="q2", text="what shuts water off"),)


def test_a_folder_without_a_corpus_has_no_documents(folder: Path) -> None:
    """Queries and judgements can still be used with an index that is there already."""
    collection = load_collection(folder, split="test")
    (folder / "corpus.jsonl").rename(folder / "corpus.away")
    without = load_collection(folder)
    assert not without.has_documents
    assert without.queries == collection.queries
    with pytest.raises(SourceError, match=r"^pumps: has no documents"):
        without.documents()


def test_byte_order_marks_crlf_and_a_missing_header_are_accepted(folder: Path) -> None:
    """Files of Windows read the same and have the same fingerprint."""
    before = load_collection(folder)
    for path in (folder / "queries.jsonl", folder / "qrels" / "test.tsv", folder / "corpus.jsonl"):
        content = path.read_bytes().replace(HEADER.encode(), b"")
        path.write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    after = load_collection(folder)
    assert after == before
    assert after.fingerprint == before.fingerprint
    assert list(after.documents()) == list(before.documents())


def test_an_unstorable_character_is_replaced_in_every_id(folder: Path) -> None:
    """Ids of queries, judgements and units still agree."""
    write_lines(folder / "corpus.jsonl", [{"_id": "d\x001", "text": "one"}])
    write_lines(folder / "queries.jsonl", [{"_id": f"q\x00{number}", "text": "what"} for number in (1, 2)])
    (folder / "qrels" / "train.tsv").write_text("q\x002\td\x001\t1\n", encoding="utf-8")
    (folder / "qrels" / "test.tsv").write_text("q\x001\td\x001\t1\n", encoding="utf-8")
    collection = load_collection(folder)
    assert collection.judgements == {"q�1": {"d�1": 1}}
    assert (ids(collection), collection.left_out) == (["q�1"], 1)
    assert [unit.id for unit in collection.documents()] == ["d�1"]


def test_whole_numbers_are_ids_too(folder: Path) -> None:
    """JSON has numbers where the judgements have text."""
    write_lines(folder / "queries.jsonl", [{"_id": 7, "text": "what"}])
    (folder / "qrels" / "test.tsv").write_text("7\td1\t1\n7\td1\t1\n", encoding="utf-8")
    assert load_collection(folder).judgements == {"7": {"d1": 1}}


BAD_QUERIES = {
    "repeated id": (
        '{"_id": "q1", "text": "a"}\n\n{"_id": "q1", "text": "b"}\n',
        r"line 3: query id 'q1' was used before \(in line 1\)",
    ),
    "blank text": ('{"_id": "q1", "text": "a"}\n{"_id": "q2", "text": "  "}\n', "line 2: query is missing or blank"),
    "no text": ('{"_id": "q1"}\n', "line 1: query is missing or blank"),
    "text of another type": ('{"_id": "q1", "text": 3}\n', r"line 1: query must be text \(got a number\)"),
    "no id": ('{"text": "a"}\n', "line 1: query id is missing or blank"),
    "id of another type": ('{"_id": ["q1"], "text": "a"}\n', r"line 1: query id must be .*\(got a list\)"),
    "metadata of another type": ('{"_id": "q1", "text": "a", "metadata": 1}\n', "line 1: metadata must be an object"),
    "not JSON": ('{"_id": "q1", "text": "a"}\n{"_id":\n', "line 2: not JSON"),
    "not UTF-8": (b'{"_id": "q1", "text": "a"}\n{"_id": "\xff"}\n', "line 2: byte 9 .*not UTF-8"),
    "empty": ("\n \n", r"queries.jsonl: empty \(no query in it\)"),
    "a line without a tab": ("q1 what moves water\n", "line 1: expected a query id, a tab and a text"),
}


@pytest.mark.parametrize(("content", "message"), BAD_QUERIES.values(), ids=BAD_QUERIES.keys())
def test_what_is_wrong_with_queries_is_named_with_its_line(folder: Path, content: str | bytes, message: str) -> None:
    """One line that names the file too."""
    path = folder / "queries.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SourceError, match=message) as caught:
        load_collection(folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


BAD_QRELS = {
    "grade in words": (f"{HEADER}q1\td1\tyes\n", "line 2: grade must be a whole number .*got 'yes'"),
    "grade with a fraction": ("q1\td1\t1\nq2\td1\t0.5\n", "line 2: grade must be a whole number .*got '0.5'"),
    "grade too long": ("q1\td1\t12345678901\n", "line 1: grade must be a whole number of at most 9 digits"),
    "conflict": (
        "q1\td1\t1\nq1\td2\t1\nq1\td1\t2\n",
        r"line 3: unit 'd1' has grade 2 for query 'q1', and grade 1 in line 1",
    ),
    "two columns": ("q1\td1\n", "line 1: expected 3 columns by tabs or 4 columns by blanks"),
    "three columns by blanks": ("q1 d1 1\n", "line 1: expected 3 columns by tabs or 4 columns by blanks"),
    "a column lost": (f"{HEADER}q1\td1\t1\nq1\td2\n", "line 3: expected 3 columns as before"),
    "blank unit": ("q1\t \t1\n", "line 1: unit id is missing or blank"),
    "blank query": ("\td1\t1\n", "line 1: query id is missing or blank"),
    "header only": (HEADER, r"test.tsv: empty \(no judgement in it\)"),
    "empty": ("", r"test.tsv: empty \(no judgement in it\)"),
    "nothing relevant": ("q1\td1\t0\nq2\td1\t-1\n", "no query has a relevant unit"),
    "ids that never meet": (
        "Q1\td1\t1\n",
        "no query has a relevant unit: the judged ids, as 'Q1', are none of the queries', as 'q1'",
    ),
}


@pytest.mark.parametrize(("content", "message"), BAD_QRELS.values(), ids=BAD_QRELS.keys())
def test_what_is_wrong_with_judgements_is_named_with_its_line(folder: Path, content: str, message: str) -> None:
    """One line that names the file too."""
    path = folder / "qrels" / "test.tsv"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(SourceError, match=message) as caught:
        load_collection(folder)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_first_line_with_a_grade_is_no_header(folder: Path) -> None:
    """A query may have the id that a header would have."""
    write_lines(folder / "queries.jsonl", [{"_id": "query-id", "text": "what"}])
    (folder / "qrels" / "test.tsv").write_text("query-id\td1\t1\n", encoding="utf-8")
    assert load_collection(folder).judgements == {"query-id": {"d1": 1}}


def test_another_unit_under_a_known_id_is_refused_and_a_repeat_left_out(folder: Path) -> None:
    """The judgements could mean either of two units."""
    write_lines(folder / "corpus.jsonl", [CORPUS[0], CORPUS[0]])
    assert [unit.id for unit in load_collection(folder).documents()] == ["d1"]
    write_lines(folder / "corpus.jsonl", [CORPUS[0], {"_id": "d1", "text": "Another."}])
    with pytest.raises(SourceError, match=r"line 2: id 'd1' was used by another unit in .*line 1"):
        list(load_collection(folder).documents())


def test_missing_files_are_named(folder: Path, tmp_path: Path) -> None:
    """The folder, the queries and the judgements."""
    with pytest.raises(SourceError, match="nowhere: does not exist"):
        load_collection(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"gone.tsv: cannot be read"):
        load_collection(folder, qrels=tmp_path / "gone.tsv")
    for path in (folder / "qrels").iterdir():
        path.rename(folder / f"{path.name}.away")
    with pytest.raises(SourceError, match=r"qrels: no judgements there"):
        load_collection(folder)
    (folder / "queries.jsonl").rename(folder / "queries.away")
    with pytest.raises(SourceError, match=r"queries.jsonl: does not exist"):
        load_collection(folder, qrels=folder / "test.tsv.away")


def test_the_fingerprint_covers_queries_and_judgements_and_nothing_else(folder: Path) -> None:
    """Order and metadata do not count; a text, a grade, an id each do."""
    before = load_collection(folder).fingerprint
    assert len(before) == 64
    reordered = [{**query, "metadata": {"other": 1}} for query in reversed(QUERIES)]
    write_lines(folder / "queries.jsonl", reordered)
    lines = QRELS.removeprefix(HEADER).splitlines(keepends=True)
    (folder / "qrels" / "test.tsv").write_text("".join(reversed(lines)), encoding="utf-8")
    write_lines(folder / "corpus.jsonl", CORPUS[:1])
    assert load_collection(folder).fingerprint == before
    changed = {before}
    for old, new in (("q1\td1\t2", "q1\td1\t1"), ("q2\td2", "q2\td9"), ("q1\td2\t0\n", "")):
        (folder / "qrels" / "test.tsv").write_text(QRELS.replace(old, new), encoding="utf-8")
        changed.add(load_collection(folder).fingerprint)
    write_lines(folder / "queries.jsonl", [{**QUERIES[0], "text": "what moves air"}, *QUERIES[1:]])
    changed.add(load_collection(folder).fingerprint)
    assert len(changed) == 5


def test_the_survey_counts_what_cannot_be_measured(folder: Path) -> None:
    """Missing units are those that a judged query needs: not one of grade 0, nor one of a query that is not here."""
    write_lines(folder / "queries.jsonl", [*QUERIES, {"_id": "q5", "text": "what moves water"}])
    qrels = f"{QRELS}q5\td1\t0\nq9\td8\t1\nq1\td7\t1\nq2\td0\t0\n"
    (folder / "qrels" / "test.tsv").write_text(qrels, encoding="utf-8")
    survey = load_collection(folder).survey({"d1", "d2"})
    assert survey.to_dict() == {
        "queries": 4,
        "judged": 2,
        "other_splits": 1,
        "without_judgements": {"count": 1, "first": ["q4"]},
        "nothing_relevant": {"count": 1, "first": ["q5"]},
        "judged_without_query": {"count": 1, "first": ["q9"]},
        "missing_units": {"count": 1, "first": ["d7"]},
        "grades": {"0": 3, "1": 3, "2": 1},
        "graded": True,
        "duplicate_query_texts": 1,
    }
    json.dumps(survey.to_dict())


def test_the_survey_may_ask_which_units_are_held(folder: Path) -> None:
    """A function is asked once, for the units that judged queries need."""
    asked: list[list[str]] = []

    def held(unit_ids: Any) -> dict[str, str]:
        asked.append(list(unit_ids))
        return {"d2": "a unit"}

    survey = load_collection(folder).survey(held)
    assert asked == [["d1", "d2"]]
    assert survey.missing_units.first == ("d1",)


def test_the_survey_names_at_most_five_ids(folder: Path) -> None:
    """All are counted."""
    more = [{"_id": f"x{number}", "text": f"text {number}"} for number in range(7)]
    write_lines(folder / "queries.jsonl", [*QUERIES[:2], *more])
    found = load_collection(folder).survey([]).without_judgements
    assert (found.count, found.first) == (7, ("x0", "x1", "x2", "x3", "x4"))


def test_one_grade_above_0_is_not_graded(folder: Path) -> None:
    """Whatever that grade is, and however many there are at 0 or below."""
    (folder / "qrels" / "test.tsv").write_text("q1\td1\t2\nq2\td2\t2\nq2\td1\t0\nq1\td3\t-1\n", encoding="utf-8")
    survey = load_collection(folder).survey([])
    assert not survey.graded
    assert list(survey.grades.items()) == [(-1, 1), (0, 1), (2, 2)]


def test_the_shipped_collection_is_loaded_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """66 requests, of which 59 have an answer among the 180 units."""
    monkeypatch.chdir(tmp_path)
    for source in (SHIPPED, Path(SHIPPED)):
        collection = load_collection(source)
        assert (collection.kind, collection.name, collection.split) == ("shipped", "device_support", "test")
    assert (len(collection.queries), len(collection.judged())) == (66, 59)
    assert sum(map(len, collection.judgements.values())) == 69
    held = {unit.id for unit in collection.documents()}
    survey = collection.survey(held)
    assert (len(held), survey.missing_units.count, survey.graded) == (180, 0, True)


def test_a_folder_of_the_shipped_name_is_given_by_a_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bare name stays the shipped collection."""
    folder.rename(folder.parent / SHIPPED)
    monkeypatch.chdir(folder.parent)
    assert load_collection(SHIPPED).kind == "shipped"
    assert load_collection(f"./{SHIPPED}").kind == "beir"
    assert load_collection(Path(SHIPPED)).kind == "beir"
    with pytest.raises(RequestError, match="there are: test"):
        load_collection(SHIPPED, split="train")


REAL = {"scifact_train": (809, 919, 5183), "hotpotqa_train100": (100, 200, 994), "musique_train100": (100, 237, 1890)}


@pytest.mark.parametrize(("name", "counts"), REAL.items(), ids=REAL.keys())
def test_real_collections_are_read_whole(
    collection_path: Callable[[str], Path], name: str, counts: tuple[int, int, int]
) -> None:
    """Queries, judgements and documents are as many as their sources say, and no relevant unit is missing."""
    collection = load_collection(collection_path(name))
    held = [unit.id for unit in collection.documents()]
    assert (len(collection.queries), sum(map(len, collection.judgements.values())), len(held)) == counts
    survey = collection.survey(set(held))
    assert (survey.judged, survey.missing_units.count, survey.judged_without_query.count) == (counts[0], 0, 0)
