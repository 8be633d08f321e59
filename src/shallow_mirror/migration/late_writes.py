"""Driver: records that a client wrote to the cluster that was left, after the point of no return.

No mirror copies them: the one that did has handed its topics over. Where a reverse mirror writes to that cluster, they lie
between its copies: where its map names no copy, and the log holds more than the marker of a transaction.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from shallow_mirror import routing
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.clients import BatchConsumer
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.migration_config import MigrationFiles, WaveSettings
from shallow_mirror.deadline import request_deadline
from shallow_mirror.errors import ConfigError, OlderTablesError
from shallow_mirror.migration.log_ends import list_log_ends
from shallow_mirror.migration.observations import from_document, named
from shallow_mirror.migration.state import WaveState
from shallow_mirror.migration.steps import Direction, Step
from shallow_mirror.migration.topic_ids import created_again, source_ids
from shallow_mirror.operations.recover import require_newest_tables
from shallow_mirror.plurals import counted
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, OffsetRange, TopicPartition

COUNT_S = 20.0
"""So long records are counted; of what is left then, only offsets are known."""
_POLL_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class LateWrite:
    """Offsets [start, end) of the cluster that was left. `record_count` None: not counted."""

    topic_partition: TopicPartition
    start: int
    end: int
    record_count: int | None = None
    topic_id: str = ""
    """Of a topic that was created again since; empty: the topic that was moved. Diverged records have that of their topic."""

    def document(self) -> dict[str, Any]:
        name = self.topic_partition
        where = {"topic": name.topic, "partition": name.partition}
        again = {"topic_id": self.topic_id} if self.topic_id else {}
        return {**where, **again, "start": self.start, "end": self.end, "record_count": self.record_count}

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> LateWrite:
        name = TopicPartition(document["topic"], document["partition"])
        values = {field: document[field] for field in ("start", "end", "record_count")}
        return cls(topic_partition=name, **values, topic_id=document.get("topic_id", ""))

    def __str__(self) -> str:
        """Return the place and the number of records, for sentences."""
        count = "" if self.record_count is None else f" ({counted(self.record_count, 'record')})"
        offsets = f"offset {self.start:,}" if self.end - self.start == 1 else f"offsets {self.start:,} to {self.end - 1:,}"
        return f"{self.topic_partition} {offsets}{count}"


class Copied(NamedTuple):
    """Offsets that need no look. `txn`: the transaction of the mirror that wrote them; None: they were settled."""

    start: int
    end: int
    txn: object


@dataclass(frozen=True, slots=True)
class Passed:
    """The point of no return that a wave has passed last: in which direction, and where the logs of the cluster that was left
    ended."""

    direction: Direction
    ends: Mapping[TopicPartition, int]

    @classmethod
    def of(cls, wave: WaveState) -> Passed | None:
        """Return None if the wave is before its first one."""
        is_back = wave.direction is Direction.ROLLBACK and Step.POINT_OF_NO_RETURN in wave.done
        found = (wave.done if is_back else wave.move).get(Step.POINT_OF_NO_RETURN)
        if found is None:
            return None
        return cls(Direction.ROLLBACK if is_back else Direction.MOVE, from_document(found["origin_ends"]))

    def appeared(self, write: LateWrite) -> bool:
        """Return whether the topic came after a rollback: there is no copy that could be continued."""
        return self.direction is Direction.ROLLBACK and write.topic_partition.topic not in {name.topic for name in self.ends}


def copying_mirror(files: MigrationFiles, wave: WaveSettings, direction: Direction) -> MirrorConfig:
    """Return the mirror that copied in a direction, from the cluster that was left. Raises ConfigError."""
    return files.mirror if direction is Direction.MOVE else _reverse_of(files, wave)


def _reverse_of(files: MigrationFiles, wave: WaveSettings) -> MirrorConfig:
    """Raise ConfigError if the file does not name the reverse mirror of a wave any more that has moved with one."""
    reverse = files.reverses.get(wave.name)
    if reverse is None:
        raise ConfigError(
            f"waves: {wave.name}: has moved with a reverse mirror, and the migration file names none any more: without its map "
            "nothing tells late writes from its copies. Undo that change"
        )
    return reverse


def settled_writes(wave: WaveState, direction: Direction) -> list[LateWrite]:
    """Return the late writes that somebody has carried or put into quarantine, also those of them that were lost."""
    return [LateWrite.of(write) for done in wave.late_writes if done["direction"] == direction.value for write in done["writes"]]


def copied_late_writes(settled: Mapping[str, Any]) -> list[LateWrite]:
    """Return what was copied, of an event of settled late writes."""
    return [LateWrite.of(write) for write in settled.get("copied", settled["writes"])]


def lost_late_writes(settled: Mapping[str, Any]) -> list[LateWrite]:
    """Return what was deleted before it was copied, of an event of settled late writes."""
    return [LateWrite.of(write) for write in settled.get("lost", ())]


def parted(
    write: LateWrite, lost: Sequence[OffsetRange], record_count: int | None
) -> tuple[Sequence[LateWrite], Sequence[LateWrite]]:
    """Pure. Return what was copied of a late write, and what was lost. `record_count`: of the copy; None: not known.

    Offsets without records, those of markers, are no loss where the records are known to be there.
    """
    if not lost or (record_count is not None and record_count == write.record_count):
        return [write], []
    if record_count == 0:
        return [], [write]
    bounds = [write.start, *(offset for gap in lost for offset in (gap.start, gap.end)), write.end]
    copied = [(start, end) for start, end in zip(bounds[::2], bounds[1::2], strict=True) if start < end]
    left = None if record_count is None or write.record_count is None else write.record_count - record_count
    return (
        [replace(write, start=start, end=end, record_count=record_count if len(copied) == 1 else None) for start, end in copied],
        [replace(write, start=gap.start, end=gap.end, record_count=left if len(lost) == 1 else None) for gap in lost],
    )


def find_late_writes(files: MigrationFiles, settings: WaveSettings, wave: WaveState) -> list[LateWrite]:
    """Return those that are not settled.

    Raises OlderTablesError where the tables of the reverse mirror are older, or its map is missing; RetriableError, ConfigError,
    OutcomeUnknownError.
    """
    passed = Passed.of(wave)
    if passed is None:
        return []
    mirror = copying_mirror(files, settings, passed.direction)
    with closing(Cluster(mirror.source.client)) as cluster:
        moved = {name.topic for name in passed.ends}
        reach(cluster, mirror.source_cluster_name, request_deadline())
        listed = cluster.metadata(None, request_deadline()).topics
        present = {name: topic.topic_id for name, topic in listed.items() if topic.error_code == 0}
        ids = {name: topic_id for name, topic_id in present.items() if name in moved}
        again = {name: ids[name] for name in created_again(ids, source_ids(mirror))}
        again |= _appeared(mirror, settings, passed, present)
        topics = sorted(moved | again.keys())
        left = {name: end for name, end in passed.ends.items() if name.topic not in again}
        ends = list_log_ends(cluster, topics, request_deadline())
        longer = {name: log.stable for name, log in ends.items() if log.stable > left.get(name, 0)}
        ranges = _existing(cluster, {name: OffsetRange(left.get(name, 0), end) for name, end in longer.items()})
    # The map is read after the log ends: so it has rows for all copies that they cover.
    reverse = files.reverses.get(settings.name) if passed.direction is Direction.MOVE else None
    if passed.direction is Direction.MOVE and ranges and (registered := _registered_topics(wave)) is not None:
        reverse = _reverse_of(files, settings)
        _require_map(reverse, registered)
    copies = {} if reverse is None or not ranges else copies_of(reverse, ids)
    settled: dict[TopicPartition, list[Copied]] = {}
    for write in settled_writes(wave, passed.direction):
        if write.topic_id == again.get(write.topic_partition.topic, ""):
            settled.setdefault(write.topic_partition, []).append(Copied(write.start, write.end, None))
    gaps = [
        (name, gap)
        for name, offsets in sorted(ranges.items())
        for gap in gaps_of(offsets, [*copies.get(name, ()), *settled.get(name, ())])
    ]
    found = list(read_records(mirror.source.client, gaps)) if gaps else []
    # Copies of the reverse mirror that older tables do not have were read as late writes.
    if found and reverse is not None and TableStorage(reverse.table_location).offset_map.snapshot() is not None:
        require_newest_tables(reverse)
    return [replace(write, topic_id=again.get(write.topic_partition.topic, "")) for write in found]


def _appeared(mirror: MirrorConfig, wave: WaveSettings, passed: Passed, ids: Mapping[str, str]) -> dict[str, str]:
    """Return the topics, with their ids, that a wave matches at the cluster that it has left by a rollback, and that came later.

    Behind a move the mirror copies such topics. Behind a rollback none does: they would be copied in a ring.
    """
    if passed.direction is Direction.MOVE:
        return {}
    known = {*(name.topic for name in passed.ends), *source_ids(mirror)}
    return {
        name: topic_id
        for name, topic_id in ids.items()
        if name not in known
        and wave.has_topic(name)
        and mirror.topics.is_included(name)
        and not name.startswith(routing.INTERNAL_PREFIX)
    }


def _registered_topics(wave: WaveState) -> frozenset[str] | None:
    """Return the topics of which a reverse mirror got its positions; None: the wave has moved without one, or not yet so far."""
    prepared = wave.move.get(Step.PREPARE_REVERSE, {"skipped": "not done"})
    if "skipped" in prepared:
        return None
    return frozenset(wave.move[Step.POINT_OF_NO_RETURN]["other_ends"]).difference(prepared.get("gone", ()))


def _require_map(reverse: MirrorConfig, topics: frozenset[str]) -> None:
    """Raise an error unless there is a map of `topics`: what the reverse mirror has copied would be called a late write."""
    if TableStorage(reverse.table_location).offset_map.snapshot() is None:
        raise OlderTablesError(
            "none",
            f"the migration has registered the positions of mirror {reverse.mirror} in them",
            if_lost="if they are lost, nothing tells late writes from the copies of this mirror: compare the topics yourself",
        )
    if topics and topics.isdisjoint(source_ids(reverse)):
        raise ConfigError(
            f"mirror {reverse.mirror} is not the reverse mirror with which the wave has moved: its map does not have "
            f"{named(sorted(topics))}. Undo that change of the file"
        )


def _existing(cluster: Cluster, ranges: Mapping[TopicPartition, OffsetRange]) -> dict[TopicPartition, OffsetRange]:
    """Return the ranges without offsets below the begin of their logs."""
    timestamps = dict.fromkeys(ranges, EARLIEST_TIMESTAMP)
    starts = cluster.list_offsets(timestamps, IsolationLevel.READ_COMMITTED, request_deadline()) if ranges else {}
    return {name: OffsetRange(max(offsets.start, starts[name].offset), offsets.end) for name, offsets in ranges.items()}


def holding_records(cluster: Cluster, client: ClientConfig, ends: Mapping[TopicPartition, int]) -> list[TopicPartition]:
    """Return the partitions in which a reader of committed records finds any below `ends`, or may: not only markers."""
    ranges = _existing(cluster, {name: OffsetRange(0, end) for name, end in ends.items()})
    return [write.topic_partition for write in read_records(client, [*ranges.items()], most_records=1)]


def copies_of(config: MirrorConfig, ids: Mapping[str, str]) -> dict[TopicPartition, list[Copied]]:
    """Return the copies that a mirror has written to target topics, also those of an unsettled decision. `ids`: by name."""
    storage = TableStorage(config.table_location)
    if storage.offset_map.snapshot() is None:
        return {}
    offset_map = OffsetMap.open(storage, mirror=config.mirror)
    found: dict[TopicPartition, list[Copied]] = {}
    columns = ["target_partition", "target_start", "target_end", "transactional_id", "micro_batch"]
    for topic, topic_id in ids.items():
        of_topic = (Comparison("target_topic", "=", topic), Comparison("target_topic_id", "=", topic_id))
        rows = offset_map.settled_rows(of_topic, columns=columns)
        for partition, start, end, *txn in zip(*(rows.column(name).to_pylist() for name in columns), strict=True):
            if start is not None and end > start:
                found.setdefault(TopicPartition(topic, partition), []).append(Copied(start, end, tuple(txn)))
    for undecided in offset_map.unsettled_rows():
        segment = undecided.segment
        if segment.target_start is not None and segment.target_end is not None:
            copied = Copied(segment.target_start, segment.target_end, undecided.txn)
            found.setdefault(segment.target.topic_partition, []).append(copied)
    return found


def gaps_of(offsets: OffsetRange, copies: Iterable[Copied]) -> list[OffsetRange]:
    """Pure. Return offsets that no copy covers, without the marker that follows the copies of each transaction."""
    gaps, at, before = [], offsets.start, None
    for copied in sorted(copies, key=lambda each: (each.start, each.end)):
        start = min(copied.start, offsets.end)
        is_marker = before is not None and start - at == 1 and copied.txn != before
        if start > at and not is_marker:
            gaps.append(OffsetRange(at, start))
        at = max(at, copied.end)
        before = copied.txn
    is_marker = before is not None and offsets.end - at == 1
    if at < offsets.end and not is_marker:
        gaps.append(OffsetRange(at, offsets.end))
    return gaps


def read_records(
    client: ClientConfig, gaps: Sequence[tuple[TopicPartition, OffsetRange]], most_records: int | None = None
) -> Iterator[LateWrite]:
    """Yield the records of the gaps that a reader of committed records sees: markers and aborted data are no late writes.

    `most_records`: of a gap no more is read once it has so many.
    """
    give_up_at_s = time.monotonic() + COUNT_S
    with BatchConsumer(client) as consumer:
        for name, gap in gaps:
            if time.monotonic() > give_up_at_s:
                yield LateWrite(topic_partition=name, start=gap.start, end=gap.end)
                continue
            start: int | None = None
            end, count = gap.start, 0
            consumer.assign({name: gap.start})
            while consumer.position(name) < gap.end and time.monotonic() <= give_up_at_s:
                if most_records is not None and count >= most_records:
                    break
                for batch in consumer.poll_batches(_POLL_BYTES, 500):
                    if batch.last_offset >= gap.start and batch.base_offset < gap.end:
                        # Retention may have cut the first batch.
                        first = max(batch.base_offset, gap.start)
                        start = first if start is None else start
                        end = batch.last_offset + 1
                        count += min(batch.record_count, end - first)
            if consumer.position(name) < gap.end:
                yield LateWrite(topic_partition=name, start=gap.start, end=gap.end)
            elif start is not None:
                yield LateWrite(topic_partition=name, start=start, end=end, record_count=count)
