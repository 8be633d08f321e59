"""Driver: what the mirror file says to the tasks of its slots, whichever command runs them."""

from __future__ import annotations

from shallow_mirror.config import MirrorConfig
from shallow_mirror.sinks.slot_task import Observer, SlotJob


def job_template(config: MirrorConfig, *, map_id: str, run_id: str, observer: Observer) -> SlotJob:
    """Without what belongs to one micro-batch: decision, routes, positions, ends, time."""
    return SlotJob(
        mirror=config.mirror,
        map_id=map_id,
        run_id=run_id,
        decision=0,
        source=config.source.client,
        target=config.target.client,
        routes={},
        positions={},
        epoch_ends={},
        target_ends={},
        isolation=config.read.isolation_level,
        fetch_bytes=config.read.fetch_bytes,
        in_flight_requests=config.write.in_flight_requests,
        in_flight_bytes=config.write.in_flight_bytes,
        max_segments=config.read.max_segments,
        transaction_timeout_ms=config.write.transaction_timeout_ms,
        time_left_ms=0.0,
        quarantine=config.write.quarantine_limits,
        observer=observer,
    )
