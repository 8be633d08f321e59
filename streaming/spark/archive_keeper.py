"""Process of its own, which outlives the mirror: it puts the archive of classes that Spark's JVM writes into its place.

    python archive_keeper.py PID WRITTEN PLACE SECONDS

Standard input is the writing end of the pipe that the JVM, and no other process, reads: it has an error once the JVM has ended.
A process id alone could be that of another process by then. Messages are for the log of Spark. Only the standard library is
imported, to start quickly.
"""

from __future__ import annotations

import os
import select
import signal
import sys
from pathlib import Path


def keep(jvm: int, written: Path, place: Path, within_s: float) -> str | None:
    """End the JVM, wait for it, and replace `place` with the file that it has written. Return failures."""
    pipe = select.poll()
    pipe.register(sys.stdin.fileno(), 0)
    if not pipe.poll(0):
        os.kill(jvm, signal.SIGTERM)
    if not pipe.poll(within_s * 1000):
        os.kill(jvm, signal.SIGKILL)
        pipe.poll()  # it writes until it has ended
        written.unlink(missing_ok=True)
        return f"Spark's JVM has not ended within {within_s:.0f} s: there is no archive of its classes"
    if not written.is_file():
        return "Java has written no archive of Spark's classes: the next start takes as long as this one"
    written.replace(place)
    return None


if __name__ == "__main__":
    problem = keep(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
    if problem is not None:
        print(f"WARN {problem}", flush=True)
