"""Driver: partitions of the target that do not take markers now, and transactional ids that wait for them.

A marker is written by the leader of its partition, to all in-sync replicas. Where there is no leader, or where too few replicas
are in sync, a transaction that includes the partition is ended durably and does not complete, for as long as that lasts: its
transactional id answers CONCURRENT_TRANSACTIONS. Other partitions and other ids are not concerned.

  blocked    ids whose last transaction does not complete; what becomes of it is decided
  pending    decided transactions whose commit is durable and which readers of some partition do not see: it has not taken the
             marker, or another producer has a transaction open in front of it
  unchecked  partitions that could not be read when the mirror looked for open transactions of its own

A partition that is pending or unchecked is in no transaction (`held`): a marker of ours may be missing there, and the next marker
of the same producer id would end what it must not. Pending transactions are recorded in the offset map as well, because the next
start has to judge them; the rest is found out again by every start.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from shallow_mirror.errors import TransactionBlockedError
from shallow_mirror.sinks.kafka.protocol.txn_outcome import WrittenRange
from shallow_mirror.types import SlotTxn, TopicPartition

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class TargetAvailability:
    """`fenced`: the newest answer of InitProducerId for each id; none for an id that is blocked.

    `prepared`: of those, the ones that no task was given yet.
    `blockers`: open transactions of other producers that pending ones wait for, and what ends them.
    """

    fenced: dict[str, SlotTxn] = field(default_factory=dict)
    blocked: dict[str, TransactionBlockedError] = field(default_factory=dict)
    pending: dict[SlotTxn, tuple[WrittenRange, ...]] = field(default_factory=dict)
    unchecked: frozenset[TopicPartition] = frozenset()
    prepared: dict[str, SlotTxn] = field(default_factory=dict)
    blockers: dict[TopicPartition, str] = field(default_factory=dict)

    @property
    def is_complete(self) -> bool:
        """Say whether everything can be used."""
        return not (self.blocked or self.pending or self.unchecked)

    def block(self, blocked: TransactionBlockedError) -> None:
        """Record that an id cannot be used before its last transaction is complete."""
        if blocked.transactional_id not in self.blocked:
            _log.warning("%s; another id is used meanwhile", blocked.detail)
        self.fenced.pop(blocked.transactional_id, None)
        self.prepared.pop(blocked.transactional_id, None)
        self.blocked[blocked.transactional_id] = blocked

    def is_usable(self, transactional_id: str) -> bool:
        """Say whether a transaction can begin under this id: its last one is complete."""
        return transactional_id not in self.blocked and all(txn.transactional_id != transactional_id for txn in self.pending)

    def note_blockers(self, partitions: Iterable[TopicPartition], blockers: Mapping[TopicPartition, str]) -> None:
        """Record what holds back the last stable offsets of these partitions now: nothing where `blockers` has no entry."""
        former = {partition: self.blockers.pop(partition, "") for partition in partitions}
        for partition, blocker in blockers.items():
            if not former.get(partition):
                _log.warning("the others continue without target %s, whose readers wait: %s", partition, blocker)
        self.blockers |= blockers

    def pending_partitions(self) -> set[TopicPartition]:
        return {written.topic_partition for ranges in self.pending.values() for written in ranges}

    def held_partitions(self) -> dict[TopicPartition, str]:
        """Return the partitions that no transaction may include now, and why."""
        reason = "it had no leader when it was checked for open transactions of this run"
        reasons = dict.fromkeys(self.unchecked, reason)
        for txn, ranges in self.pending.items():
            for written in ranges:
                name = written.topic_partition
                blocker = self.blockers.get(name)
                reasons[name] = (
                    f"it has not accepted the commit marker of {txn} yet"
                    if blocker is None
                    else f"its readers do not see {txn} yet: {blocker}"
                )
        return reasons
