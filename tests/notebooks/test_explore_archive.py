"""explore_archive, executed on a small archive as a user would."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient
from tests.support.archives import ORDERS, OTHER, PAYMENTS, SmallArchive
from tests.support.record_batches import batch, record
from tests.support.record_encoders import ENCODERS

from shallow_mirror.types import SegmentKind

START_MS = 1_777_593_600_000
"""2026-05-01T00:00:00Z"""
PATIENCE_S = 240
COMPUTED = (
    'print(json.dumps({"holdings": holdings[["source_topic", "source_partition", "first", "end", "records", "missing"]].values.tolist(), '
    '"offset": record.offset, "codecs": codecs[["topic", "codec", "records"]].values.tolist(), "bars": len(axes.patches)}))'
)


@pytest.fixture
def path(repository: Path) -> Path:
    return repository / "notebooks" / "explore_archive.ipynb"


def test_the_notebook_is_stored_without_outputs_and_paths_of_a_machine(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count, cell.metadata) for cell in code] == [([], None, {})] * len(code)
    assert not re.search(r"/(home|Users|root|tmp|work|private|var)/", path.read_text(encoding="utf-8"))


def test_without_an_archive_file_the_notebook_says_what_to_set(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHALLOW_MIRROR_CONF", raising=False)
    (cell,) = (cell for cell in nbformat.read(path, as_version=4).cells if cell.id == "parameters")
    with pytest.raises(ValueError, match="no archive file: set the widget `conf`, or the environment variable"):
        exec(compile(cell.source, "parameters", "exec"), {})


def timed(base_offset: int, count: int, seconds: int, codec: str = "none") -> bytes:
    attributes, encode = ENCODERS[codec]
    block = b"".join(record(delta, b"key", b"value") for delta in range(count))
    return batch(base_offset, count, payload=encode(block), attributes=attributes, timestamp=START_MS + 1_000 * seconds)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_it_shows_what_is_archived_finds_a_record_and_draws_bytes(path: Path, tmp_path: Path) -> None:
    archive = SmallArchive(tmp_path)
    archive.add_gap(ORDERS, 0, 5, SegmentKind.EXPIRED)
    archive.add_object([{ORDERS: timed(5, 5, 0) + timed(10, 10, 60, "zstd"), OTHER: timed(0, 3, 0, "gzip")}])
    archive.add_object([{ORDERS: timed(20, 10, 120, "zstd"), PAYMENTS: timed(0, 2, 120, "lz4")}])
    conf = tmp_path / "archive.yaml"
    conf.write_text(
        "archive: backup\nsource: {alias: east, client: {bootstrap.servers: 'localhost:9092'}}\n"
        "topics: {include: ['.*']}\nobjects: objects\ntables: tables\n"
    )
    assert executed(path, tmp_path, conf=conf, at="2026-05-01T00:00:30Z") == {
        "holdings": [["orders", 0, 5, 30, 25, 5.0], ["orders", 1, 0, 3, 3, 0.0], ["payments", 0, 0, 2, 2, 0.0]],
        "offset": 10,
        "codecs": [["orders", "gzip", 3], ["orders", "none", 5], ["orders", "zstd", 20], ["payments", "lz4", 2]],
        "bars": 8,
    }


def executed(path: Path, folder: Path, **parameters: object) -> Any:
    """Return what COMPUTED prints behind the last cell."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell(f"import json\n{COMPUTED}", id="computed"))
    with pytest.MonkeyPatch.context() as patch:
        for variable in [name for name in os.environ if name.startswith("SHALLOW_MIRROR_") and name != "SHALLOW_MIRROR_CACHE"]:
            patch.delenv(variable)
        for parameter, value in parameters.items():
            patch.setenv(f"SHALLOW_MIRROR_{parameter.upper()}", str(value))
        patch.setenv("TMPDIR", str(folder))
        NotebookClient(notebook, timeout=PATIENCE_S, kernel_name="python3").execute()
    (output,) = (output for output in notebook.cells[-1].outputs if output.get("name") == "stdout")
    return json.loads(output.text)
