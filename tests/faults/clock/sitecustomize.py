"""Python imports this at its start, where the folder is on its path: `time.time` then is off by what a file says.

The file is named by FAULTS_CLOCK. It reaches every Python process of a mirror, but neither its JVM nor `datetime.now`, which
do not ask `time.time`; the monotonic clock is left alone.
"""

from __future__ import annotations

import os
import time

_right_time = time.time
_file = os.environ["FAULTS_CLOCK"]


def _moved_time() -> float:
    try:
        with open(_file, encoding="ascii") as moved:
            return _right_time() + float(moved.read() or 0)
    except FileNotFoundError:
        return _right_time()


time.time = _moved_time
