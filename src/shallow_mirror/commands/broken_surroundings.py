"""Errors of the machine, of packages and of Spark, as one line with what to do, instead of a traceback."""

from __future__ import annotations

import errno
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from shallow_mirror.errors import ConfigError, MirrorError, SparkLostError

_log = logging.getLogger(__name__)

_EXTRAS = {
    "pyspark": "local",
    "py4j": "local",
    "delta": "local",
    "confluent_kafka": "local",
    "lz4": "rebuild",
    "zstandard": "rebuild",
    "cramjam": "rebuild",
    "prometheus_client": "metrics",
}
"""Which extra of this package installs a module."""

_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def explaining_surroundings() -> Iterator[None]:
    """Raise ConfigError where a package or the right to a file is missing, MirrorError for other errors of the machine."""
    try:
        yield
    except (ImportError, OSError) as error:
        _log.debug("what ended the command:", exc_info=True)
        raise ConfigError(_of_package(error)) if isinstance(error, ImportError) else _of_file(error) from error
    except _spark_errors() as error:
        _log.debug("what ended the command:", exc_info=True)
        raise _of_spark(str(error)) from error


def _of_package(error: ImportError) -> str:
    package = (error.name or "").partition(".")[0]
    extra = _EXTRAS.get(package)
    if extra is None:
        return f"{error}: a package is missing or too old: pip install --upgrade shallow-mirror"
    problem = f"{package} is not installed" if error.name == package else f"the installed {package} has no {error.name}: {error}"
    return f"{problem}; this needs the versions that pip install 'shallow-mirror[{extra}]' installs"


def _of_file(error: OSError) -> MirrorError:
    name = "" if error.filename is None else f" {error.filename}"
    text = error.strerror or str(error)
    if error.errno in _DISK_FULL:
        return MirrorError(f"the disk is full ({text}{name}): free space there, then start again")
    if error.errno in _NOT_WRITABLE:
        return ConfigError(f"no access to{name or ' a file'} ({text}): grant this user access, or name another folder")
    return MirrorError(f"{text}{name}: correct that, then start again")


def _spark_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of Spark's libraries, where they were imported: evaluated when an exception is matched."""
    found = []
    for module, name in (("py4j.protocol", "Py4JError"), ("pyspark.errors", "PySparkException")):
        if module in sys.modules:
            found.append(getattr(sys.modules[module], name))
    return tuple(found)


def _of_spark(text: str) -> MirrorError:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    from shallow_mirror.sinks.micro_batches import find_unwritable_folder  # imports PySpark

    unwritable = find_unwritable_folder(text, "a folder of its own (the checkpoint, its log, or temporary files)")
    if unwritable is not None:
        return unwritable
    # Py4J puts its own sentence in front of the line that names the exception of Java.
    cause = next((line for line in lines if "Exception" in line or "Error:" in line), lines[0] if lines else "no message")
    return SparkLostError(f"Spark ended a call with an error: {cause}: its log says more; start again")
