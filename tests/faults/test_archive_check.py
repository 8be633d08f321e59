"""The checker of archives is shown bad archives, each bad in one way, and has to say which."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import crc32c
import pytest
from tests.faults.archive_check import (
    ArchivedRow,
    Batch,
    SourceLog,
    batches_of,
    differences_of,
    lineage_differences,
    object_differences,
    orphans,
    retention_differences,
    unkept_promises,
)
from tests.faults.writers import Outcome, Written

from shallow_mirror.types import TopicPartition

ORDERS_0 = TopicPartition("orders", 0)
OBJECT, OTHER = "a/00000001/0000000001-0000-00-aaaaaaaa.batches", "a/00000001/0000000002-0000-00-bbbbbbbb.batches"
COMMIT, ABORT = 1, 0
PRODUCER = 4711


def batch(base_offset: int, records: int, *, attributes: int = 0, producer_id: int = -1, body: bytes = b"records") -> bytes:
    """Return a batch of version 2 whose body is not read."""
    length = 49 + len(body)
    fields = (base_offset, length, 0, 2, 0, attributes, records - 1, 0, 0, producer_id, 0, 0, records)
    return struct.pack(">qiiBIhiqqqhii", *fields) + body


def marker(offset: int, kind: int) -> bytes:
    body = bytes([32, 0, 0, 0, 8]) + struct.pack(">hh", 0, kind) + b"value"
    return batch(offset, 1, attributes=0x30, producer_id=PRODUCER, body=body)


def transactional(base_offset: int, records: int) -> bytes:
    return batch(base_offset, records, attributes=0x10, producer_id=PRODUCER)


DATA = [
    batch(0, 4),
    transactional(4, 2),
    marker(6, ABORT),
    transactional(7, 3),
    marker(10, COMMIT),
    batch(11, 5, body=b"more records"),
]
SOURCE = batches_of(b"".join(DATA))
FIRST, SECOND = b"".join(DATA[:3]), b"".join(DATA[3:])


def row(start: int, end: int, name: str, stored: bytes, position: int, records: int, **fields: object) -> ArchivedRow:
    made = ArchivedRow(
        topic_partition=ORDERS_0,
        start=start,
        end=end,
        kind="data",
        state="COPY_SEGMENT_FINISHED",
        object_name=name,
        size_bytes=len(stored),
        record_count=records,
        crc32c=crc32c.crc32c(stored),
        index=((batches_of(stored)[0].base_offset, position, len(stored)),),
    )
    return replace(made, **fields)  # type: ignore[arg-type]


ROWS = [
    ArchivedRow(topic_partition=ORDERS_0, start=0, end=0, kind="gap", state="COPY_SEGMENT_FINISHED"),
    row(0, 7, OBJECT, FIRST, 100, 6, aborted=((PRODUCER, 4, 6),)),
    row(7, 16, OTHER, SECOND, 0, 8),
]
FILES = {OBJECT: bytes(100) + FIRST + b"footer", OTHER: SECOND + b"footer"}


def kinds(differences: Sequence[str]) -> list[str]:
    return sorted({difference.partition(":")[0] for difference in differences})


def with_second(**fields: object) -> list[ArchivedRow]:
    return [*ROWS[:2], replace(ROWS[2], **fields)]  # type: ignore[arg-type]


def holding(*batches: bytes) -> tuple[list[ArchivedRow], dict[str, bytes]]:
    """Return the archive whose second row is right about the batches that its object holds."""
    stored = b"".join(batches)
    return [*ROWS[:2], row(7, 16, OTHER, stored, 0, 8)], {**FILES, OTHER: stored}


def test_an_equal_archive_has_no_difference() -> None:
    assert differences_of(ROWS, FILES, SOURCE) == []
    assert object_differences(ROWS) == []
    assert orphans(ROWS, FILES) == []


def test_a_row_behind_which_a_transaction_ends_names_no_end() -> None:
    rows = [ROWS[0], row(0, 6, OBJECT, b"".join(DATA[:2]), 100, 6, aborted=((PRODUCER, 4, None),))]
    assert differences_of(rows, FILES, SOURCE) == []


@pytest.mark.parametrize(
    ("stored", "expected"),
    [
        (DATA[4:], ["lost"]),
        (DATA[3:5], ["lost"]),
        ([DATA[3], DATA[4], DATA[4], DATA[5]], ["twice"]),
        ([DATA[3], DATA[5], DATA[4]], ["reordered"]),
        ([DATA[3], DATA[4], DATA[5][:-1] + b"x"], ["changed"]),
        ([DATA[2], *DATA[3:]], ["extra"]),
    ],
)
def test_a_bad_object_of_a_right_row_is_named_by_what_is_bad_about_it(stored: Sequence[bytes], expected: Sequence[str]) -> None:
    rows, files = holding(*stored)
    found = kinds(differences_of(rows, files, SOURCE))
    assert [kind for kind in found if kind != "changed" or "changed" in expected] == [*expected]


@pytest.mark.parametrize("at", [0, 30, len(SECOND) - 1])
def test_a_wrong_byte_is_found(at: int) -> None:
    damaged = bytearray(FILES[OTHER])
    damaged[at] ^= 1
    assert "changed" in kinds(differences_of(ROWS, {**FILES, OTHER: bytes(damaged)}, SOURCE))


def test_an_object_that_is_missing_or_too_short_is_found() -> None:
    assert kinds(differences_of(ROWS, {OBJECT: FILES[OBJECT]}, SOURCE)) == ["lost"]
    assert "lost" in kinds(differences_of(ROWS, {**FILES, OTHER: SECOND[:-1]}, SOURCE))


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([ROWS[0], ROWS[2]], "hole"),
        (ROWS[2:], "hole"),
        ([*ROWS, ROWS[2]], "twice"),
        ([*ROWS[:2], replace(ROWS[1], start=4), ROWS[2]], "twice"),
        (with_second(kind="gap"), "lost"),
        (with_second(crc32c=1), "changed"),
        (with_second(record_count=9), "changed"),
        (with_second(size_bytes=1), "changed"),
        (with_second(index=((8, 0, len(SECOND)),)), "changed"),
        ([ROWS[0], replace(ROWS[1], aborted=()), ROWS[2]], "aborted but visible"),
        ([ROWS[0], replace(ROWS[1], aborted=((PRODUCER, 4, 5),)), ROWS[2]], "changed"),
        (with_second(aborted=((PRODUCER, 7, 10),)), "lost"),
    ],
)
def test_a_bad_table_is_named_by_what_is_bad_about_it(rows: Sequence[ArchivedRow], expected: str) -> None:
    assert expected in kinds(differences_of(rows, FILES, SOURCE))


def test_a_range_of_an_object_that_two_rows_name_is_found() -> None:
    rows = [*ROWS, replace(ROWS[2], start=16, end=25, index=((16, len(SECOND) - 1, 10),))]
    assert kinds(object_differences(rows)) == ["twice"]


def test_a_file_that_no_row_names_is_an_orphan_and_so_is_that_of_a_deleted_row() -> None:
    hidden = "a/00000001/.0000000003-0000-00-cccccccc.batches.01234567.unfinished"
    assert orphans(ROWS, {**FILES, hidden: b""}) == [f"orphan: {hidden}"]
    assert orphans(with_second(state="DELETE_SEGMENT_FINISHED"), FILES) == [f"orphan: {OTHER}"]
    assert orphans(with_second(state="DELETE_SEGMENT_STARTED"), FILES) == []


def test_what_a_run_wrote_since_its_last_decision_is_no_orphan_until_the_next_one_or_another_run() -> None:
    pending = "a/00000001/0000000003-0000-00-cccccccc.batches"
    assert orphans(ROWS, {**FILES, pending: b""}, 1) == []
    assert orphans(ROWS, {**FILES, pending: b""}, 2) == [f"orphan: {pending}"]
    earlier = OTHER.replace("bbbbbbbb", "cccccccc")
    assert orphans(ROWS, {**FILES, earlier: b""}, 1) == [f"orphan: {earlier}"]


def test_a_segment_that_expired_needs_no_file_and_still_covers_its_offsets() -> None:
    assert differences_of(with_second(state="DELETE_SEGMENT_FINISHED"), {OBJECT: FILES[OBJECT]}, SOURCE) == []


def test_more_must_be_left_than_the_retention_keeps() -> None:
    rows = [ROWS[0], replace(ROWS[1], state="DELETE_SEGMENT_FINISHED"), ROWS[2]]
    assert retention_differences(rows, {"orders": len(SECOND)}) == []
    assert kinds(retention_differences(rows, {"orders": len(SECOND) + 1})) == ["lost"]
    assert kinds(retention_differences(rows, {})) == ["lost"]


@pytest.mark.parametrize(("offset", "expected"), [(0, []), (6, []), (7, ["lost"]), (15, ["lost"])])
def test_an_acknowledged_record_that_no_row_of_data_has_is_lost(offset: int, expected: Sequence[str]) -> None:
    written = Written(topic_partition=ORDERS_0, offset=offset, digest=b"", outcome=Outcome.OK)
    assert kinds(unkept_promises(with_second(kind="gap"), [written])) == expected
    assert unkept_promises(ROWS, [replace(written, outcome=Outcome.UNKNOWN)]) == []


def read_in_turn(folder: Path, *contents: bytes) -> list[tuple[Batch, ...]]:
    log = SourceLog(folder)
    (folder / "orders-0").mkdir()
    read = []
    for content in contents:
        (folder / "orders-0" / "00000000000000000000.log").write_bytes(content)
        read.append(tuple(log.batches(ORDERS_0)))
    return read


def test_a_log_is_read_as_it_grows_without_the_batch_that_is_being_written(tmp_path: Path) -> None:
    partial, whole = read_in_turn(tmp_path, FIRST + DATA[3][:-1], FIRST + SECOND)
    assert partial == tuple(SOURCE[:3])
    assert whole == tuple(SOURCE)


def test_markers_are_distinguished() -> None:
    assert [made.is_abort_marker for made in SOURCE] == [False, False, True, False, False, False]


NEW_LOG = batches_of(b"".join([*DATA[:3], batch(7, 2, body=b"other records")]))
THIRD = NEW_LOG[-1].data
NEXT = "a/00000001/0000000003-0000-00-cccccccc.batches"
OF_NEXT_LINEAGE = [
    ArchivedRow(topic_partition=ORDERS_0, start=7, end=7, kind="gap", state="COPY_SEGMENT_FINISHED", lineage=1),
    row(7, 9, NEXT, THIRD, 0, 2, lineage=1),
]
ALL_FILES = {**FILES, NEXT: THIRD + b"footer"}


def test_each_lineage_is_its_own_log_from_where_it_begins() -> None:
    assert lineage_differences([*ROWS, *OF_NEXT_LINEAGE], ALL_FILES, [SOURCE, NEW_LOG]) == []
    assert lineage_differences(ROWS, FILES, [SOURCE]) == []


@pytest.mark.parametrize(
    ("rows", "logs", "expected"),
    [
        (ROWS, [SOURCE, NEW_LOG], ["lineage"]),
        ([*ROWS, *OF_NEXT_LINEAGE], [SOURCE], ["lineage"]),
        ([*ROWS[:2], *OF_NEXT_LINEAGE], [SOURCE[:2], NEW_LOG], ["extra", "lost"]),
        ([*ROWS[:1], *OF_NEXT_LINEAGE], [SOURCE, NEW_LOG], ["hole"]),
        ([*ROWS, *OF_NEXT_LINEAGE], [batches_of(DATA[0] + DATA[3]), NEW_LOG], ["lost"]),
    ],
    ids=["none", "too many", "shorter log", "behind the end", "differs before"],
)
def test_lineages_that_do_not_fit_their_logs_are_found(
    rows: list[ArchivedRow], logs: list[Sequence[Batch]], expected: list[str]
) -> None:
    assert set(expected) <= set(kinds(lineage_differences(rows, ALL_FILES, logs)))


def test_an_acknowledged_record_may_be_in_any_lineage() -> None:
    written = Written(topic_partition=ORDERS_0, offset=15, digest=b"", outcome=Outcome.OK)
    assert unkept_promises([*ROWS, *OF_NEXT_LINEAGE], [written]) == []
    assert kinds(unkept_promises(OF_NEXT_LINEAGE, [written])) == ["lost"]


def test_a_source_log_that_is_truncated_keeps_what_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "orders-0"
    folder.mkdir()
    log = SourceLog(tmp_path)
    (folder / "0.log").write_bytes(b"".join(DATA))
    log.before_truncation(ORDERS_0)
    (folder / "0.log").write_bytes(b"".join(batch.data for batch in NEW_LOG))
    assert [[batch.data for batch in each] for each in log.logs(ORDERS_0)] == [DATA, [batch.data for batch in NEW_LOG]]
