"""What no single producer leaves in a log: holes inside batches, transactions, aborted ones among them, plain batches between.

Holes are compaction's own: the first batches go into a topic that is compacted, and their keys repeat. Once the broker has
left holes in some, the topic is compacted no more and the rest is written.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from benchmarks.corpora import Corpus
from benchmarks.topics import set_topic, stored_batches
from shallow_mirror.broker.clients.batch_producer import BatchProducer
from shallow_mirror.broker.clients.fetched_batches import FetchedBatch
from shallow_mirror.types import TopicPartition

COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": "1048576",
    "min.cleanable.dirty.ratio": "0.01",
    "min.compaction.lag.ms": "0",
}
NOT_COMPACTED = {"cleanup.policy": "delete", "segment.bytes": "1073741824"}

_COMPACTED_ROUNDS = 3
"""Of the distinct batches: the later ones leave the earlier ones nothing, and each other holes."""

_HOLES_WITHIN_S = 90.0
_TXN_BATCHES = 40
_ABORTED_OF = 5
"""One transaction of so many is aborted."""

Placed = Iterator[tuple[TopicPartition, FetchedBatch]]


def write_messy(bootstrap: str, topic: str, corpus: Corpus, batches: Placed) -> None:
    """Into a topic with the settings of COMPACTED. Raises TimeoutError when the broker does not compact it."""
    with BatchProducer({"bootstrap.servers": bootstrap}) as producer:
        for place, batch in itertools.islice(batches, _COMPACTED_ROUNDS * corpus.distinct_batches):
            producer.send_batch(place, batch)
    _wait_for_holes(bootstrap, topic)
    set_topic(bootstrap, topic, NOT_COMPACTED)
    _write_transactions(bootstrap, topic, batches)


def _wait_for_holes(bootstrap: str, topic: str) -> None:
    give_up_at = time.monotonic() + _HOLES_WITHIN_S
    while not any(has_holes(batch) for batch in stored_batches(bootstrap, topic)):
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"{topic}: the broker left no holes within {_HOLES_WITHIN_S:.0f} s")
        time.sleep(0.5)


def has_holes(batch: FetchedBatch) -> bool:
    return not batch.is_control and 0 < batch.record_count < batch.last_offset - batch.base_offset + 1


def _write_transactions(bootstrap: str, topic: str, batches: Placed) -> None:
    """Of every two batches one in a transaction, the other between those of it."""
    client = {"bootstrap.servers": bootstrap}
    with BatchProducer(client) as plain, BatchProducer(client, f"writer-of-{topic}") as transactional:
        for turn in itertools.count():
            several = list(itertools.islice(batches, _TXN_BATCHES))
            if not several:
                return
            transactional.begin_txn()
            for number, (place, batch) in enumerate(several):
                (plain if number // 4 % 2 else transactional).send_batch(place, batch)
            plain.flush()
            transactional.flush()  # an abort sends nothing of what still waits
            transactional.end_txn(commit=turn % _ABORTED_OF != 0)
