"""Driver, for the cli: what an archive holds, how far it is behind its source, and its run. Starts no JVM.

The table is read before the source is queried: an archive that runs meanwhile can only seem to be further behind than it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import Lineages, Position
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.logs.topics import DeletedTopicsTable, TopicIncarnation
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.operations.archive.retention import BehindPartition, RetentionThreat, retention_threats
from shallow_mirror.operations.status import RunStatus, run_status
from shallow_mirror.streaming.planning import LeftOutPartition, PlannerConfig, SourceOffsets, planner_state, read_left_out
from shallow_mirror.streaming.watch import PATIENCE_MS
from shallow_mirror.types import SourcePartition

_KEYS = ["source_topic", "source_topic_id", "source_partition", "lineage"]
_SUMS = ["size_bytes", "record_count", "batch_count"]
_MEASURES = [
    *((name, "sum") for name in _SUMS),
    ("source_start", "min"),
    ("source_end", "max"),
    ("min_timestamp_ms", "min"),
    ("max_timestamp_ms", "max"),
]
_DATA = "data"

Measured = Mapping[SourcePartition, Mapping[int, Mapping[str, Any]]]
"""Measures by partition, lineage and name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerLineage:
    """Offsets [start, end) of a former lineage that are not part of the newest one's log."""

    lineage: int
    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedPartition:
    """The archived records of a partition. Sizes and timestamps are those of visible rows, of all lineages."""

    partition: int
    position: int
    """Everything below it is accounted for."""
    first_offset: int | None
    """Of the records that can be restored now, as `last_offset`. None: none."""
    last_offset: int | None
    size_bytes: int
    batch_count: int
    record_count: int
    oldest_timestamp_ms: int | None
    newest_timestamp_ms: int | None
    lag_offsets: int | None
    """Behind the last stable offset of the source. None if it is not known."""
    lineage: int = 0
    """The one that is captured, to which position and offsets belong."""
    former_lineages: tuple[FormerLineage, ...] = ()
    """Records of former ones that the source has lost and that can be restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchivedTopic:
    topic: str
    topic_id: str
    partitions: tuple[ArchivedPartition, ...]

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def record_count(self) -> int:
        return sum(partition.record_count for partition in self.partitions)

    @property
    def first_offset(self) -> int | None:
        return min((at.first_offset for at in self.partitions if at.first_offset is not None), default=None)

    @property
    def last_offset(self) -> int | None:
        return max((at.last_offset for at in self.partitions if at.last_offset is not None), default=None)

    @property
    def oldest_timestamp_ms(self) -> int | None:
        return min((at.oldest_timestamp_ms for at in self.partitions if at.oldest_timestamp_ms is not None), default=None)

    @property
    def newest_timestamp_ms(self) -> int | None:
        return max((at.newest_timestamp_ms for at in self.partitions if at.newest_timestamp_ms is not None), default=None)

    @property
    def lag_offsets(self) -> int | None:
        lags = [partition.lag_offsets for partition in self.partitions if partition.lag_offsets is not None]
        return sum(lags) if len(lags) == len(self.partitions) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedTopic:
    """A topic that a running archive missed at the source. `kept_until_ms`: None: without a limit of `deleted_topics`."""

    topic: str
    topic_id: str
    missed_since_ms: int
    kept_until_ms: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveStatus:
    """State of an archive, by its table and the source."""

    archive: str
    archive_id: str
    at_ms: int
    run: RunStatus | None
    micro_batch: int
    decided_at_ms: int | None
    topics: tuple[ArchivedTopic, ...]
    deleted_topics: tuple[DeletedTopic, ...]
    deleting_bytes: int
    """Of rows whose deletion began and is not recorded as finished."""
    source_problem: str | None
    """Why lags are missing."""
    waiting_for: str | None
    left_out: tuple[LeftOutPartition, ...]
    retention_threats: tuple[RetentionThreat, ...] = ()
    """Records that the source may delete before they are archived."""
    retention_problem: str | None = None
    """Why the threats are not known."""

    def document(self) -> dict[str, Any]:
        totals = ("size_bytes", "record_count", "lag_offsets", "oldest_timestamp_ms", "newest_timestamp_ms")
        topics = [asdict(topic) | {name: getattr(topic, name) for name in totals} for topic in self.topics]
        return {**asdict(self), "topics": topics, "left_out": [entry.document() for entry in self.left_out]}


def gather_archive_status(
    config: ArchiveConfig, spark: Any = None, now_ms: Callable[[], int] = lambda: int(time.time() * 1000)
) -> ArchiveStatus:
    """Return the state of an archive. Raise ConfigError (it never ran, or it is another one's), OffsetMapConflictError."""
    storage = TableStorage(config.table_location, spark)
    table = ArchiveTable.open(storage, archive=config.archive)
    positions = table.positions()
    lineages = table.lineages()
    measured, deleting_bytes = _measure(table)
    recorded = table.recorded()
    run = None if recorded is None else run_status(storage.best_effort_tables(), recorded)
    planned = planner_state.read_state(planner_state.planner_state_path(config.checkpoint), planner_state.PlannerState)
    is_over = run is None or run.is_over
    at_ms = now_ms()
    with closing(Cluster(config.source.client)) as cluster:
        ends, problem = _ends_of_source(config, cluster)
        topics = _topics(positions, measured, lineages, ends)
        threats, retention_problem = _threats(config, cluster, topics, ends, at_ms)
    return ArchiveStatus(
        archive=config.archive,
        archive_id=table.archive_id,
        at_ms=at_ms,
        run=run,
        micro_batch=0 if recorded is None else recorded.micro_batch,
        decided_at_ms=None if recorded is None or not recorded.decided_at_ms else recorded.decided_at_ms,
        topics=topics,
        deleted_topics=_deleted_topics(config, DeletedTopicsTable.of_archive(storage), topics),
        deleting_bytes=deleting_bytes,
        source_problem=problem,
        waiting_for=None if planned is None or is_over else planned.waiting_for,
        left_out=() if is_over else read_left_out(planner_state.left_out_path(config.checkpoint)),
        retention_threats=threats,
        retention_problem=retention_problem,
    )


def _deleted_topics(
    config: ArchiveConfig, table: DeletedTopicsTable, topics: Sequence[ArchivedTopic]
) -> tuple[DeletedTopic, ...]:
    size_bytes = {TopicIncarnation(topic.topic, topic.topic_id): topic.size_bytes for topic in topics}
    keep_s = config.deleted_topics.keep_s
    return tuple(
        DeletedTopic(
            topic=topic.topic,
            topic_id=topic.topic_id,
            missed_since_ms=since_ms,
            kept_until_ms=None if keep_s is None else since_ms + int(keep_s * 1000),
            size_bytes=size_bytes.get(topic, 0),
        )
        for topic, since_ms in sorted(table.since_ms().items())
    )


def _measure(table: ArchiveTable) -> tuple[Measured, int]:
    """Return the measures of the visible data of each partition and lineage, and the bytes of rows whose deletion began."""
    gathered: list[pa.Table] = []
    deleting_bytes = 0
    columns = [*_KEYS, *_SUMS, "source_start", "source_end", "min_timestamp_ms", "max_timestamp_ms", "kind", "state"]
    for piece in table.pieces(columns=columns):
        is_started = pc.equal(piece["state"], SegmentState.DELETE_SEGMENT_STARTED.value)
        deleting_bytes += pc.sum(piece.filter(is_started)["size_bytes"]).as_py() or 0
        is_visible = pc.equal(piece["state"], SegmentState.COPY_SEGMENT_FINISHED.value)
        data = piece.filter(pc.and_(is_visible, pc.equal(piece["kind"], _DATA)))
        gathered.append(_grouped(data, _MEASURES))
    if not gathered:
        return {}, 0
    merged = [(f"{name}_{function}", function) for name, function in _MEASURES]
    measured: dict[SourcePartition, dict[int, Mapping[str, Any]]] = {}
    for row in _grouped(pa.concat_tables(gathered), merged).to_pylist():
        *source, lineage = (row[key] for key in _KEYS)
        measured.setdefault(SourcePartition(*source), {})[lineage] = {
            name: row[f"{name}_{function}_{function}"] for name, function in _MEASURES
        }
    return measured, deleting_bytes


def _grouped(rows: pa.Table, measures: list[tuple[str, str]]) -> pa.Table:
    return rows.group_by(_KEYS, use_threads=False).aggregate(measures)


def _ends_of_source(config: ArchiveConfig, cluster: Cluster) -> tuple[Mapping[SourcePartition, int], str | None]:
    """Return last stable offsets, or why there are none."""
    try:
        return SourceOffsets(PlannerConfig.of_archive(config), cluster).log_ends(_deadline(config)).ends, None
    except (RetriableError, ConfigError) as error:
        return {}, str(error)


def _threats(
    config: ArchiveConfig, cluster: Cluster, topics: Sequence[ArchivedTopic], ends: Mapping[SourcePartition, int], now_ms: int
) -> tuple[tuple[RetentionThreat, ...], str | None]:
    """Return the threats of retention to partitions that are behind, or why they are not known."""
    behind = [
        BehindPartition(
            source=source,
            position=at.position,
            end=ends[source],
            bytes_per_offset=_bytes_per_offset(at),
        )
        for topic in topics
        for at in topic.partitions
        if at.lag_offsets and (source := SourcePartition(topic.topic, topic.topic_id, at.partition)) in ends
    ]
    try:
        return retention_threats(cluster, behind, now_ms, _deadline(config)), None
    except (RetriableError, ConfigError) as error:
        return (), str(error)


def _bytes_per_offset(partition: ArchivedPartition) -> float | None:
    if partition.first_offset is None or partition.last_offset is None:
        return None
    return partition.size_bytes / (partition.last_offset + 1 - partition.first_offset)


def _deadline(config: ArchiveConfig) -> Deadline:
    return Deadline.after_ms(min(PATIENCE_MS, config.source.client.request_timeout_ms), time.monotonic)


def _topics(
    positions: Mapping[SourcePartition, Position],
    measured: Measured,
    lineages: Lineages,
    ends: Mapping[SourcePartition, int],
) -> tuple[ArchivedTopic, ...]:
    topics: dict[tuple[str, str], list[ArchivedPartition]] = {}
    for source, position in sorted(positions.items()):
        topics.setdefault((source.topic, source.topic_id), []).append(
            _partition(source, position, measured.get(source, {}), lineages, ends.get(source))
        )
    return tuple(
        ArchivedTopic(topic=topic, topic_id=topic_id, partitions=tuple(partitions))
        for (topic, topic_id), partitions in topics.items()
    )


def _partition(
    source: SourcePartition,
    position: Position,
    measured: Mapping[int, Mapping[str, Any]],
    lineages: Lineages,
    end: int | None,
) -> ArchivedPartition:
    view = lineages.view(source)
    restorable, former = [], []
    for lineage, measures in sorted(measured.items()):
        start, behind = measures["source_start"], measures["source_end"]
        part = view.part_of(lineage, start, behind)
        kept_end = start if part is None else part[1]
        if part is not None:
            restorable.append(part)
        if kept_end < behind:
            former.append(FormerLineage(lineage=lineage, start=kept_end, end=behind))

    def total(name: str) -> int:
        return sum(measures[name] or 0 for measures in measured.values())

    return ArchivedPartition(
        partition=source.partition,
        position=position.offset,
        first_offset=min((start for start, _ in restorable), default=None),
        last_offset=max((behind for _, behind in restorable), default=0) - 1 if restorable else None,
        size_bytes=total("size_bytes"),
        batch_count=total("batch_count"),
        record_count=total("record_count"),
        oldest_timestamp_ms=min(_known(measured, "min_timestamp_ms"), default=None),
        newest_timestamp_ms=max(_known(measured, "max_timestamp_ms"), default=None),
        lag_offsets=None if end is None else max(0, end - position.offset),
        lineage=position.lineage,
        former_lineages=tuple(former),
    )


def _known(measured: Mapping[int, Mapping[str, Any]], name: str) -> list[int]:
    return [measures[name] for measures in measured.values() if measures[name] is not None]
