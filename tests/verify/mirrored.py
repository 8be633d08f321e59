"""Two strict clusters and the offset map between them, as a mirror would have left them; and what can befall all three."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import crc32c
import numpy as np
from deltalake import DeltaTable
from tests.fakes.partition_log import PartitionLog, Stored
from tests.fakes.record_rules import header_of
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import marker, view

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.logs import QuarantinedBatch, QuarantineTable
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.checkpoints.rows.schema import table_uri
from shallow_mirror.config import MirrorConfig
from shallow_mirror.types import (
    BatchLimits,
    IsolationLevel,
    LogAppendTimePolicy,
    Segment,
    SegmentKind,
    SlotTxn,
    SourcePartition,
    TargetPartition,
)
from shallow_mirror.verify import VerifyReport, verify_mirror
from shallow_mirror.wire.batches import Verdict, admit, index_batches, restamp

TOPIC = "orders"
PRODUCER_ID = 4_000
LIMITS = BatchLimits(
    max_message_bytes=1 << 20, isolation_level=IsolationLevel.READ_COMMITTED, log_append_time=LogAppendTimePolicy.PRODUCER
)


class Mirrored:
    """One topic of one partition. `settings` go into the mirror file, as in `tests.support.mirror_runs`."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.source, self.target = StrictCluster(cluster_id="east-id"), StrictCluster(cluster_id="west-id")
        self._folder, self._settings, self._sequence = folder, settings, 0
        self.poison: set[int] = set()
        """Source offsets at which batches begin that go to the quarantine."""

    def __enter__(self) -> Self:
        self.source.__enter__()
        self.target.__enter__()
        self.source.create_topic(TOPIC)
        self.target.create_topic(TOPIC)
        self.document = {
            "mirror": "m",
            "source": {"alias": "east", "client": {"bootstrap.servers": self.source.bootstrap}},
            "target": {"alias": "west", "client": {"bootstrap.servers": self.target.bootstrap}},
            "topics": {"include": [TOPIC]},
            "tables": "tables",
            **self._settings,
        }
        self.config = MirrorConfig.from_document(self.document, folder=self._folder)
        self.owner = LedgerOwner.take_over(
            self.config.tables,
            name="m",
            source_cluster_id=self.source.cluster_id,
            target_cluster_id=self.target.cluster_id,
            run=RunIdentity(run_id="r", host="here", pid=7, started_at_ms=1_000),
            now_ms=lambda: 1_000,
        )
        self.owner.settle()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.source.__exit__(kind, error, trace)
        self.target.__exit__(kind, error, trace)

    @property
    def source_log(self) -> PartitionLog:
        return self.source.log(TOPIC)

    @property
    def target_log(self) -> PartitionLog:
        return self.target.log(TOPIC)

    @property
    def pair(self) -> tuple[SourcePartition, TargetPartition]:
        ids = [kafka_text(cluster.topic_ids[TOPIC]) for cluster in (self.source, self.target)]
        return SourcePartition(TOPIC, ids[0], 0), TargetPartition(TOPIC, ids[1], 0)

    def mirror(self, *batches: bytes, settles: bool = True) -> None:
        """Append `batches` to the source and mirror what was not copied yet, in one micro-batch."""
        self.source.seed((TOPIC, 0), *batches)
        segments = self.copy()
        self.owner.next_decision()
        self.owner.decide([DecidedSegment(segment, SlotTxn("m-0", PRODUCER_ID, 0)) for segment in segments], highest_slot=0)
        if settles:
            self.owner.settle()

    def copy(self) -> Sequence[Segment]:
        """Through the mirror's own admission, restamping and segments."""
        source, target = self.pair
        position = self.owner.positions()[source].offset if source in self.owner.positions() else 0
        data = [batch.data for batch in self.source_log.batches if batch.header.last_offset >= position]
        records = view(*data)
        index = index_batches(records)
        aborted = [(aborted_txn.producer_id, aborted_txn.first_offset) for aborted_txn in self.source_log.aborted]
        end = self.source_log.end_offset
        admission = admit(
            index,
            records,
            topic_partition=source.topic_partition,
            position=position,
            range_end=end,
            aborted=aborted,
            limits=LIMITS,
        )
        quarantined = [i for i, offset in enumerate(index.headers["base_offset"].tolist()) if offset in self.poison]
        self._keep([bytes(data[i]) for i in quarantined])
        admission = admission.with_quarantined(quarantined)
        chosen = np.flatnonzero(admission.verdicts == Verdict.RAW)
        self._sequence = restamp(records, index, chosen, producer_id=PRODUCER_ID, producer_epoch=0, first_sequence=self._sequence)
        placed = []
        for i in chosen.tolist():
            at = self.target_log.end_offset
            start = int(index.pos[i])
            self.append(bytes(records[start : start + int(index.size_bytes[i])]))
            placed.append(at)
        if placed:
            self.target.seed((TOPIC, 0), marker(self.target_log.end_offset, 1, PRODUCER_ID))
        builder = SegmentBuilder(source, target, position)
        builder.add(index, admission, placed)
        builder.close_at(end)
        return builder.build()

    def _keep(self, batches: Sequence[bytes]) -> None:
        source, target = self.pair
        kept = [
            QuarantinedBatch(
                source=source, source_start=header_of(batch).base_offset, source_end=header_of(batch).last_offset + 1, target=target,
                error_name="INVALID_TIMESTAMP", rule="too old", remedy="Set a limit", batch=batch,
            )
            for batch in batches
        ]  # fmt: skip
        if kept:
            QuarantineTable.open(self.config.tables).add(kept, decision=2)

    def release(self, offset: int) -> None:
        """Let the batch that begins there come to the target after all."""
        source, target = self.pair
        (batch,) = (batch.data for batch in self.source_log.batches if batch.header.base_offset == offset)
        records = view(batch)
        index = index_batches(records)
        restamp(records, index, np.array([0]), producer_id=PRODUCER_ID + 1, producer_epoch=0, first_sequence=0)
        start, count = self.target_log.end_offset, header_of(batch).records_count
        self.append(bytes(records))
        self.target.seed((TOPIC, 0), marker(self.target_log.end_offset, 1, PRODUCER_ID + 1))
        row = Segment(
            source=source, source_start=offset, source_end=offset + count, kind=SegmentKind.RELEASED, target=target,
            target_start=start, target_end=start + count, record_count=count, batch_count=1, size_bytes=len(batch),
        )  # fmt: skip
        self.owner.next_decision()
        self.owner.decide([DecidedSegment(row, SlotTxn("m-0", PRODUCER_ID + 1, 0))], highest_slot=0)
        self.owner.settle()

    def append(self, batch: bytes) -> None:
        """To the target, as its broker stores it: the offset and the leader epoch are not in the checksum."""
        self.target.seed((TOPIC, 0), at(batch, self.target_log.end_offset))

    def verify(self, **options: Any) -> VerifyReport:
        return verify_mirror(self.config, **options)

    def plant_in_map(self, change: Callable[[DeltaTable], None]) -> None:
        change(DeltaTable(table_uri(self.config.tables)))


