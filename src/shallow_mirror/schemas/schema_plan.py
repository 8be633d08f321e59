"""Pure: versions that the registry of the target lacks, given that of the source, and conflicts.

Ids and versions stay equal, because records hold ids. Versions of the target are never changed: where an id or a version is
taken by another schema, that is a conflict.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from shallow_mirror.schemas.registration_order import registration_order
from shallow_mirror.schemas.subject_versions import Schema, SchemaId, SubjectVersion

GLOBAL = ""
"""Instead of a subject: the level of the whole registry."""

READ_ONLY_MODES = ("READONLY", "READONLY_OVERRIDE", "FORWARD")
"""A subject in one of these takes no schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryContents:
    """Content of a registry of the selected subjects.

    `compatibility` and `modes` by subject if a subject has its own; `compatibility[GLOBAL]` is that of the registry.
    """

    versions: tuple[SubjectVersion, ...]
    compatibility: Mapping[str, str]
    modes: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetContents(RegistryContents):
    """`ids`: schemas by id, of the ids that the target lacks a version with. `referenced`: versions of subjects that are not
    selected, but referred to, as far as the target has them. `modes_in_force`: of subjects, their own or the registry's.
    """

    ids: Mapping[SchemaId, Schema]
    referenced: frozenset[tuple[str, int]]
    modes_in_force: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Conflict:
    """Why a version of the source cannot be registered at the target."""

    version: SubjectVersion
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelChange:
    """A compatibility level to set. `subject` GLOBAL: of the registry. `before` None: the target has none of its own."""

    subject: str
    before: str | None
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaPlan:
    """Changes of the target's registry."""

    present: tuple[SubjectVersion, ...]
    to_register: tuple[SubjectVersion, ...]
    """In the order of references."""
    to_delete: tuple[SubjectVersion, ...]
    """Softly, in the reverse order: each of them registered before, or by an earlier run that did not get so far."""
    conflicts: tuple[Conflict, ...]
    levels: tuple[LevelChange, ...]
    to_freeze: tuple[str, ...]
    """Subjects that become READONLY as they are at the source."""
    read_only: tuple[str, ...]
    """Subjects that must change although their mode forbids it."""
    notes: tuple[Conflict, ...]
    """Versions that are deleted on one side only, which is left so."""

    @property
    def is_complete(self) -> bool:
        """Return whether the target lacks nothing."""
        return not (self.to_register or self.to_delete or self.conflicts or self.levels or self.to_freeze)

    @property
    def imported_subjects(self) -> tuple[str, ...]:
        return tuple(sorted({version.subject for version in self.to_register}))


def missing_versions(source: RegistryContents, target: Iterable[SubjectVersion]) -> list[SubjectVersion]:
    """Return the versions of the source whose number the target does not have in the subject."""
    taken = {version.key for version in target}
    return [version for version in source.versions if version.key not in taken]


def plan_schemas(
    source: RegistryContents, target: TargetContents, *, levels: str = "all", undeleted: Collection[tuple[str, int]] = ()
) -> SchemaPlan:
    """Return the plan for the target. `levels`: which compatibility levels are copied (all, subjects, off).

    `undeleted`: versions that an earlier run has registered, and was about to delete.
    """
    by_key = {version.key: version for version in target.versions}
    missing = missing_versions(source, target.versions)
    present = [version for version in source.versions if version.key in by_key and version.is_same(by_key[version.key])]
    conflicts = [*_version_conflicts(source.versions, by_key), *_id_conflicts(missing, target.ids)]
    conflicts += _reference_problems(missing, source.versions, target)
    refused = {conflict.version.key for conflict in conflicts}
    to_register = registration_order([version for version in missing if version.key not in refused])
    changes = tuple(_level_changes(source, target, levels))
    to_freeze = tuple(sorted(_frozen(source) - _frozen(target)))
    left = [
        version
        for version in registration_order(present)
        if version.key in undeleted and version.is_deleted and not by_key[version.key].is_deleted
    ]
    to_delete = tuple(version for version in (*reversed(to_register), *reversed(left)) if version.is_deleted)
    changed = {version.subject for version in (*to_register, *left)} | {change.subject for change in changes} | set(to_freeze)
    return SchemaPlan(
        present=tuple(present),
        to_register=tuple(to_register),
        to_delete=to_delete,
        conflicts=tuple(conflicts),
        levels=changes,
        to_freeze=to_freeze,
        read_only=tuple(sorted(name for name in changed if target.modes_in_force.get(name) in READ_ONLY_MODES)),
        notes=tuple(_deletions_on_one_side([version for version in present if version not in left], by_key)),
    )


def _version_conflicts(
    versions: Iterable[SubjectVersion], by_key: Mapping[tuple[str, int], SubjectVersion]
) -> Iterator[Conflict]:
    for version in versions:
        other = by_key.get(version.key)
        if other is None or version.is_same(other):
            continue
        what = "another schema" if not version.schema.is_same(other.schema) else "the same schema"
        yield Conflict(version, f"the target has version {version.version} with id {other.id} and {what}")


def _id_conflicts(missing: Iterable[SubjectVersion], ids: Mapping[SchemaId, Schema]) -> Iterator[Conflict]:
    for version in missing:
        other = ids.get(version.schema_id)
        if other is not None and not version.schema.is_same(other):
            yield Conflict(version, f"the target has another schema with {version.schema_id}")


def _reference_problems(
    missing: Iterable[SubjectVersion], versions: Iterable[SubjectVersion], target: TargetContents
) -> Iterator[Conflict]:
    known = {version.key for version in versions} | target.referenced
    for version in missing:
        for subject, number in version.referenced_keys:
            if (subject, number) not in known:
                what = f"it refers to {subject} version {number}, which is not selected (schemas.include) nor at the target"
                yield Conflict(version, what)


def _level_changes(source: RegistryContents, target: RegistryContents, levels: str) -> Iterator[LevelChange]:
    for subject, level in sorted(source.compatibility.items()):
        is_copied = levels == "all" or (levels == "subjects" and subject != GLOBAL)
        before = target.compatibility.get(subject)
        if is_copied and before != level:
            yield LevelChange(subject=subject, before=before, after=level)


def _frozen(contents: RegistryContents) -> set[str]:
    return {subject for subject, mode in contents.modes.items() if mode == "READONLY"}


def _deletions_on_one_side(
    present: Iterable[SubjectVersion], by_key: Mapping[tuple[str, int], SubjectVersion]
) -> Iterator[Conflict]:
    for version in present:
        if version.is_deleted != by_key[version.key].is_deleted:
            where = "at the source, not at the target" if version.is_deleted else "at the target, not at the source"
            yield Conflict(version, f"deleted {where}: left as it is")
