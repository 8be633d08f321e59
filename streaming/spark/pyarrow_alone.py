"""Driver and executors: pyarrow without pandas and datasets, in processes where nothing uses them.

pyarrow imports pandas, if it is installed, for the first array of a process that is not made of a numpy array. That takes 40 MB
and 0.2 CPU seconds in every such process.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

import pyarrow as pa

from shallow_mirror.streaming.spark.economies import Economy, is_used, or_without

OWN_SESSION_VARIABLE = "SHALLOW_MIRROR_OWN_SESSION"
"""Set where the session is of a mirror alone: in another one's tasks pandas may be used."""
_PANDAS, _DATASETS, _ACERO = "pandas", "pyarrow.dataset", "pyarrow.acero"


class _NoModule:
    """Finds no module of this name."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> None:
        if name == self._name:
            raise ModuleNotFoundError(f"{name} is not wanted here", name=name)


@contextmanager
def _without(name: str) -> Iterator[None]:
    finder = _NoModule(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def keep_pandas_out() -> None:
    """Let pyarrow find no pandas now: it does not try again before something is converted to pandas, and then finds it."""
    if _PANDAS not in sys.modules and is_used(Economy.PYARROW_ALONE):
        with or_without(Economy.PYARROW_ALONE), _without(_PANDAS):
            pa.array([])


def keep_datasets_out() -> None:
    """Let pyarrow's engine find no datasets, which it needs for none of our tables: 10 MB. They can still be imported."""
    if _ACERO not in sys.modules and _DATASETS not in sys.modules and is_used(Economy.PYARROW_ALONE):
        with or_without(Economy.PYARROW_ALONE), _without(_DATASETS):
            importlib.import_module(_ACERO)
