"""Driver and reading commands: what an archive had of a topic at a cut: its incarnation, partitions, lineages and description.

The only place that decides it, for restore, dry run, verify, `ArchiveReader` and SQL. Without a cut, and by decision, the newest
that the archive had seen counts. By time it is the newest that the archive had seen at that time. Two rules for what an archive
cannot know from its decisions alone:

- The time lies between the last decision or description without a trace of the next topic id (partition, lineage) and the first
  one with a trace. Then records decide: the next one counts if its first record that a consumer sees is not newer than the time.
  Records that claim to be older than the last one without a trace do not count: they were written later, with an old timestamp,
  as when a topic is filled again from a copy.
- The archive had seen none at that time. Then the first one counts that it saw: the archive began after the cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise

import pyarrow.compute as pc

from shallow_mirror.archive_reading.archive_history import Incarnation, as_text, read_history
from shallow_mirror.archive_reading.cuts import first_visible_record
from shallow_mirror.archive_reading.segment_reader import SegmentBatches, SegmentReader
from shallow_mirror.checkpoints.ledger import (
    ArchivedTopics,
    ArchiveTable,
    RestoreRanges,
    SeenTopic,
    TopicDescription,
    of_partition,
)
from shallow_mirror.checkpoints.rows import SegmentState
from shallow_mirror.checkpoints.tables import Comparison, Condition, TableStorage, ms_of
from shallow_mirror.errors import ConfigError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.types import IsolationLevel, SourcePartition

_VISIBLE = Comparison("state", "=", SegmentState.COPY_SEGMENT_FINISHED.value)
_MOST_ROWS = 1_000
"""In memory at once where the first record of a partition is looked for: mostly it is in its first rows."""
_SHOWN_IDS = 10
_INSTANT = timedelta(microseconds=1)


Evidence = Callable[[int, int], str | None]
"""Of several: a sentence that shows that one was there at the cut, and had not been before a time; None where nothing does."""
LineageOf = Callable[[int], int | None]
"""The lineage of a partition that is asked for; None: that of the cut."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicAtCut:
    """One topic, of which one incarnation counts."""

    incarnation: Incarnation
    lineages: Mapping[int, int]
    """Of each partition that the topic had, the lineage whose log counts."""
    later_partitions: tuple[int, ...]
    """Partitions with rows that the topic did not have yet."""
    notes: tuple[str, ...]
    """A sentence for each choice between several."""

    def has(self, source: SourcePartition) -> bool:
        return source.topic_id == self.incarnation.topic_id and source.partition in self.lineages


