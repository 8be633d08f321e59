"""Captures the responses in this folder from real brokers: `.venv/bin/python -m tests.golden.capture`, from the root.

Nothing of the package under test touches them: requests are encoded by kafka-python, frames are stored as they came
(their four length bytes included), and what they hold is told by a confluent-kafka consumer, in a JSON file beside each.
Codecs are told by the records themselves: every producer writes its codec into a header.
"""

from __future__ import annotations

import itertools
import json
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka.protocol.consumer import FetchRequest
from kafka.protocol.producer import ProduceRequest
from tests.support.record_batches import batch, record

from shallow_mirror.local_kafka.jars import KAFKA_VERSION, OLD_KAFKA_VERSION, PREVIOUS_KAFKA_VERSION
from shallow_mirror.local_kafka.node import LocalKafka

FOLDER = Path(__file__).parent
VERSIONS = (KAFKA_VERSION, PREVIOUS_KAFKA_VERSION, OLD_KAFKA_VERSION)
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FIRST_MS = 1_714_521_600_000
CLEANS_AT_ONCE = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
COMPACTED = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.ms": "200",
    "max.compaction.lag.ms": "200",
    "delete.retention.ms": "600000",
}
PATIENCE_S = 60.0
CORRELATION_ID = 7

PartitionKey = tuple[str, int]


def ask(bootstrap: str, request: Any) -> bytes:
    """Return the whole frame of the response."""
    request.with_header(CORRELATION_ID, "golden")
    host, port = bootstrap.split(":")
    with closing(socket.create_connection((host, int(port)), timeout=PATIENCE_S)) as peer:
        peer.sendall(bytes(request.encode(framed=True, header=True)))
        head = _exactly(peer, 4)
        return head + _exactly(peer, int.from_bytes(head, "big"))


def _exactly(peer: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = peer.recv(size - len(data))
        assert part, "the broker closed the connection"
        data += part
    return data


def fetch(bootstrap: str, offsets: Mapping[PartitionKey, int], *, isolation: int, max_bytes: int = 1 << 20) -> bytes:
    topic = FetchRequest.FetchTopic
    return ask(
        bootstrap,
        FetchRequest[12](
            replica_id=-1,
            max_wait_ms=100,
            min_bytes=1,
            max_bytes=max_bytes,
            isolation_level=isolation,
            session_id=0,
            session_epoch=-1,
            topics=[
                topic(
                    topic=name,
                    partitions=[
                        topic.FetchPartition(
                            partition=index,
                            current_leader_epoch=-1,
                            fetch_offset=offset,
                            last_fetched_epoch=-1,
                            log_start_offset=-1,
                            partition_max_bytes=max_bytes,
                        )
                    ],
                )
                for (name, index), offset in offsets.items()
            ],
            forgotten_topics_data=[],
            rack_id="",
        ),
    )


def produce(bootstrap: str, batches: Mapping[PartitionKey, bytes]) -> bytes:
    topic = ProduceRequest.TopicProduceData
    return ask(
        bootstrap,
        ProduceRequest[9](
            transactional_id=None,
            acks=-1,
            timeout_ms=10_000,
            topic_data=[
                topic(name=name, partition_data=[topic.PartitionProduceData(index=index, records=data)])
                for (name, index), data in batches.items()
            ],
        ),
    )


class Cluster:
    """What the scenarios do to one broker, and what independent clients say about it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, name: str, partitions: int = 1, /, **configs: str) -> None:
        for future in self.admin.create_topics([NewTopic(name, partitions, 1, config=configs)]).values():
            future.result(PATIENCE_S)

    def producer(self, codec: str = "none", **more: Any) -> Producer:
        made = Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec, "linger.ms": 20, "log_level": 2, **more})
        if "transactional.id" in more:
            made.init_transactions(PATIENCE_S)
            made.begin_transaction()
        return made

    def write(
        self,
        producer: Producer,
        topic_partition: PartitionKey,
        codec: str,
        keys: Sequence[int],
        *,
        value: bytes | None = b"value of a record ",
        first_ms: int = FIRST_MS,
    ) -> None:
        """One batch; the n-th record is n seconds newer than `first_ms`."""
        for number, key in enumerate(keys):
            producer.produce(
                topic_partition[0],
                value,
                b"key-%d" % key,
                partition=topic_partition[1],
                timestamp=first_ms + 1000 * number,
                headers=[("codec", codec)],
            )
        assert producer.flush(PATIENCE_S) == 0

    def consumed(self, topic_partition: PartitionKey, isolation: str) -> list[Any]:
        """All records that this consumer finds now, with (low, high) watermarks."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "golden",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
            }
        )
        documents = []
        try:
            low, _ = consumer.get_watermark_offsets(TopicPartition(*topic_partition), timeout=PATIENCE_S)
            consumer.assign([TopicPartition(*topic_partition, low)])
            while not (message := consumer.poll(PATIENCE_S)).error():
                documents.append(message)
        finally:
            consumer.close()
        return documents

    def watermarks(self, topic_partition: PartitionKey) -> dict[str, int]:
        asked = TopicPartition(*topic_partition)

        def offset(spec: Any, isolation: IsolationLevel) -> int:
            (future,) = self.admin.list_offsets({asked: spec}, isolation_level=isolation).values()
            return int(future.result(PATIENCE_S).offset)

        return {
            "log_start_offset": offset(OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED),
            "last_stable_offset": offset(OffsetSpec.latest(), IsolationLevel.READ_COMMITTED),
            "high_watermark": offset(OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED),
        }

    def consumed_facts(self, topic_partition: PartitionKey) -> dict[str, Any]:
        """Return `records`: [offset, timestamp, codec] as read_uncommitted; `committed`: offsets as read_committed."""
        every = self.consumed(topic_partition, "read_uncommitted")
        return {
            **self.watermarks(topic_partition),
            "timestamp_types": sorted({message.timestamp()[0] for message in every}),
            "records": [[record.offset(), record.timestamp()[1], dict(record.headers())["codec"].decode()] for record in every],
            "committed": [message.offset() for message in self.consumed(topic_partition, "read_committed")],
        }


