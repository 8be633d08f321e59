"""Brokers that are killed, restarted or hang, alone or one of three, and clusters that cannot be reached for a while."""

from __future__ import annotations

import enum
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.gate import PausedProcess
from tests.faults.network_faults import SOURCE, TARGET, Network
from tests.faults.rounds import BETWEEN_MICRO_BATCHES, PATIENCE_S, RoundFailedError, Scene
from tests.faults.steps import (
    ANSWERED,
    DECIDED,
    ENDED,
    IN_RECOVERY,
    INITIALISED,
    LAST_RECEIPT,
    PLANNED,
    PRODUCED,
    RETURNED,
    SETTLED,
    Step,
)

from shallow_mirror.config import MirrorConfig
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.operations.status import gather_status


class Blow(enum.Enum):
    KILL = "kill -9"
    STOP = "clean stop"
    PAUSE = "SIGSTOP"


class Wall(enum.Enum):
    REFUSE = "refuses connections"
    STALL = "accepts connections and answers nothing"


def _strike(node: LocalKafka, blow: Blow) -> None:
    {Blow.KILL: node.kill, Blow.STOP: node.stop, Blow.PAUSE: node.pause}[blow]()


def _raise_up(node: LocalKafka, blow: Blow) -> None:
    (node.resume if blow is Blow.PAUSE else node.start)()


@dataclass(frozen=True, slots=True)
class OnlyBroker:
    """The only broker of a side goes while the mirror stands at a step, and comes back while the mirror goes on."""

    side: str
    blow: Blow

    @property
    def name(self) -> str:
        return f"{self.blow.value} and restart of the {self.side}'s only broker"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        _strike(self._node(scene), self.blow)

    def repair(self, scene: Scene) -> None:
        _raise_up(self._node(scene), self.blow)

    def _node(self, scene: Scene) -> LocalKafka:
        return Network.of(scene).clusters[self.side].nodes[0]


@dataclass(slots=True)
class OneOfThree:
    """One node of three: leader of a third of the partitions and coordinator of some transactions. The mirror has to get on
    without it, which comes back after that; a hung one as a leader that has missed its successor's election."""

    side: str
    blow: Blow
    struck: int = 0

    @property
    def name(self) -> str:
        return f"{self.blow.value} of one of the {self.side}'s three brokers"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        network = Network.of(scene)
        self.struck = network.rng.randrange(len(network.clusters[self.side].nodes))
        _strike(network.clusters[self.side].nodes[self.struck], self.blow)

    def repair(self, scene: Scene) -> None:
        wait_for_progress(scene)
        _raise_up(Network.of(scene).clusters[self.side].nodes[self.struck], self.blow)


@dataclass(frozen=True, slots=True)
class Away:
    """A side cannot be reached for `seconds`. The mirror lives on, and status names what it waits for."""

    side: str
    wall: Wall
    seconds: float

    @property
    def name(self) -> str:
        return f"the {self.side} {self.wall.value} for {self.seconds:g} s"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        for proxy in Network.of(scene).proxies[self.side]:
            (proxy.refuse if self.wall is Wall.REFUSE else proxy.stall)()

    def repair(self, scene: Scene) -> None:
        since = time.monotonic()
        wait_for_word(scene, Network.of(scene).clusters[self.side].proxied_bootstrap)
        while time.monotonic() < since + self.seconds:
            _require_alive(scene)
            time.sleep(0.2)
        for proxy in Network.of(scene).proxies[self.side]:
            (proxy.accept if self.wall is Wall.REFUSE else proxy.flow)()


def wait_for_progress(scene: Scene) -> None:
    """Until a micro-batch that began from now on has ended. Raises RoundFailedError."""
    before = scene.gate.passed["TakeDecision"]
    wait_until(scene, "another micro-batch", lambda: scene.gate.passed["TakeDecision"] > before + 1)


def wait_for_word(scene: Scene, address: str) -> None:
    """Until status says that the mirror waits, and for whom. Raises RoundFailedError."""
    settings = MirrorConfig.load(scene.conf)
    wait_until(scene, f"a status that names {address}", lambda: address in (gather_status(settings).waiting_for or ""))


def wait_until(scene: Scene, what: str, condition: Callable[[], bool]) -> None:
    """Return when `condition` holds, for which the mirror has to live. Raises RoundFailedError, with `what` in its message."""
    give_up_at = time.monotonic() + PATIENCE_S
    while not condition():
        _require_alive(scene)
        if time.monotonic() > give_up_at:
            raise RoundFailedError(f"never came: {what}:\n{scene.running().log()[-4000:]}")
        time.sleep(0.1)


def _require_alive(scene: Scene) -> None:
    assert scene.mirror is not None
    if scene.mirror.exit_code is not None:
        raise RoundFailedError(f"the mirror ended with {scene.mirror.exit_code}:\n{scene.mirror.log()[-4000:]}")


IN_TASKS_AND_AFTER = (PLANNED, INITIALISED, PRODUCED, LAST_RECEIPT, ANSWERED, DECIDED, *ENDED, SETTLED, RETURNED)

ONLY_BROKER = [
    (OnlyBroker(side, blow), step)
    for side, blow, step in itertools.product((SOURCE, TARGET), (Blow.KILL, Blow.STOP), (*IN_TASKS_AND_AFTER, *IN_RECOVERY))
]
ONE_OF_THREE = [(OneOfThree(TARGET, blow), step) for blow, step in itertools.product(Blow, (*IN_TASKS_AND_AFTER, *IN_RECOVERY))]


def away(seconds: float) -> list[tuple[Away, Step]]:
    return [
        (Away(side, wall, seconds), step)
        for side, wall, step in itertools.product((SOURCE, TARGET), Wall, (BETWEEN_MICRO_BATCHES, PRODUCED, DECIDED))
    ]
