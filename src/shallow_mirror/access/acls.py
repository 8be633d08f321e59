"""Driver: the ACLs that the target of a mirror lacks, compared and created: by the command, and by a running mirror."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from shallow_mirror.access.acl_plan import AclPlan, plan_acls, ready_allows, unnamed_principals
from shallow_mirror.access.acl_rules import AclRules
from shallow_mirror.access.comparison import AccessCopy, AccessReport, documents, require_named, stores_of
from shallow_mirror.access.plan import NotCopied
from shallow_mirror.access.write_denies import write_deny
from shallow_mirror.broker.admin.access import Acl, AclClient
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted

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
    is_deleting: bool = False

    noun: ClassVar[str] = "ACL"
    refused: ClassVar[str] = "did not take"

    def changes_document(self) -> dict[str, Any]:
        return {"to_delete": documents(self.plan.to_delete), "deleted": documents(self.deleted)}

    def differences(self) -> list[str]:
        lacking = [f"{self.target} lacks: {acl}" for acl in self.plan.to_create]
        return lacking + [f"{self.source} does not have: {acl}" for acl in self.plan.to_delete if self.is_deleting]

    def outcome(self) -> str:
        if not (self.created or self.deleted or self.left):
            return ""
        return f"{counted(len(self.created), 'ACL')} created, {len(self.deleted)} deleted, {len(self.left)} refused or withheld"


class AclCopy(AccessCopy[AclReport]):
    """`is_deleting`: ACLs for reading that the source does not have are deleted at the target."""

    def __init__(self, config: MirrorConfig, source: AclStore, target: AclStore, *, is_deleting: bool) -> None:
        self._config = config
        self._rules = acl_rules(config)
        self._source = source
        self._target = target
        self._is_deleting = is_deleting
        if is_deleting and self._rules.mirror_principal is None:
            raise ConfigError(
                "--delete needs the mirror's own principal at the target, whose ACLs must stay: set acls.mirror_principal, or "
                "sasl.username in target.client; or delete the ACLs that are shown with kafka-acls.sh"
            )

    def compare(self) -> AclReport:
        config, moved = self._config, _handed_over(self._config)
        present = self._source.read()
        # Again: a hand-over, or its end, may have come while the ACLs were read.
        moved |= _handed_over(config)
        source_acls = frozenset(acl for acl in present if not _keeps_writers_away(acl, moved))
        require_named(unnamed_principals(source_acls, self._rules))
        return AclReport(
            mirror=config.mirror,
            source=config.source_cluster_name,
            target=config.target_cluster_name,
            plan=plan_acls(source_acls, self._target.read(), self._rules),
            is_deleting=self._is_deleting,
        )

    def apply(self, report: AclReport) -> AclReport:
        created, left = _create(self._target, report.plan)
        to_delete = report.plan.to_delete if self._is_deleting else ()
        refused = self._target.delete(to_delete)
        return replace(
            report,
            is_applied=True,
            created=tuple(created),
            deleted=tuple(acl for acl in to_delete if acl not in refused),
            left=(*left, *(NotCopied(acl, reason) for acl, reason in refused.items())),
        )


def _handed_over(config: MirrorConfig) -> frozenset[str]:
    """Return the source topics whose writers a migration moves, or has moved; none with tables in a catalog, as it cannot run."""
    if config.table_location.is_read_by_spark:
        return frozenset()
    controls = Controls.open(TableStorage(config.table_location)).read()
    return frozenset(controls.requested) | frozenset(controls.handed_over)


def _keeps_writers_away(acl: Acl, moved: Collection[str]) -> bool:
    """Return whether an ACL keeps writers from a topic that has moved: at the target it would stop them where they are now."""
    return acl.pattern.name in moved and acl == write_deny(acl.pattern.name, acl.principal)


def acl_stores(config: MirrorConfig, *, timeout_s: float = math.inf) -> tuple[AclStore, AclStore]:
    """Return the ACLs of the source and of the target. `timeout_s`: of each request; less if `request.timeout.ms` is."""
    return stores_of(config, AclClient, timeout_s)


def _create(target: AclStore, plan: AclPlan) -> tuple[list[Acl], list[NotCopied[Acl]]]:
    """Create every DENY, and then the ALLOWs that no refused DENY limits. Return the ACLs created, and those that were not."""
    denies = [acl for acl in plan.to_create if acl.is_deny]
    refused = target.create(denies)
    ready, withheld = ready_allows([acl for acl in plan.to_create if not acl.is_deny], list(refused))
    refused |= target.create(ready)
    created = [acl for acl in (*denies, *ready) if acl not in refused]
    left = [NotCopied(acl, reason) for acl, reason in refused.items()]
    return created, left + [NotCopied(acl, _WITHHELD) for acl in withheld]


def acl_rules(config: MirrorConfig) -> AclRules:
    """Return the rules by which a mirror's target needs ACLs."""
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
        mirror_principal=config.mirror_principal,
    )
