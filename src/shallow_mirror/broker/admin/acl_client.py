"""Reading commands: the ACLs of one cluster, through confluent-kafka: read, created, deleted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclPermissionType, AdminClient, ResourcePatternType, ResourceType
from confluent_kafka.admin import AclOperation as ClientOperation

from shallow_mirror.broker.admin.acl_entries import Acl, AclEffect, AclOperation, PatternKind, ResourceKind, ResourcePattern
from shallow_mirror.broker.auth.client_config import ClientConfig
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
_MATCHES = {PatternKind.LITERAL: ResourcePatternType.LITERAL, PatternKind.PREFIXED: ResourcePatternType.PREFIXED}
_EFFECTS = {AclEffect.DENY: AclPermissionType.DENY, AclEffect.ALLOW: AclPermissionType.ALLOW}


class AclClient:
    """Connect at the first request. Raises RetriableError where the cluster does not answer, ConfigError where it refuses."""

    def __init__(self, client: ClientConfig, where: str) -> None:
        """Take `where` as the name of the cluster in errors."""
        self._admin = AdminClient({**client.as_confluent(), "log_level": "0"})
        self._where = where
        self._timeout_s = client.request_timeout_ms / 1000

    def read(self) -> frozenset[Acl]:
        """Return the ACLs on topics, groups, transactional ids and the cluster."""
        return frozenset(acl for kind, resource_type in _KINDS.items() for acl in self._read_kind(kind, resource_type))

    def _read_kind(self, kind: ResourceKind, resource_type: ResourceType) -> list[Acl]:
        wanted = AclBindingFilter(
            resource_type, None, ResourcePatternType.ANY, None, None, ClientOperation.ANY, AclPermissionType.ANY
        )
        future = self._admin.describe_acls(wanted, request_timeout=self._timeout_s)
        bindings, refusal = self._result(future, "reading ACLs", "Describe")
        if refusal is not None:
            raise ConfigError(f"{self._where}: reading ACLs: {refusal}")
        return [_acl(kind, binding) for binding in bindings]

    def create(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        """Create ACLs; one that exists stays as it is. Return why some were refused; empty: all were created."""
        refusals = {}
        for part in _parts(acls):
            bindings = {_binding(acl): acl for acl in part}
            futures = self._admin.create_acls(list(bindings), request_timeout=self._timeout_s)
            for binding, future in futures.items():
                _, refusal = self._result(future, "creating ACLs", "Alter")
                if refusal is not None:
                    refusals[bindings[binding]] = refusal
        return refusals

    def delete(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        """Delete exactly these ACLs; one that does not exist is passed over. Return why some were refused."""
        refusals = {}
        for part in _parts(acls):
            filters = {_filter(acl): acl for acl in part}
            futures = self._admin.delete_acls(list(filters), request_timeout=self._timeout_s)
            for wanted, future in futures.items():
                _, refusal = self._result(future, "deleting ACLs", "Alter")
                if refusal is not None:
                    refusals[filters[wanted]] = refusal
        return refusals

    def _result(self, future: Future[Any], what: str, right: str) -> tuple[Any, str | None]:
        """Return the result, or why the broker refused this one. Raises where it refuses all of them, or does not answer."""
        try:
            return future.result(self._timeout_s + 1), None
        except KafkaException as error:
            failure = error.args[0]
            code = failure.code()
            if code == _SECURITY_DISABLED:
                raise ConfigError(f"{self._where} has no authorizer (authorizer.class.name), so it has no ACLs") from error
            if code == _CLUSTER_AUTHORIZATION_FAILED:
                raise ConfigError(
                    f"{self._where}: {what}: CLUSTER_AUTHORIZATION_FAILED: grant {right} on the cluster to the user of the "
                    "mirror file"
                ) from error
            if code in _NOT_LET_IN:
                raise ConfigError(f"{self._where}: {what}: {failure.str()}") from error
            if failure.retriable() or code in _PASSING or code < 0:
                raise RetriableError(failure.name(), f"{self._where}: {what}: {failure.str()}") from error
            return None, f"{failure.name()}: {failure.str()}"
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


def _acl(kind: ResourceKind, binding: AclBinding) -> Acl:
    is_prefixed = binding.resource_pattern_type is ResourcePatternType.PREFIXED
    pattern = ResourcePattern(kind, binding.name, PatternKind.PREFIXED if is_prefixed else PatternKind.LITERAL)
    effect = AclEffect.DENY if binding.permission_type is AclPermissionType.DENY else AclEffect.ALLOW
    return Acl(pattern, binding.principal, AclOperation[binding.operation.name], effect, binding.host)
