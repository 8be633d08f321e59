"""Pure: entries of an authorizer (ACLs) as values, and Kafka's rules for what two of them have in common."""

from __future__ import annotations

import enum
from dataclasses import dataclass

ANYBODY = "User:*"
ANY_HOST = "*"
ANY_NAME = "*"


class ResourceKind(enum.StrEnum):
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTIONAL_ID = "transactional id"
    CLUSTER = "cluster"


class PatternKind(enum.StrEnum):
    LITERAL = "literal"
    PREFIXED = "prefixed"


class AclOperation(enum.StrEnum):
    """Operations by Kafka's names. `UNKNOWN`: one that is newer than the client."""

    ALL = "All"
    READ = "Read"
    WRITE = "Write"
    CREATE = "Create"
    DELETE = "Delete"
    ALTER = "Alter"
    DESCRIBE = "Describe"
    CLUSTER_ACTION = "ClusterAction"
    DESCRIBE_CONFIGS = "DescribeConfigs"
    ALTER_CONFIGS = "AlterConfigs"
    IDEMPOTENT_WRITE = "IdempotentWrite"
    UNKNOWN = "Unknown"


class AclEffect(enum.StrEnum):
    DENY = "Deny"
    ALLOW = "Allow"


_ALSO_ALLOWED = {
    AclOperation.READ: AclOperation.DESCRIBE,
    AclOperation.WRITE: AclOperation.DESCRIBE,
    AclOperation.DELETE: AclOperation.DESCRIBE,
    AclOperation.ALTER: AclOperation.DESCRIBE,
    AclOperation.ALTER_CONFIGS: AclOperation.DESCRIBE_CONFIGS,
}
"""What Kafka's authorizers allow with an operation that is allowed. A denied operation denies itself only."""


@dataclass(frozen=True, slots=True, order=True)
class ResourcePattern:
    """Resources of one kind: one name, all names (`*`, literal), or the names that begin with a prefix."""

    kind: ResourceKind
    name: str
    match: PatternKind = PatternKind.LITERAL

    @property
    def is_any(self) -> bool:
        return self.match is PatternKind.LITERAL and self.name == ANY_NAME

    @property
    def prefix(self) -> str | None:
        """Return the prefix of all names of the pattern, empty for `*`; None: it is one name."""
        if self.is_any:
            return ""
        return self.name if self.match is PatternKind.PREFIXED else None

    def covers(self, other: ResourcePattern) -> bool:
        """Return whether every resource of `other` is one of this pattern."""
        if self.kind is not other.kind:
            return False
        if self.prefix is None:
            return other.prefix is None and other.name == self.name
        return (other.name if other.prefix is None else other.prefix).startswith(self.prefix)

    def common_with(self, other: ResourcePattern) -> ResourcePattern | None:
        """Return the resources of both, which is always the narrower of the two patterns; None: there are none."""
        if self.covers(other):
            return other
        return self if other.covers(self) else None

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (" (prefixed)" if self.match is PatternKind.PREFIXED else "")


@dataclass(frozen=True, slots=True, order=True)
class Acl:
    """One entry: `principal` may or may not use `operation` on the resources of `pattern`, from `host`."""

    pattern: ResourcePattern
    principal: str
    operation: AclOperation
    effect: AclEffect = AclEffect.ALLOW
    host: str = ANY_HOST

    @property
    def is_deny(self) -> bool:
        return self.effect is AclEffect.DENY

    def denies_some_of(self, allow: Acl) -> bool:
        """Return whether this DENY forbids anything that `allow` permits."""
        return (
            self.pattern.common_with(allow.pattern) is not None
            and _meet(self.principal, allow.principal, ANYBODY)
            and _meet(self.host, allow.host, ANY_HOST)
            and _is_operation_denied(self.operation, allow.operation)
        )

    def document(self) -> dict[str, str]:
        """Return the entry as JSON values."""
        return {
            "resource_type": self.pattern.kind.value,
            "resource_name": self.pattern.name,
            "pattern_type": self.pattern.match.value,
            "principal": self.principal,
            "host": self.host,
            "operation": self.operation.value,
            "permission": self.effect.value,
        }

    def __str__(self) -> str:
        host = "" if self.host == ANY_HOST else f" from {self.host}"
        return f"{self.effect} {self.operation} on {self.pattern} to {self.principal}{host}"


def _meet(left: str, right: str, anything: str) -> bool:
    return left == right or anything in (left, right)


def _is_operation_denied(denied: AclOperation, allowed: AclOperation) -> bool:
    return denied in (allowed, AclOperation.ALL, _ALSO_ALLOWED.get(allowed)) or allowed is AclOperation.ALL
