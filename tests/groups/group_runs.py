"""Transactional traffic, and consumers that stop in the middle."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition

from shallow_mirror.wire.protocol.primitives import NO_TAGS, compact_string, string, uvarint

PATIENCE_S = 60.0


def write_transactions(bootstrap: str, topic: str, partitions: int, records: int, name: str) -> list[str]:
    """Values that readers of committed records see: some transactions are aborted, and there are plain records in between."""
    settings = {"bootstrap.servers": bootstrap, "log_level": 0}
    chance, offsets_seen = random.Random(name), []
    sender, plain = Producer({**settings, "transactional.id": f"{topic}-{name}"}), Producer(settings)
    sender.init_transactions(PATIENCE_S)
    number = 0
    while number < records:
        size, is_aborted = chance.randint(1, max(2, records // 12)), chance.random() < 0.3
        sender.begin_transaction()
        values = [f"{name}-{number + at}" for at in range(size)]
        for value in values:
            sender.produce(topic, value, partition=chance.randrange(partitions))
            sender.poll(0)
        if is_aborted:
            assert sender.flush(PATIENCE_S) == 0
            sender.abort_transaction(PATIENCE_S)
        else:
            sender.commit_transaction(PATIENCE_S)
            offsets_seen += values
        value = f"{name}-plain-{number}"
        plain.produce(topic, value, partition=chance.randrange(partitions))
        assert plain.flush(PATIENCE_S) == 0
        offsets_seen.append(value)
        number += size
    return offsets_seen


@contextmanager
def streams_member(bootstrap: str, group: str, topic: str) -> Iterator[None]:
    """Join a group of Kafka Streams (KIP-1071), by the bytes of StreamsGroupHeartbeat version 0: no client in Python has it."""
    none, nothing = b"\x00", b"\x01"
    subtopology = compact_string("0") + uvarint(2) + compact_string(topic) + 5 * nothing + NO_TAGS
    topology = b"\x01" + (0).to_bytes(4, "big") + uvarint(2) + subtopology + NO_TAGS

    def beat(peer: socket.socket, epoch: int) -> None:
        joins = epoch == 0
        body = compact_string(group) + compact_string("member") + struct.pack(">ii", epoch, 0) + none + none
        body += struct.pack(">i", 60_000 if joins else -1) + (topology if joins else b"\xff")
        body += 3 * (nothing if joins else none) + (compact_string("process") if joins else none)
        body += b"\xff" + (nothing if joins else none) + none + none + b"\x00" + NO_TAGS
        head = struct.pack(">hhi", 88, 0, 1) + string("tests") + NO_TAGS
        peer.sendall(struct.pack(">i", len(head + body)) + head + body)
        response = peer.recv(1 << 16)
        assert response[13:15] == b"\x00\x00", response

    host, port = bootstrap.split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as peer:
        beat(peer, 0)
        yield
        beat(peer, -1)


@contextmanager
def member(bootstrap: str, group: str, topic: str, protocol: str = "classic") -> Iterator[Consumer]:
    """Join the group with a consumer that does not commit automatically. `protocol` "consumer" is that of KIP-848."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": protocol,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "log_level": 0,
        }
    )
    try:
        consumer.subscribe([topic])
        yield consumer
    finally:
        consumer.close()


def consume(bootstrap: str, group: str, topic: str, partitions: int, most: int | None = None) -> list[str]:
    """Consume from the position of the group until `most` records are read, or all. Then commit and leave the group."""
    values: list[str] = []
    at_end: set[int] = set()
    with member(bootstrap, group, topic) as consumer:
        topic_partitions = [TopicPartition(topic, number) for number in range(partitions)]
        while len(at_end) < partitions and (most is None or len(values) < most):
            message = consumer.poll(PATIENCE_S)
            assert message is not None, f"group {group}: no answer"
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                at_end.add(message.partition())
                continue
            at_end.discard(message.partition())
            values.append(message.value().decode())
        positions = [record for record in consumer.position(topic_partitions) if record.offset >= 0]
        if positions:
            consumer.commit(offsets=positions, asynchronous=False)
    return values