def walked(frame: bytes, record_bytes: int) -> list[tuple[int, int, int]]:
    """(attributes, last offset delta, records count) of whole batches: found by their own leader epoch and magic 2."""
    documents = []
    start = frame.index(b"\x00\x00\x00\x00\x02", record_bytes) - 12
    while start + 61 <= len(frame) and frame[start + 16] == 2:
        length = struct.unpack_from(">i", frame, start + 8)[0]
        attributes, delta = struct.unpack_from(">hi", frame, start + 21)
        documents.append((attributes, delta, struct.unpack_from(">i", frame, start + 57)[0]))
        start += 12 + length
    return documents


Captured = tuple[str, bytes, dict[str, Any]]


def captured_fetch(
    cluster: Cluster,
    name: str,
    offsets: Mapping[PartitionKey, int],
    *,
    isolation: int,
    error_code: int = 0,
    max_bytes: int = 1 << 20,
) -> Captured:
    frame = partitions = None
    while frame != (now := fetch(cluster.bootstrap, offsets, isolation=isolation, max_bytes=max_bytes)) or partitions is None:
        frame = now  # markers and the cleaner come when they like: what is told must be told of this frame
        partitions = {f"{topic}-{index}": cluster.consumed_facts((topic, index)) for topic, index in offsets}
    request = {
        "isolation_level": isolation,
        "offsets": {f"{topic}-{index}": offset for (topic, index), offset in offsets.items()},
    }
    return f"fetch-{name}", frame, {"request": request, "error_code": error_code, "partitions": partitions}


def codecs(cluster: Cluster) -> Iterator[Captured]:
    """Every codec in two partitions, the second of a topic stamped by the broker; whole, cut, from inside, at and beyond the end."""
    cluster.create("codecs")
    cluster.create("stamped", **{"message.timestamp.type": "LogAppendTime"})
    for codec in CODECS:
        for topic_partition in (("codecs", 0), ("stamped", 0)):
            cluster.write(cluster.producer(codec), topic_partition, codec, range(12))
    topic_partition, end = ("codecs", 0), 12 * len(CODECS)
    yield captured_fetch(cluster, "codecs", {topic_partition: 0, ("stamped", 0): 0}, isolation=1)
    yield captured_fetch(cluster, "inside", {topic_partition: end - 18}, isolation=0)
    whole = len(fetch(cluster.bootstrap, {topic_partition: 0}, isolation=1))
    yield captured_fetch(cluster, "partial", {topic_partition: 0}, isolation=1, max_bytes=whole - 250)
    yield captured_fetch(cluster, "empty", {topic_partition: end}, isolation=1)
    yield captured_fetch(cluster, "out-of-range", {topic_partition: end + 1}, isolation=1, error_code=1)


