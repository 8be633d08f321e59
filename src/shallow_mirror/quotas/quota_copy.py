"""Driver: the quotas that the target of a mirror lacks, compared and created: by the command, and by a running mirror."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shallow_mirror.broker.admin.quota_client import QuotaClient
from shallow_mirror.broker.admin.quota_entries import Quota
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.quotas.quota_plan import QuotaNotCopied, QuotaPlan, QuotaRules, plan_quotas, unnamed_users

ANONYMOUS = "ANONYMOUS"
"""Kafka's user of a connection without login and certificate."""


class QuotaStore(Protocol):
    """Quotas of one cluster. Raises RetriableError, ConfigError."""

    def read(self) -> frozenset[Quota]:
        """Return all quotas."""
        ...

    def set(self, quotas: Sequence[Quota]) -> dict[Quota, str]:
        """Return why some were refused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaReport:
    """The plan, and with `is_applied` what became of it: `created`, `updated`; `left`: what the target refused."""

    mirror: str
    source: str
    target: str
    plan: QuotaPlan
    is_applied: bool = False
    created: tuple[Quota, ...] = ()
    updated: tuple[Quota, ...] = ()
    left: tuple[QuotaNotCopied, ...] = ()

    @property
    def is_done(self) -> bool:
        """Return whether the target has a quota wherever it needs one, whatever its value."""
        return not self.left if self.is_applied else not self.plan.to_create

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "mirror": self.mirror,
            "source": self.source,
            "target": self.target,
            "applied": self.is_applied,
            "present": [_document(quota) for quota in self.plan.present],
            "to_create": [_document(quota) for quota in self.plan.to_create],
            "different": [{**_document(entry.wanted), "target_value": entry.existing} for entry in self.plan.different],
            "not_copied": [{**_document(left.quota), "reason": left.reason} for left in self.plan.not_copied],
            "created": [_document(quota) for quota in self.created],
            "updated": [_document(quota) for quota in self.updated],
            "left": [{**_document(left.quota), "reason": left.reason} for left in self.left],
        }


def copy_quotas(config: MirrorConfig, *, is_applied: bool = False, is_updating: bool = False) -> QuotaReport:
    """Compare the quotas of both clusters; with `is_applied`, create what the target lacks, with `is_updating` also set others.

    Raises ConfigError where a permission or an entry of `acls.principals` is missing, and RetriableError where a cluster does not
    answer: the same call continues.
    """
    source, target = quota_stores(config)
    report = compare_quotas(source, target, config)
    return apply_quotas(target, report, is_updating=is_updating) if is_applied else report


def quota_stores(config: MirrorConfig, *, timeout_s: float = math.inf) -> tuple[QuotaStore, QuotaStore]:
    """Return the quotas of the source and of the target. `timeout_s`: of each call; less where `request.timeout.ms` is."""
    return (
        QuotaClient(config.source_client, config.source_cluster_name, timeout_s=timeout_s),
        QuotaClient(config.target.client, config.target_cluster_name, timeout_s=timeout_s),
    )


def compare_quotas(source: QuotaStore, target: QuotaStore, config: MirrorConfig) -> QuotaReport:
    """Return what the target lacks, without changing anything. Raises as `copy_quotas`."""
    rules = quota_rules(config)
    source_quotas = source.read()
    unnamed = unnamed_users(source_quotas, rules)
    if unnamed:
        raise ConfigError(f"acls.principals: has no entry for {', '.join(unnamed)}, and acls.principals_only needs one for each")
    plan = plan_quotas(source_quotas, target.read(), rules)
    return QuotaReport(mirror=config.mirror, source=config.source_cluster_name, target=config.target_cluster_name, plan=plan)


def apply_quotas(target: QuotaStore, report: QuotaReport, *, is_updating: bool) -> QuotaReport:
    """Create what the target lacks, with `is_updating` also set what has another value there. Return the report with that."""
    plan = report.plan
    updates = [entry.wanted for entry in plan.different] if is_updating else []
    wanted = [*plan.to_create, *updates]
    refused = target.set(wanted) if wanted else {}
    return replace(
        report,
        is_applied=True,
        created=tuple(quota for quota in plan.to_create if quota not in refused),
        updated=tuple(quota for quota in updates if quota not in refused),
        left=tuple(QuotaNotCopied(quota, reason) for quota, reason in refused.items()),
    )


def quota_rules(config: MirrorConfig) -> QuotaRules:
    """Return what decides which quotas a mirror's target needs."""
    return QuotaRules(
        principals=config.acls.principals,
        is_principal_required=config.acls.principals_only,
        mirror_user=_mirror_user(config),
        mirror_client_id=config.target.client.client_id,
    )


def _mirror_user(config: MirrorConfig) -> str | None:
    """Return the mirror's user on the target. None: only the brokers know it (a certificate, a token)."""
    client = config.target.client
    if client.uses_sasl:
        return client.value("sasl.username") or None
    return None if client.uses_tls else ANONYMOUS


def _document(quota: Quota) -> dict[str, Any]:
    return {"entity": quota.entity.names(), "key": quota.key, "value": quota.value}
