"""Executor: target cluster of one slot: the partitions of its transactions, and a transaction for each try."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from shallow_mirror.broker import Cluster, CoordinatorKind, KnownCluster, TopicMetadata
from shallow_mirror.broker.admin import abort_hanging
from shallow_mirror.broker.cluster import CONTROL, cluster_of_worker, gone_topics, is_incarnation_gone
from shallow_mirror.broker.net import BEGUN, UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.broker.produce import PRODUCE
from shallow_mirror.broker.produce.txn import init_producer_id
from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, RetriableError, TopicGoneError
from shallow_mirror.sinks.base import SlotWriter, TryRepeatedError
from shallow_mirror.sinks.kafka.preserved.target_log import TargetLogs
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import KafkaSlotJob, PreparedTxn
from shallow_mirror.sinks.kafka.writers.mixed_writer import MixedWriter
from shallow_mirror.sinks.kafka.writers.preserved_writer import PreservedWriter
from shallow_mirror.sinks.kafka.writers.slot_admission import admit_part
from shallow_mirror.sinks.kafka.writers.slot_transaction import (
    CoalescedBatchRefusedError,
    QuarantinableBatchError,
    SlotTransaction,
)
from shallow_mirror.sinks.slot_values import ReadPart, SlotWrite
from shallow_mirror.sinks.slots.quarantine_policy import Refusal
from shallow_mirror.sinks.slots.slot_task import spark_attempt
from shallow_mirror.types import Segment, SourcePartition

_MIN_IN_SYNC = "min.insync.replicas"
_PRODUCE_PRESERVED = "produce preserved"
"""The purpose of connections beside those of a transaction."""


class KafkaSlotTarget:
    """The target cluster of one slot (a `SlotTarget`).

    The markers that end a transaction are appended to all of its partitions, with acks=all. A partition without a leader, or with
    too few replicas in sync, cannot take them: the transaction would stay half ended, and the transactional id of the whole slot
    would answer CONCURRENT_TRANSACTIONS until that partition is back.
    """

    def __init__(self, job: KafkaSlotJob, number: int, target: Cluster, deadline: Deadline) -> None:
        self._job = job
        self._number = number
        self._target = target
        self._deadline = deadline
        self._checked: set[SourcePartition] = set()
        self._reachable: dict[int, RetriableError | None] = {}
        self._known_refusals: dict[tuple[SourcePartition, int], Refusal] = {}
        self._preserved_topics = {topic for topic, route in job.routes.items() if route.is_preserved}
        self._preserved_logs: TargetLogs | None = None
        self._has_unanswered = False
        self._quiet_since = deadline.clock() - job.quiet_for_ms / 1000
        self._prepared = job.prepared.get(job.transactional_id_of(number))
        self._known = job.known_target
        if self._known is not None:
            self._use(self._known)

    def _use(self, known: KnownCluster) -> None:
        """Take over metadata of the driver, and open the connections that a transaction needs side by side."""
        self._target.learn(known)
        name = self._job.transactional_id_of(self._number)
        leaders = {partition.leader for topic in known.metadata.topics.values() for partition in topic.partitions.values()}
        purposes = (PRODUCE, BEGUN) if self._preserved_topics else (PRODUCE,)  # a preserved log is asked about first
        wanted = [(node_id, purpose) for node_id in sorted(leaders) for purpose in purposes]
        for kind in CoordinatorKind:
            node_id = known.coordinators.get((kind, name))
            if node_id is not None:
                wanted.append((node_id, BEGUN))
        coordinator = known.coordinators.get((CoordinatorKind.TXN, name))
        if self._prepared is None and coordinator is not None:
            wanted.append((coordinator, CONTROL))
        self._target.open_at_once(wanted, self._deadline)

    def begin(self) -> SlotWriter:
        """Return the writer of a further try, with a transaction of its own. The target is checked again for it."""
        self._checked.clear()
        self._reachable.clear()
        if not self._preserved_topics:
            return self._transactional_writer()
        if self._preserved_logs is not None:  # requests of the try before may still be on their way
            self._quiet_since = self._deadline.clock()
            self._has_unanswered = self._has_unanswered or self._preserved_logs.has_begun
        logs = self._preserved_logs = self._learned_logs()
        is_alone = self._job.routes.keys() == self._preserved_topics
        preserved = PreservedWriter(
            self._job,
            self._target,
            logs,
            self._deadline,
            has_unanswered=self._has_unanswered,
            purpose=PRODUCE if is_alone else _PRODUCE_PRESERVED,
        )
        if is_alone:
            return preserved
        return MixedWriter(self._transactional_writer(), preserved, self._preserved_topics)

    def _transactional_writer(self) -> KafkaSlotWriter:
        transaction = SlotTransaction(self._job, self._number, self._target, self._deadline, self._take_prepared)
        return KafkaSlotWriter(self, self._job, transaction, self._known_refusals)

    def _learned_logs(self) -> TargetLogs:
        job, positions = self._job, self._job.positions
        assert job.guard_times is not None
        targets = {job.routes[source.topic].target_of(source): source for source in job.shared_producers if source in positions}
        return TargetLogs(
            self._target,
            {target: job.shared_producers[source] for target, source in targets.items()},
            {target: positions[source] for target, source in targets.items()},
            job.target_ends,
            job.guard_times,
            lambda: (self._deadline.clock() - self._quiet_since) * 1000,
            self._deadline,
            origins=job.origins,
        )

    def _take_prepared(self) -> PreparedTxn | None:
        """Return the producer epoch that was taken ahead: once, because no two transactions may have the same one.

        A further attempt of Spark's for the slot does not have it either (`clean_up`). A stage without shuffles, as this one, is
        never run again with first attempts.
        """
        prepared, self._prepared = self._prepared, None
        return prepared

    def stop_coalescing(self) -> None:
        """Let further tries send every batch as it is."""
        self._job = self._job.without_coalescing()

    def clean_up(self, sources: Iterable[SourcePartition]) -> None:
        """Abort the open transaction of an earlier try, or of another task of the slot: it would end with the next one."""
        self._prepared = self._known = None
        translated = [source for source in sources if source.topic not in self._preserved_topics]
        if not translated:
            return  # without a transaction nothing is left open
        partitions = [self._job.target_of(source) for source in translated]
        name, timeout_ms = self._job.transactional_id_of(self._number), self._job.transaction_timeout_ms
        fenced = init_producer_id(self._target, name, timeout_ms, self._deadline)
        abort_hanging(self._target, [fenced], partitions, timeout_ms, self._deadline)

    def abandon(self) -> None:
        """Do nothing: the transaction stays open, and the next InitProducerId of the slot aborts it."""

    def pause(self, tries: int, deadline: Deadline) -> None:
        self._target.pause(tries, deadline)

    def unavailable(self, sources: Iterable[SourcePartition]) -> dict[SourcePartition, MirrorError]:
        """Return why the targets of these partitions cannot take part; of partitions that were asked about before, nothing.

        TopicGoneError for a topic that was deleted, or created again. Raises RetriableError if no broker answers.
        """
        new = [source for source in sources if source not in self._checked]
        if not new:
            return {}
        self._checked.update(new)
        targets = {source: self._job.target_of(source) for source in new}
        listed = self._listed({target.topic for target in targets.values()})
        wrong = self._missing(new, listed)
        partitions = {
            source: listed[target.topic].partitions[target.partition] for source, target in targets.items() if source not in wrong
        }
        least = self._least_in_sync(
            {
                targets[source].topic
                for source, partition in partitions.items()
                if partition.in_sync_count < partition.replica_count
            }
        )
        for source, partition in partitions.items():
            target = targets[source]
            if target in self._job.held:
                wrong[source] = RetriableError("MARKER_PENDING", f"target {target} is not written to: {self._job.held[target]}")
            elif partition.leader < 0:
                wrong[source] = RetriableError("LEADER_NOT_AVAILABLE", f"target {target} has no leader")
            # A partition with fewer replicas than the setting asks for needs all of them (Partition.effectiveMinIsr, Kafka 4.0).
            elif partition.in_sync_count < min(least.get(target.topic, 1), partition.replica_count):
                counts = f"{partition.in_sync_count} replicas in sync, {_MIN_IN_SYNC} is {least[target.topic]}"
                wrong[source] = RetriableError("NOT_ENOUGH_REPLICAS", f"target {target} has {counts}")
            elif (error := self._reach(partition.leader)) is not None:
                wrong[source] = RetriableError(
                    error.error_name, f"the leader of target {target} cannot be reached: {error.detail}"
                )
        return wrong | self._unwritable_logs(source for source in partitions if source not in wrong)

    def _missing(
        self, sources: Sequence[SourcePartition], listed: Mapping[str, TopicMetadata]
    ) -> dict[SourcePartition, MirrorError]:
        """Return the partitions whose target topic is not the one that the map names, or is not known to the broker yet."""
        routes = {source: self._job.routes[source.topic] for source in sources}
        suspected = {
            route.target_topic: route.target_topic_id
            for route in routes.values()
            if is_incarnation_gone(listed.get(route.target_topic), route.target_topic_id)
        }
        gone = gone_topics(self._target, suspected, self._deadline) if suspected else {}
        missing: dict[SourcePartition, MirrorError] = {}
        for source, route in routes.items():
            topic, target = listed.get(route.target_topic), route.target_of(source)
            if route.target_topic in gone:
                problem = target_topic_policy.gone_problem(source.topic, target, gone[route.target_topic])
                missing[source] = TopicGoneError(problem, [route.target_topic])
            elif route.target_topic in suspected or topic is None or source.partition not in topic.partitions:
                text = f"target {target.topic_partition} is not known to the broker that answered"
                missing[source] = RetriableError(error_name(UNKNOWN_TOPIC_OR_PARTITION), text)
        return missing

    def _unwritable_logs(self, sources: Iterable[SourcePartition]) -> dict[SourcePartition, RetriableError]:
        """Return why logs with preserved offsets cannot be written to now. Raises PreservedLogDamagedError."""
        if self._preserved_logs is None:
            return {}
        targets = {
            self._job.routes[source.topic].target_of(source): source
            for source in sources
            if source.topic in self._preserved_topics
        }
        return {targets[target]: error for target, error in self._preserved_logs.learn(targets).items()}

    def _listed(self, topics: Collection[str]) -> Mapping[str, TopicMetadata]:
        """Return metadata of topics, that of the driver if it is new and has all of them."""
        if self._known is not None and self._known.is_new and all(topic in self._known.metadata.topics for topic in topics):
            return self._known.metadata.topics
        return self._target.metadata(sorted(topics), self._deadline).topics

    def _least_in_sync(self, topics: Collection[str]) -> dict[str, int]:
        """Return the setting of topics whose replicas are not all in sync, as it is now: an operator may have lowered it."""
        if not topics:
            return {}
        settings = self._target.topic_configs(sorted(topics), self._deadline, keys=[_MIN_IN_SYNC])
        return {topic: int(configs.get(_MIN_IN_SYNC, 1)) for topic, configs in settings.items()}

    def _reach(self, node_id: int) -> RetriableError | None:
        """Over the connection that Produce will use."""
        if node_id not in self._reachable:
            try:
                self._target.connection(node_id, PRODUCE, self._deadline)
            except RetriableError as error:
                self._reachable[node_id] = error
            else:
                self._reachable[node_id] = None
        return self._reachable[node_id]


class KafkaSlotWriter:
    """Admits batches, and writes them in the transaction of one try (a `SlotWriter`).

    `known_refusals`: of the target in earlier tries of the slot; further ones are added.
    """

    def __init__(
        self,
        target: KafkaSlotTarget,
        job: KafkaSlotJob,
        transaction: SlotTransaction,
        known_refusals: dict[tuple[SourcePartition, int], Refusal],
    ) -> None:
        self._target = target
        self._job = job
        self._transaction = transaction
        self._known_refusals = known_refusals

    @property
    def is_due(self) -> bool:
        return self._transaction.is_due

    @property
    def until(self) -> Deadline | None:
        return self._transaction.until

    def expect(self, sources: Iterable[SourcePartition]) -> None:
        """Begin the transaction with all planned partitions if a producer epoch was taken ahead."""
        self._transaction.begin_ahead([self._job.target_of(source) for source in sources])

    def write(
        self, parts: Sequence[ReadPart], builder_of: Callable[[SourcePartition], SegmentBuilder]
    ) -> Sequence[QuarantinedBatch]:
        """Admit and write. Raises TryRepeatedError if the next try goes without a batch, or without coalescing."""
        admitted = [
            admit_part(self._job, part, max(self._transaction.position(part, builder_of), part.start), self._known_refusals)
            for part in parts
        ]
        with self._refusals_repeated():
            return self._transaction.write(admitted, builder_of)

    def finish(self, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> Sequence[QuarantinedBatch]:
        """Wait for all acknowledgements. Raises as `write`."""
        with self._refusals_repeated():
            return self._transaction.finish(builder_of)

    @contextmanager
    def _refusals_repeated(self) -> Iterator[None]:
        try:
            yield
        except QuarantinableBatchError as refused:
            key = (refused.source, refused.refusal.error.base_offset)
            if key in self._known_refusals:
                raise refused.refusal.error from refused
            self._known_refusals[key] = refused.refusal
            raise TryRepeatedError(
                refused.source, refused.end, f"without a batch that the target refuses: {refused}"
            ) from refused
        except CoalescedBatchRefusedError as refused:
            # Only one of the batches may be to blame: the next try sends each as it is, and learns which.
            self._target.stop_coalescing()
            raise TryRepeatedError(refused.source, refused.end, f"without combining batches: {refused}") from refused

    def close(self, segments: Sequence[Segment], *, is_partial: bool) -> SlotWrite:
        return self._transaction.close(is_partial=is_partial)


def open_kafka_target(job: KafkaSlotJob, number: int, deadline: Deadline) -> KafkaSlotTarget:
    """Return the target cluster of a slot, over the connections that this worker keeps."""
    if spark_attempt() > 0:  # requests of the attempt before may still be on their way
        job = replace(job, quiet_for_ms=0.0)
    return KafkaSlotTarget(job, number, cluster_of_worker(job.target), deadline)
