"""What is imported before workers are forked, which every one of them has in memory."""

from __future__ import annotations

import subprocess
import sys

from shallow_mirror.streaming.runner import worker_daemon

_DRIVERS_ONLY = ("deltalake", "obstore", "pandas", "pydantic", "yaml")


def test_tasks_do_not_import_what_only_the_driver_needs() -> None:
    program = (
        f"import importlib, sys\nfor name in {worker_daemon._IMPORTED!r}: importlib.import_module(name)\n"
        f"print([name for name in {_DRIVERS_ONLY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
