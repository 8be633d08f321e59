"""Reading commands: the ACLs of one cluster: read, created, deleted."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from shallow_mirror.broker.admin.access.acl_entries import (
    Acl,
    AclEffect,
    AclOperation,
    PatternKind,
    ResourceKind,
    ResourcePattern,
)
from shallow_mirror.broker.admin.item_requests import Answer, Undecided, ask_controller
from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.broker.cluster.cluster import Cluster
from shallow_mirror.broker.net.error_codes import (
    CLUSTER_AUTHORIZATION_FAILED,
    SECURITY_DISABLED,
    ErrorClass,
    error_class,
    error_name,
)
from shallow_mirror.broker.net.requests import call, request_class
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError

ACLS_PER_REQUEST = 500

_ANY = 1
"""Of patterns, operations and effects, in filters."""
_KINDS = {
    ResourceKind.TOPIC: 2,
    ResourceKind.GROUP: 3,
    ResourceKind.CLUSTER: 4,
    ResourceKind.TRANSACTIONAL_ID: 5,
}
_MATCHES = {PatternKind.LITERAL: 3, PatternKind.PREFIXED: 4}
_EFFECTS = {AclEffect.DENY: 2, AclEffect.ALLOW: 3}
_OPERATIONS = {
    AclOperation.UNKNOWN: 0,
    AclOperation.ALL: 2,
    AclOperation.READ: 3,
    AclOperation.WRITE: 4,
    AclOperation.CREATE: 5,
    AclOperation.DELETE: 6,
    AclOperation.ALTER: 7,
    AclOperation.DESCRIBE: 8,
    AclOperation.CLUSTER_ACTION: 9,
    AclOperation.DESCRIBE_CONFIGS: 10,
    AclOperation.ALTER_CONFIGS: 11,
    AclOperation.IDEMPOTENT_WRITE: 12,
}
_OPERATIONS_BY_CODE = {code: operation for operation, code in _OPERATIONS.items()}


class AclClient:
    """Connect at the first request. Raises RetriableError if the cluster does not answer, ConfigError if it refuses."""

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
            return int(cluster.retrying("reading ACLs", ask, deadline).error_code) != SECURITY_DISABLED

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
            resource_type_filter=_KINDS[kind],
            resource_name_filter=None,
            pattern_type_filter=_ANY,
            principal_filter=None,
            host_filter=None,
            operation=_ANY,
            permission_type=_ANY,
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
        if code == SECURITY_DISABLED:
            return f"{self._where} has no authorizer (authorizer.class.name), so it has no ACLs"
        if code == CLUSTER_AUTHORIZATION_FAILED:
            name = error_name(code)
            return f"{self._where}: {what}: {name}: grant {right} on the cluster to the user of the mirror file"
        return None

    def create(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        """Create ACLs; one that exists stays as it is. Return why some were refused; empty: all were created."""
        return self._change("CreateAcls", "creating ACLs", acls, _creations, _answers_to_creations)

    def delete(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        """Delete exactly these ACLs; one that does not exist is passed over. Return why some were refused."""
        return self._change("DeleteAcls", "deleting ACLs", acls, _filters, _answers_to_filters)

    def _change(self, api: str, what: str, acls: Sequence[Acl], fields: Any, parse: Any) -> dict[Acl, str]:
        """Return why the cluster refused single ACLs. Raises if it refuses all of them, or does not answer."""
        refusals: dict[Acl, str] = {}
        wanted = list(dict.fromkeys(acls))
        with closing(Cluster(self._client)) as cluster:
            for start in range(0, len(wanted), ACLS_PER_REQUEST):
                part = wanted[start : start + ACLS_PER_REQUEST]
                deadline = Deadline.after_ms(self._timeout_s * 1000, time.monotonic)
                for acl, result in ask_controller(cluster, api, part, fields, parse, deadline).items():
                    if isinstance(result, Undecided):
                        raise RetriableError(result.error_name, f"{self._where}: {what}: {result.detail}")
                    if result.code == 0:
                        continue
                    problem = self._problem(result.code, what, "Alter")
                    if problem is not None:
                        raise ConfigError(problem)
                    refusals[acl] = f"{result.name}: {result.message}" if result.message else result.name
        return refusals


def _creations(acls: Sequence[Acl], _deadline: Deadline) -> Mapping[str, Any]:
    creation = request_class("CreateAcls").AclCreation
    return {
        "creations": [
            creation(
                resource_type=_KINDS[acl.pattern.kind],
                resource_name=acl.pattern.name,
                resource_pattern_type=_MATCHES[acl.pattern.match],
                principal=acl.principal,
                host=acl.host,
                operation=_OPERATIONS[acl.operation],
                permission_type=_EFFECTS[acl.effect],
            )
            for acl in acls
        ]
    }


def _answers_to_creations(acls: Sequence[Acl], response: Any) -> Mapping[Acl, Answer]:
    """Return the answers, which are in the order of the request."""
    return dict(zip(acls, (Answer(int(entry.error_code), entry.error_message or "") for entry in response.results), strict=False))


def _filters(acls: Sequence[Acl], _deadline: Deadline) -> Mapping[str, Any]:
    wanted = request_class("DeleteAcls").DeleteAclsFilter
    return {
        "filters": [
            wanted(
                resource_type_filter=_KINDS[acl.pattern.kind],
                resource_name_filter=acl.pattern.name,
                pattern_type_filter=_MATCHES[acl.pattern.match],
                principal_filter=acl.principal,
                host_filter=acl.host,
                operation=_OPERATIONS[acl.operation],
                permission_type=_EFFECTS[acl.effect],
            )
            for acl in acls
        ]
    }


def _answers_to_filters(acls: Sequence[Acl], response: Any) -> Mapping[Acl, Answer]:
    """Return the answers, in the order of the request: of a filter, or of the ACL that it matches."""
    answers = {}
    for acl, result in zip(acls, response.filter_results, strict=False):
        failed = next((entry for entry in (result, *result.matching_acls) if entry.error_code), None)
        answers[acl] = Answer(0) if failed is None else Answer(int(failed.error_code), failed.error_message or "")
    return answers


def _acl(kind: ResourceKind, resource: Any, entry: Any) -> Acl:
    is_prefixed = resource.pattern_type == _MATCHES[PatternKind.PREFIXED]
    pattern = ResourcePattern(kind, resource.resource_name, PatternKind.PREFIXED if is_prefixed else PatternKind.LITERAL)
    effect = AclEffect.ALLOW if entry.permission_type == _EFFECTS[AclEffect.ALLOW] else AclEffect.DENY
    return Acl(pattern, entry.principal, _OPERATIONS_BY_CODE.get(entry.operation, AclOperation.UNKNOWN), effect, entry.host)
