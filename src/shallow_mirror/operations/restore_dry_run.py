"""Driver, for the cli: what a restore would do: its topics, ranges, bytes and batches, and what it lacks. Writes nothing."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import Any

from shallow_mirror.archive_reading.cuts import cut_batch
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connectivity import reach
from shallow_mirror.broker.net.error_codes import is_forbidden, refusal
from shallow_mirror.checkpoints.archive_schema import ArchiveRow
from shallow_mirror.checkpoints.archive_table import ArchiveTable
from shallow_mirror.checkpoints.archived_topics import TopicDescription
from shallow_mirror.checkpoints.offset_map import OffsetMap
from shallow_mirror.checkpoints.restore_ranges import RestoreRanges, RestoreRangesTable
from shallow_mirror.checkpoints.storage import MirrorStorage
from shallow_mirror.config import RestoreConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.object_store.object_store import ObjectStore
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.filled_topics import filled_partitions, filled_problems
from shallow_mirror.streaming.planning.restore_planner import (
    OtherLineages,
    RestorePlanner,
    described_topics,
    require_same_restore,
)
from shallow_mirror.types import SegmentKind, SourcePartition

_ANSWER_MS = 30_000.0
_OBJECTS_AT_ONCE = 16
_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicToRestore:
    """`created_with`: the settings of the topic that will be created; None where it exists, or is not created."""

    topic: str
    target: str
    partitions: int
    exists: bool
    created_with: Mapping[str, str] | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CutBatch:
    """A batch that straddles a bound of its range: its records of [start, end) are restored, in a rebuilt batch."""

    base_offset: int
    end_offset: int
    start: int
    end: int


@dataclass(slots=True)
class PartitionToRestore:
    """`position`: up to which a former start has restored it. Bytes and records are of whole rows of the archive, so that where
    a range ends inside a row, or the next lineage begins there, they are an upper bound (`is_exact` False). Records count markers
    and aborted ones too.
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
    other_lineages: list[OtherLineages] = field(default_factory=list)
    micro_batches: int = 0
    object_count: int = 0
    damaged_objects: list[str] = field(default_factory=list)

    @property
    def is_fine(self) -> bool:
        return not self.damaged_objects and not any(topic.problems for topic in self.topics)

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
        lines.append("nothing stands against it" if self.is_fine else "the restore will not succeed before this is solved")
        return lines


def dry_run(config: RestoreConfig, spark: Any = None) -> RestoreDryRun:
    """Report what `restore` would do, with the cut that it would have now. `spark`: for tables in a catalog.

    Raises ConfigError (every problem of the cut, holes of the archive), RetriableError, StoreUnreachableError.
    """
    archive_storage = MirrorStorage(config.archive_table_location, spark)
    storage = MirrorStorage(config.table_location, spark)
    table = ArchiveTable.open(archive_storage)
    store = ObjectStore.open(config.archive.objects, config.storage_options)
    planner = RestorePlanner(config, table, store)
    decided = RestoreRangesTable.of(storage).read()
    is_begun = decided is not None
    if decided is None:
        decided = planner.decide_ranges()
    else:
        require_same_restore(decided, config, table.archive_id)
    positions: dict[SourcePartition, int] = {}
    if is_begun:
        offset_map = OffsetMap.open(storage, mirror=config.mirror)
        positions = {source: position.offset for source, position in offset_map.positions().items()}
    report = RestoreDryRun(
        restore=config.restore,
        archive=table.archive,
        archive_id=table.archive_id,
        until=decided.until,
        last_decision=decided.last_decision,
        is_begun=is_begun,
        topics=_topics(config, described_topics(archive_storage, decided), {source.topic for source in positions}),
        partitions=[],
        other_lineages=planner.other_lineages(decided),
    )
    _add_ranges(report, planner, decided, positions, store)
    return report


