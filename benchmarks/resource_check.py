"""Whether this machine has room for a comparison, said before anything starts."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from shallow_mirror.errors import ConfigError

_TARGET_COPIES = 2
"""The one that is written, and the one before it, whose files the broker may not have deleted yet."""

_GROWTH = 1.3
"""A copier that compresses again may write more than the source has."""

_BESIDE_BYTES = 1_000_000_000
"""Jars, logs, tables, what a Go program is built in."""

NEEDED_MEMORY_BYTES = 6_000_000_000
"""Two brokers with a heap of 1 GiB each, the largest peer with 2.7 GB."""


def needed_disk_bytes(gb: float) -> int:
    """One corpus lies on the disk at a time."""
    return int(gb * 1e9 * (1 + _TARGET_COPIES * _GROWTH)) + _BESIDE_BYTES


def room_problems(gb: float, free_disk_bytes: int, free_memory_bytes: int, where: Path) -> list[str]:
    """Pure: what there is too little of, and what to do."""
    problems = []
    if free_disk_bytes < needed_disk_bytes(gb):
        problems.append(
            f"not enough disk: {gb:g} GB a corpus need {needed_disk_bytes(gb) / 1e9:.1f} GB in {where}, "
            f"{free_disk_bytes / 1e9:.1f} GB are free: give a smaller --gb, or another --folder"
        )
    if free_memory_bytes < NEEDED_MEMORY_BYTES:
        problems.append(
            f"not enough memory: {NEEDED_MEMORY_BYTES / 1e9:.0f} GB are needed, {free_memory_bytes / 1e9:.1f} GB are free: "
            "end other programs"
        )
    return problems


def require_room(gb: float, where: Path) -> None:
    """Raise ConfigError where disk or memory does not suffice for `gb`."""
    problems = room_problems(gb, shutil.disk_usage(where).free, psutil.virtual_memory().available, where)
    if problems:
        raise ConfigError(problems)
