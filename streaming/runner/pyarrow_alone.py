"""Driver and executors: pyarrow without pandas, in processes where nothing uses pandas.

pyarrow imports pandas, if it is installed, for the first array of a process that is not made of a numpy array. That takes 40 MB
and 0.2 CPU seconds in every such process.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

import pyarrow as pa

OWN_SESSION_VARIABLE = "SHALLOW_MIRROR_OWN_SESSION"
"""Set where the session is of a mirror alone: in another one's tasks pandas may be used."""
_PANDAS = "pandas"


class _NoPandas:
    """Finds no module of this name."""

    @staticmethod
    def find_spec(name: str, _path: Sequence[str] | None = None, _target: ModuleType | None = None) -> None:
        if name == _PANDAS:
            raise ModuleNotFoundError(f"{name} is not wanted here", name=name)


def keep_pandas_out() -> None:
    """Let pyarrow find no pandas now: it does not try again before something is converted to pandas, and then finds it."""
    if _PANDAS in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([])
    finally:
        sys.meta_path.remove(_NoPandas)
