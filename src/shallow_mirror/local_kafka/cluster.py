"""A cluster of several real KRaft nodes, each broker and controller at once. Runs on the driver, in tests and benchmarks."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.jars import KAFKA_VERSION, jars_of, kafka_jar_set
from shallow_mirror.local_kafka.node import PORT_ATTEMPTS, START_TIMEOUT_S, LocalKafka, formatted_cluster_id
from shallow_mirror.local_kafka.ports import BrokerStartError, PortTakenError, free_ports
from shallow_mirror.local_kafka.properties import has_kraft, member_properties, new_cluster_id, proxied_properties
from shallow_mirror.local_kafka.server_process import start_together, stop_together

_log = logging.getLogger(__name__)


class LocalKafkaCluster:
    """Context manager, as `LocalKafka`. Single nodes are stopped, killed, paused and started again through `nodes`.

    `proxies`: a port for each node that clients of `proxied_bootstrap` connect to; the connections that arrive
    there are meant to end at the node's `proxied_ports`.
    Raises ConfigError (no Java, a version without KRaft), JarFetchError, BrokerStartError.
    """

    def __init__(
        self,
        folder: Path,
        brokers: int = 3,
        version: str = KAFKA_VERSION,
        *,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        proxies: Sequence[int] = (),
        start_timeout_s: float = START_TIMEOUT_S,
        choose_ports: Callable[[int], Sequence[int]] = free_ports,
    ) -> None:
        assert len(proxies) in (0, brokers)
        self.folder, self.version = folder.absolute(), version
        self._brokers, self._proxies, self._choose_ports = brokers, tuple(proxies), choose_ports
        self._properties, self._java_options = dict(properties or {}), tuple(java_options)
        self._start_timeout_s = start_timeout_s
        self.nodes: tuple[LocalKafka, ...] = ()
        self.proxied_ports: tuple[int, ...] = ()
        """The port behind each proxy; empty where there are none."""

    def __enter__(self) -> Self:
        if not self.nodes or not self.is_running():
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """Return all nodes, also those that do not run."""
        return ",".join(node.bootstrap for node in self.nodes)

    @property
    def proxied_bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self._proxies)

    @property
    def cluster_id(self) -> str:
        if not self.nodes:
            raise BrokerStartError(f"the cluster in {self.folder} was never started")
        return self.nodes[0].cluster_id

    def is_running(self) -> bool:
        """Return whether every node runs."""
        return bool(self.nodes) and all(node.is_running() for node in self.nodes)

    def start(self) -> None:
        """Start nodes that do not run and wait until every node takes part; on new ports at the first time only."""
        jar_set = kafka_jar_set(self.version)
        if not has_kraft(self.version):
            raise ConfigError(
                f"a cluster of several local brokers needs Kafka 3.3 or later; {self.version} runs as one broker only"
            )
        jars_of(jar_set)
        if self.nodes:
            return start_together([node for node in self.nodes if not node.is_running()])
        for _ in range(PORT_ATTEMPTS - 1):
            try:
                return self._start_first()
            except PortTakenError:
                _log.info("a port of the cluster in %s was taken meanwhile; trying again", self.folder)
        self._start_first()

    def _start_first(self) -> None:
        ports = iter(self._choose_ports(self._brokers * 3))
        chosen = {node_id: (next(ports), next(ports), next(ports)) for node_id in range(1, self._brokers + 1)}
        # A folder that was used before keeps its cluster id.
        logs = [self._folder_of(node_id) / "data" for node_id in chosen]
        kept_ids = (formatted_cluster_id(log) for log in logs if (log / "meta.properties").is_file())
        cluster_id = next(kept_ids, None) or new_cluster_id()
        nodes = [self._node(node_id, chosen, cluster_id) for node_id in chosen]
        start_together(nodes)
        self.nodes = tuple(nodes)
        self.proxied_ports = tuple(proxied for _, _, proxied in chosen.values()) if self._proxies else ()

    def _node(self, node_id: int, chosen: Mapping[int, tuple[int, int, int]], cluster_id: str) -> LocalKafka:
        port, controller_port, proxied_port = chosen[node_id]
        properties = member_properties(self.version, node_id, {member_id: ports[1] for member_id, ports in chosen.items()})
        if self._proxies:
            properties |= proxied_properties(port, controller_port, proxied_port, self._proxies[node_id - 1])
        return LocalKafka(
            self._folder_of(node_id),
            self.version,
            properties=properties | self._properties,
            java_options=self._java_options,
            cluster_id=cluster_id,
            start_timeout_s=self._start_timeout_s,
            choose_ports=lambda _: (port, controller_port),
        )

    def _folder_of(self, node_id: int) -> Path:
        return self.folder / f"node-{node_id}"

    def stop(self) -> None:
        """Stop all nodes at the same time; kill those that cannot shut down cleanly because the others have stopped."""
        stop_together(self.nodes)

    def kill(self) -> None:
        for node in self.nodes:
            node.kill()

    def log_tail(self, lines: int = 40) -> str:
        return "\n".join(f"node {node.node_id}:\n{node.log_tail(lines)}" for node in self.nodes)
