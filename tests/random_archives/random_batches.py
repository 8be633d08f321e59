"""Pure: random record batches, byte by byte: codecs, headers, timestamps that do not rise, holes of compaction, markers."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence

import crc32c
from tests.random_archives.source_logs import Headers, LogBatch, LogRecord, TxnKey
from tests.support.record_encoders import ENCODERS, full_record

_BODY = struct.Struct(">hiqqqhii")
_TRANSACTIONAL, _CONTROL = 0x10, 0x20
_CODECS = ("none", "none", "gzip", "snappy of Java", "snappy of librdkafka", "lz4", "zstd")
NO_TIMESTAMP = -1


def build_batch(
    base_offset: int,
    *,
    last_offset_delta: int,
    payload: bytes,
    count: int,
    leader_epoch: int,
    attributes: int = 0,
    base_timestamp_ms: int = NO_TIMESTAMP,
    max_timestamp_ms: int = NO_TIMESTAMP,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
) -> bytes:
    """Return a batch of magic 2. `payload`: its records, compressed."""
    body = _BODY.pack(
        attributes, last_offset_delta, base_timestamp_ms, max_timestamp_ms, producer_id, producer_epoch, base_sequence, count
    )
    body += payload
    return struct.pack(">qiibI", base_offset, len(body) + 9, leader_epoch, 2, crc32c.crc32c(body)) + body


def marker_batch(
    offset: int, *, is_commit: bool, producer_id: int, producer_epoch: int, leader_epoch: int, now_ms: int
) -> LogBatch:
    """Return a transaction marker."""
    payload = full_record(0, 0, struct.pack(">hh", 0, int(is_commit)), struct.pack(">hi", 0, 5), [])
    data = build_batch(
        offset,
        last_offset_delta=0,
        payload=payload,
        count=1,
        leader_epoch=leader_epoch,
        attributes=_TRANSACTIONAL | _CONTROL,
        base_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )
    return LogBatch(offset, offset + 1, data, marker=is_commit)


class RandomBatches:
    """Batches of one history. Every value is another one."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._count = 0

    def batch(
        self,
        offset: int,
        now_ms: int,
        leader_epoch: int,
        *,
        producer_id: int = -1,
        producer_epoch: int = -1,
        txn: TxnKey | None = None,
        has_future_times: bool = True,
    ) -> LogBatch:
        """Return a batch of records at `offset`, at which a log ends. The log cleaner may have removed some records, or all."""
        chance = self._chance
        length = chance.choice((1, 1, 2, 3, 5, 12))
        deltas = list(range(length))
        if chance.random() < 0.1:  # compaction: the header keeps the last offset delta
            deltas = sorted(chance.sample(deltas, chance.randint(0 if txn is None else 1, length)))
        times = self._times(len(deltas), now_ms, has_future_times=has_future_times)
        base_ms = times[0] if times else now_ms
        records: list[LogRecord] = []
        payload = b""
        for delta, timestamp_ms in zip(deltas, times, strict=True):
            record = self._record(offset + delta, timestamp_ms)
            records.append(record)
            payload += full_record(delta, timestamp_ms - base_ms, record.key, record.value, list(record.headers))
        codec, encode = ENCODERS[chance.choice(_CODECS)] if payload else ENCODERS["none"]
        data = build_batch(
            offset,
            last_offset_delta=length - 1,
            payload=encode(payload),
            count=len(records),
            leader_epoch=leader_epoch,
            attributes=int(codec) | (0 if txn is None else _TRANSACTIONAL),
            base_timestamp_ms=base_ms,
            max_timestamp_ms=max([NO_TIMESTAMP, *times]),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=-1 if producer_id < 0 else offset & 0x7FFFFFFF,
        )
        return LogBatch(offset, offset + length, data, tuple(records), txn)

    def _times(self, count: int, now_ms: int, *, has_future_times: bool) -> Sequence[int]:
        chance = self._chance
        kind = chance.choice(("rising", "rising", "equal", "any", "any", "none", "negative") if count else ("equal",))
        newest = now_ms + (60_000 if has_future_times and chance.random() < 0.2 else 0)
        if kind == "equal":
            return [newest] * count
        if kind == "none":
            return [NO_TIMESTAMP] * count
        if kind == "negative":
            return [chance.randint(-5_000, -2) for _ in range(count)]
        times = [newest - chance.randint(0, 30_000) for _ in range(count)]
        return sorted(times) if kind == "rising" else times

    def _record(self, offset: int, timestamp_ms: int) -> LogRecord:
        chance = self._chance
        self._count += 1
        value = (
            None if chance.random() < 0.05 else b"%d " % self._count + bytes(chance.choices(b"abcdef", k=chance.randint(0, 60)))
        )
        key = b"" if (kind := chance.random()) < 0.1 else None if kind < 0.4 else b"k%d" % chance.randint(0, 5)
        headers: Headers = ()
        if chance.random() < 0.2:
            headers = tuple((b"h%d" % number, chance.choice((None, b"", b"content"))) for number in range(chance.randint(1, 3)))
        return LogRecord(offset, timestamp_ms, key, value, headers)
