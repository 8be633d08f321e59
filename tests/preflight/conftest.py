"""Two strict clusters and the mirror file between them; the mirror itself never runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support import mirror_runs as runs

from shallow_mirror.config import MirrorConfig
from shallow_mirror.preflight import PreflightReport, preflight_mirror

OPEN: dict[str, Any] = {"message.timestamp.after.max.ms": "9223372036854775807"}
"""A target topic that takes every time."""


class Planned:
    """A mirror that was written down and never ran. `settings` go into the mirror file, as in `tests.support.mirror_runs`."""

    def __init__(self, folder: Path, source: StrictCluster, target: StrictCluster) -> None:
        self.folder, self.source, self.target = folder, source, target

    def config(self, *include: str, **settings: Any) -> MirrorConfig:
        return runs.config(self.folder, self.source.bootstrap, self.target.bootstrap, include or [".*"], **settings)

    def check(self, sample_bytes: int | None = None, **settings: Any) -> PreflightReport:
        return preflight_mirror(self.config(**settings), sample_bytes=sample_bytes)

    def topic(self, name: str, partitions: int = 1, /, **target: str) -> None:
        """On both clusters; on the target with settings that take everything, and `target`."""
        self.source.create_topic(name, partitions)
        self.target.create_topic(name, partitions, **(OPEN | target))


@pytest.fixture
def planned(tmp_path: Path) -> Iterator[Planned]:
    with StrictCluster(cluster_id="east-id") as source, StrictCluster(cluster_id="west-id") as target:
        yield Planned(tmp_path, source, target)
