"""An archive of the classes of a broker's JVM (AppCDS). Who starts many brokers writes it once; all later starts use it.

Finding and verifying some six thousand classes is half of the CPU time in which a broker starts. Java maps the archive instead.
It checks on its own that the archive is of the same Java and the same jars, and starts without it if not.
"""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import time
from pathlib import Path

from shallow_mirror.local_kafka.jars import KAFKA_VERSION, java_executable, kafka_jars
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.shared_classes import archive_of

_WRITTEN_WITHIN_S = 120.0
"""Longer than a broker may take to stop."""
_log = logging.getLogger(__name__)


def write_broker_classes(folder: Path, version: str = KAFKA_VERSION) -> None:
    """Start a broker in `folder` and stop it, which writes the archive. No effect where there is one or Java cannot write one.

    Other processes that do the same wait for this one. Raises as `LocalKafka`, OSError (the cache folder).
    """
    archive = archive_of(java_executable(), kafka_jars(version))
    if archive is None or archive.is_file():
        return
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if archive.is_file():
            return
        written = archive.with_suffix(f".{os.getpid()}")
        try:
            # Java warns of every class that cannot be archived, such as generated ones.
            with LocalKafka(folder, version, java_options=["-Xlog:disable", f"-XX:ArchiveClassesAtExit={written}"]) as broker:
                written.unlink(missing_ok=True)  # of the program that formats the folder
                os.kill(broker.pid, signal.SIGTERM)
                give_up_at = time.monotonic() + _WRITTEN_WITHIN_S
                while broker.is_running() and time.monotonic() < give_up_at:
                    time.sleep(0.1)
            if written.is_file():
                written.replace(archive)
            else:
                _log.warning("Java has written no archive of a broker's classes: starts take as long as before")
        finally:
            written.unlink(missing_ok=True)
