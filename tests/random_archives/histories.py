"""Random histories: a source cluster and its archive, step by step, from one seed.

`ArchiveHistory` performs random steps on both sides and keeps what the archive must hold after each of its decisions. The truth
is in `SourceLog`; of the package under test only the writing side is used (`ArchiveWriter`).
"""

from __future__ import annotations

import base64
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.random_archives.archive_writer import ArchiveWriter, CapturedRange, Response
from tests.random_archives.random_batches import RandomBatches, marker_batch
from tests.random_archives.source_logs import SourceLog, TxnKey, TxnPart
from tests.support.archives import NOW_MS

from shallow_mirror.checkpoints.archived_topics import TopicDescription
from shallow_mirror.types import SourcePartition

TOPICS = ("orders", "payments", "refunds")
HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class Archived:
    """Of one partition after a decision: `end` is its position in the log of `lineage`.

    `undecided`: transactions of this log below the end whose outcome no row of the lineage tells yet: the truncation that began
    it took their markers.
    """

    lineage: int
    end: int
    undecided: frozenset[TxnKey] = frozenset()


@dataclass(frozen=True, slots=True)
class Decision:
    """`positions` of all partitions that are archived, also of deleted topics."""

    number: int
    at_ms: int
    positions: Mapping[SourcePartition, Archived]


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


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A description that the archive recorded, at a time and behind a decision."""

    at_ms: int
    decision: int
    description: TopicDescription


@dataclass(slots=True)
class OpenTxn:
    """A transaction of the cluster that has not ended."""

    producer_id: int
    producer_epoch: int
    has_own_epoch: bool


class ArchiveHistory:
    """One archive below `folder`, of a source that exists in memory only."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed = seed
        self.chance = chance = random.Random(seed)
        self.now_ms = NOW_MS
        self.script: list[str] = []
        self.decisions: list[Decision] = []
        self.seen_topics: list[SeenTopic] = []
        self.group_passes: list[tuple[int, dict[tuple[str, SourcePartition], int]]] = []
        """Times, and committed offsets by group."""
        self.logs: dict[tuple[SourcePartition, int], SourceLog] = {}
        """The log of every lineage that is archived, by its number."""
        self.lineage_starts: dict[tuple[SourcePartition, int], int] = {}
        self.first_seen: dict[tuple[SourcePartition, int], tuple[int, int]] = {}
        """Of a lineage: the times of its first decision, and of the decision before that."""
        self.lost: list[tuple[SourcePartition, int, int, int]] = []
        """Partition, lineage, and offsets that had expired at the source before they were archived."""
        self.topics: dict[str, SourceTopic] = {}
        self.deleted: list[SourceTopic] = []
        self.versions = chance.choice(("own epochs", "own epochs", "own epochs", "shared epochs", "both"))
        self._epochs: dict[int, int] = {}
        self._open: dict[int, OpenTxn] = {}
        self._batches = RandomBatches(chance)
        self.retention = self._random_retention()
        self._step_ms = HOUR_MS if self.retention else 10_000
        self._ids = 0
        for name in TOPICS[: chance.choice((1, 2, 2, 3))]:
            self._create(name)
        self.writer = ArchiveWriter(folder, chance, lambda: self.now_ms, self.retention)

    def run(self) -> None:
        """Perform all steps. The last one is a decision."""
        for _ in range(self.chance.randint(15, 50)):
            self.step()
        self._capture()
        while not self.decisions:
            self.now_ms += 1
            self._write()
            self._capture()

    def step(self) -> None:
        """Perform one random step."""
        self.now_ms += self.chance.randint(1, self._step_ms)
        steps: list[tuple[int, Callable[[], None]]] = [
            (50, self._write),
            (10, self._end_transaction),
            (10, self._write_markers),
            (22, self._capture),
            (3, self._crash),
            (7, self._truncate),
            (2, self._recreate),
            (2, self._grow),
            (2, self._change_settings),
            (2, self._delete_records),
            (4 if self.retention else 0, self._expire),
            (2, self._note_groups),
        ]
        (act,) = self.chance.choices([act for _, act in steps], [weight for weight, _ in steps])
        act()

    # --- the source ---

    def _random_retention(self) -> dict[str, dict[str, Any]]:
        if self.chance.random() > 0.25:
            return {}
        rules: tuple[dict[str, Any], ...] = ({"keep": "5 hours"}, {"keep_bytes": 600}, {"keep": "9 hours", "keep_bytes": 2_000})
        return {name: self.chance.choice(rules) for name in TOPICS if self.chance.random() < 0.7}

    def _create(self, name: str) -> None:
        self._ids += 1
        topic_id = (
            base64.urlsafe_b64encode(self.chance.getrandbits(112).to_bytes(14) + self._ids.to_bytes(2)).decode().rstrip("=")
        )
        partitions = [SourcePartitionState() for _ in range(self.chance.randint(1, 3))]
        self.topics[name] = SourceTopic(name, topic_id, {"retention.ms": "-1", "segment.bytes": "100000"}, partitions)
        self._note(f"create {name} {topic_id} with {len(partitions)} partitions")

    def _archived_partition(self) -> tuple[SourceTopic, int, SourcePartitionState]:
        """Return a partition that is archived, if the chosen one or another is."""
        tries = [self._any_partition() for _ in range(4)]
        return next((found for found in tries if found[2].archived is not None and found[2].archived.end > 0), tries[0])

    def _any_partition(self) -> tuple[SourceTopic, int, SourcePartitionState]:
        topic = self.chance.choice([self.topics[name] for name in sorted(self.topics)])
        number = self.chance.randrange(len(topic.partitions))
        return topic, number, topic.partitions[number]

    def _write(self) -> None:
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
            self._note(f"write {topic.name}-{number} [{batch.base_offset}, {batch.end_offset}) {what}")

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

    def _end_transaction(self) -> None:
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
        self._note(f"{'commit' if is_committed else 'abort'} {txn.producer_id} epoch {txn.producer_epoch}")
        if self.chance.random() < 0.7:
            self._write_markers()

    def _write_markers(self) -> None:
        for name in sorted(self.topics):
            for number, partition in enumerate(self.topics[name].partitions):
                for part in partition.log.open_parts:
                    if part.is_committed is not None and self.chance.random() < 0.8:
                        self._write_marker(partition.log, part)
                        self._note(f"marker of {part.producer_id} in {name}-{number} at {partition.log.end - 1}")

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

    def _truncate(self) -> None:
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
        self._note(f"truncate {topic.name}-{number} to {offset}, archived to {end}, markers lost: {[part.key for part in lost]}")

    def _recreate(self) -> None:
        name = self.chance.choice(sorted(self.topics))
        self.deleted.append(self.topics.pop(name))
        self._note(f"delete {name}")
        self._create(name)

    def _grow(self) -> None:
        topic, _, _ = self._any_partition()
        topic.partitions.append(SourcePartitionState())
        self._note(f"grow {topic.name} to {len(topic.partitions)}")

    def _change_settings(self) -> None:
        topic, _, _ = self._any_partition()
        topic.configs["segment.bytes"] = str(self.chance.randint(100_000, 900_000))
        self._note(f"settings of {topic.name}: {topic.configs}")

    def _delete_records(self) -> None:
        """Move the begin of a log up, also into a batch."""
        topic, number, partition = self._any_partition()
        log = partition.log
        if partition.diverges_at is not None or log.last_stable_offset <= log.start:
            return
        log.start = self.chance.randint(log.start, log.last_stable_offset)
        self._note(f"delete records of {topic.name}-{number} below {log.start}")

    # --- the archive ---

    def _capture(self) -> None:
        self._describe()
        self._begin_lineages()
        self._register()
        slots = self._plan()
        if slots:
            self.writer.capture(slots)
            for captured in (captured for of_slot in slots for captured in of_slot):
                self._take(captured)
            self._decided(
                "capture " + "; ".join(f"{c.source.topic}-{c.source.partition} [{c.start}, {c.end})" for s in slots for c in s)
            )

    def _crash(self) -> None:
        if slots := self._plan():
            self.writer.crash(slots)
            self._note("crash before a decision")

    def _expire(self) -> None:
        self.writer.expire(self.now_ms)
        self._note("expire")

    def _note_groups(self) -> None:
        """Let groups read, and note their offsets. A group may be deleted."""
        committed = dict(self.group_passes[-1][1]) if self.group_passes else {}
        existing = dict(self._existing())
        committed = {key: offset for key, offset in committed.items() if key[1] in existing and self.chance.random() < 0.9}
        for source, partition in existing.items():
            if self.chance.random() < 0.4:
                committed[self.chance.choice(("billing", "search")), source] = self.chance.randint(0, partition.log.end)
        self.writer.note_groups(committed, self.now_ms, is_whole=not self.group_passes or self.chance.random() < 0.3)
        self.group_passes.append((self.now_ms, committed))
        self._note(f"note groups {len(committed)}")

    def _describe(self) -> None:
        changed = [topic for _, topic in sorted(self.topics.items()) if topic.described != topic.description()]
        if changed:
            self.writer.describe([topic.description() for topic in changed], self.now_ms)
        for topic in changed:
            topic.described = topic.description()
            self.seen_topics.append(SeenTopic(self.now_ms, self.writer.decision, topic.description()))

    def _existing(self) -> list[tuple[SourcePartition, SourcePartitionState]]:
        return [
            (topic.source(number), partition)
            for _, topic in sorted(self.topics.items())
            for number, partition in enumerate(topic.partitions)
        ]

    def _begin_lineages(self) -> None:
        begun: dict[SourcePartition, tuple[int, int, int]] = {}
        for source, partition in self._existing():
            if partition.diverges_at is None or partition.archived is None or partition.replaced is None:
                continue
            offset = partition.diverges_at
            if self.chance.random() < 0.2:  # compaction may let the archive begin the lineage too early
                offset = self.chance.choice(
                    [offset, *partition.log.boundaries(max(partition.log.start, partition.start), offset)]
                )
            log, former = partition.log, partition.archived
            undecided = frozenset(
                part.key
                for part in partition.replaced.parts.values()
                if part.first_offset < offset and (part.marker_offset is None or part.marker_offset >= offset)
            )
            partition.archived = Archived(former.lineage + 1, offset, undecided)
            partition.diverges_at = partition.replaced = None
            self.logs[source, former.lineage + 1] = log
            self.lineage_starts[source, former.lineage + 1] = offset
            begun[source] = (former.lineage + 1, offset, max(0, log.leader_epoch - 1))
        if begun:
            self.writer.begin_lineages(begun)
            self._decided(f"begin lineages {begun}")

    def _register(self) -> None:
        new = [
            (source, partition)
            for source, partition in self._existing()
            if partition.archived is None and self.chance.random() < 0.8
        ]
        for source, partition in new:
            log = partition.log
            late = [offset for offset in log.boundaries(log.start, log.last_stable_offset) if offset > 0]
            partition.start = self.chance.choice(late) if late and self.chance.random() < 0.1 else 0
            partition.archived = Archived(0, partition.start)
            self.logs[source, 0], self.lineage_starts[source, 0] = log, partition.start
        if new:
            self.writer.register({source: partition.start for source, partition in new})
            self._decided(f"register {[(source.topic, source.partition, partition.start) for source, partition in new]}")

    def _plan(self) -> list[list[CapturedRange]]:
        """Return the ranges of one decision, by slot."""
        ranges = [
            captured
            for source, partition in self._existing()
            if self.chance.random() < 0.85 and (captured := self._range_of(source, partition)) is not None
        ]
        self.chance.shuffle(ranges)
        slots: list[list[CapturedRange]] = [[] for _ in range(self.chance.randint(1, 3))]
        for captured in ranges:
            self.chance.choice(slots).append(captured)
        return [of_slot for of_slot in slots if of_slot]

    def _range_of(self, source: SourcePartition, partition: SourcePartitionState) -> CapturedRange | None:
        """Return what the archive reads of a partition next, at most up to the last stable offset."""
        archived, log = partition.archived, partition.log
        if archived is None or partition.diverges_at is not None:
            return None
        begin = max(archived.end, log.start)
        ends = [batch.end_offset for batch in log.batches if begin < batch.end_offset <= log.last_stable_offset]
        if log.last_stable_offset > begin:
            ends.append(log.last_stable_offset)  # behind the last batch the cleaner may have left a hole
        if not ends and begin == archived.end:
            return None
        end = max([begin, *ends]) if self.chance.random() < 0.6 else self.chance.choice(ends or [begin])
        batches = log.between(begin, end)
        responses: list[Response] = []
        while batches:
            count = self.chance.randint(1, len(batches))
            of_response, batches = batches[:count], batches[count:]
            first = max(begin, of_response[0].base_offset) if responses else begin
            responses.append(Response(source, of_response, log.aborted(first, of_response[-1].end_offset)))
        return CapturedRange(source, archived.end, end, archived.lineage, begin, responses)

    def _take(self, captured: CapturedRange) -> None:
        partition = self.topics[captured.source.topic].partitions[captured.source.partition]
        assert partition.archived is not None
        if captured.expired_end > captured.start:
            self.lost.append((captured.source, captured.lineage, captured.start, captured.expired_end))
        undecided = frozenset[TxnKey]() if captured.responses else partition.archived.undecided
        partition.archived = Archived(captured.lineage, captured.end, undecided)

    def _decided(self, what: str) -> None:
        """Note what is archived behind the newest decision."""
        positions = dict(self.decisions[-1].positions) if self.decisions else {}
        before_ms = self.decisions[-1].at_ms if self.decisions else -1
        for source, partition in self._existing():
            if partition.archived is not None:
                positions[source] = partition.archived
                self.first_seen.setdefault((source, partition.archived.lineage), (self.now_ms, before_ms))
        self.decisions.append(Decision(self.writer.decision, self.now_ms, positions))
        self._note(f"decision {self.writer.decision}: {what}")

    def _note(self, text: str) -> None:
        self.script.append(f"{self.now_ms - NOW_MS:>9} {text}")
