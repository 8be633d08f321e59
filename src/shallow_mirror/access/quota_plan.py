"""Pure: which quotas the target of a mirror lacks, given those of the source. The mirror itself is never limited."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from shallow_mirror.access.plan import AccessPlan, NotCopied
from shallow_mirror.broker.admin.access import ENTITY_TYPES, IP, KEYS, USER, Quota, QuotaEntity

_USER_TYPE = "User:"

Key = tuple[QuotaEntity, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaRules:
    """`principals`: of the source and of the target. `mirror_user`: of the mirror on the target, None if it is not known."""

    principals: Mapping[str, str] = field(default_factory=dict)
    is_principal_required: bool = False
    mirror_user: str | None
    mirror_client_id: str

    def limits_the_mirror(self, quota: Quota, target: Mapping[Key, float]) -> bool:
        """Return whether the mirror would be subject to a quota of the target: a more specific one there protects it."""
        rank = quota.entity.rank_for(self.mirror_user, self.mirror_client_id)
        if rank is None:
            return False
        others = (entity.rank_for(self.mirror_user, self.mirror_client_id) for entity, key in target if key == quota.key)
        return not any(other is not None and other < rank for other in others)


@dataclass(frozen=True, slots=True)
class DifferentQuota:
    """A quota that both clusters have. `wanted`: as at the source, for the target's user; `existing`: the target's value."""

    wanted: Quota
    existing: float

    def document(self) -> dict[str, Any]:
        return {**self.wanted.document(), "target_value": self.existing}

    def __str__(self) -> str:
        return f"{self.wanted}, at the target {self.existing:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaPlan(AccessPlan[Quota]):
    """`different`: entries that the target has with another value."""

    different: tuple[DifferentQuota, ...]


def unnamed_users(source: Collection[Quota], rules: QuotaRules) -> tuple[str, ...]:
    """Return the principals with quotas that have no entry in `acls.principals` although each needs one."""
    if not rules.is_principal_required:
        return ()
    users = {quota.entity.names().get(USER) for quota in source}
    return tuple(sorted({f"{_USER_TYPE}{user}" for user in users if user is not None} - rules.principals.keys()))


def plan_quotas(source: Collection[Quota], target: Collection[Quota], rules: QuotaRules) -> QuotaPlan:
    """Return the quotas that the target lacks, and those with another value there. `target`: all quotas that it has."""
    existing = {(quota.entity, quota.key): quota.value for quota in target}
    wanted: dict[Key, Quota] = {}
    not_copied: list[NotCopied[Quota]] = []
    for quota in sorted(source, key=lambda quota: quota.sort_key):
        copy = _translated(quota, rules)
        reason = copy if isinstance(copy, str) else _copy_problem(copy, existing, wanted, rules)
        if reason is not None or isinstance(copy, str):
            not_copied.append(NotCopied(quota, str(reason)))
        else:
            wanted[copy.entity, copy.key] = copy
    return QuotaPlan(
        to_create=tuple(quota for key, quota in wanted.items() if key not in existing),
        different=tuple(
            DifferentQuota(quota, existing[key]) for key, quota in wanted.items() if existing.get(key, quota.value) != quota.value
        ),
        not_copied=tuple(not_copied),
        present=tuple(quota for key, quota in wanted.items() if existing.get(key) == quota.value),
    )


def _translated(quota: Quota, rules: QuotaRules) -> Quota | str:
    """Return the quota for the user of the target, or why there is none."""
    names = quota.entity.names()
    if IP in names:
        return "it is of an address, and clients reach the target from others"
    if not names.keys() <= set(ENTITY_TYPES):
        return "it is of a kind of entity that this client does not know"
    if quota.key not in KEYS:
        return "the key is not known to this client"
    user = names.get(USER)
    if user is not None:
        principal = rules.principals.get(f"{_USER_TYPE}{user}")
        if principal is None and rules.mirror_user is None:
            return (
                "the mirror's own user on the target is not known (only sasl.username of target.client says it), and it must not "
                "be limited: map the user in acls.principals, also if the name stays"
            )
        if principal is not None:
            if not principal.startswith(_USER_TYPE):
                return f"quotas are of users, and acls.principals makes it {principal}"
            names[USER] = principal.removeprefix(_USER_TYPE)
    return Quota(QuotaEntity.of(names), quota.key, quota.value)


def _copy_problem(copy: Quota, existing: Mapping[Key, float], wanted: Mapping[Key, Quota], rules: QuotaRules) -> str | None:
    if rules.limits_the_mirror(copy, existing):
        return (
            "it would limit the mirror on the target: first set a quota for the mirror's own user there, which takes precedence"
        )
    planned = wanted.get((copy.entity, copy.key))
    if planned is not None and planned.value != copy.value:
        return f"acls.principals makes two users of the source one, and the other one has {planned.value:g}"
    return None
