"""A source and a target of three brokers each, under load, that lose leaders of mirrored partitions and active controllers."""

from __future__ import annotations

import enum
import itertools
import json
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import AdminClient, ConfigResource, PartitionMetadata
from tests.faults.broker_faults import IN_TASKS_AND_AFTER, wait_for_progress, wait_until
from tests.faults.gate import PausedProcess
from tests.faults.network_faults import SOURCE, TARGET
from tests.faults.rounds import BETWEEN_MICRO_BATCHES, PATIENCE_S, RoundFailedError, Scene
from tests.faults.steps import IN_RECOVERY
from tests.faults.writers import WriteLoad

from shallow_mirror.config import DEFAULT_REQUEST_BYTES
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.server_process import start_together, stop_together

BROKERS = 3
MIN_INSYNC_REPLICAS = "2"
LEAST_BYTES_PER_S = 5_000_000
"""A round in which writers reach less says so."""

LOAD = WriteLoad(bytes_per_s=6_000_000, random_bytes=32 << 10, repeats=1)
"""Values that no codec makes smaller, so that as much passes the brokers and the mirror."""

_GROUPS = {"read": {"micro_batch_bytes": 32 << 20}, "write": {"request_bytes": DEFAULT_REQUEST_BYTES}}
_PROPERTIES = {"leader.imbalance.check.interval.seconds": "1"}
"""A broker that has started again leads its partitions again soon, not after Kafka's five minutes."""

_TIMEOUT_S = 60
_NO_LEADER = -1


class Role(enum.Enum):
    LEADER = "leader of a mirrored partition"
    CONTROLLER = "active controller"


@dataclass(frozen=True, slots=True)
class ReplicatedClusters:
    """Both clusters of a scene; in the scene's `more` by this class's name."""

    clusters: Mapping[str, LocalKafkaCluster]
    rng: random.Random

    @staticmethod
    def of(scene: Scene) -> ReplicatedClusters:
        replicated = scene.more[ReplicatedClusters.__name__]
        assert isinstance(replicated, ReplicatedClusters)
        return replicated

    def admin(self, side: str) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.clusters[side].bootstrap, "log_level": 0})

    def partitions(self, side: str, topics: Sequence[str] | None = None) -> list[PartitionMetadata]:
        """Return those of `topics`, by default of all topics, also of Kafka's own."""
        listed = self.admin(side).list_topics(timeout=_TIMEOUT_S).topics
        return [partition for topic in topics or listed for partition in listed[topic].partitions.values()]


@dataclass(frozen=True, slots=True)
class ThreeBrokerScene:
    """A mirror, writers and checker that use both clusters without a proxy, and client settings as they come."""

    engine: str
    load: WriteLoad = LOAD

    @contextmanager
    def __call__(self, folder: Path, name: str, seed: int) -> Iterator[Scene]:
        clusters = {
            # Six brokers under load leave a seventh start little of a small machine.
            side: LocalKafkaCluster(folder / side, BROKERS, properties=_PROPERTIES, start_timeout_s=PATIENCE_S)
            for side in (SOURCE, TARGET)
        }
        with ExitStack() as opened:
            opened.callback(stop_together, list(clusters.values()))
            start_together(list(clusters.values()))
            scene = Scene(
                folder / "mirror",
                clusters[SOURCE].bootstrap,
                clusters[TARGET].bootstrap,
                name=name,
                engine=self.engine,
                groups=_GROUPS,
                load=self.load,
                replication_factor=BROKERS,
                topic_configs={"min.insync.replicas": MIN_INSYNC_REPLICAS},
                seed=seed,
                more={ReplicatedClusters.__name__: ReplicatedClusters(clusters, random.Random(seed))},
            )
            opened.enter_context(scene)
            scene.reach(BETWEEN_MICRO_BATCHES)
            for side in (SOURCE, TARGET):
                _require_replicated(scene, side)
            yield scene


