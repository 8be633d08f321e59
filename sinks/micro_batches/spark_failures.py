"""Driver: failures of Spark's own processes, by the text of its errors.

After a lost worker the next attempt may succeed. A lost JVM ends the run, and so does a Python of the workers that cannot run
the mirror.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import PySparkException

from shallow_mirror.errors import ConfigError, MirrorError, SparkLostError
from shallow_mirror.spark_connect import lost_server

_LOST_WORKER = re.compile(
    r"Python worker exited unexpectedly|Python worker failed to connect back|waiting for the Python worker to connect back"
    r"|ExecutorLostFailure"
)

_UNFIT_PYTHON = re.compile(r"ModuleNotFoundError: (No module named '[^']+')|\[PYTHON_VERSION_MISMATCH\]\s*([^\n]+)")

_FULL, _READ_ONLY = "No space left on device", "Read-only file system"

_UNWRITABLE: Mapping[str, tuple[type[MirrorError], str]] = {
    _FULL: (MirrorError, "free space there"),
    "Disk quota exceeded": (MirrorError, "raise the quota, or free space there"),
    _READ_ONLY: (ConfigError, "make it writable, or name another folder"),
    "Permission denied": (ConfigError, "grant this user access, or name another folder"),
    "Mkdirs failed to create": (ConfigError, "grant this user access, or name another folder"),
}
"""Error and remedy, by Java's message about a file that cannot be written. A full disk is no ConfigError."""
_NOT_MADE = re.compile(r"mkdir of file:(/[^\n]*?) failed")


def find_unwritable_folder(text: str, folder: str) -> MirrorError | None:
    """Return the folder that could not be written, and the reason, if `text` reports that."""
    sign = next((sign for sign in _UNWRITABLE if sign in text), None)
    if sign is None:
        return _folder_not_made(text, folder)
    return _unwritable(folder, sign, sign)


def _folder_not_made(text: str, folder: str) -> MirrorError | None:
    """Return as `find_unwritable_folder` if Hadoop did not make a folder. It does not say why: the file system does."""
    not_made = _NOT_MADE.search(text)
    if not_made is None:
        return None
    existing = next(parent for parent in Path(not_made[1]).parents if parent.exists())
    # Also root may not write where the file system is mounted read-only.
    sign = _FULL if os.access(existing, os.W_OK) else _READ_ONLY
    return _unwritable(folder, sign, f"mkdir of {not_made[1]} failed")


def _unwritable(folder: str, sign: str, reason: str) -> MirrorError:
    kind, remedy = _UNWRITABLE[sign]
    return kind(
        f"Spark cannot write to {folder} ({reason}): {remedy}, then start again. Nothing is lost: what was copied is "
        "in the tables"
    )


@contextmanager
def raising_unwritable_folder(folder: str) -> Iterator[None]:
    """Raise ConfigError or MirrorError if a call of Spark ended because files in `folder` cannot be written."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        unwritable = find_unwritable_folder(str(error), folder)
        if unwritable is None:
            raise
        raise unwritable from error


def lost_worker(text: str) -> str | None:
    """Return the line in which Spark reports that a worker or executor was lost, or None."""
    return next((line.strip() for line in text.splitlines() if _LOST_WORKER.search(line)), None)


def find_unfit_python(text: str) -> ConfigError | None:
    """Return the problem of the Python of Spark's workers, if `text` reports one."""
    match = _UNFIT_PYTHON.search(text)
    if match is None:
        return None
    return ConfigError(
        f"the Python of Spark's workers cannot run the tasks: {match[1] or match[2]}. Install shallow-mirror with the same "
        "version of Python on every node, and set PYSPARK_PYTHON (or spark.pyspark.python) to the path of that Python"
    )


@contextmanager
def raising_unfit_python() -> Iterator[None]:
    """Raise ConfigError if a call of Spark ended because its workers have another Python than the mirror needs."""
    try:
        yield
    except PySparkException as error:
        unfit = find_unfit_python(str(error))
        if unfit is None:
            raise
        raise unfit from error


@contextmanager
def raising_lost_jvm(spark_log: Path | None) -> Iterator[None]:
    """Raise SparkLostError if Spark does not answer a call. `spark_log`, of a session of ours, may hold the cause."""
    try:
        yield
    except PySparkException as error:
        lost = lost_server(error)
        if lost is None:
            raise
        raise lost from error
    except (Py4JError, ConnectionError) as error:
        # Py4JError is also raised for calls that Java refuses: those have a trace.
        is_bare = type(error) is Py4JError and "Trace:" not in str(error)
        if not is_bare and not isinstance(error, Py4JNetworkError | ConnectionError):
            raise
        where = "" if spark_log is None else f" (its log: {spark_log})"
        raise SparkLostError(
            f"Spark's JVM exited: it was killed, or ran out of memory{where}. Nothing is lost: start again"
        ) from error
