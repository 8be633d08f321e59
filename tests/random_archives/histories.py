"""Random histories: a source cluster and its archive, step by step, from one seed.

`ArchiveHistory` performs random steps on both sides and keeps what the archive must hold after each of its decisions. Of the
package under test only the writing side is used (`ArchiveWriter`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.random_archives.archive_writer import ArchiveWriter, CapturedRange, Response
from tests.random_archives.captured_slots import CapturingWriter
from tests.random_archives.random_sources import TOPICS, Archived, RandomSource, SourcePartitionState

from shallow_mirror.checkpoints.ledger import TopicDescription
from shallow_mirror.types import SourcePartition

HOUR_MS = 3_600_000
CAPTURED_DIGIT = 7
"""Where a seed ends with it, the archive is captured by the package, from a cluster."""


@dataclass(frozen=True, slots=True)
class Decision:
    """`positions` of all partitions that are archived, also of deleted topics."""

    number: int
    at_ms: int
    positions: Mapping[SourcePartition, Archived]


@dataclass(frozen=True, slots=True)
class SeenTopic:
    """A description that the archive recorded, at a time and behind a decision."""

    at_ms: int
    decision: int
    description: TopicDescription


class ArchiveHistory(RandomSource):
    """A random source, and its archive below `folder`."""

    def __init__(self, seed: int, folder: Path) -> None:
        super().__init__(random.Random(seed))
        self.seed = seed
        self.decisions: list[Decision] = []
        self.seen_topics: list[SeenTopic] = []
        self.group_passes: list[tuple[int, dict[tuple[str, SourcePartition], int]]] = []
        """Times, and committed offsets by group."""
        self.lineage_starts: dict[tuple[SourcePartition, int], int] = {}
        self.first_seen: dict[tuple[SourcePartition, int], int] = {}
        """Of a lineage: the time of its first decision."""
        self.lost: list[tuple[SourcePartition, int, int, int]] = []
        """Partition, lineage, and offsets that had expired at the source before they were archived."""
        self.retention = self._random_retention()
        self._step_ms = HOUR_MS if self.retention else 10_000
        for name in TOPICS[: self.chance.choice((1, 2, 2, 3))]:
            self.create(name)
        self.writer = self._writer(folder)

    def _writer(self, folder: Path) -> ArchiveWriter:
        """Return a writer: for one archive in ten the capture of the package."""
        arguments = folder, self.chance, lambda: self.now_ms, self.retention
        if self.seed % 10 == CAPTURED_DIGIT:
            return CapturingWriter(lambda: self.topics, *arguments)
        return ArchiveWriter(*arguments)

    def run(self) -> None:
        """Perform all steps. The last one is a decision."""
        for _ in range(self.chance.randint(15, 50)):
            self.step()
        self._capture()
        while not self.decisions:
            self.now_ms += 1
            self.write()
            self._capture()

    def step(self) -> None:
        """Perform one random step."""
        self.now_ms += self.chance.randint(1, self._step_ms)
        steps: list[tuple[int, Callable[[], None]]] = [
            (50, self.write),
            (10, self.end_transaction),
            (10, self.write_markers),
            (22, self._capture),
            (3, self._crash),
            (7, self.truncate),
            (2, self.recreate),
            (2, self.grow),
            (2, self.change_settings),
            (2, self.delete_records),
            (4 if self.retention else 0, self._expire),
            (2, self._note_groups),
        ]
        (act,) = self.chance.choices([act for _, act in steps], [weight for weight, _ in steps])
        act()

    def _random_retention(self) -> dict[str, dict[str, Any]]:
        if self.chance.random() > 0.25:
            return {}
        rules: tuple[dict[str, Any], ...] = ({"keep": "5 hours"}, {"keep_bytes": 600}, {"keep": "9 hours", "keep_bytes": 2_000})
        return {name: self.chance.choice(rules) for name in TOPICS if self.chance.random() < 0.7}

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
            self.note("crash before a decision")

    def _expire(self) -> None:
        self.writer.expire(self.now_ms)
        self.note("expire")

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
        self.note(f"note groups {len(committed)}")

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
            undecided = frozenset(key for key in former.undecided if key.first_offset < offset) | {
                part.key
                for part in partition.replaced.parts.values()
                if part.first_offset < offset and (part.marker_offset is None or part.marker_offset >= offset)
            }
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
        batches = log.between(begin, end) if begin < end else []  # all may have expired, up to the middle of a batch
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
        # A Fetch response lists the aborted transactions whose markers it can still reach: not those that had expired.
        undecided = partition.archived.undecided
        if captured.responses:
            undecided &= {part.key for part in partition.log.parts.values() if (part.marker_offset or 0) < captured.expired_end}
        partition.archived = Archived(captured.lineage, captured.end, undecided)

    def _decided(self, what: str) -> None:
        """Note what is archived behind the newest decision."""
        positions = dict(self.decisions[-1].positions) if self.decisions else {}
        for source, partition in self._existing():
            if partition.archived is not None:
                positions[source] = partition.archived
                self.first_seen.setdefault((source, partition.archived.lineage), self.now_ms)
        self.decisions.append(Decision(self.writer.decision, self.now_ms, positions))
        self.note(f"decision {self.writer.decision}: {what}")
