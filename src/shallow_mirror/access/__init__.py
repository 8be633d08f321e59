"""Permissions and quotas: compared, copied, followed and shown."""

from typing import TYPE_CHECKING

from shallow_mirror.lazy_names import lazy_names

if TYPE_CHECKING:
    from shallow_mirror.access.acls import copy_acls as copy_acls
    from shallow_mirror.access.plan import AccessPass as AccessPass
    from shallow_mirror.access.quotas import copy_quotas as copy_quotas
    from shallow_mirror.access.sync import acl_sync as acl_sync, quota_sync as quota_sync
    from shallow_mirror.access.view import show_acls as show_acls, show_quotas as show_quotas
else:
    __getattr__, __dir__ = lazy_names(__name__)
