"""Commands: source offsets at which groups continue that stand in a topic of MirrorMaker 2, found by comparing records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from shallow_mirror.mirror_maker.running.internal_records import OffsetSync, parse_offset_sync
from shallow_mirror.mirror_maker.running.log_reader import ByteBudget, LogReader
from shallow_mirror.mirror_maker.running.names import MirrorMakerNames
from shallow_mirror.mirror_maker.running.record_search import (
    KEY_AND_VALUE,
    NEIGHBOURS,
    PREDECESSORS,
    WHOLE,
    WITHOUT_HEADERS,
    WITHOUT_TIMESTAMP,
    Anchor,
    Found,
    RecordSearch,
    anchors_at,
)
from shallow_mirror.plurals import counted
from shallow_mirror.types import OffsetRange, TopicPartition

_SYNCS_BYTES = 256 << 20
"""Of the offset-syncs topic at most so much is read."""
_BEHIND_END = "it was created again or has lost records, or a transaction of MirrorMaker 2 is open there: try again"

_BACK = 64
"""Offsets before a place that are searched as well, for the neighbours of its records."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePosition:
    """Where a position in a topic of MirrorMaker 2 leads. `offset` None: nowhere, and `reason` says why.

    `repeats`: records that a group which continues there may read again, at most; `reason` says why if there are any.
    """

    offset: int | None
    repeats: int = 0
    reason: str | None = None


@dataclass(slots=True)
class _Syncs:
    """Pairs of offsets, read when they are first needed. `problem`: why there are none."""

    by_partition: dict[TopicPartition, list[OffsetSync]] = field(default_factory=dict)
    problem: str | None = None

    def before(self, source: TopicPartition, position: int) -> OffsetSync | None:
        """Return the last pair that was written with a copy at or before a position."""
        return next((sync for sync in reversed(self.by_partition.get(source, ())) if sync.downstream <= position), None)


