"""Reading commands: the quotas of one cluster, read and set (KIP-546)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import groupby
from typing import Any

from shallow_mirror.broker.admin.access.quota_entries import Quota, QuotaEntity
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.error_codes import CLUSTER_AUTHORIZATION_FAILED, ErrorClass, error_class, error_name
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError

ENTITIES_PER_REQUEST = 200


class QuotaClient:
    """Connect at the first request. Raises RetriableError if the cluster does not answer, ConfigError if it refuses."""

    def __init__(self, client: ClientConfig, where: str, *, timeout_s: float = math.inf) -> None:
        """Take `where` as the name of the cluster in errors. `timeout_s`: of each call, if less than the client's."""
        self._client = client
        self._where = where
        self._timeout_s = min(timeout_s, client.request_timeout_ms / 1000)

    def read(self) -> frozenset[Quota]:
        """Return all quotas, also those of addresses. Credentials (SCRAM) are none."""
        with closing(Cluster(self._client)) as cluster:
            return frozenset(self._retrying(cluster, "reading quotas", lambda deadline: self._read(cluster, deadline)))

    def _read(self, cluster: Cluster, deadline: Deadline) -> list[Quota]:
        response = call(cluster.any_broker(deadline), "DescribeClientQuotas", deadline, components=[], strict=False)
        self._raise_for(int(response.error_code), "reading quotas", "DescribeConfigs")
        return [
            Quota(QuotaEntity.of({part.entity_type: part.entity_name for part in entry.entity}), value.key, float(value.value))
            for entry in response.entries or ()
            for value in entry.values
        ]

    def set(self, quotas: Sequence[Quota]) -> dict[Quota, str]:
        """Set quotas, whatever values they have. Return why some were refused; empty: all were set."""
        refusals: dict[Quota, str] = {}
        with closing(Cluster(self._client)) as cluster:
            for part in _parts(quotas):
                refused = self._retrying(
                    cluster, "setting quotas", lambda deadline, part=part: self._set(cluster, part, deadline)
                )
                refusals |= {quota: refused[quota.entity] for quota in part if quota.entity in refused}
        return refusals

    def _set(self, cluster: Cluster, quotas: Sequence[Quota], deadline: Deadline) -> dict[QuotaEntity, str]:
        """Return why entities were refused. Raises RetriableError for an answer that repeating may change."""
        entries = [_entry(entity, list(group)) for entity, group in groupby(quotas, key=lambda quota: quota.entity)]
        response = call(cluster.any_broker(deadline), "AlterClientQuotas", deadline, entries=entries, validate_only=False)
        refused = {}
        for entry in response.entries:
            code = int(entry.error_code)
            if code == 0:
                continue
            if code == CLUSTER_AUTHORIZATION_FAILED or error_class(code) is not ErrorClass.DEFINITE:
                self._raise_for(code, "setting quotas", "AlterConfigs")
            entity = QuotaEntity.of({part.entity_type: part.entity_name for part in entry.entity})
            refused[entity] = f"{error_name(code)}: {entry.error_message or 'the broker gives no reason'}"
        return refused

    def _retrying(self, cluster: Cluster, what: str, attempt: Any) -> Any:
        deadline = Deadline.after_ms(self._timeout_s * 1000, time.monotonic)
        try:
            return cluster.retrying(what, attempt, deadline)
        except RetriableError as error:
            raise RetriableError(error.error_name, f"{self._where}: {error.detail}") from error

    def _raise_for(self, code: int, what: str, right: str) -> None:
        if code == 0:
            return
        name = error_name(code)
        if code == CLUSTER_AUTHORIZATION_FAILED:
            raise ConfigError(f"{self._where}: {what}: {name}: grant {right} on the cluster to the user of the mirror file")
        if error_class(code) is ErrorClass.DEFINITE:
            raise ConfigError(f"{self._where}: {what}: the broker answered {name}")
        raise RetriableError(name, what)


def _parts(quotas: Sequence[Quota]) -> Iterator[list[Quota]]:
    """Yield quotas of a bounded number of entities, those of an entity together."""
    ordered = sorted(quotas, key=lambda quota: quota.sort_key)
    groups = [list(group) for _, group in groupby(ordered, key=lambda quota: quota.entity)]
    for start in range(0, len(groups), ENTITIES_PER_REQUEST):
        yield [quota for group in groups[start : start + ENTITIES_PER_REQUEST] for quota in group]


def _entry(entity: QuotaEntity, quotas: Sequence[Quota]) -> Any:
    entry = request_class("AlterClientQuotas").EntryData
    return entry(
        entity=[entry.EntityData(entity_type=kind, entity_name=name) for kind, name in entity.parts],
        ops=[entry.OpData(key=quota.key, value=quota.value, remove=False) for quota in quotas],
    )
