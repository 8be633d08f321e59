"""Driver: requests to the target for the tasks of the next round, sent while nothing waits for them.

When everything of a decision is visible, its transactional ids can be initialised for the next round. The answers arrive while
Spark plans and starts the next micro-batch, so that on a long path a task does not wait for round trips of its own.

Each request is answered, or has failed, before anything else is asked of its transactional id: a request that is overtaken would
fence whoever came later.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from shallow_mirror.broker import Cluster, ClusterMetadata, CoordinatorKind, KnownCluster, PathSpeeds
from shallow_mirror.broker.net import BegunCall
from shallow_mirror.broker.produce.txn import (
    BegunAddition,
    BegunRequest,
    begin_addition,
    begin_init_producer_id,
    finish_addition,
    finish_init_producer_id,
)
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.sinks.kafka.protocol.target_availability import TargetAvailability
from shallow_mirror.types import SlotTxn, TopicPartition

_log = logging.getLogger(__name__)

EPOCHS_FOR_S = 60.0
"""A producer epoch that was taken ahead is used within this time, or never: coordinators forget unused ids."""

METADATA_FOR_S = 2.0
"""Metadata that was asked for ahead is new within this time: later, which partitions can be written may have changed."""

MOST_TOPICS = 100
"""Metadata of more topics is left to the tasks, which ask for those of their slots only."""


class NextRound:
    """Requests on their way, and their answers. `availability` keeps the producer epochs."""

    def __init__(
        self,
        target: Cluster,
        availability: TargetAvailability,
        *,
        transaction_timeout_ms: int,
        clock: Callable[[], float],
        source: Cluster | None = None,
    ) -> None:
        self._target, self._source, self._availability = target, source, availability
        self._transaction_timeout_ms = transaction_timeout_ms
        self._clock = clock
        self._epochs: list[BegunRequest] = []
        self._additions: list[BegunAddition] = []
        self._metadata: BegunCall[ClusterMetadata] | None = None
        self._source_metadata: BegunCall[ClusterMetadata] | None = None
        self._target_known: ClusterMetadata | None = None
        self._source_known: ClusterMetadata | None = None
        self._begun_at = clock()

    def begin(self, names: Sequence[str], topics: Sequence[str], source_topics: Sequence[str], deadline: Deadline) -> None:
        """Ask for a producer epoch of each id, and for metadata of the topics. Only when nothing of these ids is unsettled."""
        self._begun_at = self._clock()
        self._epochs = [begin_init_producer_id(self._target, name, self._transaction_timeout_ms, deadline) for name in names]
        self._metadata = _begin_metadata(self._target, topics, deadline)
        self._source_metadata = _begin_metadata(self._source, source_topics, deadline)

    def finish(self, deadline: Deadline) -> None:
        """Wait for the producer epochs that were asked for. The tasks ask for missing ones themselves.

        They look for the coordinators of these ids again: it may be another broker now.
        """
        for begun in self._epochs:
            txn = finish_init_producer_id(begun, deadline)
            if txn is not None:
                self._availability.fenced[begun.key] = self._availability.prepared[begun.key] = txn
            else:
                self._target.forget_coordinator(CoordinatorKind.TXN, begun.key)
        self._epochs = []

    def forget(self, name: str, deadline: Deadline) -> None:
        """Use nothing of this id: it is initialised again."""
        self.finish(deadline)
        self._availability.prepared.pop(name, None)

    def take_epochs(self, deadline: Deadline) -> dict[str, SlotTxn]:
        """Return producer ids and epochs by transactional id, each only once: no other task will have them."""
        self.finish(deadline)
        prepared = dict(self._availability.prepared)
        self._availability.prepared.clear()
        return prepared if self._age_s() <= EPOCHS_FOR_S else {}

    def begin_additions(self, partitions: Mapping[SlotTxn, Sequence[TopicPartition]], deadline: Deadline) -> None:
        """Add partitions to transactions of tasks that are about to start: they need not wait for it."""
        self._additions = [begin_addition(self._target, txn, added, deadline) for txn, added in partitions.items()]

    def require_added(self, txns: Iterable[SlotTxn], deadline: Deadline) -> None:
        """Make sure that these transactions, which are about to be decided, hold the partitions that were added here.

        Without it, a partition that a task wrote to would get no marker. Raises as `finish_addition`.
        """
        used, additions = set(txns), self._additions
        self._additions = []
        for begun in additions:
            if begun.txn in used:
                finish_addition(self._target, begun, deadline)

    def take_target(self, names: Sequence[str], speeds: PathSpeeds, deadline: Deadline) -> KnownCluster | None:
        """Return metadata that spares tasks requests to the target, with coordinators of their ids; None if that is not known.

        `speeds`: of the paths, as tasks have measured them lately.
        """
        begun, self._metadata = self._metadata, None
        self._target_known, is_new = self._newest(begun, self._target_known, deadline)
        return None if self._target_known is None else self._target.known(self._target_known, names, speeds, is_new=is_new)

    def take_source(self, speeds: PathSpeeds, deadline: Deadline) -> KnownCluster | None:
        """Return metadata that spares tasks requests to the source; None if that is not known. `speeds` as in `take_target`."""
        begun, self._source_metadata = self._source_metadata, None
        self._source_known, is_new = self._newest(begun, self._source_known, deadline)
        if self._source is None or self._source_known is None:
            return None
        return self._source.known(self._source_known, (), speeds, is_new=is_new)

    def _newest(
        self, begun: BegunCall[ClusterMetadata] | None, before: ClusterMetadata | None, deadline: Deadline
    ) -> tuple[ClusterMetadata | None, bool]:
        """Return the metadata that was asked for last, else that of an earlier round, and whether it is new."""
        if begun is None:
            return before, False
        try:
            return begun.receive(deadline), self._age_s() <= METADATA_FOR_S
        except RetriableError as error:
            _log.debug("no metadata ahead: %s", error)
            return before, False

    def _age_s(self) -> float:
        return self._clock() - self._begun_at


def _begin_metadata(cluster: Cluster | None, topics: Sequence[str], deadline: Deadline) -> BegunCall[ClusterMetadata] | None:
    return cluster.begin_metadata(topics, deadline) if cluster is not None and 0 < len(topics) <= MOST_TOPICS else None
