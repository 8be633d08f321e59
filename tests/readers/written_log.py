"""Logs as a mirror with preserved offsets writes them, with what a consumer has to read of them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.readers.comparison import ReadRecord
from tests.support import record_batches

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec, ensure_topics
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce import ProducePipeline
from shallow_mirror.broker.produce.txn import new_producer_id
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.kafka.targets.target_topic_policy import configs_of_new
from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy, TopicPartition
from shallow_mirror.wire import build_batch
from shallow_mirror.wire.batches import SharedProducer, index_batches, restamped_at
from shallow_mirror.wire.records import FILLER_KEY, Fillers
from shallow_mirror.wire.records.rebuild_in_place import rebuild_in_place

MAX_MESSAGE_BYTES = 1 << 20
_PATIENCE_MS = 30_000
_POLL_S = 0.1
_LIMITS = BatchLimits(
    max_message_bytes=MAX_MESSAGE_BYTES,
    isolation_level=IsolationLevel.READ_COMMITTED,
    log_append_time=LogAppendTimePolicy.PRODUCER,
)

CLEANING_BROKER = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}


class WrittenLog:
    """A new topic of one partition. `end`: its log end offset; `records`: what a consumer has to read, in order."""

    def __init__(self, client: ClientConfig, target: Cluster, topic: str, settings: Mapping[str, str]) -> None:
        configs = {**configs_of_new({}, is_preserved=True), **settings}
        ensure_topics(target, [TopicSpec(topic, 1, 1, configs)], _deadline())
        self.key = TopicPartition(topic, 0)
        self.end = 0
        self.records: list[ReadRecord] = []
        self._keys: list[str] = []
        self._target = target
        self._filler_key = FILLER_KEY if settings.get("cleanup.policy") == "compact" else None
        target.require_partitions([self.key], _deadline())
        self._producer_id = new_producer_id(target, _deadline()).producer_id

    def add_fillers(self, count: int) -> None:
        """Append one batch of fillers."""
        self._append(self.end, Fillers(self._filler_key, MAX_MESSAGE_BYTES).batch(count, _now_ms()))

    def add_records(self, keys: Sequence[str]) -> None:
        """Append one batch with a record for each key."""
        first = self.end
        payload = self._payload(range(len(keys)), keys)
        now_ms = _now_ms()
        batch = build_batch(
            payload,
            attributes=0,
            base_timestamp=now_ms,
            max_timestamp=now_ms,
            records_count=len(keys),
            last_offset_delta=len(keys) - 1,
        )
        self._append(first, bytearray(batch))

    def add_mixed(self, deltas: Sequence[int], keys: Sequence[str]) -> None:
        """Append what a mirror makes of a batch in which compaction left records at `deltas` (from 0 on): with fillers between."""
        source = record_batches.batch(self.end, deltas=deltas, timestamp=_now_ms(), payload=self._payload(deltas, keys))
        placed_batches = rebuild_in_place(
            record_batches.view(source),
            self.key,
            position=self.end,
            limits=_LIMITS,
            max_opened_bytes=MAX_MESSAGE_BYTES,
            filler_key=self._filler_key,
        )
        for placed in placed_batches:
            self._append(placed.offset, bytearray(placed.batch))

    def wait_for_cleaning(self, data_dir: Path) -> None:
        """Have the broker compact everything that is there, and expect the newest record of each key only.

        Raises TimeoutError.
        """
        cleaned_end = self.end
        newest = dict(zip(self._keys, self.records, strict=True))
        kept = [(key, record) for key, record in zip(self._keys, self.records, strict=True) if newest[key] is record]
        self._keys, self.records = [key for key, _ in kept], [record for _, record in kept]
        time.sleep(2 * int(COMPACTED["segment.ms"]) / 1000)
        self.add_records(["rolls the segment"])
        until = time.monotonic() + _PATIENCE_MS / 1000
        while _cleaned_up_to(data_dir, self.key) < cleaned_end:
            if time.monotonic() > until:
                raise TimeoutError(f"the broker did not compact {self.key} up to offset {cleaned_end}")
            time.sleep(_POLL_S)

    def _payload(self, deltas: Sequence[int], keys: Sequence[str]) -> bytes:
        records = [ReadRecord(self.end + delta, f"value-{self.end + delta}") for delta in deltas]
        self.records += records
        self._keys += keys
        pairs = zip(deltas, keys, records, strict=True)
        return b"".join(record_batches.record(delta, key.encode(), record.value.encode()) for delta, key, record in pairs)

    def _append(self, offset: int, batch: bytearray) -> None:
        shared = SharedProducer(producer_id=self._producer_id, now_ms=_now_ms(), old_before_ms=0)
        stamped = restamped_at(batch, offset, shared)
        pipeline = ProducePipeline(self._target, None, in_flight_requests=1, in_flight_bytes=1 << 22, deadline=_deadline())
        appended = pipeline.produce_all({self.key: [stamped]})[self.key]
        assert appended == [offset], f"a batch of offset {offset} was appended at {appended}"
        self.end = offset + int(index_batches(stamped).headers["last_offset_delta"][0]) + 1


def _cleaned_up_to(data_dir: Path, key: TopicPartition) -> int:
    """Return up to which offset the log cleaner has come; -1: it has not begun."""
    checkpoint = data_dir / "cleaner-offset-checkpoint"
    lines = checkpoint.read_text(encoding="utf-8").splitlines() if checkpoint.is_file() else []
    prefix = f"{key.topic} {key.partition} "
    return next((int(line.removeprefix(prefix)) for line in lines if line.startswith(prefix)), -1)


def _now_ms() -> int:
    return int(time.time() * 1000)


def _deadline() -> Deadline:
    return Deadline.after_ms(_PATIENCE_MS, time.monotonic)
