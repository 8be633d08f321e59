"""Driver: target topics of source topics that were deleted (`topics.deleted: delete`): deleted after a delay, by topic id.

A mistake here destroys data, so every doubt keeps the topic. Asked again at the moment of deletion, in this order:

- the map: the target topic is the one that this mirror has written, by id, for the deleted incarnation only
- the operator: no topic that is paused, or was ever handed over or received by a migration
- the target: it has that topic, and nothing before or behind what the mirror wrote
- the source: every broker says that it has no topic of the name, with the cluster id that the map names
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from shallow_mirror.broker import Cluster, delete_topic_by_id
from shallow_mirror.broker.cluster import absent_topics
from shallow_mirror.checkpoints import Position
from shallow_mirror.checkpoints.logs.topics import DeletedTopicsTable, TopicControls, TopicIncarnation
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.sinks.kafka.targets.other_writers import first_foreign_batch
from shallow_mirror.types import IsolationLevel, SourcePartition, TargetPartition, TopicPartition

_log = logging.getLogger(__name__)

Positions = Mapping[SourcePartition, Position]


def moment(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration(seconds: float) -> str:
    """Return whole days, hours or minutes, otherwise seconds."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= size and seconds % size == 0:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:g} s"


class FollowedDeletions:
    """Of one query.

    `mirrored`: partitions of the offset map when the query began. `positions` reads those of the map now. `first_copies` reads
    from the map where the first copied record of a source topic is in each target partition. `after_s`: the delay.
    """

    def __init__(
        self,
        table: DeletedTopicsTable,
        mirrored: Iterable[SourcePartition],
        positions: Callable[[], Positions],
        first_copies: Callable[[str], Mapping[TargetPartition, int]],
        controls: Callable[[], TopicControls],
        *,
        source_cluster_id: str,
        is_included: Callable[[str], bool],
        after_s: float,
        run_epoch: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._table, self._positions, self._first_copies, self._controls = table, positions, first_copies, controls
        self._topics = {TopicIncarnation(key.topic, key.topic_id) for key in mirrored if is_included(key.topic)}
        self._source_cluster_id = source_cluster_id
        self._after_s, self._run_epoch, self._now_ms = after_s, run_epoch, now_ms
        self._deleted: dict[TopicIncarnation, str] = {}
        """What was said when the target topic was deleted."""
        self.without_target: frozenset[str] = frozenset()
        """Of the topics that were missing at the last look, those whose target topics are gone as well: nothing is left to do."""

    def follow(self, source: Cluster, target: Cluster, deadline: Deadline) -> dict[str, str]:
        """Record topics that are missing at the source, and delete those that are due. Return a sentence for each missing topic.

        Raises RetriableError, OutcomeUnknownError; nothing more is deleted then.
        """
        missing = self._missing(source, self._topics, deadline)
        known, at_ms = self._table.since_ms(), self._now_ms()
        since_ms = self._table.record(known, missing, run_epoch=self._run_epoch, at_ms=at_ms)
        due_ms = at_ms - int(self._after_s * 1000)
        sentences = {}
        without_target = set[str]()
        for topic in sorted(missing):
            text = f"source topic {topic.topic} (id {topic.topic_id}) was deleted"
            if topic not in known or since_ms[topic] > due_ms:
                # Without the time that is left: a sentence that changed at every look would be a new problem each time.
                due = moment(since_ms[topic] + int(self._after_s * 1000))
                after = f"{duration(self._after_s)} after a run first missed it (topics.deleted_after)"
                sentences[topic.topic] = f"{text}: its target topic is deleted at {due}, {after}"
                continue
            try:
                outcome, is_there = self._outcome(topic, source, target, deadline)
            except MirrorError as error:
                outcome, is_there = f"its target topic is kept: {error}", True
            sentences[topic.topic] = f"{text}: {outcome}"
            if not is_there:
                without_target.add(topic.topic)
        self.without_target = frozenset(without_target)
        return sentences

    def _outcome(self, topic: TopicIncarnation, source: Cluster, target: Cluster, deadline: Deadline) -> tuple[str, bool]:
        """Delete the target topic unless that was done; return the outcome, and whether the target still has the topic."""
        if topic in self._deleted:
            return self._deleted[topic], False
        return self._delete(topic, source, target, deadline)

    def _missing(self, source: Cluster, incarnations: set[TopicIncarnation], deadline: Deadline) -> set[TopicIncarnation]:
        """Return topics of whose names the source has nothing. Raises RetriableError if a broker does not answer."""
        names = {topic.topic for topic in incarnations}
        cluster_id = source.cluster_id(deadline)
        if cluster_id != self._source_cluster_id:
            raise RetriableError("OTHER_CLUSTER", f"the source answers as cluster {cluster_id}, not {self._source_cluster_id}")
        # A name may have had several ids: whatever has it now is there again.
        absent = absent_topics(source, names, deadline)
        return {topic for topic in incarnations if topic.topic in absent}

    def _delete(self, topic: TopicIncarnation, source: Cluster, target: Cluster, deadline: Deadline) -> tuple[str, bool]:
        """Delete the target topic if nothing speaks against it; return as `_outcome`."""
        controls = self._controls()
        if topic.topic in controls.not_copied | controls.received:
            return "its target topic is kept: the topic is paused, or a migration has moved it", True
        positions = self._positions()
        targets = {at.target.topic: at.target.topic_id for key, at in positions.items() if TopicIncarnation(*key[:2]) == topic}
        if len(targets) != 1:
            return f"its target topic is kept: the offset map names {len(targets)}", True
        ((name, topic_id),) = targets.items()
        ends = {key: at for key, at in positions.items() if at.target.topic == name and at.target.topic_id == topic_id}
        if any(key.topic != topic.topic for key in ends):
            return f"target topic {name} is kept: another source topic is mirrored to it as well", True
        listed = target.metadata([name], deadline).topics[name]
        if listed.error_code or listed.topic_id != topic_id:
            return f"target topic {name} (id {topic_id}) is not there any more", False
        foreign = self._foreign_before(target, topic, ends.values(), deadline) or self._foreign(
            target, name, listed.partitions, ends.values(), deadline
        )
        if foreign is not None:
            return f"target topic {name} is kept: {foreign}", True
        if topic not in self._missing(source, {topic}, deadline):
            return f"target topic {name} is kept: the source has a topic of this name again", True
        delete_topic_by_id(target, name, topic_id, deadline)
        _log.warning("target topic %s (id %s) was deleted: topics.deleted is delete", name, topic_id)
        self._deleted[topic] = f"the mirror has deleted target topic {name} (id {topic_id}) as well (topics.deleted: delete)"
        return self._deleted[topic], False

    def _foreign_before(
        self, target: Cluster, topic: TopicIncarnation, positions: Iterable[Position], deadline: Deadline
    ) -> str | None:
        """Return the records that a log held before the mirror wrote to it; None: none. Preserved topics begin empty."""
        first_copies = self._first_copies(topic.topic)
        for copied_to in sorted({at.target for at in positions if at.target_end > 0 and at.shared_producer_id is None}):
            found = first_foreign_batch(target, [copied_to.topic_partition], (), IsolationLevel.READ_COMMITTED, deadline)
            if found is not None and found[1] < first_copies.get(copied_to, 0):
                return f"{found[0]} has a batch at offset {found[1]}, before the first copied record"
        return None

    def _foreign(
        self, target: Cluster, name: str, partitions: Iterable[int], positions: Iterable[Position], deadline: Deadline
    ) -> str | None:
        """Return the records in the log that the mirror did not write, behind those of the map; None: none."""
        keys = [TopicPartition(name, partition) for partition in partitions]
        found = first_foreign_batch(target, keys, positions, IsolationLevel.READ_UNCOMMITTED, deadline)
        return None if found is None else f"{found[0]} has a batch at offset {found[1]} that the offset map does not name"
