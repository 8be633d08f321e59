"""Doors of the package: what they export, and imports of Python files as they are written."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import shallow_mirror

ROOT = Path(shallow_mirror.__file__).parent


@dataclass(frozen=True)
class Import:
    """`from module import name`, in a line of a file."""

    module: str
    name: str
    line: int


def room(module: str) -> str:
    """Return the folder of the package in which a module is; "" for the root's own modules."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and (ROOT / parts[1]).is_dir() else ""


@cache
def modules() -> dict[str, Path]:
    """Return all modules of the package and their files."""
    found = {}
    for path in [*ROOT.glob("*.py"), *(file for folder in ROOT.iterdir() if folder.is_dir() for file in folder.rglob("*.py"))]:
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def doors() -> dict[str, dict[str, str]]:
    """Return what each door exports: the module of each name. The root is not among them."""
    return {
        name: {found.name: found.module for found in imports_of(path)}
        for name, path in modules().items()
        if name != "shallow_mirror" and path.name == "__init__.py" and "lazy_names(__name__)" in path.read_text(encoding="utf-8")
    }


def imports_of(path: Path) -> list[Import]:
    """Return what a file imports from the package, wherever it does, without the means of the doors."""
    return [
        Import(node.module, alias.name, node.lineno)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "shallow_mirror"
        for alias in node.names
        if node.module != "shallow_mirror.lazy_names"
    ]


def source_of(found: Import) -> str:
    """Return the module that a name comes from, through a door or not; of a module imported as a whole, itself."""
    module = doors().get(found.module, {}).get(found.name, found.module)
    return f"{module}.{found.name}" if f"{module}.{found.name}" in modules() else module
