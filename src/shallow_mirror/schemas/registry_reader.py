"""Driver: the selected contents of both registries, as far as a plan needs them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from shallow_mirror.schemas.registry import SchemaRegistry
from shallow_mirror.schemas.schema_plan import GLOBAL, RegistryContents, TargetContents, missing_versions
from shallow_mirror.schemas.subject_versions import DEFAULT_CONTEXT, SubjectVersion, context_of


def read_source(registry: SchemaRegistry, subjects: Sequence[str]) -> RegistryContents:
    """Return the versions, levels and modes of these subjects."""
    return RegistryContents(
        versions=tuple(_versions(registry, subjects)),
        compatibility=_levels(registry, subjects),
        modes=_modes(registry, subjects),
    )


def read_target(registry: SchemaRegistry, source: RegistryContents, subjects: Sequence[str]) -> TargetContents:
    """Return the target's versions of the same subjects, of the ids of missing versions, and of their references."""
    versions = tuple(_versions(registry, subjects))
    missing, modes = missing_versions(source, versions), _modes(registry, subjects)
    ids = sorted({version.schema_id for version in missing})
    selected = {version.key for version in source.versions}
    wanted = {key for version in missing for key in version.referenced_keys} - selected
    return TargetContents(
        versions=versions,
        compatibility=_levels(registry, subjects),
        modes=modes,
        ids={schema_id: schema for schema_id in ids if (schema := registry.schema(schema_id)) is not None},
        referenced=frozenset(key for key in wanted if registry.has_version(*key)),
        modes_in_force=_modes_in_force(registry, subjects, modes),
    )


def _versions(registry: SchemaRegistry, subjects: Iterable[str]) -> Iterable[SubjectVersion]:
    for subject in subjects:
        for number, is_deleted in registry.version_numbers(subject).items():
            version = registry.version(subject, number, is_deleted=is_deleted)
            if version is not None:  # else it was deleted since the list was read
                yield version


def _levels(registry: SchemaRegistry, subjects: Iterable[str]) -> dict[str, str]:
    return {name: level for name in (*subjects, GLOBAL) if (level := registry.compatibility(name)) is not None}


def _modes(registry: SchemaRegistry, subjects: Iterable[str]) -> dict[str, str]:
    return {name: mode for name in subjects if (mode := registry.mode(name)) is not None}


def _modes_in_force(registry: SchemaRegistry, subjects: Iterable[str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the modes of subjects without own ones as well: that of their context, or of the registry."""
    of_registry = registry.mode()
    if of_registry is None:
        return {}
    if of_registry == "READONLY_OVERRIDE":
        return dict.fromkeys((*subjects, GLOBAL), of_registry)
    in_force = {GLOBAL: of_registry}
    for subject in subjects:
        is_default = context_of(subject) == DEFAULT_CONTEXT
        in_force[subject] = own.get(subject) or (of_registry if is_default else registry.mode_in_force(subject) or of_registry)
    return in_force
