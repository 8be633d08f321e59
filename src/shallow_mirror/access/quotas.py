"""Driver: the quotas that the target of a mirror lacks, compared and created: by the command, and by a running mirror."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shallow_mirror.access.comparison import AccessReport, documents, require_named, stores_of
from shallow_mirror.access.plan import NotCopied
from shallow_mirror.access.quota_plan import QuotaPlan, QuotaRules, plan_quotas, unnamed_users
from shallow_mirror.broker.admin.access import Quota, QuotaClient
from shallow_mirror.config import MirrorConfig

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
class QuotaReport(AccessReport[QuotaPlan, Quota]):
    updated: tuple[Quota, ...] = ()

    def changes_document(self) -> dict[str, Any]:
        return {"different": documents(self.plan.different), "updated": documents(self.updated)}


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
    return stores_of(config, QuotaClient, timeout_s)


def compare_quotas(source: QuotaStore, target: QuotaStore, config: MirrorConfig) -> QuotaReport:
    """Return what the target lacks, without changing anything. Raises as `copy_quotas`."""
    rules = quota_rules(config)
    source_quotas = source.read()
    require_named(unnamed_users(source_quotas, rules))
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
        left=tuple(NotCopied(quota, reason) for quota, reason in refused.items()),
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
