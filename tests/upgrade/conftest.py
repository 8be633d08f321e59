"""Tables and checkpoints that earlier commits wrote."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

_CAPTURED = sorted(Path(__file__).parent.glob("tables-*.tar.xz"))


class Captured(NamedTuple):
    """`folder`: the mirror file and the tables; `contents`: what the commit itself read from them."""

    folder: Path
    contents: Any


@pytest.fixture(params=_CAPTURED, ids=lambda file: file.name.partition(".")[0])
def captured(request: pytest.FixtureRequest, tmp_path: Path) -> Captured:
    """Return a copy of what a commit has written."""
    file: Path = request.param
    with tarfile.open(file) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = file.with_name(file.name.replace(".tar.xz", ".json"))
    return Captured(tmp_path, json.loads(expected.read_text(encoding="utf-8")))
