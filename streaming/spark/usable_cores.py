"""Driver: how many cores this process may use: of a container, fewer than the machine has."""

from __future__ import annotations

import math
import os
from pathlib import Path, PurePosixPath


def usable_cores(root: Path = Path("/")) -> int:
    """Return the cores of the CPU affinity, or fewer if a control group limits the CPU time. `root`: of the file system."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    groups = control_groups(_read(root / "proc/self/cgroup"))
    files = (root / "sys/fs/cgroup" / group.relative_to("/") / "cpu.max" for group in groups)
    limits = [limit for file in files if (limit := cpu_limit(_read(file))) is not None]
    return max(1, min(affinity, *map(math.ceil, limits))) if limits else affinity


def control_groups(text: str) -> list[PurePosixPath]:
    """PURE. Return the control group (version 2) that /proc/self/cgroup names, and its parents; nothing without one.

    In a container the own group is usually shown as the root.
    """
    paths = [PurePosixPath(path) for line in text.splitlines() for number, _, path in [line.split(":", 2)] if number == "0"]
    return [group for path in paths for group in (path, *path.parents)]


def cpu_limit(text: str) -> float | None:
    """PURE. Return the cores of a `cpu.max`, which is a quota and a period in microseconds; None without a limit."""
    quota, _, period = text.strip().partition(" ")
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _read(file: Path) -> str:
    """Return a file of the kernel; nothing if it does not exist or may not be read: then nothing is known of limits."""
    try:
        return file.read_text(encoding="utf-8")
    except OSError:
        return ""
