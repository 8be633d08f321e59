"""Pure: schemas, and the versions of subjects that they are registered as."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

DEFAULT_TYPE = "AVRO"
_JSON_TYPES = ("AVRO", "JSON")

DEFAULT_CONTEXT = ""
_CONTEXT_START = ":."
_VERSION_PROPERTY = "confluent:version"
"""A property that registries add to the metadata of a schema which was registered with a version."""


class SchemaReference(NamedTuple):
    """The name by which a schema refers to a version of another subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A schema without its id. `contract`: its metadata and rules as canonical JSON, empty if it has none."""

    type: str = DEFAULT_TYPE
    text: str
    references: tuple[SchemaReference, ...] = ()
    contract: str = ""

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Schema:
        """Return the schema of a response of a registry. Raises KeyError, TypeError, ValueError if it has none."""
        references, text = document.get("references") or (), document["schema"]
        if not isinstance(text, str):
            raise TypeError(f"a schema is a text, not {type(text).__name__}")
        return cls(
            type=str(document.get("schemaType") or DEFAULT_TYPE),
            text=text,
            references=tuple(
                SchemaReference(str(reference["name"]), str(reference["subject"]), int(reference["version"]))
                for reference in references
            ),
            contract=_contract(document),
        )

    def document(self) -> dict[str, Any]:
        """Return the body of a registration of the schema."""
        references = [reference._asdict() for reference in self.references]
        contract = json.loads(self.contract) if self.contract else {}
        return {"schemaType": self.type, "schema": self.text, **({"references": references} if references else {}), **contract}

    def is_same(self, other: Schema) -> bool:
        """Return whether both are the same: JSON may differ in spaces and the order of keys, all else is exact."""
        return (
            self.type == other.type
            and self.references == other.references
            and self.contract == other.contract
            and (self.text == other.text or self.canonical_text == other.canonical_text)
        )

    @property
    def canonical_text(self) -> str:
        """Return JSON without spaces and with sorted keys; a text that is not JSON without spaces around it."""
        if self.type not in _JSON_TYPES:
            return self.text.strip()
        try:
            return _canonical_json(json.loads(self.text))
        except (ValueError, RecursionError):
            return self.text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class SubjectVersion:
    """A schema as a version of a subject. `is_deleted`: softly, so that its id is still resolved."""

    subject: str
    version: int
    id: int
    schema: Schema
    is_deleted: bool = False

    @property
    def key(self) -> tuple[str, int]:
        return self.subject, self.version

    @property
    def schema_id(self) -> SchemaId:
        return SchemaId(context_of(self.subject), self.id)

    @property
    def referenced_keys(self) -> tuple[tuple[str, int], ...]:
        """Return subject and version of the references of the schema."""
        context = context_of(self.subject)
        return tuple((qualified(reference.subject, context), reference.version) for reference in self.schema.references)

    def is_same(self, other: SubjectVersion) -> bool:
        """Return whether both have the same id and schema, deleted or not."""
        return self.id == other.id and self.schema.is_same(other.schema)

    def __str__(self) -> str:
        return f"{self.subject} version {self.version}"


class SchemaId(NamedTuple):
    """Ids are unique within a context."""

    context: str
    id: int

    def __str__(self) -> str:
        return f"id {self.id}" + (f" in context {self.context}" if self.context else "")


def context_of(subject: str) -> str:
    """Return the context of a subject such as `:.payments:orders-value`, without its dot; empty for the default context."""
    return subject[len(_CONTEXT_START) :].partition(":")[0] if subject.startswith(_CONTEXT_START) else DEFAULT_CONTEXT


def qualified(subject: str, context: str) -> str:
    """Return a referenced subject, which is in the context of its referrer unless it names one."""
    return subject if subject.startswith(":") or not context else f"{_CONTEXT_START}{context}:{subject}"


def _contract(document: Mapping[str, Any]) -> str:
    metadata, rules = document.get("metadata") or {}, document.get("ruleSet")
    properties = {name: value for name, value in (metadata.get("properties") or {}).items() if name != _VERSION_PROPERTY}
    metadata = {key: value for key, value in {**metadata, "properties": properties}.items() if value}
    contract = {key: value for key, value in (("metadata", metadata), ("ruleSet", rules)) if value}
    return _canonical_json(contract) if contract else ""


def _canonical_json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
