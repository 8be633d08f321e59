"""Driver: the Spark settings a mirror needs, those it is better off with, and a local session that has them."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shallow_mirror.checkpoints.schema import schema_of
from shallow_mirror.checkpoints.storage import choose_writer
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka.jars import delta_jars
from shallow_mirror.streaming.runner.temp_dirs import scratch_folder

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

EXTENSIONS, DELTA_EXTENSION = "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_DELTA = {
    EXTENSIONS: DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
    "spark.databricks.delta.snapshotPartitions": "1",
}

_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xms96m -Xmn48m"
"""The JVM of a local session plans and commits small things: a collector and a compiler of many threads cost more than they
give (about ten CPU seconds of a start), and a heap that begins with a share of the machine's memory is filled before it is
collected."""

_QUICK_FORK = "-Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else ""
"""Hadoop's local file system starts `chmod` for every file it makes, two of them a micro-batch."""

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
        "spark.python.daemon.module": "shallow_mirror.streaming.runner.worker_daemon",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.streaming.stopTimeout": "60s",
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",  # no .crc files beside them
        "spark.sql.warehouse.dir": str(log4j.parent / "_warehouse"),
        "spark.local.dir": str(scratch),
        "spark.driver.extraJavaOptions": (
            f'{_JVM_OPTIONS} {_QUICK_FORK} -Dlog4j2.configurationFile={log4j.as_uri()} "-Djava.io.tmpdir={scratch}"'
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


def check_delta(spark: Any, tables: str) -> None:
    """Raise ConfigError where `spark` lacks what it takes to reach `tables`; a runtime of Databricks has it built in."""
    if "DATABRICKS_RUNTIME_VERSION" in os.environ:
        return
    schema, found = schema_of(tables), spark.sparkContext.getConf()
    catalog = "spark.sql.catalog." + ("spark_catalog" if schema is None else schema.partition(".")[0])
    problems = []
    if DELTA_EXTENSION not in found.get(EXTENSIONS, ""):
        problems.append(f"{EXTENSIONS} must name {DELTA_EXTENSION}")
    if not spark.conf.get(catalog, ""):
        problems.append(f"{catalog} must name a catalog of Delta tables, such as {DELTA_CATALOG}")
    if problems:
        why = f"this Spark session has no Delta for the tables in {tables}"
        raise ConfigError([f"{why}: {one} when the session starts (and spark.jars its jars)" for one in problems])


@contextlib.contextmanager
def session_for_tables(config: MirrorConfig, submitted: Any = None, *, is_writing: bool = False) -> Iterator[Any]:
    """For commands that do not mirror: None where the tables need no Spark, else `submitted` or a local session.

    Raises ConfigError; JarFetchError where Delta's jars are not there and cannot be fetched.
    """
    is_needed = config.table_location.is_read_by_spark
    if is_writing and not is_needed:
        is_needed = choose_writer(config.table_location, config.tables_writer) == "spark"
    if not is_needed:
        yield None
        return
    own = None
    if submitted is None:
        _log.info("the tables in %s need Spark: starting it, which takes some seconds", config.tables)
        own = submitted = local_session(f"shallow-mirror {config.mirror}", delta_jars=delta_jars(), log_file=config.spark_log)
    try:
        check_delta(submitted, config.tables)
        yield submitted
    finally:
        if own is not None:
            own.stop()


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
