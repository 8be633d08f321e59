"""The console entry point in a process of its own, as `shallow-mirror` is."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

_CODE = """
import atexit, sys
from shallow_mirror.cli import main
atexit.register(lambda: print([name for name in ("pandas", "pyspark", "confluent_kafka", "kafka.admin", "kafka.net") if name in sys.modules]))
main()
"""


class Ended(NamedTuple):
    """`slow_imports`: what takes long to import and was imported."""

    code: int
    lines: list[str]
    stderr: str
    slow_imports: str


def console(*arguments: str) -> Ended:
    command = [sys.executable, "-c", _CODE, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    *lines, imported = ended.stdout.splitlines()
    return Ended(ended.returncode, lines, ended.stderr, imported)
