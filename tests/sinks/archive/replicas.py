"""Replicas of one partition that lose and get leaders in any way, by Kafka's rules for leader epochs: a model for tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from shallow_mirror.types import EpochEnd


class Record(NamedTuple):
    leader_epoch: int
    number: int


@dataclass(slots=True)
class Replica:
    """`records` begin at `start`. `epochs`: as Kafka's LeaderEpochFileCache."""

    start: int = 0
    records: list[Record] = field(default_factory=list)
    epochs: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + len(self.records)

    def assign(self, leader_epoch: int, offset: int) -> None:
        self.epochs = [entry for entry in self.epochs if entry[0] < leader_epoch and entry[1] < offset]
        self.epochs.append((leader_epoch, offset))

    def append(self, record: Record) -> None:
        if not self.epochs or self.epochs[-1][0] != record.leader_epoch:
            self.assign(record.leader_epoch, self.end)
        self.records.append(record)

    def truncate(self, end: int) -> None:
        del self.records[max(0, end - self.start) :]
        self.epochs = [entry for entry in self.epochs if entry[1] < end]

    def delete_before(self, offset: int) -> None:
        removed = [entry for entry in self.epochs if entry[1] <= offset]
        self.epochs = [entry for entry in self.epochs if entry[1] > offset]
        if removed:
            self.epochs.insert(0, (removed[-1][0], offset))
        del self.records[: offset - self.start]
        self.start = offset

    def end_of(self, leader_epoch: int) -> EpochEnd:
        """Answer OffsetForLeaderEpoch."""
        if self.epochs and self.epochs[-1][0] == leader_epoch:
            return EpochEnd(leader_epoch, self.end)
        above = [entry for entry in self.epochs if entry[0] > leader_epoch]
        if not above:
            return EpochEnd(-1, -1)
        below = [entry for entry in self.epochs if entry[0] <= leader_epoch]
        return EpochEnd(below[-1][0] if below else leader_epoch, above[0][1])


class Replicas:
    """`leader` is one of `all`; `epoch` rises with every election."""

    def __init__(self, count: int) -> None:
        self.all = [Replica() for _ in range(count)]
        self.leader = self.all[0]
        self.epoch = -1
        self._written = 0
        self.elect(0)

    def elect(self, number: int) -> None:
        """Make any replica the leader, in sync or not."""
        self.leader = self.all[number]
        self.epoch += 1
        self.leader.assign(self.epoch, self.leader.end)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._written += 1
            self.leader.append(Record(self.epoch, self._written))

    def follow(self, number: int, most: int) -> None:
        """Let a replica fetch up to `most` records of the leader, behind what both have."""
        replica = self.all[number]
        if replica is self.leader:
            return
        if replica.end < self.leader.start or replica.start > self.leader.end:
            replica.start, replica.records, replica.epochs = self.leader.start, [], []
        common = max(replica.start, self.leader.start)
        while common < min(replica.end, self.leader.end) and self._at(replica, common) == self._at(self.leader, common):
            common += 1
        replica.truncate(common)
        for record in self.leader.records[common - self.leader.start :][:most]:
            replica.append(record)
        if replica.start < self.leader.start <= replica.end:
            replica.delete_before(self.leader.start)

    @staticmethod
    def _at(replica: Replica, offset: int) -> Record:
        return replica.records[offset - replica.start]

    def delete_before(self, offset: int) -> None:
        for replica in self.all:
            if replica.start < offset <= replica.end:
                replica.delete_before(offset)
