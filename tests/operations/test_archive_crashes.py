"""Capture, expiry and cleaning in a random order, each interrupted anywhere: nothing is lost, nothing is left.

At any of these points the table may be lost: the rebuilt one has the same rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.examples import examples
from tests.support.record_batches import batch

from shallow_mirror.checkpoints import DecidedSegment, first_rows_at
from shallow_mirror.checkpoints.ledger import EVERY_STATE, ArchiveTable
from shallow_mirror.checkpoints.rows import ArchiveRow, SegmentState
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.operations.archive.adopt import adopt
from shallow_mirror.operations.archive.clean import clean
from shallow_mirror.operations.archive.expire import expire
from shallow_mirror.operations.archive.rebuild import rebuild
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.sinks import RowCopies
from shallow_mirror.types import Segment, SegmentKind, SourcePartition, TargetPartition

pytestmark = pytest.mark.thorough

SECOND = SourcePartition("payments", "paypaypaypaypaypaypayA", 0)
HOUR_MS = 3_600_000
STEPS = 16
POINTS = ("expire.started", "expire.copied", "expire.deleted", "expire.finished")
_STARTED, _FINISHED, _VISIBLE = (
    SegmentState.DELETE_SEGMENT_STARTED,
    SegmentState.DELETE_SEGMENT_FINISHED,
    SegmentState.COPY_SEGMENT_FINISHED,
)


class KilledError(Exception):
    pass


class Rounds:
    """`committed`: what the archive accounts for, by partition."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.config = archive_config(folder, retention={"orders": {"keep": "5 hours"}, "payments": {"keep": "9 hours"}})
        self.now_ms = NOW_MS
        self.committed = {ORDERS: 0, SECOND: 0}
        ArchiveOfTest(self.config, now_ms=self.now_ms).decide(
            *first_rows_at(self.committed, lambda source: TargetPartition(*source))
        )

    def capture(self) -> None:
        """Run one or two decisions; the last one may be killed in front of its commit, with an object and a file half written."""
        archive = ArchiveOfTest(self.config, now_ms=self.now_ms)
        for _ in range(self.random.randrange(1, 3)):
            sources = self.random.sample([ORDERS, SECOND], self.random.randrange(1, 3))
            counts = {source: self.random.randrange(1, 5) for source in sources}
            batches = {source: [batch(self.committed[source], count)] for source, count in counts.items()}
            if self.random.random() < 0.3:  # one object for each partition, which expire on their own
                rows = [row for at, source in enumerate(sources) for row in archive.write({source: batches[source]}, slot=at)]
            else:
                for _ in range(self.random.choice([0, 0, 1])):
                    archive.write(batches)  # a try that is given up
                rows = archive.write(batches)
            if self.random.random() < 0.3:
                name = rows[0].stored.object_name if rows[0].stored is not None else ""
                archive.store.writer(name.replace(".batches", "").rpartition("-")[0] + "-deadbeef.batches").write(b"half")
                return
            self._decide(archive, rows)
            for source, count in counts.items():
                self.committed[source] += count

    def capture_all(self) -> None:
        """Run a decision that has whatever killed ones had read."""
        archive = ArchiveOfTest(self.config, now_ms=self.now_ms)
        for source in self.committed:
            self._decide(archive, archive.write({source: [batch(self.committed[source], 5)]}))
            self.committed[source] += 5

    def skip_expired(self) -> None:
        """Decide offsets that had expired at the source: no object has them."""
        archive, source = ArchiveOfTest(self.config, now_ms=self.now_ms), self.random.choice([ORDERS, SECOND])
        position = archive.owner.positions()[source]
        segment = Segment(
            source=source,
            source_start=position.offset,
            source_end=position.offset + self.random.randrange(1, 9),
            kind=SegmentKind.EXPIRED,
            target=TargetPartition(*source),
            lineage=position.lineage,
        )
        archive.owner.next_decision()
        self._decide(archive, [DecidedSegment(segment, None)])
        self.committed[source] = segment.source_end

    def truncate(self) -> None:
        """Begin the next lineage of a partition, whose log the source lost from some offset on."""
        self.capture_all()  # what a killed run read of the former log would count as committed
        archive, source = ArchiveOfTest(self.config, now_ms=self.now_ms), self.random.choice([ORDERS, SECOND])
        self.committed[source] -= self.random.randrange(0, 5)
        archive.begin_lineage(source, self.committed[source])

    def _decide(self, archive: ArchiveOfTest, rows: list[DecidedSegment]) -> None:
        archive.owner.decide(rows, highest_slot=-1)
        archive.owner.settle()
        self.now_ms += HOUR_MS

    def expire(self) -> None:
        point = self.random.choice([*POINTS, ""])

        def kill(passed: str) -> None:
            if passed == point:
                raise KilledError

        try:
            expire(self.config, takes_over=True, now_ms=lambda: self.now_ms, observer=kill)
        except KilledError:
            assert point

    def clean(self) -> None:
        clean(self.config, older_than_s=0)


