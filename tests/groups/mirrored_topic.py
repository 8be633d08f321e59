"""A topic on two real clusters, and a map of it that a mirror may have left. No Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from tests.groups.group_runs import PATIENCE_S
from tests.support.mirror_runs import conf_file, create_topic

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import GroupPartition
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition, TopicPartition

DATA = SegmentKind.DATA


class Mirrored:
    """Topics `<name>.a` (5 partitions) and `<name>.left`, which is not mirrored; ten records in each partition on both sides.

    The map: source offsets 2 to 8 of every partition lie at 1 to 7 of the target, what is above is not mirrored yet.
    """

    def __init__(self, folder: Path, clusters: Any, name: str, **groups: Any) -> None:
        self.topic, self.left, self.name = f"{name}.a", f"{name}.left", name
        source, target = clusters.source.bootstrap, clusters.target.bootstrap
        groups = {"include": [f"{name}.*"], **groups}
        self.path = conf_file(folder, source, target, [f"{name}\\.a"], groups=groups)
        self.config = MirrorConfig.load(self.path)
        for bootstrap in (source, target):
            producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
            create_topic(bootstrap, self.topic, 5)
            create_topic(bootstrap, self.left, 1)
            for number in range(50):
                producer.produce(self.topic, f"v{number}", partition=number % 5)
            assert producer.flush(PATIENCE_S) == 0
        self.source, self.target = GroupClient(self.config.source.client, "east"), GroupClient(self.config.target.client, "west")
        self.ids = [bootstrap.topic_ids([self.topic])[self.topic] for bootstrap in (self.source, self.target)]
        self.owner = LedgerOwner.take_over(
            self.config.tables,
            name=self.config.mirror,
            source_cluster_id=self.source.cluster_id(),
            target_cluster_id=self.target.cluster_id(),
            run=RunIdentity(run_id="r", host="here", pid=7, started_at_ms=1_000),
            now_ms=lambda: 1_000,
        )
        self.owner.settle()
        self.decide([(number, DATA, 2, 8, 1) for number in range(5)])

    def decide(self, rows: Sequence[tuple[int, SegmentKind, int, int, int | None]], topic_id: str | None = None) -> None:
        """Partition, kind, source range, and where it lies on the target."""
        self.owner.next_decision()
        made = [
            Segment(
                source=SourcePartition(self.topic, topic_id or self.ids[0], partition),
                source_start=start,
                source_end=end,
                kind=kind,
                target=TargetPartition(self.topic, self.ids[1], partition),
                target_start=topic_partition,
                target_end=None if topic_partition is None else topic_partition + end - start,
                record_count=end - start,
                batch_count=1,
            )
            for partition, kind, start, end, topic_partition in rows
        ]
        self.owner.decide([DecidedSegment(segment, SlotTxn("m-0", 1, 1)) for segment in made], highest_slot=0)
        self.owner.settle()

    def group(self, name: str) -> str:
        return f"{self.name}.{name}"

    def commit(self, cluster: GroupClient, group: str, offsets: Mapping[int, int], topic: str | None = None) -> None:
        topic_partitions = {
            TopicPartition(topic or self.topic, partition): (offset, "of the app") for partition, offset in offsets.items()
        }
        assert cluster.commit(self.group(group), topic_partitions) == {}

    def offsets(self, cluster: GroupClient, group: str) -> dict[int, tuple[int | None, str]]:
        actual = cluster.committed([self.group(group)])[self.group(group)]
        return {record.topic_partition.partition: (record.offset, record.metadata) for record in actual}

    def look(self, group: str, **options: Any) -> dict[TopicPartition, GroupPartition]:
        report = sync_groups(self.config, pattern=self.group(group), **options)
        return {partition.topic_partition: partition for partition in report.partitions}
