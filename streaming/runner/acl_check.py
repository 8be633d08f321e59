"""Driver: rights that a mirror needs and does not have, told before Spark is started for nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shallow_mirror.broker.admin.acls import Operation, ask_rights, missing_slot_rights
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.error_codes import TOPIC_AUTHORIZATION_FAILED, refusal
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks import routing
from shallow_mirror.sinks.kafka.targets.transactional_ids import transactional_id
from shallow_mirror.streaming.runner.unauthorized_topics import hidden_topics

ON_SOURCE_TOPICS = {Operation.READ: "Fetch"}
ON_TARGET_TOPICS = {Operation.WRITE: "Produce", Operation.READ: "TxnOffsetCommit"}
"""What every micro-batch needs: by operation, the request that would be refused without it."""


def refuse_missing_rights(config: MirrorConfig, source: Cluster, target: Cluster, deadline: Deadline) -> None:
    """Rights that every micro-batch needs, as far as clusters tell. Raises ConfigError with all that are missing,
    RetriableError.
    """
    listed = source.metadata(None, deadline).topics
    topics = sorted(name for name, one in listed.items() if one.error_code == 0 and config.topics.is_included(name))
    hidden = hidden_topics(source, config.topics.include, (), topics, deadline)
    copies = {routing.target_topic_name(config.topics.target_name, config.source.alias, name) for name in topics}
    of_slots = missing_slot_rights(target, transactional_id(config.mirror, 0), deadline)
    problems = [
        *(f"source topic {name}: {what}" for name, what in hidden.items()),
        *(f"source topic {one}" for one in _missing(source, topics, ON_SOURCE_TOPICS, deadline)),
        *(f"target topic {one}" for one in _missing(target, sorted(copies), ON_TARGET_TOPICS, deadline)),
        *(f"{config.target_cluster_name}: {one}" for one in of_slots),
    ]
    if problems:
        raise ConfigError(problems)


def _missing(cluster: Cluster, topics: Sequence[str], needed: Mapping[Operation, str], deadline: Deadline) -> Iterator[str]:
    if not topics:
        return
    rights = ask_rights(cluster, topics, deadline)
    for topic in topics:
        for operation in rights.missing_on(topic, needed):
            yield f"{topic}: {refusal(TOPIC_AUTHORIZATION_FAILED, needed[operation], topic=topic)}"