class StateAtCut:
    """The state of an archive at a time, after a decision, or with neither the newest. Of one version of its table."""

    def __init__(
        self,
        table: ArchiveTable,
        store: ObjectStore | None = None,
        *,
        time_ms: int | None = None,
        decision: int | None = None,
        seen: Sequence[SeenTopic] = (),
        isolation: IsolationLevel = IsolationLevel.READ_COMMITTED,
    ) -> None:
        """`store`: needed with a time. `seen`: descriptions of the archive's topics. `isolation`: whose records decide."""
        self._table = table
        self._store = store
        self._time_ms = time_ms
        self._decision = decision
        # What was seen behind a decision carries its number: it was the newest one then.
        self._seen = [each for each in seen if decision is None or each.micro_batch < decision]
        self._isolation = isolation
        self._last_without: dict[int, int] = {}

    def history(self, condition: Condition = ()) -> dict[str, list[Incarnation]]:
        """Return the incarnations of topics, up to the decision. `condition`: as of `read_history`."""
        up_to = () if self._decision is None else (Comparison("micro_batch", "<=", self._decision),)
        return read_history(self._table, (*condition, *up_to), self._seen)

    def topic(
        self, incarnations: Sequence[Incarnation], topic_id: str | None = None, lineage_of: LineageOf = lambda _partition: None
    ) -> TopicAtCut:
        """Return the state of a topic. `incarnations`: all of it. `topic_id`: of the one that counts, which must have rows.

        Raises as `SegmentReader`, if records decide.
        """
        candidates = [each for each in incarnations if each.has_rows]
        if topic_id is not None:
            chosen, why = next(each for each in candidates if each.topic_id == topic_id), "it was asked for"
        else:
            seen_ms = [seen.seen_at_ms for each in incarnations for seen in each.seen]
            first_ms = [each.first_ms for each in candidates]
            number, why = self._newest(first_ms, seen_ms, lambda i, without_ms: self._evidence_of(candidates[i], without_ms))
            chosen = candidates[number]
        notes = []
        if len(incarnations) > 1:
            ids = ", ".join(each.sentence() for each in incarnations)
            notes.append(
                f"topic {chosen.topic} was deleted and created again while it was archived: {ids}; of these topic ids "
                f"{chosen.topic_id} counts: {why}"
            )
        lineages: dict[int, int] = {}
        later: list[int] = []
        began_ms = chosen.first_ms
        for partition in sorted(chosen.partitions):
            wanted = lineage_of(partition)
            if not self._has_partition(chosen, began_ms, partition, notes):
                later.append(partition)
            elif wanted is not None:
                lineages[partition] = wanted
            else:
                lineages[partition] = self._lineage_of(chosen, partition, notes)
        if later:
            names = ", ".join(f"{chosen.topic}-{partition}" for partition in later)
            notes.append(f"{names}: the topic did not have these partitions at the cut")
        return TopicAtCut(incarnation=chosen, lineages=lineages, later_partitions=tuple(later), notes=tuple(notes))

    def _newest(self, first_ms: Sequence[int], seen_ms: Sequence[int], evidence: Evidence) -> tuple[int, str]:
        """Return which of several, which the archive saw first at these times, counts, and why.

        `seen_ms`: when any of them was looked at.
        """
        last = len(first_ms) - 1
        if self._time_ms is None:
            return last, "the newest" if self._decision is None else f"the newest up to decision {self._decision}"
        seen = [i for i, at_ms in enumerate(first_ms) if at_ms <= self._time_ms]
        chosen = seen[-1] if seen else 0
        why = "the newest that the archive had seen at the cut" if seen else "the archive had seen none at the cut, and it first"
        for i in range(chosen + 1, len(first_ms)):
            without_ms = self._last_look_before(first_ms[i], seen_ms)
            if self._time_ms <= without_ms:
                break
            since = (
                f"between {as_text(without_ms)}, when the archive had not seen the next one, and" if without_ms >= 0 else "before"
            )
            between = f"the cut lies {since} {as_text(first_ms[i])}, when it had"
            shown = evidence(i, without_ms)
            if shown is None:
                why = f"{between}; no record of the next one is of the time between"
            else:
                chosen, why = i, f"{between}; {shown}"
        return chosen, why

    def _last_look_before(self, at_ms: int, seen_ms: Iterable[int]) -> int:
        """Return the time of the last decision or description before a time; -1 without one. `seen_ms`: of descriptions."""
        return max([self._last_decided_before(at_ms), *(look_ms for look_ms in seen_ms if look_ms < at_ms)])

    def _last_decided_before(self, at_ms: int) -> int:
        if at_ms not in self._last_without:
            before = Comparison("decided_at", "<=", _at(at_ms) - _INSTANT)
            times = [pc.max(piece["decided_at"]).as_py() for piece in self._table.pieces((before,), ["decided_at"])]
            self._last_without[at_ms] = max((ms_of(at) for at in times if at is not None), default=-1)
        return self._last_without[at_ms]

    def _has_partition(self, incarnation: Incarnation, began_ms: int, partition: int, notes: list[str]) -> bool:
        """Return whether the topic had a partition. All that it had when the archive saw it first count from before then on."""
        if self._time_ms is None:
            return True
        first_ms = incarnation.first_ms_of(partition)
        if first_ms <= max(self._time_ms, began_ms):
            return True
        # Without a description the first rows of a partition may only say that it had no records before.
        if began_ms > self._time_ms and not incarnation.seen:
            return True
        if min(trace.start for trace in incarnation.partitions[partition].values()) > 0:
            return True  # a new partition begins at 0: this one was there before the archive could read it
        without_ms = self._last_look_before(first_ms, (seen.seen_at_ms for seen in incarnation.seen))
        if began_ms > self._time_ms or self._time_ms <= without_ms:
            return False
        source = SourcePartition(incarnation.topic, incarnation.topic_id, partition)
        shown = self._first_until_cut(of_partition(source), without_ms)
        if shown is not None:
            notes.append(
                f"{source.topic_partition} was added between {as_text(without_ms)} and {as_text(first_ms)}, and the cut lies "
                f"between: the topic had it, {shown}"
            )
        return shown is not None

    def _lineage_of(self, incarnation: Incarnation, partition: int, notes: list[str]) -> int:
        numbers = sorted(incarnation.partitions[partition])
        if len(numbers) == 1:
            return numbers[0]
        source = SourcePartition(incarnation.topic, incarnation.topic_id, partition)
        traces = [incarnation.partitions[partition][number] for number in numbers]

        def evidence(i: int, without_ms: int) -> str | None:
            return self._evidence_of_lineage(source, numbers[i - 1], numbers[i], traces[i].start, without_ms)

        chosen, why = self._newest([trace.first_ms for trace in traces], (), evidence)
        if self._time_ms is not None:
            notes.append(
                f"{source.topic_partition}: of its lineages {', '.join(map(str, numbers))} the log of {numbers[chosen]} counts: "
                f"{why}"
            )
        return numbers[chosen]

    def _evidence_of(self, incarnation: Incarnation, without_ms: int) -> str | None:
        topic, topic_id = incarnation.topic, incarnation.topic_id
        of_topic = Comparison("source_topic", "=", topic), Comparison("source_topic_id", "=", topic_id)
        return self._first_until_cut(of_topic, without_ms)

    def _evidence_of_lineage(self, source: SourcePartition, former: int, lineage: int, start: int, without_ms: int) -> str | None:
        """Return the evidence that a lineage that begins at an offset was there: its first record that is not of the former log.

        It may begin with records that both logs have, if the divergent offset was too low, and with some that a leader had
        written before the last one of the former log. Both were there before the truncation.
        """
        lost = (_VISIBLE, *of_partition(source), Comparison("lineage", "<=", former), Comparison("source_end", ">", start))
        before = self._table.rows(lost)
        newest_epoch = max((row.segment.source_leader_epoch or 0 for row in before), default=0)
        view = self._table.lineages(of_partition(source)).view(source, former)
        assert self._store is not None
        former_rows = [clipped for row in before if (clipped := view.clipped_row(row)) is not None]
        is_repeated = _RepeatedBatches(SegmentReader(self._store, former_rows, start)).contains

        def is_left_out(batches: SegmentBatches, i: int) -> bool:
            return int(batches.index.headers["partition_leader_epoch"][i]) < newest_epoch or is_repeated(batches, i)

        return self._first_until_cut((*of_partition(source), Comparison("lineage", "=", lineage)), without_ms, is_left_out)

    def _first_until_cut(
        self,
        condition: Condition,
        after_ms: int,
        is_left_out: Callable[[SegmentBatches, int], bool] = lambda _batches, _i: False,
    ) -> str | None:
        """Return the first record of a partition newer than a time, as a sentence, if it is not newer than the cut; else None."""
        assert self._store is not None
        assert self._time_ms is not None
        settled: set[SourcePartition] = set()
        for window in self._table.windows((*condition, _VISIBLE), _MOST_ROWS):
            rows = self._table.rows((*condition, *window))
            for source, of_source in groupby(rows, key=lambda row: row.segment.source):
                if source in settled:
                    continue
                segments = list(of_source)
                first = first_visible_record(self._store, segments, self._isolation, after_ms=after_ms, is_left_out=is_left_out)
                if first is None:
                    continue
                settled.add(source)
                offset, at_ms = first
                if at_ms is not None and at_ms <= self._time_ms:
                    return (
                        f"a record in {source.topic_partition}, at offset {offset} or in the same batch, is of {as_text(at_ms)}"
                    )
        return None


