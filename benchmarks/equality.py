"""Whether a copy is equal: a plain consumer reads both topics to their ends, and every record goes into a digest.

Key, value, headers, timestamp and their order in each partition; read_committed on both sides. Offsets are left out: markers
take some. Times have a digest of their own, for there are copiers which keep all but them.

`shallow_mirror.demo.checker` says which records differ, and keeps 24 bytes of each. Here topics of gigabytes are read by a
process for each core, which keeps nothing of a record: that topics differ is all that a benchmark has to know.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import struct
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition as ClientPartition

_AT_ONCE, _WITHIN_S = 10_000, 0.2
"""`consume` waits for all of the first or the end of the second, also where every partition is at its end."""

_PATIENCE_S = 60.0
_SIZES = struct.Struct(">iii")
_TIME = struct.Struct(">iq")


@dataclass(frozen=True, slots=True)
class PartitionDigest:
    records: int
    content: str
    times: str


@dataclass(slots=True)
class _Growing:
    records: int = 0
    content: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))
    times: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=16))

    def add(self, message: Any) -> None:
        key, value, headers = message.key(), message.value(), message.headers()
        encoded = repr(headers).encode() if headers else b""
        sizes = _SIZES.pack(-1 if key is None else len(key), -1 if value is None else len(value), len(encoded))
        self.content.update(b"".join((sizes, key or b"", value or b"", encoded)))
        self.times.update(_TIME.pack(*message.timestamp()))
        self.records += 1

    def done(self) -> PartitionDigest:
        return PartitionDigest(self.records, self.content.hexdigest(), self.times.hexdigest())


def topic_digest(bootstrap: str, topic: str, partitions: int) -> dict[int, PartitionDigest]:
    """By partition, read by a process for each core. Raises KafkaException, and TimeoutError where no record and no end comes
    for a minute."""
    processes = min(partitions, os.cpu_count() or 1)
    shares = [range(partitions)[first::processes] for first in range(processes)]
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        read = pool.map(_digest_of, *zip(*((bootstrap, topic, share) for share in shares), strict=True))
        return {partition: digest for share in read for partition, digest in share.items()}


def _digest_of(bootstrap: str, topic: str, partitions: Sequence[int]) -> dict[int, PartitionDigest]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "shallow-mirror-bench",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.message.max.bytes": 4 << 20,
            "queued.max.messages.kbytes": 128 << 10,
            "log_level": 0,
        }
    )
    growing = {partition: _Growing() for partition in partitions}
    reading = set(growing)
    try:
        consumer.assign([ClientPartition(topic, partition, OFFSET_BEGINNING) for partition in growing])
        heard_at = time.monotonic()
        while reading:
            messages = consumer.consume(_AT_ONCE, _WITHIN_S)
            if messages:
                heard_at = time.monotonic()
            elif time.monotonic() - heard_at > _PATIENCE_S:
                raise TimeoutError(f"{topic}: partitions {sorted(reading)} came to no end within {_PATIENCE_S:.0f} s")
            for message in messages:
                error = message.error()
                if error is None:
                    growing[message.partition()].add(message)
                elif error.code() == KafkaError._PARTITION_EOF:
                    reading.discard(message.partition())
                else:
                    raise KafkaException(error)
    finally:
        consumer.close()
    return {partition: digest.done() for partition, digest in growing.items()}


def difference(source: Mapping[int, PartitionDigest], target: Mapping[int, PartitionDigest]) -> str:
    """Return a sentence about what is not equal; empty where everything is."""
    counts = [
        f"partition {partition} has {target[partition].records:,} of {of_source.records:,} records"
        for partition, of_source in source.items()
        if target[partition].records != of_source.records
    ]
    if counts:
        return "; ".join(counts)
    changed = [partition for partition in source if source[partition].content != target[partition].content]
    if changed:
        return f"keys, values, headers or their order differ in partitions {', '.join(map(str, changed))}"
    if any(source[partition].times != target[partition].times for partition in source):
        return "only the timestamps differ"
    return ""
