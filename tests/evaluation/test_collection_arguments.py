"""Arguments of another type are refused when a test collection is asked for, in one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bounded_retrieval.errors import RequestError
from bounded_retrieval.evaluation.collections import SHIPPED, load_collection

REFUSED = [
    ({"source": 5}, r"source: expected a name or a path \(got 5\)"),
    ({"source": None}, r"source: expected a name or a path \(got None\)"),
    ({"source": b"device_support"}, r"source: expected a name or a path \(got b'device_support'\)"),
    ({"source": SHIPPED, "split": 5}, r"split: expected a name \(got 5\)"),
    ({"source": SHIPPED, "split": []}, r"split: expected a name \(got \[\]\)"),
    ({"source": SHIPPED, "queries": 5}, r"queries: expected a path \(got 5\)"),
    ({"source": SHIPPED, "qrels": [Path("q.tsv")]}, r"qrels: expected a path \(got \[.+\]\)"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_an_argument_of_another_type_is_refused(given: dict[str, Any], message: str) -> None:
    """The parameter and the value are named."""
    with pytest.raises(RequestError, match=f"^{message}$"):
        load_collection(**given)


def test_the_files_of_queries_and_judgements_may_be_given_as_text(tmp_path: Path) -> None:
    """As the source may."""
    (tmp_path / "queries.jsonl").write_text('{"_id": "1", "text": "pump"}\n', encoding="utf-8")
    (tmp_path / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n", encoding="utf-8")
    given: dict[str, Any] = {name: str(tmp_path / name) for name in ("queries.jsonl", "qrels.tsv")}
    collection = load_collection(SHIPPED, queries=given["queries.jsonl"], qrels=given["qrels.tsv"])
    assert [query.text for query in collection.queries] == ["pump"]