def transactions(cluster: Cluster) -> Iterator[Captured]:
    """Two transactions that overlap, one aborted; records without one between them; one more that is still open."""
    topic_partition = ("txns", 0)
    cluster.create(
        topic_partition[0], **{"segment.ms": str(1 << 40)}
    )  # markers are of today: a response ends where a log segment does
    first, second = (cluster.producer(codec, **{"transactional.id": f"golden-{codec}"}) for codec in ("lz4", "zstd"))
    plain, idempotent = cluster.producer("none"), cluster.producer("gzip", **{"enable.idempotence": True})
    cluster.write(first, topic_partition, "lz4", range(3))
    cluster.write(second, topic_partition, "zstd", range(4))
    cluster.write(plain, topic_partition, "none", range(2))
    cluster.write(first, topic_partition, "lz4", range(5))
    first.abort_transaction(PATIENCE_S)
    cluster.write(idempotent, topic_partition, "gzip", range(3))
    second.commit_transaction(PATIENCE_S)
    first.begin_transaction()
    cluster.write(first, topic_partition, "lz4", range(2))
    first.commit_transaction(PATIENCE_S)
    second.begin_transaction()
    cluster.write(second, topic_partition, "zstd", range(3))
    second.abort_transaction(PATIENCE_S)
    second.begin_transaction()
    cluster.write(second, topic_partition, "zstd", range(2))
    cluster.write(plain, topic_partition, "none", range(2))

    def is_marked() -> bool:
        ends = cluster.watermarks(topic_partition)
        return ends["high_watermark"] - ends["last_stable_offset"] == 4

    wait_until(is_marked)
    yield captured_fetch(cluster, "txns-committed", {topic_partition: 0}, isolation=1)
    yield captured_fetch(cluster, "txns-uncommitted", {topic_partition: 0}, isolation=0)
    second.abort_transaction(PATIENCE_S)


def compaction(cluster: Cluster) -> Iterator[Captured]:
    """Holes inside batches, a batch that was emptied, tombstones with a delete horizon, a marker with one."""
    topic_partition = ("compacted", 0)
    cluster.create(topic_partition[0], **COMPACTED)
    emptied = cluster.producer("gzip", **{"enable.idempotence": True})
    txn = cluster.producer("lz4", **{"transactional.id": "golden-compacted"})
    cluster.write(cluster.producer("zstd"), topic_partition, "zstd", range(12))
    cluster.write(emptied, topic_partition, "gzip", range(20, 24))
    cluster.write(txn, topic_partition, "lz4", range(30, 34))
    txn.commit_transaction(PATIENCE_S)
    txn.begin_transaction()  # the last batch of a producer stays behind when it is emptied: this one, not the one before
    cluster.write(txn, topic_partition, "lz4", range(40, 42))
    txn.commit_transaction(PATIENCE_S)
    cluster.write(cluster.producer("snappy"), topic_partition, "snappy", [1, 2, 5, 6, 20, 21, 22, 23, 30, 31, 32, 33])
    cluster.write(cluster.producer("none"), topic_partition, "none", [3, 8], value=None)
    roll = cluster.producer("none")

    unused_keys = itertools.count(100)

    def is_cleaned() -> bool:
        cluster.write(
            roll, topic_partition, "none", [next(unused_keys)], first_ms=int(time.time() * 1000)
        )  # log segments end by record time
        batches = walked(fetch(cluster.bootstrap, {topic_partition: 0}, isolation=1), 40)
        is_marker_waiting = any(attributes & 0x60 == 0x60 for attributes, _, _ in batches)
        has_hole = any(0 < count <= delta for _, delta, count in batches)
        has_empty = any(count == 0 for _, _, count in batches)
        is_tombstone_waiting = any(attributes & 0x60 == 0x40 for attributes, _, _ in batches)
        return has_hole and has_empty and is_tombstone_waiting and is_marker_waiting

    wait_until(is_cleaned)
    yield captured_fetch(cluster, "compacted", {topic_partition: 0}, isolation=1)


