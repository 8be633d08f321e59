"""Faults of the network between the mirror and its two clusters, on single requests: every API, both moments, every harm."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fakes.raw_client import RawClient
from tests.faults.gate import PausedProcess
from tests.faults.proxy import Fault, FaultPlan, Harm, HeldPort, Moment, Proxy
from tests.faults.rounds import BETWEEN_MICRO_BATCHES, PATIENCE_S, RoundFailedError, Scene
from tests.faults.steps import DECIDED, SLOTS, Step

from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.server_process import start_together, stop_together

SOURCE, TARGET = "source", "target"

REQUEST_TIMEOUT_S = 2
CLIENT = {
    "request.timeout.ms": f"{REQUEST_TIMEOUT_S * 1000}",
    "socket.connection.setup.timeout.ms": f"{REQUEST_TIMEOUT_S * 1000}",
    "metadata.max.age.ms": "500",  # so that leaders are looked for in every micro-batch
}
"""The mirror's settings for both clusters."""

DELAYS_S = (0.5, REQUEST_TIMEOUT_S + 1)
"""One that is only slow, and one behind which nobody waits any more."""

FAR_DELAY_S = 0.02
"""In each direction: a target with which the driver prepares what it can for the tasks."""

_ASKED_BY_EVERY_SLOT = {"InitProducerId", "AddPartitionsToTxn", "Produce", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"}
APIS: Mapping[str, Sequence[str]] = {
    SOURCE: ("Metadata", "ListOffsets", "Fetch"),
    TARGET: (*sorted(_ASKED_BY_EVERY_SLOT), "ListOffsets", "Metadata", "FindCoordinator", "OffsetFetch"),
}


@dataclass(slots=True)
class Network:
    """Both clusters of a scene, each behind proxies; in the scene's `more` by this class's name."""

    clusters: Mapping[str, LocalKafkaCluster]
    rng: random.Random
    plans: Mapping[str, FaultPlan] = field(default_factory=lambda: {SOURCE: FaultPlan(), TARGET: FaultPlan()})
    proxies: dict[str, list[Proxy]] = field(default_factory=dict)

    @staticmethod
    def of(scene: Scene) -> Network:
        network = scene.more[Network.__name__]
        assert isinstance(network, Network)
        return network


@dataclass(frozen=True, slots=True)
class NetworkScene:
    """A mirror that comes by proxies, while writers and checker do not. A target of several brokers is replicated.

    `target_delay_s`: of everything between the mirror and the target, in each direction.
    """

    engine: str
    target_brokers: int = 1
    checks_meanwhile: bool = True
    groups: Mapping[str, Any] = field(default_factory=dict)
    keeps_offsets: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    """Of all brokers."""
    target_delay_s: float = 0.0

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        counts = {SOURCE: 1, TARGET: self.target_brokers}
        with ExitStack() as opened:
            ports = {side: [opened.enter_context(HeldPort()) for _ in range(count)] for side, count in counts.items()}
            clusters = {
                side: LocalKafkaCluster(
                    folder / side,
                    len(side_ports),
                    properties=self.properties,
                    proxies=[port.number for port in side_ports],
                )
                for side, side_ports in ports.items()
            }
            network = Network(clusters, random.Random(seed))
            opened.callback(stop_together, list(clusters.values()))
            start_together(list(clusters.values()))
            for side, cluster in clusters.items():
                made = [
                    Proxy(port, broker, network.plans[side])
                    for port, broker in zip(ports[side], cluster.proxied_ports, strict=True)
                ]
                network.proxies[side] = [opened.enter_context(proxy) for proxy in made]
            for proxy in network.proxies[TARGET]:
                proxy.delay(self.target_delay_s)
                proxy.delay_replies(self.target_delay_s)
            yield opened.enter_context(
                Scene(
                    folder / "mirror",
                    clusters[SOURCE].bootstrap,
                    clusters[TARGET].bootstrap,
                    name=name,
                    engine=self.engine,
                    groups=self.groups,
                    seed=seed,
                    checks_meanwhile=self.checks_meanwhile,
                    keeps_offsets=self.keeps_offsets,
                    client={
                        side: CLIENT | {"bootstrap.servers": cluster.proxied_bootstrap} for side, cluster in clusters.items()
                    },
                    more={Network.__name__: network},
                )
            )


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """Harms one request of the micro-batch that is about to begin."""

    side: str
    api: str
    harm: Harm
    moment: Moment

    @property
    def name(self) -> str:
        return f"network: {self.harm.name.lower().replace('_', '-')} {self.moment.value}"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        """Which of several requests it is, and how late a late one, is left to the scene's seed."""
        network = Network.of(scene)
        nth = network.rng.randint(1, SLOTS if self.api in _ASKED_BY_EVERY_SLOT else 1)
        fault = Fault(api=self.api, harm=self.harm, moment=self.moment, nth=nth, delay_s=network.rng.choice(DELAYS_S))
        network.plans[self.side].arm(*self.beforehand(), fault)

    def beforehand(self) -> Sequence[Fault]:
        """Return the faults that make the mirror send the request at all."""
        if self.api == "FindCoordinator":  # looked for when its partition is not known, or wrong
            return [Fault(api="InitProducerId", harm=Harm.CUT, moment=Moment.ARRIVING)]
        return []

    def repair(self, scene: Scene) -> None:
        """Wait until the request has been harmed."""
        plan = Network.of(scene).plans[self.side]
        if not plan.wait_until_met(PATIENCE_S):
            plan.disarm()
            raise RoundFailedError(f"{self.name}: no {self.api} came to the {self.side}:\n{scene.running().log()[-4000:]}")


class SearchForEvidence(NetworkFault):
    """Receipts are read where EndTxn does not tell whether a decided transaction was committed: each has been fenced."""

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        NetworkFault.inject(self, scene, paused)
        with RawClient(Network.of(scene).clusters[TARGET].nodes[0].bootstrap) as client:
            for slot in range(SLOTS):
                client.initialised(f"{scene.name}-{slot}")


def network_case(side: str, api: str, harm: Harm, moment: Moment) -> tuple[NetworkFault, Step]:
    if api == "OffsetFetch":
        return SearchForEvidence(side, api, harm, moment), Step(name=f"{api} to the {side}", point=DECIDED.point)
    return NetworkFault(side, api, harm, moment), Step(name=f"{api} to the {side}", point=BETWEEN_MICRO_BATCHES.point)


CASES = [
    network_case(side, api, harm, moment)
    for harm, moment in itertools.product(Harm, Moment)
    for side, apis in APIS.items()
    for api in apis
]
"""One of each."""
