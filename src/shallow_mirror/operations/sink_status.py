"""Driver, for the cli: the state of a DataFrame sink, by its table: run, last micro-batches, target offsets. Starts no JVM."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from shallow_mirror.checkpoints import WrittenRecords
from shallow_mirror.checkpoints.ledger import Recorded
from shallow_mirror.checkpoints.tables import TableStorage, ms_of
from shallow_mirror.operations.status import MICRO_BATCHES_SHOWN, RunStatus, run_of

_LOOKED_AT = 20 * MICRO_BATCHES_SHOWN


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkMicroBatch:
    """A decision: of a streaming query, or with `job_id` of a batch job.

    `is_settled`: each of its transactions is known to be committed. False while it is committed, and if a run was killed then.
    """

    decision: int
    query_id: str | None
    batch_id: int | None
    job_id: str | None
    run_epoch: int
    decided_at_ms: int
    record_count: int
    size_bytes: int
    source_offsets: str | None
    is_settled: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkPartition:
    """`end`: behind the last record of the sink. `record_count`, `size_bytes`: of all its micro-batches."""

    topic: str
    partition: int
    end: int
    record_count: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnsettledTransaction:
    """A decided transaction that is not known to be visible. `waits_for_marker`: it is committed, but not in every partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    waits_for_marker: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkStatus:
    """State of a sink, by its table. Lists are in order of decisions, and of partitions."""

    sink: str
    at_ms: int
    run: RunStatus | None
    micro_batches: tuple[SinkMicroBatch, ...]
    """The last few, newest last."""
    unsettled: tuple[UnsettledTransaction, ...]
    partitions: tuple[SinkPartition, ...]

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return asdict(self)


def gather_sink_status(
    storage: TableStorage, *, name: str | None = None, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
) -> SinkStatus:
    """Return the state of the sink whose table it is. `name`: of the sink that it must be; None: any.

    Raises ConfigError if there is no such table, OffsetMapConflictError if it is damaged.
    """
    written = WrittenRecords(storage, name=name)
    recorded = written.recorded()
    if recorded is None:
        return SinkStatus(sink=written.name, at_ms=now_ms(), run=None, micro_batches=(), unsettled=(), partitions=())
    rows = written.decided_after(recorded.micro_batch - _LOOKED_AT).to_pylist()
    return SinkStatus(
        sink=written.name,
        at_ms=now_ms(),
        run=run_of(recorded),
        micro_batches=_micro_batches(rows, recorded.unsettled_micro_batch),
        unsettled=_unsettled(rows, recorded),
        partitions=_partitions(written),
    )


def _micro_batches(rows: Sequence[Mapping[str, Any]], unsettled: int | None) -> tuple[SinkMicroBatch, ...]:
    of_decision: defaultdict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        of_decision[row["micro_batch"]].append(row)
    return tuple(
        SinkMicroBatch(
            decision=decision,
            query_id=first["query_id"],
            batch_id=first["batch_id"],
            job_id=first["job_id"],
            run_epoch=first["run_epoch"],
            decided_at_ms=ms_of(first["decided_at"]),
            record_count=sum(row["record_count"] for row in of_decision[decision]),
            size_bytes=sum(row["size_bytes"] for row in of_decision[decision]),
            source_offsets=first["source_offsets"],
            is_settled=decision != unsettled,
        )
        for decision in sorted(of_decision)[-MICRO_BATCHES_SHOWN:]
        if (first := of_decision[decision][0])
    )


def _unsettled(rows: Sequence[Mapping[str, Any]], recorded: Recorded) -> tuple[UnsettledTransaction, ...]:
    decided = {
        (row["transactional_id"], row["target_producer_id"], row["target_producer_epoch"])
        for row in rows
        if row["micro_batch"] == recorded.unsettled_micro_batch
    }
    waiting = {(txn.transactional_id, txn.producer_id, txn.producer_epoch) for txn in recorded.pending_txns}
    return tuple(
        UnsettledTransaction(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            waits_for_marker=(transactional_id, producer_id, producer_epoch) in waiting,
        )
        for transactional_id, producer_id, producer_epoch in sorted(decided | waiting)
    )


def _partitions(written: WrittenRecords) -> tuple[SinkPartition, ...]:
    """Return the partitions of topics as they are: of a topic that was created again, those that were written to last."""
    in_order = sorted(written.partitions(), key=lambda partition: partition.last_micro_batch)
    newest = {partition.target.topic_partition: partition for partition in in_order}
    return tuple(
        SinkPartition(
            topic=key.topic,
            partition=key.partition,
            end=partition.end,
            record_count=partition.record_count,
            size_bytes=partition.size_bytes,
        )
        for key, partition in sorted(newest.items())
    )