def wait_until(is_so: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < give_up_at, "the broker did not do it in time"
        time.sleep(0.5)


def produced(cluster: Cluster) -> Iterator[Captured]:
    """Yield accepted and refused batches; a consumer reports the base offsets of the accepted ones."""
    cluster.create("taken", 2)
    cluster.create("small", **{"max.message.bytes": "200"})
    cluster.create("keyed", **{"cleanup.policy": "compact"})
    cluster.create("timely", **{"message.timestamp.after.max.ms": "3600000"})
    now_ms = int(time.time() * 1000)
    headers_free = batch(0, 3, timestamp=now_ms)
    frame = produce(cluster.bootstrap, {("taken", 0): headers_free})
    frame = produce(cluster.bootstrap, {("taken", 0): headers_free, ("taken", 1): batch(0, 1, timestamp=now_ms)})
    offsets = {
        topic_partition: cluster.consumed(topic_partition, "read_uncommitted") for topic_partition in (("taken", 0), ("taken", 1))
    }
    first = {
        topic_partition: actual[-count].offset() for (topic_partition, actual), count in zip(offsets.items(), (3, 1), strict=True)
    }
    yield (
        "produce-ok",
        frame,
        {"partitions": {f"{topic}-{index}": _produced(0, base) for (topic, index), base in first.items()}},
    )
    payload = record(0, None) + record(1, b"key") + record(2, None)
    null_keys = batch(0, deltas=[0, 1, 2], timestamp=now_ms, payload=payload)
    damaged = headers_free[:-1] + bytes([headers_free[-1] ^ 1])
    refused = {
        ("keyed", 0): (null_keys, 87, [0, 2]),
        ("timely", 0): (batch(0, 2, timestamp=now_ms + 7_200_000), 32, [0, 1]),
        ("small", 0): (batch(0, 20, timestamp=now_ms), 10, []),
        ("nowhere", 0): (headers_free, 3, []),
        ("taken", 0): (damaged, 2, []),
    }
    frame = produce(cluster.bootstrap, {topic_partition: data for topic_partition, (data, _, _) in refused.items()})
    yield (
        "produce-refused",
        frame,
        {
            "partitions": {
                f"{topic}-{index}": _produced(code, -1, indices) for (topic, index), (_, code, indices) in refused.items()
            }
        },
    )


def _produced(code: int, base_offset: int, record_errors: Sequence[int] = ()) -> dict[str, Any]:
    return {"error_code": code, "base_offset": base_offset, "record_errors": list(record_errors)}


def capture(version: str) -> Iterator[Captured]:
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-golden-") as folder:
        with LocalKafka(Path(folder), version, properties=CLEANS_AT_ONCE) as node:
            cluster = Cluster(node.bootstrap)
            for scenario in (codecs, transactions, compaction, produced):
                yield from scenario(cluster)


def main(versions: Sequence[str]) -> None:
    for version in versions:
        for name, frame, reported in capture(version):
            target = FOLDER / f"{name}-{version}"
            target.with_name(f"{target.name}.bin").write_bytes(frame)
            text = json.dumps({"kafka": version, **reported}, indent=1)
            target.with_name(f"{target.name}.json").write_text(_compact(text) + "\n", encoding="utf-8")
            print(f"{target.name}: {len(frame)} bytes")


def _compact(text: str) -> str:
    """Innermost lists on one line."""
    out, depth_text = [], text
    while "[" in depth_text:
        head, _, rest = depth_text.partition("[")
        inner, _, tail = rest.partition("]")
        if "[" in inner:
            out.append(head + "[")
            depth_text = rest
            continue
        out.append(head + "[" + " ".join(inner.split()) + "]")
        depth_text = tail
    return "".join(out) + depth_text


if __name__ == "__main__":
    main(sys.argv[1:] or VERSIONS)
