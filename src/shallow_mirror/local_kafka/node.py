"""One real KRaft node of its own folder and ports, usually a cluster by itself. Runs on the driver, in tests and benchmarks."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from shallow_mirror.local_kafka import supervisor
from shallow_mirror.local_kafka.jars import KAFKA_VERSION, java_executable, kafka_jars
from shallow_mirror.local_kafka.ports import BrokerNotStarted, PortTaken, free_ports
from shallow_mirror.local_kafka.properties import (
    JVM_OPTIONS,
    SINGLE_NODE_ID,
    logging_option,
    logging_text,
    new_cluster_id,
    node_properties,
    properties_text,
)
from shallow_mirror.local_kafka.together import start_together, stop_together

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 20.0
PORT_ATTEMPTS = 5

_PORT_TAKEN = ("Address already in use", "BindException")
_log = logging.getLogger(__name__)


class LocalKafka:
    """Context manager: formats the folder when it is new, starts the broker, stops it at the end and keeps the folder.

    The broker is the child of a supervisor which kills it when this process ends in whatever way.
    `cluster_id`: what a new folder is formatted with; None: an id of its own.
    Raises ConfigError (no Java), JarFetchFailed, BrokerNotStarted.
    """

    def __init__(
        self,
        folder: Path,
        version: str = KAFKA_VERSION,
        *,
        properties: Mapping[str, str] | None = None,
        java_options: Sequence[str] = (),
        cluster_id: str | None = None,
        choose_ports: Callable[[int], Sequence[int]] = free_ports,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.folder, self.version = folder.absolute(), version
        self._properties, self._java_options = dict(properties or {}), tuple(java_options)
        self._choose_ports, self._clock, self._sleep = choose_ports, clock, sleep
        self._ports: tuple[int, int] | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._pid: int | None = None
        self._cluster_id, self._format_as = cluster_id, cluster_id
        self._was_ready = False

    def __enter__(self) -> Self:
        if not self.is_running():
            self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """`host:port`, the same after `restart`."""
        if self._ports is None:
            raise BrokerNotStarted(f"the broker in {self.folder} was never started")
        return f"127.0.0.1:{self._ports[0]}"

    @property
    def cluster_id(self) -> str:
        if self._cluster_id is None:
            raise BrokerNotStarted(f"the broker in {self.folder} was never started")
        return self._cluster_id

    @property
    def node_id(self) -> int:
        return int(self._properties.get("node.id", SINGLE_NODE_ID))

    @property
    def pid(self) -> int:
        """Process id of the broker's JVM."""
        if self._pid is None:
            raise BrokerNotStarted(f"the broker in {self.folder} does not run")
        return self._pid

    @property
    def log_file(self) -> Path:
        return self.folder / "broker.log"

    def is_running(self) -> bool:
        return self._supervisor is not None and self._supervisor.poll() is None

    def start(self) -> None:
        """Start and wait until the broker answers as the cluster of this folder; on new ports, unless it had some."""
        if self.is_running():
            raise BrokerNotStarted(f"the broker in {self.folder} runs already, as process {self._pid}")
        for _ in range(PORT_ATTEMPTS - 1):
            try:
                return self._start_once()
            except PortTaken:
                _log.info("the ports of the broker in %s were taken meanwhile; trying again", self.folder)
                self._sleep(0.2)
        self._start_once()

    def _start_once(self) -> None:
        fixed = self._ports if self._was_ready else None
        port, controller_port = fixed or self._choose_ports(2)
        self._ports = (port, controller_port)
        command = self._prepare(port, controller_port)
        try:
            self._launch(command)
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise
        _log.info("Kafka %s answers at %s (cluster id %s, pid %s)", self.version, self.bootstrap, self.cluster_id, self._pid)

    def _prepare(self, port: int, controller_port: int) -> list[str]:
        """Write the configuration, format a new folder; the command that runs the broker."""
        jars = kafka_jars(self.version)
        log_dir, config = self.folder / "data", self.folder / "server.properties"
        logging_config = self.folder / "logging.properties"
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = node_properties(self.version, port, controller_port, log_dir, self._properties)
        config.write_text(properties_text(properties), encoding="utf-8")
        logging_config.write_text(logging_text(self.version), encoding="utf-8")
        java = [java_executable(), *JVM_OPTIONS, logging_option(self.version, logging_config)]
        java += [*self._java_options, "-cp", f"{jars[0].parent}/*"]
        if not (log_dir / "meta.properties").is_file():
            self._format(
                [*java, "kafka.tools.StorageTool", "format", "-t", self._format_as or new_cluster_id(), "-c", str(config), "-g"]
            )
        return [*java, "kafka.Kafka", str(config)]

    def _format(self, command: Sequence[str]) -> None:
        with self.log_file.open("ab") as log:
            ended = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, timeout=START_TIMEOUT_S, check=False
            )
        if ended.returncode != 0:
            raise BrokerNotStarted(f"formatting {self.folder} failed:\n{self.log_tail()}")

    def _launch(self, command: Sequence[str]) -> None:
        self._cluster_id = formatted_cluster_id(self.folder / "data")
        watched = [sys.executable, "-I", "-S", supervisor.__file__, str(os.getpid()), str(self.log_file), *command]
        process = subprocess.Popen(watched, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        self._supervisor = process
        assert process.stdout is not None
        with process.stdout as said:
            line = said.readline()
        if not line:
            raise BrokerNotStarted(f"the supervisor of the broker in {self.folder} ended at once, see standard error")
        self._pid = int(line)

    def _wait_until_ready(self) -> None:
        started = self._clock()
        while self._clock() - started < START_TIMEOUT_S:
            if not self.is_running():
                raise self._ended_early()
            answering = self._answering_cluster_id()
            if answering == self.cluster_id:
                self._was_ready = True
                return
            if answering is not None:
                raise PortTaken(f"{self.bootstrap} is answered by another cluster, {answering}")
            self._sleep(0.05)
        raise BrokerNotStarted(f"the broker at {self.bootstrap} did not answer within {START_TIMEOUT_S} s:\n{self.log_tail()}")

    def _ended_early(self) -> BrokerNotStarted:
        tail = self.log_tail()
        kind = PortTaken if any(sign in tail for sign in _PORT_TAKEN) else BrokerNotStarted
        return kind(f"the broker in {self.folder} ended instead of answering at {self.bootstrap}. The end of its log:\n{tail}")

    def _answering_cluster_id(self) -> str | None:
        """Cluster id in the Metadata of whoever listens, None while nobody does or this node is not listed."""
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
        """SIGTERM, and SIGKILL when that takes longer than 20 s. No effect on a broker that does not run."""
        if self.is_running():
            self.resume()
        self._end(b"T", STOP_TIMEOUT_S)

    def kill(self) -> None:
        """SIGKILL, as a crash of the broker. No effect on a broker that does not run."""
        self._end(b"K", STOP_TIMEOUT_S)

    def restart(self) -> None:
        """Stop it if it runs, and start it on the same ports and folder."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing, as a machine that hangs. Raises BrokerNotStarted."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`, in whatever state the world is by then. Raises BrokerNotStarted."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, how: bytes, timeout_s: float) -> None:
        process, self._supervisor, self._pid = self._supervisor, None, None
        if process is None:
            return
        assert process.stdin is not None
        try:
            os.write(process.stdin.fileno(), how)
        except BrokenPipeError:
            _log.debug("the broker in %s had ended before it was asked to", self.folder)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _log.warning("the broker in %s did not stop within %s s and is killed", self.folder, timeout_s)
        process.stdin.close()
        process.wait()

    def log_tail(self, lines: int = 40) -> str:
        """The end of what the broker (all its starts) and the formatting wrote."""
        if not self.log_file.is_file():
            return ""
        return "\n".join(self.log_file.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def formatted_cluster_id(log_dir: Path) -> str:
    for line in (log_dir / "meta.properties").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition("=")
        if key == "cluster.id":
            return value.strip()
    raise BrokerNotStarted(f"{log_dir}/meta.properties names no cluster id")


def start_clusters(
    folder: Path,
    count: int,
    version: str = KAFKA_VERSION,
    *,
    properties: Mapping[str, str] | None = None,
    java_options: Sequence[str] = (),
) -> tuple[LocalKafka, ...]:
    """Start `count` clusters at the same time, in `folder`/cluster-1 and so on; all of them or, on an error, none."""
    kafka_jars(version)
    nodes = tuple(
        LocalKafka(folder / f"cluster-{number}", version, properties=properties, java_options=java_options)
        for number in range(1, count + 1)
    )
    start_together(nodes)
    return nodes


def stop_clusters(nodes: Sequence[LocalKafka]) -> None:
    """Stop them at the same time."""
    stop_together(nodes)
