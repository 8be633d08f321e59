"""The checks of random archives find what is wrong: a package that is wrong in one way each, and logs that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.random_archives.checks import different
from tests.random_archives.documented_reader import DocumentedReader, FormatError, PartitionId
from tests.random_archives.restore_target import RestoreTarget
from tests.random_archives.rounds import check_archive
from tests.random_archives.source_logs import LogRecord
from tests.support.archives import ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch, marker

from shallow_mirror.archive_reading import cuts, segment_reader
from shallow_mirror.checkpoints import LineageView
from shallow_mirror.checkpoints.ledger import TopicDescription
from shallow_mirror.checkpoints.rows import lineages
from shallow_mirror.sinks import ReadPart
from shallow_mirror.sinks.archive import archive_slot_target
from shallow_mirror.streaming.planning import restore_planner
from shallow_mirror.streaming.runs import restore as restore_run

pytestmark = pytest.mark.thorough

FIRST, SECOND, THIRD = (LogRecord(offset, 1_000, None, b"%d" % offset, ()) for offset in range(3))
LOG = (FIRST, SECOND, THIRD)


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (LOG[:2], "log: 2 of 3 records, lost 1: "),
        ((*LOG, LogRecord(3, 0, None, b"", ())), "log: 4 of 3 records, not to be there 1: "),
        ((FIRST, *LOG), "log: 4 of 3 records, twice or in another order: [0, 0, 1, 2]"),
        ((SECOND, FIRST, THIRD), "log: 3 of 3 records, twice or in another order: [1, 0, 2]"),
        ((FIRST, SECOND, THIRD._replace(timestamp_ms=7)), "log: 3 of 3 records, lost 1: "),
    ],
)
def test_two_logs_that_differ_are_named_with_the_kind(found: Sequence[LogRecord], sentence: str) -> None:
    assert next(different("log", found, LOG)).startswith(sentence)
    assert list(different("log", LOG, LOG)) == []


def test_the_documented_reader_reads_committed_records_and_refuses_a_damaged_object(tmp_path: Path) -> None:
    archive = ArchiveOfTest(archive_config(tmp_path))
    data = [batch(0, 2), batch(2, 2, attributes=0x10, producer_id=7, producer_epoch=0), marker(4, 0, 7), batch(5, 1)]
    archive.describe(TopicDescription(topic=ORDERS.topic, topic_id=ORDERS.topic_id, partitions=1, configs={}))
    archive.archive({ORDERS: data}, aborted={ORDERS: [(7, 2)]})
    tables, objects = Path(archive.config.tables), Path(archive.config.objects)
    log = DocumentedReader(tables, objects).log(PartitionId(*ORDERS))
    assert log is not None
    assert [record.offset for record in log.records(6)] == [0, 1, 5]
    assert [record.offset for record in log.records(6, is_committed_only=False)] == [0, 1, 2, 3, 5]
    (path,) = objects.rglob("*.batches")
    content = bytearray(path.read_bytes())
    content[7] ^= 1  # in the base offset, which the checksum of a batch leaves out
    path.write_bytes(content)
    with pytest.raises(FormatError, match="the checksum of"):
        DocumentedReader(tables, objects).log(PartitionId(*ORDERS))


Wrong = Callable[[pytest.MonkeyPatch], None]


def cut_one_record_late(patch: pytest.MonkeyPatch) -> None:
    right = cuts.first_newer_offset

    def late(*arguments: Any) -> int | None:
        offset = right(*arguments)
        return None if offset is None else offset + 1

    patch.setattr(restore_planner, "first_newer_offset", late)


def forget_aborts_of_later_lineages(patch: pytest.MonkeyPatch) -> None:
    right = lineages.PartitionLineages.view

    def without(partition: lineages.PartitionLineages, lineage: int | None = None) -> LineageView:
        return replace(right(partition, lineage), aborted_later={}, marker_lost={})

    patch.setattr(lineages.PartitionLineages, "view", without)


def skip_the_first_step(patch: pytest.MonkeyPatch) -> None:
    right = restore_planner.RestorePlanner.steps

    def without_the_first(*arguments: Any) -> Iterator[Any]:
        return iter(list(right(*arguments))[1:])

    patch.setattr(restore_planner.RestorePlanner, "steps", without_the_first)
    patch.setattr(restore_run, "require_adjacent_rows", lambda *_: None)


def read_whole_batches(patch: pytest.MonkeyPatch) -> None:
    right = segment_reader.SegmentReader._wanted

    def wanted(*arguments: Any) -> Any:
        batches = right(*arguments)
        return None if batches is None else replace(batches, end=1 << 62)

    patch.setattr(segment_reader.SegmentReader, "_wanted", wanted)


def archive_no_last_batch_of_a_response(patch: pytest.MonkeyPatch) -> None:
    right = archive_slot_target.ArchiveSlotWriter.write

    def write(writer: Any, parts: Sequence[ReadPart], builder_of: Any) -> Any:
        return right(writer, [replace(part, range_end=int(part.index.headers["base_offset"][-1])) for part in parts], builder_of)

    patch.setattr(archive_slot_target.ArchiveSlotWriter, "write", write)


@pytest.mark.parametrize(
    ("wrong", "seed"),
    [
        pytest.param(archive_no_last_batch_of_a_response, 27, marks=pytest.mark.long),
        (cut_one_record_late, 5),
        (forget_aborts_of_later_lineages, 14),
        pytest.param(skip_the_first_step, 0, marks=pytest.mark.long),
        pytest.param(read_whole_batches, 0, marks=pytest.mark.long),
    ],
)
def test_a_package_that_is_wrong_in_one_way_is_found(
    wrong: Wrong, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(monkeypatch)
    with RestoreTarget() as target:
        _, found = check_archive(seed, tmp_path / "archive", target, cuts=6, restores=0)
    assert found.differences
