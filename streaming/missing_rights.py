"""Driver: rights that a mirror needs and does not have, told before Spark is started for nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from shallow_mirror.broker.cluster import Cluster
from shallow_mirror.broker.error_codes import TOPIC_AUTHORIZATION_FAILED, refusal
from shallow_mirror.broker.rights import Operation, ask_rights, missing_slot_rights
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks import routing
from shallow_mirror.sinks.slot_names import transactional_id
from shallow_mirror.streaming.hidden_topics import hidden_topics

_OF_SOURCE = {Operation.READ: "Fetch"}
_OF_TARGET = {Operation.WRITE: "Produce", Operation.READ: "TxnOffsetCommit"}
"""The request that would be refused, by the operation it needs on a topic."""


def refuse_missing_rights(config: MirrorConfig, source: Cluster, target: Cluster, deadline: Deadline) -> None:
    """Rights that every micro-batch needs, as far as clusters tell. Raises ConfigError with all that are missing, Retriable."""
    listed = source.metadata(None, deadline).topics
    topics = sorted(name for name, one in listed.items() if one.error_code == 0 and config.topics.is_included(name))
    hidden = hidden_topics(source, config.topics.include, (), topics, deadline)
    copies = {routing.target_topic_name(config.topics.target_name, config.source.alias, name) for name in topics}
    of_slots = missing_slot_rights(target, transactional_id(config.mirror, 0), deadline)
    problems = [
        *(f"source topic {name}: {what}" for name, what in hidden.items()),
        *(f"source topic {one}" for one in _missing(source, topics, _OF_SOURCE, deadline)),
        *(f"target topic {one}" for one in _missing(target, sorted(copies), _OF_TARGET, deadline)),
        *(f"{config.target_cluster_name}: {one}" for one in of_slots),
    ]
    if problems:
        raise ConfigError(problems)


def _missing(cluster: Cluster, topics: Collection[str], needed: Mapping[Operation, str], deadline: Deadline) -> Iterator[str]:
    held = ask_rights(cluster, sorted(topics), deadline).topics if topics else {}
    for topic, operations in held.items():
        for operation, api in needed.items():
            if operations is not None and operation not in operations:
                yield f"{topic}: {refusal(TOPIC_AUTHORIZATION_FAILED, api, topic=topic)}"
