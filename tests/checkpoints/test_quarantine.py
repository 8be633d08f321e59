"""Which batches are in quarantine: the map decides, the table beside it holds them, in a folder and in a catalog."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.checkpoints.map_rows import NEWER, SOURCE, TARGET, TXN, data, run_of
from tests.support.record_batches import batch

from shallow_mirror.checkpoints import DecidedSegment, Removal
from shallow_mirror.checkpoints.ledger import LedgerOwner
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.logs.quarantine import Quarantine, QuarantineTable
from shallow_mirror.checkpoints.logs.quarantined_batches import QUARANTINE_TABLE, batch_of, is_whole
from shallow_mirror.checkpoints.rows.schema import table_uri
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.errors import OffsetMapConflictError
from shallow_mirror.types import Segment, SegmentKind, SlotTxn

RAW = batch(0, 3, timestamp=77)


def kept(start: int, end: int, raw: bytes = RAW, rule: str = "too old") -> QuarantinedBatch:
    return QuarantinedBatch(
        source=SOURCE, source_start=start, source_end=end, target=TARGET, error_name="INVALID_TIMESTAMP", rule=rule,
        remedy="Set a limit", batch=raw,
    )  # fmt: skip


def row(kind: SegmentKind, start: int, end: int, target_start: int | None = None, txn: SlotTxn | None = TXN) -> DecidedSegment:
    target_end = None if target_start is None else target_start + end - start
    segment = Segment(
        source=SOURCE, source_start=start, source_end=end, kind=kind, target=TARGET, target_start=target_start,
        target_end=target_end, record_count=end - start, batch_count=1, size_bytes=len(RAW),
    )  # fmt: skip
    return DecidedSegment(segment, txn)


@dataclass
class Storage:
    tables: str

    def owner(self, run: str = "one") -> LedgerOwner:
        owner = LedgerOwner.take_over(
            self.tables, name="m", source_cluster_id="S", target_cluster_id="T", run=run_of(run), now_ms=lambda: 5_000
        )
        owner.settle()
        return owner

    @property
    def table(self) -> QuarantineTable:
        return QuarantineTable.open(self.tables)

    def read(self) -> Quarantine:
        return Quarantine.open(self.tables)


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(str(tmp_path))


def decide(owner: LedgerOwner, *rows: DecidedSegment) -> None:
    owner.next_decision()
    owner.decide(rows, highest_slot=0)


@pytest.mark.slow
def test_a_batch_is_in_quarantine_once_it_is_settled_and_until_it_is_released(storage: Storage) -> None:
    owner = storage.owner()
    assert storage.read().entries() == ()
    storage.table.add([kept(0, 3, rule="of a decision that was never made"), kept(9, 12)], decision=2)
    assert storage.read().entries() == ()
    storage.table.add([kept(0, 3), kept(3, 6, b"\xff" * 70)], decision=4)
    decide(owner, row(SegmentKind.QUARANTINED, 0, 3), row(SegmentKind.QUARANTINED, 3, 6), data(6, 8))
    assert storage.read().entries() == ()
    owner.settle()
    quarantine = storage.read()
    first, second = quarantine.entries()
    assert (first.key, second.key) == (kept(0, 3).key, kept(3, 6).key)
    assert [entry.is_released for entry in (first, second)] == [False, False]
    assert [quarantine.batch(entry) for entry in (first, second)] == [kept(0, 3), kept(3, 6, b"\xff" * 70)]
    assert first.described is not None
    assert {name: first.described[name] for name in ("rule", "size_bytes", "base_timestamp_ms", "records_count")} == {
        "rule": "too old",
        "size_bytes": len(RAW),
        "base_timestamp_ms": 77,
        "records_count": 3,
    }
    assert "batch" not in first.described
    decide(owner, row(SegmentKind.RELEASED, 0, 1, 300, NEWER), row(SegmentKind.RELEASED, 2, 3, 301, NEWER))
    assert not storage.read().entries()[0].is_released
    owner.settle()
    first, second = storage.read().entries()
    assert [(segment.source_start, segment.target_start) for segment in first.released] == [(0, 300), (2, 301)]
    assert not second.is_released
    assert storage.read().entries((Comparison("source_topic", "=", "others"),)) == ()


@pytest.mark.slow
def test_a_release_that_is_removed_again_leaves_everything_as_it_was(storage: Storage) -> None:
    owner = storage.owner()
    storage.table.add([kept(0, 3)], decision=2)
    decide(owner, row(SegmentKind.QUARANTINED, 0, 3), data(3, 5))
    owner.settle()
    before = owner.positions()
    decide(owner, row(SegmentKind.RELEASED, 0, 3, 300, NEWER))
    assert owner.positions() == {source: replace(position, target_end=303) for source, position in before.items()}
    owner.settle()
    later = storage.owner("two")
    assert later.positions() == owner.positions()
    later.settle([Removal(NEWER)])
    assert later.positions() == before
    assert [entry.is_released for entry in storage.read().entries()] == [False]


@pytest.mark.parametrize(
    "wrong", [row(SegmentKind.RELEASED, 3, 6, 300), row(SegmentKind.RELEASED, 0, 3), row(SegmentKind.QUARANTINED, 3, 6, 300)]
)
def test_what_was_never_accounted_for_is_not_released_and_what_is_quarantined_has_no_target_offset(
    storage: Storage, wrong: DecidedSegment
) -> None:
    owner = storage.owner()
    decide(owner, row(SegmentKind.QUARANTINED, 0, 3))
    owner.settle()
    with pytest.raises(OffsetMapConflictError):
        decide(owner, wrong)


@pytest.mark.slow
def test_a_table_that_has_lost_a_batch_or_holds_other_bytes_is_named(storage: Storage) -> None:
    owner = storage.owner()
    storage.table.add([kept(0, 3), kept(3, 6)], decision=2)
    decide(owner, row(SegmentKind.QUARANTINED, 0, 3), row(SegmentKind.QUARANTINED, 3, 6))
    owner.settle()
    table = DeltaTable(table_uri(storage.tables, QUARANTINE_TABLE))
    table.delete("source_start = 0")
    table.update(updates={"batch_crc32c": "1"}, predicate="source_start = 3")
    quarantine = storage.read()
    lost, changed = quarantine.entries()
    assert (lost.described, changed.described is None) == (None, False)
    with pytest.raises(OffsetMapConflictError, match=r"^orders-0, offsets 0 to 2: .* row was deleted"):
        quarantine.batch(lost)
    with pytest.raises(OffsetMapConflictError, match=r"^orders-0, offsets 3 to 5: .* other bytes"):
        quarantine.batch(changed)


@pytest.mark.spark
@pytest.mark.long
def test_in_a_catalog_the_table_is_made_by_the_first_batch_and_holds_its_bytes(spark: Any, tmp_path: Path) -> None:
    schema = "spark_catalog.kept"
    spark.sql(f"CREATE SCHEMA {schema} LOCATION '{tmp_path}/schema'")
    table = QuarantineTable.open(TableStorage(f"catalog:{schema}", spark))
    storage = (Comparison("source_topic", "=", SOURCE.topic), Comparison("source_start", "=", 3))
    assert table.described(storage) == []
    table.add([kept(0, 3), kept(3, 6, b"\xff" * 70)], decision=2)
    (described,) = table.described(storage)
    assert (described["decision"], described["size_bytes"], "batch" in described) == (2, 70, False)
    (whole,) = table.whole(storage)
    assert is_whole(whole)
    assert batch_of(whole) == kept(3, 6, b"\xff" * 70)
    spark.sql(f"DROP SCHEMA {schema} CASCADE")
