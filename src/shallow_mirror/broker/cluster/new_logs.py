"""Everywhere: the logs of new partitions, which brokers open a moment after they list them."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.plurals import listed
from shallow_mirror.types import IsolationLevel, TopicPartition

_log = logging.getLogger(__name__)

PATIENCE_MS = 5_000


def await_logs(cluster: Cluster, topic_partitions: Sequence[TopicPartition], deadline: Deadline) -> None:
    """Wait until the leaders of new partitions answer for them.

    A broker lists a partition before it has opened its log (BrokerMetadataPublisher, Kafka 4.3). Produce is refused in between,
    which would abort the first transaction. Not longer than `PATIENCE_MS`: a leader may be down, and others need not wait for it.
    """
    patience, tries = deadline.sooner(PATIENCE_MS), 0
    late = list(topic_partitions)
    while late:
        try:
            _, errors = cluster.latest_offsets(late, IsolationLevel.READ_UNCOMMITTED, patience, is_patient=False)
        except RetriableError as error:
            errors = dict.fromkeys(late, error)
        late = [topic_partition for topic_partition, error in errors.items() if isinstance(error, RetriableError)]
        pause_ms = cluster.back_off_ms(tries)
        if late and patience.remaining_ms() <= pause_ms:
            _log.warning("new partitions that do not answer yet: %s (%s)", listed(map(str, late)), errors[late[0]])
            return
        if late:
            cluster.wait(pause_ms, patience)
            tries += 1
