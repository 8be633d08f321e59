"""`shallow-mirror run CONF` without Spark that kills itself at a point of the contract. Arguments: CONF POINT."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.mirror_runs import PATIENCE_S
from tests.verify.mirror_main import REPOSITORY

from shallow_mirror import cli
from shallow_mirror.commands import sessions
from shallow_mirror.config import MirrorConfig
from shallow_mirror.streaming.runs import Mirror


def lose_mirror(conf: Path, point: str) -> None:
    """Run a mirror that is killed at `point`; return when it is gone."""
    command = [sys.executable, "-m", "tests.matrix.lost_mirror", str(conf), point]
    ended = subprocess.run(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr


class KillAt:
    """Observer."""

    def __init__(self, point: str) -> None:
        self._point = point

    def __call__(self, point: str) -> None:
        if point == self._point:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    from tests.faults import without_spark

    instead = without_spark.Session(workers=2)
    sessions.submitted_session = lambda: instead
    conf, point = sys.argv[1:]
    Mirror.from_file = lambda path: Mirror(MirrorConfig.load(path), observer=KillAt(point))  # type: ignore[method-assign]
    sys.argv = ["shallow-mirror", "run", conf]
    cli.main()
