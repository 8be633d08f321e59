"""Driver: the Spark settings that a mirror requires or recommends, and a local session that has them."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from shallow_mirror.checkpoints import schema_of
from shallow_mirror.checkpoints.tables import ARCHIVE_LAYOUT, OFFSET_MAP_LAYOUT, TableStorage, choose_writer
from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.local_kafka import delta_jars
from shallow_mirror.named_files import naming_file
from shallow_mirror.sinks.slots import environment_of_copiers, environment_of_plan_readers
from shallow_mirror.spark_connect import is_connect
from shallow_mirror.streaming.sources.admission_control import has_admission_control
from shallow_mirror.streaming.spark.class_archive import ClassArchive, jvm_options_text
from shallow_mirror.streaming.spark.connect_retries import bound_server_retries
from shallow_mirror.streaming.spark.economies import Economy, check_switches, is_used, or_without, switch_off
from shallow_mirror.streaming.spark.pyarrow_alone import OWN_SESSION_VARIABLE, keep_datasets_out, keep_pandas_out
from shallow_mirror.streaming.spark.temp_dirs import temp_dir
from shallow_mirror.streaming.spark.usable_cores import usable_cores
from shallow_mirror.streaming.spark.worker_secrets import WithReferences, pass_secrets_to_workers

_log = logging.getLogger(__name__)

_ABILITIES = ("SparkSession.interruptTag", "DataFrame.toArrow")
"""What every run needs of `pyspark.sql`."""

REQUIRED: Mapping[str, tuple[str, str]] = {
    "spark.speculation": ("false", "a second copy of a task would fence the first and write its slot again"),
}
"""Setting -> (value, why the mirror rejects any other)."""

RECOMMENDED: Mapping[str, tuple[str, str]] = {
    "spark.python.worker.reuse": ("true", "each micro-batch starts a worker that connects to the clusters again"),
}
"""Setting -> (value, the cost of any other)."""

ARROW_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"

EXTENSIONS, DELTA_EXTENSION = "spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension"
DELTA_CATALOG = "org.apache.spark.sql.delta.catalog.DeltaCatalog"

_DELTA = {
    EXTENSIONS: DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
    "spark.databricks.delta.snapshotPartitions": "1",
}

_JVM_OPTIONS = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -Xms72m -Xmn24m"
"""The JVM of a local session only plans and commits: parallel collectors and compilers cost more than they save (about ten CPU
seconds of a start), and a heap that starts with a share of the machine's memory is filled before it is collected. Compiled code
has the address space that it has with all compilers: 48 MB, the default with one, were full after a quarter of an hour of tests
with tables in a catalog, and from then on nothing was compiled."""

_FORK_OPTION = "-Djdk.lang.Process.launchMechanism=VFORK" if sys.platform == "linux" else ""
"""Hadoop's local file system starts `chmod` for every file it creates, two of them per micro-batch."""

