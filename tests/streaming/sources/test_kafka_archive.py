"""The data source on a real Spark session: rows of batches and of records, filters that reach the objects, errors."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from tests.support.archives import ORDERS, OTHER, PAYMENTS, ArchiveOfTest, SmallArchive, archive_config
from tests.support.record_batches import batch, marker, record
from tests.support.record_encoders import ENCODERS, full_record

from shallow_mirror.streaming.sources import kafka_archive
from shallow_mirror.streaming.spark import spark_session
from shallow_mirror.types import SegmentKind
from shallow_mirror.wire import verify_crc

pytestmark = pytest.mark.spark

START_MS = 1_777_593_600_000
"""2026-05-01T00:00:00Z"""
TRANSACTIONAL = 0x10
ABORTED = [2, 3]
MARKERS = [4, 7]


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    made = spark_session.local_session(
        "archive", cores=2, log_file=tmp_path_factory.mktemp("spark") / "spark.log", archives_classes=True
    )
    made.conf.set("spark.sql.shuffle.partitions", "1")
    made.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    kafka_archive.register_kafka_archive(made)
    yield made
    made.stop()


def one_second_apart(base_offset: int, count: int, name: str = "none", *, attributes: int = 0, producer_id: int = -1) -> bytes:
    """Build a batch whose record at offset n is n seconds after START_MS."""
    codec, encode = ENCODERS[name]
    offsets = range(base_offset, base_offset + count)
    block = b"".join(
        full_record(delta, 1_000 * delta, b"k%d" % offset, b"v%d" % offset, [(b"h", b"x"), (b"n", None)])
        for delta, offset in enumerate(offsets)
    )
    return batch(
        base_offset,
        count,
        payload=encode(block),
        attributes=attributes | codec,
        producer_id=producer_id,
        timestamp=START_MS + 1_000 * offsets[0],
        max_timestamp=START_MS + 1_000 * offsets[-1],
    )


def make_archive(folder: Path) -> SmallArchive:
    archive = SmallArchive(folder)
    transactions = (
        one_second_apart(0, 2)
        + one_second_apart(2, 2, attributes=TRANSACTIONAL, producer_id=7)
        + marker(4, 0, 7)
        + one_second_apart(5, 2, attributes=TRANSACTIONAL, producer_id=7)
        + marker(7, 1, 7)
    )
    codecs = b"".join(one_second_apart(8 + 10 * i, 10, name) for i, name in enumerate(ENCODERS))
    archive.add_object([{ORDERS: transactions, PAYMENTS: one_second_apart(0, 3)}], aborted={ORDERS: [(7, 2)]})
    archive.add_object([{ORDERS: codecs, OTHER: one_second_apart(0, 5)}])
    archive.add_gap(ORDERS, 68, 70, SegmentKind.EXPIRED)
    archive.add_object([{ORDERS: one_second_apart(68, 10)}], starts={ORDERS: 70})
    return archive


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> SmallArchive:
    return make_archive(tmp_path_factory.mktemp("archive"))


def read(spark: Any, archive: SmallArchive, **options: str) -> DataFrame:
    reader = spark.read.format(kafka_archive.NAME).option("tables", str(archive.tables)).option("objects", str(archive.objects))
    return reader.options(**options).load()


def records(spark: Any, archive: SmallArchive, **options: str) -> DataFrame:
    return read(spark, archive, records="true", **options)


def offsets(frame: DataFrame) -> list[int]:
    return [row.offset for row in frame.select("offset").orderBy("offset").collect()]


COMMITTED = sorted(set(range(78)) - set(ABORTED) - set(MARKERS) - {68, 69})


def test_every_committed_record_has_a_row_with_the_columns_of_spark_s_kafka_source(spark: Any, archive: SmallArchive) -> None:
    frame = records(spark, archive)
    assert frame.schema.simpleString() == (
        "struct<key:binary,value:binary,topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int,"
        "headers:array<struct<key:string,value:binary>>,topic_id:string,kind:string,lineage:int>"
    )
    rows = frame.where("topic = 'orders' AND partition = 0").orderBy("offset").collect()
    assert [row.offset for row in rows] == COMMITTED
    for row in rows:
        assert (bytes(row.key), bytes(row.value)) == (b"k%d" % row.offset, b"v%d" % row.offset)
        assert [(header.key, header.value and bytes(header.value)) for header in row.headers] == [("h", b"x"), ("n", None)]
        assert (row.timestampType, row.topic_id, row.kind) == (0, ORDERS.topic_id, "data")
    assert rows[5].timestamp.astimezone(UTC) == datetime.fromtimestamp(START_MS / 1000 + rows[5].offset, UTC)
    others = sorted((row.topic, row.partition, row.offset) for row in frame.where("topic <> 'orders' OR partition > 0").collect())
    assert others == [("orders", 1, offset) for offset in range(5)] + [("payments", 0, offset) for offset in range(3)]


def test_every_committed_batch_has_a_row_with_its_bytes(spark: Any, archive: SmallArchive) -> None:
    rows = read(spark, archive).where("topic = 'orders' AND partition = 0").orderBy("base_offset").collect()
    assert [(row.base_offset, row.last_offset) for row in rows][:3] == [(0, 1), (5, 6), (8, 17)]
    assert {row.codec for row in rows} == {"none", "gzip", "snappy", "lz4", "zstd"}
    assert {row.kind for row in rows} == {"data"}
    assert all(verify_crc(memoryview(bytes(row.payload))) and row.size_bytes == len(row.payload) for row in rows)


def test_the_newest_lineage_is_read_or_the_one_that_is_asked_for(spark: Any, tmp_path: Path) -> None:
    archived = ArchiveOfTest(archive_config(tmp_path))
    archived.archive({ORDERS: [batch(0, 5), batch(5, 5)]})
    archived.begin_lineage(ORDERS, 5, 3)
    archived.archive({ORDERS: [batch(5, 2)]})

    def rows(**options: str) -> list[tuple[int, int]]:
        location = {"tables": archived.config.tables, "objects": archived.config.objects}
        frame = spark.read.format(kafka_archive.NAME).options(**location, **options).load()
        first = "offset" if options.get("records") else "base_offset"
        return sorted((row[first], row.lineage) for row in frame.collect())

    assert rows() == [(0, 0), (5, 1)]
    assert rows(lineage="0") == [(0, 0), (5, 0)]
    assert rows(records="true") == [(offset, int(offset >= 5)) for offset in range(7)]
    assert rows(records="true", lineage="0") == [(offset, 0) for offset in range(10)]


def test_aborted_data_and_markers_are_there_on_request(spark: Any, archive: SmallArchive) -> None:
    opened = records(spark, archive, includeAborted="true").where("topic = 'orders' AND partition = 0 AND offset < 10")
    assert offsets(opened) == list(range(10))
    assert offsets(opened.where("kind = 'aborted'")) == ABORTED
    batches = read(spark, archive, includeAborted="true").where("topic = 'orders' AND partition = 0 AND base_offset < 8")
    kinds = [row.kind for row in batches.orderBy("base_offset").collect()]
    assert kinds == ["data", "aborted", "abort", "data", "commit"]


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ("offset > 6 AND offset <= 9", [8, 9]),
        ("offset IN (1, 20, 77)", [1, 20, 77]),
        ("timestamp >= '2026-05-01T00:00:30Z' AND timestamp < '2026-05-01T00:00:32Z'", [30, 31]),
        ("timestamp = '2026-05-01T00:00:05Z'", [5]),
        ("offset < 0", []),
    ],
)
def test_filters_select_records(spark: Any, archive: SmallArchive, condition: str, expected: list[int]) -> None:
    assert offsets(records(spark, archive).where("topic = 'orders' AND partition = 0").where(condition)) == expected


@pytest.fixture
def two_objects(tmp_path: Path) -> SmallArchive:
    """Leave only the object that holds offsets 8 to 67 of orders-0: any other that is read is missing."""
    archive = make_archive(tmp_path)
    for row in archive.rows:
        if row.stored is not None and row.segment.source_start in (70, 0) and row.segment.source == ORDERS:
            (archive.objects / row.stored.object_name).unlink()
    return archive


def test_bounds_read_only_the_objects_that_hold_what_is_wanted(spark: Any, two_objects: SmallArchive) -> None:
    of_orders = {"subscribe": "orders", "partitions": "0"}
    assert offsets(records(spark, two_objects, **of_orders, startingOffset="40", endingOffset="46")) == list(range(40, 46))
    times = {"startingTimestamp": "2026-05-01T00:00:10Z", "endingTimestamp": "2026-05-01T00:00:12Z", "endingOffset": "70"}
    assert offsets(records(spark, two_objects, **of_orders, **times)) == [10, 11]
    assert offsets(records(spark, two_objects, partitions="1")) == [0, 1, 2, 3, 4]
    with pytest.raises(PySparkException, match=r"ObjectMissingError.*0000000003-0000-00-0123abcd.batches.*Remedy"):
        records(spark, two_objects, **of_orders, startingOffset="75").collect()


def test_filters_do_so_on_request(spark: Any, two_objects: SmallArchive) -> None:
    wanted = "topic = 'orders' AND partition = 0 AND offset BETWEEN 40 AND 45"
    assert offsets(records(spark, two_objects, pushFilters="true").where(wanted)) == list(range(40, 46))
    batches = read(spark, two_objects, pushFilters="true").where(wanted.replace("offset", "base_offset"))
    assert batches.collect() == []
    with pytest.raises(PySparkException, match="ObjectMissingError"):
        records(spark, two_objects).where(wanted).collect()


def test_queries_with_different_filters_on_one_data_frame_do_not_disturb_each_other(spark: Any, archive: SmallArchive) -> None:
    """Spark plans all of them with the filters that were pushed down last."""
    frame = records(spark, archive, subscribe="orders", partitions="0")
    assert offsets(frame.where("offset = 1").union(frame.where("offset = 33"))) == [1, 33]
    assert offsets(frame) == COMMITTED


def test_a_damaged_object_is_named(spark: Any, tmp_path: Path) -> None:
    archive = make_archive(tmp_path)
    stored = archive.rows[-1].stored
    assert stored is not None
    path = archive.objects / stored.object_name
    data = bytearray(path.read_bytes())
    data[stored.index[0].position + 70] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(PySparkException, match=r"ArchiveFormatError.*0000000003-0000-00-0123abcd.batches.*checksum.*Restore"):
        records(spark, archive, startingOffset="75").collect()
    assert offsets(records(spark, archive, startingOffset="60", endingOffset="61")) == [60]


def test_an_archive_is_cut_into_tasks_of_about_the_same_bytes(spark: Any, tmp_path: Path) -> None:
    archive = SmallArchive(tmp_path)
    for offset in range(3):
        archive.add_object([{ORDERS: batch(offset, 1, payload=record(0, None, bytes(600_000)))}])
    assert records(spark, archive).rdd.getNumPartitions() == 1
    frame = records(spark, archive, partitionBytes=str(1 << 20))
    assert frame.rdd.getNumPartitions() == 3
    assert offsets(frame) == [0, 1, 2]


def test_secrets_are_in_no_plan(spark: Any, archive: SmallArchive, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(PySparkException, match=r"storage.aws_secret_access_key: must not be in plain text") as raised:
        records(spark, archive, **{"storage.aws_secret_access_key": "hunter2"}).collect()
    assert "hunter2" not in str(raised.value)
    path = "${file:" + str(archive.tables / "secret") + "}"
    (archive.tables / "secret").write_text("hunter2")
    frame = records(spark, archive, **{"storage.aws_secret_access_key": path}).where("offset = 1")
    assert offsets(frame.where("topic = 'orders' AND partition = 0")) == [1]
    frame.explain(True)
    printed = capsys.readouterr().out
    assert "kafka-archive" in printed
    assert "hunter2" not in printed


def test_invalid_options_fail_with_every_problem(spark: Any) -> None:
    with pytest.raises(PySparkException, match=r"tables: is missing(.|\n)*objects: is missing"):
        spark.read.format(kafka_archive.NAME).load().collect()
