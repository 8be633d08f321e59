"""Executor: whether the target topics that one try has written to are still those of the map.

Produce names topics: one that is deleted and created again while a task writes gets the rest. Its first offsets are below those
of the map only if the map has some. So the topic ids are asked for behind the last batch, in front of the decision: over the
connections that carried it, because a broker serves a connection in turn. Over another one, it could answer before the topic is
created again, and append the batch after it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from shallow_mirror.broker import Cluster, ClusterMetadata
from shallow_mirror.broker.cluster import gone_topics, suspected_topics
from shallow_mirror.broker.net import UNKNOWN_TOPIC_OR_PARTITION, BegunCall, error_name
from shallow_mirror.broker.produce import ProducePipeline
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError, TopicGoneError
from shallow_mirror.sinks.kafka.targets.target_topic_policy import gone_problem
from shallow_mirror.sinks.kafka.writers.kafka_slot_job import KafkaSlotJob
from shallow_mirror.types import SourcePartition


class WrittenTopics:
    """Of one try. `begin` is called when all was sent, `require` when all is acknowledged."""

    def __init__(self, job: KafkaSlotJob, target: Cluster, deadline: Deadline) -> None:
        self._job, self._target, self._deadline = job, target, deadline
        self._names: tuple[str, ...] = ()
        self._listings: list[BegunCall[ClusterMetadata]] = []

    def begin(self, target_topics: Iterable[str], pipeline: ProducePipeline) -> None:
        """Ask for the topics behind all that was sent through `pipeline`, without waiting for the answers."""
        self._names = tuple(sorted(set(target_topics)))
        unanswered: list[int | None] = [*pipeline.unanswered_nodes()]
        self._listings = [
            self._target.begin_metadata(self._names, self._deadline, node_id, pipeline.purpose_at(node_id))
            for node_id in unanswered or [None]
        ]

    def require(self) -> None:
        """Raise TopicGoneError if one of the topics is gone, RetriableError if that is not sure."""
        suspected: dict[str, str] = {}
        for listing in self._listings:
            try:
                metadata = listing.receive(self._deadline)
            except RetriableError:
                metadata = self._target.metadata(self._names, self._deadline)
            suspected |= suspected_topics(metadata, self._topic_ids(self._names))
        if suspected:
            self.require_present(suspected)
            names = ", ".join(suspected)
            raise RetriableError(error_name(UNKNOWN_TOPIC_OR_PARTITION), f"not every broker of the target knows topic {names}")

    def require_present(self, target_topics: Collection[str]) -> None:
        """Raise TopicGoneError if one of the topics is gone. Asks several brokers."""
        gone = gone_topics(self._target, self._topic_ids(target_topics), self._deadline)
        if gone:
            problems = [
                gone_problem(topic, route.target_of(SourcePartition(topic, "", 0)), gone[route.target_topic])
                for topic, route in sorted(self._job.routes.items())
                if route.target_topic in gone
            ]
            raise TopicGoneError(problems, list(gone))

    def _topic_ids(self, target_topics: Collection[str]) -> dict[str, str]:
        return {
            route.target_topic: route.target_topic_id
            for route in self._job.routes.values()
            if route.target_topic in target_topics
        }
