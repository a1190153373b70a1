from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
WITH_PICTURES = {"01_first_tour", "03_stop_or_continue", "05_experiment"}
NAMES = sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))

PATIENCE_S = 600
"""When a cell that does not end is given up, so that a fault does not hang the tests; some ten times what a notebook
takes, and nothing is compared with it."""

# Run in the kernel before the notebook: any connection that would leave this machine is an error.
OFFLINE = """
import sys

def _refuse(event, given):
    if event == "socket.getaddrinfo" and given[0] not in (None, "", "localhost", "127.0.0.1", "::1"):
        raise OSError(f"offline: {given[0]}")
    if event == "socket.connect" and isinstance(given[1], tuple) and not given[1][0].startswith(("127.", "::1")):
        raise OSError(f"offline: {given[1][0]}")

sys.addaudithook(_refuse)
"""


def read(name: str) -> NotebookNode:
    """A notebook as it stands in the repository, checked against the notebook format."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    return notebook


def outputs(notebook: NotebookNode) -> list[NotebookNode]:
    """Every output of every code cell, in order."""
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@pytest.fixture(scope="module")
def executed() -> dict[str, NotebookNode]:
    """Notebooks that have been executed, by name."""
    return {}


@pytest.fixture(params=NAMES)
def run(
    request: pytest.FixtureRequest,
    executed: dict[str, NotebookNode],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[str, NotebookNode]:
    """A notebook executed once, offline, in an empty directory and without the user's own Jupyter settings."""
    name = request.param
    if name not in executed:
        for variable in ("IPYTHONDIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
            monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
        folder = tmp_path / "empty"
        folder.mkdir()
        notebook = read(name)
        notebook.cells.insert(0, nbformat.v4.new_code_cell(OFFLINE, id="offline"))
        client = NotebookClient(
            notebook, kernel_name="python3", timeout=PATIENCE_S, resources={"metadata": {"path": str(folder)}}
        )
        client.execute()
        notebook.metadata["left_behind"] = [path.name for path in folder.iterdir()]
        executed[name] = notebook
    return name, executed[name]


def test_the_five_notebooks_are_there() -> None:
    """A first tour, a chain and an agent, stop or continue, the recursive chain, and the experiment."""
    assert NAMES == [
        "01_first_tour",
        "02_rag_chain_and_agent",
        "03_stop_or_continue",
        "04_recursive_chain",
        "05_experiment",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_without_outputs(name: str) -> None:
    """No outputs, no counters, no machine's metadata; cell ids are declared ones, so that diffs show what changed."""
    notebook = read(name)
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert outputs(notebook) == []
    assert {cell.execution_count for cell in notebook.cells if cell.cell_type == "code"} == {None}
    ids = [cell.id for cell in notebook.cells]
    assert ids == [f"{name[3:].replace('_', '-')}-{number:02}" for number in range(1, len(ids) + 1)]


def test_a_notebook_runs_without_error(run: tuple[str, NotebookNode]) -> None:
    """Every cell runs offline, says nothing on standard error and leaves no file behind."""
    _, notebook = run
    assert notebook.metadata["left_behind"] == []
    assert [output for output in outputs(notebook) if output.output_type in ("error", "stream")] == []
    assert "Traceback" not in nbformat.writes(notebook)


def test_results_are_tables_and_pictures(run: tuple[str, NotebookNode]) -> None:
    """Results are HTML tables, with pictures where there is something to see; none is a printed dict."""
    name, notebook = run
    shown = [output.data for output in outputs(notebook)]
    assert sum("<table>" in data.get("text/html", "") for data in shown) >= 5
    assert any("image/png" in data for data in shown) == (name in WITH_PICTURES)
    assert [data["text/plain"] for data in shown if set(data) == {"text/plain"}] == []
