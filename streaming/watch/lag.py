"""Driver: the lag of each source partition, as `status` and the metrics of a running mirror report it.

Positions come from the offset map and are read before the source is queried: a mirror that runs meanwhile can only seem to be
further behind than it is, never ahead of its source.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace

from shallow_mirror.broker import Cluster, ListedOffset
from shallow_mirror.checkpoints import Position
from shallow_mirror.config import MirrorConfig, RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.planning.source_offsets import SourceOffsets
from shallow_mirror.streaming.watch.open_transactions import OpenTransaction, list_open_transactions
from shallow_mirror.types import IsolationLevel, SourcePartition

PATIENCE_MS = 5_000
"""A status waits no longer for either cluster: without lag it is still useful."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """`position`: everything below it is accounted for. `end` is the source's high watermark: records of open transactions
    have not been copied either.

    `lag_ms`: age of the first record that is not copied yet, by its own timestamp; 0 when there is no lag. If the source
    cannot find that record (timestamps that do not rise), the age of the last copied batch, which is no younger. `end` and
    both lags are None when the source does not answer, or does not have the topic.
    """

    source: SourcePartition
    position: int
    end: int | None
    lag_offsets: int | None
    lag_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """The source's answers. `later`: the first record newer than the last copied one, offset -1 for none."""

    ends: Mapping[SourcePartition, int] = field(default_factory=dict)
    later: Mapping[SourcePartition, ListedOffset] = field(default_factory=dict)
    open_transactions: tuple[OpenTransaction, ...] = ()
    problem: str | None = None


def included_positions(
    config: MirrorConfig | RestoreConfig, positions: Mapping[SourcePartition, Position]
) -> dict[SourcePartition, Position]:
    """Return `positions` without excluded topics, which keep their positions in the map but have no lag."""
    return {source: position for source, position in positions.items() if config.topics.is_included(source.topic)}


def copied_until(positions: Mapping[SourcePartition, Position]) -> dict[SourcePartition, int]:
    """Return the timestamp of the last copied batch of each partition that has one."""
    return {
        source: position.max_timestamp_ms
        for source, position in positions.items()
        if position.max_timestamp_ms is not None and position.max_timestamp_ms >= 0
    }


def partition_statuses(
    positions: Mapping[SourcePartition, int], copied_until_ms: Mapping[SourcePartition, int], view: SourceView, at_ms: int
) -> tuple[PartitionStatus, ...]:
    """Pure. Return the statuses in order; of a recreated topic only those of the incarnation that the source has now."""
    statuses, current = [], {source.topic: source.topic_id for source in view.ends}
    for source, position in sorted(positions.items()):
        if current.get(source.topic, source.topic_id) != source.topic_id:
            continue
        end = view.ends.get(source)
        lag = None if end is None else max(0, end - position)
        lag_ms = 0 if lag == 0 else None
        if lag:
            since_ms = first_missing_ms(position, copied_until_ms.get(source), view.later.get(source))
            lag_ms = None if since_ms is None else max(0, at_ms - since_ms)
        statuses.append(PartitionStatus(source=source, position=position, end=end, lag_offsets=lag, lag_ms=lag_ms))
    return tuple(statuses)


def first_missing_ms(position: int, copied_until_ms: int | None, later: ListedOffset | None) -> int | None:
    """Pure. Return the timestamp of the first record at or above `position`, or of the last copied batch; None when unknown.

    `later` answers "the first record with a timestamp above `copied_until_ms`"; one below `position` was copied already.
    """
    if later is None:
        return None
    return later.timestamp_ms if later.offset >= position else copied_until_ms


def query_source(
    config: MirrorConfig,
    positions: Mapping[SourcePartition, int],
    copied_until_ms: Mapping[SourcePartition, int],
    clock: Callable[[], float] = time.monotonic,
    cluster_id: str = "",
) -> SourceView:
    """Return log ends (high watermarks), and of partitions with lag the first records that are not copied.

    `cluster_id`: that of the map; another cluster is a problem. Empty: any.
    Under read_committed also the transactions that hold back the last stable offset.
    """
    planner_config = replace(PlannerConfig.of_mirror(config), isolation=IsolationLevel.READ_UNCOMMITTED)
    ends: Mapping[SourcePartition, int] = {}
    with closing(Cluster(config.source.client, cluster_id=cluster_id)) as cluster:
        deadline = Deadline.after_ms(min(PATIENCE_MS, config.source.client.request_timeout_ms), clock)
        try:
            ends = SourceOffsets(planner_config, cluster).log_ends(deadline).ends
            lagging = {
                source.topic_partition: source for source, position in positions.items() if ends.get(source, position) > position
            }
            timestamps = {name: copied_until_ms.get(source, -1) + 1 for name, source in lagging.items()}
            listed = cluster.list_offsets(timestamps, planner_config.isolation, deadline) if timestamps else {}
            is_committed = config.read.isolation_level is IsolationLevel.READ_COMMITTED
            mirrored_ends = {source: ends[source] for source in positions if source in ends} if is_committed else {}
            open_transactions = list_open_transactions(cluster, mirrored_ends, deadline)
        except RetriableError as error:
            return SourceView(ends=ends, problem=str(error))
    later = {lagging[name]: offset for name, offset in listed.items()}
    return SourceView(ends=ends, later=later, open_transactions=open_transactions)


def query_target(
    config: MirrorConfig | RestoreConfig, clock: Callable[[], float] = time.monotonic, cluster_id: str = ""
) -> str | None:
    """Return why the target does not answer; None if it does. A task that waits for it cannot report that itself.

    `cluster_id`: as in `query_source`.
    """
    with closing(Cluster(config.target.client, cluster_id=cluster_id)) as cluster:
        deadline = Deadline.after_ms(min(PATIENCE_MS, config.target.client.request_timeout_ms), clock)
        try:
            cluster.cluster_id(deadline)
        except RetriableError as error:
            return str(error)
    return None
