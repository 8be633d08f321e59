"""Driver: the folder where Spark's JVM puts what it needs on the side, and the removal of those that killed runs left.

Whoever uses a folder holds a lock on a file in it, which ends with the process, however that ends.
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
    """This process's; made at the first call, gone with the process or at the next start after a kill."""
    remove_orphaned_dirs()
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX)).resolve()
    fcntl.flock(os.open(folder / "lock", os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)
    (folder / "lock").rename(folder / _LOCK)  # locked before anybody can find it
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def remove_orphaned_dirs() -> None:
    """Folders whose process is gone. Those of other users and those in use stay."""
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
