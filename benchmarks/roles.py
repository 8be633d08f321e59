"""Processes of a mirror by what they do, told by their command lines."""

from __future__ import annotations

from collections.abc import Iterator

import psutil

DRIVER, PLANNER, JVM, WORKERS, IDLE_DAEMONS = ROLES = ("driver", "planner", "JVM", "workers", "idle daemons")

_BY_COMMAND_LINE = (
    ("/bin/java", JVM),
    ("python_streaming_source_runner", PLANNER),
    ("shallow_mirror.streaming.spark.worker_daemon", WORKERS),
    ("pyspark.daemon", IDLE_DAEMONS),
)


def role(command_line: str) -> str:
    return next((name for part, name in _BY_COMMAND_LINE if part in command_line), DRIVER)


def processes_by_role(pid: int) -> Iterator[tuple[str, psutil.Process]]:
    """Of the process and all its descendants; one that ends meanwhile is left out."""
    root = psutil.Process(pid)
    for process in (root, *root.children(recursive=True)):
        try:
            yield role(" ".join(process.cmdline())), process
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
