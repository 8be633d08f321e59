"""Runs as its own small process: starts one broker and never lets it outlive the process that asked for it.

    python supervisor.py PARENT_PID LOG_FILE COMMAND...

Prints the broker's pid. Standard input is the line to the parent: `T` ends the broker (SIGTERM), `K` kills it
(SIGKILL), end of file (the parent is gone, however it ended) kills it. A parent that forked keeps that pipe open in its
children, so the parent's pid is watched as well. Ends when the broker has ended, with the broker's exit code.
Standard library only: it is started with `python -I -S`.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

_POLL_S = 0.1


def main(arguments: list[str]) -> int:
    parent_pid, log_file, command = int(arguments[0]), arguments[1], arguments[2:]
    with open(log_file, "ab") as log:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    try:
        os.write(1, f"{child.pid}\n".encode())
        _watch(child, parent_pid)
    finally:
        child.kill()
        child.wait()
    return child.returncode if child.returncode >= 0 else 128 - child.returncode


def _watch(child: subprocess.Popen[bytes], parent_pid: int) -> None:
    """Wait until the broker has ended or must be killed."""
    while child.poll() is None:
        if os.getppid() != parent_pid:
            return
        readable, _, _ = select.select([0], [], [], _POLL_S)
        if not readable:
            continue
        asked = os.read(0, 1)
        if asked in (b"", b"K"):
            return
        if asked == b"T":
            child.send_signal(signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
