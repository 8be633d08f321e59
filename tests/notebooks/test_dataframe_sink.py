"""dataframe_sink, executed as a user would."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

PATIENCE_S = 240


def test_the_notebook_is_stored_without_outputs(repository: Path) -> None:
    notebook = nbformat.read(repository / "notebooks" / "dataframe_sink.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count, cell.metadata) for cell in code] == [([], None, {})] * len(code)


@pytest.mark.long
@pytest.mark.brokers
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_a_query_that_is_killed_in_the_middle_writes_every_order_once(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    notebook = nbformat.read(repository / "notebooks" / "dataframe_sink.ipynb", as_version=4)
    NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3").execute()
    texts = [output.text for cell in notebook.cells for output in cell.get("outputs", []) if output.get("name") == "stdout"]
    assert texts[-1] == "20,000 accepted orders are there: 0 lost, 0 repeated\n"
    killed = int(texts[-2].split()[1].replace(",", ""))
    assert 0 < killed < 20_000
