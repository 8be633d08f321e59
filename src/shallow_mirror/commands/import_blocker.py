"""A blocker of imports that commands which only read do not need; it halves their start-up time."""

from __future__ import annotations

import sys
from importlib.abc import Loader
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType


class ImportBlocker(Loader):
    """Hides pandas, which pyarrow imports only to check whether a value is one of its arrays, and kafka-python's clients."""

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        if name == "pandas":
            raise ModuleNotFoundError("commands that only read run without pandas", name=name)
        spec = PathFinder.find_spec(name) if name == "kafka" else None
        if spec is not None:
            spec.loader = self
        return spec

    def exec_module(self, module: ModuleType) -> None:
        """Skip the package's own file, which imports the clients; its modules can be imported all the same."""

    @classmethod
    def install(cls) -> None:
        sys.meta_path.insert(0, cls())

    @staticmethod
    def remove() -> None:
        sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, ImportBlocker)]
