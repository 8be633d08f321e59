"""A mirror in its own process that kills its whole process group when it passes a given point for the n-th time.

Usage: python mirror_process.py CONF POINT NTH, where a POINT of the form A>B counts B only once A was passed.
"""

from __future__ import annotations

import logging
import os
import signal
import sys

from shallow_mirror.streaming.mirror import Mirror


class KillAt:
    """The observer. In a task `nth` counts within one Python worker."""

    def __init__(self, point: str, nth: int) -> None:
        self.awaited, _, self.point = point.rpartition(">")
        self.left, self.group = nth, os.getpgid(0)

    def __call__(self, point: str) -> None:
        if point == self.awaited:
            self.awaited = ""
        elif point == self.point and not self.awaited:
            self.left -= 1
            if self.left == 0:
                os.killpg(self.group, signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    mirror = Mirror.from_file(sys.argv[1])
    if len(sys.argv) > 2:
        mirror = Mirror(mirror.config, observer=KillAt(sys.argv[2], int(sys.argv[3])))
    mirror.run(available_now=True)
