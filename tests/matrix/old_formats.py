"""Topics that hold what clients and brokers before 0.11 wrote: message sets of magic 0 and 1, and batches of magic 2 behind them.

A real broker of 2.8 takes the sets, gives them offsets, cleans them and hands them out. Codecs have a partition each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from kafka.protocol.producer import ProduceRequest, ProduceResponse
from tests.golden.capture import ask
from tests.messy.corpus import clean
from tests.support.mirror_runs import create_topic, set_topic, wait_for
from tests.support.one_batch import one_batch_producer
from tests.support.record_batches import message
from tests.support.record_encoders import ENCODERS

from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.wire.batches.header import LOG_OVERHEAD, MAGIC_POS

PartitionKey = tuple[str, int]
Contents = Sequence[tuple[bytes | None, bytes | None]]
"""Keys and values."""

CODECS = tuple(name for name in ENCODERS if name != "zstd")
FORMATS = {0: "0.9.0", 1: "0.10.0", 2: "2.8"}
"""`message.format.version` that makes the broker store a magic."""

_PRODUCE_VERSIONS = {0: 1, 1: 2}
_NOW_MS = int(time.time() * 1000)


def write_aged(node: LocalKafka, topic: str) -> None:
    """Compacted, and has lived through all formats: holes in sets and batches of each."""
    create_topic(node.bootstrap, topic, len(CODECS), {"cleanup.policy": "compact", "message.format.version": FORMATS[0]})
    for magic in FORMATS:
        _change_format(node, topic, magic)
        for partition, codec in enumerate(CODECS):
            for keys in (range(40), range(40, 60), range(0, 60, 7)):
                contents = [(b"k%d" % (key + 50 * magic), b"%d of format %d " % (key, magic) * 5) for key in keys]
                _write(node.bootstrap, (topic, partition), codec, magic, contents)
    clean(node.bootstrap, topic, len(CODECS))


def write_bare(node: LocalKafka, topic: str) -> None:
    """Write records without key, without value, with an empty one."""
    create_topic(node.bootstrap, topic, len(CODECS), {"message.format.version": FORMATS[0]})
    contents = [(None if n % 2 else b"k", None if n % 3 == 1 else b"v" * (n % 3 * n)) for n in range(30)]
    for magic in _PRODUCE_VERSIONS:
        _change_format(node, topic, magic)
        for partition, codec in enumerate(CODECS):
            _write(node.bootstrap, (topic, partition), codec, magic, contents)


def write_stamped(node: LocalKafka, topic: str) -> None:
    """With the broker's time instead of the producer's."""
    settings = {"message.format.version": FORMATS[1], "message.timestamp.type": "LogAppendTime"}
    create_topic(node.bootstrap, topic, len(CODECS), settings)
    for partition, codec in enumerate(CODECS):
        _write(node.bootstrap, (topic, partition), codec, 1, [(b"k%d" % n, b"v" * n) for n in range(20)])


def stored_magics(node: LocalKafka, topic_partition: PartitionKey) -> list[int]:
    """Of every message set and batch in its log files, in order."""
    files = sorted((node.folder / "data" / f"{topic_partition[0]}-{topic_partition[1]}").glob("*.log"))
    return [magic for file in files for magic in _magics(file.read_bytes())]


def _magics(records: bytes) -> Iterator[int]:
    pos = 0
    while pos + MAGIC_POS < len(records):
        yield records[pos + MAGIC_POS]
        pos += LOG_OVERHEAD + int.from_bytes(records[pos + 8 : pos + LOG_OVERHEAD], "big")


def _write(bootstrap: str, topic_partition: PartitionKey, codec: str, magic: int, contents: Contents) -> None:
    """One set or batch, or a run of uncompressed messages, by a client of its time."""
    if magic not in _PRODUCE_VERSIONS:
        return _write_today(bootstrap, topic_partition, contents, codec.split()[0])
    number, encode = ENCODERS[codec]
    records = b"".join(
        message(n, key, value, magic=magic, timestamp=_NOW_MS - 60_000 + n * 7) for n, (key, value) in enumerate(contents)
    )
    if codec != "none":
        records = message(len(contents) - 1, None, encode(records), magic=magic, timestamp=_NOW_MS, attributes=number)
    version, topic = _PRODUCE_VERSIONS[magic], ProduceRequest.TopicProduceData
    data = topic.PartitionProduceData(index=topic_partition[1], records=records)
    request = ProduceRequest[version](
        acks=-1, timeout_ms=10_000, topic_data=[topic(name=topic_partition[0], partition_data=[data])]
    )
    response = ProduceResponse[version].decode(ask(bootstrap, request)[8:])
    assert response.responses[0].partition_responses[0].error_code == 0


def _write_today(bootstrap: str, topic_partition: PartitionKey, contents: Contents, codec: str = "none") -> None:
    producer = one_batch_producer(bootstrap, topic_partition[0], **{"compression.type": codec})
    for key, value in contents:
        producer.produce(topic_partition[0], value, key, partition=topic_partition[1])
    assert producer.flush(30) == 0


def _change_format(node: LocalKafka, topic: str, magic: int) -> None:
    """Until what a client of today writes is stored so."""
    set_topic(node.bootstrap, topic, {"message.format.version": FORMATS[magic]})
    for partition in range(len(CODECS)):
        topic_partition = (topic, partition)

        def is_stored_so(topic_partition: PartitionKey = topic_partition) -> bool:
            _write_today(node.bootstrap, topic_partition, [(b"probe", b"")])
            return stored_magics(node, topic_partition)[-1] == magic

        wait_for(f"magic {magic} of {topic_partition}", is_stored_so)
