"""Executors of a local session: Spark's worker daemon, which has imported what tasks need before it forks them.

A worker that imports for itself takes most of a second and tens of megabytes for it, which its siblings share here.
"""

from __future__ import annotations

import gc

import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import shallow_mirror.sinks.slot_task
import shallow_mirror.streaming.mirror_ranges  # noqa: F401

if __name__ == "__main__":
    gc.collect()
    gc.freeze()
    manager()
