"""Entries of access control lists and quotas, as a cluster keeps them."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.broker.admin.access.acl_client import AclClient as AclClient
    from shallow_mirror.broker.admin.access.acl_entries import (
        ANY_HOST as ANY_HOST,
        ANYBODY as ANYBODY,
        Acl as Acl,
        AclEffect as AclEffect,
        AclOperation as AclOperation,
        PatternKind as PatternKind,
        ResourceKind as ResourceKind,
        ResourcePattern as ResourcePattern,
    )
    from shallow_mirror.broker.admin.access.quota_client import QuotaClient as QuotaClient
    from shallow_mirror.broker.admin.access.quota_entries import (
        ENTITY_TYPES as ENTITY_TYPES,
        IP as IP,
        KEYS as KEYS,
        USER as USER,
        Quota as Quota,
        QuotaEntity as QuotaEntity,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
