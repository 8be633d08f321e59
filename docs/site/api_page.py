"""Reference of the Python interface: what `shallow_mirror` exports, with signatures and docstrings from the code."""

from __future__ import annotations

import ast
import enum
import inspect
import itertools
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from markdown_text import code, words
from pydantic import BaseModel

import shallow_mirror
from shallow_mirror.errors import MirrorError

_INTRODUCTION = """# Python interface

Import these names from `shallow_mirror`. They are the public interface; other modules may change in any release. Every
name is loaded on first use: `import shallow_mirror` starts neither Spark nor a Kafka client. Errors have
[a page of their own](errors.md).

"""

_NOT_SHOWN = ("self", "cls", "clock", "sleep", "wall_clock")
"""Clocks and sleeps are parameters for tests."""


def api_page(root: Path) -> str:
    return _INTRODUCTION + "\n".join(_section(name, value) for name, value in public_values())


def public_values() -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of everything that is exported but errors and the version, in alphabetical order."""
    for name in sorted(shallow_mirror.__all__, key=str.lower):
        value = getattr(shallow_mirror, name)
        if name != "__version__" and not (isinstance(value, type) and issubclass(value, MirrorError)):
            yield name, value


def _section(name: str, value: Any) -> str:
    lines = [f"## {name}", "", *_signature(name, value), _text(value), ""]
    if isinstance(value, type) and issubclass(value, BaseModel):
        lines += ["Its fields are the [settings](settings.md) of the mirror file.", ""]
    if isinstance(value, type) and issubclass(value, enum.Enum):
        lines += ["Values: " + ", ".join(code(member.name) for member in value), ""]
    elif isinstance(value, type):
        fields = [f"- {code(field)}: {words(text)}" for field, text in _explained_fields(value)]
        lines += [*fields, ""] if fields else []
        for method_name, method in _public_methods(value):
            lines += [f"### {name}.{method_name}", "", *_signature(method_name, method), _text(method), ""]
    return "\n".join(lines)


def _explained_fields(owner: type) -> Iterator[tuple[str, str]]:
    """Yield the fields of a class whose explanations stand behind them in the code."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(owner))).body[0]
    assert isinstance(tree, ast.ClassDef)
    for field, behind in itertools.pairwise(tree.body):
        match field, behind:
            case ast.AnnAssign(target=ast.Name(name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, " ".join(text.split())


def _public_methods(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield methods and properties that the class itself defines and documents."""
    for name, member in vars(owner).items():
        method = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, property)) and method.__doc__:
            yield name, method


def _signature(name: str, value: Any) -> list[str]:
    if isinstance(value, property) or (isinstance(value, type) and issubclass(value, enum.Enum | BaseModel)):
        return []
    try:
        signature = inspect.signature(value)
    except ValueError:  # classes without a signature of their own
        return []
    parameters = [_shown(parameter) for parameter in signature.parameters.values() if parameter.name not in _NOT_SHOWN]
    if any(parameter.name.startswith("_") for parameter in parameters):
        return []  # made by a class method, not by its caller
    text = str(signature.replace(parameters=parameters))
    if len(name + text) > 100:
        one_per_line = _one_per_line(parameters)
        returned = text.rpartition(" -> ")[2] if " -> " in text else ""
        text = f"(\n{one_per_line})" + (f" -> {returned}" if returned else "")
    return ["```python", name + text.replace("'", "").replace('"', ""), "```", ""]


def _shown(parameter: inspect.Parameter) -> inspect.Parameter:
    """Return the parameter with its default as it is written in code; a default function is `...`."""
    default = parameter.default
    if isinstance(default, enum.Enum):
        return parameter.replace(default=_Written(f"{type(default).__name__}.{default.name}"))
    if inspect.isroutine(default):
        return parameter.replace(default=_Written("..."))
    return parameter


class _Written(str):
    """A default value whose repr is the text itself."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _one_per_line(parameters: list[inspect.Parameter]) -> str:
    lines, is_marked = [], False
    for parameter in parameters:
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and not is_marked:
            lines.append("    *,\n")
            is_marked = True
        lines.append(f"    {parameter},\n")
    return "".join(lines)


def _text(value: Any) -> str:
    return words(inspect.cleandoc(value.__doc__ or ""))
