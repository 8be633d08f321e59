"""Pure: which ACLs the target of a mirror lacks, given those of the source. The target never allows what the source does not.

An ALLOW is copied only to the same resources. A DENY is copied likewise; where its pattern has no counterpart on the target
(`*` of a mirror of some topics), it is narrowed to the patterns of the ALLOWs that it limits. Where even that cannot be, because
it would deny the mirror itself, those ALLOWs are left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from shallow_mirror.access.acl_rules import READING, AclRules, Untranslated
from shallow_mirror.access.plan import AccessPlan, NotCopied
from shallow_mirror.broker.admin.access import ANYBODY, Acl, AclEffect, AclOperation, ResourceKind, ResourcePattern


@dataclass(frozen=True, slots=True, kw_only=True)
class AclPlan(AccessPlan[Acl]):
    """`to_create`: every DENY before the first ALLOW. `to_delete`: ALLOWs that the source does not have, or no longer has."""

    to_delete: tuple[Acl, ...]


@dataclass(frozen=True, slots=True)
class _Copy:
    """`origin`: the ACL of the source with the principal of the target, and one operation that is copied."""

    origin: Acl
    target: Acl


def unnamed_principals(source: Iterable[Acl], rules: AclRules) -> tuple[str, ...]:
    """Return the principals of ACLs on topics and groups that have no entry in `acls.principals` although each needs one."""
    if not rules.is_principal_required:
        return ()
    kinds = (ResourceKind.TOPIC, ResourceKind.GROUP)
    return tuple(sorted({acl.principal for acl in source if acl.pattern.kind in kinds} - rules.principals.keys()))


def plan_acls(source: Collection[Acl], target: Collection[Acl], rules: AclRules) -> AclPlan:
    """Return the ACLs that the target lacks. `target`: all ACLs that it has."""
    not_copied: list[NotCopied[Acl]] = []
    denies, uncopied = _plan_denies(sorted(acl for acl in source if acl.is_deny), rules, not_copied)
    allows = _plan_allows(sorted(acl for acl in source if not acl.is_deny), rules, not_copied)
    kept, narrowed = _limit_allows(allows, uncopied, rules, not_copied)
    wanted = sorted({*denies, *narrowed}) + sorted(set(kept))
    existing = frozenset(target)
    return AclPlan(
        to_create=tuple(acl for acl in wanted if acl not in existing),
        to_delete=tuple(_plan_deletions(existing, frozenset(wanted), source, rules)),
        not_copied=tuple(not_copied),
        present=tuple(acl for acl in wanted if acl in existing),
    )


def ready_allows(allows: Iterable[Acl], refused_denies: Sequence[Acl]) -> tuple[list[Acl], list[Acl]]:
    """Return the ALLOWs that may be created, and those that a DENY limits which could not be created."""
    ready: list[Acl] = []
    withheld: list[Acl] = []
    for allow in allows:
        is_limited = any(deny.denies_some_of(allow) for deny in refused_denies)
        (withheld if is_limited else ready).append(allow)
    return ready, withheld


def _plan_denies(denies: Iterable[Acl], rules: AclRules, not_copied: list[NotCopied[Acl]]) -> tuple[list[Acl], list[Acl]]:
    """Return the DENYs of the target, and those of the source, with the target's principal, that have no such counterpart."""
    copied: list[Acl] = []
    uncopied: list[Acl] = []
    for acl in denies:
        mapped = replace(acl, principal=rules.target_principal(acl.principal))
        translated = rules.translated(acl.pattern)
        reason = translated.reason if isinstance(translated, Untranslated) else _deny_problem(mapped, translated, rules)
        if reason is None and isinstance(translated, ResourcePattern):
            copied.append(replace(mapped, pattern=translated))
        else:
            uncopied.append(mapped)
            not_copied.append(NotCopied(acl, str(reason)))
    return copied, uncopied


def _deny_problem(mapped: Acl, pattern: ResourcePattern, rules: AclRules) -> str | None:
    if mapped.operation is AclOperation.UNKNOWN:
        return "the operation is not known to this client"
    if rules.would_deny_the_mirror(replace(mapped, pattern=pattern)):
        return "it would deny the mirror what it needs on the target"
    return None


def _plan_allows(allows: Iterable[Acl], rules: AclRules, not_copied: list[NotCopied[Acl]]) -> list[_Copy]:
    copies: list[_Copy] = []
    for acl in allows:
        translated = rules.translated(acl.pattern)
        if isinstance(translated, Untranslated):
            not_copied.append(NotCopied(acl, translated.reason))
            continue
        operations = rules.copied_operations(acl)
        if operations != (acl.operation,):
            not_copied.append(NotCopied(acl, rules.why_operation_is_left(acl)))
        principal = rules.target_principal(acl.principal)
        for operation in operations:
            origin = replace(acl, principal=principal, operation=operation)
            copies.append(_Copy(origin, replace(origin, pattern=translated)))
    return copies


def _limit_allows(
    copies: Iterable[_Copy], uncopied: Sequence[Acl], rules: AclRules, not_copied: list[NotCopied[Acl]]
) -> tuple[list[Acl], list[Acl]]:
    """Return the ALLOWs that remain, and the narrowed DENYs that limit them."""
    kept: list[Acl] = []
    narrowed: list[Acl] = []
    for copy in copies:
        limits = [(deny, _narrowed(deny, copy, rules)) for deny in uncopied if deny.denies_some_of(copy.origin)]
        missing = next((deny for deny, limit in limits if limit is None), None)
        if missing is not None:
            not_copied.append(NotCopied(copy.origin, f"it is limited by an ACL that cannot be copied: {missing}"))
            continue
        kept.append(copy.target)
        narrowed += [limit for _, limit in limits if limit is not None]
    return kept, narrowed


def _narrowed(deny: Acl, copy: _Copy, rules: AclRules) -> Acl | None:
    """Return the DENY on the resources that it has in common with the ALLOW, on the target; None: it cannot be created."""
    common = deny.pattern.common_with(copy.origin.pattern)
    assert common is not None
    narrowed = replace(deny, pattern=_on_target(common, copy))
    return None if _deny_problem(deny, narrowed.pattern, rules) is not None else narrowed


def _on_target(common: ResourcePattern, copy: _Copy) -> ResourcePattern:
    """Return the counterpart of a pattern within that of the ALLOW."""
    before, after = copy.origin.pattern.prefix, copy.target.pattern.prefix
    if before is None or after is None:
        return copy.target.pattern
    if common.is_any:
        return common
    return replace(common, name=after.removesuffix(before) + common.name)


def _plan_deletions(existing: frozenset[Acl], wanted: frozenset[Acl], source: Collection[Acl], rules: AclRules) -> Iterable[Acl]:
    """Yield ALLOWs on mirrored topics and groups, of principals that the source has, which the source does not have.

    Never the last ACL of a pattern: with `allow.everyone.if.no.acl.found`, deleting it would allow everything. Never those of
    the mirror, and none that let write, which are not copied.
    """
    principals = {rules.target_principal(acl.principal) for acl in source} | set(rules.principals.values())
    names = {copy for copy in map(rules.translated, {acl.pattern for acl in source}) if isinstance(copy, ResourcePattern)}
    guarded = {acl.pattern for acl in wanted}
    for acl in sorted(existing - wanted):
        is_ours = acl.principal in principals - {ANYBODY, rules.mirror_principal} and acl.pattern in names & guarded
        is_read = acl.operation in READING and acl.effect is AclEffect.ALLOW
        if is_ours and is_read and not rules.is_own_group(acl.pattern):
            yield acl
