from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
REFUSED = "no network here"

WITHOUT_NETWORK = f"""
import runpy, sys

def refuse(event, _):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.sendmsg"):
        print({REFUSED!r}, event, file=sys.stderr)
        raise OSError({REFUSED!r})

sys.addaudithook(refuse)
runpy.run_path(sys.argv[1], run_name="__main__")
"""

SHOWN = {
    "retrieval_controller.py": (
        "How do I pair the HX-210 probe with the GT-40 gateway?",
        "stopped: proxy_sufficient (provisional)",
        "spent:   1 of 2 calls, 0 of them dense",
        "stopped: resource_budget_exhausted (unresolved)",
        "- policy-transit: Claims for damage in transit",
        "missing: hx-220",
        "carried, not enforced",
    ),
    "rag_chain.py": (
        "- policy-transit: Claims for damage in transit (dense rank 1",
        "told the model: The search stopped with resource_budget_exhausted. Words no passage holds: parcel,",
        "answer (scripted): Report it within three working days",
    ),
    "agent_with_tool.py": (
        "ai: (calls bounded_retrieval)",
        "Words of the query that no passage holds: hx-220",
        "ai: No passage mentions hx-220, so I cannot say. The nearest passages: hx-200-battery",
        "artifact: resource_budget_exhausted (unresolved), 2 calls",
    ),
    "revoked_access.py": (
        "nothing changes: ['pump-reset', 'pump-code']",
        "revoked while the run is under way: ['pump-reset']",
        "proxy_sufficient, unresolved, calls 1, notes ['dropped_at_recheck']",
        "only the diagnostics sink is told: {'pump-code': 'denied'}",
    ),
    "parent_graph_fan_out.py": (
        "a branch decides: scorecard 0.47 against 0.27, so recheck_and_pack",
        "a branch decides: scorecard 0.07 against 0.27, so recheck_and_pack",
        "proxy_sufficient; missing: -",
        "resource_budget_exhausted; missing: mount, vehicle, dashboard",
    ),
    "migrating_from_ensemble.py": (
        "EnsembleRetriever: 8              BoundedRetriever: 4",
        "stopped: proxy_sufficient; packed from: lexical\n",
        "stopped: resource_budget_exhausted; packed from: dense and lexical",
        "missing: parcel, smashed, courier",
    ),
}
"""Of each example, lines that only the real outcome prints."""


def test_every_example_is_run() -> None:
    """No example is left out below."""
    assert set(SHOWN) == {path.name for path in (ROOT / "examples").glob("*.py")}


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_runs_offline(name: str) -> None:
    """From the repository root, without any network, it ends well and prints what really happened."""
    command = [sys.executable, "-c", WITHOUT_NETWORK, f"examples/{name}"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert "Traceback" not in run.stderr
    assert REFUSED not in run.stderr
    for line in SHOWN[name]:
        assert line in run.stdout


def test_the_network_really_is_refused(tmp_path: Path) -> None:
    """A control: the same way of running a script keeps it from reaching anything."""
    script = tmp_path / "script.py"
    script.write_text("import socket\nsocket.create_connection(('127.0.0.1', 9))\n")
    run = subprocess.run(
        [sys.executable, "-c", WITHOUT_NETWORK, str(script)], capture_output=True, text=True, check=False
    )
    assert run.returncode != 0
    assert REFUSED in run.stderr
