"""The coordinators of transactions and of groups, by the rules in front of KIP-890 part 2 (TransactionCoordinator)."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.fakes.partition_log import PartitionLog
from tests.fakes.record_rules import RefusedError

OFFSETS_TOPIC = "__consumer_offsets"
MAX_METADATA_BYTES = 4096
MAX_TIMEOUT_MS = 900_000
_LAST_EPOCH = 32766

PartitionKey = tuple[str, int]
OFFSETS_PLACE: PartitionKey = (OFFSETS_TOPIC, 0)


class TxnState(enum.Enum):
    EMPTY = "empty"
    ONGOING = "ongoing"
    PREPARE_COMMIT = "prepare commit"
    PREPARE_ABORT = "prepare abort"
    COMPLETE_COMMIT = "complete commit"
    COMPLETE_ABORT = "complete abort"


_PREPARED = {True: TxnState.PREPARE_COMMIT, False: TxnState.PREPARE_ABORT}
_COMPLETE = {TxnState.PREPARE_COMMIT: TxnState.COMPLETE_COMMIT, TxnState.PREPARE_ABORT: TxnState.COMPLETE_ABORT}


@dataclass(slots=True)
class Txn:
    producer_id: int
    producer_epoch: int
    last_epoch: int = -1
    state: TxnState = TxnState.EMPTY
    topic_partitions: set[PartitionKey] = field(default_factory=set)


class Committed(NamedTuple):
    offset: int
    metadata: str | None


class Groups:
    """Offsets of groups; those of an open transaction wait for its marker."""

    def __init__(self, max_metadata_bytes: Callable[[], int] = lambda: MAX_METADATA_BYTES) -> None:
        self._max_metadata_bytes = max_metadata_bytes
        self.offsets: dict[tuple[str, PartitionKey], Committed] = {}
        self.members: dict[str, list[str]] = {}
        """Client ids of the members of each group that has any. Who is none of them commits nothing for it."""
        self._pending: dict[tuple[int, int], dict[tuple[str, PartitionKey], Committed]] = {}

    def has_open_txn(self, producer_id: int, producer_epoch: int) -> bool:
        return (producer_id, producer_epoch) in self._pending

    def commit(
        self, group: str, topic_partition: PartitionKey, committed: Committed, producer_id: int, producer_epoch: int
    ) -> None:
        self._require_short(committed)
        self._pending.setdefault((producer_id, producer_epoch), {})[group, topic_partition] = committed

    def commit_now(self, group: str, topic_partition: PartitionKey, committed: Committed) -> None:
        """Commit without a transaction, as a group without members may."""
        self._require_short(committed)
        self.offsets[group, topic_partition] = committed
        for offsets in self._pending.values():  # of two offsets, the one that was appended later counts
            offsets.pop((group, topic_partition), None)

    def _require_short(self, committed: Committed) -> None:
        if len((committed.metadata or "").encode()) > self._max_metadata_bytes():
            raise RefusedError(12)

    def names(self) -> list[str]:
        """Return the groups that have offsets or members."""
        return sorted({group for group, _ in self.offsets} | self.members.keys())

    def state_of(self, group: str) -> str:
        """Return Kafka's word."""
        return "Stable" if group in self.members else "Empty" if any(name == group for name, _ in self.offsets) else "Dead"

    def is_unstable(self, group: str, topic_partition: PartitionKey) -> bool:
        return any((group, topic_partition) in offsets for offsets in self._pending.values())

    def forget_topic(self, topic: str) -> None:
        """Remove offsets of a topic that was deleted, also those that wait, as coordinators do."""
        for offsets in (self.offsets, *self._pending.values()):
            for key in [key for key in offsets if key[1][0] == topic]:
                del offsets[key]

    def end(self, producer_id: int, *, is_commit: bool) -> None:
        for key in [key for key in self._pending if key[0] == producer_id]:
            offsets = self._pending.pop(key)
            if is_commit:
                self.offsets.update(offsets)


