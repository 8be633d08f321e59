"""`shallow-mirror run CONF` with `tests.faults.without_spark` in Spark's place: what is proved of an audit does not depend on
Spark, and starts take a second."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.mirror_runs import is_settled, positions, wait_for_run

from shallow_mirror import cli
from shallow_mirror.commands import sessions
from shallow_mirror.config import MirrorConfig
from shallow_mirror.operations.status import gather_status

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@contextmanager
def mirror(conf: Path) -> Iterator[subprocess.Popen[str]]:
    """In a process of its own, until the block ends; standard error is a pipe."""
    command = [sys.executable, "-m", "tests.verify.mirror_main", "run", str(conf)]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def catch_up(conf: Path) -> None:
    """Until all that the source shows now is copied and settled; a clean stop."""
    config = MirrorConfig.load(conf)
    with mirror(conf) as process:
        wait_for_run(process, "a map", lambda: positions(config))
        wait_for_run(process, "the end of the source", lambda: _has_caught_up(config))
        process.terminate()
        _, output = process.communicate(timeout=60)
        assert process.returncode == 0, output


def _has_caught_up(config: MirrorConfig) -> bool:
    partitions = gather_status(config).partitions
    return bool(partitions) and all(partition.lag_offsets == 0 for partition in partitions) and is_settled(config)


if __name__ == "__main__":
    from tests.faults import without_spark

    instead = without_spark.Session(workers=2)
    sessions.submitted_session = lambda: instead
    cli.main()