def _add_ranges(
    report: RestoreDryRun,
    planner: RestorePlanner,
    decided: RestoreRanges,
    positions: Mapping[SourcePartition, int],
    store: ObjectStore,
) -> None:
    partitions = {
        source: PartitionToRestore(
            *source, offsets.start, offsets.end, positions.get(source, offsets.start), decided.lineages[source]
        )
        for source, offsets in sorted(decided.ranges.items())
    }
    objects: dict[str, int] = {}
    for step in planner.steps(decided, positions):
        report.micro_batches += 1
        for source, rows in step.rows.items():
            for row in rows:
                _add_row(partitions[source], row, objects)
    report.partitions = list(partitions.values())
    report.object_count = len(objects)
    report.damaged_objects = _damaged_objects(store, objects)
    if report.damaged_objects:
        return
    for step in planner.steps(decided, positions):
        for source, rows in step.rows.items():
            _add_cut_batches(partitions[source], rows, store)


def _add_row(partition: PartitionToRestore, row: ArchiveRow, objects: dict[str, int]) -> None:
    segment, stored = row.segment, row.stored
    if segment.kind is SegmentKind.EXPIRED:
        partition.expired.append((segment.source_start, segment.source_end))
    partition.size_bytes += segment.size_bytes
    partition.record_count += segment.record_count
    is_of_former_lineage = segment.lineage < partition.lineage  # its last row may be clipped
    if segment.source_end > partition.end or segment.source_start < partition.position or is_of_former_lineage:
        partition.is_exact = False
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


def _topics(config: RestoreConfig, described: Mapping[str, TopicDescription], begun: Collection[str]) -> list[TopicToRestore]:
    """Compare with the target cluster. `begun`: topics that a former start has registered."""
    targets = {topic: config.target_topic(topic) for topic in sorted(described)}
    with closing(Cluster(config.target.client)) as cluster:
        deadline = Deadline.after_ms(_ANSWER_MS, time.monotonic)
        reach(cluster, config.target_cluster_name, deadline)
        listed = cluster.metadata(sorted(set(targets.values())), deadline).topics
        existing = {name: topic for name, topic in listed.items() if topic.error_code == 0}
        settings = cluster.topic_configs(sorted(existing), deadline) if existing else {}
        filled = {partition.topic for partition in filled_partitions(cluster, set(existing), deadline)}
    topics = []
    for topic, target in targets.items():
        partitions, is_there = described[topic].partitions, target in existing
        problems = [] if topic in begun else filled_problems({topic: target}, filled)
        if is_forbidden(listed[target].error_code):
            problems.append(f"target topic {target}: {refusal(listed[target].error_code, 'Produce', topic=target)}")
        elif is_there:
            found = len(existing[target].partitions)
            problems += [
                f"target topic {target} {problem}"
                for problem in target_topic_policy.problems_of(topic, partitions, found, settings[target])
            ]
        elif topic in begun:
            problems.append(f"target topic {target} (for {topic}) was deleted, with what was restored: restore it anew")
        elif not config.topics.create:
            problems.append(f"target topic {target} {target_topic_policy.missing_problem(topic, partitions)}")
        configs = {} if config.topics.configs == "off" else described[topic].configs
        is_created = not is_there and config.topics.create and topic not in begun
        topics.append(
            TopicToRestore(
                topic=topic,
                target=target,
                partitions=partitions,
                exists=is_there,
                created_with=target_topic_policy.configs_of_new(configs) if is_created else None,
                problems=tuple(problems),
            )
        )
    return topics


def _topic_lines(topic: TopicToRestore) -> list[str]:
    name = topic.topic if topic.topic == topic.target else f"{topic.topic} as {topic.target}"
    if topic.created_with is None:
        how = "exists" if topic.exists else "does not exist"
    else:
        settings = ", ".join(f"{name}={value}" for name, value in sorted(topic.created_with.items()))
        how = f"will be created with {settings}"
    return [f"topic {name}: {counted(topic.partitions, 'partition')}, {how}", *topic.problems]


def _partition_line(partition: PartitionToRestore) -> str:
    bound = "" if partition.is_exact else "at most "
    parts = [
        f"{partition.topic}-{partition.partition}: offsets {partition.position:,} to {partition.end:,}",
        f"{bound}{counted(partition.record_count, 'record')}",
        f"{bound}{counted(partition.size_bytes, 'byte')}",
    ]
    parts += [f"offsets {start:,} to {end:,} had expired before they were archived" for start, end in partition.expired]
    parts += [f"the batch at {batch.base_offset:,} will be rebuilt" for batch in partition.rebuilt]
    return ", ".join(parts)
