"""How many slots a micro-batch of a restore uses."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support import restore_runs
from tests.support.archives import ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.streaming.planning import RestorePlanner
from shallow_mirror.streaming.planning.restore_steps import plan_step


def slots_of(folder: Path, **write: int) -> set[int]:
    """Return the slots of a restore of four partitions with 25 small batches each."""
    partitions = [ORDERS._replace(partition=number) for number in range(4)]
    archive = ArchiveOfTest(archive_config(folder))
    archive.archive({source: [batch(offset, 1) for offset in range(25)] for source in partitions})
    config = restore_runs.config(folder, archive.config, "127.0.0.1:1", write={"slots": 4, "slot_bytes": 1024, **write})
    planner = RestorePlanner(config, ArchiveTable.open(archive.config.table_location), archive.store)
    decided = planner.decide_ranges()
    starts = dict.fromkeys(partitions, 0)
    (step,) = planner.steps(decided, starts)
    ends = {source: offsets.end for source, offsets in decided.ranges.items()}
    return {planned.slot for planned in plan_step(step, starts, ends, config, parallelism=4)}


@pytest.mark.slow
def test_small_batches_share_a_slot_so_that_requests_are_filled(tmp_path: Path) -> None:
    assert slots_of(tmp_path, request_bytes=65536) == {0}


def test_batches_that_fill_requests_alone_use_all_slots(tmp_path: Path) -> None:
    assert slots_of(tmp_path, request_bytes=1) == {0, 1, 2, 3}
