from __future__ import annotations

import csv
import html
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from bounded_retrieval.evaluation.collections import load_collection

Grades = Mapping[str, Mapping[str, int]]

# Characters that mean something in one form or another stand among letters, digits and signs of several scripts; only
# what a form cannot say is left out: blanks and "=" or ";" in ids.
LETTERS = "abcXYZ019äßЖ中é'\"<>&,.:;=#/|-_()[]{}%$\\"
IDS = st.text("abcXYZ019äßЖ中'\"<>&,.:#/|-_()[]{}%$\\", min_size=1, max_size=6)
TEXTS = st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=5).map(" ".join)


@st.composite
def labels(draw: st.DrawFn) -> tuple[dict[str, str], Grades]:
    """Texts by query id, and grades by query and unit id, at least one of them above 0."""
    texts = draw(st.dictionaries(IDS, TEXTS, min_size=1, max_size=5))
    judged = draw(st.lists(st.sampled_from(sorted(texts)), min_size=1, unique=True))
    grades = {query_id: draw(st.dictionaries(IDS, st.integers(-2, 3), min_size=1, max_size=4)) for query_id in judged}
    first = grades[judged[0]]
    first[next(iter(first))] = draw(st.integers(1, 3))
    return texts, grades


def rows(grades: Grades) -> list[tuple[str, str, int]]:
    """One row for each judgement."""
    return [(query_id, unit_id, grade) for query_id, units in grades.items() for unit_id, grade in units.items()]


def write_beir(folder: Path, texts: Mapping[str, str], grades: Grades) -> Path:
    """The labels as a BEIR folder."""
    (folder / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": query_id, "text": query}) for query_id, query in texts.items()]
    (folder / "queries.jsonl").write_text("\n".join(lines), encoding="utf-8")
    judged = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in rows(grades))]
    (folder / "qrels" / "test.tsv").write_text("\n".join(judged), encoding="utf-8")
    return folder


def write_trec(folder: Path, texts: Mapping[str, str], grades: Grades) -> Path:
    """The labels as topics and judgements of TREC, in the opposite order."""
    folder.mkdir()
    topics = [
        f"<top>\n<num> Number: {html.escape(query_id)}\n<title> {html.escape(query)}\n</top>\n"
        for query_id, query in reversed(texts.items())
    ]
    (folder / "topics.txt").write_text("".join(topics), encoding="utf-8")
    judged = [f"{query_id} 0 {unit_id} {grade}\n" for query_id, unit_id, grade in reversed(rows(grades))]
    (folder / "qrels.txt").write_text("".join(judged), encoding="utf-8")
    return folder


def write_table(path: Path, texts: Mapping[str, str], grades: Grades) -> Path:
    """The labels as a table: a row for each query, with graded ids between blanks."""
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["id", "query", "relevant"])
        for query_id, query in texts.items():
            units = grades.get(query_id, {}).items()
            table.writerow([query_id, query, " ".join(f"{unit_id}={grade}" for unit_id, grade in units)])
    return path


@settings(max_examples=60, deadline=None)
@given(labels())
def test_the_same_labels_read_the_same_in_every_form(held: tuple[dict[str, str], Grades]) -> None:
    """A BEIR folder, files of TREC and a table give the texts and grades written, and share one fingerprint."""
    texts, grades = held
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        collections = [
            load_collection(write_beir(root / "beir", texts, grades)),
            load_collection(write_trec(root / "trec", texts, grades)),
            load_collection(write_table(root / "table.csv", texts, grades)),
        ]
    assert [collection.kind for collection in collections] == ["beir", "trec", "table"]
    for collection in collections:
        assert {query.query_id: query.text for query in collection.queries} == texts
        assert collection.judgements == grades
    assert len({collection.fingerprint for collection in collections}) == 1
