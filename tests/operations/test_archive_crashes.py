"""Capture, expiry and cleaning in a random order, each interrupted anywhere: nothing is lost, nothing is left."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.archives import NOW_MS, ORDERS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.checkpoints.archive_table import EVERY_STATE, ArchiveTable
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.operations.archive_clean import clean
from shallow_mirror.operations.archive_expire import expire
from shallow_mirror.operations.archive_rebuild import rebuild
from shallow_mirror.operations.archive_verify import verify_archive
from shallow_mirror.types import SourcePartition

pytestmark = pytest.mark.thorough

SECOND = SourcePartition("payments", "paypaypaypaypaypaypayA", 0)
HOUR_MS = 3_600_000
STEPS = 20
POINTS = ("expire.started", "expire.deleted", "expire.finished")


class KilledError(Exception):
    pass


class Rounds:
    """`committed`: what the archive accounts for, by partition."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.config = archive_config(folder, retention={"orders": {"keep": "5 hours"}})
        self.now_ms = NOW_MS
        self.committed = {ORDERS: 0, SECOND: 0}

    def capture(self) -> None:
        """Run one or two decisions; the last one may be killed in front of its commit, with an object and a file half written."""
        archive = ArchiveOfTest(self.config, now_ms=self.now_ms)
        for _ in range(self.random.randrange(1, 3)):
            sources = self.random.sample([ORDERS, SECOND], self.random.randrange(1, 3))
            counts = {source: self.random.randrange(1, 5) for source in sources}
            batches = {source: [batch(self.committed[source], count)] for source, count in counts.items()}
            for _ in range(self.random.choice([0, 0, 1])):
                archive.write(batches)  # a try that is given up
            rows = archive.write(batches)
            if self.random.random() < 0.3:
                name = rows[0].stored.object_name if rows[0].stored is not None else ""
                archive.store.writer(name.replace(".batches", "").rpartition("-")[0] + "-deadbeef.batches").write(b"half")
                return
            archive.owner.decide(rows, highest_slot=-1)
            archive.owner.settle()
            for source, count in counts.items():
                self.committed[source] += count
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


def ends(config: ArchiveConfig) -> dict[SourcePartition, int]:
    return {source: position.offset for source, position in ArchiveTable.open(config.tables).positions().items()}


@pytest.mark.parametrize("seed", range(3))
def test_after_any_crashes_the_archive_is_whole_and_nothing_is_left_over(tmp_path: Path, seed: int) -> None:
    rounds = Rounds(tmp_path, seed)
    rounds.capture()
    acts: list[Callable[[], object]] = [rounds.capture, rounds.capture, rounds.expire, lambda: clean(rounds.config)]
    for _ in range(STEPS):
        rounds.random.choice(acts)()
        report = verify_archive(rounds.config)
        assert report.is_equal, report.sentences()

    expire(rounds.config, takes_over=True, now_ms=lambda: rounds.now_ms)
    clean(rounds.config)
    report = verify_archive(rounds.config, is_deep=True)
    assert (report.is_equal, report.findings.counts) == (True, {})
    assert ends(rounds.config) == {source: end for source, end in rounds.committed.items() if end}
    files = {
        path.relative_to(rounds.config.objects).as_posix() for path in Path(rounds.config.objects).rglob("*") if path.is_file()
    }
    table = ArchiveTable.open(rounds.config.tables)
    named = {row.stored.object_name for row in table.segments() if row.stored is not None}
    assert files == named
    assert len(list(table.segments(states=EVERY_STATE))) > len(named)  # some have expired
    visible = [(row.segment.source, row.segment.source_start, row.segment.source_end) for row in table.segments()]

    new = rounds.config.model_copy(update={"tables": str(tmp_path / "new")})
    rebuild(rounds.config, new.tables)
    rebuilt = ArchiveTable.open(new.tables).segments()
    assert [(row.segment.source, row.segment.source_start, row.segment.source_end) for row in rebuilt] == visible
