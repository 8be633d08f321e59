"""Kafka's StandardAuthorizer in a few lines, written from its rules and not from the code that is tested."""

from __future__ import annotations

from collections.abc import Iterable

from shallow_mirror.broker.admin.access import Acl, AclEffect, AclOperation, PatternKind, ResourceKind

_IMPLY_DESCRIBE = {
    AclOperation.DESCRIBE,
    AclOperation.READ,
    AclOperation.WRITE,
    AclOperation.DELETE,
    AclOperation.ALTER,
}
_IMPLY_DESCRIBE_CONFIGS = {AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS}


def is_allowed(acls: Iterable[Acl], principal: str, host: str, operation: AclOperation, kind: ResourceKind, name: str) -> bool:
    """Deny wins; without an ALLOW nothing is allowed."""
    matching = [acl for acl in acls if _matches(acl, principal, host, operation, kind, name)]
    return bool(matching) and not any(acl.effect is AclEffect.DENY for acl in matching)


def _matches(acl: Acl, principal: str, host: str, operation: AclOperation, kind: ResourceKind, name: str) -> bool:
    if acl.pattern.kind is not kind:
        return False
    is_prefix = acl.pattern.match is PatternKind.PREFIXED
    is_named = name.startswith(acl.pattern.name) if is_prefix else acl.pattern.name in ("*", name)
    is_user = acl.principal in ("User:*", principal) and acl.host in ("*", host)
    return is_named and is_user and _is_about(acl, operation)


def _is_about(acl: Acl, operation: AclOperation) -> bool:
    if acl.operation in (AclOperation.ALL, operation):
        return True
    if acl.effect is AclEffect.DENY:
        return False
    if operation is AclOperation.DESCRIBE:
        return acl.operation in _IMPLY_DESCRIBE
    return operation is AclOperation.DESCRIBE_CONFIGS and acl.operation in _IMPLY_DESCRIBE_CONFIGS
