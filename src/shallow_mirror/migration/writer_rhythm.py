"""Driver: how long the writers of topics pause, by the timestamps of the last batches."""

from __future__ import annotations

import time
from collections.abc import Iterator

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.clients import BatchConsumer
from shallow_mirror.deadline import request_deadline
from shallow_mirror.errors import BatchRefusedError, CorruptBatchError, DataLossError
from shallow_mirror.migration.observations import LogEnds
from shallow_mirror.migration.quiet_time import Stamp, longest_gap_s
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel

TAIL_OFFSETS = 2_000
"""So many of the last offsets of each partition are looked at."""
TAIL_BYTES = 32 << 20
TAIL_S = 10.0
"""Of all partitions together: what was not read until then counts as if it had no pauses."""


def read_longest_pause_s(cluster: Cluster, client: ClientConfig, ends: LogEnds) -> float:
    """Return the longest pause between the last batches of the writers. Raises RetriableError, ConfigError."""
    written = {name: log.stable for name, log in ends.items() if log.stable > 0}
    if not written:
        return 0.0
    timestamps = dict.fromkeys(written, EARLIEST_TIMESTAMP)
    starts = cluster.list_offsets(timestamps, IsolationLevel.READ_COMMITTED, request_deadline())
    offsets = {name: max(starts[name].offset, end - TAIL_OFFSETS) for name, end in written.items()}
    tails = {name: offset for name, offset in offsets.items() if offset < written[name]}
    if not tails:
        return 0.0
    cut = {name for name, offset in tails.items() if offset > starts[name].offset}
    with BatchConsumer(client) as consumer:
        consumer.assign(tails)

        def stamps() -> Iterator[Stamp]:
            give_up_at_s, left_bytes = time.monotonic() + TAIL_S, TAIL_BYTES
            while any(consumer.position(name) < written[name] for name in tails):
                try:
                    batches = consumer.poll_batches(max_bytes=1 << 20, timeout_ms=500)
                except (BatchRefusedError, CorruptBatchError, DataLossError):
                    return  # a format before Kafka 0.11, damage, or retention: what was read has to do
                for batch in batches:
                    left_bytes -= batch.size_bytes
                    yield Stamp(batch.topic_partition, batch.producer_id, batch.max_timestamp_ms)
                if time.monotonic() > give_up_at_s or left_bytes < 0:
                    return

        return longest_gap_s(stamps(), cut)
