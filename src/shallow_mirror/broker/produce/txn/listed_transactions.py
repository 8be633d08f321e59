"""Reading commands: transactional ids of producers (KIP-664)."""

from __future__ import annotations

from collections.abc import Collection

from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.cluster.connection_pool import CONTROL
from shallow_mirror.broker.net.error_codes import error_name
from shallow_mirror.broker.net.requests import call
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError


def list_transactional_ids(cluster: Cluster, producer_ids: Collection[int], deadline: Deadline) -> dict[int, str]:
    """Return the transactional id of each producer that has one and that the user may describe.

    Each broker knows those that it coordinates. Raises BrokerTooOldError before Kafka 3.0, RetriableError.
    """
    if not producer_ids:
        return {}

    def ask(attempt: Deadline) -> dict[int, str]:
        names: dict[int, str] = {}
        for node_id in cluster.metadata([], attempt).brokers:
            connection = cluster.connection(node_id, CONTROL, attempt)
            response = call(connection, "ListTransactions", attempt, state_filters=[], producer_id_filters=sorted(producer_ids))
            if response.error_code:
                raise RetriableError(error_name(int(response.error_code)), f"ListTransactions of broker {node_id}")
            names |= {int(state.producer_id): state.transactional_id for state in response.transaction_states}
        return names

    return cluster.retrying("listing transactions", ask, deadline)
