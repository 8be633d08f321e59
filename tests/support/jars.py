"""Fetch the jars of `make brokers` and `make sparks` before tests ask for them: a test that finds them missing waits for Ivy."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from tests.support.spark_classes import write_spark_classes

from shallow_mirror.local_kafka.broker_classes import write_broker_classes
from shallow_mirror.local_kafka.jars import (
    DELTA_FOR_SPARK,
    KAFKA_VERSION,
    OLD_KAFKA_VERSION,
    OLDEST_KAFKA_VERSION,
    PREVIOUS_KAFKA_VERSION,
    delta_jar_set,
    jars_of,
    kafka_jars,
)


def fetch_jars() -> None:
    """Fetch the missing jars of brokers and of Delta, and archive the classes of a broker and of Spark.

    Raises as `jars_of`, `LocalKafka` and `write_spark_classes`.
    """
    kafka_jars(KAFKA_VERSION)
    with tempfile.TemporaryDirectory(prefix="shallow-mirror-kafka-") as folder:
        write_broker_classes(Path(folder))
    for version in (OLDEST_KAFKA_VERSION, OLD_KAFKA_VERSION, PREVIOUS_KAFKA_VERSION):
        kafka_jars(version)
    for spark in DELTA_FOR_SPARK:
        jars_of(delta_jar_set(spark))
    write_spark_classes()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    fetch_jars()
