"""Reference of the mirror file: keys, types, defaults and bounds from the settings' own JSON schema, meanings from the comments
in `conf/example.yaml`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from markdown_text import code, table, words

from shallow_mirror.config import MirrorConfig

_INTRODUCTION = """# Settings: the mirror file

One YAML file configures one mirror. An unknown key is an error that suggests the most similar key; all problems of a file
are reported at once. Relative paths are relative to the file. Editors can validate against `conf/mirror.schema.json`,
which is generated from the same settings. `client` takes librdkafka's property names ([list](client-properties.md)).

"""

_KINDS = {"string": "text", "object": "mapping", "null": "nothing"}
_COMMENTED = re.compile(r"^(?P<indent> *)(?P<key>[a-z_]+):(?P<value>[^#]*)(?:#\s*(?P<comment>.*))?$")


def settings_page(root: Path) -> str:
    example = (root / "conf" / "example.yaml").read_text(encoding="utf-8")
    comments, schema = comments_of(example), MirrorConfig.model_json_schema(by_alias=True)
    rows = []
    for path, field, is_required in settings(schema, schema):
        meaning = words(comments.get(path, field.get("description", "")))
        rows.append((code(path), _type_of(field, schema), _default_of(field, is_required), meaning))
    return (
        _INTRODUCTION
        + table(("key", "type", "default", "meaning"), rows)
        + f"\n## A whole file\n\n`conf/example.yaml`:\n\n```yaml\n{example}```\n"
    )


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


def settings(
    group: Mapping[str, Any], schema: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, Mapping[str, Any], bool]]:
    """(dotted path, JSON schema of it, is it required) of every key that is not a group of others."""
    for name, field in group["properties"].items():
        resolved = _resolved(field, schema)
        is_required = name in group.get("required", ())
        if "properties" in resolved:
            yield from settings(resolved, schema, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", {**resolved, **field}, is_required


def _resolved(field: Mapping[str, Any], schema: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = field.get("$ref")
    return field if reference is None else schema["$defs"][reference.rsplit("/", 1)[1]]


def _type_of(field: Mapping[str, Any], schema: Mapping[str, Any]) -> str:
    if "enum" in field:
        return " or ".join(code(value) for value in field["enum"])
    if "const" in field:
        return code(field["const"])
    if "anyOf" in field:
        return " or ".join(_type_of(_resolved(option, schema), schema) for option in field["anyOf"])
    if field.get("type") == "array":
        return f"list of {_type_of(_resolved(field['items'], schema), schema)}"
    kind = str(field.get("type", ""))
    bounds = [field.get(name, "") for name in ("minimum", "maximum")]
    return _KINDS.get(kind, kind) + (f", {bounds[0]} to {bounds[1]}" if any(bounds) else "")


def _default_of(field: Mapping[str, Any], is_required: bool) -> str:
    if is_required:
        return "required"
    return code(json.dumps(field["default"]).strip('"')) if "default" in field else ""
