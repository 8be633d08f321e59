"""Driver: carries out a plan at the registry of the target.

While versions are registered, their subjects are in mode IMPORT: only then a registry takes an id and a version. The modes are
set per subject, so that the rest of the registry works as before, and set back after whatever happens.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

from shallow_mirror.checkpoints.logs import UnfinishedImport
from shallow_mirror.errors import ConfigError, MirrorError, RetriableError
from shallow_mirror.plurals import listed
from shallow_mirror.schemas.registry import IMPORT, READONLY, SchemaRegistry
from shallow_mirror.schemas.schema_plan import SchemaPlan, TargetContents
from shallow_mirror.schemas.subject_versions import SubjectVersion


class ImportLog(Protocol):
    """Record of subjects in mode IMPORT, and of their versions that are registered only to be deleted."""

    def begin(self, modes_before: Mapping[str, str | None], to_delete: Collection[tuple[str, int]]) -> None:
        """Record them before they are set."""
        ...

    def end(self, subjects: Iterable[str], to_delete: Collection[tuple[str, int]]) -> None:
        """Record them after they were set back, with the versions that were not deleted."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """Changes: versions registered and softly deleted; subjects that an earlier run had left in IMPORT, set back."""

    registered: tuple[SubjectVersion, ...] = ()
    restored: tuple[str, ...] = ()


def carry_out(
    plan: SchemaPlan, registry: SchemaRegistry, target: TargetContents, leftovers: Iterable[UnfinishedImport], log: ImportLog
) -> Import:
    """Register the versions of the plan, and set back modes that earlier runs left. The plan has no conflicts.

    Raises ConfigError, RetriableError; registered versions stay, and the same call continues.
    """
    left = {leftover.subject: leftover.mode_before for leftover in leftovers}
    subjects = [name for name in plan.imported_subjects if name in left or target.modes_in_force.get(name) != IMPORT]
    before = {name: left.get(name, target.modes.get(name)) for name in (*subjects, *left)}
    undeleted = {version.key for version in plan.to_delete}
    with _import_mode(registry, before, subjects, log, undeleted):
        _register_all(registry, plan, undeleted)
    for change in plan.levels:
        registry.set_compatibility(change.subject, change.after)
    for subject in plan.to_freeze:
        registry.set_mode(subject, READONLY)
    return Import(registered=plan.to_register, restored=tuple(sorted(left)))


def _register_all(registry: SchemaRegistry, plan: SchemaPlan, undeleted: set[tuple[str, int]]) -> None:
    """Register versions, and delete those that are deleted at the source, also where another one fails.

    `undeleted`: those are removed that were deleted.
    """
    count = 0
    try:
        for version in plan.to_register:
            _register(registry, version)
            count += 1
    except MirrorError:
        registered, left = plan.to_register[:count], plan.to_register[count:]
        needed = {key for version in left for key in version.referenced_keys}
        # A registry that does not answer deletes nothing either; what it said first tells more.
        with suppress(MirrorError):
            _delete(registry, [each for each in plan.to_delete if each in registered and each.key not in needed], undeleted)
        raise
    _delete(registry, plan.to_delete, undeleted)


def _delete(registry: SchemaRegistry, versions: Iterable[SubjectVersion], undeleted: set[tuple[str, int]]) -> None:
    for version in versions:
        registry.delete_version(version)
        undeleted.discard(version.key)


@contextmanager
def _import_mode(
    registry: SchemaRegistry,
    before: Mapping[str, str | None],
    subjects: Iterable[str],
    log: ImportLog,
    undeleted: Collection[tuple[str, int]],
) -> Iterator[None]:
    """Keep subjects in mode IMPORT for the block, and set all of `before` back after it, also after an error.

    `undeleted`: versions that the block deletes, and removes then.
    """
    others = {subject for subject, _ in undeleted} - before.keys()
    log.begin(before, undeleted)
    try:
        for subject in subjects:
            registry.set_mode(subject, IMPORT)
            _require_import_mode(registry, subject)
        yield
    finally:
        _set_back(registry, before, log, others, undeleted)


def _set_back(
    registry: SchemaRegistry,
    before: Mapping[str, str | None],
    log: ImportLog,
    others: Collection[str],
    undeleted: Collection[tuple[str, int]],
) -> None:
    """Set back every subject that can be. Raises ConfigError for the others, when these are recorded."""
    done: list[str] = []
    problem: MirrorError | None = None
    for subject, mode in before.items():
        try:
            _set_mode_back(registry, subject, mode)
            done.append(subject)
        except ConfigError as error:
            problem = error
        except RetriableError as error:
            problem = error
            break  # the registry does not answer, and each further subject would wait as long
    log.end([*done, *sorted(others)], undeleted)
    if problem is not None:
        left = [subject for subject in before if subject not in done]
        raise ConfigError(
            f"{registry.name}: {listed(left)} may still be in mode IMPORT ({problem}): run `shallow-mirror schemas CONF --apply` "
            "again, which sets them back"
        ) from problem


def _set_mode_back(registry: SchemaRegistry, subject: str, mode: str | None) -> None:
    if registry.mode(subject) != IMPORT:
        return
    if mode is None:
        registry.reset_mode(subject)
    else:
        registry.set_mode(subject, mode)


def _require_import_mode(registry: SchemaRegistry, subject: str) -> None:
    mode = registry.mode_in_force(subject)
    if mode != IMPORT:
        raise ConfigError(
            f"{registry.name}: subject {subject} is in mode {mode} although IMPORT was set: this registry has no import mode, "
            "and without it ids cannot be equal"
        )


def _register(registry: SchemaRegistry, version: SubjectVersion) -> None:
    """Register a version. Raises ConfigError if the registry gives it another id, because it has no import mode."""
    given = registry.register(version)
    if given != version.id:
        raise ConfigError(
            f"{registry.name} has registered {version} with id {given} instead of {version.id}: it ignores ids, so it has no "
            "import mode, or another client was registering. Check this version there, and use a registry with import mode"
        )
