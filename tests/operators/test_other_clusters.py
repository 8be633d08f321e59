"""The addresses of a mirror lead to another cluster: what that one answers is no state of the mirror."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.operators.surroundings import isolating_world

from shallow_mirror.operations.status import gather_status

pytestmark = pytest.mark.usefixtures("without_logging")


@pytest.mark.parametrize("side", ["source", "target"])
def test_status_names_it_and_shows_no_log_ends_of_it(tmp_path: Path, side: str) -> None:
    with isolating_world(tmp_path / "world") as world:
        getattr(world, side).state.cluster_id = "another-cluster"
        report = gather_status(world.config)
        assert "answers as cluster another-cluster" in (getattr(report, f"{side}_problem") or "")
        assert all(partition.end is None for partition in report.partitions) is (side == "source")