def _require_replicated(scene: Scene, side: str) -> None:
    """Raise AssertionError when a mirrored topic could lose acknowledged records with one broker, or has no leader."""
    replicated, topics = ReplicatedClusters.of(scene), list(scene.topics)
    replicas = {len(partition.replicas) for partition in replicated.partitions(side, topics)}
    assert replicas == {BROKERS}, f"replicas on the {side}: {replicas}"
    resources = [ConfigResource(ConfigResource.Type.TOPIC, topic) for topic in topics]
    admin = replicated.admin(side)  # futures fail when the client that returned them is collected
    described = admin.describe_configs(resources, request_timeout=_TIMEOUT_S)
    in_sync = {configs.result()["min.insync.replicas"].value for configs in described.values()}
    assert in_sync == {MIN_INSYNC_REPLICAS}, f"min.insync.replicas on the {side}: {in_sync}"


@dataclass(slots=True)
class KillOfThree:
    """SIGKILL to the broker of a side that has a role. When others have taken its roles, the mirror has to make progress with
    two; then the broker starts again.

    Ends when all three are in sync and every partition has its preferred leader, so that the next kill leaves two replicas
    as well, and each broker leads mirrored partitions.
    """

    side: str
    role: Role
    killed: LocalKafka | None = field(default=None, init=False)

    @property
    def name(self) -> str:
        return f"kill -9 and restart of the {self.side}'s {self.role.value}, three brokers on both sides"

    def inject(self, scene: Scene, paused: PausedProcess) -> None:
        replicated = ReplicatedClusters.of(scene)
        controller_id = active_controller(replicated.clusters[self.side])
        if self.role is Role.CONTROLLER:
            node_id = controller_id
        else:
            leaders = {partition.leader for partition in replicated.partitions(self.side, list(scene.topics))}
            node_id = replicated.rng.choice(sorted(leaders - {controller_id}))
        self.killed = next(node for node in replicated.clusters[self.side].nodes if node.node_id == node_id)
        self.killed.kill()

    def repair(self, scene: Scene) -> None:
        assert self.killed is not None
        replicated = ReplicatedClusters.of(scene)
        wait_until(scene, f"successors on the {self.side}", lambda: self._has_successors(replicated))
        wait_for_progress(scene)
        self.killed.start()
        wait_until(scene, f"three replicas in sync on the {self.side}", lambda: _are_in_sync(replicated.partitions(self.side)))
        wait_until(scene, f"preferred leaders on the {self.side}", lambda: _are_preferred(replicated.partitions(self.side)))

    def _has_successors(self, replicated: ReplicatedClusters) -> bool:
        """Whether others lead its partitions and the quorum."""
        assert self.killed is not None
        leaders = {partition.leader for partition in replicated.partitions(self.side)}
        leaders.add(active_controller(replicated.clusters[self.side]))
        return leaders.isdisjoint({self.killed.node_id, _NO_LEADER})


def active_controller(cluster: LocalKafkaCluster) -> int:
    """Return the node id that the quorum elected last. Metadata and DescribeCluster name any broker instead (KIP-590).

    Raises RoundFailedError when no node knows of one.
    """
    states = [json.loads(quorum_state.read_text(encoding="utf-8")) for quorum_state in _quorum_states(cluster)]
    elected = [(state["leaderEpoch"], state["leaderId"]) for state in states if state["leaderId"] >= 0]
    if not elected:
        raise RoundFailedError(f"no node of {cluster.folder} knows an active controller: {states}")
    return int(max(elected)[1])


def _quorum_states(cluster: LocalKafkaCluster) -> list[Path]:
    """Return each node's record of the last election in which it took part."""
    return [node.folder / "data" / "__cluster_metadata-0" / "quorum-state" for node in cluster.nodes]


def _are_in_sync(partitions: Sequence[PartitionMetadata]) -> bool:
    return all(len(partition.isrs) == BROKERS for partition in partitions)


def _are_preferred(partitions: Sequence[PartitionMetadata]) -> bool:
    return all(partition.leader == partition.replicas[0] for partition in partitions)


CASES = [
    (KillOfThree(side, role), step)
    for side, role, step in itertools.product((SOURCE, TARGET), Role, (*IN_TASKS_AND_AFTER, *IN_RECOVERY))
]
