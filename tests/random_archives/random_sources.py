"""Random source cluster: topics, logs and transactions of one history, changed step by step.

The truth of each log is in `SourceLog`.
"""

from __future__ import annotations

import base64
import random
from dataclasses import dataclass, field, replace

from tests.random_archives.random_batches import RandomBatches, marker_batch
from tests.random_archives.source_logs import SourceLog, TxnKey, TxnPart
from tests.support.archives import NOW_MS

from shallow_mirror.checkpoints.ledger import TopicDescription
from shallow_mirror.types import SourcePartition

TOPICS = ("orders", "payments", "refunds")


@dataclass(frozen=True, slots=True)
class Archived:
    """Of one partition after a decision: `end` is its position in the log of `lineage`.

    `undecided`: transactions of this log below the end whose outcome no row of the lineage tells: the truncation that began it
    took their markers, and the next ones are not archived yet or had expired. An archive shows them as committed.
    """

    lineage: int
    end: int
    undecided: frozenset[TxnKey] = frozenset()


@dataclass(slots=True)
class SourcePartitionState:
    """A partition at the source, and how far it is archived. `archived` None: not at all yet.

    `diverges_at`: where the log was truncated below the archived position since. `replaced`: the log as it was before that.
    """

    log: SourceLog = field(default_factory=SourceLog)
    archived: Archived | None = None
    start: int = 0
    diverges_at: int | None = None
    replaced: SourceLog | None = None


@dataclass(slots=True)
class SourceTopic:
    """One incarnation. `described`: what the archive recorded last."""

    name: str
    topic_id: str
    configs: dict[str, str]
    partitions: list[SourcePartitionState]
    described: TopicDescription | None = None

    def source(self, partition: int) -> SourcePartition:
        return SourcePartition(self.name, self.topic_id, partition)

    def description(self) -> TopicDescription:
        return TopicDescription(
            topic=self.name, topic_id=self.topic_id, partitions=len(self.partitions), configs=dict(self.configs)
        )


@dataclass(slots=True)
class OpenTxn:
    """A transaction of the cluster that has not ended."""

    producer_id: int
    producer_epoch: int
    has_own_epoch: bool


