"""Positions in copies of MirrorMaker 2, over logs that are lists: where the search begins, and why one is left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from tests.mirror_maker.test_record_search import row

from shallow_mirror.mirror_maker.running.internal_records import OffsetSync
from shallow_mirror.mirror_maker.running.log_reader import ByteBudget, LogReader
from shallow_mirror.mirror_maker.running.names import MirrorMakerNames
from shallow_mirror.mirror_maker.running.positions import PositionFinder, SourcePosition
from shallow_mirror.mirror_maker.running.record_search import Row
from shallow_mirror.types import IsolationLevel, OffsetRange, TopicPartition
from shallow_mirror.wire.group_log import LoggedRecord

ORDERS, COPY = TopicPartition("orders", 0), TopicPartition("east.orders", 0)
SYNCS = TopicPartition("mm2-offset-syncs.west.internal", 0)
ROW_BYTES = 100
NAMES = MirrorMakerNames(
    source="east",
    target="west",
    template="{source}.{topic}",
    offset_syncs=SYNCS.topic,
    has_offset_syncs_at_target=False,
    connect_offsets="mm2-offsets.east.internal",
    worker_group="east-mm2",
    isolation=IsolationLevel.READ_UNCOMMITTED,
)


@dataclass
class Logs(LogReader):
    """Logs in memory. `times`: of records, where ListOffsets finds them; a batch holds one record."""

    logs: dict[TopicPartition, list[Row]] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    syncs: list[OffsetSync] = field(default_factory=list)
    sets_append_time: bool = False
    where: str = "cluster"
    read: list[int] = field(default_factory=list)
    """Where searches began."""

    def partitions(self) -> dict[str, tuple[int, ...]]:
        return {topic_partition.topic: (0,) for topic_partition in self.logs}

    def ranges(self, topic_partitions: Sequence[TopicPartition]) -> dict[TopicPartition, OffsetRange]:  # type: ignore[override]
        return {
            place: OffsetRange(
                self.starts.get(place, 0),
                self.ends.get(place, self.logs[place][-1].offset + 1 if self.logs[place] else 0),
            )
            for place in topic_partitions
        }

    def first_since(self, topic_partition: TopicPartition, timestamp_ms: int) -> int | None:
        return next((row_.offset for row_ in self.logs[topic_partition] if row_.timestamp_ms >= timestamp_ms), None)

    def is_append_time(self, topic: str) -> bool:
        return self.sets_append_time

    def rows(self, topic_partition: TopicPartition, offsets: OffsetRange, budget: ByteBudget) -> Iterator[list[Row]]:
        self.read.append(offsets.start)
        for row_ in self.logs[topic_partition]:
            if budget.left <= 0:
                budget.is_exceeded = True
                return
            if offsets.start <= row_.offset < offsets.end:
                budget.left -= ROW_BYTES
                yield [row_]

    def records(self, topic_partition: TopicPartition, offsets: OffsetRange, budget: ByteBudget) -> Iterator[list[LoggedRecord]]:
        for sync in self.syncs:
            key = len(sync.topic_partition.topic).to_bytes(2) + sync.topic_partition.topic.encode()
            key += sync.topic_partition.partition.to_bytes(4)
            yield [LoggedRecord(0, 0, key, sync.upstream.to_bytes(8) + sync.downstream.to_bytes(8))]


def log_of(count: int, start: int = 0, time_of: int | None = None, first: int = 0) -> list[Row]:
    """Return records with a value each. `time_of`: of all of them."""
    return [row(start + number, f"v{first + number}", first + number if time_of is None else time_of) for number in range(count)]


def source_log(rows: list[Row], syncs: Sequence[tuple[int, int]] = ()) -> Logs:
    pairs = [OffsetSync(ORDERS, upstream, downstream) for upstream, downstream in syncs]
    return Logs(logs={ORDERS: rows, SYNCS: [row(0, "")]}, syncs=pairs)


def find(source: Logs, target: Logs, position: int, most_bytes: int = 1 << 20) -> SourcePosition:
    finder = PositionFinder(NAMES, source, target, most_bytes=most_bytes)
    finder.prepare([ORDERS])
    return finder.find(ORDERS, position)


@pytest.mark.parametrize(("position", "offset"), [(0, 500), (1, 501), (399, 899), (400, 900)])
def test_the_source_is_read_from_the_time_of_the_records_on(position: int, offset: int) -> None:
    source = source_log(log_of(1000))
    target = Logs(logs={COPY: log_of(400, first=500)})
    assert find(source, target, position) == SourcePosition(offset=offset)
    assert min(source.read) >= offset - 64 - 9, "the oldest of the records that are searched for, and neighbours"


def test_where_timestamps_lead_far_away_a_pair_of_offsets_leads_near() -> None:
    rows = log_of(5000, time_of=7)
    target = Logs(logs={COPY: log_of(5000, time_of=7)})
    source = source_log(rows, [(0, 0), (4000, 4000)])
    assert find(source, target, 4100, most_bytes=1000 * ROW_BYTES) == SourcePosition(offset=4100)
    assert source.read == [0, 4000 - 64]


def test_without_pairs_nothing_further_than_the_bound_is_found() -> None:
    source = source_log(log_of(5000, time_of=7))
    target = Logs(logs={COPY: log_of(5000, time_of=7)})
    left = find(source, target, 4100, most_bytes=1 << 18)
    assert left.offset is None
    assert "no equal record in orders-0 (0 to 5,000) within 0 MiB" in str(left.reason)


def test_a_missing_topic_of_pairs_is_named_when_nothing_is_found() -> None:
    source = Logs(logs={ORDERS: log_of(10, first=100)})
    left = find(source, Logs(logs={COPY: log_of(10)}), 5)
    assert "cluster shows no topic mm2-offset-syncs.west.internal" in str(left.reason)


def test_records_with_times_of_the_target_are_compared_without_them() -> None:
    source = source_log(log_of(1000), [(100, 100), (600, 600)])
    target = Logs(logs={COPY: [row(number, f"v{number}", 1_000_000) for number in range(1000)]}, sets_append_time=True)
    assert find(source, target, 650) == SourcePosition(offset=650)
    assert source.read == [600 - 64]


def test_a_pair_behind_the_record_is_not_trusted() -> None:
    """Copied again after a restart, and the pair of that was compacted."""
    source = source_log(log_of(1000), [(900, 900)])
    again = [row(901 + number, f"v{500 + number}", 1_000_000) for number in range(100)]
    target = Logs(logs={COPY: [row(number, f"v{number}", 1_000_000) for number in range(901)] + again}, sets_append_time=True)
    assert find(source, target, 950) == SourcePosition(offset=549)


def test_what_cannot_be_found_is_left_with_a_reason() -> None:
    source, rows = source_log(log_of(10)), log_of(10)
    assert "ends at 10: it was created again" in str(find(source, Logs(logs={COPY: rows}), 11).reason)
    expired = Logs(logs={COPY: []}, starts={COPY: 10}, ends={COPY: 10})
    assert "holds no record any more" in str(find(source, expired, 10).reason)
    assert find(source, Logs(logs={COPY: []}), 0) == SourcePosition(offset=0)


def test_equal_records_lead_to_the_earliest_and_the_rest_is_counted() -> None:
    equal = [row(number, "x", 5) for number in range(6)]
    moved = find(source_log(equal), Logs(logs={COPY: equal}), 4)
    assert (moved.offset, moved.repeats) == (0, 5)
    assert moved.reason == "equal or deleted records: the earliest of 6 possible places was chosen"


def test_a_record_that_the_source_deleted_is_passed_over() -> None:
    rows = [row_ for row_ in log_of(100) if row_.offset not in (50, 51)]
    moved = find(source_log(rows), Logs(logs={COPY: log_of(100)}), 50)
    assert (moved.offset, moved.repeats) == (50, 0)
    assert moved.reason == "1 record at the position: deleted at the source"


def test_neighbours_behind_large_holes_are_read_as_well() -> None:
    copy = [row(number * 50, f"v{number}", number) for number in range(100)]
    target = Logs(logs={COPY: copy})
    assert find(source_log(log_of(100)), target, 4_951) == SourcePosition(offset=100)
    assert len(target.read) > 1


def test_records_that_are_too_large_for_the_bound_are_left() -> None:
    rows = log_of(100)
    left = find(source_log(rows), Logs(logs={COPY: rows}), 50, most_bytes=10 * ROW_BYTES)
    assert left == SourcePosition(offset=None, reason="the records of east.orders-0 at the offset are too large: --search-mib")


def test_headers_that_a_converter_changed_do_not_matter() -> None:
    source = [row(number, f"v{number}", number, "h") for number in range(3000)]
    changed = [row(number, f"v{number}", number, "aA==") for number in range(3000)]
    logs = source_log(source)
    assert find(logs, Logs(logs={COPY: changed}), 500, most_bytes=2000 * ROW_BYTES) == SourcePosition(offset=500)
    assert len(logs.read) == 1
