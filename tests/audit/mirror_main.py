"""`shallow-mirror run` with arguments as given, and `tests.faults.without_spark` in Spark's place: what is proved of an audit does
not depend on Spark, and starts take a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shallow_mirror import cli

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@contextmanager
def mirror(conf: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """In a process of its own, until the block ends; standard error is a pipe."""
    command = [sys.executable, "-m", "tests.audit.mirror_main", "run", str(conf), *options]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def catch_up(conf: Path) -> None:
    with mirror(conf, "--available-now") as process:
        _, said = process.communicate(timeout=240)
        assert process.returncode == 0, said


if __name__ == "__main__":
    from tests.faults import without_spark

    instead = without_spark.Session(workers=2)
    cli._submitted_session = lambda: instead
    cli.main()
