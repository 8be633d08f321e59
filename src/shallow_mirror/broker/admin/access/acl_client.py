"""Reading commands: the ACLs of one cluster: read, created, deleted.

Read with requests of our own: librdkafka (2.16) drops the error code of DescribeAcls, so that a cluster which refuses to show its
ACLs looks like one that has none, and every DENY of it would be missing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation as ClientOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from shallow_mirror.broker.admin.access.acl_entries import (
    Acl,
    AclEffect,
    AclOperation,
    PatternKind,
    ResourceKind,
    ResourcePattern,
)
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.error_codes import ErrorClass, error_class, error_name
from shallow_mirror.broker.net.requests import call
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError

ACLS_PER_REQUEST = 500

_CLUSTER_AUTHORIZATION_FAILED = 31
_SECURITY_DISABLED = 54
_PASSING = {KafkaError.REQUEST_TIMED_OUT, KafkaError.NOT_CONTROLLER}
_NOT_LET_IN = {KafkaError._AUTHENTICATION, KafkaError._SSL}

_KINDS = {
    ResourceKind.TOPIC: ResourceType.TOPIC,
    ResourceKind.GROUP: ResourceType.GROUP,
    ResourceKind.TRANSACTIONAL_ID: ResourceType.TRANSACTIONAL_ID,
    ResourceKind.CLUSTER: ResourceType.BROKER,  # librdkafka's name of the same code
}
_OPERATIONS = {ClientOperation[operation.name].value: operation for operation in AclOperation}
_MATCHES = {PatternKind.LITERAL: ResourcePatternType.LITERAL, PatternKind.PREFIXED: ResourcePatternType.PREFIXED}
_EFFECTS = {AclEffect.DENY: AclPermissionType.DENY, AclEffect.ALLOW: AclPermissionType.ALLOW}


class AclClient:
    """Connect at the first request. Raises RetriableError where the cluster does not answer, ConfigError where it refuses."""

    def __init__(self, client: ClientConfig, where: str, *, timeout_s: float = math.inf) -> None:
        """Take `where` as the name of the cluster in errors. `timeout_s`: of each request, if less than the client's."""
        self._client = client
        self._where = where
        self._timeout_s = min(timeout_s, client.request_timeout_ms / 1000)

    def read(self) -> frozenset[Acl]:
        """Return the ACLs on topics, groups, transactional ids and the cluster."""
        deadline = Deadline.after_ms(self._timeout_s * 1000, time.monotonic)
        with closing(Cluster(self._client)) as cluster:
            try:
                read = [
                    cluster.retrying("reading ACLs", partial(self._read_kind, cluster, kind), deadline) for kind in ResourceKind
                ]
            except RetriableError as error:
                raise RetriableError(error.error_name, f"{self._where}: {error.detail}") from error
        return frozenset(acl for acls in read for acl in acls)

    def has_authorizer(self) -> bool:
        """Return whether the cluster has ACLs at all."""
        deadline = Deadline.after_ms(self._timeout_s * 1000, time.monotonic)
        with closing(Cluster(self._client)) as cluster:
            ask = partial(self._ask_kind, cluster, ResourceKind.TOPIC)
            return int(cluster.retrying("reading ACLs", ask, deadline).error_code) != _SECURITY_DISABLED

    def _read_kind(self, cluster: Cluster, kind: ResourceKind, deadline: Deadline) -> list[Acl]:
        response = self._ask_kind(cluster, kind, deadline)
        self._raise_for(response.error_code)
        return [_acl(kind, resource, entry) for resource in response.resources for entry in resource.acls]

    @staticmethod
    def _ask_kind(cluster: Cluster, kind: ResourceKind, deadline: Deadline) -> Any:
        return call(
            cluster.any_broker(deadline),
            "DescribeAcls",
            deadline,
            resource_type_filter=_KINDS[kind].value,
            resource_name_filter=None,
            pattern_type_filter=ResourcePatternType.ANY.value,
            principal_filter=None,
            host_filter=None,
            operation=ClientOperation.ANY.value,
            permission_type=AclPermissionType.ANY.value,
        )

    def _raise_for(self, code: int) -> None:
        """Raise for an error of DescribeAcls."""
        if code == 0:
            return
        problem = self._problem(code, "reading ACLs", "Describe")
        if problem is not None:
            raise ConfigError(problem)
        if error_class(code) is ErrorClass.DEFINITE:
            raise ConfigError(f"{self._where}: reading ACLs: the broker answered {error_name(code)}")
        raise RetriableError(error_name(code), "DescribeAcls")

    def _problem(self, code: int, what: str, right: str) -> str | None:
        """Return the sentence for an error that concerns all ACLs of the cluster; None for another."""
        if code == _SECURITY_DISABLED:
            return f"{self._where} has no authorizer (authorizer.class.name), so it has no ACLs"
        if code == _CLUSTER_AUTHORIZATION_FAILED:
            name = error_name(code)
            return f"{self._where}: {what}: {name}: grant {right} on the cluster to the user of the mirror file"
        return None

    def create(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        """Create ACLs; one that exists stays as it is. Return why some were refused; empty: all were created."""
        admin, refusals = self._admin(), {}
        for part in _parts(acls):
            bindings = {_binding(acl): acl for acl in part}
            futures = admin.create_acls(list(bindings), request_timeout=self._timeout_s)
            for binding, future in futures.items():
                refusal = self._refusal(future, "creating ACLs")
                if refusal is not None:
                    refusals[bindings[binding]] = refusal
        return refusals

    def delete(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        """Delete exactly these ACLs; one that does not exist is passed over. Return why some were refused."""
        admin, refusals = self._admin(), {}
        for part in _parts(acls):
            filters = {_filter(acl): acl for acl in part}
            futures = admin.delete_acls(list(filters), request_timeout=self._timeout_s)
            for wanted, future in futures.items():
                refusal = self._refusal(future, "deleting ACLs")
                if refusal is not None:
                    refusals[filters[wanted]] = refusal
        return refusals

    def _admin(self) -> AdminClient:
        """Return an admin client; keep it in a variable until its futures are done: they end with it."""
        return AdminClient({**self._client.as_confluent(), "log_level": "0"})

    def _refusal(self, future: Future[Any], what: str) -> str | None:
        """Return why the broker refused this one. Raises where it refuses all of them, or does not answer."""
        try:
            future.result(self._timeout_s + 1)
            return None
        except KafkaException as error:
            failure = error.args[0]
            code = failure.code()
            problem = self._problem(code, what, "Alter")
            if problem is not None:
                raise ConfigError(problem) from error
            if code in _NOT_LET_IN:
                raise ConfigError(f"{self._where}: {what}: {failure.str()}") from error
            if failure.retriable() or code in _PASSING or code < 0:
                raise RetriableError(failure.name(), f"{self._where}: {what}: {failure.str()}") from error
            return f"{failure.name()}: {failure.str()}"
        except TimeoutError as error:  # the client itself is late
            raise RetriableError("REQUEST_TIMED_OUT", f"{self._where}: {what}: no answer in {self._timeout_s:.0f} s") from error


def _parts(acls: Sequence[Acl]) -> Iterator[Sequence[Acl]]:
    for start in range(0, len(acls), ACLS_PER_REQUEST):
        yield acls[start : start + ACLS_PER_REQUEST]


def _binding(acl: Acl) -> AclBinding:
    return AclBinding(*_fields(acl))


def _filter(acl: Acl) -> AclBindingFilter:
    return AclBindingFilter(*_fields(acl))


def _fields(acl: Acl) -> tuple[Any, ...]:
    pattern = acl.pattern
    operation = ClientOperation[acl.operation.name]
    return _KINDS[pattern.kind], pattern.name, _MATCHES[pattern.match], acl.principal, acl.host, operation, _EFFECTS[acl.effect]


def _acl(kind: ResourceKind, resource: Any, entry: Any) -> Acl:
    is_prefixed = resource.pattern_type == ResourcePatternType.PREFIXED.value
    pattern = ResourcePattern(kind, resource.resource_name, PatternKind.PREFIXED if is_prefixed else PatternKind.LITERAL)
    effect = AclEffect.ALLOW if entry.permission_type == AclPermissionType.ALLOW.value else AclEffect.DENY
    return Acl(pattern, entry.principal, _OPERATIONS.get(entry.operation, AclOperation.UNKNOWN), effect, entry.host)
