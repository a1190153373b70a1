"""The code of docs/scaling.md is run against real servers, and its table is the measured one."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from langchain_core.documents import Document

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^<!-- run -->\n```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_code_of_the_page_runs(
    milvus: Any, pgvector: Any, chroma: Any, embedding: Any, shipped: list[Document]
) -> None:
    """Every Python block, in order; the three graphs give the same packet."""
    blocks = BLOCK.findall(PAGE)
    assert len(blocks) == PAGE.count("```python") == 3
    given = {"documents": shipped, "embedding": embedding, "MILVUS": milvus.uri, "POSTGRES": pgvector.url}
    namespace: dict[str, Any] = given | {"CHROMA_PORT": chroma.port}
    for block in blocks:
        exec(compile(block, "docs/scaling.md", "exec"), namespace)
    packets = [namespace[f"{name}_packet"] for name in ("milvus", "pgvector", "chroma")]
    assert packets[0].items[0].unit_id == "hx-210-pairing"
    assert len({(packet.stop_reason, *(item.unit_id for item in packet.items)) for packet in packets}) == 1
    for name in ("store", "vectors", "served"):
        namespace[name].close()


def test_the_table_of_sizes_is_the_measured_one() -> None:
    """Every row that benchmarks/servers.py wrote stands on the page, and no other between the marks."""
    measured = (ROOT / "benchmarks" / "servers.md").read_text(encoding="utf-8")
    shown = PAGE.partition("<!-- measured -->\n")[2].partition("<!-- end of the measured rows -->")[0]
    assert shown.strip() == measured.strip()
    assert len(measured.strip().splitlines()) > 4