def acts_of(rounds: Rounds) -> list[Callable[[], None]]:
    return [rounds.capture, rounds.capture, rounds.capture, rounds.expire, rounds.clean, rounds.skip_expired, rounds.truncate]


def ends(config: ArchiveConfig) -> dict[SourcePartition, int]:
    return {source: position.offset for source, position in ArchiveTable.open(config.tables).positions().items()}


class Row(NamedTuple):
    source: SourcePartition
    lineage: int
    start: int
    end: int
    kind: SegmentKind
    state: SegmentState


def rows_of(config: ArchiveConfig, state_of: Callable[[ArchiveRow], SegmentState] = lambda row: row.state) -> list[Row]:
    segments = ((row.segment, state_of(row)) for row in ArchiveTable.open(config.tables).segments(states=EVERY_STATE))
    return [Row(part.source, part.lineage, part.source_start, part.source_end, part.kind, state) for part, state in segments]


def rows_after_loss(config: ArchiveConfig) -> list[Row]:
    """Return the rows of the table as objects and copies tell of them: a deletion counts once its rows are copied."""
    store = ObjectStore.open(config.objects)
    table = ArchiveTable.open(config.tables)
    copied = set(RowCopies(store, table.archive_id).read()["object_name"].to_pylist())

    def state_of(row: ArchiveRow) -> SegmentState:
        if row.state is _VISIBLE or row.stored is None:
            return row.state
        if store.size(row.stored.object_name) is None:
            return _FINISHED
        assert row.state is _STARTED
        return _STARTED if row.stored.object_name in copied else _VISIBLE

    return rows_of(config, state_of)


def require_equal_rebuilt(rounds: Rounds, folder: Path) -> ArchiveConfig:
    """Objects of a last decision that was killed count as committed, behind the rows of the table."""
    new = rounds.config.model_copy(update={"tables": str(folder), "checkpoint": str(folder / "_spark")})
    rebuild(rounds.config, new.tables)
    rows, expected = rows_of(new), rows_after_loss(rounds.config)
    lineages = {source: position.lineage for source, position in ArchiveTable.open(rounds.config.tables).positions().items()}
    positions = ends(rounds.config)
    behind = [row for row in rows if row.lineage == lineages[row.source] and row.start >= positions[row.source] < row.end]
    assert [row for row in rows if row not in behind] == expected
    return new


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(1, examples(3)))])
def test_after_any_crashes_the_archive_is_whole_and_nothing_is_left_over(tmp_path: Path, seed: int) -> None:
    rounds = Rounds(tmp_path, seed)
    rounds.capture()
    for number in range(STEPS):
        rounds.random.choice(acts_of(rounds))()
        report = verify_archive(rounds.config)
        assert report.is_equal, report.sentences()
        if number % 4 == 0:
            require_equal_rebuilt(rounds, tmp_path / f"lost-{number}")

    rounds.capture_all()
    expire(rounds.config, takes_over=True, now_ms=lambda: rounds.now_ms + 4 * HOUR_MS)
    rounds.clean()
    report = verify_archive(rounds.config, is_deep=True)
    assert (report.is_equal, report.findings.counts) == (True, {})
    assert ends(rounds.config) == rounds.committed
    files = {path.relative_to(rounds.config.objects).as_posix() for path in Path(rounds.config.objects).rglob("*.batches")}
    table = ArchiveTable.open(rounds.config.tables)
    assert files == {row.stored.object_name for row in table.segments() if row.stored is not None}
    assert not list(Path(rounds.config.objects).rglob(".*.unfinished"))
    assert any(row.state is _FINISHED for row in rows_of(rounds.config))

    new = require_equal_rebuilt(rounds, tmp_path / "new")
    assert rows_of(new) == rows_of(rounds.config)
    adopt(new)
    rounds.config = new
    rounds.capture_all()
    report = verify_archive(new, is_deep=True)
    assert (report.is_equal, report.findings.counts) == (True, {})
