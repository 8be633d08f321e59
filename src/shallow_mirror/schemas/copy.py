"""For the cli: the schemas that the target of a mirror lacks, shown or registered with equal ids."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from shallow_mirror.checkpoints.logs import SchemaImports, UnfinishedImport
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import listed
from shallow_mirror.schemas.importer import Import, ImportLog, carry_out
from shallow_mirror.schemas.registry import SchemaRegistry, open_registries
from shallow_mirror.schemas.registry_reader import read_source, read_target
from shallow_mirror.schemas.schema_plan import GLOBAL, Conflict, SchemaPlan, TargetContents, plan_schemas
from shallow_mirror.schemas.subject_versions import SubjectVersion


class ImportHistory(ImportLog, Protocol):
    """The record of imports, with those that were not finished."""

    def unfinished(self) -> list[UnfinishedImport]:
        """Return subjects that may still be in mode IMPORT."""
        ...

    def undeleted(self) -> frozenset[tuple[str, int]]:
        """Return subject and number of versions that an earlier run has not deleted any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaReport:
    """Result of a copy of schemas, or its plan."""

    mirror: str
    source: str
    target: str
    subjects: int
    plan: SchemaPlan
    """Versions that the target lacked."""
    leftovers: tuple[UnfinishedImport, ...]
    """Subjects that a killed run has left in mode IMPORT."""
    is_applied: bool
    done: Import | None = None
    """The changes. None if nothing was to be, or could be."""
    after: SchemaPlan | None = None
    """The plan of the registries as they are then."""

    @property
    def is_done(self) -> bool:
        """Return whether the target has all that it needs, and no mode is left over."""
        if self.after is not None:
            return self.after.is_complete
        return self.plan.is_complete and not self.leftovers

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        plan, done = self.plan, self.done or Import()
        return {
            "mirror": self.mirror,
            "source": self.source,
            "target": self.target,
            "applied": self.is_applied,
            "is_done": self.is_done,
            "subjects": self.subjects,
            "present": len(plan.present),
            "to_register": [_document(version) for version in plan.to_register],
            "to_delete": [_document(version) for version in plan.to_delete if version not in plan.to_register],
            "compatibility": [
                {"subject": change.subject or None, "before": change.before, "after": change.after} for change in plan.levels
            ],
            "to_make_readonly": list(plan.to_freeze),
            "conflicts": _with_reasons(plan.conflicts),
            "notes": _with_reasons(plan.notes),
            "left_in_import_mode": [
                {"subject": leftover.subject, "mode_before": leftover.mode_before, "host": leftover.host, "pid": leftover.pid}
                for leftover in self.leftovers
            ],
            "registered": [_document(version) for version in done.registered],
            "modes_restored": list(done.restored),
            "still_missing": [] if self.after is None else [_document(version) for version in self.after.to_register],
            "conflicts_after": [] if self.after is None else _with_reasons(self.after.conflicts),
        }


def copy_schemas(config: MirrorConfig, *, is_applied: bool = False, spark: Any = None) -> SchemaReport:
    """Compare both registries; with `is_applied`, register missing versions. Nothing is written if there is a conflict.

    `spark`: the session that reaches tables in a catalog. Raises ConfigError if a setting, a permission or the registry itself
    (READONLY, without import mode) has to change, RetriableError if a registry does not answer: the same call continues.
    """
    with open_registries(config) as (source, target):
        storage = (
            TableStorage.to_write(config.table_location, config.tables_writer, spark)
            if is_applied
            else TableStorage(config.table_location, spark)
        )
        history = SchemaImports.open(storage, target.url)
        return copy_between(source, target, config, history, is_applied=is_applied)


def copy_between(
    source: SchemaRegistry, target: SchemaRegistry, config: MirrorConfig, history: ImportHistory, *, is_applied: bool
) -> SchemaReport:
    """Do as `copy_schemas` between two registries."""
    settings = config.schemas
    subjects = [subject for subject in source.subjects() if settings.is_included(subject)]
    if not subjects:
        raise ConfigError(
            f"{source.name} has no subject that schemas.include {list(settings.include)} selects: correct schemas.include or "
            "schemas.source.url"
        )
    of_source = read_source(source, subjects)
    of_target = read_target(target, of_source, subjects)
    plan = plan_schemas(of_source, of_target, levels=settings.compatibility, undeleted=history.undeleted())
    leftovers = tuple(history.unfinished())
    done, after = None, None
    if is_applied and not plan.conflicts:
        _require_modes(target, plan, of_target)
        _require_writable(target, plan, leftovers)
        done = carry_out(plan, target, of_target, leftovers, history)
        of_target = read_target(target, of_source, subjects)
        after = plan_schemas(of_source, of_target, levels=settings.compatibility, undeleted=history.undeleted())
    return SchemaReport(
        mirror=config.mirror,
        source=source.url,
        target=target.url,
        subjects=len(subjects),
        plan=plan,
        leftovers=leftovers,
        is_applied=is_applied,
        done=done,
        after=after,
    )


def _require_modes(target: SchemaRegistry, plan: SchemaPlan, contents: TargetContents) -> None:
    """Raise ConfigError if schemas have to be registered and the registry has no modes at all, so no import mode."""
    if plan.to_register and not contents.modes_in_force:
        raise ConfigError(
            f"{target.name} has no import mode (GET /mode: not found), and without it ids cannot be equal: nothing was written. "
            "Use a registry with import mode, or copy its storage as a whole"
        )


def _require_writable(target: SchemaRegistry, plan: SchemaPlan, leftovers: Iterable[UnfinishedImport]) -> None:
    """Raise ConfigError if a subject that has to change is in a mode that forbids it."""
    left = {leftover.subject for leftover in leftovers}
    read_only = [subject for subject in plan.read_only if subject not in left]
    if read_only:
        names = listed(subject if subject != GLOBAL else "(global)" for subject in read_only)
        raise ConfigError(
            f"{target.name} is in mode READONLY for what has to change ({names}): nothing was written. Set "
            "READWRITE (PUT /mode, or PUT /mode/SUBJECT), or leave the subjects out (schemas.exclude)"
        )


def _document(version: SubjectVersion) -> dict[str, Any]:
    return {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        "type": version.schema.type,
        "deleted": version.is_deleted,
    }


def _with_reasons(conflicts: Iterable[Conflict]) -> list[dict[str, Any]]:
    return [{**_document(conflict.version), "reason": conflict.reason} for conflict in conflicts]
