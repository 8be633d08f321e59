"""JSON schemas of the files that users write, for editors: `conf/*.schema.json`.

They are those of the settings. Descriptions are the comments of the examples, which the reference of the settings shows as well.
`python -m shallow_mirror.config.editor_schemas` writes them again in a checkout.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from shallow_mirror.config.archive_config import ArchiveConfig
from shallow_mirror.config.failover_config import FailoverConfig
from shallow_mirror.config.migration_config import MigrationConfig
from shallow_mirror.config.mirror_config import MirrorConfig
from shallow_mirror.config.restore_config import RestoreConfig

SCHEMAS: Mapping[str, tuple[type[BaseModel], str]] = {
    "mirror.schema.json": (MirrorConfig, "example.yaml"),
    "archive.schema.json": (ArchiveConfig, "archive-example.yaml"),
    "restore.schema.json": (RestoreConfig, "restore-example.yaml"),
    "migration.schema.json": (MigrationConfig, "migration-example.yaml"),
    "failover.schema.json": (FailoverConfig, "failover-example.yaml"),
}
"""Settings and example by the name of the schema."""

_FOLDER = Path(__file__).parent.parent / "starter-files"
_COMMENTED = re.compile(r"^(?P<indent> *)(?P<key>[a-z_]+):(?P<value>[^#]*)(?:#\s*(?P<comment>.*))?$")


def editor_schema(name: str) -> str:
    """Return the content of a file of `SCHEMAS`."""
    model, example = SCHEMAS[name]
    schema = model.model_json_schema(by_alias=True)
    _describe(schema, "", schema, comments_of((_FOLDER / example).read_text(encoding="utf-8")))
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


def comments_of(text: str) -> dict[str, str]:
    """Comment behind each key of a YAML text of two levels, by dotted path."""
    comments, group = {}, ""
    for line in text.splitlines():
        match = _COMMENTED.match(line)
        if match is None:
            continue
        if match["indent"]:
            path = f"{group}.{match['key']}"
        else:
            path = group = match["key"]
        if match["comment"]:
            comments[path] = match["comment"]
    return comments


def _describe(group: Mapping[str, Any], prefix: str, schema: Mapping[str, Any], comments: Mapping[str, str]) -> None:
    """Add descriptions to the settings of a group that have none. A group that several settings share has those of the first."""
    for name, setting in group.get("properties", {}).items():
        path = f"{prefix}{name}"
        if path in comments:
            setting.setdefault("description", comments[path])
        for inner in _groups_of(setting, schema):
            _describe(inner, f"{path}.", schema, comments)


def _groups_of(setting: Mapping[str, Any], schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the groups of settings that a setting is, or has as options, elements or values."""
    if "$ref" in setting:
        yield schema["$defs"][setting["$ref"].rsplit("/", 1)[1]]
    for option in setting.get("anyOf", ()):
        yield from _groups_of(option, schema)
    for name in ("items", "additionalProperties"):
        if isinstance(setting.get(name), Mapping):
            yield from _groups_of(setting[name], schema)


if __name__ == "__main__":
    for file in SCHEMAS:
        (_FOLDER / file).write_text(editor_schema(file), encoding="utf-8")
