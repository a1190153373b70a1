from __future__ import annotations

from pathlib import Path

import pytest

from bounded_retrieval.errors import RequestError, SourceError
from bounded_retrieval.evaluation.collections import Collection, load_collection


def load(path: Path, content: str) -> Collection:
    """Write a table and load it."""
    path.write_text(content, encoding="utf-8", newline="")
    return load_collection(path)


def rows(collection: Collection) -> list[tuple[str, dict[str, int]]]:
    """Each query's text and grades."""
    return [(query.text, dict(collection.judgements.get(query.query_id, {}))) for query in collection.queries]


FORMS = {
    "by semicolons": "query,relevant\nwhat moves water,d1; d 2;\nwhat heats it,d3\n",
    "by blanks": "Question , Relevant IDs\nwhat moves water,d1  d3\nwhat heats it,d3\n",
    "other names": "text,unit-ids\nwhat moves water,d1\nwhat heats it,d3\n",
    "one a row": "query,unit_id\nwhat moves water,d1; d 2\nwhat moves water,d3\nwhat heats it,d3\n",
    "own grades": "query,ids\nwhat moves water,d1=2;d2=0\nwhat heats it,d3\n",
    "grade column": "query,unit_id,grade\nwhat moves water,a=b,2\nwhat moves water,d2,0\nwhat heats it,d3,1\n",
    "grade column for several": "query,ids,grade\nwhat moves water,a=b d2,2\nwhat heats it,d3,1\n",
}
MEANT = {
    "by semicolons": {"d1": 1, "d 2": 1},
    "by blanks": {"d1": 1, "d3": 1},
    "other names": {"d1": 1},
    "one a row": {"d1; d 2": 1, "d3": 1},
    "own grades": {"d1": 2, "d2": 0},
    "grade column": {"a=b": 2, "d2": 0},
    "grade column for several": {"a=b": 2, "d2": 2},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_a_table_is_read(tmp_path: Path, form: str) -> None:
    """Columns by their names in any case; a grade not given is 1."""
    collection = load(tmp_path / "questions.csv", FORMS[form])
    assert (collection.name, collection.kind, collection.split) == ("questions", "table", "")
    assert rows(collection) == [("what moves water", MEANT[form]), ("what heats it", {"d3": 1})]


def test_a_table_has_no_documents(tmp_path: Path) -> None:
    """It is for an index that is there already."""
    collection = load(tmp_path / "questions.csv", FORMS["by blanks"])
    assert not collection.has_documents
    with pytest.raises(SourceError, match=r"^questions: has no documents"):
        collection.documents()


def test_a_query_without_an_id_is_named_by_its_text(tmp_path: Path) -> None:
    """The name does not depend on the row, so that repeated rows of a query are one query."""
    first = load(tmp_path / "one.csv", "query,unit_id\nwhat,d1\nwhich,d2\n what,d3\n")
    second = load(tmp_path / "two.csv", "id,query,unit_id\n,which,d2\n,what,d1\n,what,d3\n")
    assert first.fingerprint == second.fingerprint
    assert len(first.queries) == 2
    assert all(query.query_id.startswith("q-") for query in first.queries)


def test_ids_and_other_columns_are_kept(tmp_path: Path) -> None:
    """Other columns are metadata of the query's first row; blank cells are none."""
    table = "query_id,query,relevant,Team,note\n q1 ,what,d1,field,\nq1,what,d2,other,later\nq2,what,,,\n"
    collection = load(tmp_path / "questions.csv", table)
    assert [(query.query_id, query.text) for query in collection.queries] == [("q1", "what"), ("q2", "what")]
    assert collection.queries[0].metadata == {"Team": "field"}
    assert collection.judgements == {"q1": {"d1": 1, "d2": 1}}
    assert collection.survey([]).without_judgements.first == ("q2",)


def test_tables_by_tabs_and_of_spreadsheets_are_read(tmp_path: Path) -> None:
    """A byte order mark, line ends of Windows, blank rows, and cells between quotes with separators and line ends."""
    by_tabs = load(tmp_path / "questions.TSV", "query\trelevant\nwhat, exactly?\td1\n")
    assert rows(by_tabs) == [("what, exactly?", {"d1": 1})]
    table = '\ufeffquery,relevant,\r\n"what, ""exactly""\r\nis it?",d1,\r\n,,\r\n\r\nwhich,d2,\r\n'
    collection = load(tmp_path / "questions.csv", table)
    assert rows(collection) == [('what, "exactly"\r\nis it?', {"d1": 1}), ("which", {"d2": 1})]


BAD = {
    "no query column": ("id,relevant\nq1,d1\n", "line 1: no column query, question or text"),
    "no relevant column": ("query;relevant\nwhat;d1\n", "line 1: no column query, question or text .*'query;relevant'"),
    "no unit column": ("query,answer\nwhat,d1\n", "line 1: no column relevant, relevant_ids, unit_ids, ids or unit_id"),
    "both unit columns": ("query,ids,unit_id\nwhat,d1,d1\n", "line 1: columns ids and unit_id exclude each other"),
    "a column twice": ("query,ids,Query\nwhat,d1,which\n", "line 1: two columns are named 'query'"),
    "blank query": ("query,ids\nwhat,d1\n ,d2\n", "line 3: query is missing or blank"),
    "another text": ("id,query,ids\nq1,what,d1\nq1,which,d2\n", "line 3: query id 'q1' has another text"),
    "own grade": ("query,ids\nwhat,d1=high\n", "line 2: grade must be a whole number .*'d1=high'.*grade column"),
    "own grade too long": (
        "query,ids\nwhat,d1=99999999999999999999\n",
        "line 2: grade must be a whole number of at most 9 digits .*'d1=99999999999999999999'",
    ),
    "grade": ("query,unit_id,grade\nwhat,d1,2\nwhich,d1,1.5\n", "line 3: grade must be a whole number .*'1.5'"),
    "blank grade": ("query,unit_id,grade\nwhat,d1,\n", "line 2: grade must be a whole number"),
    "conflict": ('query,ids\n"what",d1\n\nwhat,d1=2\n', "line 4: unit 'd1' has grade 2 .* and grade 1 in line 2"),
    "blank unit": ("query,ids\nwhat,=2\n", "line 2: unit id is missing or blank"),
    "cells too many": ("query,ids\nwhat, exactly,d1\n", "line 2: 3 cells under 2 columns"),
    "open quote": ('query,ids\n"what,d1\n', "line 2: not a row of a table"),
    "empty": ("", r"empty \(no row in it\)"),
    "header only": ("query,ids\n", r"empty \(no query in it\)"),
    "no judgement": ("query,ids\nwhat,\n", r"empty \(no judgement in it\)"),
    "nothing relevant": ("query,ids\nwhat,d1=0\n", "no query has a relevant unit"),
}


@pytest.mark.parametrize(("content", "message"), BAD.values(), ids=BAD.keys())
def test_what_is_wrong_with_a_table_is_named_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    """The line is that where the row begins."""
    path = tmp_path / "questions.csv"
    with pytest.raises(SourceError, match=message) as caught:
        load(path, content)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_table_takes_no_split_and_no_other_labels(tmp_path: Path) -> None:
    """It brings its own."""
    path = tmp_path / "questions.csv"
    load(path, FORMS["by blanks"])
    with pytest.raises(RequestError, match=r"split: a table has no splits \(got 'dev'\)"):
        load_collection(path, split="dev")
    with pytest.raises(RequestError, match="a table has its own queries and judgements"):
        load_collection(path, queries=path)