# With its default status, Log4j prints a stack trace to standard error for every line that a full disk does not take.
_LOG4J = """status = off
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log_file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{yyyy-MM-dd HH:mm:ss.SSS}} %p %c{{1}}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class RunSession:
    """The session of a run, and its tables opened with it. `log_file`: None for a session that the run was given."""

    spark: Any
    storage: TableStorage
    log_file: Path | None


@contextlib.contextmanager
def session_of_run(
    spark: Any,
    storage: TableStorage,
    *,
    name: str,
    log_file: Path,
    with_references: Iterable[WithReferences],
    start_step: Callable[[str, str], None],
    may_stream: bool,
    reads: TableStorage | None = None,
) -> Iterator[RunSession]:
    """Yield a session that can run slots and write the tables: `spark`, else one on all cores that is stopped at the end.

    `with_references`: settings whose secrets workers need, except with Spark Connect, whose workers resolve them. `may_stream`:
    False if the micro-batches come from a loop. `reads`: tables of an archive that the run reads. Raises ConfigError;
    JarFetchError as `session_for_tables`.
    """
    own_session = None
    through_spark = [tables for tables in (storage, reads) if tables is not None and tables.writer == "spark"]
    if spark is None:
        start_step("starting Spark", f" (its log: {log_file})")
        jars = delta_jars() if through_spark else ()
        own_session = local_session(
            f"shallow-mirror {name}", log_file=log_file, cores=usable_cores(), delta_jars=jars, archives_classes=True
        )
    session = own_session if spark is None else spark
    try:
        check_session(session)
        if is_connect(session):
            bound_server_retries(session)
        else:
            pass_secrets_to_workers(session, with_references)
        for tables in through_spark:
            check_delta(session, tables.location.root)
        with contextlib.nullcontext() if own_session is None else warmed_up(own_session, may_stream=may_stream):
            yield RunSession(session, storage.with_session(session), log_file if own_session is not None else None)
    finally:
        if own_session is not None:
            own_session.stop()


@contextlib.contextmanager
def warmed_up(spark: Any, *, may_stream: bool) -> Iterator[None]:
    """Run the first jobs of the session while the driver prepares the first slot: they start Python workers.

    `may_stream`: also a worker that reads plans, which a loop of the driver does not have.
    """
    reads_plans = may_stream and has_admission_control()
    thread = threading.Thread(target=_run_first_jobs, args=(spark, reads_plans), name="first-jobs", daemon=True)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _run_first_jobs(spark: Any, reads_plans: bool) -> None:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with environment_of_copiers():
            copied = _through_python(spark)
        copied.toArrow()
        if reads_plans:  # without admission control they could not import what they need
            with environment_of_plan_readers(spark):
                read = _through_python(spark)
            read.toArrow()
    except (PySparkException, Py4JError, OSError, EOFError) as error:
        _log.warning("a first job, which only starts a Python worker ahead of time, failed: %s", str(error).partition("\n")[0])


def _through_python(spark: Any) -> Any:
    return spark.range(1, numPartitions=1).mapInArrow(lambda batches: batches, "id long")


def local_session(
    app_name: str,
    *,
    cores: int = 2,
    delta_jars: Sequence[Path] = (),
    log_file: Path,
    archives_classes: bool = False,
    waits_for_archive: bool = False,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Return a SparkSession of this process that logs to `log_file`; with Delta for SQL only if its jars are given.

    `cores`: tasks at the same time. `archives_classes`: start the JVM with the archive of its classes, and if there is none
    yet, let it write one when this process ends. `waits_for_archive`: this process then ends after the JVM, for an image or a
    container that ends with it. `settings`: further ones. Raises ConfigError if the switch of economies has an unknown name.
    """
    check_switches()
    log_file = log_file.resolve()
    log4j = _write_log4j(log_file)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ[OWN_SESSION_VARIABLE] = "1"
    keep_pandas_out()
    keep_datasets_out()

    def start(classes: ClassArchive | None) -> Any:
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(f"local[{cores}]").appName(app_name)
        for name, value in {**_local_settings(log4j, temp_dir(), delta_jars, classes), **settings}.items():
            builder = builder.config(name, value)
        return builder.getOrCreate()

    _log.info("starting Spark; its log is %s", log_file)
    interrupt_handler = signal.getsignal(signal.SIGINT)
    spark = _started_with_archive(start, log_file, waits=waits_for_archive) if archives_classes else start(None)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, interrupt_handler)  # Spark's handler cancels the micro-batch that a stop should finish
    return spark


def _started_with_archive(start: Callable[[ClassArchive | None], Any], log_file: Path, *, waits: bool) -> Any:
    """Return the session that `start` returns, with the archive of classes if there can be one, else without."""
    classes = None
    if is_used(Economy.CLASS_ARCHIVE):
        with or_without(Economy.CLASS_ARCHIVE):
            classes = _class_archive()
    if classes is None:
        return start(None)
    is_written = classes.is_written
    try:
        spark = start(classes)
    except Exception as error:  # noqa: BLE001 - another Java may reject its options; what has another cause fails again
        switch_off(Economy.CLASS_ARCHIVE, error)
        return start(None)
    if not is_written:
        with or_without(Economy.CLASS_ARCHIVE):
            classes.keep_at_exit(spark.sparkContext._gateway, log_file, waits=waits)
    return spark


def _class_archive() -> ClassArchive | None:
    """Return the archive for the JVM that this process is about to start; None if it has one already."""
    from pyspark import SparkContext
    from pyspark.find_spark_home import _find_spark_home

    java = shutil.which("java", path=f"{os.environ['JAVA_HOME']}/bin" if "JAVA_HOME" in os.environ else None)
    if java is None or SparkContext._gateway is not None:
        return None
    try:
        classes = ClassArchive.of(java, Path(_find_spark_home(), "jars"))
        if classes is not None:
            classes.prepare()
    except (OSError, RuntimeError) as error:  # RuntimeError: the user has no home folder
        _log.warning("no archive of Spark's classes, with which starts are faster: %s (set SHALLOW_MIRROR_CACHE)", error)
        return None
    return classes


def _local_settings(
    log4j: Path, temp_folder: Path, delta_jars: Sequence[Path], classes: ClassArchive | None = None
) -> dict[str, str]:
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
        "spark.hadoop.fs.AbstractFileSystem.file.impl": "org.apache.hadoop.fs.local.RawLocalFs",  # no .crc files beside them
        "spark.sql.warehouse.dir": str(log4j.parent / "_warehouse"),
        "spark.local.dir": str(temp_folder),
        "spark.driver.extraJavaOptions": (
            f"{_JVM_OPTIONS} {_FORK_OPTION} {jvm_options_text(classes.jvm_options() if classes else ())} "
            f'-Dlog4j2.configurationFile={log4j.as_uri()} "-Djava.io.tmpdir={temp_folder}"'
        ),
    }
    if is_used(Economy.WORKER_DAEMON):
        settings["spark.python.daemon.module"] = "shallow_mirror.streaming.spark.worker_daemon"
    if delta_jars:
        settings |= _DELTA | {"spark.jars": ",".join(str(jar) for jar in delta_jars)}
    return settings


