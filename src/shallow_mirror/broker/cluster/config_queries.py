"""Everywhere: settings of topics and brokers (DescribeConfigs)."""

from __future__ import annotations

from collections.abc import Sequence

from shallow_mirror.broker.cluster.cluster_metadata import ResponseErrors
from shallow_mirror.broker.cluster.connection_pool import CONTROL, ConnectionPool
from shallow_mirror.broker.cluster.log_queries import require_all
from shallow_mirror.broker.cluster.metadata_cache import MetadataCache
from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline

_TOPIC_RESOURCE, _BROKER_RESOURCE = 2, 4


class ConfigQueries:
    """One request each; nothing is repeated here. A setting without a value, or a secret one, is left out."""

    def __init__(self, pool: ConnectionPool, metadata: MetadataCache, errors: ResponseErrors) -> None:
        self._pool = pool
        self._metadata = metadata
        self._errors = errors

    def topic_configs(self, names: Sequence[str], keys: Sequence[str] | None, deadline: Deadline) -> dict[str, dict[str, str]]:
        return self._describe(self._metadata.any_broker(deadline), _TOPIC_RESOURCE, names, keys, "topic", deadline)

    def broker_configs(self, node_id: int, deadline: Deadline) -> dict[str, str]:
        connection, name = self._metadata.connection(node_id, CONTROL, deadline), str(node_id)
        return self._describe(connection, _BROKER_RESOURCE, [name], None, "broker", deadline)[name]

    def _describe(
        self,
        connection: Connection,
        resource_type: int,
        names: Sequence[str],
        keys: Sequence[str] | None,
        kind: str,
        deadline: Deadline,
    ) -> dict[str, dict[str, str]]:
        """Return settings by resource. `keys` None: all settings."""
        resource = request_class("DescribeConfigs").DescribeConfigsResource
        response = call(
            connection,
            "DescribeConfigs",
            deadline,
            resources=[
                resource(resource_type=resource_type, resource_name=name, configuration_keys=None if keys is None else list(keys))
                for name in names
            ],
            include_synonyms=False,
            include_documentation=False,
        )
        for result in response.results:
            what = f"reading the settings of {kind} {result.resource_name}"
            self._errors.raise_for(result.error_code, what, "DescribeConfigs", topic=result.resource_name)
        configs = {
            result.resource_name: {setting.name: setting.value for setting in result.configs if setting.value is not None}
            for result in response.results
        }
        return require_all(names, configs, "DescribeConfigs")
