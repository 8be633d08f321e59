"""The record of subjects in mode IMPORT."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

from shallow_mirror.checkpoints.logs.schema_imports import SCHEMA_IMPORTS, SchemaImports
from shallow_mirror.checkpoints.tables import TableStorage


def _imports(folder: Path, registry: str = "http://west") -> SchemaImports:
    moments = count(1000, 1000)
    return SchemaImports(
        TableStorage(str(folder)).durable_table("schema_imports", SCHEMA_IMPORTS), registry, lambda: next(moments)
    )


def test_a_subject_is_unfinished_until_it_is_recorded_as_set_back(tmp_path: Path) -> None:
    imports = _imports(tmp_path)
    assert imports.unfinished() == []
    imports.begin({"a": None, "b": "READWRITE"})
    assert [(left.subject, left.mode_before, left.at_ms, left.pid) for left in imports.unfinished()] == [
        ("a", None, 1000, os.getpid()),
        ("b", "READWRITE", 1000, os.getpid()),
    ]
    imports.end(["a"])
    assert [left.subject for left in _imports(tmp_path).unfinished()] == ["b"]
    imports.end(["b"])
    assert imports.unfinished() == []


def test_each_registry_has_its_own_imports(tmp_path: Path) -> None:
    _imports(tmp_path).begin({"a": None})
    assert _imports(tmp_path, "http://other").unfinished() == []


def test_nothing_is_written_for_no_subject(tmp_path: Path) -> None:
    _imports(tmp_path).begin({})
    _imports(tmp_path).end([])
    assert not (tmp_path / "schema_imports").exists()
