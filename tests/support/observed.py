"""A micro-batch as a mirror observes it."""

from __future__ import annotations

from shallow_mirror.checkpoints.logs.runs import MicroBatchObservation

OBSERVED = MicroBatchObservation(
    run_epoch=1,
    micro_batch=4,
    fetched_bytes=1000,
    size_bytes=900,
    batch_count=10,
    rebuilt_batch_count=2,
    record_count=50,
    dropped_batch_counts={"aborted": 3},
    duration_ms={"RunSlots": 12.34, "Total": 20.0},
    lag_offsets=None,
    settled_at_ms=5000,
)
