"""A query is cut into parts of about the same bytes that read every wanted batch once, and nothing else."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.archives import NOW_MS, ORDERS, OTHER, PAYMENTS, RECREATED, ArchiveOfTest, SmallArchive, archive_config
from tests.support.record_batches import batch

from shallow_mirror.archive_reading import scan_plan
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.scan_plan import ScanPart, plan_scan, read_part
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.archive import object_builder
from shallow_mirror.streaming.sources.archive_options import parse_archive_options
from shallow_mirror.streaming.sources.kafka_archive import ArchivePartition, ArchiveSourceReader

pytestmark = pytest.mark.thorough

BATCH = len(batch(0, 10))
Batches = list[tuple[str, int, int]]


def make_archive(folder: Path) -> SmallArchive:
    """Archive four objects: 10 batches of orders-0, 4 of orders-1, one of payments-0 each; times are 1,000 per offset."""
    made = SmallArchive(folder)
    for number in range(4):

        def run(count: int, number: int = number) -> bytes:
            bases = range(10 * count * number, 10 * count * (number + 1), 10)
            return b"".join(batch(base, 10, timestamp=1_000 * base, max_timestamp=1_000 * base + 9_000) for base in bases)

        made.add_object([{ORDERS: run(10), OTHER: run(4), PAYMENTS: run(1)}])
    return made


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> SmallArchive:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(object_builder, "INDEX_BYTES", 2 * BATCH)
        return make_archive(tmp_path_factory.mktemp("archive"))


def plan(archive: SmallArchive, bounds: ReadBounds, part_bytes: int = 1 << 20) -> list[ScanPart]:
    return plan_scan(ArchiveTable.open(str(archive.tables)), bounds, part_bytes)


def batches(archive: SmallArchive, parts: list[ScanPart]) -> Batches:
    return [
        (part.source.topic, part.source.partition, int(base))
        for scan in parts
        for part in read_part(archive.store, scan)
        for base in part.index.headers["base_offset"]
    ]


ALL = sorted(
    [("orders", 0, 10 * i) for i in range(40)]
    + [("orders", 1, 10 * i) for i in range(16)]
    + [("payments", 0, 10 * i) for i in range(4)]
)


@pytest.mark.parametrize("part_bytes", [1, BATCH, 3 * BATCH, 11 * BATCH, 1 << 30])
def test_every_batch_is_in_exactly_one_part_whatever_their_size(archive: SmallArchive, part_bytes: int) -> None:
    parts = plan(archive, ReadBounds(), part_bytes)
    assert batches(archive, parts) == ALL
    assert (len(parts) == 1) == (part_bytes == 1 << 30)


def test_parts_hold_about_the_bytes_that_are_asked_for_and_no_run_is_cut(archive: SmallArchive) -> None:
    parts = plan(archive, ReadBounds(), 4 * BATCH)
    sizes = [len(batches(archive, [part])) for part in parts]
    assert max(sizes) <= 4
    assert len(parts) <= 20


def test_a_part_has_at_most_so_many_rows(archive: SmallArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan_plan, "MOST_ROWS", 5)
    assert [len(part.segments()) for part in plan(archive, ReadBounds())] == [5, 5, 2]


def test_parts_travel(archive: SmallArchive) -> None:
    (part,) = plan(archive, ReadBounds())
    assert batches(archive, [pickle.loads(pickle.dumps(part))]) == ALL


@pytest.mark.parametrize(
    ("bounds", "expected"),
    [
        (ReadBounds(topics=frozenset({"payments"})), [row for row in ALL if row[0] == "payments"]),
        (ReadBounds(topics=frozenset({"orders"}), partitions=frozenset({1, 5})), [row for row in ALL if row[1] == 1]),
        (ReadBounds(topics=frozenset(str(i) for i in range(20)) | {"payments"}), [row for row in ALL if row[0] == "payments"]),
        (
            ReadBounds(partitions=frozenset({0}), start_offset=205, end_offset=221),
            [("orders", 0, 200), ("orders", 0, 210), ("orders", 0, 220)],
        ),
        (ReadBounds(topics=frozenset()), []),
        (ReadBounds(start_offset=9, end_offset=9), []),
        (ReadBounds(start_offset=10_000), []),
    ],
)
def test_bounds_select_batches(archive: SmallArchive, bounds: ReadBounds, expected: Batches) -> None:
    assert batches(archive, plan(archive, bounds)) == expected


def test_a_range_reads_only_its_objects_and_its_runs(archive: SmallArchive) -> None:
    bounds = ReadBounds(topics=frozenset({"orders"}), partitions=frozenset({0}), start_offset=205, end_offset=221)
    (part,) = plan(archive, bounds)
    store = archive.store
    assert sum(len(read.index) for read in read_part(store, part)) == 3
    row = next(row for row in archive.rows if row.segment.source == ORDERS and row.segment.source_start == 200)
    assert row.stored is not None
    assert store.reads == [(row.stored.object_name, run.position, run.size_bytes) for run in row.stored.index[:2]]


def test_a_time_leaves_out_rows_and_runs_that_end_before_it(archive: SmallArchive) -> None:
    (part,) = plan(archive, ReadBounds(topics=frozenset({"orders"}), partitions=frozenset({0}), min_timestamp_ms=355_000))
    assert [row.segment.source_start for row in part.segments()] == [300]
    store = archive.store
    assert [int(base) for read in read_part(store, part) for base in read.index.headers["base_offset"]] == list(
        range(340, 400, 10)
    )
    assert len(store.reads) == 3


def test_the_end_of_a_time_range_leaves_out_rows_only_where_the_disorder_of_times_is_bounded(archive: SmallArchive) -> None:
    bounds = ReadBounds(topics=frozenset({"orders"}), partitions=frozenset({0}), max_timestamp_ms=105_000)

    def starts(disorder_ms: int | None) -> list[int]:
        within = plan(archive, replace(bounds, disorder_ms=disorder_ms))
        return [row.segment.source_start for part in within for row in part.segments()]

    assert starts(None) == [0, 100, 200, 300]
    assert starts(0) == [0, 100]
    assert starts(95_000) == [0, 100, 200]


def test_rows_that_are_being_deleted_and_rows_without_batches_are_no_part_of_a_query(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    archive.add_gap(ORDERS, 400, 500)
    archive.set_state(OTHER, SegmentState.DELETE_SEGMENT_FINISHED)
    assert batches(archive, plan(archive, ReadBounds())) == [row for row in ALL if row[1] == 0]


@pytest.fixture
def recreated(tmp_path: Path) -> ArchiveOfTest:
    """Orders with two partitions and payments; orders was deleted and created again with one; payments got another one."""
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=NOW_MS)
    archive.archive({ORDERS: [batch(0, 10, timestamp=NOW_MS)], OTHER: [batch(0, 5, timestamp=NOW_MS)]})
    archive.archive({PAYMENTS: [batch(0, 1, timestamp=NOW_MS)]})
    archive.now_ms += 10_000
    archive.archive({RECREATED: [batch(0, 2, timestamp=NOW_MS + 5_000)]})
    archive.archive({PAYMENTS._replace(partition=1): [batch(0, 1, timestamp=NOW_MS + 9_000)]})
    return archive


Read = set[tuple[str, str, int]]
NEW: Read = {("orders", RECREATED.topic_id, 0), ("payments", PAYMENTS.topic_id, 0), ("payments", PAYMENTS.topic_id, 1)}
OLD: Read = {("orders", ORDERS.topic_id, 0), ("orders", ORDERS.topic_id, 1), ("payments", PAYMENTS.topic_id, 0)}


def scanned(archive: ArchiveOfTest, bounds: ReadBounds, **options: Any) -> Read:
    """Return the partitions that a query with options of `kafka-archive` reads."""
    locations = {"tables": archive.config.tables, "objects": archive.config.objects}
    reader = ArchiveSourceReader(parse_archive_options(locations | options))
    reader.bounds = bounds
    parts = [partition.part for partition in reader.partitions() if isinstance(partition, ArchivePartition)]
    return {(*part.source,) for scan in parts for part in read_part(archive.store, scan)}


@pytest.mark.parametrize(
    ("options", "read"),
    [
        ({}, NEW),
        ({"asOf": "2023-11-14T22:13:24.999Z"}, OLD),
        ({"asOf": str(NOW_MS + 5_000)}, NEW - {("payments", PAYMENTS.topic_id, 1)}),
        ({"asOf": str(NOW_MS + 10_000)}, NEW),
        ({"topicIds": ORDERS.topic_id}, OLD | NEW - {("orders", RECREATED.topic_id, 0)}),
        ({"topicIds": f"{ORDERS.topic_id}, {RECREATED.topic_id}"}, OLD | NEW),
        ({"topicIds": "all"}, OLD | NEW),
        ({"topicIds": "all", "asOf": str(NOW_MS)}, OLD | {("orders", RECREATED.topic_id, 0)}),
    ],
)
def test_a_query_reads_the_topics_that_were_there(recreated: ArchiveOfTest, options: dict[str, str], read: Read) -> None:
    assert scanned(recreated, ReadBounds(), **options) == read


def test_a_deleted_topic_does_not_answer_a_query_where_the_new_one_has_no_record(recreated: ArchiveOfTest) -> None:
    bounds = ReadBounds(topics=frozenset({"orders"}))
    assert scanned(recreated, bounds.from_offset(5)) == set()
    assert scanned(recreated, bounds.of_partitions(frozenset({1}))) == set()
    assert scanned(recreated, bounds.from_offset(5), topicIds=ORDERS.topic_id) == {("orders", ORDERS.topic_id, 0)}


def test_a_topic_id_that_no_topic_has_is_refused_with_those_of_topics_that_have_several(recreated: ArchiveOfTest) -> None:
    with pytest.raises(
        ConfigError, match=f"topicIds: .*no topic with id nonsense; .* {ORDERS.topic_id} .*; {RECREATED.topic_id} "
    ):
        scanned(recreated, ReadBounds(), topicIds="nonsense")
    with pytest.raises(ConfigError, match=r"topicIds: .*no topic with id nonsense; no topic was created again"):
        scanned(recreated, ReadBounds(topics=frozenset({"payments"})), topicIds="nonsense")
