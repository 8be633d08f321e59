"""Pure: which resources and principals of the source a mirror's target has, and under which names.

Whether patterns select every name that begins with a prefix is a sufficient condition: patterns of literal characters, dots and
escaped punctuation, with or without `.*` at the end, are understood. Any other pattern includes no whole prefix, and may exclude
part of any.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from shallow_mirror import routing
from shallow_mirror.broker.admin.access import ANY_HOST, ANYBODY, Acl, AclOperation, PatternKind, ResourceKind, ResourcePattern

_UNDERSTOOD = re.compile(r"(?P<body>(?:[A-Za-z0-9_-]|\.(?![*+?{])|\\[^A-Za-z0-9])*)(?P<tail>(?:\.\*)?)")
_CHARACTER = re.compile(r"\\(?P<escaped>.)|(?P<plain>.)")

_TOPIC_FIELD = "{topic}"

READING = (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
"""What users of a mirrored topic may be allowed while the mirror runs."""


def covers_prefix(prefix: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return whether every name that begins with `prefix` is selected; an empty prefix: every name at all."""
    return any(_includes_all(pattern, prefix) for pattern in include) and not any(
        _may_match_some(pattern, prefix) for pattern in exclude
    )


def _includes_all(pattern: str, prefix: str) -> bool:
    parsed = _parse(pattern)
    if parsed is None:
        return False
    characters, is_open = parsed
    return is_open and len(characters) <= len(prefix) and _agree(characters, prefix)


def _may_match_some(pattern: str, prefix: str) -> bool:
    parsed = _parse(pattern)
    if parsed is None:
        return True
    characters, is_open = parsed
    return _agree(characters, prefix) and (is_open or len(characters) >= len(prefix))


def _agree(characters: Sequence[str | None], prefix: str) -> bool:
    """Compare as far as both reach."""
    return all(expected in (None, actual) for expected, actual in zip(characters, prefix, strict=False))


def _parse(pattern: str) -> tuple[list[str | None], bool] | None:
    """Return the characters, None for a dot, and whether anything may follow; None if the pattern is not understood."""
    match = _UNDERSTOOD.fullmatch(pattern)
    if match is None:
        return None
    characters: list[str | None] = []
    for character in _CHARACTER.finditer(match["body"]):
        plain = character["plain"]
        characters.append(character["escaped"] if plain is None else None if plain == "." else plain)
    return characters, bool(match["tail"])


