"""Batches in quarantine, and batches that were released: what `verify` counts, and what it finds."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from deltalake import DeltaTable, write_deltalake
from tests.support.record_batches import batch, record
from tests.verify.mirrored import Mirrored, changed, data_positions, flipped, replace

from shallow_mirror.checkpoints.logs.quarantined_batches import QUARANTINE_TABLE
from shallow_mirror.checkpoints.rows.schema import table_uri
from shallow_mirror.verify import Unchecked

pytestmark = pytest.mark.thorough

BASE_TIMESTAMP_POS = 27


def written(base_offset: int, count: int = 2) -> bytes:
    return batch(base_offset, count, payload=b"".join(record(n, b"k", b"%d" % (base_offset + n)) for n in range(count)))


@pytest.fixture
def mirrored(tmp_path: Path) -> Iterator[Mirrored]:
    """Five batches of two records; those at 2 and 6 are in quarantine, the first of them damaged."""
    with Mirrored(tmp_path) as made:
        made.poison = {2, 6}
        made.mirror(written(0), flipped(written(2), 64), written(4), written(6), written(8))
        yield made


@pytest.mark.parametrize("is_deep", [False, True])
def test_what_is_in_quarantine_is_counted_and_what_was_released_is_compared(mirrored: Mirrored, is_deep: bool) -> None:
    report = mirrored.verify(is_deep=is_deep)
    assert (report.is_equal, report.record_count, dict(report.unchecked)) == (True, 6, {Unchecked.QUARANTINED: 4})
    assert any(sentence.startswith("not copied: 4 source offsets in quarantine") for sentence in report.sentences())
    mirrored.release(6)
    mirrored.mirror(written(10))
    report = mirrored.verify(is_deep=is_deep)
    assert (report.is_equal, report.record_count, dict(report.unchecked)) == (True, 8, {Unchecked.QUARANTINED: 2})


def test_the_source_s_retention_leaves_the_quarantine_as_the_only_place(mirrored: Mirrored) -> None:
    mirrored.source_log.delete_records_before(8)
    report = mirrored.verify()
    assert (report.is_equal, dict(report.unchecked)) == (True, {Unchecked.QUARANTINED: 4, Unchecked.SOURCE_DELETED: 4})


def test_the_target_s_retention_is_reported_of_released_records_as_well(mirrored: Mirrored) -> None:
    mirrored.release(6)
    mirrored.target_log.delete_records_before(8)
    report = mirrored.verify()
    assert (report.difference_counts, report.uncovered) == ({}, ("no record could be compared",))
    assert dict(report.unchecked) == {Unchecked.QUARANTINED: 2, Unchecked.TARGET_DELETED: 7}


def lose_the_row(mirrored: Mirrored) -> None:
    DeltaTable(table_uri(mirrored.config.tables, QUARANTINE_TABLE)).delete("source_start = 6")


def change_the_row(mirrored: Mirrored) -> None:
    table = DeltaTable(table_uri(mirrored.config.tables, QUARANTINE_TABLE))
    table.update(updates={"batch_crc32c": "7"}, predicate="source_start = 6")


def change_the_source(mirrored: Mirrored) -> None:
    (at,) = (i for i, batch in enumerate(mirrored.source_log.batches) if batch.header.base_offset == 6)
    replace(mirrored.source_log, at, changed(mirrored.source_log.batches[at].data, BASE_TIMESTAMP_POS, struct.pack(">q", 9)))


def _released(mirrored: Mirrored) -> int:
    mirrored.release(6)
    return data_positions(mirrored.target_log)[-1]


def change_the_copy(mirrored: Mirrored) -> None:
    at = _released(mirrored)
    copy = mirrored.target_log.batches[at].data
    replace(mirrored.target_log, at, changed(copy, copy.index(b"7", 61), b"x"))


def lose_the_copy(mirrored: Mirrored) -> None:
    replace(mirrored.target_log, _released(mirrored), None)


def name_another(mirrored: Mirrored) -> None:
    """Of a batch that was copied as it was; its copy is there."""
    _released(mirrored)
    moved = {name: f"{name} + 2" for name in ("source_start", "source_end")}
    mirrored.plant_in_map(lambda table: table.update(updates=moved, predicate="kind = 'released'"))


def name_it_twice(mirrored: Mirrored) -> None:
    _released(mirrored)
    mirrored.plant_in_map(lambda table: write_deltalake(table, _rows_of(table, "released"), mode="append"))


def _rows_of(table: DeltaTable, kind: str) -> pa.Table:
    return table.to_pyarrow_dataset().to_table(filter=pc.field("kind") == kind)


@pytest.mark.parametrize(
    ("spoil", "kind", "reason"),
    [
        (lose_the_row, "missing", "row was deleted"),
        (change_the_row, "missing", "other bytes than were quarantined"),
        (change_the_source, "changed", "another batch there than the table quarantine"),
        (change_the_copy, "changed", "of a released batch: the value differs"),
        (lose_the_copy, "missing", "it was released, but the target shows no record there"),
        (name_another, "extra", "and not that they were quarantined"),
        (name_it_twice, "extra", "two rows of the map say that they were released"),
    ],
)
def test_what_is_wrong_with_a_batch_of_the_quarantine_is_reported_once(
    mirrored: Mirrored, spoil: Callable[[Mirrored], None], kind: str, reason: str
) -> None:
    spoil(mirrored)
    report = mirrored.verify()
    assert {difference.kind.value for difference in report.differences if reason in difference.reason} == {kind}, (
        report.sentences()
    )
    assert all(reason in difference.reason for difference in report.differences), report.sentences()
