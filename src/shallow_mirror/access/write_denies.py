"""Pure: the ACLs that keep target topics read-only for everybody but their mirror.

A Deny wins over any Allow, so `User:*` cannot be denied: that would stop the mirror as well. With ACLs in force no client may
write without an Allow; so each principal that has one for a topic gets a Deny for it, and all others have no permission anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from shallow_mirror.broker.admin.access import (
    ANY_HOST,
    ANYBODY,
    Acl,
    AclEffect,
    AclOperation,
    PatternKind,
    ResourceKind,
    ResourcePattern,
)

_WRITING = (AclOperation.WRITE, AclOperation.ALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteDenies:
    needed: frozenset[Acl]
    open_to_all: tuple[Acl, ...]
    """Allow ACLs that let everybody write: no Deny can limit them without the mirror."""
    unguarded: tuple[str, ...]
    """Topics that no ACL names: with allow.everyone.if.no.acl.found everybody may write to them."""


def plan_write_denies(acls: Iterable[Acl], topics: Collection[str], own: str) -> WriteDenies:
    """Return the ACLs that `topics` need. `acls`: all of the target; `own`: the principal of the mirror."""
    on_topics = [acl for acl in acls if acl.pattern.kind is ResourceKind.TOPIC]
    writing = {acl for acl in on_topics if not acl.is_deny and acl.operation in _WRITING}
    named, wide = _by_name(on_topics)
    needed, open_to_all = set[Acl](), set[Acl]()
    for topic in topics:
        for acl in (*named.get(topic, ()), *(acl for acl in wide if topic.startswith(acl.pattern.prefix or ""))):
            if acl not in writing or acl.principal == own:
                continue
            if acl.principal == ANYBODY:
                open_to_all.add(acl)
            else:
                needed.add(write_deny(topic, acl.principal))
    prefixes = [acl.pattern.prefix or "" for acl in wide]
    unguarded = [topic for topic in topics if topic not in named and not any(map(topic.startswith, prefixes))]
    return WriteDenies(needed=frozenset(needed), open_to_all=tuple(sorted(open_to_all)), unguarded=tuple(sorted(unguarded)))


def write_deny(topic: str, principal: str) -> Acl:
    """Return the ACL that keeps a principal from writing to a topic, from all hosts."""
    pattern = ResourcePattern(ResourceKind.TOPIC, topic, PatternKind.LITERAL)
    return Acl(pattern, principal, AclOperation.WRITE, AclEffect.DENY, ANY_HOST)


def may_write(acls: Iterable[Acl], topic: str, principal: str) -> bool:
    """Return whether an Allow names the principal for the topic. Super users need none."""
    pattern = ResourcePattern(ResourceKind.TOPIC, topic)
    return any(
        not acl.is_deny and acl.operation in _WRITING and acl.principal in (principal, ANYBODY) and acl.pattern.covers(pattern)
        for acl in acls
    )


def _by_name(acls: Iterable[Acl]) -> tuple[dict[str, list[Acl]], list[Acl]]:
    """Return the ACLs on single topics by name, and those on several."""
    named: dict[str, list[Acl]] = {}
    wide = []
    for acl in acls:
        if acl.pattern.prefix is None:
            named.setdefault(acl.pattern.name, []).append(acl)
        else:
            wide.append(acl)
    return named, wide
