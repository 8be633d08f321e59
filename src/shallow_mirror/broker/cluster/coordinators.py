"""Everywhere: which brokers coordinate groups and transactional ids."""

from __future__ import annotations

from collections.abc import Iterable

from shallow_mirror.broker.cluster.cluster_metadata import CoordinatorKind, ResponseErrors
from shallow_mirror.broker.cluster.connection_pool import ConnectionPool
from shallow_mirror.broker.cluster.metadata_cache import MetadataCache
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.requests import call, receive, send
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError

FOUND_TOGETHER = 100
"""So many requests for coordinators are sent before their responses are received."""


class Coordinators:
    """Coordinators by kind and key, cached until one fails or says that it is another."""

    def __init__(self, pool: ConnectionPool, metadata: MetadataCache, errors: ResponseErrors) -> None:
        self._pool = pool
        self._metadata = metadata
        self._errors = errors
        self._node_ids: dict[tuple[CoordinatorKind, str], int] = {}

    def connection(self, kind: CoordinatorKind, key: str, deadline: Deadline, purpose: str) -> Connection:
        """Return a connection to the coordinator. FindCoordinator also makes brokers create its internal topic."""
        if (kind, key) not in self._node_ids:
            response = call(self._metadata.any_broker(deadline), "FindCoordinator", deadline, key=key, key_type=kind.value)
            self._errors.raise_for(response.error_code, f"finding the coordinator of {key}", "FindCoordinator", key=key)
            self._pool.add_broker(response.node_id, (response.host, response.port))
            self._node_ids[kind, key] = response.node_id
        try:
            return self._metadata.connection(self._node_ids[kind, key], purpose, deadline)
        except RetriableError:
            self.forget(kind, key)
            raise

    def find(self, kind: CoordinatorKind, keys: Iterable[str], deadline: Deadline) -> None:
        """Find the coordinators of keys with requests that are sent together; `connection` asks again if none was found."""
        missing = [key for key in dict.fromkeys(keys) if (kind, key) not in self._node_ids]
        if not missing:
            return
        connection = self._metadata.any_broker(deadline)
        for first in range(0, len(missing), FOUND_TOGETHER):
            together = missing[first : first + FOUND_TOGETHER]
            for key in together:
                send(connection, "FindCoordinator", deadline, key=key, key_type=kind.value)
            for key in together:
                response = receive(connection, "FindCoordinator", deadline)
                if not response.error_code:
                    self._pool.add_broker(response.node_id, (response.host, response.port))
                    self._node_ids[kind, key] = response.node_id

    def learn(self, kind: CoordinatorKind, key: str, node_id: int) -> None:
        self._node_ids[kind, key] = node_id

    def known(self, kind: CoordinatorKind, key: str) -> int | None:
        return self._node_ids.get((kind, key))

    def forget(self, kind: CoordinatorKind, key: str) -> None:
        self._metadata.doubt()
        self._node_ids.pop((kind, key), None)
