"""A few kills of an archive and of a restore; all of them, and faults of the object store, are campaigns of `make faults`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.faults import archive_steps, process_faults, steps
from tests.faults.archive_rounds import ArchiveScene
from tests.faults.campaigns import KILL
from tests.faults.cases import Case, assert_nothing_differs
from tests.faults.mirror_process import WITHOUT_SPARK
from tests.faults.restore_rounds import RestoreScene

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(300)]

CASES: list[Case] = [
    (KILL, archive_steps.STORED),
    (KILL, archive_steps.DECIDED),
    (process_faults.KillTask(), archive_steps.PRODUCED),
]


def test_a_killed_archive_has_every_batch_once_and_leaves_no_orphan(two_clusters: Any, tmp_path: Path) -> None:
    source = two_clusters.source
    with ArchiveScene(
        tmp_path / "archive", source.bootstrap, "", name="archived", engine=WITHOUT_SPARK, source_node=source
    ) as scene:
        endings = assert_nothing_differs(scene, CASES)
    assert endings == ["killed, started again"] * 2 + ["ended with exit code 1, started again"]


@pytest.mark.long
def test_a_killed_restore_continues_and_the_target_equals_the_source_up_to_the_cut(two_clusters: Any, tmp_path: Path) -> None:
    source, target = two_clusters.source, two_clusters.target
    with RestoreScene(
        tmp_path / "restore",
        source.bootstrap,
        target.bootstrap,
        name="drill",
        engine=WITHOUT_SPARK,
        source_node=source,
        archived_bytes=1_000_000,
    ) as scene:
        done = scene.round(KILL, steps.DECIDED)
        checked = done.checked.result()
    assert (done.ending, checked.differences, done.left_behind) == ("killed, started again", (), ())
    assert checked.records > 0
