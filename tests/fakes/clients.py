"""The package's client of a fake cluster, with a clock that only sleeping moves: back-offs take no time."""

from __future__ import annotations

from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.deadline import Deadline


class SleepingClock:
    """Seconds. Sockets still wait in real time."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.sleeps: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds

    def deadline(self, ms: float = 20_000) -> Deadline:
        return Deadline.after_ms(ms, self)


def client_of(fake: StrictCluster, clock: SleepingClock, **properties: object) -> Cluster:
    """Properties with `_` for `.`."""
    named = {name.replace("_", "."): value for name, value in properties.items()}
    config = ClientConfig.from_properties({"bootstrap.servers": fake.bootstrap, **named})
    return Cluster(config, clock=clock, sleep=clock.sleep, jitter=lambda: 1.0)
