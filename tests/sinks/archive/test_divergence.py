"""From which offset on a truncated log differs from what was archived, and what the lineages that follow from it hold."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import groupby

import pytest
from hypothesis import given, settings, strategies as st
from tests.sinks.archive.replicas import Record, Replicas
from tests.support.examples import examples

from shallow_mirror.checkpoints.rows.lineages import PartitionLineages
from shallow_mirror.sinks.archive.divergence import ArchivedRange, Divergence, EpochHistory
from shallow_mirror.types import EpochEnd


def history(*epochs: tuple[int, int], start: int = 0, end: int = 100, rows: tuple[int, ...] = ()) -> EpochHistory:
    return EpochHistory(epochs, start, end, rows or (start,))


def found(log: EpochHistory, *epoch_ends: EpochEnd, is_compacted: bool = False) -> tuple[list[int], int | None, str]:
    """Return what is asked, the divergent offset, and why there is none."""
    divergence, asked, remaining = Divergence(log, is_compacted=is_compacted), list[int](), list(epoch_ends)
    while divergence.ask is not None:
        asked.append(divergence.ask)
        divergence.take(remaining.pop(0))
    assert not remaining
    return asked, divergence.offset, divergence.reason


def test_the_leader_knows_the_last_epoch_and_has_less_of_it() -> None:
    assert found(history((3, 0)), EpochEnd(3, 60)) == ([3], 60, "")


def test_the_leader_has_all_that_was_archived() -> None:
    assert found(history((3, 0)), EpochEnd(3, 140)) == ([3], 100, "")


def test_an_epoch_that_the_leader_names_reaches_less_far_in_the_archive() -> None:
    """KIP-101: of both ends of an epoch that both logs have, the lower one."""
    assert found(history((3, 0), (5, 40)), EpochEnd(3, 70)) == ([5], 40, "")


def test_an_epoch_that_the_archive_does_not_have_is_asked_for_again() -> None:
    """KIP-279: the leader names epoch 4, the archive has 3 below it; of that the leader has less."""
    log = history((2, 0), (3, 20), (6, 50))
    assert found(log, EpochEnd(4, 45), EpochEnd(3, 30)) == ([6, 3], 30, "")
    assert found(log, EpochEnd(4, 45), EpochEnd(2, 10)) == ([6, 3], 10, "")


def test_a_leader_without_any_of_the_archived_epochs_has_other_records_from_the_start_on() -> None:
    assert found(history((3, 10), start=10), EpochEnd(1, 5)) == ([3], 10, "")
    assert found(history((3, 0)), EpochEnd(1, 20)) == ([3], 0, "")


def test_rows_without_batches_in_front_of_the_first_epoch_belong_to_the_log_up_to_the_response() -> None:
    log = EpochHistory.of_rows([ArchivedRange(0, 50), ArchivedRange(50, 100, ((3, 50),))])
    assert found(log, EpochEnd(1, 20)) == ([3], 20, "")


@pytest.mark.parametrize(
    ("log", "epoch_ends", "reason"),
    [
        (history(), [], "no archived batch has a leader epoch"),
        (history((3, 0)), [EpochEnd(-1, -1)], "the leader does not know any leader epoch up to 3"),
    ],
)
def test_what_cannot_be_found_out_is_not_guessed(log: EpochHistory, epoch_ends: list[EpochEnd], reason: str) -> None:
    assert found(log, *epoch_ends)[1:] == (None, reason)


def test_on_compacted_topics_an_end_that_the_next_epoch_sets_is_lowered_to_its_row() -> None:
    """The last records of epoch 3 may have been removed before they were archived; the leader's log may still end in others."""
    log = history((3, 0), (5, 60), end=80, rows=(0, 40, 70))
    assert found(log, EpochEnd(3, 70), is_compacted=True) == ([5], 40, "")
    assert found(log, EpochEnd(3, 55), is_compacted=True) == ([5], 55, "")
    assert found(history((3, 0)), EpochEnd(3, 140), is_compacted=True) == ([3], 100, "")


def test_a_history_is_that_of_a_followers_cache() -> None:
    rows = [ArchivedRange(0, 10, ((-1, 0), (2, 5))), ArchivedRange(10, 20, ((2, 10), (4, 12))), ArchivedRange(20, 30, ((3, 20),))]
    log = EpochHistory.of_rows(rows)
    assert (log.epochs, log.start, log.end) == (((2, 5), (3, 20)), 0, 30)
    clipped = EpochHistory.of_rows([ArchivedRange(10, 12, ((2, 10), (4, 12)))])
    assert clipped.epochs == ((2, 10),)
    assert [log.last_below(offset) for offset in (5, 6, 20, 21)] == [None, 2, 2, 3]


