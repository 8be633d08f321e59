"""Cuts of random transactions, archived up to random positions, tear nothing that the markers and epochs of the archive tell apart."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given, settings, strategies as st
from tests.archive_reading.test_transaction_cuts import A, B, C, scanned
from tests.support.examples import examples
from tests.support.record_batches import batch, marker

from shallow_mirror.archive_format import AbortedTxn
from shallow_mirror.archive_reading.transaction_cuts import TxnScan, whole_ends
from shallow_mirror.types import SourcePartition

TXN = 0x10
PARTITIONS = (A, B, C)
LAST_EPOCH = 4
"""Behind it a producer gets another id, as brokers do behind 32766."""
NO_END = 1 << 62


@dataclass(eq=False)
class Txn:
    producer_id: int
    epoch: int
    has_own_epoch: bool
    """Of transaction.version 2."""
    is_committed: bool | None = None
    marker_epoch: int = 0
    starts: dict[SourcePartition, int] = field(default_factory=dict)
    ends: dict[SourcePartition, int] = field(default_factory=dict)
    markers: dict[SourcePartition, int] = field(default_factory=dict)


@dataclass
class Producer:
    producer_id: int
    has_version_2: bool
    epoch: int = 0
    txn: Txn | None = None


@dataclass
class Log:
    batches: list[tuple[int, int, bytes]] = field(default_factory=list)
    """Base offset, end, bytes."""
    txns: list[Txn] = field(default_factory=list)
    rows: list[tuple[int, int, tuple[AbortedTxn, ...]]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.batches[-1][1] if self.batches else 0

    @property
    def archived_end(self) -> int:
        return self.rows[-1][1] if self.rows else 0


class Model:
    """Brokers and an archive: producers write transactions, markers arrive in any order, partitions are archived up to the LSO."""

    def __init__(self, versions: list[bool]) -> None:
        self.logs = {source: Log() for source in PARTITIONS}
        self.producers = [Producer(number, has_version_2) for number, has_version_2 in enumerate(versions)]

    def run(self, random: Random, steps: int) -> None:
        for _ in range(steps):
            self.step(random.randint(0, 12), random.randint(0, 2), random.choice(PARTITIONS))
        for source in PARTITIONS:
            if random.random() < 0.5:
                self.archive(source)

    def step(self, action: int, number: int, source: SourcePartition) -> None:
        producer, log = self.producers[number % len(self.producers)], self.logs[source]
        txn = producer.txn
        if action <= 3:
            self._write(producer, source)
        elif action <= 6:
            if txn is not None and txn.is_committed is None:
                self._end(producer, txn, is_committed=action != 5, is_fenced=action == 6)
        elif action <= 9:
            if txn is not None and txn.is_committed is not None and source in txn.starts and source not in txn.markers:
                self._mark(producer, txn, source)
        elif action == 10:
            self.archive(source)
        elif action == 11:
            log.batches.append((log.end, log.end + 1, batch(log.end, 1)))
        elif txn is None:
            producer.has_version_2 = True

    def _write(self, producer: Producer, source: SourcePartition) -> None:
        txn, log = producer.txn, self.logs[source]
        if txn is None:
            txn = producer.txn = Txn(producer.producer_id, producer.epoch, producer.has_version_2)
        if txn.is_committed is not None:
            return  # the coordinator writes the markers first
        written = batch(log.end, 2, attributes=TXN, producer_id=txn.producer_id, producer_epoch=txn.epoch, base_sequence=0)
        if source not in txn.starts:
            txn.starts[source] = log.end
            log.txns.append(txn)
        log.batches.append((log.end, log.end + 2, written))
        txn.ends[source] = log.end

    def _end(self, producer: Producer, txn: Txn, *, is_committed: bool, is_fenced: bool) -> None:
        """Decide the outcome. The next epoch ends a transaction of version 2, and one whose producer the coordinator fences."""
        txn.is_committed = is_committed and not is_fenced
        txn.marker_epoch = txn.epoch + (txn.has_own_epoch or is_fenced)
        producer.epoch = txn.marker_epoch + is_fenced
        if producer.epoch > LAST_EPOCH:
            producer.producer_id, producer.epoch = producer.producer_id + 100, 0

    def _mark(self, producer: Producer, txn: Txn, source: SourcePartition) -> None:
        log = self.logs[source]
        at = txn.markers[source] = log.end
        log.batches.append(
            (at, at + 1, marker(at, int(bool(txn.is_committed)), txn.producer_id, producer_epoch=txn.marker_epoch))
        )
        if txn.markers.keys() == txn.starts.keys():
            producer.txn = None

    def archive(self, source: SourcePartition) -> None:
        """Add a row up to the last stable offset, with the aborted transactions that a Fetch response lists."""
        log = self.logs[source]
        start = log.archived_end
        end = min([txn.starts[source] for txn in log.txns if source not in txn.markers], default=log.end)
        if end <= start:
            return
        aborted = [
            AbortedTxn(txn.producer_id, txn.starts[source], at if at < end else None)
            for txn in log.txns
            if txn.is_committed is False and (at := txn.markers.get(source, -1)) >= start and txn.starts[source] < end
        ]
        log.rows.append((start, end, tuple(aborted)))

    def scan(self) -> TxnScan:
        scan = TxnScan()
        for source, log in self.logs.items():
            for start, end, aborted in log.rows:
                row = [data for base, _, data in log.batches if start <= base < end]
                scan.add(scanned(source, *row, aborted=aborted, start=start))
        return scan

    def parts(self) -> list[tuple[object, SourcePartition, int, int]]:
        """Return the parts of committed transactions, with the value that all parts of a transaction share, as far as it is known.

        Markers show whether a transaction has its epoch for itself. Without its marker it may have.
        """
        parts: list[tuple[object, SourcePartition, int, int]] = []
        for source, log in self.logs.items():
            for txn in log.txns:
                start = txn.starts[source]
                if not txn.is_committed or start >= log.archived_end:
                    continue
                is_ended = txn.markers.get(source, NO_END) < log.archived_end
                is_known = txn.has_own_epoch or not is_ended
                group = (txn.producer_id, txn.epoch) if is_known else (source, start)
                parts.append((group, source, start, txn.ends[source] if is_ended else NO_END))
        return parts


def highest_whole(
    ends: dict[SourcePartition, int], parts: list[tuple[object, SourcePartition, int, int]]
) -> dict[SourcePartition, int]:
    """Return the highest ends that tear no group, found by lowering until nothing changes."""
    lowered = dict(ends)
    while True:
        torn = {group for group, source, _, end in parts if end > lowered[source]}
        cuts = [(source, start) for group, source, start, _ in parts if group in torn and start < lowered[source]]
        if not cuts:
            return lowered
        for source, start in cuts:
            lowered[source] = min(lowered[source], start)


@pytest.mark.slow
@settings(max_examples=examples(1_000))
@given(st.integers(0, (1 << 32) - 1))
def test_random_cuts_are_the_highest_that_tear_no_transaction(seed: int) -> None:
    """The seed gives many steps that fit together, which lists of drawn steps rarely do."""
    random = Random(seed)
    model = Model([random.random() < 0.7 for _ in range(random.randint(1, 3))])
    model.run(random, steps=random.randint(5, 80))
    cut = {source: random.randint(0, log.archived_end) for source, log in model.logs.items()}
    ends = whole_ends(cut, model.scan().parts())
    assert ends == highest_whole(cut, model.parts())
    committed = [txn for log in model.logs.values() for txn in log.txns if txn.is_committed]
    for txn in committed:
        for source, start in txn.starts.items():
            assert not start < ends[source] < txn.ends[source]
        # What is archived of a transaction with an epoch of its own is whole in all partitions or in none.
        archived_starts = [(start, source) for source, start in txn.starts.items() if start < model.logs[source].archived_end]
        assert not txn.has_own_epoch or len({start < ends[source] for start, source in archived_starts}) <= 1
