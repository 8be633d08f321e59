"""Permissions and quotas: compared, copied, followed and shown."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.access.acls import AclCopy as AclCopy, acl_stores as acl_stores
    from shallow_mirror.access.plan import AccessPass as AccessPass
    from shallow_mirror.access.quotas import QuotaCopy as QuotaCopy, quota_stores as quota_stores
    from shallow_mirror.access.read_only import open_topics as open_topics, read_only_sync as read_only_sync
    from shallow_mirror.access.sync import (
        AccessSync as AccessSync,
        Differences as Differences,
        acl_sync as acl_sync,
        quota_sync as quota_sync,
    )
    from shallow_mirror.access.view import show_acls as show_acls, show_quotas as show_quotas
    from shallow_mirror.access.write_denies import (
        may_write as may_write,
        plan_write_denies as plan_write_denies,
        write_deny as write_deny,
    )
else:
    __getattr__, __dir__ = lazy_names(__name__)
