"""Driver: the query of a run that reads a cluster: what those of a mirror and of an archive have in common."""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, TypeVar

from shallow_mirror.broker import Cluster, TopicMetadata
from shallow_mirror.broker.cluster import gone_topics
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, error_name
from shallow_mirror.checkpoints import Position
from shallow_mirror.config import ArchiveConfig, MirrorConfig
from shallow_mirror.config.unmatched_topics import unmatched_sentences
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError, TopicRecreatedError
from shallow_mirror.plurals import counted
from shallow_mirror.sinks.micro_batches import MicroBatchReport, MicroBatchSink
from shallow_mirror.sinks.slots import SlotTime
from shallow_mirror.streaming.planning.offset_planning import recreated_topics
from shallow_mirror.streaming.planning.planner_config import PlannerConfig
from shallow_mirror.streaming.planning.planner_state import RegistrationFiles
from shallow_mirror.streaming.planning.rate_limiter import CopiedBytes
from shallow_mirror.streaming.planning.source_offsets import SourceOffsets
from shallow_mirror.streaming.runs.gone_topics import without_gone_topics
from shallow_mirror.streaming.runs.micro_batch_choice import choose_micro_batches
from shallow_mirror.streaming.runs.partition_registration import FirstRows, PartitionRegistrar
from shallow_mirror.streaming.runs.permissions import require_authorized_topics
from shallow_mirror.streaming.runs.query import Query, run_query
from shallow_mirror.streaming.runs.run import Run
from shallow_mirror.streaming.sources.planner_options import PlannerOptions
from shallow_mirror.streaming.spark import spark_session
from shallow_mirror.streaming.spark.temp_dirs import temp_dir
from shallow_mirror.streaming.watch.micro_batch_summary import measurements_of
from shallow_mirror.types import SourcePartition

