"""Single records and ranges of an archive, found by offset and by time without Spark."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.archives import NOW_MS, ORDERS, OTHER, PAYMENTS, RECREATED, ArchiveOfTest, SmallArchive, archive_config
from tests.support.record_batches import batch, marker
from tests.support.record_encoders import full_record

from shallow_mirror.archive_reading import lookup
from shallow_mirror.archive_reading.lookup import ArchiveReader
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.errors import ConfigError, ObjectMissingError
from shallow_mirror.sinks.archive import object_builder
from shallow_mirror.types import SegmentKind


def timed(base_offset: int, *times: int) -> bytes:
    """Build a batch whose records have these times; their values name them."""
    payload = b"".join(
        full_record(delta, time - times[0], b"%d" % (base_offset + delta), b"at %d" % time, [("é".encode(), b"x")])
        for delta, time in enumerate(times)
    )
    return batch(base_offset, len(times), payload=payload, timestamp=times[0], max_timestamp=max(times))


def make_archive(folder: Path) -> SmallArchive:
    """Archive three objects of orders-0, whose times are not in order, with a gap; another partition and topic beside it."""
    made = SmallArchive(folder)
    made.add_object([{ORDERS: timed(0, 100, 110) + timed(2, 500, 90), OTHER: timed(0, 7)}])
    made.add_gap(ORDERS, 4, 10)
    made.add_object([{ORDERS: timed(10, 200, 210), PAYMENTS: timed(0, 1, 2)}])
    made.add_object([{ORDERS: timed(12, 300, 310, 320)}])
    return made


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> SmallArchive:
    return make_archive(tmp_path_factory.mktemp("archive"))


def reader_of(archive: SmallArchive) -> ArchiveReader:
    return ArchiveReader.open(str(archive.tables), str(archive.objects))


@pytest.mark.slow
@pytest.mark.parametrize(("offset", "value"), [(0, b"at 100"), (3, b"at 90"), (11, b"at 210"), (14, b"at 320")])
def test_a_record_is_found_by_its_offset(archive: SmallArchive, offset: int, value: bytes) -> None:
    record = reader_of(archive).find_record("orders", 0, offset=offset)
    assert record is not None
    assert (record.offset, record.value, record.key) == (offset, value, b"%d" % offset)
    assert (record.topic, record.topic_id, record.partition, record.kind) == ("orders", ORDERS.topic_id, 0, SegmentKind.DATA)
    assert record.headers == (("é", b"x"),)


@pytest.mark.parametrize(
    ("topic", "partition", "offset"), [("orders", 0, 5), ("orders", 0, 15), ("orders", 7, 0), ("nothing", 0, 0)]
)
def test_an_offset_that_the_archive_does_not_hold_is_none(archive: SmallArchive, topic: str, partition: int, offset: int) -> None:
    assert reader_of(archive).find_record(topic, partition, offset=offset) is None


@pytest.mark.parametrize(("time", "offset"), [(0, 0), (101, 1), (111, 2), (501, None), (205, 2), (320, 2), (-5, 0)])
def test_the_first_record_that_is_not_older_than_a_time_is_found(archive: SmallArchive, time: int, offset: int | None) -> None:
    record = reader_of(archive).find_record("orders", 0, timestamp_ms=time)
    assert (None if record is None else record.offset) == offset


def test_an_offset_or_a_time_is_needed_and_not_both(archive: SmallArchive) -> None:
    reader = reader_of(archive)
    with pytest.raises(ValueError, match="an offset or a time"):
        reader.find_record("orders", 0)
    with pytest.raises(ValueError, match="an offset or a time"):
        reader.find_record("orders", 0, offset=1, timestamp_ms=1)


def test_a_range_of_records_comes_in_order_across_rows(archive: SmallArchive, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "_MOST_ROWS_AT_ONCE", 2)
    reader = reader_of(archive)
    assert [record.offset for record in reader.read_records("orders", 0)] == [0, 1, 2, 3, 10, 11, 12, 13, 14]
    assert [record.offset for record in reader.read_records("orders", 0, 3, 13)] == [3, 10, 11, 12]
    assert list(reader.read_records("orders", 0, 5, 5)) == []
    assert list(reader.read_records("orders", 0, 4, 10)) == []


@pytest.mark.slow
def test_a_lookup_reads_the_one_run_that_holds_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(object_builder, "INDEX_BYTES", 100)
    archive = SmallArchive(tmp_path)
    for number in range(5):
        archive.add_object([{ORDERS: b"".join(batch(100 * number + 10 * i, 10) for i in range(10))}])
    store = archive.store
    record = ArchiveReader(ArchiveTable.open(str(archive.tables)), store).find_record("orders", 0, offset=234)
    assert record is not None
    assert record.offset == 234
    (read,) = store.reads
    assert read[0] == archive.rows[2].stored.object_name  # type: ignore[union-attr]
    assert read[2] < 3 * len(batch(0, 10))


def test_of_a_topic_that_was_created_again_the_last_one_counts_unless_its_id_says_otherwise(tmp_path: Path) -> None:
    archive = SmallArchive(tmp_path)
    archive.add_object([{ORDERS: timed(0, 1, 2, 3)}])
    archive.add_object([{RECREATED: timed(0, 50, 60)}])
    reader = reader_of(archive)

    def values(topic_id: str | None = None) -> list[bytes | None]:
        return [record.value for record in reader.read_records("orders", 0, topic_id=topic_id)]

    assert values() == [b"at 50", b"at 60"]
    assert values(ORDERS.topic_id) == [b"at 1", b"at 2", b"at 3"]
    for topic_id, value in ((None, b"at 50"), (ORDERS.topic_id, b"at 1")):
        record = reader.find_record("orders", 0, offset=0, topic_id=topic_id)
        assert record is not None
        assert record.value == value


@pytest.fixture
def recreated(tmp_path: Path) -> ArchiveOfTest:
    """Ten records of orders in two partitions; deleted and created again with one partition and two records."""
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=NOW_MS)
    archive.archive({ORDERS: [timed(0, *range(NOW_MS, NOW_MS + 10))], OTHER: [timed(0, NOW_MS)]})
    archive.now_ms += 10_000
    archive.archive({RECREATED: [timed(0, NOW_MS + 5_000, NOW_MS + 5_001)]})
    return archive


@pytest.mark.slow
def test_a_deleted_topic_does_not_answer_where_the_new_one_has_no_record(recreated: ArchiveOfTest) -> None:
    reader = ArchiveReader.open(recreated.config.tables, recreated.config.objects)
    assert reader.find_record("orders", 0, offset=7) is None
    assert list(reader.read_records("orders", 0, 5, 9)) == []
    assert reader.find_record("orders", 1, offset=0) is None
    late = reader.find_record("orders", 0, timestamp_ms=NOW_MS)
    assert late is not None
    assert (late.offset, late.topic_id) == (0, RECREATED.topic_id)
    former = reader.find_record("orders", 0, offset=7, topic_id=ORDERS.topic_id)
    assert former is not None
    assert former.value == b"at %d" % (NOW_MS + 7)
    assert [record.offset for record in reader.read_records("orders", 0, 5, 9, topic_id=ORDERS.topic_id)] == [5, 6, 7, 8]


def test_a_topic_id_that_the_topic_does_not_have_is_refused_with_those_that_it_has(recreated: ArchiveOfTest) -> None:
    reader = ArchiveReader.open(recreated.config.tables, recreated.config.objects)
    with pytest.raises(ConfigError, match=f"topic_id: .*topic id nonsense; it has {ORDERS.topic_id} .*; {RECREATED.topic_id} "):
        reader.find_record("orders", 0, offset=0, topic_id="nonsense")
    assert reader.find_record("nothing", 0, offset=0, topic_id="nonsense") is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("as_of_ms", "topic_id"),
    [
        (NOW_MS - 5, ORDERS.topic_id),
        (NOW_MS, ORDERS.topic_id),
        (NOW_MS + 4_999, ORDERS.topic_id),
        (NOW_MS + 5_000, RECREATED.topic_id),
        (NOW_MS + 10_000, RECREATED.topic_id),
    ],
)
def test_the_topic_of_a_time_is_read_as_a_restore_takes_it(recreated: ArchiveOfTest, as_of_ms: int, topic_id: str) -> None:
    reader = ArchiveReader.open(recreated.config.tables, recreated.config.objects)
    records = list(reader.read_records("orders", 0, as_of_ms=as_of_ms))
    assert {record.topic_id for record in records} == {topic_id}
    assert len(records) == (10 if topic_id == ORDERS.topic_id else 2), "a time bounds no records"
    found = reader.find_record("orders", 0, offset=7, as_of_ms=as_of_ms)
    assert (found is not None) == (topic_id == ORDERS.topic_id)
    assert (reader.find_record("orders", 1, offset=0, as_of_ms=as_of_ms) is not None) == (topic_id == ORDERS.topic_id)


@pytest.mark.slow
def test_a_lineage_that_begins_where_a_row_does_is_read_once(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    archive.archive({ORDERS: [batch(0, 2)]})
    archive.archive({ORDERS: [batch(2, 2)]})
    archive.begin_lineage(ORDERS, 2, 3)
    archive.archive({ORDERS: [batch(2, 1, leader_epoch=4)]})
    reader = ArchiveReader.open(archive.config.tables, archive.config.objects)
    for start in (0, 2):
        assert [record.offset for record in reader.read_records("orders", 0, start)] == list(range(start, 3))
        assert [record.offset for record in reader.read_records("orders", 0, start, lineage=0)] == list(range(start, 4))


@pytest.mark.slow
def test_the_log_of_a_time_is_read_and_partitions_that_were_added_later_are_not(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path), now_ms=NOW_MS)
    archive.archive({ORDERS: [timed(0, *range(NOW_MS, NOW_MS + 10))]})
    archive.now_ms += 10_000
    archive.begin_lineage(ORDERS, 1, 3)
    archive.archive({ORDERS: [batch(1, timestamp=NOW_MS + 5_000, leader_epoch=4)], OTHER: [timed(0, NOW_MS + 9_000)]})
    reader = ArchiveReader.open(archive.config.tables, archive.config.objects)

    def count(partition: int, as_of_ms: int | None, lineage: int | None = None) -> int:
        return len(list(reader.read_records("orders", partition, as_of_ms=as_of_ms, lineage=lineage)))

    times = (NOW_MS, NOW_MS + 5_000, NOW_MS + 10_000, None)
    assert [count(0, time) for time in times] == [10, 2, 2, 2]
    assert [count(1, time) for time in times] == [0, 0, 1, 1]
    assert [count(0, time, lineage=0) for time in times] == [10, 10, 10, 10]


@pytest.mark.slow
def test_aborted_records_are_read_on_request_only(tmp_path: Path) -> None:
    archive = SmallArchive(tmp_path)
    data = batch(0, 2, attributes=0x10, producer_id=7)
    archive.add_object([{ORDERS: data + marker(2, 0, 7) + batch(3, 1)}], aborted={ORDERS: [(7, 0)]})
    reader = reader_of(archive)
    assert [record.offset for record in reader.read_records("orders", 0)] == [3]
    kinds = [(record.offset, str(record.kind)) for record in reader.read_records("orders", 0, include_aborted=True)]
    assert kinds == [(0, "aborted"), (1, "aborted"), (2, "abort"), (3, "data")]
    assert reader.find_record("orders", 0, offset=1) is None


@pytest.mark.slow
def test_rows_that_are_being_deleted_are_not_read(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    archive.set_state(OTHER, SegmentState.DELETE_SEGMENT_STARTED)
    assert reader_of(archive).find_record("orders", 1, offset=0) is None
    assert reader_of(archive).find_record("orders", 0, offset=0) is not None


@pytest.mark.slow
def test_a_missing_object_is_named(tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    stored = archive.rows[0].stored
    assert stored is not None
    (archive.objects / stored.object_name).unlink()
    with pytest.raises(ObjectMissingError, match=f"{stored.object_name}.*Remedy"):
        reader_of(archive).find_record("orders", 0, offset=0)
    assert reader_of(archive).find_record("orders", 0, offset=10) is not None


def test_a_folder_without_an_archive_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="archive_segments"):
        ArchiveReader.open(str(tmp_path), str(tmp_path))


@pytest.mark.thorough
def test_a_lookup_imports_neither_spark_nor_a_client(archive: SmallArchive) -> None:
    program = (
        "import sys; from shallow_mirror.archive_reading.lookup import ArchiveReader; "
        f"record = ArchiveReader.open({str(archive.tables)!r}, {str(archive.objects)!r}).find_record('orders', 0, offset=3); "
        "print(record.value, [name for name in ('pyspark', 'confluent_kafka') if name in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "b'at 90' []"
