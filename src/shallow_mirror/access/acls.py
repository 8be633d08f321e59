"""Driver: the ACLs that the target of a mirror lacks, compared and created: by the command, and by a running mirror."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from shallow_mirror.access.acl_plan import AclPlan, plan_acls, ready_allows, unnamed_principals
from shallow_mirror.access.acl_rules import AclRules
from shallow_mirror.access.comparison import AccessReport, documents, require_named, stores_of
from shallow_mirror.access.plan import NotCopied
from shallow_mirror.broker.admin.access import Acl, AclClient
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError

_WITHHELD = "a Deny that limits it was refused"


class AclStore(Protocol):
    """ACLs of one cluster. Raises RetriableError, ConfigError."""

    def read(self) -> frozenset[Acl]:
        """Return all ACLs."""
        ...

    def create(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        """Return why some were refused."""
        ...

    def delete(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        """Return why some were refused."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AclReport(AccessReport[AclPlan, Acl]):
    deleted: tuple[Acl, ...] = ()

    def changes_document(self) -> dict[str, Any]:
        return {"to_delete": documents(self.plan.to_delete), "deleted": documents(self.deleted)}


def copy_acls(config: MirrorConfig, *, is_applied: bool = False, is_deleting: bool = False) -> AclReport:
    """Compare the ACLs of both clusters; with `is_applied`, create what the target lacks, with `is_deleting` delete as well.

    Raises ConfigError where a cluster has no authorizer, where a permission or an entry of `acls.principals` is missing, and
    RetriableError where a cluster does not answer: the same call continues.
    """
    rules = acl_rules(config)
    if is_deleting and rules.mirror_principal is None:
        raise ConfigError(
            "--delete needs the name of the mirror's own user at the target, whose ACLs must stay, and only target.client with "
            "sasl.username has it: delete the ACLs that are shown with kafka-acls.sh"
        )
    source, target = acl_stores(config)
    return copy_between(source, target, config, rules, is_applied=is_applied, is_deleting=is_deleting)


def acl_stores(config: MirrorConfig, *, timeout_s: float = math.inf) -> tuple[AclStore, AclStore]:
    """Return the ACLs of the source and of the target. `timeout_s`: of each request; less where `request.timeout.ms` is."""
    return stores_of(config, AclClient, timeout_s)


def copy_between(
    source: AclStore, target: AclStore, config: MirrorConfig, rules: AclRules, *, is_applied: bool, is_deleting: bool
) -> AclReport:
    """Do as `copy_acls` between two clusters."""
    report = compare_acls(source, target, config, rules)
    return apply_plan(target, report, is_deleting=is_deleting) if is_applied else report


def compare_acls(source: AclStore, target: AclStore, config: MirrorConfig, rules: AclRules) -> AclReport:
    """Return what the target lacks, without changing anything. Raises as `copy_acls`."""
    source_acls = source.read()
    require_named(unnamed_principals(source_acls, rules))
    plan = plan_acls(source_acls, target.read(), rules)
    return AclReport(mirror=config.mirror, source=config.source_cluster_name, target=config.target_cluster_name, plan=plan)


def apply_plan(target: AclStore, report: AclReport, *, is_deleting: bool) -> AclReport:
    """Create what the target lacks, with `is_deleting` delete as well. Return the report with what became of it."""
    plan = report.plan
    created, left = _create(target, plan)
    refused = target.delete(plan.to_delete) if is_deleting else {}
    deleted = tuple(acl for acl in plan.to_delete if is_deleting and acl not in refused)
    left += [NotCopied(acl, reason) for acl, reason in refused.items()]
    return replace(report, is_applied=True, created=tuple(created), deleted=deleted, left=tuple(left))


def _create(target: AclStore, plan: AclPlan) -> tuple[list[Acl], list[NotCopied[Acl]]]:
    """Create every DENY, and then the ALLOWs that no refused DENY limits. Return what was created, and what was not."""
    denies = [acl for acl in plan.to_create if acl.is_deny]
    refused = target.create(denies)
    ready, withheld = ready_allows([acl for acl in plan.to_create if not acl.is_deny], list(refused))
    refused |= target.create(ready)
    created = [acl for acl in (*denies, *ready) if acl not in refused]
    left = [NotCopied(acl, reason) for acl, reason in refused.items()]
    return created, left + [NotCopied(acl, _WITHHELD) for acl in withheld]


def acl_rules(config: MirrorConfig) -> AclRules:
    """Return what decides which ACLs a mirror's target needs."""
    topics, groups, acls = config.topics, config.groups, config.acls
    return AclRules(
        mirror=config.mirror,
        source_alias=config.source.alias,
        target_name=topics.target_name,
        topic_include=tuple(topics.include),
        topic_exclude=tuple(topics.exclude),
        topic_offsets=tuple(topics.offsets.items()),
        group_include=tuple(groups.include),
        group_exclude=tuple(groups.exclude),
        principals=acls.principals,
        is_principal_required=acls.principals_only,
        is_write_copied=acls.write,
        mirror_principal=_mirror_principal(config),
    )


def _mirror_principal(config: MirrorConfig) -> str | None:
    """Return the mirror's principal on the target. None: only the brokers know it (a certificate, a token, no login)."""
    client = config.target.client
    username = client.value("sasl.username") if client.uses_sasl else ""
    return f"User:{username}" if username else None
