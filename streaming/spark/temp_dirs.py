"""Driver: the folder for temporary files of Spark's JVM, and the removal of those that killed runs left.

A process holds a lock on a file in its folder; the operating system releases it when the process ends, however it ends.
"""

from __future__ import annotations

import atexit
import fcntl
import functools
import os
import shutil
import tempfile
from pathlib import Path

_PREFIX = "shallow-mirror-spark-"
_LOCK = ".in-use"


@functools.cache
def temp_dir() -> Path:
    """Return the folder of this process, created by the first call; removed at exit, or at the next start after a kill."""
    remove_orphaned_dirs()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
    fcntl.flock(os.open(folder / "lock", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
    (folder / "lock").rename(folder / _LOCK)  # locked before another process can see it as orphaned
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def remove_orphaned_dirs() -> None:
    """Remove folders whose process has ended. Those of other users and those in use stay."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue
        finally:
            os.close(lock)
        shutil.rmtree(folder, ignore_errors=True)
