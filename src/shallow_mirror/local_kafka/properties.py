"""Pure: configuration of nodes with little memory, alone or several in a cluster."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

JVM_OPTIONS = (
    "-Xms256m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
    "-Djava.awt.headless=true",
)

SINGLE_NODE_ID = 1

_SMALL_NODE = {
    "default.replication.factor": "1",
    "min.insync.replicas": "1",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "log.cleaner.dedupe.buffer.size": "2097152",
    "num.network.threads": "2",
    "num.io.threads": "2",
    "background.threads": "2",
    "num.recovery.threads.per.data.dir": "1",
    "controlled.shutdown.enable": "false",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
}
_KRAFT = {
    "process.roles": "broker,controller",
    "node.id": str(SINGLE_NODE_ID),
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    # A killed broker comes back only when the session of its former life has ended (default 9 s).
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    # Records without content, twice a second, that only metrics need: a third of the CPU time of a cluster that does nothing.
    "metadata.max.idle.interval.ms": "0",
}
_ZOOKEEPER_TICK_MS = 500
_SINCE_4 = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


@dataclass(frozen=True, slots=True, eq=False)
class Listener:
    """One more listener of a node, beside PLAINTEXT.

    `protocol`: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL. `properties`: its own, without `listener.name.<name>.` in front.
    `advertised_port`: the port that clients receive, such as that of a proxy; None: the port of the listener.
    """

    name: str
    protocol: str
    properties: Mapping[str, str] = field(default_factory=dict)
    advertised_port: int | None = None


def has_kraft(version: str) -> bool:
    """Return whether the version runs as KRaft; otherwise the broker needs a ZooKeeper."""
    return _release(version) >= (3, 3)


def _is_before_4(version: str) -> bool:
    return _release(version) < (4, 0)


def _release(version: str) -> tuple[int, int]:
    major, minor, *_ = version.split(".")
    return int(major), int(minor)


def node_properties(
    version: str,
    port: int,
    metadata_port: int,
    log_dir: Path,
    changes: Mapping[str, str],
    listeners: Mapping[Listener, int] | None = None,
) -> dict[str, str]:
    """Return server properties; `changes` override every default.

    `metadata_port`: of the controller, or of ZooKeeper. `listeners`: more of them, and their ports.
    """
    own = _kraft_properties(version, port, metadata_port) if has_kraft(version) else _zk_properties(port, metadata_port)
    own |= {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}", "log.dirs": str(log_dir)}
    return {**_SMALL_NODE, **own, **_with_listeners(own, listeners or {}), **changes}


def _with_listeners(own: Mapping[str, str], listeners: Mapping[Listener, int]) -> dict[str, str]:
    if not listeners:
        return {}
    addresses = [f"{listener.name}://127.0.0.1:{port}" for listener, port in listeners.items()]
    advertised = [f"{listener.name}://127.0.0.1:{listener.advertised_port or port}" for listener, port in listeners.items()]
    protocols = [f"{listener.name}:{listener.protocol}" for listener in listeners]
    return {
        "listeners": ",".join([own["listeners"], *addresses]),
        "advertised.listeners": ",".join([own["advertised.listeners"], *advertised]),
        "listener.security.protocol.map": ",".join(
            [own.get("listener.security.protocol.map", "PLAINTEXT:PLAINTEXT"), *protocols]
        ),
    } | {
        f"listener.name.{listener.name.lower()}.{name}": value
        for listener in listeners
        for name, value in listener.properties.items()
    }


def _kraft_properties(version: str, port: int, controller_port: int) -> dict[str, str]:
    return {
        **_KRAFT,
        **({} if _is_before_4(version) else _SINCE_4),
        "controller.quorum.voters": f"{SINGLE_NODE_ID}@127.0.0.1:{controller_port}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
    }


def _zk_properties(port: int, zookeeper_port: int) -> dict[str, str]:
    return {
        "broker.id": str(SINGLE_NODE_ID),
        "zookeeper.connect": f"127.0.0.1:{zookeeper_port}",
        "zookeeper.session.timeout.ms": str(8 * _ZOOKEEPER_TICK_MS),
        "listeners": f"PLAINTEXT://127.0.0.1:{port}",
    }


def zookeeper_properties(port: int, data_dir: Path) -> dict[str, str]:
    """Return ZooKeeper's properties. Sessions last between 2 and 20 ticks."""
    return {
        "dataDir": str(data_dir),
        "clientPort": str(port),
        "clientPortAddress": "127.0.0.1",
        "tickTime": str(_ZOOKEEPER_TICK_MS),
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "dump",
    }


