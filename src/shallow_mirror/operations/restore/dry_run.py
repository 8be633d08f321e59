"""Driver, for the cli: dry run of a restore: its topics, ranges, bytes, batches and groups, and what it lacks. Writes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from shallow_mirror.archive_reading.cuts import cut_batch
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.ledger import (
    ArchiveTable,
    RestoredTopicsTable,
    RestoreRanges,
    RestoreRangesTable,
    TopicDescription,
)
from shallow_mirror.checkpoints.rows import ArchiveRow
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.restored_groups import REQUEST_S, PlannedGroup, noted_positions, planned_groups
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.restore.fillers import FillerCount
from shallow_mirror.operations.restore.target_check import TargetCheck, TopicToRestore
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.archive import require_objects
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.streaming.planning import (
    OtherLineages,
    RestorePlanner,
    described_topics,
    gone_offsets,
    gone_problem,
    group_times,
    restored_amounts,
    unmatched_sentence,
)
from shallow_mirror.streaming.runs import LIFT, decide_restore
from shallow_mirror.types import IsolationLevel, SegmentKind, SourcePartition

_OBJECTS_AT_ONCE = 16
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class CutBatch:
    """A batch that straddles a bound of its range: its records of [start, end) are restored, in a rebuilt batch."""

    base_offset: int
    end_offset: int
    start: int
    end: int


@dataclass(slots=True)
class PartitionToRestore:
    """`position`: up to which a former start has restored it. Bytes and records are of whole rows of the archive, so that if a
    range ends inside a row, or the next lineage begins there, they are an upper bound (`is_exact` False). Records count
    aborted ones too. `fillers`: None if offsets are translated.
    """

    topic: str
    topic_id: str
    partition: int
    start: int
    end: int
    position: int
    lineage: int = 0
    size_bytes: int = 0
    record_count: int = 0
    is_exact: bool = True
    expired: list[tuple[int, int]] = field(default_factory=list)
    rebuilt: list[CutBatch] = field(default_factory=list)
    fillers: FillerCount | None = None


@dataclass(slots=True, kw_only=True)
class RestoreDryRun:
    restore: str
    archive: str
    archive_id: str
    until: str
    last_decision: int
    is_begun: bool
    topics: list[TopicToRestore]
    partitions: list[PartitionToRestore]
    choices: list[str] = field(default_factory=list)
    """Between topic ids, lineages and numbers of partitions, as `RestorePlanner.choices`; none where it has begun."""
    other_lineages: list[OtherLineages] = field(default_factory=list)
    micro_batches: int = 0
    object_count: int = 0
    damaged_objects: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Of the target cluster, whatever topic."""
    added_topics: list[str] = field(default_factory=list)
    """Topics that a restore that has begun will be extended by."""
    changes: list[str] = field(default_factory=list)
    """Differences of the file to that of the first start, which are accepted."""
    unmatched_patterns: list[str] = field(default_factory=list)
    """Of `topics.include`, that match no topic of the archive."""
    groups: list[PlannedGroup] = field(default_factory=list)
    groups_note: str = ""
    """Why there are no groups, or as of when they were recorded."""

    @property
    def is_fine(self) -> bool:
        return not self.damaged_objects and not self.problems and not any(topic.problems for topic in self.topics)

    @property
    def size_bytes(self) -> int:
        return sum(partition.size_bytes for partition in self.partitions)

    @property
    def record_count(self) -> int:
        return sum(partition.record_count for partition in self.partitions)

    def document(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {**asdict(self), "size_bytes": self.size_bytes, "record_count": self.record_count, "is_fine": self.is_fine}

    def sentences(self) -> list[str]:
        lines = [
            f"restore {self.restore}: archive {self.archive} up to decision {self.last_decision}, cut {self.until}",
        ]
        if self.is_begun:
            lines.append("it has begun: the cut is that of its first start, and what is restored already is left out")
        lines += self.changes
        if self.added_topics:
            lines.append(f"topics that will be added to it: {', '.join(self.added_topics)}")
        lines += [unmatched_sentence(pattern) for pattern in self.unmatched_patterns]
        lines += self.problems
        lines += self.choices
        lines += [line for topic in self.topics for line in _topic_lines(topic)]
        lines += [_partition_line(partition) for partition in self.partitions]
        lines += [others.sentence() for others in self.other_lineages]
        bound = "" if all(partition.is_exact for partition in self.partitions) else "at most "
        lines.append(
            f"{counted(len(self.partitions), 'partition')}, {bound}{counted(self.record_count, 'record')}, "
            f"{bound}{counted(self.size_bytes, 'byte')} in {counted(self.object_count, 'object')}, "
            f"{counted(self.micro_batches, 'micro-batch')}"
        )
        lines += self.damaged_objects[:_SHOWN]
        if len(self.damaged_objects) > _SHOWN:
            lines.append(f"and {len(self.damaged_objects) - _SHOWN:,} more objects (--json lists all)")
        lines.append(f"groups: {self.groups_note}")
        lines += [group.sentence() for group in self.groups[:_SHOWN]]
        if len(self.groups) > _SHOWN:
            lines.append(f"and {counted(len(self.groups) - _SHOWN, 'more group')} (--json lists all)")
        lines.append(
            "checked without a problem: the ranges and their rows, the size of each object, the target's topics, settings, "
            "retention and groups; not checked: the bytes of objects (`shallow-mirror archive verify --deep`), and permissions "
            "to write"
            if self.is_fine
            else "the restore will not succeed before these problems are solved"
        )
        return lines


def dry_run(config: RestoreConfig, spark: Any = None) -> RestoreDryRun:
    """Report the plan of a restore, with the cut that it would have now. `spark`: for tables in a catalog.

    Raises ConfigError (every problem of the cut, holes of the archive), RetriableError, StoreUnreachableError.
    """
    archive_storage = TableStorage(config.archive_table_location, spark)
    storage = TableStorage(config.table_location, spark)
    table = ArchiveTable.open(archive_storage)
    store = ObjectStore.open(config.archive.objects, config.storage_options)
    require_objects(table, store)
    planner = RestorePlanner(config, table, store, archive_storage)
    recorded = RestoreRangesTable.of(storage).read()
    positions = {} if recorded is None else OffsetMap.open(storage, mirror=config.mirror).positions()
    decision = decide_restore(config, recorded, positions, planner, table.archive_id)
    decided = decision.ranges
    described = described_topics(archive_storage, decided)
    amounts = restored_amounts(table, decided, described.keys())
    target = TargetCheck(config, decided, positions, amounts, RestoredTopicsTable.of(storage).read().values())
    topics, problems = target.topics(described)
    report = RestoreDryRun(
        restore=config.restore,
        archive=table.archive,
        archive_id=table.archive_id,
        until=decided.until,
        last_decision=decided.last_decision,
        is_begun=not decision.is_first,
        topics=topics,
        partitions=[],
        choices=list(decision.choices),
        other_lineages=list(decision.other_lineages),
        problems=problems,
        added_topics=decision.added_topics,
        changes=list(decision.changes),
        unmatched_patterns=list(decision.unmatched_patterns),
    )
    _add_groups(report, config, table, archive_storage, decided)
    _add_ranges(report, config, planner, decided, positions, described, store)
    return report


def _add_groups(
    report: RestoreDryRun, config: RestoreConfig, table: ArchiveTable, archive_storage: TableStorage, decided: RestoreRanges
) -> None:
    if config.groups.commit == "off":
        report.groups_note = "no offsets will be committed (groups.commit: off)"
        return
    times = group_times(table, archive_storage, decided, config.until, datetime.now(UTC))
    positions = noted_positions(archive_storage.best_effort_tables(), times)
    if not positions:
        report.groups_note = "none will be committed: the archive has recorded none up to the cut (groups.interval)"
        return
    with closing(GroupClient(config.target.client, config.target_cluster_name, REQUEST_S)) as target:
        try:
            report.groups = planned_groups(config, positions, decided.ranges, target)
        except ConfigError as error:
            report.problems += [f"groups: {problem}" for problem in error.problems]
    report.groups_note = (
        f"offsets of {counted(len(report.groups), 'group')} will be committed once everything is restored, as recorded up to "
        f"{max(times.values()).isoformat(timespec='seconds')}; those of topics with translated offsets are translated then"
    )


def _add_ranges(
    report: RestoreDryRun,
    config: RestoreConfig,
    planner: RestorePlanner,
    decided: RestoreRanges,
    positions: Mapping[SourcePartition, Position],
    described: Mapping[str, TopicDescription],
    store: ObjectStore,
) -> None:
    reached = {source: position.offset for source, position in positions.items()}
    partitions = {
        source: PartitionToRestore(
            *source, offsets.start, offsets.end, reached.get(source, offsets.start), decided.lineages[source]
        )
        for source, offsets in sorted(decided.ranges.items())
    }
    for source, partition in partitions.items():
        if config.topics.is_preserved(source.topic):
            is_compacted = target_topic_policy.is_compacted(described[source.topic].configs)
            partition.fillers = FillerCount(is_compacted=is_compacted, leading=0 if source in reached else partition.start)
    objects: dict[str, int] = {}
    ends = {source: partition.position for source, partition in partitions.items()}
    for step in planner.steps(decided, reached):
        report.micro_batches += 1
        for source, rows in step.rows.items():
            gone = gone_offsets(rows, ends[source])
            report.problems += [] if gone is None else [gone_problem(source, *gone)]
            ends[source] = max(ends[source], *(row.segment.source_end for row in rows))
            for row in rows:
                _add_row(partitions[source], row, objects, config.read.isolation_level)
    report.problems += [
        gone_problem(source, ends[source], partition.end)
        for source, partition in partitions.items()
        if ends[source] < partition.end
    ]
    report.partitions = list(partitions.values())
    report.object_count = len(objects)
    report.damaged_objects = _damaged_objects(store, objects)
    if report.damaged_objects:
        return
    for step in planner.steps(decided, reached):
        for source, rows in step.rows.items():
            _add_cut_batches(partitions[source], rows, store)


def _add_row(partition: PartitionToRestore, row: ArchiveRow, objects: dict[str, int], isolation: IsolationLevel) -> None:
    segment, stored = row.segment, row.stored
    if segment.kind is SegmentKind.EXPIRED:
        partition.expired.append((segment.source_start, segment.source_end))
    partition.size_bytes += segment.size_bytes
    partition.record_count += segment.record_count
    is_of_former_lineage = segment.lineage < partition.lineage  # its last row may be clipped
    if segment.source_end > partition.end or segment.source_start < partition.position or is_of_former_lineage:
        partition.is_exact = False
    if partition.fillers is not None:
        partition.fillers.add(row, partition.position, partition.end, isolation, is_clipped=is_of_former_lineage)
    if stored is not None and stored.index:
        end = max(run.position + run.size_bytes for run in stored.index)
        objects[stored.object_name] = max(end, objects.get(stored.object_name, 0))


def _add_cut_batches(partition: PartitionToRestore, rows: Sequence[ArchiveRow], store: ObjectStore) -> None:
    """Read the run of batches at each bound that lies inside of a row."""
    for bound in sorted({partition.position, partition.end}):
        if partition.position == partition.end:
            return
        at = [row for row in rows if row.segment.source_start <= bound < row.segment.source_end and row.stored is not None]
        batch = cut_batch(store, at, bound) if at else None
        if batch is not None:
            partition.rebuilt.append(CutBatch(*batch, max(partition.position, batch[0]), min(partition.end, batch[1])))


def _damaged_objects(store: ObjectStore, objects: Mapping[str, int]) -> list[str]:
    """Ask for the size of each object. `objects`: up to which byte rows name it."""

    def problem(name: str) -> str | None:
        size = store.size(name)
        if size is None:
            return f"object {name} is missing in {store.root}: restore it from a copy or a former version"
        if size < objects[name]:
            return f"object {name} has {size:,} bytes, its rows name {objects[name]:,}: restore it from a copy"
        return None

    with ThreadPoolExecutor(_OBJECTS_AT_ONCE) as pool:
        return [line for line in pool.map(problem, sorted(objects)) if line is not None]


def _topic_lines(topic: TopicToRestore) -> list[str]:
    name = topic.topic if topic.topic == topic.target else f"{topic.topic} as {topic.target}"
    if topic.created_with is None:
        how = "exists" if topic.exists else "does not exist"
    else:
        settings = ", ".join(f"{name}={value}" for name, value in sorted(topic.created_with.items()))
        how = f"will be created with {settings}"
    lines = [f"topic {name}: {counted(topic.partitions, 'partition')}, {how}, offsets {topic.offsets}"]
    if topic.paused:
        archived = ", ".join(f"{name}={value}" for name, value in sorted(topic.paused.items()))
        lines.append(f"target topic {topic.target}: its retention is paused until {LIFT} sets {archived}")
    return [*lines, *topic.notes, *topic.problems]


def _partition_line(partition: PartitionToRestore) -> str:
    bound = "" if partition.is_exact else "at most "
    parts = [
        f"{partition.topic}-{partition.partition}: offsets {partition.position:,} to {partition.end:,}",
        f"{bound}{counted(partition.record_count, 'record')}",
        f"{bound}{counted(partition.size_bytes, 'byte')}",
    ]
    parts += [f"offsets {start:,} to {end:,} had expired before they were archived" for start, end in partition.expired]
    parts += [f"the batch at {batch.base_offset:,} will be rebuilt" for batch in partition.rebuilt]
    parts += [] if partition.fillers is None else partition.fillers.sentences()
    return ", ".join(parts)
