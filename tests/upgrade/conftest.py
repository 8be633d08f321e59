"""Tables and checkpoints that earlier commits wrote."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_CAPTURED = sorted(Path(__file__).parent.glob("tables-*.tar.xz"))


class Captured(NamedTuple):
    """`folder`: the mirror file and the tables; `contents`: what the commit itself read from them.

    `has_run_checksums`: its archive has a checksum of each run of batches, as all have since 0.2.0.
    """

    folder: Path
    contents: Any
    has_run_checksums: bool


@pytest.fixture(params=_CAPTURED, ids=lambda file: file.name.partition(".")[0])
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> Captured:
    """Return a copy of what a commit has written."""
    file: Path = request.param
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = file.with_name(file.name.replace(".tar.xz", ".json"))
    return Captured(tmp_path, json.loads(expected.read_text(encoding="utf-8")), has_run_checksums="6e72faf" not in file.name)