class PositionFinder:
    """`source` and `target` are read with the isolation of MirrorMaker 2, and with read_committed. Not thread-safe."""

    def __init__(self, names: MirrorMakerNames, source: LogReader, target: LogReader, *, most_bytes: int) -> None:
        """`most_bytes`: of a source partition that are read for one position."""
        self._names, self._source, self._target, self._most_bytes = names, source, target, most_bytes
        self._found: dict[tuple[TopicPartition, int], SourcePosition] = {}
        self._held: dict[TopicPartition, OffsetRange] = {}
        self._copied: dict[TopicPartition, OffsetRange] = {}
        self._syncs: _Syncs | None = None
        self._is_append_time: dict[str, bool] = {}

    def prepare(self, partitions: Collection[TopicPartition]) -> None:
        """Request what the logs of these partitions and of their copies hold, in few requests. To be called before `find`."""
        self._held = self._source.ranges(partitions)
        self._copied = self._target.ranges([self._copy_of(partition) for partition in partitions])

    def _copy_of(self, source: TopicPartition) -> TopicPartition:
        return TopicPartition(self._names.target_topic(source.topic), source.partition)

    def find(self, source: TopicPartition, position: int) -> SourcePosition:
        """Return the source offset for a position in the copy of a partition. Raises RetriableError, ConfigError."""
        if (source, position) not in self._found:
            self._found[source, position] = self._find(source, position)
        return self._found[source, position]

    def _find(self, source: TopicPartition, position: int) -> SourcePosition:
        copy = self._copy_of(source)
        copied, held = self._copied[copy], self._held[source]
        if position > copied.end:
            return SourcePosition(offset=None, reason=f"{copy} ends at {copied.end:,}: {_BEHIND_END}")
        if copied.end == 0:
            return SourcePosition(offset=0)
        rows = self._target.rows_around(
            copy, copied, position, NEIGHBOURS + PREDECESSORS, NEIGHBOURS + 1, ByteBudget(self._most_bytes)
        )
        if rows is None:
            return SourcePosition(offset=None, reason=f"the records of {copy} at the offset are too large: --search-mib")
        if not rows:
            return SourcePosition(offset=None, reason=f"{copy} holds no record any more by which the position could be found")
        found = self._search(source, held, copy, anchors_at(rows, position), position)
        if found is None:
            return SourcePosition(offset=None, reason=self._not_found(source, held))
        if found.repeats:
            reason = f"equal or deleted records: the earliest of {found.repeats + 1:,} possible places was chosen"
            return SourcePosition(offset=found.offset, repeats=found.repeats, reason=reason)
        if found.passed_over:
            gone = counted(found.passed_over, "record")
            return SourcePosition(offset=found.offset, reason=f"{gone} at the position: deleted at the source")
        return SourcePosition(offset=found.offset)

    def _not_found(self, source: TopicPartition, held: OffsetRange) -> str:
        syncs = self._syncs.problem if self._syncs is not None and self._syncs.problem else ""
        return (
            f"no equal record in {source} ({held.start:,} to {held.end:,}) within {self._most_bytes >> 20} MiB: it was deleted, "
            f"changed by a transform, or is further away: --search-mib{f'; {syncs}' if syncs else ''}"
        )

    def _search(
        self, source: TopicPartition, held: OffsetRange, copy: TopicPartition, anchors: list[Anchor], position: int
    ) -> Found | None:
        """Search from the first record with such a timestamp on; then from a nearby pair of offsets, and from the log start.

        A pair may lie behind the record, if MirrorMaker 2 has copied some again and the pairs between were compacted. So behind a
        pair only a place is accepted with which its neighbours agree.
        """
        if copy.topic not in self._is_append_time:
            self._is_append_time[copy.topic] = self._target.is_append_time(copy.topic)
        compared = (WITHOUT_TIMESTAMP, KEY_AND_VALUE) if self._is_append_time[copy.topic] else (WHOLE, WITHOUT_HEADERS)
        first = None
        if not self._is_append_time[copy.topic]:
            oldest_ms = min(anchor.row.timestamp_ms for anchor in anchors)
            first = self._source.first_since(source, oldest_ms)
            found, _ = self._scan(source, held, first, anchors, compared)
            if found is not None:
                return found
        sync = self._pairs().before(source, position)
        if sync is not None:
            found, is_sure = self._scan(source, held, sync.upstream, anchors, compared)
            if found is not None and is_sure:
                return found
        if first is not None and first <= held.start:
            return None
        return self._scan(source, held, held.start, anchors, compared)[0]

    def _scan(
        self,
        source: TopicPartition,
        held: OffsetRange,
        first: int | None,
        anchors: list[Anchor],
        compared: Iterable[slice],
    ) -> tuple[Found | None, bool]:
        """Return what was found from an offset on, and whether its neighbours agree. `first` None: there are no records."""
        if first is None:
            return None, False
        searches = [RecordSearch(anchors, part) for part in compared]
        start = min(max(held.start, first - _BACK), held.end)
        for rows in self._source.rows(source, OffsetRange(start, held.end), ByteBudget(self._most_bytes)):
            for search in searches:
                search.add(rows)
            if any(search.is_decided for search in searches):
                break
        results = [(found, search.is_sure) for search in searches if (found := search.result()) is not None]
        # Records without headers are equal either way: the record at the position counts for more than those before it.
        return min(results, key=lambda result: result[0].passed_over, default=(None, False))

    def _pairs(self) -> _Syncs:
        if self._syncs is None:
            self._syncs = self._read_pairs()
        return self._syncs

    def _read_pairs(self) -> _Syncs:
        reader = self._target if self._names.has_offset_syncs_at_target else self._source
        topic = self._names.offset_syncs
        partitions = reader.partitions().get(topic)
        if not partitions:
            return _Syncs(problem=f"{reader.where} shows no topic {topic}")
        by_partition: defaultdict[TopicPartition, list[OffsetSync]] = defaultdict(list)
        budget = ByteBudget(_SYNCS_BYTES)
        places = [TopicPartition(topic, partition) for partition in partitions]
        try:
            for place, offsets in reader.ranges(places).items():
                for records in reader.records(place, offsets, budget):
                    for record in records:
                        sync = parse_offset_sync(record.key, record.value)
                        if sync is not None:
                            by_partition[sync.topic_partition].append(sync)
        except ValueError as error:
            return _Syncs(problem=f"{topic} is not the offset-syncs topic of MirrorMaker 2 ({error})")
        too_many = f"{topic} has more than {_SYNCS_BYTES >> 20} MiB: its newest pairs were not read"
        return _Syncs(dict(by_partition), too_many if budget.is_exceeded else None)
