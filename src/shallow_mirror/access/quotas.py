"""Driver: the quotas that the target of a mirror lacks, compared and created: by the command, and by a running mirror."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from shallow_mirror.access.comparison import AccessCopy, AccessReport, documents, require_named, stores_of
from shallow_mirror.access.plan import NotCopied
from shallow_mirror.access.quota_plan import QuotaPlan, QuotaRules, plan_quotas, unnamed_users
from shallow_mirror.broker.admin.access import Quota, QuotaClient
from shallow_mirror.config import MirrorConfig
from shallow_mirror.plurals import counted

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
    noun: ClassVar[str] = "quota"
    refused: ClassVar[str] = "refused"

    def changes_document(self) -> dict[str, Any]:
        return {"different": documents(self.plan.different), "updated": documents(self.updated)}

    def differences(self) -> list[str]:
        lacking = [f"{self.target} lacks: {quota}" for quota in self.plan.to_create]
        return lacking + [f"{self.target} has another value: {entry}" for entry in self.plan.different]

    def outcome(self) -> str:
        if not (self.created or self.updated):
            return ""
        return f"{counted(len(self.created), 'quota')} created, {len(self.updated)} updated"


class QuotaCopy(AccessCopy[QuotaReport]):
    """`is_updating`: quotas that have another value at the target are set there."""

    def __init__(self, config: MirrorConfig, source: QuotaStore, target: QuotaStore, *, is_updating: bool) -> None:
        self._config = config
        self._source = source
        self._target = target
        self._is_updating = is_updating

    def compare(self) -> QuotaReport:
        config, rules, source_quotas = self._config, quota_rules(self._config), self._source.read()
        require_named(unnamed_users(source_quotas, rules))
        return QuotaReport(
            mirror=config.mirror,
            source=config.source_cluster_name,
            target=config.target_cluster_name,
            plan=plan_quotas(source_quotas, self._target.read(), rules),
        )

    def apply(self, report: QuotaReport) -> QuotaReport:
        plan = report.plan
        updates = [entry.wanted for entry in plan.different] if self._is_updating else []
        wanted = [*plan.to_create, *updates]
        refused = self._target.set(wanted) if wanted else {}
        return replace(
            report,
            is_applied=True,
            created=tuple(quota for quota in plan.to_create if quota not in refused),
            updated=tuple(quota for quota in updates if quota not in refused),
            left=tuple(NotCopied(quota, reason) for quota, reason in refused.items()),
        )


def quota_stores(config: MirrorConfig, *, timeout_s: float = math.inf) -> tuple[QuotaStore, QuotaStore]:
    """Return the quotas of the source and of the target. `timeout_s`: of each call; less if `request.timeout.ms` is."""
    return stores_of(config, QuotaClient, timeout_s)


def quota_rules(config: MirrorConfig) -> QuotaRules:
    """Return the rules by which a mirror's target needs quotas."""
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
