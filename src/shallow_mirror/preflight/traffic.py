"""Driver: where the logs of the source ended in the last hours, by the timestamps of their records."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.preflight.size import HOURS
from shallow_mirror.types import LATEST_TIMESTAMP, IsolationLevel, SourcePartition, TopicPartition

_HOUR_MS = 3_600_000


def hourly_ends(
    source: Cluster, partitions: Iterable[SourcePartition], now_ms: int, deadline: Callable[[], Deadline]
) -> list[dict[TopicPartition, int]]:
    """Return the log ends now, an hour ago, and so on: HOURS + 1 of them. Raises RetriableError.

    The end at a time is the offset of the first record that has this timestamp or a later one.
    """
    names = [partition.topic_partition for partition in partitions]
    if not names:
        return []
    level = IsolationLevel.READ_UNCOMMITTED
    latest = source.list_offsets(dict.fromkeys(names, LATEST_TIMESTAMP), level, deadline())
    ends = [{name: latest[name].offset for name in names}]
    for hour in range(1, HOURS + 1):
        listed = source.list_offsets(dict.fromkeys(names, now_ms - hour * _HOUR_MS), level, deadline())
        # No such record (-1): nothing was written since.
        ends.append({name: offset if (offset := listed[name].offset) >= 0 else ends[0][name] for name in names})
    return ends
