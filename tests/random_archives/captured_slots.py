"""Writer of a random archive by the capture of the package: slots that fetch from a cluster, rounds of them, and decisions.

The source of the history is put into a cluster that answers as brokers do. The history still plans, registers partitions and
begins lineages.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from tests.fakes.partition_log import PartitionLog
from tests.fakes.record_rules import DEFAULT_CONFIGS
from tests.fakes.strict_broker import StrictCluster
from tests.random_archives.archive_writer import ArchiveWriter, CapturedRange
from tests.random_archives.random_sources import SourceTopic
from tests.random_archives.source_logs import SourceLog
from tests.support.archives import CLUSTER_ID
from tests.support.mirror_runs import CrashError

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.sinks import ArchiveSink, ArchiveSlotJob, Observer, observe_nothing
from shallow_mirror.sinks.archive import TxnOutcomes
from shallow_mirror.sinks.micro_batches import MicroBatchReport, MicroBatchSink
from shallow_mirror.sinks.slots import SlotTime, arrow_batch_of
from shallow_mirror.types import PlannedRange

_COMPACTED = {**DEFAULT_CONFIGS, "cleanup.policy": "compact"}
"""Only where a topic is compacted do offsets without a batch count as read."""


class CapturingWriter(ArchiveWriter):
    """The capture of the topics that `topics` returns. To be closed."""

    def __init__(self, topics: Callable[[], Mapping[str, SourceTopic]], *arguments: Any) -> None:
        """`arguments`: of `ArchiveWriter`."""
        self._topics = topics
        self._brokers = StrictCluster(cluster_id=CLUSTER_ID)
        self._brokers.__enter__()
        client = {"bootstrap.servers": self._brokers.bootstrap}
        self._source = Cluster(ClientConfig.from_properties(client))
        super().__init__(*arguments, source={"alias": "east", "client": client})

    def close(self) -> None:
        self._source.close()
        self._brokers.__exit__(None, None, None)

    def capture(self, slots: Sequence[Sequence[CapturedRange]]) -> None:
        self._run_micro_batch(slots, observe_nothing)

    def crash(self, slots: Sequence[Sequence[CapturedRange]]) -> None:
        def crash_before_the_decision(point: str) -> None:
            if point == "done.RunSlots":
                raise CrashError(point)

        before = self._objects()
        with pytest.raises(CrashError):
            self._run_micro_batch(slots, crash_before_the_decision)
        self.orphans |= self._objects() - before
        self.restart()

    def _objects(self) -> frozenset[str]:
        folder = Path(self.config.objects)
        return frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*.batches"))

    def _run_micro_batch(self, slots: Sequence[Sequence[CapturedRange]], observer: Observer) -> None:
        self._put_source_into_brokers()
        job = ArchiveSlotJob.of_archive(
            self.config, archive_id=self.owner.map_id, source_cluster_id=CLUSTER_ID, observer=observe_nothing
        )
        job = replace(job, fetch_bytes=self._chance.choice((1, 300, 2_000, 1 << 20)))
        archive = ArchiveSink(
            job=job,
            owner=self.owner,
            observer=observer,
            read_outcomes=lambda: TxnOutcomes(ArchiveTable.open(self.config.tables).unended_aborts(), lambda _topic: True),
        )
        sink = MicroBatchSink(
            archive,
            source=self._source,
            slot_time=SlotTime(len(slots)),
            report=self._on_round,
            observer=observe_nothing,
            continues_after_data_loss=True,
        )
        ranges = [
            [
                PlannedRange(slot=number, source=each.source, start=each.start, end=each.end, bytes_per_offset=20.0)
                for each in of_slot
            ]
            for number, of_slot in enumerate(slots)
        ]
        try:
            sink(_Planned([arrow_batch_of(of_slot) for of_slot in ranges]), 0)
        except Exception:
            if sink.failure is not None:
                raise sink.failure from None
            raise
        self.owner.settle()

    def _on_round(self, report: MicroBatchReport) -> None:
        self.decided |= {row.stored.object_name for row in report.rows if row.stored is not None}

    def _put_source_into_brokers(self) -> None:
        with self._brokers.lock:
            for name in list(self._brokers.topic_ids):
                self._brokers.delete_topic(name)
            for name, topic in self._topics().items():
                topic_id = uuid.UUID(bytes=base64.urlsafe_b64decode(topic.topic_id + "=="))
                self._brokers.create_topic(name, len(topic.partitions), topic_id=topic_id, **_COMPACTED)
                for number, partition in enumerate(topic.partitions):
                    self._brokers.logs[name, number] = broker_log(partition.log)


def broker_log(source: SourceLog) -> PartitionLog:
    """Return a log as the broker of a fake cluster has it."""
    log = PartitionLog(1, dict(_COMPACTED))
    log.seed(*(batch.data for batch in source.batches))
    log.end_offset, log.leader_epoch = source.end, source.leader_epoch
    log.build_epochs_anew()
    log.delete_records_before(source.start)
    return log


class _Planned:
    """Stands in for the DataFrame of a micro-batch, with a batch of planned ranges for each slot."""

    def __init__(self, slots: Sequence[pa.RecordBatch]) -> None:
        self._slots = slots

    def mapInArrow(  # noqa: N802 - Spark's name
        self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _schema: str
    ) -> Self:
        self._function = function
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        results = [result for ranges in self._slots for result in self._function(iter([ranges]))]
        return pa.Table.from_batches(results, pa.schema([("body", pa.binary())]))
