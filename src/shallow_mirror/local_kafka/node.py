"""One real node of its own folder and ports, usually a cluster by itself. Runs on the driver, in tests and benchmarks."""

from __future__ import annotations

import logging
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from shallow_mirror.local_kafka.jars import KAFKA_VERSION, java_executable, kafka_jars
from shallow_mirror.local_kafka.ports import BrokerStartError, PortTakenError, free_ports
from shallow_mirror.local_kafka.properties import (
    JVM_OPTIONS,
    SINGLE_NODE_ID,
    Listener,
    has_kraft,
    logging_option,
    logging_text,
    new_cluster_id,
    node_properties,
    properties_text,
    zookeeper_properties,
)
from shallow_mirror.local_kafka.server_process import ServerProcess, start_together, stop_together
from shallow_mirror.local_kafka.shared_classes import options_with_archive

START_TIMEOUT_S = 90.0
PORT_ATTEMPTS = 5

_PORT_TAKEN = ("Address already in use", "BindException")
_ZOOKEEPER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_ZOOKEEPER_SESSIONS = "Sessions with Ephemerals"
_REGISTERED_BROKER = re.compile(r"^\s+/brokers/ids/", re.MULTILINE)
_log = logging.getLogger(__name__)


class LocalKafka:
    """Context manager: formats the folder when it is new, starts the broker, stops it at the end and keeps the folder.

    The broker is the child of a supervisor which kills it when this process ends in whatever way. Before Kafka 3.3 it comes
    with a ZooKeeper, which is stopped and killed, but not paused, together with it. `cluster_id`: of a new folder; None: an id
    of its own. `features`: levels that it is formatted with, such as `transaction.version` 0 to 2 on Kafka 4; otherwise the
    newest. Both need KRaft (3.3 and later). `listeners`: more of them, on ports of their own (`address_of`). Raises
    ConfigError (no Java), JarFetchError, BrokerStartError.
    """

    def __init__(
        self,
        folder: Path,
        version: str = KAFKA_VERSION,
        *,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        cluster_id: str | None = None,
        features: Mapping[str, int] | None = None,
        listeners: Sequence[Listener] = (),
        start_timeout_s: float = START_TIMEOUT_S,
        choose_ports: Callable[[int], Sequence[int]] = free_ports,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert has_kraft(version) or not (cluster_id or features), "without KRaft nothing is formatted"
        self.folder, self.version = folder.absolute(), version
        self._properties, self._java_options = dict(properties or {}), tuple(java_options)
        self._start_timeout_s = start_timeout_s
        self._choose_ports, self._clock, self._sleep = choose_ports, clock, sleep
        self._ports: tuple[int, ...] | None = None
        self._broker = ServerProcess(f"the broker in {self.folder}", self.log_file)
        self._zookeeper = None if has_kraft(version) else ServerProcess(f"the ZooKeeper in {self.folder}", self.log_file)
        self._cluster_id, self._format_as = cluster_id, cluster_id
        self._features, self._listeners = dict(features or {}), tuple(listeners)
        self._was_ready = False

    def __enter__(self) -> Self:
        if not self.is_running():
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """Return `host:port`, the same after `restart`."""
        if self._ports is None:
            raise BrokerStartError(f"the broker in {self.folder} was never started")
        return f"127.0.0.1:{self._ports[0]}"

    def address_of(self, listener: str) -> str:
        """Return `host:port` of the socket of one of `listeners`, by name, whatever it advertises."""
        if self._ports is None:
            raise BrokerStartError(f"the broker in {self.folder} was never started")
        return f"127.0.0.1:{self._ports[2 + [extra.name for extra in self._listeners].index(listener)]}"

    @property
    def cluster_id(self) -> str:
        if self._cluster_id is None:
            raise BrokerStartError(f"the broker in {self.folder} was never started")
        return self._cluster_id

    @property
    def node_id(self) -> int:
        return int(self._properties.get("node.id", SINGLE_NODE_ID))

    @property
    def pid(self) -> int:
        """Return the process id of the broker's JVM."""
        return self._broker.pid

    @property
    def log_file(self) -> Path:
        return self.folder / "broker.log"

    def is_running(self) -> bool:
        return self._broker.is_running()

    def start(self) -> None:
        """Start and wait until the broker answers as the cluster of this folder; on new ports, unless it had some."""
        if self.is_running():
            raise BrokerStartError(f"the broker in {self.folder} runs already, as process {self.pid}")
        for _ in range(PORT_ATTEMPTS - 1):
            try:
                return self._start_once()
            except PortTakenError:
                _log.info("the ports of the broker in %s were taken meanwhile; trying again", self.folder)
                self._sleep(0.2)
        self._start_once()

    def _start_once(self) -> None:
        fixed = self._ports if self._was_ready else None
        self._ports = tuple(fixed or self._choose_ports(2 + len(self._listeners)))
        port, metadata_port, *more = self._ports
        java = self._prepare(port, metadata_port, more)
        try:
            if self._zookeeper is not None:
                self._zookeeper.launch([*java, *_zookeeper_command(self.folder / "zookeeper", metadata_port)])
                self._wait_for(self._zookeeper, lambda: _is_zookeeper_ready(metadata_port))
            self._broker.launch([*java, "kafka.Kafka", str(self._config)])
            self._wait_for(self._broker, self._answers_as_itself)
        except BaseException:
            self.kill()
            raise
        self._was_ready = True
        _log.info("Kafka %s answers at %s (cluster id %s, pid %s)", self.version, self.bootstrap, self.cluster_id, self.pid)

    @property
    def _log_dir(self) -> Path:
        return self.folder / "data"

    @property
    def _temporary(self) -> Path:
        return self.folder / "tmp"

    @property
    def _config(self) -> Path:
        return self.folder / "server.properties"

    def _prepare(self, port: int, metadata_port: int, more: Sequence[int]) -> list[str]:
        """Write the configuration, format a new folder; return the command of all programs here, up to the main class."""
        jars = kafka_jars(self.version)
        logging_config = self.folder / "logging.properties"
        self.folder.mkdir(parents=True, exist_ok=True)
        listeners = dict(zip(self._listeners, more, strict=True))
        properties = node_properties(self.version, port, metadata_port, self._log_dir, self._properties, listeners)
        self._config.write_text(properties_text(properties), encoding="utf-8")
        logging_config.write_text(logging_text(self.version), encoding="utf-8")
        shutil.rmtree(self._temporary, ignore_errors=True)  # a killed process leaves the libraries it unpacked
        self._temporary.mkdir()
        executable = java_executable()
        java = [
            executable,
            *JVM_OPTIONS,
            *options_with_archive(executable, jars),
            logging_option(self.version, logging_config),
            f"-Djava.io.tmpdir={self._temporary}",
        ]
        java += [*self._java_options, "-cp", f"{jars[0].parent}/*"]
        if has_kraft(self.version) and not (self._log_dir / "meta.properties").is_file():
            self._format(java)
        return java

    def _format(self, java: Sequence[str]) -> None:
        command = [*java, "kafka.tools.StorageTool", "format", "-t", self._format_as or new_cluster_id(), "-c", str(self._config)]
        command += [option for name, level in self._features.items() for option in ("--feature", f"{name}={level}")]
        with self.log_file.open("ab") as log:
            ended = subprocess.run(
                [*command, "-g"], stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=self._start_timeout_s, check=False
            )
        if ended.returncode != 0:
            raise BrokerStartError(f"formatting {self.folder} failed:\n{self.log_tail()}")

    def _wait_for(self, process: ServerProcess, is_ready: Callable[[], bool]) -> None:
        started = self._clock()
        while self._clock() - started < self._start_timeout_s:
            if not process.is_running():
                raise self._ended_early(process)
            if is_ready():
                return
            self._sleep(0.05)
        raise BrokerStartError(f"{process.what} did not answer within {self._start_timeout_s} s:\n{self.log_tail()}")

    def _answers_as_itself(self) -> bool:
        """Return whether this node answers. Raises PortTakenError if another server does."""
        answering = self._answering_cluster_id()
        if answering is None or not (self._log_dir / "meta.properties").is_file():  # with ZooKeeper the broker writes it
            return False
        self._cluster_id = formatted_cluster_id(self._log_dir)
        if answering != self._cluster_id:
            raise PortTakenError(f"{self.bootstrap} is answered by another cluster, {answering}")
        return True

    def _ended_early(self, process: ServerProcess) -> BrokerStartError:
        tail = self.log_tail()
        kind = PortTakenError if any(sign in tail for sign in _PORT_TAKEN) else BrokerStartError
        return kind(f"{process.what} ended instead of answering. The end of its log:\n{tail}")

    def _answering_cluster_id(self) -> str | None:
        """Return the cluster id of the server that listens; None if there is none, or it does not list this node."""
        host, port = self.bootstrap.split(":")
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            return None
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 5000})
        try:
            metadata = admin.list_topics(timeout=2)
        except KafkaException:
            return None
        return str(metadata.cluster_id) if self.node_id in metadata.brokers else None

    def stop(self) -> None:
        """Send SIGTERM, and SIGKILL when that takes longer than 20 s. No effect on a broker that does not run."""
        self._broker.stop()
        if self._zookeeper is not None:
            self._zookeeper.stop()

    def kill(self) -> None:
        """Send SIGKILL, as a crash of the machine. No effect on a broker that does not run."""
        self._broker.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same ports and folder."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Send SIGSTOP: it keeps its connections and answers nothing, as a machine that hangs. Raises BrokerStartError."""
        self._broker.pause()

    def resume(self) -> None:
        """Send SIGCONT after `pause`. Raises BrokerStartError."""
        self._broker.resume()

    def log_tail(self, lines: int = 40) -> str:
        """Return the end of the output of the broker (all its starts) and of the formatting."""
        if not self.log_file.is_file():
            return ""
        return "\n".join(self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def formatted_cluster_id(log_dir: Path) -> str:
    for line in (log_dir / "meta.properties").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key == "cluster.id":
            return value.strip()
    raise BrokerStartError(f"{log_dir}/meta.properties names no cluster id")


def start_clusters(
    folder: Path,
    count: int,
    version: str = KAFKA_VERSION,
    *,
    properties: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
    listeners: Sequence[Sequence[Listener]] = (),
) -> tuple[LocalKafka, ...]:
    """Start `count` clusters at the same time, in `folder`/cluster-1 and so on; all of them or, on an error, none.

    `listeners`: more of them for each cluster; none if empty.
    """
    kafka_jars(version)
    assert len(listeners) in (0, count)
    nodes = tuple(
        LocalKafka(
            folder / f"cluster-{number}", version, properties=properties, java_options=java_options, listeners=own_listeners
        )
        for number, own_listeners in enumerate(listeners or [()] * count, start=1)
    )
    start_together(nodes)
    return nodes


def stop_clusters(nodes: Sequence[LocalKafka]) -> None:
    """Stop all at the same time."""
    stop_together(nodes)


def _zookeeper_command(folder: Path, port: int) -> list[str]:
    """Return the arguments of `java` for a ZooKeeper with its data in `folder`; write its configuration there."""
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "zookeeper.properties"
    config.write_text(properties_text(zookeeper_properties(port, folder / "data")), encoding="utf-8")
    return [_ZOOKEEPER_CLASS, str(config)]


def _is_zookeeper_ready(port: int) -> bool:
    """Return whether ZooKeeper answers and no broker is registered: a killed one is, until its session has ended."""
    dump = _ask_zookeeper(port, b"dump")
    return _ZOOKEEPER_SESSIONS in dump and not _REGISTERED_BROKER.search(dump)


def _ask_zookeeper(port: int, word: bytes) -> str:
    """Return the answer to a four-letter word, empty while there is none."""
    answer = bytearray()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
            connection.sendall(word)
            while piece := connection.recv(1 << 16):
                answer += piece
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")