@dataclass
class Row:
    lineage: int
    start: int
    records: list[Record] | None
    """None: expired at the source."""
    length: int = 0

    @property
    def end(self) -> int:
        return self.start + (self.length if self.records is None else len(self.records))


@dataclass
class ModelArchive:
    """Captures as the archive does, one row at a time. `logs`: of former lineages, as they were."""

    rows: list[Row] = field(default_factory=list)
    position: int = 0
    lineage: int = 0
    last: EpochEnd | None = None
    logs: list[dict[int, Record | None]] = field(default_factory=list)

    def view(self, lineage: int | None = None) -> dict[int, Record | None]:
        lineages = PartitionLineages()
        for row in self.rows:
            lineages.add_start(row.lineage, row.start)
        view = lineages.view(lineage)
        log: dict[int, Record | None] = {}
        for row in self.rows:
            part = view.part_of(row.lineage, row.start, row.end)
            for offset in range(*part) if part is not None else ():
                assert offset not in log
                log[offset] = None if row.records is None else row.records[offset - row.start]
        return log

    def history(self) -> EpochHistory:
        runs = []
        for offset, record in sorted(self.view().items()):
            runs.append(ArchivedRange(offset, offset + 1, () if record is None else ((record.leader_epoch, offset),)))
        return EpochHistory.of_rows([*runs, ArchivedRange(self.position, self.position)])

    def capture(self, replicas: Replicas, most: int) -> bool:
        """Return whether a row with records was archived."""
        leader = replicas.leader
        if self.position < leader.start:
            self.rows.append(Row(self.lineage, self.position, None, leader.start - self.position))
            self.position = leader.start
        new = leader.records[self.position - leader.start :][:most] if self.position <= leader.end else []
        if leader.end < self.position or (new and self.is_truncated(replicas, new[0])):
            return self.begin_lineage(replicas)
        if new:
            for _, run in groupby(new, key=lambda record: record.leader_epoch):
                records = list(run)
                self.rows.append(Row(self.lineage, self.position, records))
                self.position += len(records)
            self.last = EpochEnd(new[-1].leader_epoch, self.position)
        return bool(new)

    def is_truncated(self, replicas: Replicas, first: Record) -> bool:
        """As `sinks/slots/truncation_check.py`."""
        if self.last is None or self.last.leader_epoch == first.leader_epoch:
            return False
        epoch_end = replicas.leader.end_of(self.last.leader_epoch)
        return epoch_end.leader_epoch != self.last.leader_epoch or epoch_end.end < self.last.end

    def begin_lineage(self, replicas: Replicas) -> bool:
        log = self.history()
        divergence = Divergence(log)
        while divergence.ask is not None:
            divergence.take(replicas.leader.end_of(divergence.ask))
        if divergence.offset is None or divergence.offset >= self.position:
            self.last = None  # the existing rule: it waits, or continues at its position
            return False
        self.logs.append(self.view())
        self.lineage, self.position = self.lineage + 1, divergence.offset
        epoch = log.last_below(self.position)
        self.last = None if epoch is None else EpochEnd(epoch, self.position)
        self.rows.append(Row(self.lineage, self.position, []))
        return False


@pytest.mark.slow
@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 1 << 32), st.booleans())
def test_whatever_leaders_come_back_the_newest_lineage_is_the_log_and_every_former_one_stays(seed: int, deletes: bool) -> None:
    random_ = random.Random(seed)
    replicas, archive = Replicas(3), ModelArchive()
    for _ in range(random_.randrange(5, 40)):
        match random_.choice(("write", "write", "follow", "follow", "elect", "capture", "capture", "delete")):
            case "write":
                replicas.write(random_.randrange(1, 5))
            case "follow":
                replicas.follow(random_.randrange(3), random_.choice((1, 3, 100)))
            case "elect":
                replicas.elect(random_.randrange(3))
            case "delete" if deletes:
                replicas.delete_before(random_.randrange(replicas.leader.start, replicas.leader.end + 1))
            case "capture":
                if archive.capture(replicas, random_.choice((1, 2, 100))):
                    leader, log = replicas.leader, archive.view()
                    now = {leader.start + at: record for at, record in enumerate(leader.records)}
                    # A replica may come back with records that the leader before it had deleted: they stay expired.
                    expected = {at: record for at, record in now.items() if at < archive.position and log[at] is not None}
                    assert {at: record for at, record in log.items() if at >= leader.start and record is not None} == expected
        for lineage, log in enumerate(archive.logs):
            assert archive.view(lineage) == log