SourceConfig = TypeVar("SourceConfig", bound=MirrorConfig | ArchiveConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceListing:
    """The topics of the file at the source when a query starts."""

    topics: Mapping[str, TopicMetadata]
    """Those that exist, by name."""
    topic_ids: Mapping[str, str]
    """Of `topics`. The positions may be of older topics of the same name."""
    starts: Mapping[SourcePartition, int]
    """Where partitions without a position begin."""
    with_position: frozenset[str]
    """Names of the topics of which a partition has a position; they need not exist any more."""
    recreated: Mapping[str, str]
    """The former id of topics that were created again and wait for the operator, by name."""

    @property
    def planned_ids(self) -> Mapping[str, str]:
        """Return the topic ids that a query begins with. Of a recreated topic that waits it is the former one: its positions
        stay, and nothing of the new topic is planned.
        """
        return {**self.topic_ids, **self.recreated}


class SourceQuery(ABC, Generic[SourceConfig]):
    """The query of the owner of a table of decisions. Every attempt makes new objects, but for measurements."""

    copied: ClassVar[str]
    """What happens to records, for messages: "mirrored"."""

    def __init__(
        self,
        run: Run[SourceConfig],
        source: Cluster,
        source_cluster_id: str,
        *,
        slots: int,
        topic_rates: Mapping[str, int],
    ) -> None:
        self.config = run.config
        self.identity = run.identity
        self.storage = run.storage
        self.owner = run.owner
        self.reporter = run.reporter
        self.supervisor = run.supervisor
        self.observer = run.observer
        self.source = source
        self.source_cluster_id = source_cluster_id
        self.available_now = run.available_now
        self.slot_time = SlotTime(slots)
        self._slots = slots
        self._copied_bytes = CopiedBytes(topic_rates)
        self.has_begun = False
        """From the first registration on a partition without a position is one that appeared while the run runs."""

    def attempt(self, spark: Any) -> bool:
        """Do one attempt, until the query ends and everything is settled. Return False if it ended at a stop."""
        registration = RegistrationFiles.of_query(temp_dir(), uuid.uuid4().hex)
        try:
            self.recover_and_run(spark, registration)
        finally:
            registration.discard()
        self.owner.settle()
        return not self.supervisor.is_over()

    @abstractmethod
    def recover_and_run(self, spark: Any, registration: RegistrationFiles) -> None:
        """Resolve the open decision of the last attempt, register new partitions, and copy until the query ends."""

    def positions(self) -> dict[SourcePartition, Position]:
        return self.owner.positions()

    def list_source(
        self, planner_config: PlannerConfig, deadline: Deadline, *, closed: Collection[str] = frozenset()
    ) -> SourceListing:
        """List the source, before anything is planned. Raises ConfigError for topics that may not be read, DataLossError.

        `closed`: topics that the operator has forgotten, which need not be there.
        """
        positions, topics_of = self.positions(), self.config.topics
        count = counted(len(positions), "partition")
        self.reporter.start_step("looking for new topics and partitions", f", {count} registered so far")
        offsets = SourceOffsets(planner_config, self.source)
        starts = offsets.start_offsets(positions, deadline, is_start=not self.has_begun)
        names = {source.topic for source in (*starts, *positions) if topics_of.is_included(source.topic)}
        metadata = self.source.metadata(sorted(names), deadline).topics
        topics = {name: topic for name, topic in metadata.items() if topic.error_code == 0}
        with_position = frozenset(source.topic for source in positions) & names
        require_authorized_topics(
            self.source, topics_of, with_position, topics, deadline, waits_for_topics=not self.available_now
        )
        if known := {*topics, *with_position}:
            self.reporter.on_unmatched(unmatched_sentences(self.source, topics_of, known.union(closed), deadline))
        topic_ids = {name: topic.topic_id for name, topic in topics.items()}
        self.require_known({source.topic for source in starts if topic_ids.get(source.topic) != source.topic_id})
        if self.available_now:
            unknown = {name for name, topic in metadata.items() if topic.error_code == UNKNOWN_TOPIC_OR_PARTITION}
            self.require_known(unknown - self._absent(unknown, deadline))
        waiting = [source for source in positions if planner_config.waits_if_recreated(source.topic)]
        recreated = recreated_topics(waiting, topic_ids)
        return SourceListing(topics=topics, topic_ids=topic_ids, starts=starts, with_position=with_position, recreated=recreated)

    def _absent(self, names: Collection[str], deadline: Deadline) -> Set[str]:
        """Return the topics that no broker knows. One that has only just started may not know a topic yet."""
        gone = gone_topics(self.source, dict.fromkeys(names, ""), deadline)
        return {name for name, topic_id in gone.items() if not topic_id}

    @staticmethod
    def require_known(unknown: Collection[str]) -> None:
        """Raise RetriableError for topics that the broker that was asked does not know, or no longer under the same id."""
        if unknown:
            text = f"the broker that was asked does not know topic {min(unknown)}"
            raise RetriableError(error_name(UNKNOWN_TOPIC_OR_PARTITION), text)

    def registrar(self, files: RegistrationFiles, first_rows: FirstRows) -> PartitionRegistrar:
        return PartitionRegistrar(
            files,
            self.owner,
            self.source,
            first_rows,
            deadline=self.supervisor.deadline,
            report=lambda _: self.reporter.set_positions(self.positions()),
            observer=self.observer,
        )

    def planner_options(self, spark: Any, planned_ids: Mapping[str, str], registration: RegistrationFiles) -> PlannerOptions:
        """Return the options that every query has. It begins at the positions of topics with these ids."""
        positions = self.positions()
        self.reporter.set_positions(positions)
        initial = {source: positions[source].offset for source in without_gone_topics(positions, planned_ids)}
        self.reporter.left_out.on_query_start(initial)
        return PlannerOptions(
            config=self.config,
            map_id=self.owner.map_id,
            source_cluster_id=self.source_cluster_id,
            initial=initial,
            parallelism=spark_session.parallelism_of(spark, self._slots),
            left_out_path=self.reporter.left_out.path,
            registration=registration,
        )

    def run_query(
        self,
        spark: Any,
        sink: MicroBatchSink,
        options: PlannerOptions,
        *,
        check: Callable[[], None],
        transfer: Literal["direct", "through-spark"] = "direct",
    ) -> None:
        """Run the query to its end. Raises RetriableError if a topic was recreated and the next attempt registers it."""
        query = Query(
            spark=spark,
            sink=sink,
            options=options,
            trigger_s=None if self.available_now else self.config.trigger_s,
            health=self.reporter.health,
        )
        try:
            run_query(
                query,
                choose_micro_batches(self.config.micro_batches, spark, transfer=transfer),
                settle_after_s=self.config.trigger_s,
                supervisor=self.supervisor,
                check=check,
            )
        except TopicRecreatedError as recreated:
            if not self.config.read.continues_after_data_loss:
                raise
            text = f"{recreated}; what it holds now is {self.copied} from its start"
            raise RetriableError("TOPIC_RECREATED", text) from recreated

    def report(self, report: MicroBatchReport) -> None:
        """Record a finished micro-batch, and pass measurements to the planner."""
        self.reporter.on_micro_batch(report, self.owner, self.positions())
        self.owner.compact_if_due()
        self._copied_bytes.add([row.segment for row in report.rows])
        self.reporter.write_measurements(measurements_of(report, self._copied_bytes.totals))
