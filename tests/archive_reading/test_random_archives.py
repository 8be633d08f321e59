"""Random archives against a model: whatever is asked of them, exactly the committed records in the bounds are read, each once."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.archives import ORDERS, OTHER, SmallArchive
from tests.support.record_batches import batch, marker

from shallow_mirror.archive_reading import segment_reader
from shallow_mirror.archive_reading.lookup import ArchiveReader
from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.record_reader import open_records
from shallow_mirror.archive_reading.scan_plan import plan_scan, read_part
from shallow_mirror.checkpoints.ledger import ArchiveTable
from shallow_mirror.sinks.archive import object_builder
from shallow_mirror.types import SourcePartition

pytestmark = pytest.mark.thorough

MOST_TIME_MS = 1_000
SOURCES = (ORDERS, OTHER)


@dataclass
class Transaction:
    first_offset: int
    is_aborted: bool
    records: dict[int, int] = field(default_factory=dict)


@dataclass
class ModelPartition:
    """A log: `committed` are the times of its committed records by offset. Without a marker a transaction is not aborted."""

    chance: random.Random
    end: int = 0
    committed: dict[int, int] = field(default_factory=dict)
    open_txns: dict[int, Transaction] = field(default_factory=dict)
    aborted: set[tuple[int, int]] = field(default_factory=set)
    """Aborted transactions that reach into what was written since this was emptied."""

    def write(self) -> bytes:
        """Return a few batches and markers."""
        return b"".join(self._write_one() for _ in range(self.chance.randint(1, 6)))

    def _write_one(self) -> bytes:
        if self.chance.random() < 0.2:
            self.end += self.chance.randint(1, 5)  # a hole of compaction
        kind = self.chance.choice(["plain", "plain", "transactional", "transactional", "marker"])
        if kind == "marker" and self.open_txns:
            return self._end_transaction()
        start, count, time = self.end, self.chance.randint(1, 5), self.chance.randint(0, MOST_TIME_MS)
        self.end += count
        records = dict.fromkeys(range(start, self.end), time)
        if kind == "plain":
            self.committed |= records
            return batch(start, count, timestamp=time)
        producer_id = self.chance.choice([7, 8, 9])
        txn = self.open_txns.setdefault(producer_id, Transaction(start, self.chance.random() < 0.5))
        txn.records |= records
        self._note(producer_id, txn)
        return batch(start, count, attributes=0x10, producer_id=producer_id, timestamp=time)

    def _end_transaction(self) -> bytes:
        producer_id = self.chance.choice(sorted(self.open_txns))
        txn = self.open_txns.pop(producer_id)
        self._note(producer_id, txn)
        if not txn.is_aborted:
            self.committed |= txn.records
        self.end += 1
        return marker(self.end - 1, 0 if txn.is_aborted else 1, producer_id)

    def _note(self, producer_id: int, txn: Transaction) -> None:
        if txn.is_aborted:
            self.aborted.add((producer_id, txn.first_offset))

    def all_committed(self) -> dict[int, int]:
        """Return the committed records, with those whose transaction is still open and will be committed."""
        undecided = (txn.records for txn in self.open_txns.values() if not txn.is_aborted)
        return self.committed | {offset: time for records in undecided for offset, time in records.items()}


def make_archive(folder: Path, chance: random.Random) -> tuple[SmallArchive, dict[SourcePartition, ModelPartition]]:
    archive, models = SmallArchive(folder), {source: ModelPartition(chance) for source in SOURCES}
    for _ in range(chance.randint(1, 4)):
        starts = {source: model.end for source, model in models.items()}
        for model in models.values():
            model.aborted.clear()
        responses = [
            {source: model.write() for source, model in models.items() if chance.random() < 0.7}
            for _ in range(chance.randint(1, 4))
        ]
        written = {source for response in responses for source in response}
        if written:
            archive.add_object(
                [response for response in responses if response],
                starts={source: starts[source] for source in written},
                aborted={source: sorted(models[source].aborted) for source in written},
            )
    return archive, models


@pytest.fixture(params=range(10))
def chance(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> random.Random:
    chance = random.Random(request.param)
    monkeypatch.setattr(object_builder, "INDEX_BYTES", chance.choice([50, 100, 300, 2_000]))
    monkeypatch.setattr(object_builder, "PART_BYTES", chance.choice([1, 300, 2_000, 100_000]))
    monkeypatch.setattr(segment_reader, "WINDOW_BYTES", chance.choice([1, 200, 1_000, 1_000_000]))
    return chance


def test_what_is_read_is_what_the_model_says(chance: random.Random, tmp_path: Path) -> None:
    archive, models = make_archive(tmp_path, chance)
    assert archive.rows
    table, store = ArchiveTable.open(str(archive.tables)), archive.store
    reader = ArchiveReader(table, store)
    for source, model in models.items():
        committed = model.all_committed()
        read = [record.offset for record in reader.read_records(source.topic, source.partition)]
        assert read == sorted(committed)
        for _ in range(4):
            start = chance.randint(0, model.end + 3)
            bounds = ReadBounds(
                topics=frozenset({source.topic}),
                partitions=frozenset({source.partition}),
                start_offset=start,
                end_offset=chance.randint(start, model.end + 5),
                min_timestamp_ms=chance.choice([None, chance.randint(0, MOST_TIME_MS)]),
            )
            scanned = [
                opened.record.offset
                for part in plan_scan(table, bounds, chance.choice([1, 200, 1_000_000]))
                for batches in read_part(store, part)
                for opened in open_records(batches, part.bounds)
            ]
            assert sorted(scanned) == [offset for offset, time in sorted(committed.items()) if bounds.holds(offset, time)]
        time_ms = chance.randint(0, MOST_TIME_MS)
        first = reader.find_record(source.topic, source.partition, timestamp_ms=time_ms)
        not_older = [offset for offset, time in sorted(committed.items()) if time >= time_ms]
        assert (None if first is None else first.offset) == next(iter(not_older), None)
