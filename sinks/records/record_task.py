"""Executor: the task of one slot of a DataFrame sink: rows become batches, window by window, in one Kafka transaction.

Errors of this package are returned to the driver as values, so that their type and fields survive Spark. Rows are read once:
after an error the driver runs the whole micro-batch again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark import TaskContext

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import cluster_of_worker, freeze_imports_once
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION
from shallow_mirror.broker.produce import ProduceRefusedError
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MicroBatchInDoubtError, MirrorError, RecordRefusedError, RetriableError
from shallow_mirror.sinks.records.micro_batch_identity import SlotContent
from shallow_mirror.sinks.records.record_job import RecordJob, RecordSlotResult
from shallow_mirror.sinks.records.record_transaction import RecordTransaction
from shallow_mirror.sinks.records.row_reader import RowReader, TargetTopic, windows
from shallow_mirror.sinks.slots.slot_task import answer_of
from shallow_mirror.types import TargetPartition
from shallow_mirror.wire import BATCH_HEADER_BYTES
from shallow_mirror.wire.columns import ColumnBatch, ContentDigest, encode_columns

_MAX_MESSAGE_BYTES = "max.message.bytes"
_REMEDIES = {
    "MESSAGE_TOO_LARGE": f"Raise {_MAX_MESSAGE_BYTES} of the topic, or leave the row out",
    "INVALID_TIMESTAMP": "Raise message.timestamp.before.max.ms and message.timestamp.after.max.ms of the topic, or write "
    "another timestamp",
    "INVALID_RECORD": "Give the row a key: brokers refuse records without one on a compacted topic",
}
_ANY_REMEDY = "Look at the settings of the topic"


@dataclass(frozen=True, slots=True)
class RecordTask:
    """The function of `mapInArrow`: do `job` for the slot of one input partition."""

    job: RecordJob

    def __call__(self, arrow_batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one `RecordSlotResult` or `MirrorError` (`answer_of`)."""
        began = time.monotonic()
        context = TaskContext.get()
        assert context is not None
        freeze_imports_once()
        answer: RecordSlotResult | MirrorError
        try:
            target = cluster_of_worker(self.job.target, self.job.target_cluster_id)
            done = write_slot(self.job, int(context.partitionId()), arrow_batches, target)
            answer = replace(done, duration_ms=(time.monotonic() - began) * 1000)
        except MirrorError as error:
            answer = error
        yield answer_of(answer)


def write_slot(job: RecordJob, slot: int, batches: Iterator[pa.RecordBatch], target: Cluster) -> RecordSlotResult:
    """Write the rows of a slot, or compare them if they were committed before.

    Raises RecordRefusedError, MicroBatchInDoubtError, and errors of `RecordTransaction`; no decision may name the writes then.
    """
    digest = ContentDigest()
    if slot in job.committed:
        return _compared(job, slot, batches, digest)
    deadline = Deadline.after_ms(job.time_left_ms, time.monotonic)

    def find(name: str) -> TargetTopic | None:
        # Rows that name their partitions may name one that was added a moment ago.
        return find_topic(target, name, deadline, is_asked_anew="partition" in window.schema.names)

    reader = RowReader(
        slot,
        job.topic,
        find,
        sticky_bytes=job.batch_bytes,
        first=slot + job.decision,
        now_ms=_now_ms,
    )
    transaction = RecordTransaction(job, slot, target, deadline, _now_ms)

    def refuse(batch: ColumnBatch, refused: ProduceRefusedError) -> Exception:
        others = f", and rows up to {int(batch.rows[-1])}, of one batch" if batch.record_count > 1 else ""
        rule = f"{refused.topic_partition}: the target answered {refused.error_name}: {refused.message}{others}"
        return RecordRefusedError(slot, int(batch.rows[0]), rule, _REMEDIES.get(refused.error_name, _ANY_REMEDY))

    first_row = sent_bytes = 0
    began = time.monotonic()
    for window in windows(batches, job.window_bytes):
        digest.add(window)
        columns, numbers = reader.read(window)
        limits = [_batch_bytes(job, reader.topics[partition.topic]) for partition in reader.targets]
        encoded = encode_columns(columns, numbers, limits, job.compression, first_row=first_row)
        for batch in encoded:
            _require_size(slot, batch, reader.targets[batch.target], reader.topics)
        transaction.write(encoded, reader.targets, refuse)
        first_row += window.num_rows
        sent_bytes += sum(len(batch.payload) for batch in encoded)
        if job.bytes_per_second is not None:
            time.sleep(max(0.0, min(began + sent_bytes / job.bytes_per_second, deadline.at) - time.monotonic()))
        deadline.require("the end of the micro-batch")
    return RecordSlotResult(
        slot=slot,
        content=SlotContent(digest.record_count, digest.crc32c()),
        segments=transaction.finish(refuse),
        txn=transaction.txn,
        stamped_topics=transaction.stamped_topics(),
    )


def find_topic(target: Cluster, name: str, deadline: Deadline, *, is_asked_anew: bool = False) -> TargetTopic | None:
    """Return a topic of the target as it was at most `metadata.max.age.ms` ago. Raises RetriableError, ConfigError.

    `is_asked_anew`: as it is now.
    """
    listed = None if is_asked_anew else target.known_topics({name}, deadline).get(name)
    if listed is None:
        listed = target.metadata([name], deadline).topics.get(name)
    if listed is None or listed.error_code == UNKNOWN_TOPIC_OR_PARTITION:
        return None
    if not listed.partitions:
        raise RetriableError("LEADER_NOT_AVAILABLE", f"topic {name} has no partitions yet")
    limit = target.topic_configs([name], deadline, keys=[_MAX_MESSAGE_BYTES])[name].get(_MAX_MESSAGE_BYTES)
    return TargetTopic(name, listed.topic_id, len(listed.partitions), int(limit or 1 << 20))


def _compared(job: RecordJob, slot: int, batches: Iterator[pa.RecordBatch], digest: ContentDigest) -> RecordSlotResult:
    for batch in batches:
        digest.add(batch)
    content = SlotContent(digest.record_count, digest.crc32c())
    if content != job.committed[slot]:
        raise MicroBatchInDoubtError(
            f"the micro-batch was committed in part, and partition {slot} of the DataFrame, which was, does not have the same "
            f"rows in the same order now ({content.record_count} rows, then {job.committed[slot].record_count})"
        )
    return RecordSlotResult(slot=slot, content=content)


def _batch_bytes(job: RecordJob, topic: TargetTopic) -> int:
    """Return the most bytes of records in a batch: what does not become smaller when it is compressed still fits."""
    return max(1, min(job.batch_bytes, (topic.max_message_bytes - BATCH_HEADER_BYTES) * 99 // 100))


def _require_size(slot: int, batch: ColumnBatch, partition: TargetPartition, topics: dict[str, TargetTopic]) -> None:
    size, most = BATCH_HEADER_BYTES + len(batch.payload), topics[partition.topic].max_message_bytes
    if size > most:
        rule = f"its record has {size} bytes, more than {most}, {_MAX_MESSAGE_BYTES} of topic {partition.topic}"
        raise RecordRefusedError(slot, int(batch.rows[0]), rule, _REMEDIES["MESSAGE_TOO_LARGE"])


def _now_ms() -> int:
    return int(time.time() * 1000)
