"""Driver: one Spark session for the mirrors of a process, with task slots for all of them, and a scheduler pool for each."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.java_gateway import ensure_callback_server_started

from shallow_mirror.checkpoints.tables import choose_writer
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, StoreUnreachableError
from shallow_mirror.local_kafka import delta_jars
from shallow_mirror.spark_connect import is_connect
from shallow_mirror.streaming.spark import spark_session, temp_dirs
from shallow_mirror.streaming.spark.connect_retries import bound_server_retries
from shallow_mirror.streaming.spark.usable_cores import usable_cores
from shallow_mirror.streaming.spark.worker_secrets import pass_secrets_to_workers

_log = logging.getLogger(__name__)

POOL = "spark.scheduler.pool"
SCHEDULER_MODE, FAIR = "spark.scheduler.mode", "FAIR"
DEFAULT_PARALLELISM = "spark.default.parallelism"


@dataclass(frozen=True, slots=True)
class SharedSession:
    """`log_file`: of a session of ours, None for one that was submitted."""

    spark: Any
    log_file: Path | None

    def of_mirror(self, name: str) -> Any:
        """Return a session of one mirror, for the thread that calls: with settings of its own and its scheduler pool."""
        if is_connect(self.spark):
            return self.spark  # its threads have no scheduler pools
        self.spark.sparkContext.setLocalProperty(POOL, name)
        return self.spark.newSession()


@contextlib.contextmanager
def shared_session(configs: Sequence[MirrorConfig], submitted: Any) -> Iterator[SharedSession]:
    """Yield a session for mirrors in several threads: `submitted`, else a local one that is stopped at the end.

    Raises ConfigError; JarFetchError if the tables of a mirror need Delta's jars and they cannot be fetched.
    """
    temp_dirs.temp_dir()  # before several threads ask for it
    own_session, log_file = None, None
    if submitted is None:
        log_file = configs[0].spark_log
        own_session = _local_session(configs, log_file)
    spark = own_session or submitted
    try:
        spark_session.check_session(spark)
        if is_connect(spark):
            bound_server_retries(spark)
        else:
            _prepare_classic(spark, configs)
        may_stream = _may_stream(configs)
        with contextlib.nullcontext() if own_session is None else spark_session.warmed_up(own_session, may_stream=may_stream):
            yield SharedSession(spark, log_file)
    finally:
        if own_session is not None and own_session.sparkContext._gateway.proc.poll() is None:
            own_session.stop()  # a JVM that has exited has nothing left to stop


def _prepare_classic(spark: Any, configs: Sequence[MirrorConfig]) -> None:
    mode = spark.sparkContext.getConf().get(SCHEDULER_MODE, "FIFO")
    if mode != FAIR:
        _log.warning(
            "%s is %s: a mirror with much to copy delays the others of this session; set it to %s", SCHEDULER_MODE, mode, FAIR
        )
    # All at once: workers with another environment are other processes, with a daemon of their own.
    pass_secrets_to_workers(spark, [client for config in configs for client in (config.source.client, config.target.client)])
    if _may_stream(configs):
        ensure_callback_server_started(spark.sparkContext._gateway)  # two threads would each start one


def _may_stream(configs: Sequence[MirrorConfig]) -> bool:
    return any(config.micro_batches != "loop" for config in configs)


def task_slots(slots: Sequence[int], cores: int) -> int:
    """Return how many tasks a local session runs at once: as many as separate sessions on `cores` would, one for each mirror.

    `slots`: `write.slots` of each mirror. No mirror waits for tasks of another one then; the operating system shares the cores.
    """
    return max(cores, sum(min(number, cores) for number in slots))


def _local_session(configs: Sequence[MirrorConfig], log_file: Path) -> Any:
    cores = usable_cores()
    return spark_session.local_session(
        f"shallow-mirror, {len(configs)} mirrors",
        log_file=log_file,
        cores=task_slots([config.write.slots for config in configs], cores),
        delta_jars=delta_jars() if any(_may_need_delta(config) for config in configs) else (),
        archives_classes=True,
        # A micro-batch of one mirror has as many slots as it would have in a process of its own.
        settings={SCHEDULER_MODE: FAIR, DEFAULT_PARALLELISM: str(cores)},
    )


def _may_need_delta(config: MirrorConfig) -> bool:
    """Return whether the session may have to write the tables. Not of a store that refuses: that mirror ends, with its error."""
    try:
        return choose_writer(config.table_location, config.tables_writer) == "spark"
    except ConfigError:
        return False
    except StoreUnreachableError:
        return True
