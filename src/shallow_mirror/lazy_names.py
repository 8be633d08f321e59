"""Names that a package exports, each imported from its module when it is first used.

A package that is a door lists its names once, as imports which type checkers see:

    if TYPE_CHECKING:
        from shallow_mirror.wire.batches.header import Codec as Codec
    else:
        __getattr__, __dir__ = lazy_names(__name__)

The running package reads the same imports from its own source. Importing a door imports none of its modules, so that workers
do not load what only the driver needs.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are imported under `if TYPE_CHECKING:`.

    Values are not kept: a test that replaces a name in its module replaces the package's export too.
    """

    @cache
    def modules() -> dict[str, str]:
        return exported_names(package)

    def __getattr__(name: str) -> Any:  # noqa: N807
        if name.startswith("__") or name not in modules():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = modules()[name]
        owner = import_module(module)
        if module != package and (hasattr(owner, name) or not hasattr(owner, "__path__")):
            return getattr(owner, name)
        # A module that is exported as a whole is an attribute of its package only once it has been imported.
        return import_module(f"{module}.{name}")

    def __dir__() -> list[str]:  # noqa: N807
        return sorted({*vars(sys.modules[package]), *modules()})

    return __getattr__, __dir__


def exported_names(package: str) -> dict[str, str]:
    """Return the imports of a package under `if TYPE_CHECKING:`: the module of each name."""
    loader: Any = sys.modules[package].__loader__
    source = loader.get_source(package)
    if source is None:
        raise ImportError(f"the names of {package} are in its source, which is not installed")
    return {
        alias.name: statement.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
