"""A real MirrorMaker 2 of its own process, as connect-mirror-maker.sh starts it, between two clusters."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from shallow_mirror.local_kafka.jars import CONNECT_JAR_SET, MIRROR_MAKER_VERSION, jars_of, java_executable
from shallow_mirror.local_kafka.properties import logging_option, logging_text, properties_text

_JVM = ("-Xms64m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class MirrorMakerProcess:
    """Context manager: runs from `start` to `stop`, SIGTERM, or to the end of the block. `path`: its mm2.properties."""

    def __init__(self, folder: Path, source: str, target: str, topics: str, more: Mapping[str, str] | None = None) -> None:
        self._log = folder / "mm2.log"
        self._logging = folder / "mm2-logging.properties"
        self._process: subprocess.Popen[bytes] | None = None
        self.path = folder / "mm2.properties"
        properties = {
            "clusters": "east, west",
            "east.bootstrap.servers": source,
            "west.bootstrap.servers": target,
            "east->west.enabled": "true",
            "west->east.enabled": "false",
            "west->east.emit.heartbeats.enabled": "false",
            "east->west.topics": topics,
            **dict.fromkeys(
                (
                    "replication.factor", "checkpoints.topic.replication.factor", "heartbeats.topic.replication.factor",
                    "offset-syncs.topic.replication.factor", "offset.storage.replication.factor",
                    "status.storage.replication.factor", "config.storage.replication.factor",
                ),
                "1",
            ),
            "offset.storage.partitions": "1",
            "status.storage.partitions": "1",
            "west.offset.flush.interval.ms": "500",
            "emit.heartbeats.interval.seconds": "1",
            "emit.checkpoints.enabled": "false",
            "sync.topic.acls.enabled": "false",
            "refresh.topics.interval.seconds": "5",
            **(more or {}),
        }  # fmt: skip
        self.path.write_text(properties_text(properties), encoding="utf-8")
        self._logging.write_text(logging_text(MIRROR_MAKER_VERSION), encoding="utf-8")

    def start(self) -> Self:
        assert self._process is None
        classes = jars_of(CONNECT_JAR_SET)[0].parent
        command = [java_executable(), *_JVM, logging_option(MIRROR_MAKER_VERSION, self._logging), "-cp", f"{classes}/*"]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "org.apache.kafka.connect.mirror.MirrorMaker", str(self.path)], stdout=log, stderr=log
            )
        return self

    def require_running(self) -> None:
        assert self._process is not None
        assert self._process.poll() is None, f"MirrorMaker 2 has ended:\n{self._log.read_text('utf-8', 'replace')[-3000:]}"

    def stop(self, *, kill: bool = False) -> None:
        if self._process is not None:
            self._process.kill() if kill else self._process.terminate()
            try:
                self._process.wait(60)
            finally:
                self._process.kill()
                self._process.wait()
                self._process = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(kill=error is not None)
