from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "benchmarks" / "ablation.py"
SUBJECTS = (
    "pump",
    "valve",
    "filter",
    "sensor",
    "gateway",
    "printer",
    "charger",
    "probe",
    "dock",
    "motor",
    "relay",
    "fan",
)


def _folder(root: Path) -> Path:
    """A BEIR folder of twelve units and as many queries, every other one in words that only its unit's meaning has."""
    folder = root / "manuals"
    (folder / "qrels").mkdir(parents=True)
    units = [
        {"_id": f"u{place}", "title": subject, "text": f"Clean the {subject} with a dry cloth before the shift ends."}
        for place, subject in enumerate(SUBJECTS)
    ]
    queries = [
        {"_id": f"q{place}", "text": f"How do I clean the {subject}?" if place % 2 else f"wiping dust off a {subject}"}
        for place, subject in enumerate(SUBJECTS)
    ]
    for name, records in {"corpus": units, "queries": queries}.items():
        lines = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    judged = "".join(f"q{place}\tu{place}\t1\n" for place in range(len(SUBJECTS)))
    (folder / "qrels" / "test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script writes of one small collection, beside its Markdown and its picture."""
    root = tmp_path_factory.mktemp("ablation")
    collection = _folder(root)
    written = root / "ablation.json"
    command = [sys.executable, str(SCRIPT), "--collections", str(root), collection.name, "--json", str(written)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(root / "cache")}
    finished = subprocess.run(
        [*command, "--plot", str(root / "curves.svg")],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert (root / "ablation.md").read_text(encoding="utf-8").startswith("# Ablation")
    assert "</svg>" in (root / "curves.svg").read_text(encoding="utf-8")
    return json.loads(written.read_text(encoding="utf-8"))


def test_every_fusion_assessor_and_depth_has_its_row(report: dict[str, Any]) -> None:
    """Three assessors by two fusions by three depths, and the three settings of the scorecard, for the mean as for the collection."""
    assert set(report["collections"]) == {"manuals"}
    for scope in ("all", "manuals"):
        assert len(report["assessors"][scope]) == 3 * 2 * 3
        assert len(report["scorecard_settings"][scope]) == 3


def test_no_assessor_is_above_the_ceiling(report: dict[str, Any]) -> None:
    """At each number of dense calls the oracle is as good as any assessor, and as random stopping."""
    rows = report["curves"]["at"]
    assert [row["dense_calls"] for row in rows] == [0.4, 0.5, 0.6, 0.8]
    for row in rows:
        found = [row[name] for name in ("floor", "term_coverage", "idf_coverage", "scorecard") if row[name] is not None]
        assert found
        assert max(found) <= row["ceiling"] + 1e-9