def kafka_text(topic_id: Any) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def at(batch: bytes, base_offset: int) -> bytes:
    return struct.pack(">q", base_offset) + batch[8:12] + struct.pack(">i", 0) + batch[16:]


def with_own_crc(batch: bytes) -> bytes:
    """As somebody leaves it who covers his tracks."""
    return batch[:17] + struct.pack(">I", crc32c.crc32c(batch[21:])) + batch[21:]


def changed(batch: bytes, pos: int, data: bytes) -> bytes:
    """Other bytes in a batch, and the checksum made right again."""
    return with_own_crc(batch[:pos] + data + batch[pos + len(data) :])


def flipped(batch: bytes, pos: int) -> bytes:
    """One bit of a batch, as a disk loses it: the checksum is left as it was."""
    return batch[:pos] + bytes([batch[pos] ^ 1]) + batch[pos + 1 :]


def data_positions(log: PartitionLog) -> list[int]:
    """Return indices of the batches that readers see."""
    return [
        i
        for i, batch in enumerate(log.batches)
        if not batch.header.is_control
        and not any(
            batch.header.producer_id == aborted.producer_id
            and aborted.first_offset <= batch.header.base_offset < aborted.last_offset
            for aborted in log.aborted
        )
    ]


def replace(log: PartitionLog, i: int, batch: bytes | None) -> None:
    """Put another batch in the place of the i-th on disk; None takes it away."""
    if batch is None:
        del log.batches[i]
    else:
        log.batches[i] = Stored(header_of(batch), batch, log.batches[i].segment)
