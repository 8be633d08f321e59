"""The target cluster: transaction coordinator, partition logs, receipts, by the rules in front of KIP-890 part 2.

Values are immutable and kept in four dicts, so that a search can fork and compare clusters cheaply.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.model import effects
from tests.model.effects import RECEIPTS

from shallow_mirror.types import SlotTxn, TopicPartition

OK, NOT_AVAILABLE, INVALID_TIMESTAMP, OUT_OF_ORDER, INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING = 0, 5, 32, 45, 47, 48, 49
CONCURRENT, UNSTABLE, FENCED = 51, 88, 90


class Markers(enum.Enum):
    """What becomes of the markers of a transaction that has just been decided."""

    WRITTEN = "written"
    HELD = "held"
    FIRST_HELD = "written to the first partition, held at the others"
    FORGOTTEN = "forgotten by a coordinator that was killed"
    FIRST_FORGOTTEN = "written to the first partition, forgotten at the others"
    LAST_FORGOTTEN = "forgotten to the first partition, written at the others"


class Phase(enum.Enum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARED = "prepared"
    COMPLETE = "complete"


class Txn(NamedTuple):
    """What the coordinator knows of one transactional id. `held` are partitions whose markers are still to be written."""

    producer_id: int
    epoch: int
    phase: Phase = Phase.EMPTY
    is_commit: bool = False
    topic_partitions: tuple[TopicPartition, ...] = ()
    held: tuple[TopicPartition, ...] = ()
    marker_epoch: int = 0


class Fate(enum.Enum):
    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Entry(NamedTuple):
    """One offset of a log. A transaction marker has no record and no sequence."""

    producer_id: int
    epoch: int
    sequence: int | None
    record: int | None
    fate: Fate


class Log(NamedTuple):
    entries: tuple[Entry, ...] = ()
    start: int = 0

    @property
    def last_stable_offset(self) -> int:
        return next((at for at, entry in enumerate(self.entries) if entry.fate is Fate.OPEN), len(self.entries))

    def open_producers(self) -> tuple[tuple[int, int], ...]:
        first: dict[int, int] = {}
        for at, entry in enumerate(self.entries):
            if entry.fate is Fate.OPEN:
                first.setdefault(entry.producer_id, at)
        return tuple(first.items())

    def marked(self, producer_id: int, epoch: int, *, is_commit: bool) -> Log:
        """End everything that is open under the producer id, of any epoch, with a marker."""
        fate = Fate.COMMITTED if is_commit else Fate.ABORTED
        ended = (
            Entry(*entry[:4], fate) if entry.fate is Fate.OPEN and entry.producer_id == producer_id else entry
            for entry in self.entries
        )
        return Log((*ended, Entry(producer_id, epoch, None, None, fate)), self.start)

    def visible(self) -> list[tuple[int, int]]:
        """(target offset, record) of what a read_committed reader who was always there has been given."""
        return [
            (at, entry.record)
            for at, entry in enumerate(self.entries[: self.last_stable_offset])
            if entry.record is not None and entry.fate is Fate.COMMITTED
        ]


class TargetCluster:
    def __init__(self, topic_partitions: Iterable[TopicPartition], *, verifies: bool = True) -> None:
        self._verifies = verifies
        self.txns: dict[str, Txn] = {}
        self.logs: dict[TopicPartition, Log] = {topic_partition: Log() for topic_partition in topic_partitions}
        self.receipts: dict[tuple[str, TopicPartition], str] = {}
        self.pending: dict[int, tuple[tuple[str, TopicPartition], str]] = {}
        self.leaderless: frozenset[TopicPartition] = frozenset()

    def fork(self) -> TargetCluster:
        copy = TargetCluster((), verifies=self._verifies)
        copy.txns, copy.logs = dict(self.txns), dict(self.logs)
        copy.receipts, copy.pending = dict(self.receipts), dict(self.pending)
        copy.leaderless = self.leaderless
        return copy

    def key(self) -> tuple[object, ...]:
        return (
            tuple(sorted(self.txns.items())),
            tuple(self.logs.values()),
            tuple(sorted(self.receipts.items())),
            tuple(sorted(self.pending.items())),
            self.leaderless,
        )

    def init_producer_id(self, name: str, markers: Markers) -> tuple[int, int, int]:
        txn = self.txns.get(name)
        if txn is None:
            txn = self.txns[name] = Txn(1000 + len(self.txns), 0)
            return OK, txn.producer_id, txn.epoch
        if txn.phase is Phase.ONGOING:
            self._fence(name, markers)
        if txn.phase in (Phase.ONGOING, Phase.PREPARED):
            return CONCURRENT, -1, -1
        self.txns[name] = Txn(txn.producer_id, txn.epoch + 1)
        return OK, txn.producer_id, txn.epoch + 1

    def time_out(self, name: str, markers: Markers) -> None:
        self._fence(name, markers)

    def _fence(self, name: str, markers: Markers) -> None:
        txn = self.txns[name]
        self._end(name, txn._replace(epoch=txn.epoch + 1, marker_epoch=txn.epoch + 1), False, markers)

    def _problem(self, asked: SlotTxn) -> int:
        txn = self.txns.get(asked.transactional_id)
        if txn is None or txn.producer_id != asked.producer_id:
            return INVALID_MAPPING
        return OK if txn.epoch == asked.producer_epoch else FENCED

    def add_to_txn(self, asked: SlotTxn, topic_partitions: Sequence[TopicPartition]) -> int:
        problem = self._problem(asked)
        txn = self.txns.get(asked.transactional_id)
        if problem or txn is None:
            return problem
        if txn.phase is Phase.PREPARED:
            return CONCURRENT
        before = txn.topic_partitions if txn.phase is Phase.ONGOING else ()
        self.txns[asked.transactional_id] = Txn(
            txn.producer_id, txn.epoch, Phase.ONGOING, topic_partitions=tuple(sorted({*before, *topic_partitions}))
        )
        return OK

    def _verified(self, asked: SlotTxn, topic_partition: TopicPartition) -> int:
        """Return what the leader of a partition hears from the coordinator before the first write of a transaction."""
        if not self._verifies:
            return OK
        problem = self._problem(asked)
        if problem:
            return INVALID_EPOCH if problem == FENCED else problem
        txn = self.txns[asked.transactional_id]
        return OK if txn.phase is Phase.ONGOING and topic_partition in txn.topic_partitions else INVALID_STATE

    def describe(self, name: str) -> tuple[str, int, int] | None:
        """Return the coordinator's words for the last transaction of an id."""
        txn = self.txns.get(name)
        if txn is None:
            return None
        ending = "Commit" if txn.is_commit else "Abort"
        words = {Phase.EMPTY: "Empty", Phase.ONGOING: "Ongoing"}
        words |= {Phase.PREPARED: f"Prepare{ending}", Phase.COMPLETE: f"Complete{ending}"}
        return words[txn.phase], txn.producer_id, txn.marker_epoch if txn.phase is Phase.PREPARED else txn.epoch

    def lose_leader(self, topic_partition: TopicPartition) -> None:
        self.leaderless |= {topic_partition}

    def elect_leaders(self) -> None:
        self.leaderless = frozenset()

    def list_offset(self, topic_partition: TopicPartition, *, is_committed: bool) -> int | None:
        log = self.logs[topic_partition]
        return None if topic_partition in self.leaderless else log.last_stable_offset if is_committed else len(log.entries)

    def describe_producers(self, topic_partition: TopicPartition) -> tuple[tuple[int, int], ...] | None:
        return None if topic_partition in self.leaderless else self.logs[topic_partition].open_producers()

    def produce(self, asked: effects.Produce) -> tuple[int, int]:
        if asked.topic_partition in self.leaderless:
            return NOT_AVAILABLE, -1
        log = self.logs[asked.topic_partition]
        mine = (asked.txn.producer_id, asked.txn.producer_epoch)
        if any(entry.producer_id == mine[0] and entry.epoch > mine[1] for entry in log.entries):
            return INVALID_EPOCH, -1
        is_open = any(entry.fate is Fate.OPEN and (entry.producer_id, entry.epoch) == mine for entry in log.entries)
        problem = OK if is_open else self._verified(asked.txn, asked.topic_partition)
        if problem:
            return problem, -1
        written = [
            at for at, entry in enumerate(log.entries) if entry.sequence is not None and (entry.producer_id, entry.epoch) == mine
        ]
        if asked.sequence < len(written):
            return OK, written[asked.sequence]  # a duplicate: what was written first is confirmed
        if asked.sequence > len(written):
            return OUT_OF_ORDER, -1
        if asked.is_poison:
            return INVALID_TIMESTAMP, -1
        entry = Entry(*mine, asked.sequence, asked.record, Fate.OPEN)
        self.logs[asked.topic_partition] = log._replace(entries=(*log.entries, entry))
        return OK, len(log.entries)

    def write_receipt(self, asked: effects.WriteReceipt) -> int:
        problem = self._verified(asked.txn, RECEIPTS)
        if not problem:
            self.pending[asked.txn.producer_id] = ((asked.txn.transactional_id, asked.topic_partition), asked.metadata)
        return problem

    def read_receipt(self, asked: effects.ReadReceipt) -> tuple[int, str | None]:
        wanted = (asked.group, asked.topic_partition)
        if any(topic_partition == wanted for topic_partition, _ in self.pending.values()):
            return UNSTABLE, None
        return OK, self.receipts.get(wanted)

    def end_txn(self, asked: SlotTxn, is_commit: bool, markers: Markers) -> int:
        problem = self._problem(asked)
        txn = self.txns.get(asked.transactional_id)
        if problem or txn is None:
            return problem
        if txn.phase is Phase.EMPTY or (txn.phase is not Phase.ONGOING and txn.is_commit != is_commit):
            return INVALID_STATE
        if txn.phase is Phase.PREPARED:
            return CONCURRENT
        if txn.phase is Phase.ONGOING:
            self._end(asked.transactional_id, txn._replace(marker_epoch=txn.epoch), is_commit, markers)
        return OK

    def _end(self, name: str, txn: Txn, is_commit: bool, markers: Markers) -> None:
        """`topic_partitions` are sorted, and the receipts come last: the first one is a data partition, if there is one."""
        first, rest = txn.topic_partitions[:1], txn.topic_partitions[1:]
        txn = txn._replace(phase=Phase.PREPARED, is_commit=is_commit)
        written, held = {
            Markers.WRITTEN: (txn.topic_partitions, ()),
            Markers.HELD: ((), txn.topic_partitions),
            Markers.FIRST_HELD: (first, rest),
            Markers.FORGOTTEN: ((), ()),
            Markers.FIRST_FORGOTTEN: (first, ()),
            Markers.LAST_FORGOTTEN: (rest, ()),
        }[markers]
        without_leader = tuple(topic_partition for topic_partition in written if topic_partition in self.leaderless)
        self._write_markers(txn, (topic_partition for topic_partition in written if topic_partition not in without_leader))
        self._set_held(name, txn, tuple(sorted({*held, *without_leader})))

    def _set_held(self, name: str, txn: Txn, held: tuple[TopicPartition, ...]) -> None:
        self.txns[name] = txn._replace(phase=Phase.PREPARED if held else Phase.COMPLETE, topic_partitions=(), held=held)

    def _write_markers(self, txn: Txn, topic_partitions: Iterable[TopicPartition]) -> None:
        for topic_partition in topic_partitions:
            if topic_partition == RECEIPTS:
                written = self.pending.pop(txn.producer_id, None)
                if written is not None and txn.is_commit:
                    self.receipts[written[0]] = written[1]
            else:
                self.logs[topic_partition] = self.logs[topic_partition].marked(
                    txn.producer_id, txn.marker_epoch, is_commit=txn.is_commit
                )

    def abort_partition(self, name: str, topic_partition: TopicPartition) -> None:
        """WriteTxnMarkers, as `kafka-transactions.sh abort` sends it to the leader: the coordinator is not asked."""
        txn = self.txns[name]
        self.logs[topic_partition] = self.logs[topic_partition].marked(txn.producer_id, txn.epoch, is_commit=False)

    def open_partitions(self) -> list[tuple[str, TopicPartition]]:
        """Where the newest epoch of each transactional id has an open transaction that nobody has ended."""
        return [
            (name, topic_partition)
            for name in self.ongoing()
            for topic_partition in self.txns[name].topic_partitions
            if topic_partition != RECEIPTS
        ]

    def with_held_markers(self) -> list[str]:
        """Where some of them could be written now."""
        return [name for name, txn in self.txns.items() if set(txn.held) - self.leaderless]

    def release(self, name: str, *, is_forgotten: bool = False) -> None:
        """Write the held markers where there is a leader, or forget them as a coordinator that is killed."""
        txn = self.txns[name]
        if is_forgotten:
            return self._set_held(name, txn, ())
        self._write_markers(txn, (topic_partition for topic_partition in txn.held if topic_partition not in self.leaderless))
        self._set_held(name, txn, tuple(topic_partition for topic_partition in txn.held if topic_partition in self.leaderless))

    def ongoing(self) -> list[str]:
        return [name for name, txn in self.txns.items() if txn.phase is Phase.ONGOING]

    def truncate(self) -> None:
        """Retention deletes everything that readers could have read."""
        for topic_partition, log in self.logs.items():
            if topic_partition not in self.leaderless:
                self.logs[topic_partition] = log._replace(start=log.last_stable_offset)

    def fetch(self, topic_partition: TopicPartition, offset: int) -> tuple[int, int, bool] | effects.NoResponse | None:
        if topic_partition in self.leaderless:
            return effects.NO_RESPONSE
        log = self.logs[topic_partition]
        if not log.start <= offset < log.last_stable_offset:
            return None
        entry = log.entries[offset]
        return entry.producer_id, entry.epoch, entry.fate is Fate.ABORTED
