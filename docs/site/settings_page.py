"""References of every kind of file of settings: keys, types, defaults and bounds from the settings' own JSON
schemas, meanings from the comments in the examples of `conf/`, or else from the descriptions in the schema."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_text import code, table, words
from pydantic import BaseModel

from shallow_mirror.config import ArchiveConfig, FailoverConfig, MigrationConfig, MirrorConfig, RestoreConfig
from shallow_mirror.config.editor_schemas import comments_of
from shallow_mirror.config.values import DURATIONS

_COMMON = """An unknown key is an error that suggests the most similar key; all problems of a file are reported at once. Relative
paths are relative to the file. A duration is a number with a unit: `500 ms`, `2 seconds`, `1 minute`, `12 hours`, `30 days`.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsFile:
    """One kind of file that users write. `schema`: the name of its JSON schema in `conf/`."""

    title: str
    purpose: str
    model: type[BaseModel]
    example: str
    schema: str

    def page(self, root: Path) -> str:
        example = (root / "conf" / self.example).read_text(encoding="utf-8")
        sections: dict[str, list[tuple[str, str, str, str]]] = {_TOP_LEVEL: []}
        settings_of_file = list(self.rows(example))
        titles = {_anchor(path).partition(".")[0] for path, *_ in settings_of_file if "." in path}
        for path, kind, default, meaning in settings_of_file:
            title = _anchor(path).partition(".")[0]
            # A list or mapping of groups is a key, and the heading above the keys of its groups has its name as anchor.
            key = f"[{code(path)}](#{title})" if path in titles else _anchored(path)
            row = (key, kind, default, words(meaning))
            sections.setdefault(title if title in titles else _TOP_LEVEL, []).append(row)
        tables = [f"## {title}\n\n{table(('key', 'type', 'default', 'meaning'), rows)}" for title, rows in sections.items()]
        return (
            f"# Settings: {self.title}\n\n{self.purpose} {_COMMON}"
            f"Editors can validate against `conf/{self.schema}`, which is generated from the same settings. `client` takes "
            "librdkafka's property names ([list](client-properties.md)).\n\n"
            + "\n".join(tables)
            + f"\n## A whole file\n\n`conf/{self.example}`:\n\n```yaml\n{example}```\n"
        )

    def rows(self, example: str) -> Iterator[tuple[str, str, str, str]]:
        """Yield path, type, default and meaning of every key, in the order of the example."""
        comments, schema = comments_of(example), self.model.model_json_schema(by_alias=True)
        order = {path: number for number, path in enumerate(comments)}
        found = sorted(settings(schema, schema), key=lambda setting: order.get(setting[0].replace("[]", ""), len(order)))
        for path, field, is_required in found:
            meaning = comments.get(path.replace("[]", ""), field.get("description", ""))
            yield path, _type_of(field, schema, path), _default_of(field, is_required), meaning


MIRROR_FILE = SettingsFile(
    title="the mirror file",
    purpose="One YAML file configures one mirror.",
    model=MirrorConfig,
    example="example.yaml",
    schema="mirror.schema.json",
)
ARCHIVE_FILE = SettingsFile(
    title="the archive file",
    purpose="One YAML file configures one [archive](../how-to/archive.md).",
    model=ArchiveConfig,
    example="archive-example.yaml",
    schema="archive.schema.json",
)
RESTORE_FILE = SettingsFile(
    title="the restore file",
    purpose="One YAML file configures one [restore](../how-to/restore.md) of an archive.",
    model=RestoreConfig,
    example="restore-example.yaml",
    schema="restore.schema.json",
)

MIGRATION_FILE = SettingsFile(
    title="the migration file",
    purpose="One YAML file configures one [migration](../how-to/migrate.md).",
    model=MigrationConfig,
    example="migration-example.yaml",
    schema="migration.schema.json",
)
FAILOVER_FILE = SettingsFile(
    title="the failover file",
    purpose="One YAML file configures one [fail-over](../how-to/failover.md).",
    model=FailoverConfig,
    example="failover-example.yaml",
    schema="failover.schema.json",
)

_TOP_LEVEL = "Top level"


def _anchored(path: str) -> str:
    """Return a key that other pages can link to: `settings.md#groups.sync`."""
    return f"[{code(path)}](#{_anchor(path)}){{ #{_anchor(path)} }}"


def _anchor(path: str) -> str:
    return path.replace("[]", "")


_KINDS = {"string": "text", "object": "mapping", "null": "`null`"}
_UNITS = {"bytes_per_second": "bytes per second", "_bytes": "bytes", "_ms": "milliseconds"}
"""Of integers, by the end of the key."""


def settings(
    group: Mapping[str, Any], schema: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """Yield (dotted path, JSON schema of it, is it required) of every key that is not a group of others.

    A mapping of patterns to groups is a key itself, and so is a list of groups; the keys of its groups follow.
    """
    for name, field in group["properties"].items():
        resolved = _resolved(field, schema)
        is_required = name in group.get("required", ())
        if "properties" in resolved:
            yield from settings(resolved, schema, f"{prefix}{name}.")
            continue
        yield f"{prefix}{name}", {**resolved, **field}, is_required
        values = _values_of(field, schema)
        if "properties" in values:
            yield from settings(values, schema, f"{prefix}{name}.PATTERN.")
        elements = _resolved(field.get("items", {}), schema)
        if "properties" in elements:
            yield from settings(elements, schema, f"{prefix}{name}[].")


def _values_of(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a mapping's values; nothing where the field is no mapping."""
    values = field.get("additionalProperties")
    return _resolved(values, schema) if isinstance(values, Mapping) else {}


def _resolved(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = field.get("$ref")
    return field if reference is None else schema["$defs"][reference.rsplit("/", 1)[1]]


def _type_of(field: Mapping[str, Any], schema: Mapping[str, Any], path: str) -> str:
    if "enum" in field:
        return " or ".join(code(value) for value in field["enum"])
    if "const" in field:
        return code(field["const"])
    if "anyOf" in field:
        return " or ".join(_type_of(_resolved(option, schema), schema, path) for option in field["anyOf"])
    kind = str(field.get("type", ""))
    if kind == "array":
        return f"list of {_type_of(_resolved(field['items'], schema), schema, path)}"
    if field.get("examples") == list(DURATIONS):
        return "duration"
    if field.get("examples") == [*DURATIONS, "off"]:
        return "duration or `off`"
    unit = next((f" of {unit}" for end, unit in _UNITS.items() if kind == "integer" and path.endswith(end)), "")
    return _KINDS.get(kind, kind) + unit + _bounds_of(field)


def _bounds_of(field: Mapping[str, Any]) -> str:
    if "minimum" not in field:
        return ""
    least, most = field["minimum"], field.get("maximum")
    return f", at least {least}" if most is None else f", {least} to {most}"


def _default_of(field: Mapping[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    if field.get("default", "") == "":
        return "not set"
    return code(json.dumps(field["default"]).strip('"'))
