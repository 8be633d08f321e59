"""Driver: topics of an archive that were deleted at the source: since when they are missing, and whose time is over."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Set

from shallow_mirror.broker import Cluster, ClusterMetadata
from shallow_mirror.broker.cluster import gone_topics, is_incarnation_gone
from shallow_mirror.checkpoints.logs.topics import DeletedTopicsTable, TopicIncarnation
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError

_log = logging.getLogger(__name__)


class DeletedTopics:
    """Asks the source, and records the answer. A source that does not answer, or not for a topic, changes nothing."""

    def __init__(
        self,
        source: Cluster,
        cluster_id: str,
        table: DeletedTopicsTable,
        keep_s: float | None,
        *,
        run_epoch: int,
        deadline: Callable[[], Deadline],
        now_ms: Callable[[], int],
    ) -> None:
        """Delete the archived data of such topics after `keep_s`; None: never."""
        self._source, self._cluster_id, self._table = source, cluster_id, table
        self._keep_s, self._run_epoch = keep_s, run_epoch
        self._deadline, self._now_ms = deadline, now_ms

    def expired(self, archived: Iterable[TopicIncarnation]) -> frozenset[TopicIncarnation]:
        """Return the topics that are missing now, and have been for longer than they are kept.

        The source has said so when it was recorded, and all of its brokers say so now. Raises nothing.
        """
        archived = frozenset(archived)
        try:
            metadata = self._source.metadata(sorted({topic.topic for topic in archived}), self._deadline())
            if metadata.cluster_id != self._cluster_id:
                _log.warning("deleted topics were not looked for: cluster %s answers", metadata.cluster_id)
                return frozenset()
            missing = missing_incarnations(metadata, archived)
            known, at_ms = self._table.since_ms(), self._now_ms()
            since_ms = self._table.record(known, missing, run_epoch=self._run_epoch, at_ms=at_ms)
        except MirrorError as error:
            _log.warning("deleted topics were not looked for, nothing of them is deleted: %s", error)
            return frozenset()
        for topic in sorted(missing - known.keys()):
            kept = "is kept" if self._keep_s is None else f"is kept for {self._keep_s / 86_400:g} days (deleted_topics.keep)"
            _log.warning("topic %s (id %s) was deleted at the source: what is archived of it %s", *topic, kept)
        if self._keep_s is None:
            return frozenset()
        latest_ms = at_ms - int(self._keep_s * 1000)
        try:
            return self._confirmed(topic for topic, at in since_ms.items() if topic in known and at <= latest_ms)
        except MirrorError as error:
            _log.warning("what is archived of deleted topics is kept until all brokers of the source answer: %s", error)
            return frozenset()

    def _confirmed(self, topics: Iterable[TopicIncarnation]) -> frozenset[TopicIncarnation]:
        """Return which of these topics no broker has. One that has only just started lacks topics that are there."""
        left, confirmed = sorted(topics), set[TopicIncarnation]()
        while left:
            ids = dict(left)  # one incarnation of each name at once
            gone = gone_topics(self._source, ids, self._deadline(), asks_all=True)
            confirmed.update(TopicIncarnation(name, ids[name]) for name in gone)
            left = [topic for topic in left if ids[topic.topic] != topic.topic_id]
        return frozenset(confirmed)


def missing_incarnations(metadata: ClusterMetadata, archived: Collection[TopicIncarnation]) -> Set[TopicIncarnation]:
    """Return the topics that the cluster does not have, or has under another id."""
    return {topic for topic in archived if is_incarnation_gone(metadata.topics.get(topic.topic), topic.topic_id)}
