"""Writes a corpus into a fresh topic, through `BatchProducer`: batches are compressed once and sent many times."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.corpora import PARTITIONS, Corpus, make_batches
from benchmarks.topics import create_topic, log_end_offsets
from shallow_mirror.broker.batch_consumer import BatchConsumer
from shallow_mirror.broker.batch_producer import BatchProducer
from shallow_mirror.broker.fetched_batches import FetchedBatch, FetchedBatches, FetchedPart
from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.batch_index import index_batches

_QUEUE_BYTES = 8 << 20
_TXN_BATCHES = 40
_ABORTED_OF = 5
"""One transaction of so many is aborted, and one in front of it is no transaction."""

_HEADERS_READ_BYTES = 16 << 20
_PATIENCE_MS = 10_000.0


def write_corpus(bootstrap: str, topic: str, corpus: Corpus, size_bytes: float) -> None:
    """About `size_bytes` of batches, in turn over the partitions, each beginning with another batch."""
    create_topic(bootstrap, topic, PARTITIONS, {"compression.type": "producer"})
    endless = _endless(_as_fetched(topic, [made.records for made in make_batches(corpus)]), topic, size_bytes)
    if corpus.is_messy:
        _write_messy(bootstrap, topic, endless)
        return
    with BatchProducer({"bootstrap.servers": bootstrap}, queue_bytes=_QUEUE_BYTES) as producer:
        for place, batch in endless:
            producer.send_batch(place, batch)


def _as_fetched(topic: str, made: Sequence[bytes]) -> FetchedBatches:
    records = memoryview(b"".join(made))
    index = index_batches(records)
    assert len(index) == len(made)
    return FetchedBatches([FetchedPart(TopicPartition(topic, 0), index, records, np.arange(len(made)))])


def _endless(batches: Sequence[FetchedBatch], topic: str, size_bytes: float) -> Iterator[tuple[TopicPartition, FetchedBatch]]:
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    written = 0
    for number in itertools.count():
        partition = number % PARTITIONS
        batch = batches[(number // PARTITIONS + partition * len(batches) // PARTITIONS) % len(batches)]
        yield places[partition], batch
        written += batch.size_bytes
        if written >= size_bytes:
            return


def _write_messy(bootstrap: str, topic: str, batches: Iterator[tuple[TopicPartition, FetchedBatch]]) -> None:
    """Turns of plain batches, committed transactions and an aborted one; the plain ones also lie inside the transactions."""
    client = {"bootstrap.servers": bootstrap}
    with BatchProducer(client) as plain, BatchProducer(client, f"writer-of-{topic}") as transactional:
        for turn in itertools.count():
            several = list(itertools.islice(batches, _TXN_BATCHES))
            if not several:
                return
            transactional.begin_txn()
            for number, (place, batch) in enumerate(several):
                (plain if number % 2 else transactional).send_batch(place, batch)
            plain.flush()
            transactional.flush()
            transactional.end_txn(commit=turn % _ABORTED_OF != 0)


def batch_sizes(bootstrap: str, topic: str) -> Counter[int]:
    """How many batches of which size lie in the topic, by their headers; control batches are left out."""
    ends = {place: end for place, end in log_end_offsets(bootstrap, topic).items() if end}
    sizes: Counter[int] = Counter()
    with BatchConsumer({"bootstrap.servers": bootstrap}, isolation=IsolationLevel.READ_UNCOMMITTED) as consumer:
        consumer.assign(dict.fromkeys(ends, "earliest"))
        while any(consumer.position(place) < end for place, end in ends.items()):
            polled = consumer.poll_batches(_HEADERS_READ_BYTES, _PATIENCE_MS)
            sizes.update(batch.size_bytes for batch in polled if not batch.is_control)
    return sizes


def sizes_sentence(corpus: Corpus, sizes: Counter[int]) -> str:
    """What lies in the topic, and whether it is what the corpus is meant to be."""
    least, most = min(sizes), max(sizes)
    mean = sizes_total(sizes) / sizes.total()
    fits = corpus.batch_bytes[0] <= least and most <= corpus.batch_bytes[1]
    verdict = "" if fits else f", NOT the {corpus.batch_bytes[0]:,} to {corpus.batch_bytes[1]:,} that were meant"
    return f"{sizes.total():,} batches of {least:,} to {most:,} bytes, {mean:,.0f} on average{verdict}"


def sizes_total(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())
