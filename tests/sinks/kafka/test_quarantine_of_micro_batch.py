"""The driver's part of a quarantine: rows of the table in front of the decision, and limits of all slots and rounds together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.checkpoints.map_rows import SOURCE, TARGET, run_of
from tests.sinks.micro_batches import micro_batch_sink, planned_frame
from tests.sinks.two_strict_clusters import Clusters
from tests.support.mirror_runs import CrashAt, CrashError
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.logs.quarantine import Quarantine, QuarantineTable
from shallow_mirror.errors import BatchRefusedError
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.kafka.protocol import actions
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.types import QuarantineLimits, Segment, SegmentKind

RAW = batch(0, 2)


def refused(slot: int, start: int = 0, *, is_partial: bool = False) -> SlotResult:
    """Return the result of a slot whose only batch was refused."""
    source, target = SOURCE._replace(partition=slot), TARGET._replace(partition=slot)
    end = start + 2
    segment = Segment(source=source, source_start=start, source_end=end, kind=SegmentKind.QUARANTINED, target=target)
    kept = QuarantinedBatch(
        source=source, source_start=start, source_end=end, target=target, error_name=None, rule="too old",
        remedy="Wait", batch=RAW,
    )  # fmt: skip
    return SlotResult(slot, None, (segment,), is_partial=is_partial, quarantined=(kept,))


class Driver:
    """A sink without a target: what slots answer is given, round by round."""

    def __init__(self, tables: str, clusters: Clusters, limits: QuarantineLimits, observer: Any = lambda _point: None) -> None:
        self.owner = LedgerOwner.take_over(
            tables, name="m", source_cluster_id="S", target_cluster_id="T", run=run_of(str(observer)), now_ms=lambda: 1
        )
        self.owner.settle()
        self.fenced: list[str] = []
        self.availability = TargetAvailability()
        self.sink = micro_batch_sink(
            self.owner,
            self,
            clusters.job({}, quarantine=limits),
            slots=2,
            observer=observer,
            quarantine=QuarantineTable.open(tables),
            quarantine_limits=limits,
        )

    def perform(self, action: actions.Action, _deadline: object) -> Any:
        match action:
            case actions.TakeDecision():
                return self.owner.next_decision()
            case actions.InitProducerId(name):
                self.fenced.append(name)
        return None

    def copy(self, *rounds: Sequence[SlotResult]) -> None:
        self.sink(planned_frame(iter(rounds)), 0)


@pytest.mark.slow
def test_a_crash_before_the_decision_leaves_rows_without_effect(tmp_path: Path, clusters: Clusters) -> None:
    tables, limits = str(tmp_path), QuarantineLimits(batches=9, size_bytes=9000)
    with pytest.raises(CrashError):
        Driver(tables, clusters, limits, CrashAt("quarantine.written")).copy([refused(0)])
    assert Quarantine.open(tables).entries() == ()
    driver = Driver(tables, clusters, limits)
    driver.copy([refused(0, is_partial=True)], [refused(0, 2), refused(1)])
    driver.owner.settle()
    quarantine = Quarantine.open(tables)
    assert [(entry.segment.source.partition, entry.segment.source_start) for entry in quarantine.entries()] == [
        (0, 0),
        (0, 2),
        (1, 0),
    ]
    assert {quarantine.batch(entry).batch for entry in quarantine.entries()} == {RAW}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rounds", "decided"),
    [(([refused(0), refused(1)],), 0), (([refused(0, is_partial=True)], [refused(0, 2)]), 1)],
    ids=["of two slots", "of two rounds"],
)
def test_the_limits_are_those_of_a_whole_micro_batch(
    tmp_path: Path, clusters: Clusters, rounds: Sequence[Sequence[SlotResult]], decided: int
) -> None:
    driver = Driver(str(tmp_path), clusters, QuarantineLimits(batches=1, size_bytes=9000))
    with pytest.raises(BatchRefusedError, match=r"too old; and more than write\.max_quarantined_batches=1 .* Wait\."):
        driver.copy(*rounds)
    assert driver.owner.micro_batch == decided
    assert driver.fenced == ["m-0", "m-1"], "what slots left open is aborted at once"
    driver.copy([refused(1)])
    driver.owner.settle()
    assert len(Quarantine.open(str(tmp_path)).entries()) == decided + 1
