"""Everywhere: which topics a cluster does not have, and which our user may not describe.

That one broker does not list a topic proves little: it may have started a moment ago, or have heard nothing yet of a new topic.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from shallow_mirror.broker.cluster.cluster import NEW_TOPIC_PATIENCE_MS, Cluster
from shallow_mirror.broker.cluster.cluster_metadata import ClusterMetadata, TopicMetadata
from shallow_mirror.broker.net.error_codes import UNKNOWN_TOPIC_OR_PARTITION, is_forbidden, refusal
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition

_log = logging.getLogger(__name__)

MOST_ASKED = 5
"""Brokers that are asked whether a topic is gone."""

_ANSWER_MS = 2_000

_NO_ID = "A" * 22
"""As Kafka prints the zero id: of brokers before 2.8."""


@dataclass(frozen=True, slots=True)
class Missing:
    """Topics that do not exist (`gone`), and the permissions to grant, by topic that our user may not describe (`hidden`)."""

    gone: tuple[str, ...] = ()
    hidden: Mapping[str, str] = field(default_factory=dict)


def missing_topics(cluster: Cluster, names: Sequence[str], deadline: Deadline) -> Missing:
    """Return which of `names` one broker does not list. Raises RetriableError."""
    codes = {name: topic.error_code for name, topic in sorted(cluster.metadata(names, deadline).topics.items())} if names else {}
    return Missing(
        tuple(name for name, code in codes.items() if code == UNKNOWN_TOPIC_OR_PARTITION),
        {name: refusal(code, "Fetch", topic=name) for name, code in codes.items() if is_forbidden(code)},
    )


def is_incarnation_gone(listed: TopicMetadata | None, topic_id: str) -> bool:
    """Return whether an answer says that the topic with this id is gone: it is unknown, or another one has its name.

    A topic that may not be described is not gone, and neither is one in an answer without topic ids.
    """
    if listed is None:
        return False
    is_other = listed.error_code == 0 and _NO_ID not in (listed.topic_id, topic_id) and listed.topic_id != topic_id
    return listed.error_code == UNKNOWN_TOPIC_OR_PARTITION or is_other


def suspected_topics(metadata: ClusterMetadata, topic_ids: Mapping[str, str]) -> dict[str, str]:
    """Return which of these topics, ids by name, are gone as far as the broker knows that answered."""
    return {name: topic_id for name, topic_id in topic_ids.items() if is_incarnation_gone(metadata.topics.get(name), topic_id)}


def gone_topics(cluster: Cluster, topic_ids: Mapping[str, str], deadline: Deadline, *, asks_all: bool = False) -> dict[str, str]:
    """Return the topics that are gone, with the id of the topic that has the name now; "": none has. `topic_ids`: ids by name.

    Every broker that answers, of MOST_ASKED, has to say so, and twice, NEW_TOPIC_PATIENCE_MS apart, if no broker has a topic
    of the name. `asks_all`: every broker of the cluster has to. Raises RetriableError if no broker answers, or not all.
    """
    left = suspected_topics(cluster.metadata(sorted(topic_ids), deadline), topic_ids) if topic_ids else {}
    gone = _gone_at_all_brokers(cluster, left, deadline, asks_all)
    absent = {name: left[name] for name, now in gone.items() if not now}
    if absent:
        cluster.wait(NEW_TOPIC_PATIENCE_MS, deadline)
        gone = {name: now for name, now in gone.items() if now} | _gone_at_all_brokers(cluster, absent, deadline, asks_all)
    return gone


def absent_topics(cluster: Cluster, names: Iterable[str], deadline: Deadline) -> frozenset[str]:
    """Return the topics that do not exist, whatever their ids were: all brokers say so, twice. Raises RetriableError."""
    suspected = dict.fromkeys(missing_topics(cluster, sorted(names), deadline).gone, "")
    gone = gone_topics(cluster, suspected, deadline, asks_all=True)
    return frozenset(name for name, now in gone.items() if not now)


def _gone_at_all_brokers(cluster: Cluster, topic_ids: Mapping[str, str], deadline: Deadline, asks_all: bool) -> dict[str, str]:
    if not topic_ids:
        return {}
    answers: list[ClusterMetadata] = []
    last: RetriableError | None = None
    for node_id in sorted(cluster.metadata([], deadline).brokers)[: None if asks_all else MOST_ASKED]:
        try:
            answers.append(cluster.metadata_of(node_id, sorted(topic_ids), deadline.sooner(_ANSWER_MS)))
        except RetriableError as error:
            if asks_all:
                raise
            _log.info("broker %d does not say whether topics are gone: %s", node_id, error)
            last = error
    if not answers and last is not None:
        raise last
    return {
        name: next((answer.topics[name].topic_id for answer in answers if answer.topics[name].error_code == 0), "")
        for name, topic_id in topic_ids.items()
        if answers and all(is_incarnation_gone(answer.topics.get(name), topic_id) for answer in answers)
    }


def listed_partitions(cluster: Cluster, topic_partitions: Iterable[TopicPartition], deadline: Deadline) -> list[TopicPartition]:
    """Return those of the topic-partitions that a broker lists. Raises RetriableError."""
    topic_partitions = list(topic_partitions)
    if not topic_partitions:
        return []
    listed = cluster.metadata(sorted({topic_partition.topic for topic_partition in topic_partitions}), deadline)
    return [topic_partition for topic_partition in topic_partitions if listed.has(topic_partition)]
