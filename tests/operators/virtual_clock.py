"""A clock that sleeping moves: waits of minutes take no time, and what waits for them goes on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth.connection_factory import ConnectionOpener
from shallow_mirror.broker.clients import BatchConsumer
from shallow_mirror.checkpoints.logs.runs import VerifyLog
from shallow_mirror.migration import plan_migration
from shallow_mirror.preflight import preflight_mirror, start_problems
from shallow_mirror.preflight.sample_reader import SampleReader
from shallow_mirror.sinks.kafka import KafkaSink, SingleSlot
from shallow_mirror.sinks.kafka.protocol import TxnPerformer
from shallow_mirror.sinks.kafka.targets.settings import PreservedSettings
from shallow_mirror.sinks.micro_batches import MicroBatchSink
from shallow_mirror.streaming.planning import SourceOffsets
from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
from shallow_mirror.streaming.runs.target_logs import LogFilling
from shallow_mirror.streaming.watch import query_target
from shallow_mirror.verify import ClusterReader, verify_mirror
from shallow_mirror.verify.mirror_verifier import MirrorVerifier
from shallow_mirror.verify.partition_reader import PartitionReader

_monotonic, _sleep, _time = time.monotonic, time.sleep, time.time

_WITH_DEFAULTS: tuple[type, ...] = (
    BatchConsumer,
    Cluster,
    ClusterReader,
    ConnectionOpener,
    KafkaSink,
    LogFilling,
    MicroBatchPlanner,
    MicroBatchSink,
    MirrorVerifier,
    PartitionReader,
    PreservedSettings,
    SampleReader,
    SingleSlot,
    SourceOffsets,
    TxnPerformer,
    VerifyLog,
)
"""Their clocks are default arguments, which were bound when the package was imported; so are those of these functions."""
_FUNCTIONS: tuple[Callable[..., object], ...] = (plan_migration, preflight_mirror, query_target, start_problems, verify_mirror)


class VirtualClock:
    def __init__(self) -> None:
        self.ahead_s = 0.0

    def monotonic(self) -> float:
        return _monotonic() + self.ahead_s

    def time(self) -> float:
        return _time() + self.ahead_s

    def now_ms(self) -> int:
        return int(self.time() * 1000)

    def sleep(self, seconds: float) -> None:
        self.ahead_s += seconds


@contextmanager
def virtual_clock(clock: VirtualClock) -> Iterator[None]:
    """Let everything that the package does in the block go by `clock`."""

    def ours(default: object) -> object:
        return clock.monotonic if default is _monotonic else clock.sleep if default is _sleep else default

    with pytest.MonkeyPatch.context() as patch:
        functions: list[Any] = [*(kind.__init__ for kind in _WITH_DEFAULTS), *_FUNCTIONS]  # type: ignore[misc]
        for function in functions:
            named = {name: ours(value) for name, value in (function.__kwdefaults__ or {}).items()}
            patch.setattr(function, "__kwdefaults__", named)
            patch.setattr(function, "__defaults__", tuple(ours(value) for value in function.__defaults__ or ()))
        for name in ("monotonic", "sleep", "time"):
            patch.setattr(time, name, getattr(clock, name))
        yield