def _write_log4j(log_file: Path) -> Path:
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log4j = log_file.with_suffix(".log4j2.properties")
    with naming_file(log4j):
        log4j.write_text(_LOG4J.format(log_file=log_file), encoding="utf-8")
    return log4j


def check_session(spark: Any) -> None:
    """Raise ConfigError with everything that makes `spark` unusable for a run; warn of settings that only make it slower."""
    problems = []
    pyspark_sql = importlib.import_module("pyspark.sql")
    abilities = (ability.split(".") for ability in _ABILITIES)
    lacking = [f"{owner}.{name}" for owner, name in abilities if not hasattr(getattr(pyspark_sql, owner), name)]
    if lacking:
        problems.append(f"PySpark {spark.version} is too old: it lacks {' and '.join(lacking)}, which PySpark has since 4.0")
    for name, (value, why) in REQUIRED.items():
        actual = _setting(spark, name, value)
        if actual.lower() != value:
            problems.append(f"{name} is {actual}, {value} is needed: {why}")
    if problems:
        raise ConfigError(problems)
    for name, (value, cost) in RECOMMENDED.items():
        actual = _setting(spark, name, value)
        if actual.lower() != value:
            _log.warning("%s is %s, recommended is %s: %s", name, actual, value, cost)


def check_delta(spark: Any, tables: str) -> None:
    """Raise ConfigError if `spark` lacks the settings for Delta tables in `tables`; Databricks runtimes have them built in.

    A server of Spark Connect may be one of those, and not tell: without Delta it refuses the first statement about a table.
    """
    if "DATABRICKS_RUNTIME_VERSION" in os.environ or is_connect(spark):
        return
    schema, settings = schema_of(tables), spark.sparkContext.getConf()
    catalog = "spark.sql.catalog." + ("spark_catalog" if schema is None else schema.partition(".")[0])
    problems = []
    if DELTA_EXTENSION not in settings.get(EXTENSIONS, ""):
        problems.append(f"{EXTENSIONS} must name {DELTA_EXTENSION}")
    if not spark.conf.get(catalog, ""):
        problems.append(f"{catalog} must name a catalog of Delta tables, such as {DELTA_CATALOG}")
    if problems:
        reason = f"this Spark session has no Delta for the tables in {tables}"
        raise ConfigError([f"{reason}: {problem} when the session starts (and spark.jars its jars)" for problem in problems])


@contextlib.contextmanager
def session_for_tables(
    config: MirrorConfig | ArchiveConfig | RestoreConfig, submitted: Any = None, *, is_writing: bool = False
) -> Iterator[Any]:
    """Yield the session of a command that does not mirror: None if the tables need no Spark, else `submitted` or a local one.

    Raises ConfigError; JarFetchError if Delta's jars are not cached and cannot be fetched.
    """
    name, layout = (config.archive, ARCHIVE_LAYOUT) if isinstance(config, ArchiveConfig) else (config.mirror, OFFSET_MAP_LAYOUT)
    places = [location.root for location in config.table_locations if location.is_read_by_spark]
    if is_writing and not places and choose_writer(config.table_location, config.tables_writer, layout) == "spark":
        places = [config.tables]
    with session_for_places(name, places, submitted, log_file=config.spark_log) as spark:
        yield spark


@contextlib.contextmanager
def session_for_places(name: str, places: Sequence[str], submitted: Any = None, *, log_file: Path) -> Iterator[Any]:
    """Yield the session that reads tables in these places: None if there are none, else `submitted` or a local one.

    Raises as `session_for_tables`.
    """
    if not places:
        yield None
        return
    own_session = None
    if submitted is None:
        _log.info("the tables in %s need Spark: starting it, which takes some seconds", " and ".join(places))
        own_session = submitted = local_session(f"shallow-mirror {name}", delta_jars=delta_jars(), log_file=log_file)
    try:
        for place in places:
            check_delta(submitted, place)
        yield submitted
    finally:
        if own_session is not None:
            own_session.stop()


def bound_arrow_batches(spark: Any, max_bytes: int) -> None:
    """Lower the bytes that Spark collects before it passes rows to a task, if payloads are rows. Never raises the setting."""
    configured = int(spark.conf.get(ARROW_BATCH_BYTES, str(max_bytes)).removesuffix("b"))
    if configured > max_bytes:
        spark.conf.set(ARROW_BATCH_BYTES, str(max_bytes))


def parallelism_of(spark: Any, slots: int) -> int:
    """Return how many tasks the session runs at the same time. With Spark Connect: all slots."""
    return slots if is_connect(spark) else int(spark.sparkContext.defaultParallelism)


def _setting(spark: Any, name: str, default: str) -> str:
    """Return a setting of the session. A server of Spark Connect that does not tell counts as one with the default."""
    if not is_connect(spark):
        return str(spark.sparkContext.getConf().get(name, default))
    from pyspark.errors import PySparkException

    try:
        return str(spark.conf.get(name, default))
    except PySparkException as error:
        _log.warning(
            "%s must be %s, and the server of Spark Connect does not tell: %s", name, default, str(error).partition("\n")[0]
        )
        return default
