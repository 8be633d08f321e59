"""Executor: what a slot leaves out so that the rest of it is copied.

Targets that cannot take part in a transaction, and errors of one partition that will not pass by themselves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    CorruptBatchError,
    DataLossError,
    LogTruncatedError,
    MirrorError,
    RetriableError,
    TopicAccessError,
    TopicRecreatedError,
)
from shallow_mirror.sinks.kafka.slots.slot_job import SlotJob
from shallow_mirror.sinks.slot_results import Side, UnfinishedRange
from shallow_mirror.types import SourcePartition

_MIN_IN_SYNC = "min.insync.replicas"


class TargetCheck:
    """Asks the target, once for each topic, which of its partitions a transaction may include.

    The markers that end a transaction are appended to all of its partitions, with acks=all. A partition without a leader, or with
    too few replicas in sync, cannot take them: the transaction would stay half ended, and the transactional id of the whole slot
    would answer CONCURRENT_TRANSACTIONS until that partition is back.
    """

    def __init__(self, job: SlotJob, target: Cluster, deadline: Deadline) -> None:
        self._job, self._target, self._deadline = job, target, deadline
        self._checked: set[SourcePartition] = set()
        self._reachable: dict[int, RetriableError | None] = {}

    def unavailable(self, sources: Iterable[SourcePartition]) -> dict[SourcePartition, RetriableError]:
        """Return why the targets of these partitions cannot take part; of partitions that were asked about before, nothing.

        A topic or partition that does not exist is left to Produce, which says so. Raises RetriableError where no broker answers.
        """
        new = [source for source in sources if source not in self._checked]
        if not new:
            return {}
        self._checked.update(new)
        targets = {source: self._job.routes[source.topic].target_of(source).topic_partition for source in new}
        listed = self._target.metadata(sorted({target.topic for target in targets.values()}), self._deadline).topics
        found = {
            source: topic.partitions[target.partition]
            for source, target in targets.items()
            if (topic := listed.get(target.topic)) is not None and target.partition in topic.partitions
        }
        least = self._least_in_sync(
            {targets[source].topic for source, one in found.items() if one.in_sync_count < one.replica_count}
        )
        wrong: dict[SourcePartition, RetriableError] = {}
        for source, partition in found.items():
            target = targets[source]
            if target in self._job.held:
                wrong[source] = RetriableError("MARKER_PENDING", f"target {target} is not written to: {self._job.held[target]}")
            elif partition.leader < 0:
                wrong[source] = RetriableError("LEADER_NOT_AVAILABLE", f"target {target} has no leader")
            elif partition.in_sync_count < least.get(target.topic, 1):
                counts = f"{partition.in_sync_count} replicas in sync, {_MIN_IN_SYNC} is {least[target.topic]}"
                wrong[source] = RetriableError("NOT_ENOUGH_REPLICAS", f"target {target} has {counts}")
            elif (error := self._reach(partition.leader)) is not None:
                wrong[source] = RetriableError(
                    error.error_name, f"the leader of target {target} cannot be reached: {error.detail}"
                )
        return wrong

    def _least_in_sync(self, topics: Collection[str]) -> dict[str, int]:
        """Of topics whose replicas are not all in sync, as it is set now: lowering it is what an operator does to go on."""
        if not topics:
            return {}
        settings = self._target.topic_configs(sorted(topics), self._deadline, keys=[_MIN_IN_SYNC])
        return {topic: int(found.get(_MIN_IN_SYNC, 1)) for topic, found in settings.items()}

    def _reach(self, node_id: int) -> RetriableError | None:
        """Over the connection that Produce will use."""
        if node_id not in self._reachable:
            try:
                self._target.connection(node_id, "produce", self._deadline)
            except RetriableError as error:
                self._reachable[node_id] = error
            else:
                self._reachable[node_id] = None
        return self._reachable[node_id]


def isolated(
    error: MirrorError, job: SlotJob, positions: Mapping[SourcePartition, int], *, is_writing: bool
) -> Sequence[UnfinishedRange]:
    """Return what is left out where `error` is of single partitions and `on_error` is isolate; else nothing.

    With `read.on_data_loss: continue` also a partition whose log ends below its position: it waits there.

    A topic that was created again is another one under the same name, and nothing that may be left for later.
    `reached` is where the next try has to end: in front of the batch that cannot be copied, where the error names one.
    """
    if job.continues_after_data_loss and isinstance(error, LogTruncatedError):
        if error.log_end is None:
            return ()  # the driver lets the next round continue behind it
    elif not job.isolates:
        return ()
    if isinstance(error, TopicAccessError):
        side = Side.TARGET if is_writing else Side.SOURCE
        topic_of = {source: job.routes[source.topic].target_topic if is_writing else source.topic for source in positions}
        sources = [source for source in positions if topic_of[source] in error.topics]
        return [UnfinishedRange.of(source, positions[source], side, error) for source in sources]
    if not isinstance(error, BatchRefusedError | CorruptBatchError | DataLossError) or isinstance(error, TopicRecreatedError):
        return ()
    if (
        isinstance(error, DataLossError)
        and job.continues_after_data_loss
        and (error.log_start_offset or 0) > error.expected_offset
    ):
        return ()  # the driver has an answer to that
    side = Side.TARGET if isinstance(error, BatchRefusedError) else Side.SOURCE
    offset = error.expected_offset if isinstance(error, DataLossError) else error.base_offset
    sources = [source for source in positions if source.topic_partition == error.topic_partition]
    return [UnfinishedRange.of(source, max(positions[source], offset), side, error) for source in sources]
