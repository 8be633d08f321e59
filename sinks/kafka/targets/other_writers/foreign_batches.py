"""Driver: batches of target topics that are not of the mirror: none of its rows names them. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.fetch import RangeReader, ReadRange
from shallow_mirror.checkpoints import Position
from shallow_mirror.deadline import Deadline
from shallow_mirror.types import (
    EARLIEST_TIMESTAMP,
    LATEST_TIMESTAMP,
    UNKNOWN_BYTES_PER_OFFSET,
    BatchLimits,
    IsolationLevel,
    LogAppendTimePolicy,
    TopicPartition,
)
from shallow_mirror.wire import CONTROL_BIT
from shallow_mirror.wire.batches import Verdict, admit

_FETCH_BYTES = 1 << 20
_ANY_BATCH = BatchLimits(
    max_message_bytes=(1 << 31) - 1,
    isolation_level=IsolationLevel.READ_COMMITTED,
    log_append_time=LogAppendTimePolicy.KEEP,
)


def first_foreign_batch(
    target: Cluster,
    partitions: Iterable[TopicPartition],
    positions: Iterable[Position],
    isolation: IsolationLevel,
    deadline: Deadline,
    *,
    counts_open: bool = True,
) -> tuple[TopicPartition, int] | None:
    """Return the partition and base offset of a batch behind what the mirror wrote there; None: there is none.

    `positions`: of the map, in these partitions. Markers, and fillers of the mirror, are no foreign batches. With READ_COMMITTED
    aborted batches are none either. `counts_open`: what is open is another writer's; False if the mirror's own transactions may
    be. Raises RetriableError and as `RangeReader`.
    """
    ends = dict.fromkeys(partitions, 0)
    producers: dict[TopicPartition, set[int]] = {}
    for at in positions:
        key = at.target.topic_partition
        ends[key] = max(ends.get(key, 0), at.target_end)
        if at.shared_producer_id is not None:
            producers.setdefault(key, set()).add(at.shared_producer_id)
    if not ends:
        return None
    log_ends = target.list_offsets(dict.fromkeys(ends, LATEST_TIMESTAMP), IsolationLevel.READ_UNCOMMITTED, deadline)
    stable_ends = target.list_offsets(dict.fromkeys(ends, LATEST_TIMESTAMP), isolation, deadline)
    starts = target.list_offsets(dict.fromkeys(ends, EARLIEST_TIMESTAMP), IsolationLevel.READ_UNCOMMITTED, deadline)
    ranges = [
        ReadRange(key, max(end, starts[key].offset), stable_ends[key].offset, UNKNOWN_BYTES_PER_OFFSET)
        for key, end in ends.items()
        if max(end, starts[key].offset) < stable_ends[key].offset
    ]
    begins = {each.topic_partition: each.position for each in ranges}
    for response in RangeReader(target, ranges, isolation=isolation, fetch_bytes=_FETCH_BYTES, deadline=deadline):
        for fetched in response:
            key, headers = fetched.topic_partition, fetched.index.headers
            is_own = (headers["attributes"] & CONTROL_BIT) != 0
            is_own = is_own | np.isin(headers["producer_id"], list(producers.get(key, ())))
            if isolation is IsolationLevel.READ_COMMITTED:
                verdicts = admit(
                    fetched.index,
                    fetched.records,
                    topic_partition=key,
                    position=begins[key],
                    range_end=stable_ends[key].offset,
                    aborted=fetched.aborted,
                    limits=_ANY_BATCH,
                ).verdicts
                is_own = is_own | np.isin(verdicts, [Verdict.DROP_BELOW, Verdict.DROP_ABORTED, Verdict.BEYOND])
            for i in np.flatnonzero(~is_own)[:1].tolist():
                return key, int(headers["base_offset"][i])
    if not counts_open:
        return None
    # A transaction that is open is another writer's: those of the mirror were ended before.
    return next(((key, at.offset) for key, at in stable_ends.items() if at.offset < log_ends[key].offset), None)