def topics_to_scan(
    state: StateAtCut, condition: Condition, topic_ids: frozenset[str] | None, lineage: int | None
) -> dict[str, list[TopicAtCut]]:
    """Return the incarnations of each topic that a query reads, for `plan_scan`.

    `condition`: as of `StateAtCut.history`. `topic_ids`: of topics of which other incarnations are read than that of the cut;
    None: all incarnations are read. `lineage`: the one of each partition that is read; None: that of the cut. Raises ConfigError
    for ids that none of the topics has, and as `StateAtCut.topic`.
    """
    history = state.history(condition)
    known = {each.topic_id for of_topic in history.values() for each in of_topic if each.has_rows}
    unknown = sorted((topic_ids or frozenset()) - known)
    if unknown:
        several = [each.sentence() for of_topic in history.values() if len(of_topic) > 1 for each in of_topic][:_SHOWN_IDS]
        shown = f"topics that were created again have {'; '.join(several)}" if several else "no topic was created again"
        raise ConfigError(f"topicIds: the archive has no topic with id {', '.join(unknown)}; {shown}")
    topics: dict[str, list[TopicAtCut]] = {}
    for topic, incarnations in history.items():
        ids: list[str | None] = [
            each.topic_id for each in incarnations if each.has_rows and (topic_ids is None or each.topic_id in topic_ids)
        ]
        topics[topic] = [state.topic(incarnations, topic_id, lambda _partition: lineage) for topic_id in ids or [None]]
    return topics


