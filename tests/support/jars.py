"""The jars that `make brokers` needs, fetched before its tests ask for them. A test that finds them missing waits for Ivy."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from shallow_mirror.local_kafka import delta_jars
from shallow_mirror.local_kafka.broker_classes import write_broker_classes
from shallow_mirror.local_kafka.jars import (
    KAFKA_VERSION,
    OLD_KAFKA_VERSION,
    OLDEST_KAFKA_VERSION,
    PREVIOUS_KAFKA_VERSION,
    kafka_jars,
)


def fetch_jars() -> None:
    """Fetch the missing jars of brokers and of Delta, and archive a broker's classes. Raises as `jars_of` and `LocalKafka`."""
    kafka_jars(KAFKA_VERSION)
    delta_jars()
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-kafka-") as folder:
        write_broker_classes(Path(folder))
    for version in (OLDEST_KAFKA_VERSION, OLD_KAFKA_VERSION, PREVIOUS_KAFKA_VERSION):
        kafka_jars(version)


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    fetch_jars()
