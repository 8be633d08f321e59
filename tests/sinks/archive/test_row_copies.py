"""Copies of the rows that no footer has."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.support.archives import NOW_MS, ORDERS, OTHER, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.checkpoints import DecidedSegment, first_rows_at
from shallow_mirror.checkpoints.ledger import EVERY_STATE, ArchiveTable, TopicDescription
from shallow_mirror.errors import ArchiveFormatError, ConfigError
from shallow_mirror.operations.archive.adopt import adopt
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.findings import FindingKind
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks.archive import TopicObjects, row_copies
from shallow_mirror.sinks.archive.row_copies import RowCopies
from shallow_mirror.types import Segment, SegmentKind, TargetPartition
from shallow_mirror.wire import crc32c

pytestmark = pytest.mark.thorough


def gap(start: int, end: int) -> DecidedSegment:
    segment = Segment(source=ORDERS, source_start=start, source_end=end, kind=SegmentKind.GAP, target=TargetPartition(*ORDERS))
    return DecidedSegment(segment, None)


@pytest.fixture
def archive(tmp_path: Path) -> ArchiveOfTest:
    archive = ArchiveOfTest(archive_config(tmp_path, retention={"orders": {"keep": "1 day"}}))
    archive.decide(*first_rows_at({ORDERS: 0, OTHER: 5}, lambda source: TargetPartition(*source)))
    archive.archive({ORDERS: [batch(0, 10)]})
    return archive


def files(archive: ArchiveOfTest) -> list[Path]:
    return sorted(Path(archive.config.objects).rglob("rows/*.parquet"))


def copied(archive: ArchiveOfTest) -> list[tuple[int, int]]:
    rows = RowCopies(archive.store, archive.owner.map_id).read()
    return sorted(zip(rows["source_start"].to_pylist(), rows["source_end"].to_pylist(), strict=True))


def test_rows_without_an_object_are_copied_when_they_are_decided(archive: ArchiveOfTest) -> None:
    assert copied(archive) == [(0, 0), (5, 5)]
    archive.decide(gap(10, 12))
    assert copied(archive) == [(0, 0), (5, 5), (10, 12)]


def test_what_one_run_left_without_a_copy_the_next_one_copies(archive: ArchiveOfTest) -> None:
    archive.owner.on_decided = lambda _rows, _recorded: None  # killed behind the commit
    archive.decide(gap(10, 12))
    ArchiveOfTest(archive.config)
    assert copied(archive) == [(0, 0), (5, 5), (10, 12)]
    before = files(archive)
    ArchiveOfTest(archive.config)
    assert files(archive) == before


def test_a_run_behind_one_of_an_older_release_copies_all_rows(archive: ArchiveOfTest) -> None:
    expire(archive.config, takes_over=True, now_ms=lambda: NOW_MS + 999_999_999)
    expected = copied(archive)
    assert (0, 10) in expected
    for path in (*files(archive), *Path(archive.config.objects).rglob("owners/*.json")):
        path.unlink()
    description = TopicDescription(topic="orders", topic_id=ORDERS.topic_id, partitions=2, configs={})
    TopicObjects(archive.store, archive.owner.map_id).record([description], at_ms=NOW_MS)
    ArchiveOfTest(archive.config)
    assert copied(archive) == expected
    assert len(list(ArchiveTable.open(archive.config.tables).segments(states=EVERY_STATE))) == len(expected)


def test_many_small_objects_are_merged(archive: ArchiveOfTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_copies, "MOST_SMALL_OBJECTS", 4)
    for start in range(10, 30):
        archive.decide(gap(start, start + 1))
        assert len(files(archive)) <= 4
    assert copied(archive) == [(0, 0), (5, 5), *((start, start + 1) for start in range(10, 30))]


def test_large_objects_are_not_merged(archive: ArchiveOfTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_copies, "MOST_SMALL_OBJECTS", 2)
    monkeypatch.setattr(row_copies, "SMALL_BYTES", 1)
    for start in range(10, 15):
        archive.decide(gap(start, start + 1))
    assert len(files(archive)) == 6


def test_a_store_that_deletes_nothing_leaves_rows_twice_and_they_are_read_once(
    archive: ArchiveOfTest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise ConfigError("refused. Remedy: check the permissions")

    monkeypatch.setattr(row_copies, "MOST_SMALL_OBJECTS", 1)
    monkeypatch.setattr(type(archive.store), "delete", refuse)
    archive.decide(gap(10, 12))
    assert "copies of rows were not merged, this is tried again later: refused" in caplog.text
    assert len(files(archive)) == 3
    assert copied(archive) == [(0, 0), (5, 5), (10, 12)]


def test_every_changed_bit_is_found(archive: ArchiveOfTest) -> None:
    (path,) = files(archive)
    content = path.read_bytes()
    path.chmod(0o644)
    for at in range(0, len(content), 97):
        path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
        with pytest.raises(ArchiveFormatError, match="its bytes do not match the checksum in its name"):
            copied(archive)


def test_damaged_copies_are_found_and_made_again(archive: ArchiveOfTest) -> None:
    archive.decide(gap(10, 12))
    damaged, *_ = files(archive)
    damaged.chmod(0o644)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    assert verify_archive(archive.config).is_equal
    report = verify_archive(archive.config, is_deep=True)
    (found,) = report.findings.named[FindingKind.DAMAGED]
    assert found.object_name.endswith(damaged.name)
    damaged.rename(archive.config.objects + "-aside")
    adopt(archive.config)
    assert copied(archive) == [(0, 0), (5, 5), (10, 12)]
    archive.archive_owner.check()


def test_copies_of_a_newer_release_need_that_release(archive: ArchiveOfTest) -> None:
    (path,) = files(archive)
    sink = pa.BufferOutputStream()
    pq.write_table(pq.read_table(path).replace_schema_metadata({"shallow_mirror.format": "2"}), sink)
    content = sink.getvalue().to_pybytes()
    path.with_name(f"1700000000000-{crc32c(content):08x}.parquet").write_bytes(content)
    with pytest.raises(ConfigError, match=r"has format 2, this release reads 1\. Use a newer shallow-mirror"):
        copied(archive)
