"""The JSON schemas in `conf/` are those of the settings, and explain every one of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shallow_mirror.config.editor_schemas import SCHEMAS, editor_schema


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_is_current(name: str, repository: Path) -> None:
    written = (repository / "conf" / name).read_text(encoding="utf-8")
    assert written == editor_schema(name), "write it again: python -m shallow_mirror.config.editor_schemas"


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_setting_has_a_description(name: str) -> None:
    schema = json.loads(editor_schema(name))
    groups = [schema, *schema["$defs"].values()]
    assert [key for group in groups for key in undescribed(group)] == []


def undescribed(group: dict[str, Any]) -> Iterator[str]:
    for name, setting in group.get("properties", {}).items():
        if not setting.get("description"):
            yield f"{group.get('title')}.{name}"


def test_descriptions_are_those_of_the_examples() -> None:
    properties = json.loads(editor_schema("mirror.schema.json"))["$defs"]["ReadSettings"]["properties"]
    assert properties["micro_batch_bytes"]["description"] == "upper limit of a micro-batch; plans are usually smaller"
