"""Reference of the rows of `kafka-batches`: its schema, with the meanings that `batch_columns.yaml` has for it."""

from __future__ import annotations

from pathlib import Path

import yaml
from markdown_text import code, table
from tables_page import sql_type

from shallow_mirror.broker.fetch.arrow_rows import ARROW_SCHEMA

_INTRODUCTION = """# Columns of kafka-batches

A row is a record batch. Rows of kind `gap` and `expired` have no batch: all columns from `verdict` on are null.
[How to read record batches](../how-to/batches.md), [options](kafka-batches-options.md).

"""


def batches_page(root: Path) -> str:
    meanings = yaml.safe_load((Path(__file__).parent / "batch_columns.yaml").read_text(encoding="utf-8"))
    rows = [(code(field.name), sql_type(field.type), meanings.pop(field.name)) for field in ARROW_SCHEMA]
    if meanings:
        raise ValueError(f"batch_columns.yaml: kafka-batches has no column {', '.join(meanings)}")
    return _INTRODUCTION + table(("column", "type", "meaning"), rows)
