"""Driver: the command `local-kafka`: real brokers in the foreground until Ctrl-C."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FrameType

import typer

from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.cluster import LocalKafkaCluster
from shallow_mirror.local_kafka.jars import kafka_jars
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.ports import BrokerStartError, KeptPorts
from shallow_mirror.local_kafka.server_process import start_together, stop_together

_POLL_S = 0.5


def run_local_kafka(clusters: int, version: str, folder: Path | None, brokers: int = 1) -> None:
    """Start the clusters of so many brokers each, print their addresses on standard output, return after Ctrl-C or SIGTERM.

    `folder` is kept and can be started again, on the same ports if they are free; `None` is a temporary folder which is
    deleted at the end. Raises as LocalKafka, and BrokerStartError when a broker ends by itself.
    """
    if clusters < 1:
        raise ConfigError(f"local-kafka needs at least one cluster, not {clusters}")
    with _stop_on_signals() as asked_to_stop, _folder(folder) as chosen, contextlib.suppress(KeyboardInterrupt):
        kafka_jars(version)
        folders = [chosen / f"cluster-{number}" for number in range(1, clusters + 1)]
        ports = [KeptPorts(cluster_folder / "ports") for cluster_folder in folders]
        kafka_clusters = [
            _cluster(cluster_folder, version, brokers, kept.choose) for cluster_folder, kept in zip(folders, ports, strict=True)
        ]
        start_together(kafka_clusters)
        try:
            for kept in ports:
                kept.keep()
            _announce(kafka_clusters, chosen, kept=folder is not None)
            _wait(kafka_clusters, asked_to_stop)
        finally:
            typer.echo("stopping", err=True)
            stop_together(kafka_clusters)


def _cluster(
    folder: Path, version: str, brokers: int, choose_ports: Callable[[int], Sequence[int]]
) -> LocalKafka | LocalKafkaCluster:
    if brokers == 1:
        return LocalKafka(folder, version, choose_ports=choose_ports)
    return LocalKafkaCluster(folder, brokers, version, choose_ports=choose_ports)


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[threading.Event]:
    """Set an event on the first Ctrl-C or SIGTERM, and interrupt the current work; later signals have no effect."""
    asked_to_stop = threading.Event()

    def stop(number: int, frame: FrameType | None) -> None:
        if not asked_to_stop.is_set():
            asked_to_stop.set()
            raise KeyboardInterrupt

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked_to_stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        yield folder.absolute()
        return
    temporary = Path(tempfile.mkdtemp(prefix="shallow-mirror-kafka-"))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary)


def _announce(clusters: Sequence[LocalKafka | LocalKafkaCluster], folder: Path, *, kept: bool) -> None:
    for number, cluster in enumerate(clusters, start=1):
        typer.echo(f"cluster {number}: {cluster.bootstrap}  (Kafka {cluster.version}, cluster id {cluster.cluster_id})")
    typer.echo(f"data in {folder}, {'kept' if kept else 'deleted'} at the end; Ctrl-C stops", err=True)


def _wait(clusters: Sequence[LocalKafka | LocalKafkaCluster], asked_to_stop: threading.Event) -> None:
    while not asked_to_stop.wait(_POLL_S):
        for cluster in clusters:
            if not cluster.is_running():
                raise BrokerStartError(f"the broker at {cluster.bootstrap} exited. The end of its log:\n{cluster.log_tail()}")
