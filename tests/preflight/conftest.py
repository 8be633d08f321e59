"""Two strict clusters and the mirror file between them; the mirror itself never runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster
from tests.support import mirror_runs as runs
from tests.verify.mirrored import kafka_text

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.config import MirrorConfig
from shallow_mirror.preflight import PreflightReport, preflight_mirror
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

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


def mirrored_up_to(
    planned: Planned, config: MirrorConfig, topic: str, position: int, *, shift: int = 0, shared_producer_id: int | None = None
) -> None:
    """Write an offset map as a mirror leaves it that has copied partition 0 of `topic` so far.

    `shared_producer_id`: of the writers of a preserved topic.
    """
    owner = LedgerOwner.take_over(
        config.tables,
        name=config.mirror,
        source_cluster_id=planned.source.cluster_id,
        target_cluster_id=planned.target.cluster_id,
        run=RunIdentity(run_id="r", host="here", pid=7, started_at_ms=1_000),
        now_ms=lambda: 1_000,
    )
    ids = [kafka_text(cluster.topic_ids[topic]) for cluster in (planned.source, planned.target)]
    source, target = SourcePartition(topic, ids[0], 0), TargetPartition(topic, ids[1], 0)
    copied = Segment(
        source=source, source_start=0, source_end=position, kind=SegmentKind.DATA, target=target,
        target_start=shift, target_end=position + shift, record_count=position, batch_count=1,
    )  # fmt: skip
    owner.settle()
    owner.next_decision()
    txn = SlotTxn("m-0", 1, 1) if shared_producer_id is None else None
    owner.decide([DecidedSegment(copied, txn, shared_producer_id=shared_producer_id)], highest_slot=0)
    owner.settle()
