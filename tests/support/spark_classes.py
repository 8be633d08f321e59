"""The archive of the classes of Spark's JVM, written once for a machine and a release of Spark.

With it a JVM starts in half the CPU time. A run writes it at its end, if it ends by itself: most runs of tests are killed, or end
with the process group of their test.
"""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

from shallow_mirror.local_kafka.jars import java_executable
from shallow_mirror.streaming.spark.class_archive import ClassArchive
from shallow_mirror.streaming.spark.economies import Economy, is_used

_FILL = Path(__file__).resolve().parents[2] / "conf" / "container" / "fill_cache.py"
_PROGRAM = "import runpy, sys; runpy.run_path(sys.argv[1])['archive_classes']()"


def write_spark_classes() -> None:
    """Write it unless it is there, this Java cannot write one, or it is switched off. Another process that writes it is waited for.

    Raises OSError (the cache folder), CalledProcessError.
    """
    from pyspark.find_spark_home import _find_spark_home
    from tests.support.mirror_runs import own_spark_environment

    classes = ClassArchive.of(java_executable(), Path(_find_spark_home(), "jars")) if is_used(Economy.CLASS_ARCHIVE) else None
    if classes is None or classes.is_written:
        return
    classes.path.parent.mkdir(parents=True, exist_ok=True)
    with (classes.path.parent / "spark-classes.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.is_written:
            subprocess.run(
                [sys.executable, "-c", _PROGRAM, str(_FILL)],
                env=own_spark_environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                check=True,
            )
