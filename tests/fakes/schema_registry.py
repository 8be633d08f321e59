"""A Schema Registry with the Confluent API as rules without HTTP. It is strict: it refuses what a real one refuses.

As a real one it overwrites a version in import mode, deletes what is soft-deleted where IMPORT is set without `force`, and lets
a mode or level of a subject take precedence over that of the registry.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Document = dict[str, Any]


class Refusal(Exception):  # noqa: N818 - a response of the registry, not a failure
    def __init__(self, status: int, code: int, message: str) -> None:
        self.status, self.code, self.message = status, code, message
        super().__init__(message)


@dataclass
class StoredVersion:
    subject: str
    version: int
    id: int
    document: Document
    is_deleted: bool = False

    @property
    def context(self) -> str:
        return self.subject.split(":")[1] if self.subject.startswith(":.") else ""


@dataclass
class RegistryRules:
    """`has_modes` False: a registry without the mode API. `ignores_ids`: it takes modes, but gives ids of its own.

    `deletes_modes` False: an old one, without DELETE of a mode. `mutable_modes` False: its configuration forbids changes.
    """

    has_modes: bool = True
    ignores_ids: bool = False
    deletes_modes: bool = True
    mutable_modes: bool = True
    versions: dict[tuple[str, int], StoredVersion] = field(default_factory=dict)
    levels: dict[str, str] = field(default_factory=lambda: {"": "BACKWARD"})
    modes: dict[str, str] = field(default_factory=lambda: {"": "READWRITE"})

    def register(self, subject: str, body: Document) -> Document:
        mode = self.mode_in_force(subject)
        given_id, given_version = body.get("id", -1), body.get("version", 0)
        if self.ignores_ids:
            given_id, given_version = -1, 0
        if mode.startswith("READONLY"):
            raise Refusal(422, 42205, f"Subject {subject} is in read-only mode")
        document = _schema_of(body)
        self._require_references(subject, document)
        same = self._same_in_subject(subject, document)
        if same is not None and (given_id < 0 or (given_id == same.id and given_version in (0, same.version))):
            return {"id": same.id}
        if given_id >= 0 and mode != "IMPORT":
            raise Refusal(422, 42205, f"Subject {subject} is not in import mode")
        if given_id < 0 and mode == "IMPORT" and not self.ignores_ids:
            raise Refusal(422, 42205, f"Subject {subject} is not in read-write mode")
        next_version = max((number for name, number in self.versions if name == subject), default=0) + 1
        if mode != "IMPORT":
            self._require_compatible(subject, document)
            if given_version not in (0, next_version):
                raise Refusal(422, 42201, "Version is not one more than previous version")
        stored = StoredVersion(subject, given_version or next_version, given_id, document)
        stored.id = self._id_for(stored)
        self.versions[subject, stored.version] = stored
        return {"id": stored.id}

    def _id_for(self, stored: StoredVersion) -> int:
        others = [other for other in self.versions.values() if other.context == stored.context]
        if stored.id < 0:
            same = next((other.id for other in others if other.document == stored.document), None)
            return max((other.id for other in others), default=0) + 1 if same is None else same
        if any(other.id == stored.id and other.document != stored.document for other in others):
            raise Refusal(422, 42205, f"Overwrite new schema with id {stored.id} is not permitted.")
        return stored.id

    def _same_in_subject(self, subject: str, document: Document) -> StoredVersion | None:
        live = [stored for stored in self.of_subject(subject) if stored.document == document]
        return live[-1] if live else None

    def _require_references(self, subject: str, document: Document) -> None:
        prefix = subject[: subject.rindex(":") + 1] if subject.startswith(":.") else ""
        for reference in document.get("references", ()):
            name = reference["subject"] if reference["subject"].startswith(":") else prefix + reference["subject"]
            if (name, reference["version"]) not in self.versions:
                raise Refusal(422, 42201, f"Invalid schema, no schema reference found for subject {name!r}")

    def _require_compatible(self, subject: str, document: Document) -> None:
        """Apply the rule of BACKWARD for records: a new field has a default."""
        live = self.of_subject(subject)
        if not live or self.levels.get(subject, self.levels[""]) == "NONE":
            return
        before = {each["name"] for each in _fields(live[-1].document)}
        if any(each["name"] not in before and "default" not in each for each in _fields(document)):
            raise Refusal(409, 40901, "Schema being registered is incompatible with an earlier schema")

    def of_subject(self, subject: str, *, deleted: bool = False) -> list[StoredVersion]:
        numbers = sorted(number for name, number in self.versions if name == subject)
        of_subject = [self.versions[subject, number] for number in numbers]
        return [stored for stored in of_subject if deleted or not stored.is_deleted]

    def subjects(self, *, deleted: bool) -> list[str]:
        return sorted({name for name, _ in self.versions if self.of_subject(name, deleted=deleted)})

    def version_numbers(self, subject: str, *, deleted: bool) -> list[int]:
        numbers = [stored.version for stored in self.of_subject(subject, deleted=deleted)]
        if not numbers:
            raise Refusal(404, 40401, f"Subject '{subject}' not found.")
        return numbers

    def version(self, subject: str, number: int, *, deleted: bool) -> StoredVersion:
        self.version_numbers(subject, deleted=deleted)
        stored = self.versions.get((subject, number))
        if stored is None or (stored.is_deleted and not deleted):
            raise Refusal(404, 40402, f"Version {number} not found.")
        return stored

    def delete(self, subject: str, number: int, *, permanently: bool) -> int:
        if self.mode_in_force(subject).startswith("READONLY"):
            raise Refusal(422, 42205, f"Subject {subject} is in read-only mode")
        stored = self.version(subject, number, deleted=True)
        if self._is_referenced(subject, number):
            raise Refusal(422, 42206, f"One or more references exist to the schema {subject}:{number}")
        if stored.is_deleted and not permanently:
            raise Refusal(404, 40406, f"Subject '{subject}' Version {number} was soft deleted.")
        if permanently:
            if not stored.is_deleted:
                raise Refusal(404, 40407, f"Subject '{subject}' Version {number} was not deleted first")
            del self.versions[subject, number]
        stored.is_deleted = True
        return number

    def _is_referenced(self, subject: str, number: int) -> bool:
        return any(
            (reference["subject"], reference["version"]) == (subject, number)
            for stored in self.versions.values()
            if not stored.is_deleted
            for reference in stored.document.get("references", ())
        )

    def schema(self, schema_id: int, context: str) -> Document:
        for stored in self.versions.values():
            if stored.id == schema_id and stored.context == context:
                return stored.document
        raise Refusal(404, 40403, f"Schema {schema_id} not found")

    def level(self, subject: str) -> str:
        if subject not in self.levels:
            raise Refusal(404, 40408, f"Subject '{subject}' does not have subject-level compatibility configured")
        return self.levels[subject]

    def set_level(self, subject: str, level: str) -> None:
        if self.mode_in_force(subject).startswith("READONLY"):
            raise Refusal(422, 42205, f"Subject {subject} is in read-only mode")
        if level not in ("NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"):
            raise Refusal(422, 42203, "Invalid compatibility level")
        self.levels[subject] = level

    def mode_in_force(self, subject: str) -> str:
        if self.modes[""] == "READONLY_OVERRIDE":
            return self.modes[""]
        context = subject[: subject.rindex(":") + 1] if subject.startswith(":.") else ""
        return self.modes.get(subject) or self.modes.get(context) or self.modes[""]

    def mode(self, subject: str, *, in_force: bool) -> str:
        self._require_modes(subject)
        if in_force:
            return self.mode_in_force(subject)
        if subject not in self.modes:
            raise Refusal(404, 40409, f"Subject '{subject}' does not have subject-level mode configured")
        return self.modes[subject]

    def set_mode(self, subject: str, mode: str, *, force: bool) -> None:
        self._require_modes(subject)
        if not self.mutable_modes:
            raise Refusal(422, 42205, "Mode changes are not allowed")
        if mode not in ("READWRITE", "READONLY", "READONLY_OVERRIDE", "IMPORT"):
            raise Refusal(422, 42204, "Invalid mode")
        if mode == "IMPORT" and self.mode_in_force(subject) != "IMPORT" and not force:
            self._empty_for_import(subject)
        self.modes[subject] = mode

    def _empty_for_import(self, subject: str) -> None:
        names = [name for name in self.subjects(deleted=True) if subject in ("", name)]
        if any(self.of_subject(name) for name in names):
            raise Refusal(422, 42205, "Cannot import since found existing subjects")
        self.versions = {key: stored for key, stored in self.versions.items() if key[0] not in names}

    def delete_mode(self, subject: str) -> str:
        self._require_modes(subject)
        if not self.deletes_modes:
            raise Refusal(405, 405, "HTTP 405 Method Not Allowed")
        if subject not in self.modes:
            raise Refusal(404, 40401, f"Subject '{subject}' not found.")
        return self.modes.pop(subject)

    def _require_modes(self, subject: str) -> None:
        if not self.has_modes:
            raise Refusal(404, 0, f"Could not find resource for full path: /mode/{subject}")


def _schema_of(body: Document) -> Document:
    """Return the part of a registration that makes the schema. Refuse what is no schema."""
    document = {"schema": body["schema"]}
    for key in ("schemaType", "references", "metadata", "ruleSet"):
        if body.get(key) and body[key] != "AVRO":
            document[key] = body[key]
    if document.get("schemaType", "AVRO") in ("AVRO", "JSON"):
        try:
            document["schema"] = json.dumps(json.loads(body["schema"]), separators=(",", ":"))
        except ValueError:
            raise Refusal(422, 42201, "Input schema is an invalid Avro schema") from None
    return document


def _fields(document: Document) -> list[Document]:
    parsed = json.loads(document["schema"]) if document.get("schemaType", "AVRO") == "AVRO" else None
    return list(parsed.get("fields", ())) if isinstance(parsed, dict) else []