class _RepeatedBatches:
    """The batches of a log, in order: which batches of another log are the same ones. To be asked in the order of offsets."""

    def __init__(self, log: SegmentReader) -> None:
        self._batches = (_key(batches, i) for batches in log for i in range(len(batches.index)))
        self._next = next(self._batches, None)

    def contains(self, batches: SegmentBatches, i: int) -> bool:
        key = _key(batches, i)
        while self._next is not None and self._next[0] < key[0]:
            self._next = next(self._batches, None)
        return self._next == key


def _key(batches: SegmentBatches, i: int) -> tuple[int, int, int]:
    headers = batches.index.headers
    return int(headers["base_offset"][i]), int(headers["partition_leader_epoch"][i]), int(headers["crc"][i])


def described_topics(
    storage: TableStorage, decided: RestoreRanges, *, time_ms: int | None, decision: int | None
) -> dict[str, TopicDescription]:
    """Return partitions and settings of each topic that is restored, as they were at the cut. Raises ConfigError without them.

    `storage`: of the archive. `time_ms`, `decision`: of the cut.
    """
    ids = {source.topic: source.topic_id for source in decided.ranges}
    last_decision = decided.last_decision if decision is None else decision - 1
    described = ArchivedTopics.of(storage).described(ids, last_decision, time_ms)
    # Where records show that a partition was there, the description may be older.
    least = {
        topic: 1 + max(source.partition for source in of_topic)
        for topic, of_topic in groupby(sorted(decided.ranges), key=lambda source: source.topic)
    }
    return {
        topic: replace(description, partitions=max(description.partitions, least[topic]))
        for topic, description in described.items()
    }


def group_times(history: Mapping[str, Sequence[Incarnation]], topic_ids: Mapping[str, str], at: datetime) -> dict[str, datetime]:
    """Return for each topic up to which time positions of groups belong to a cut.

    `topic_ids`: of the incarnation that is restored. `at`: of the cut. If another incarnation had followed at that time, the
    groups had lost their offsets: those count that were recorded up to the last decision with the one that is restored.
    """
    times = dict.fromkeys(topic_ids, at)
    for topic, topic_id in topic_ids.items():
        for restored, following in pairwise(history.get(topic, ())):
            if restored.topic_id == topic_id and _at(following.first_ms) <= at:
                times[topic] = min(at, _at(restored.last_ms))
    return times


def _at(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1000, UTC)