class Transactions:
    """`markers_held`: decided transactions stay prepared until `write_markers` is called, as on a slow cluster.

    `max_timeout_ms` returns transaction.max.timeout.ms of the brokers.
    """

    def __init__(
        self,
        logs: Mapping[PartitionKey, PartitionLog],
        groups: Groups,
        now_ms: Callable[[], int],
        max_timeout_ms: Callable[[], int],
    ) -> None:
        self._logs, self._groups, self._now_ms, self._max_timeout_ms = logs, groups, now_ms, max_timeout_ms
        self._producer_ids = itertools.count(1000)
        self.txns: dict[str, Txn] = {}
        self.markers_held = False
        self.coordinator_epoch = 0

    def init_producer_id(
        self, transactional_id: str | None, timeout_ms: int, producer_id: int, producer_epoch: int
    ) -> tuple[int, int]:
        if transactional_id is None:
            return next(self._producer_ids), 0
        if not transactional_id or (producer_id < 0) != (producer_epoch < 0):
            raise RefusedError(42)
        if not 0 < timeout_ms <= self._max_timeout_ms():
            raise RefusedError(50)
        txn = self.txns.get(transactional_id)
        if txn is None:
            txn = self.txns[transactional_id] = Txn(next(self._producer_ids), 0)
            return txn.producer_id, txn.producer_epoch
        if producer_id >= 0 and producer_id != txn.producer_id:
            raise RefusedError(90)
        if txn.state in _COMPLETE:
            raise RefusedError(51)
        if txn.state is TxnState.ONGOING:
            self._fence(txn)
            raise RefusedError(51 if producer_id < 0 else 90)
        if producer_id < 0 or producer_epoch == txn.producer_epoch:
            self._bump(txn, producer_epoch)
        elif producer_epoch != txn.last_epoch:
            raise RefusedError(90)
        txn.state = TxnState.EMPTY
        return txn.producer_id, txn.producer_epoch

    def _bump(self, txn: Txn, last_epoch: int) -> None:
        txn.last_epoch = last_epoch
        if txn.producer_epoch >= _LAST_EPOCH:
            txn.producer_id, txn.producer_epoch = next(self._producer_ids), 0
        else:
            txn.producer_epoch += 1

    def _fence(self, txn: Txn) -> None:
        """Abort the open transaction with markers of the next epoch, so that its partitions refuse the old one."""
        txn.producer_epoch += 1
        self._decide(txn, is_commit=False)

    def time_out(self, transactional_id: str) -> None:
        self._fence(self._ongoing(transactional_id))

    def _ongoing(self, transactional_id: str) -> Txn:
        txn = self.txns[transactional_id]
        assert txn.state is TxnState.ONGOING, f"{transactional_id} is {txn.state.value}"
        return txn

    def _known(self, transactional_id: str, producer_id: int, producer_epoch: int) -> Txn:
        if not transactional_id:
            raise RefusedError(42)
        txn = self.txns.get(transactional_id)
        if txn is None or txn.producer_id != producer_id:
            raise RefusedError(49)
        if txn.producer_epoch != producer_epoch:
            raise RefusedError(90)
        return txn

    def add(self, transactional_id: str, producer_id: int, producer_epoch: int, topic_partitions: Iterable[PartitionKey]) -> None:
        txn = self._known(transactional_id, producer_id, producer_epoch)
        if txn.state in _COMPLETE:
            raise RefusedError(51)
        if txn.state is not TxnState.ONGOING:
            txn.state = TxnState.ONGOING
            txn.topic_partitions.clear()
        txn.topic_partitions |= set(topic_partitions)

    def verify(self, transactional_id: str, producer_id: int, producer_epoch: int, topic_partition: PartitionKey) -> None:
        """As the partition's leader asks before it appends: codes are those of the coordinator."""
        txn = self._known(transactional_id, producer_id, producer_epoch)
        if txn.state in _COMPLETE:
            raise RefusedError(51)
        if txn.state is not TxnState.ONGOING or topic_partition not in txn.topic_partitions:
            raise RefusedError(120)

    def end(self, transactional_id: str, producer_id: int, producer_epoch: int, *, is_commit: bool) -> None:
        txn = self._known(transactional_id, producer_id, producer_epoch)
        if txn.state is TxnState.ONGOING:
            self._decide(txn, is_commit=is_commit)
        elif txn.state is TxnState.EMPTY:
            raise RefusedError(48)
        elif txn.state in _COMPLETE:
            raise RefusedError(51 if txn.state is _PREPARED[is_commit] else 48)
        elif txn.state is not _COMPLETE[_PREPARED[is_commit]]:
            raise RefusedError(48)

    def _decide(self, txn: Txn, *, is_commit: bool) -> None:
        txn.state = _PREPARED[is_commit]
        if not self.markers_held:
            self._complete(txn)

    def write_markers(self) -> None:
        self.markers_held = False
        for txn in self.txns.values():
            if txn.state in _COMPLETE:
                self._complete(txn)

    def _complete(self, txn: Txn) -> None:
        """Not before each partition can take its marker: until then the transaction stays prepared."""
        if any(
            topic_partition in self._logs and not self._logs[topic_partition].takes_appends
            for topic_partition in txn.topic_partitions
        ):
            return
        is_commit = txn.state is TxnState.PREPARE_COMMIT
        for topic_partition in sorted(txn.topic_partitions):
            if topic_partition == OFFSETS_PLACE:
                self._groups.end(txn.producer_id, is_commit=is_commit)
            elif topic_partition in self._logs:
                self._logs[topic_partition].append_marker(
                    txn.producer_id,
                    txn.producer_epoch,
                    is_commit=is_commit,
                    coordinator_epoch=self.coordinator_epoch,
                    now_ms=self._now_ms(),
                )
        txn.state = _COMPLETE[txn.state]
        txn.topic_partitions.clear()