def member_properties(version: str, node_id: int, controller_ports: Mapping[int, int]) -> dict[str, str]:
    """Return changes for one of several nodes. `controller_ports`: of all of them, by node id.

    Everything is on as many nodes as there are, three at the most, and survives the loss of one.
    """
    replicas = min(3, len(controller_ports))
    in_sync = max(1, replicas - 1)
    counts = {
        "default.replication.factor": replicas,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": replicas,
        "offsets.topic.num.partitions": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "transaction.state.log.num.partitions": replicas,
    }
    if not _is_before_4(version):
        counts |= {name: replicas if name.endswith("factor") else in_sync for name in _SINCE_4}
    return {
        **{name: str(count) for name, count in counts.items()},
        "node.id": str(node_id),
        "controller.quorum.voters": ",".join(f"{node_id}@127.0.0.1:{port}" for node_id, port in sorted(controller_ports.items())),
        "controlled.shutdown.enable": "true",
        # Those that stay must not take a killed leader for alive for longer than a test waits.
        "controller.quorum.election.timeout.ms": "500",
        "controller.quorum.fetch.timeout.ms": "1000",
        "replica.lag.time.max.ms": "3000",
    }


def proxied_properties(port: int, controller_port: int, own_port: int, proxy_port: int) -> dict[str, str]:
    """Return changes for a node with one more listener, at `own_port`, that advertises `proxy_port`."""
    return {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},PROXIED://127.0.0.1:{own_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port},PROXIED://127.0.0.1:{proxy_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT",
    }


def properties_text(properties: Mapping[str, str]) -> str:
    """Return the lines of a Java properties file."""
    return "".join(f"{_escaped(key, ' :=#!')}={_escaped(value, '')}\n" for key, value in properties.items())


def _escaped(text: str, special: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    for character in special:
        escaped = escaped.replace(character, "\\" + character)
    leading = len(escaped) - len(escaped.lstrip(" "))
    return "\\ " * leading + escaped[leading:]


def logging_text(version: str) -> str:
    """Return the logging configuration: warnings to standard output (log4j 1 before Kafka 4, log4j 2 since)."""
    if _is_before_4(version):
        return (
            "log4j.rootLogger=WARN, out\n"
            "log4j.appender.out=org.apache.log4j.ConsoleAppender\n"
            "log4j.appender.out.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.out.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
            "log4j.logger.kafka.server.KafkaRaftServer=INFO\n"
            "log4j.logger.kafka.server.KafkaServer=INFO\n"
            # Says at every start that one ZooKeeper alone survives no failure.
            "log4j.logger.org.apache.zookeeper.server.quorum.QuorumPeerMain=ERROR\n"
        )
    return (
        "status=error\n"
        "appender.out.type=Console\n"
        "appender.out.name=out\n"
        "appender.out.layout.type=PatternLayout\n"
        "appender.out.layout.pattern=[%d] %p %m (%c)%n\n"
        "rootLogger.level=WARN\n"
        "rootLogger.appenderRef.out.ref=out\n"
        "logger.start.name=kafka.server.KafkaRaftServer\n"
        "logger.start.level=INFO\n"
    )


def logging_option(version: str, file: Path) -> str:
    return f"-Dlog4j.configuration={file.as_uri()}" if _is_before_4(version) else f"-Dlog4j2.configurationFile={file}"


def new_cluster_id() -> str:
    """Return 22 characters of URL-safe base64; a leading `-` would look like an option to StorageTool."""
    while (candidate := base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()).startswith("-"):
        pass
    return candidate
