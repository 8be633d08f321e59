"""Driver: processes of Spark that went away: workers, which the next attempt survives, and the JVM, which ends the run; and
workers whose Python is not one that could run the mirror."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from shallow_mirror.errors import ConfigError, SparkLostError

_LOST_WORKER = re.compile(
    r"Python worker exited unexpectedly|Python worker failed to connect back|waiting for the Python worker to connect back"
    r"|ExecutorLostFailure"
)

_UNFIT_PYTHON = re.compile(r"ModuleNotFoundError: (No module named '[^']+')|\[PYTHON_VERSION_MISMATCH\]\s*([^\n]+)")


def lost_worker(text: str) -> str | None:
    """The line in which Spark says that a process of its own went away, which the next attempt may survive."""
    return next((line.strip() for line in text.splitlines() if _LOST_WORKER.search(line)), None)


def find_unfit_python(text: str) -> ConfigError | None:
    """What is wrong with the Python of Spark's workers, if that is what `text` tells."""
    found = _UNFIT_PYTHON.search(text)
    if found is None:
        return None
    return ConfigError(
        f"the Python of Spark's workers cannot run the mirror: {found[1] or found[2]}. Install shallow-mirror with the same "
        "version of Python on every node, and set PYSPARK_PYTHON (or spark.pyspark.python) to the path of that Python"
    )


@contextmanager
def raising_unfit_python() -> Iterator[None]:
    """Raises ConfigError where a call of Spark ended because its workers have another Python than the mirror needs."""
    try:
        yield
    except PySparkException as error:
        told = find_unfit_python(str(error))
        if told is None:
            raise
        raise told from error


@contextmanager
def raising_lost_jvm(spark_log: Path | None) -> Iterator[None]:
    """Raises SparkLostError where a call of Spark found nobody to answer. `spark_log`, of a session of ours, may hold the JVM's
    last words."""
    try:
        yield
    except (Py4JError, ConnectionError) as error:
        if not _says_that_nobody_answers(error):
            raise
        where = "" if spark_log is None else f" (its log: {spark_log})"
        raise SparkLostError(
            f"Spark's JVM went away: it was killed, or ran out of memory{where}. Nothing is lost: start the mirror again"
        ) from error


def _says_that_nobody_answers(error: Exception) -> bool:
    """Py4J has an error of its own for that, and one that is also raised for calls that Java refuses, which has a trace."""
    is_bare = type(error) is Py4JError and "Trace:" not in str(error)
    return is_bare or isinstance(error, Py4JNetworkError | ConnectionError)
