"""Reference of errors: every class, its exit code, and its remedy."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

from markdown_text import code, table, words

from shallow_mirror import errors
from shallow_mirror.commands.options import exit_code_of
from shallow_mirror.errors import MirrorError

_INTRODUCTION = """# Errors

A command that stops on an error prints `Class: sentence` as the last line of its standard error and exits with the
code below. The sentence contains what happened, where, and the remedy. More: [error remedies](error-remedies.md).

"""
_OF_PARTS = """
## Errors of single modules

Callers of the Python interfaces may get them as well.

"""


def errors_page(root: Path) -> str:
    main = [
        (f"[{code(name)}](error-remedies.md#{name.lower()})", str(exit_code(kind)), words(inspect.cleandoc(kind.__doc__ or "")))
        for name, kind in error_classes().items()
    ]
    parts = [(code(name), code(path), words(meaning)) for name, path, meaning in errors_of_parts(root)]
    return (
        _INTRODUCTION
        + table(("error", "exit code", "meaning"), main)
        + _OF_PARTS
        + table(("error", "raised in", "meaning"), parts)
    )


def error_classes() -> dict[str, type[MirrorError]]:
    """Those of `errors.py` by name, but for their base."""
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, MirrorError)}
    return {name: error_class for name, error_class in classes.items() if error_class is not MirrorError}


def exit_code(kind: type[MirrorError]) -> int:
    return exit_code_of(kind.__new__(kind))


def errors_of_parts(root: Path) -> list[tuple[str, str, str]]:
    """(class, file, docstring) of those that derive from one of `errors.py` elsewhere."""
    bases = {MirrorError.__name__, *error_classes()}
    parts = []
    for folder in (root / "src" / "shallow_mirror", root / "streaming", root / "sinks", root / "checkpoints"):
        for path in sorted(folder.rglob("*.py")):
            if path.name == "errors.py":
                continue
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and bases & {ast.unparse(base) for base in node.bases}:
                    parts.append((node.name, path.relative_to(root).as_posix(), ast.get_docstring(node) or ""))
    return parts
