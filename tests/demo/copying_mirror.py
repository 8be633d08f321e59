"""A stand-in for `shallow-mirror run CONF --available-now`: copies record by record in transactions and leaves an offset map.

Like the mirror it keeps its position where a crash cannot part it from the data: it counts what the target shows.
`COPYING_MIRROR_FAULT=drop` makes it a bad one, which loses a record.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import write_deltalake

CHUNK = 500
MARKERS_S = 30.0


def read_all(bootstrap: str, topic: str, partition: int) -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "copying",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([TopicPartition(topic, partition, 0)])
    messages: list[Any] = []
    while True:
        message = consumer.poll(10)
        if message is None or message.error():
            consumer.close()
            return messages
        messages.append(message)


def read_copies(bootstrap: str, topic: str, partition: int, records: int) -> list[Any]:
    """Read the records of a partition once it shows so many: a commit is answered before its markers are in the partitions."""
    deadline = time.monotonic() + MARKERS_S
    while len(copies := read_all(bootstrap, topic, partition)) < records:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{topic}-{partition} shows {len(copies)} records after {MARKERS_S} s, not {records}")
        time.sleep(0.01)
    return copies


def segments(topic: str, partition: int, source: list[Any], target: list[Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for record, other in zip(source, target, strict=False):
        start, target_start = record.offset(), other.offset()
        last = rows[-1] if rows else None
        if last and last["kind"] == "data" and last["source_end"] == start and last["target_end"] == target_start:
            last.update(source_end=start + 1, target_end=target_start + 1, record_count=last["record_count"] + 1)
            continue
        end = last["source_end"] if last else 0
        if end < start:
            rows.append(row(topic, partition, end, start, "gap", None, 0))
        rows.append(row(topic, partition, start, start + 1, "data", target_start, 1))
    return rows


def row(topic: str, partition: int, start: int, end: int, kind: str, target_start: int | None, records: int) -> dict[str, Any]:
    return {
        "source_topic": topic,
        "source_partition": partition,
        "source_start": start,
        "source_end": end,
        "kind": kind,
        "target_start": target_start,
        "target_end": None if target_start is None else target_start + 1,
        "record_count": records,
        "batch_count": records,
        "rebuilt_batch_count": 0,
        "size_bytes": records * 100,
    }


def main(conf: Path) -> None:
    settings = yaml.safe_load(conf.read_text())
    source, target = (settings[side]["client"]["bootstrap.servers"] for side in ("source", "target"))
    listed = AdminClient({"bootstrap.servers": source}).list_topics(timeout=10).topics
    topics = {name: len(topic.partitions) for name, topic in listed.items() if name.startswith("orders.")}
    admin = AdminClient({"bootstrap.servers": target})
    for created in admin.create_topics(
        [NewTopic(name, count, 1, config={"retention.ms": "-1"}) for name, count in topics.items()]
    ).values():
        created.exception(10)
    producer = Producer({"bootstrap.servers": target, "transactional.id": "copying-0", "linger.ms": 1})
    producer.init_transactions(30)
    print("recovery: slot txn copying-0 (producer id 1, epoch 1): removed", file=sys.stderr)
    rows: list[dict[str, Any]] = []
    for topic, partition in [(topic, partition) for topic, count in topics.items() for partition in range(count)]:
        records = read_all(source, topic, partition)
        done = len(read_all(target, topic, partition))
        wanted = records[done:]
        if os.environ.get("COPYING_MIRROR_FAULT") == "drop":
            wanted = wanted[:-1]
        for start in range(0, len(wanted), CHUNK):
            producer.begin_transaction()
            for message in wanted[start : start + CHUNK]:
                producer.produce(
                    topic,
                    message.value(),
                    message.key(),
                    partition,
                    timestamp=message.timestamp()[1],
                    headers=message.headers() or [],
                )
            producer.flush(30)
            time.sleep(0.1)
            producer.commit_transaction(30)
        rows += segments(topic, partition, records, read_copies(target, topic, partition, done + len(wanted)))
    schema = pa.Table.from_pylist(rows).schema
    write_deltalake(str(Path(settings["tables"]) / "offset_map"), pa.Table.from_pylist(rows, schema=schema))


if __name__ == "__main__":
    main(Path(sys.argv[2]))
