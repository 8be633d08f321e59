"""The console entry point in a process of its own, as `shallow-mirror` is, or in this one."""

from __future__ import annotations

import contextlib
import io
import logging
import signal
import subprocess
import sys
from typing import NamedTuple

from shallow_mirror import cli

_CODE = """
import atexit, sys
from shallow_mirror.cli import main
atexit.register(lambda: print([name for name in ("pandas", "pyspark", "confluent_kafka", "kafka.admin", "kafka.net") if name in sys.modules]))
main()
"""


class Ended(NamedTuple):
    """`slow_imports`: what takes long to import and was imported; empty if it ran in this process."""

    code: int
    lines: list[str]
    stderr: str
    slow_imports: str


def console(*arguments: str) -> Ended:
    command = [sys.executable, "-c", _CODE, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    *lines, imported = ended.stdout.splitlines()
    return Ended(ended.returncode, lines, ended.stderr, imported)


def console_here(*arguments: str) -> Ended:
    """Run a command in this process, without the CPU time of its imports. What it sets for a process is set back."""
    code: str | int | None = None
    log, on_sigterm = logging.getLogger(), signal.getsignal(signal.SIGTERM)
    handlers, level = log.handlers[:], log.level
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            cli.main(arguments)
        except SystemExit as end:
            code = end.code
        finally:
            signal.signal(signal.SIGTERM, on_sigterm)
            log.handlers[:] = handlers
            log.setLevel(level)
    assert code is None or isinstance(code, int), code
    return Ended(code or 0, out.getvalue().splitlines(), stderr.getvalue(), "")
