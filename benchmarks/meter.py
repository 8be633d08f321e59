"""Looks at a copy from outside while it runs: CPU and memory of process trees, size of the target's log."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import psutil

from benchmarks.window import Sample

_EVERY_S = 0.25
_MEMORY_EVERY = 4
"""Memory is looked at in one sample of so many: the kernel walks all pages for it."""


def pss_bytes(process: psutil.Process) -> int:
    """Shared pages in proportion; where the system does not know them (macOS), those of each process alone.

    Raises NoSuchProcess, AccessDenied.
    """
    info = process.memory_full_info()
    return int(getattr(info, "pss", info.uss))


class ProcessTree:
    """A process and its descendants, ended ones included as they were when they were last seen."""

    def __init__(self, pid: int) -> None:
        self._root = psutil.Process(pid)
        self._cpu_s: dict[tuple[int, float], float] = {}

    def cpu_s(self) -> float:
        for process in self._alive():
            try:
                times = process.cpu_times()
                self._cpu_s[process.pid, process.create_time()] = times.user + times.system
            except psutil.NoSuchProcess:
                continue
        return sum(self._cpu_s.values())

    def pss_bytes(self) -> int:
        total = 0
        for process in self._alive():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += pss_bytes(process)
        return total

    def _alive(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


class Meter(threading.Thread):
    """Samples until the block ends; an error of a look is raised there."""

    def __init__(self, copier: int, source_broker: int, target_broker: int, target_bytes: Callable[[], int]) -> None:
        super().__init__(name="meter", daemon=True)
        self._copier, self._target_bytes = ProcessTree(copier), target_bytes
        self._source, self._target = ProcessTree(source_broker), ProcessTree(target_broker)
        self._over = threading.Event()
        self.samples: list[Sample] = []

    def __enter__(self) -> Meter:
        self._sample()
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self.join()

    @property
    def last(self) -> Sample:
        return self.samples[-1]

    def run(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._sample()

    def _sample(self) -> None:
        pss_bytes = self._copier.pss_bytes() if len(self.samples) % _MEMORY_EVERY == 0 else 0
        sample = Sample(
            at=time.time(),
            copier_cpu_s=self._copier.cpu_s(),
            source_broker_cpu_s=self._source.cpu_s(),
            target_broker_cpu_s=self._target.cpu_s(),
            target_bytes=self._target_bytes(),
            pss_bytes=pss_bytes,
        )
        self.samples.append(sample)
