"""Writes a corpus into a fresh topic, through `BatchProducer`: batches are compressed once and sent many times."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np

from benchmarks.corpora import Corpus, make_batches
from benchmarks.messy_log import COMPACTED, Placed, write_messy
from benchmarks.topics import create_topic, stored_batches
from shallow_mirror.broker.clients.batch_producer import BatchProducer
from shallow_mirror.broker.clients.fetched_batches import FetchedBatches, FetchedPart
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.batches import index_batches

_QUEUE_BYTES = 8 << 20


def write_corpus(bootstrap: str, topic: str, corpus: Corpus, size_bytes: float) -> None:
    """About `size_bytes` of batches."""
    create_topic(bootstrap, topic, corpus.partitions, COMPACTED if corpus.is_messy else {})
    batches = _up_to(size_bytes, endless_batches(topic, corpus))
    if corpus.is_messy:
        write_messy(bootstrap, topic, corpus, batches)
        return
    with BatchProducer({"bootstrap.servers": bootstrap}, queue_bytes=_QUEUE_BYTES) as producer:
        for place, batch in batches:
            producer.send_batch(place, batch)


def endless_batches(topic: str, corpus: Corpus) -> Placed:
    """In turn over the partitions, each beginning with another batch."""
    batches = _as_fetched(topic, [made.records for made in make_batches(corpus)])
    places = [TopicPartition(topic, partition) for partition in range(corpus.partitions)]
    for number in itertools.count():
        partition = number % len(places)
        yield places[partition], batches[(number // len(places) + partition * len(batches) // len(places)) % len(batches)]


def _as_fetched(topic: str, made: Sequence[bytes]) -> FetchedBatches:
    records = memoryview(b"".join(made))
    index = index_batches(records)
    assert len(index) == len(made)
    return FetchedBatches([FetchedPart(TopicPartition(topic, 0), index, records, np.arange(len(made)))])


def _up_to(size_bytes: float, batches: Placed) -> Placed:
    written = 0
    for place, batch in batches:
        yield place, batch
        written += batch.size_bytes
        if written >= size_bytes:
            return


def batch_sizes(bootstrap: str, topic: str) -> Counter[int]:
    """How many batches of which size lie in the topic, by their headers; control batches are left out."""
    return Counter(batch.size_bytes for batch in stored_batches(bootstrap, topic) if not batch.is_control)


def sizes_sentence(corpus: Corpus, sizes: Counter[int]) -> str:
    """Return a sentence about the batch sizes in the topic, and whether they are what the corpus is meant to have."""
    least, most = min(sizes), max(sizes)
    mean = sizes_total(sizes) / sizes.total()
    fits = corpus.batch_bytes[0] <= least and most <= corpus.batch_bytes[1]
    verdict = "" if fits else f", NOT the {corpus.batch_bytes[0]:,} to {corpus.batch_bytes[1]:,} that were meant"
    return f"{sizes.total():,} batches of {least:,} to {most:,} bytes, {mean:,.0f} on average{verdict}"


def sizes_total(sizes: Counter[int]) -> int:
    return sum(size * count for size, count in sizes.items())