@dataclass(frozen=True, slots=True)
class Untranslated:
    """Why a pattern of the source has no counterpart on the target."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AclRules:
    """The rules by which ACLs are copied. `mirror_principal`: of the mirror on the target, None if it is not known."""

    mirror: str
    source_alias: str
    target_name: str
    topic_include: tuple[str, ...]
    topic_exclude: tuple[str, ...] = ()
    topic_offsets: tuple[tuple[str, str], ...] = ()
    group_include: tuple[str, ...] = (".*",)
    group_exclude: tuple[str, ...] = ()
    principals: Mapping[str, str] = field(default_factory=dict)
    is_principal_required: bool = False
    is_write_copied: bool = False
    mirror_principal: str | None = None

    def target_principal(self, principal: str) -> str:
        return self.principals.get(principal, principal)

    def translated(self, pattern: ResourcePattern) -> ResourcePattern | Untranslated:
        """Return the pattern of the same resources on the target: never one of more resources."""
        match pattern.kind:
            case ResourceKind.TOPIC:
                return self._translated_topic(pattern)
            case ResourceKind.GROUP:
                return self._translated_group(pattern)
            case ResourceKind.TRANSACTIONAL_ID:
                return Untranslated("transactional ids belong to producers, which write to the source")
            case _:
                return Untranslated("permissions on a cluster are not those of what is mirrored")

    def _translated_topic(self, pattern: ResourcePattern) -> ResourcePattern | Untranslated:
        if pattern.prefix is None:
            return self._translated_topic_name(pattern)
        if self.target_name.count(_TOPIC_FIELD) != 1 or not self.target_name.endswith(_TOPIC_FIELD):
            return Untranslated(f"topics.target_name {self.target_name} does not keep prefixes")
        added = routing.target_topic_name(self.target_name, self.source_alias, "")
        if pattern.is_any and added:
            return Untranslated(f"topics.target_name {self.target_name} renames topics, and * would mean others as well")
        if not covers_prefix(pattern.prefix, self.topic_include, self.topic_exclude):
            return Untranslated("includes topics that topics.include and topics.exclude do not select: use ACLs on fewer topics")
        return pattern if pattern.is_any else ResourcePattern(pattern.kind, added + pattern.name, PatternKind.PREFIXED)

    def _translated_topic_name(self, pattern: ResourcePattern) -> ResourcePattern | Untranslated:
        if not routing.is_included(pattern.name, self.topic_include, self.topic_exclude):
            return Untranslated("the topic is not mirrored")
        target = routing.target_topic_name(self.target_name, self.source_alias, pattern.name)
        problems = routing.name_problems(pattern.name, target)
        return Untranslated(problems[0]) if problems else ResourcePattern(pattern.kind, target)

    def _translated_group(self, pattern: ResourcePattern) -> ResourcePattern | Untranslated:
        if pattern.prefix is None:
            is_selected = _is_group_included(pattern.name, self.group_include, self.group_exclude)
            return pattern if is_selected else Untranslated("groups.include and groups.exclude do not select the group")
        if not covers_prefix(pattern.prefix, self.group_include, self.group_exclude):
            return Untranslated("includes groups that groups.include and groups.exclude do not select")
        return pattern

    def copied_operations(self, acl: Acl) -> tuple[AclOperation, ...]:
        """Return the operations that an ALLOW of the source is copied with; empty: it is not copied."""
        if acl.operation is AclOperation.UNKNOWN:
            return ()
        if acl.pattern.kind is not ResourceKind.TOPIC or acl.operation in READING:
            return (acl.operation,)
        if self.is_write_copied and not self._may_be_preserved(acl.pattern):
            return (acl.operation,)
        return READING if acl.operation is AclOperation.ALL else ()

    def why_operation_is_left(self, acl: Acl) -> str:
        """Return the reason for an ALLOW whose operation, or part of it, is not copied."""
        if acl.operation is AclOperation.UNKNOWN:
            return "the operation is not known to this client"
        what = "only Read, Describe and DescribeConfigs of it are copied: " if acl.operation is AclOperation.ALL else ""
        if self._may_be_preserved(acl.pattern):
            return f"{what}with preserved offsets (topics.offsets) only the mirror may write"
        return f"{what}while the mirror runs, users of the target should only read (acls.write)"

    def _may_be_preserved(self, pattern: ResourcePattern) -> bool:
        if pattern.prefix is None:
            return routing.first_match(pattern.name, self.topic_offsets) in routing.KEPT_OFFSETS
        return any(offsets in routing.KEPT_OFFSETS for _, offsets in self.topic_offsets)

    def would_deny_the_mirror(self, deny: Acl) -> bool:
        """Return whether a DENY of the target may forbid the mirror its topics, or its own groups."""
        if deny.host != ANY_HOST or deny.principal not in (ANYBODY, self.mirror_principal):
            return False
        return deny.pattern.kind is ResourceKind.TOPIC or self.is_own_group(deny.pattern)

    def is_own_group(self, pattern: ResourcePattern) -> bool:
        """Return whether the pattern includes groups of the mirror itself."""
        own = ResourcePattern(ResourceKind.GROUP, f"{self.mirror}-", PatternKind.PREFIXED)
        return own.common_with(pattern) is not None


def _is_group_included(group: str, include: tuple[str, ...], exclude: tuple[str, ...]) -> bool:
    return routing.first_match(group, ((pattern, True) for pattern in include)) is True and not any(
        routing.first_match(group, ((pattern, True),)) for pattern in exclude
    )
