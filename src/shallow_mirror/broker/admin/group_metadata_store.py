"""Driver: notes that a mirror leaves on a cluster: the metadata of a consumer group's only offset."""

from __future__ import annotations

import time
from contextlib import closing

from shallow_mirror.broker.admin.consumer_groups import ConsumerGroups
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import TopicPartition

MAX_NOTE_BYTES = 4000
"""Below the brokers' default of `offset.metadata.max.bytes`, 4096."""


def write_group_note(client: ClientConfig, group: str, topic: str, note: str, *, timeout_s: float) -> None:
    """Commit a note at partition 0 of `topic`, instead of the note before. Deleted with the topic, and after offsets.retention.

    Raises RetriableError, OutcomeUnknownError; ConfigError where the cluster does not authorize it.
    """
    with closing(Cluster(client)) as cluster:
        topic_partition = TopicPartition(topic, 0)
        refusals = ConsumerGroups(cluster, "target").commit(group, {topic_partition: (0, note)}, _deadline(timeout_s))
    if refusals:
        raise RetriableError("REFUSED", f"writing to the consumer group {group}: {refusals[topic_partition]}")


def read_group_notes(client: ClientConfig, suffix: str, *, timeout_s: float) -> dict[str, tuple[str, ...]]:
    """Return the notes of all groups whose names end so: of each topic for which the group has one.

    Raises RetriableError; ConfigError where an ACL is missing.
    """
    deadline = _deadline(timeout_s)
    with closing(Cluster(client)) as cluster:
        groups = ConsumerGroups(cluster, "source")
        names = sorted(name for name in groups.listed(deadline) if name.endswith(suffix))
        notes = {name: tuple(committed.metadata for committed in groups.committed(name, deadline)) for name in names}
        return {name: tuple(filter(None, texts)) for name, texts in notes.items()}


def _deadline(timeout_s: float) -> Deadline:
    return Deadline.after_ms(timeout_s * 1000, time.monotonic)
