"""Reference of the Delta tables: every schema in `checkpoints/`, with the meanings that `columns.yaml` has for it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import yaml
from markdown_text import code, table

from shallow_mirror.checkpoints.rows.codec import RowCodec

_INTRODUCTION = """# Tables

Plain Delta tables (no deletion vectors, no column mapping), in the folder or schema of the setting `tables`. Any reader may
read them at any time; only the mirror may write them. The columns of `offset_map` are a public interface. `controls`,
`schema_imports` and `quarantine` are state of the mirror as well; the other tables are observations.
"""


def tables_page(root: Path) -> str:
    meanings = yaml.safe_load((Path(__file__).parent / "columns.yaml").read_text(encoding="utf-8"))
    return _INTRODUCTION + "".join(
        _section(name, schema, meanings.get(name, {})) for name, schema in schemas(root / "checkpoints")
    )


def schemas(folder: Path) -> Iterator[tuple[str, pa.Schema]]:
    """(table, columns): a public constant of a module is named as its table, in capitals. The offset map comes first."""
    schemas: dict[str, pa.Schema] = {}
    for path in sorted(folder.rglob("[a-z]*.py"), key=lambda file: (file.name != "schema.py", file.name)):
        module = importlib.import_module(
            ".".join(["shallow_mirror", "checkpoints", *path.relative_to(folder).with_suffix("").parts])
        )
        for name, value in vars(module).items():
            schema = value.schema if isinstance(value, RowCodec) else value
            if isinstance(schema, pa.Schema) and name.isupper() and not name.startswith("_"):
                schemas.setdefault(name.lower(), schema)
    yield from schemas.items()


def _section(name: str, schema: pa.Schema, meanings: dict[str, str]) -> str:
    rows = [(code(field.name), sql_type(field.type), meanings.get(field.name, "")) for field in schema]
    about = meanings.get("about", "")
    return f"\n## {name}\n\n{about}\n\n" + table(("column", "type", "meaning"), rows)


def sql_type(kind: pa.DataType) -> str:
    names = {"int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint", "bool": "boolean"}
    return "timestamp" if pa.types.is_timestamp(kind) else names.get(str(kind), str(kind))
