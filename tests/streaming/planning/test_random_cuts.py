"""Random histories of a topic that is truncated and recreated, against a model: a cut by time restores what was there then."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.streaming.planning.test_restore_as_of import Planned, at, describe
from tests.support.archives import NOW_MS, ORDERS, PAYMENTS, ArchiveOfTest, archive_config
from tests.support.record_batches import batch

from shallow_mirror.types import SourcePartition

pytestmark = pytest.mark.thorough

CUTS = 6


@dataclass
class Log:
    """A log of the source from its begin, or from a truncation, to the next one. Records have rising times."""

    source: SourcePartition
    lineage: int
    times: list[int]
    """Of the record at each offset."""
    leader_epoch: int
    begun_ms: int
    own: int
    """The first offset that only this log has."""
    archived: int = 0


@dataclass
class Model:
    """The source, what its archive has, and every log that the source had."""

    chance: random.Random
    archive: ArchiveOfTest
    now_ms: int = NOW_MS
    logs: list[Log] = field(default_factory=list)
    seen: Log | None = None
    """The log that the archive captures."""

    def pass_time(self) -> None:
        self.now_ms += self.chance.randint(1, 1_000)

    def create(self) -> None:
        topic_id = f"{len(self.logs):022d}"
        self.logs.append(Log(ORDERS._replace(topic_id=topic_id), 0, [], 3, self.now_ms, 0))

    def truncate(self) -> None:
        """Lose what was archived last, as an unclean leader election does, and write something else."""
        log = self.logs[-1]
        if log is not self.seen or log.archived < 2:
            return
        start = self.chance.randint(1, log.archived - 1)
        self.logs.append(Log(log.source, log.lineage + 1, log.times[:start], log.leader_epoch + 1, self.now_ms, start, start))

    def write(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            self.logs[-1].times.append(self.now_ms)
            self.pass_time()

    def capture(self) -> None:
        """Decide what the source has now. Also of a topic in which nothing happened."""
        self.archive.now_ms = self.now_ms
        log = self.logs[-1]
        if self.seen is not log:
            if self.seen is None or self.seen.source != log.source:
                if self.chance.random() < 0.5:
                    describe(self.archive, log.source, 1)
            elif log.lineage == self.seen.lineage + 1:
                self.archive.begin_lineage(log.source, log.own, log.leader_epoch - 1)
            self.seen = log
        records = [
            batch(offset, timestamp=log.times[offset], leader_epoch=log.leader_epoch)
            for offset in range(log.archived, len(log.times))
        ]
        self.archive.archive(
            {PAYMENTS: [batch(self.archive.owner.micro_batch, timestamp=NOW_MS)]} | ({log.source: records} if records else {})
        )
        log.archived = len(log.times)

    def at(self, time_ms: int) -> Log | None:
        """Return the log that the source had at a time; None where the archive cannot know it: no record shows it."""
        there = [log for log in self.logs if log.begun_ms <= time_ms][-1]
        shows = [time for time in there.times[there.own : there.archived] if time <= time_ms]
        return there if shows else None


@pytest.mark.parametrize("seed", range(6))
def test_a_cut_restores_the_log_of_its_time(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    model = Model(chance, ArchiveOfTest(archive_config(tmp_path)))
    model.create()
    model.write()
    model.capture()
    for _ in range(10):
        chance.choice([model.write, model.write, model.capture, model.capture, model.truncate, model.create])()
        model.pass_time()
    model.capture()
    times = sorted({time for log in model.logs for time in log.times})
    for time_ms in [times[0], *(chance.choice(times) + chance.randint(0, 500) for _ in range(CUTS))]:
        log = model.at(time_ms)
        if log is None:
            continue
        end = sum(time <= time_ms for time in log.times[: log.archived])
        restored = {
            source: ends
            for source, ends in Planned(model.archive, tmp_path, time=at(time_ms)).ranges.items()
            if source != PAYMENTS
        }
        assert restored == {log.source: (0, end, log.lineage)}, f"seed {seed}, {time_ms - NOW_MS} ms"
