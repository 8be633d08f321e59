"""Releases of Kafka that mirrors are tried with, and one broker of each and for each side, started when first asked for."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from tests.conftest import TwoClusters
from tests.support.mirror_runs import delete_topics_ending

from shallow_mirror.demo.traffic import TOPICS, TrafficReport, write_traffic
from shallow_mirror.local_kafka import stop_clusters
from shallow_mirror.local_kafka.jars import KAFKA_VERSION, OLD_KAFKA_VERSION, OLDEST_KAFKA_VERSION, PREVIOUS_KAFKA_VERSION
from shallow_mirror.local_kafka.node import LocalKafka

SEED = 28
RECORDS = 3_000
_PROPERTIES = {"log.cleaner.backoff.ms": "100"}


class Release(NamedTuple):
    """`transaction_version`: the level of that feature where Kafka has it."""

    version: str
    transaction_version: int | None = None

    def __str__(self) -> str:
        return self.version if self.transaction_version is None else f"{self.version}-tv{self.transaction_version}"


OLDEST, OLD = Release(OLDEST_KAFKA_VERSION), Release(OLD_KAFKA_VERSION)
PREVIOUS = Release(PREVIOUS_KAFKA_VERSION, 2)
BEFORE_KIP_890, NEWEST = Release(KAFKA_VERSION, 0), Release(KAFKA_VERSION, 2)
ALL = (OLDEST, OLD, PREVIOUS, BEFORE_KIP_890, NEWEST)


class Brokers:
    """The clusters of the session are the newest ones."""

    def __init__(self, folder: Path, newest: TwoClusters) -> None:
        self._folder = folder
        self._running = {("source", NEWEST): newest.source, ("target", NEWEST): newest.target}
        self._own: list[LocalKafka] = []
        self._written: dict[Release, TrafficReport] = {}

    def __getitem__(self, key: tuple[str, Release]) -> LocalKafka:
        if key not in self._running:
            side, release = key
            level = release.transaction_version
            features = {} if level is None else {"transaction.version": level}
            node = LocalKafka(self._folder / f"{side}-{release}", release.version, properties=_PROPERTIES, features=features)
            node.start()
            self._own.append(node)
            self._running[key] = node
        return self._running[key]

    def written(self, release: Release) -> TrafficReport:
        """Fill the source cluster: transactions that overlap, some aborted, idempotent and plain producers, all codecs."""
        if release not in self._written:
            bootstrap = self["source", release].bootstrap
            self._written[release] = write_traffic(bootstrap, records=RECORDS, seed=SEED, on_progress=lambda _: None)
        return self._written[release]

    def stop(self) -> None:
        """Delete what was written to the clusters of the session: other tests write topics of the same names."""
        stop_clusters(self._own)
        for side in ("source", "target"):
            delete_topics_ending(self._running[side, NEWEST].bootstrap, TOPICS)
