"""MirrorMaker 2 of Kafka 4.3.0: its source connector in a Connect worker of its own, at-least-once or exactly once.

Exactly once needs Connect's distributed mode, so both run in it. Heartbeats, checkpoints and the copying of topic settings
and rights are other connectors or switched off: what is measured is the copying of records. Every setting is in this file.
"""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request

from benchmarks.link import SIDES
from benchmarks.peers.peer import Job, Peer, PeerFailedError, log_tail, started
from shallow_mirror.local_kafka.jars import CONNECT_JAR_SET, MIRROR_MAKER_VERSION, jars_of, java_executable
from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.local_kafka.properties import logging_option, logging_text, properties_text

TASKS = 2
"""As many as cores; each has two partitions."""

JVM = ("-Xms256m", "-Xmx2g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35")
"""As Kafka's own scripts start a Connect worker."""

CONSUMER = {
    "isolation.level": "read_committed",
    "max.poll.records": "500",
    "fetch.max.bytes": "52428800",
    "max.partition.fetch.bytes": "4194304",
    "receive.buffer.bytes": "1048576",
    "auto.offset.reset": "earliest",
}
PRODUCER = {
    "batch.size": "1000000",
    "linger.ms": "100",
    "buffer.memory": "67108864",
    "max.request.size": "10485760",
    "send.buffer.bytes": "1048576",
    "acks": "all",
    "max.in.flight.requests.per.connection": "5",
}
"""And the codec of the source."""

EXACTLY_ONCE = {
    "exactly.once.support": "required",
    "transaction.boundary": "interval",
    "transaction.boundary.interval.ms": "2000",
}
"""A transaction every two seconds, as the default trigger of shallow-mirror; Connect's default is one for each poll."""

WORKER_CLIENTS = ("", "producer.", "consumer.", "admin.")
"""A worker passes the settings of its own connections on to none of its connectors' clients."""

_BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
_READY_WITHIN_S = 90.0


class MirrorMaker2(Peer):
    ends_itself = False

    def __init__(self, *, exactly_once: bool) -> None:
        self.name = "mirrormaker2-exactly-once" if exactly_once else "mirrormaker2"
        self._exactly_once = exactly_once
        self._port = 0

    def prepare(self) -> None:
        jars_of(CONNECT_JAR_SET)

    def launch(self, job: Job) -> subprocess.Popen[bytes]:
        (self._port,) = free_ports(1)
        worker, logging = job.folder / "worker.properties", job.folder / "logging.properties"
        worker.write_text(properties_text(self._worker(job)), encoding="utf-8")
        logging.write_text(logging_text(MIRROR_MAKER_VERSION), encoding="utf-8")
        classes = jars_of(CONNECT_JAR_SET)[0].parent
        command = [java_executable(), *JVM, logging_option(MIRROR_MAKER_VERSION, logging), "-cp", f"{classes}/*"]
        return started(job, [*command, "org.apache.kafka.connect.cli.ConnectDistributed", str(worker)])

    def _worker(self, job: Job) -> dict[str, str]:
        return {
            "bootstrap.servers": job.access.target,
            **{f"{whose}{name}": value for whose in WORKER_CLIENTS for name, value in _security(job).items()},
            "group.id": f"connect-{job.alias}",
            **{f"{what}.storage.topic": f"connect-{job.alias}-{what}" for what in ("config", "offset", "status")},
            **{f"{what}.storage.replication.factor": "1" for what in ("config", "offset", "status")},
            **{f"{what}.storage.partitions": "1" for what in ("offset", "status")},
            "key.converter": _BYTES,
            "value.converter": _BYTES,
            "listeners": f"http://127.0.0.1:{self._port}",
            "exactly.once.source.support": "enabled" if self._exactly_once else "disabled",
        }

    def set_going(self, job: Job, process: subprocess.Popen[bytes]) -> None:
        """Asks as soon as the worker answers; it refuses while it takes its place in the group."""
        url = f"http://127.0.0.1:{self._port}/connectors/{job.alias}/config"
        request = urllib.request.Request(
            url, json.dumps(self._connector(job)).encode(), {"Content-Type": "application/json"}, method="PUT"
        )
        give_up_at = time.monotonic() + _READY_WITHIN_S
        while process.poll() is None and time.monotonic() < give_up_at:
            try:
                with urllib.request.urlopen(request, timeout=30):
                    return
            except urllib.error.HTTPError as error:
                if error.code == 400:
                    raise PeerFailedError(f"{self.name}: Connect refuses its connector: {error.read().decode()}") from error
            except OSError:
                pass
            time.sleep(0.2)
        raise PeerFailedError(f"{self.name}: its Connect worker did not take the connector. The end of its log:\n{log_tail(job)}")

    def _connector(self, job: Job) -> dict[str, str]:
        return {
            "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
            "tasks.max": str(min(TASKS, job.corpus.partitions)),
            "source.cluster.alias": job.alias,
            "target.cluster.alias": "target",
            "source.cluster.bootstrap.servers": job.access.source,
            "target.cluster.bootstrap.servers": job.access.target,
            **{f"{side}.cluster.{name}": value for side in SIDES for name, value in _security(job).items()},
            "topics": job.source_topic.replace(".", "\\."),
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "sync.topic.configs.enabled": "false",
            "sync.topic.acls.enabled": "false",
            "key.converter": _BYTES,
            "value.converter": _BYTES,
            "header.converter": _BYTES,
            **{f"source.consumer.{name}": value for name, value in CONSUMER.items()},
            **{f"producer.override.{name}": value for name, value in PRODUCER.items()},
            "producer.override.compression.type": job.corpus.codec_name,
            **(EXACTLY_ONCE if self._exactly_once else {}),
        }


def _security(job: Job) -> dict[str, str]:
    """Return the properties of Java clients for TLS, which check the host name by default; nothing without TLS."""
    if job.access.ca_file is None:
        return {}
    return {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "ssl.truststore.location": str(job.access.ca_file)}
