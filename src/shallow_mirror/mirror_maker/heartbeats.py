"""Driver: threads beside a running mirror that write heartbeats as MirrorMaker 2 does (`heartbeats.interval`), one a cluster.

Tools that watch MirrorMaker 2 keep working: the topic, its settings, keys, values and timestamps are the same. A heartbeat that
fails is reported, and the next one follows; it never ends the mirror.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Literal

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import TopicSpec, ensure_topics
from shallow_mirror.broker.produce import ProducePipeline
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind, log_problem
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.mirror_maker.running.internal_records import heartbeat_key, heartbeat_value
from shallow_mirror.pass_thread import REQUEST_S, Passes, PassThread
from shallow_mirror.routing import HEARTBEATS
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire import build_batch
from shallow_mirror.wire.records import build_record

REMEDY = "do what the message says, if it asks for something; the next heartbeat follows automatically"

_PLACE = TopicPartition(HEARTBEATS, 0)
_SETTINGS = {"cleanup.policy": "compact"}
"""With one partition, as MirrorMaker 2 creates its internal topics."""
_IN_FLIGHT_BYTES = 1 << 16


class HeartbeatPasses:
    """Write one heartbeat per pass. The topic is created before the first one, unless it exists.

    At the target it is one of this flow. At the source it is one of the opposite flow, with which MirrorMaker 2 lets a flow be
    watched: the copy of that topic at the target shows that records arrive, and how late.
    """

    def __init__(self, config: MirrorConfig, side: Literal["source", "target"] = "target") -> None:
        here, other = (config.target, config.source) if side == "target" else (config.source, config.target)
        self._cluster, self._key = Cluster(here.client), heartbeat_key(other.alias, here.alias)
        self._spec = TopicSpec(HEARTBEATS, 1, config.topics.replication_factor, _SETTINGS)
        self._is_created = False

    def run_pass(self, now: datetime) -> datetime:
        """Write a heartbeat. Raises MirrorError; then it may have been written."""
        deadline = Deadline.after_ms(REQUEST_S * 1000, time.monotonic)
        if not self._is_created:
            ensure_topics(self._cluster, [self._spec], deadline)
            self._cluster.require_partitions([_PLACE], deadline)
            self._is_created = True
        pipeline = ProducePipeline(self._cluster, None, in_flight_requests=1, in_flight_bytes=_IN_FLIGHT_BYTES, deadline=deadline)
        pipeline.produce_all({_PLACE: [memoryview(bytearray(heartbeat_batch(self._key, int(now.timestamp() * 1000))))]})
        return now

    def close(self) -> None:
        self._cluster.close()


class Heartbeats(PassThread[datetime]):
    """`where`: the cluster, in messages."""

    def __init__(
        self,
        where: str,
        interval_s: float,
        open_passes: Callable[[], Passes[datetime]],
        *,
        report: Callable[[Problem, int], None] = log_problem,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(
            "heartbeats",
            interval_s,
            now,
            abandoned="heartbeats: the last one did not end within %.0f s and was abandoned",
            recovered=f"heartbeats: written to the {where} again",
        )
        self._where = where
        self._open_passes = open_passes
        self._report = report

    def open_passes(self) -> Passes[datetime]:
        return self._open_passes()

    def on_failure(self, error: Exception, problem: str, now: datetime, level: int) -> None:
        text = f"heartbeats: not written to the {self._where}: {problem}"
        self._report(Problem(kind=ProblemKind.HEARTBEAT, text=text, remedy=REMEDY, error_name=type(error).__name__), level)


@contextmanager
def heartbeats(config: MirrorConfig, interval_s: float, *, report: Callable[[Problem, int], None]) -> Iterator[None]:
    """Run the threads of a mirror for the block."""
    names = {"target": config.target_cluster_name, "source": config.source_cluster_name}
    with ExitStack() as threads:
        for side in config.heartbeats.sides:
            passes = partial(HeartbeatPasses, config, side)
            threads.enter_context(Heartbeats(names[side], interval_s, passes, report=report))
        yield


def heartbeat_batch(key: bytes, timestamp_ms: int) -> bytes:
    """Return a batch with one heartbeat, which has the timestamp of its value."""
    return build_batch(
        build_record(key, heartbeat_value(timestamp_ms)),
        attributes=0,
        base_timestamp=timestamp_ms,
        max_timestamp=timestamp_ms,
        records_count=1,
        last_offset_delta=0,
    )
