"""Driver: the Spark settings a mirror needs, those it is better off with, and a local session that has them."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming.scratch import scratch_folder

_log = logging.getLogger(__name__)

LEAST_SPARK_VERSION = (4, 2)

REQUIRED: Mapping[str, tuple[str, str]] = {
    "spark.speculation": ("false", "a second copy of a task would fence the first and write its slot again"),
}
"""Setting -> (value, why the mirror refuses any other)."""

RECOMMENDED: Mapping[str, tuple[str, str]] = {
    "spark.python.worker.reuse": ("true", "a new worker a micro-batch connects to the clusters again"),
}
"""Setting -> (value, what another costs)."""

ARROW_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"

_DELTA = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    "spark.databricks.delta.snapshotPartitions": "1",
}

_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""The JVM of a local session plans and commits small things: a collector and a compiler of many threads cost more than they
give (about ten CPU seconds of a start)."""

_LOG4J = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log_file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


def local_session(app_name: str, *, cores: int = 2, delta_jars: Sequence[Path] = (), log_file: Path) -> Any:
    """A SparkSession in this process whose own log goes to `log_file`. Delta for SQL only where its jars are given."""
    from pyspark.sql import SparkSession

    log_file = log_file.resolve()
    log4j = _write_log4j(log_file)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
    for name, value in _local_settings(log4j, scratch_folder(), delta_jars).items():
        builder = builder.config(name, value)
    _log.info("starting Spark; its log is %s", log_file)
    interrupt_handler = signal.getsignal(signal.SIGINT)
    spark = builder.getOrCreate()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt_handler)  # Spark's own cancels the micro-batch that should still be finished
    return spark


def _local_settings(log4j: Path, scratch: Path, delta_jars: Sequence[Path]) -> dict[str, str]:
    settings = {name: value for name, (value, _) in (*REQUIRED.items(), *RECOMMENDED.items())}
    settings |= {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.sql.warehouse.dir": str(log4j.parent / "_warehouse"),
        "spark.local.dir": str(scratch),
        "spark.driver.extraJavaOptions": (
            f'{_JVM_OPTIONS} -Dlog4j2.configurationFile={log4j.as_uri()} "-Djava.io.tmpdir={scratch}"'
        ),
    }
    if delta_jars:
        settings |= _DELTA | {"spark.jars": ",".join(str(jar) for jar in delta_jars)}
    return settings


def _write_log4j(log_file: Path) -> Path:
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log4j = log_file.with_suffix(".log4j2.properties")
    log4j.write_text(_LOG4J.format(log_file=log_file), encoding="utf-8")
    return log4j


def check_session(spark: Any) -> None:
    """Raise ConfigError with everything that makes `spark` unfit for a mirror; warn of what only makes it slower."""
    if _is_connect(spark):
        raise ConfigError(
            "this is a Spark Connect session (also Databricks serverless and standard access mode): the mirror needs a classic "
            "session, on Databricks a compute with dedicated access mode"
        )
    problems = []
    if _version_of(spark) < LEAST_SPARK_VERSION:
        problems.append(f"Spark {spark.version} is too old: the mirror needs {'.'.join(map(str, LEAST_SPARK_VERSION))} or newer")
    for name, (value, why) in REQUIRED.items():
        found = spark.sparkContext.getConf().get(name, value)
        if found.lower() != value:
            problems.append(f"{name} is {found}, the mirror needs {value}: {why}")
    if problems:
        raise ConfigError(problems)
    for name, (value, cost) in RECOMMENDED.items():
        found = spark.sparkContext.getConf().get(name, value)
        if found.lower() != value:
            _log.warning("%s is %s, better %s: %s", name, found, value, cost)


def bound_arrow_batches(spark: Any, max_bytes: int) -> None:
    """Where payloads travel as rows: what Spark gathers before it hands it to a task. Only ever lowers the setting."""
    found = int(spark.conf.get(ARROW_BATCH_BYTES, str(max_bytes)).removesuffix("b"))
    if found > max_bytes:
        spark.conf.set(ARROW_BATCH_BYTES, str(max_bytes))


def _is_connect(spark: Any) -> bool:
    module = type(spark).__module__
    if module.startswith("pyspark.sql.connect"):
        return True
    return module.startswith("pyspark.") and bool(importlib.import_module("pyspark.sql.utils").is_remote())


def _version_of(spark: Any) -> tuple[int, ...]:
    return tuple(int(part) for part in str(spark.version).split(".")[:2])