class RandomSource:
    """A source cluster that exists in memory only."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.now_ms = NOW_MS
        self.script: list[str] = []
        self.logs: dict[tuple[SourcePartition, int], SourceLog] = {}
        """The log of every lineage that is archived, by its number."""
        self.topics: dict[str, SourceTopic] = {}
        self.deleted: list[SourceTopic] = []
        self.versions = chance.choice(("own epochs", "own epochs", "own epochs", "shared epochs", "both"))
        self._epochs: dict[int, int] = {}
        self._open: dict[int, OpenTxn] = {}
        self._batches = RandomBatches(chance)
        self._ids = 0

    def create(self, name: str) -> None:
        self._ids += 1
        topic_id = (
            base64.urlsafe_b64encode(self.chance.getrandbits(112).to_bytes(14) + self._ids.to_bytes(2)).decode().rstrip("=")
        )
        partitions = [SourcePartitionState() for _ in range(self.chance.randint(1, 3))]
        self.topics[name] = SourceTopic(name, topic_id, {"retention.ms": "-1", "segment.bytes": "100000"}, partitions)
        self.note(f"create {name} {topic_id} with {len(partitions)} partitions")

    def _archived_partition(self) -> tuple[SourceTopic, int, SourcePartitionState]:
        """Return a partition that is archived, if the chosen one or another is."""
        tries = [self._any_partition() for _ in range(4)]
        return next((found for found in tries if found[2].archived is not None and found[2].archived.end > 0), tries[0])

    def _any_partition(self) -> tuple[SourceTopic, int, SourcePartitionState]:
        topic = self.chance.choice([self.topics[name] for name in sorted(self.topics)])
        number = self.chance.randrange(len(topic.partitions))
        return topic, number, topic.partitions[number]

    def write(self) -> None:
        for _ in range(self.chance.randint(1, 6)):
            topic, number, partition = self._any_partition()
            log = partition.log
            if self.chance.random() < 0.12:
                log.end += self.chance.randint(1, 6)  # the cleaner removed what was there
            base, producer_id, producer_epoch = log.end, -1, -1
            part: TxnPart | None = None
            kind = self.chance.random()
            if kind < 0.5:
                begun = self._transaction_for(log)
                if begun is None:
                    return
                producer_id, producer_epoch = begun.producer_id, begun.producer_epoch
                part = next((part for part in log.open_parts if part.producer_id == producer_id), None)
                if part is None:
                    part = TxnPart(producer_id, producer_epoch, begun.has_own_epoch, base, base)
            elif kind < 0.65:
                producer_id, producer_epoch = 900, 0  # an idempotent producer
            batch = self._batches.batch(
                base,
                self.now_ms,
                log.leader_epoch,
                producer_id=producer_id,
                producer_epoch=producer_epoch,
                txn=None if part is None else part.key,
            )
            log.append(batch)
            if part is not None:
                log.parts[part.key] = replace(part, end_offset=log.end)
            what = "plain" if part is None else f"transactional of {producer_id} epoch {producer_epoch}"
            self.note(f"write {topic.name}-{number} [{batch.base_offset}, {batch.end_offset}) {what}")

    def _transaction_for(self, log: SourceLog) -> OpenTxn | None:
        """Return an open transaction that may write to a log, or a new one; None where its producer has to wait for a marker."""
        producer_id = self.chance.choice((7, 8, 9))
        left = [part for part in log.open_parts if part.producer_id == producer_id]
        if producer_id in self._open:
            txn = self._open[producer_id]
            is_own = all(part.is_committed is None and part.producer_epoch == txn.producer_epoch for part in left)
            return txn if is_own else None
        if any(part.producer_id == producer_id for of_log in self._source_logs() for part in of_log.open_parts):
            return None
        has_own_epoch = producer_id != 7 if self.versions == "both" else self.versions == "own epochs"
        epoch = self._epochs.setdefault(producer_id, 0)
        self._open[producer_id] = OpenTxn(producer_id, epoch, has_own_epoch)
        return self._open[producer_id]

    def _source_logs(self) -> list[SourceLog]:
        return [partition.log for topic in self.topics.values() for partition in topic.partitions]

    def end_transaction(self) -> None:
        if not self._open:
            return
        txn = self._open.pop(self.chance.choice(sorted(self._open)))
        is_committed = self.chance.random() < 0.6
        for log in self._source_logs():
            for part in log.open_parts:
                if part.producer_id == txn.producer_id and part.is_committed is None:
                    log.parts[part.key] = replace(part, is_committed=is_committed)
        if txn.has_own_epoch:
            self._epochs[txn.producer_id] += 1
        self.note(f"{'commit' if is_committed else 'abort'} {txn.producer_id} epoch {txn.producer_epoch}")
        if self.chance.random() < 0.7:
            self.write_markers()

    def write_markers(self) -> None:
        for name in sorted(self.topics):
            for number, partition in enumerate(self.topics[name].partitions):
                for part in partition.log.open_parts:
                    if part.is_committed is not None and self.chance.random() < 0.8:
                        self._write_marker(partition.log, part)
                        self.note(f"marker of {part.producer_id} in {name}-{number} at {partition.log.end - 1}")

    def _write_marker(self, log: SourceLog, part: TxnPart) -> None:
        assert part.is_committed is not None
        marker = marker_batch(
            log.end,
            is_commit=part.is_committed,
            producer_id=part.producer_id,
            producer_epoch=part.producer_epoch + part.has_own_epoch,
            leader_epoch=log.leader_epoch,
            now_ms=self.now_ms,
        )
        log.parts[part.key] = replace(part, marker_offset=log.end)
        log.append(marker)

    def truncate(self) -> None:
        """Let a replica without the last batches become the leader."""
        topic, number, partition = self._archived_partition()
        log, archived = partition.log, partition.archived
        end = partition.start if archived is None else archived.end
        boundaries = log.boundaries(max(log.start, partition.start), log.end - 1)
        below = [offset for offset in boundaries if offset < end][-8:]
        if below and self.chance.random() < 0.8:
            boundaries = below
        between = [  # data and marker of a transaction
            offset
            for offset in boundaries
            for part in log.parts.values()
            if part.first_offset < offset <= (log.end if part.marker_offset is None else part.marker_offset)
        ]
        if between and self.chance.random() < 0.6:
            boundaries = between
        if not boundaries:
            return
        offset = self.chance.choice(boundaries[-8:])
        before = log.copy()
        lost = log.truncate(offset)
        for part in lost:
            is_kept = offset >= end > part.first_offset or self.chance.random() < 0.5
            # Below the position the archive has an outcome: it notices another one only where the log diverges below it.
            is_committed = part.is_committed if is_kept else not part.is_committed
            log.parts[part.key] = replace(log.parts[part.key], is_committed=is_committed)
        if offset < end:
            if partition.diverges_at is None and archived is not None:
                partition.replaced = self.logs[topic.source(number), archived.lineage] = before
            partition.diverges_at = min(offset, end if partition.diverges_at is None else partition.diverges_at)
        self.note(f"truncate {topic.name}-{number} to {offset}, archived to {end}, markers lost: {[part.key for part in lost]}")

    def recreate(self) -> None:
        name = self.chance.choice(sorted(self.topics))
        self.deleted.append(self.topics.pop(name))
        self.note(f"delete {name}")
        self.create(name)

    def grow(self) -> None:
        topic, _, _ = self._any_partition()
        topic.partitions.append(SourcePartitionState())
        self.note(f"grow {topic.name} to {len(topic.partitions)}")

    def change_settings(self) -> None:
        topic, _, _ = self._any_partition()
        topic.configs["segment.bytes"] = str(self.chance.randint(100_000, 900_000))
        self.note(f"settings of {topic.name}: {topic.configs}")

    def delete_records(self) -> None:
        """Move the begin of a log up, also into a batch."""
        topic, number, partition = self._any_partition()
        log = partition.log
        if partition.diverges_at is not None or log.last_stable_offset <= log.start:
            return
        log.start = self.chance.randint(log.start, log.last_stable_offset)
        self.note(f"delete records of {topic.name}-{number} below {log.start}")

    def note(self, text: str) -> None:
        self.script.append(f"{self.now_ms - NOW_MS:>9} {text}")
