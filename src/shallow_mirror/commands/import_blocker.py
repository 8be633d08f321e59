"""Of commands that only read, in a process of their own."""

from __future__ import annotations

import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class ImportBlocker(Loader):
    """Half of their start was what others import and they never use: pyarrow looks for pandas only to ask whether a value is
    one of its arrays, and kafka-python brings its clients along."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("pandas is left out of commands that only read", name=name)
        found = PathFinder.find_spec(name) if name == "kafka" else None
        if found is not None:
            found.loader = self
        return found

    def exec_module(self, module: ModuleType) -> None:
        """A package whose own file is not run: its modules are found all the same."""

    @classmethod
    def begin(cls) -> None:
        sys.meta_path.insert(0, cls())

    @staticmethod
    def end() -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ImportBlocker)]
