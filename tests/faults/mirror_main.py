"""`shallow-mirror run CONF` that knocks at a gate at every point it passes. Arguments: CONF GATE CORES ENGINE.

`archive run` and `restore` where CONF is the file of one, and queries with DataFrame sinks where it is that of `sink_main`.

Beside the points of the mirror's own observer there are two of Spark's: `Planned` when it hands over a micro-batch, and
`Returned` when that is done and Spark has yet to write so in its checkpoint.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partialmethod
from pathlib import Path
from typing import Any

import yaml
from pyspark.sql import SparkSession
from tests.faults import sink_main, without_spark
from tests.faults.knock import Knock
from tests.faults.mirror_process import BUSY_CLUSTER, BUSY_WITHOUT_SPARK, LOCAL_CLUSTER, WITHOUT_SPARK

from shallow_mirror import cli
from shallow_mirror.commands import sessions
from shallow_mirror.config import ArchiveConfig
from shallow_mirror.sinks.archive import expiry
from shallow_mirror.sinks.micro_batches import MicroBatchSink
from shallow_mirror.streaming.planning import PlannerConfig
from shallow_mirror.streaming.runs import Archive, Mirror, Restore, mirror_query
from shallow_mirror.streaming.spark import spark_session
from shallow_mirror.streaming.spark.temp_dirs import temp_dir


def knock_at_every_point(knock: Knock) -> None:
    copy = MicroBatchSink.__call__

    def observed(sink: MicroBatchSink, planned: Any, spark_batch_id: int) -> None:
        knock("Planned")
        copy(sink, planned, spark_batch_id)
        knock("Returned")

    MicroBatchSink.__call__ = observed  # type: ignore[method-assign,assignment]
    for run in (Mirror, Archive, Restore):
        run.__init__ = partialmethod(run.__init__, observer=knock)  # type: ignore[assignment,method-assign]


def let_archives_hurry() -> None:
    """Make archives delete once a second, not once an hour, and use every slot for the little that there is to read."""
    expiry.EXPIRE_EVERY_S = 1.0
    of_archive = PlannerConfig.of_archive

    def with_small_slots(config: ArchiveConfig, **more: Any) -> PlannerConfig:
        return replace(of_archive(config, **more), slot_bytes=1024)

    PlannerConfig.of_archive = with_small_slots  # type: ignore[method-assign]


def let_mirrors_hurry() -> None:
    """End a micro-batch of preserved topics after a second of reading on, not after ten."""
    mirror_query.FOLLOW_MS = 1_000.0  # type: ignore[attr-defined]


def command_of(document: Mapping[str, Any]) -> list[str]:
    if "restore" in document:
        return ["restore"]
    return ["run"] if "mirror" in document else ["archive", "run"]


def local_cluster(log_file: Path, executors: int, parallelism: int) -> Any:
    """Return a session whose tasks run in executors of a core each, processes of their own; the pip package of PySpark is
    enough for that. `parallelism`: how many cores the session believes to have."""
    settings = spark_session._local_settings(spark_session._write_log4j(log_file), temp_dir(), (), None)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    settings |= {"spark.executorEnv.PYTHONPATH": os.environ["PYTHONPATH"], "spark.default.parallelism": str(parallelism)}
    builder = SparkSession.builder.master(f"local-cluster[{executors},1,1024]").appName("faults")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def session_of(engine: str, conf: str, cores: int) -> Any:
    """None where `shallow-mirror run` is to make its own."""
    if engine == WITHOUT_SPARK:
        return without_spark.Session(workers=cores)
    if engine == BUSY_WITHOUT_SPARK:
        return without_spark.Session(workers=1)
    if engine == LOCAL_CLUSTER:
        return local_cluster(Path(conf).with_name("spark.log"), executors=2, parallelism=cores)
    if engine == BUSY_CLUSTER:
        return local_cluster(Path(conf).with_name("spark.log"), executors=1, parallelism=cores)
    return None


def end_with(parent: int) -> None:
    """End this process when the harness was killed: the mirror would wait for its clusters without end."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.killpg(os.getpgid(0), signal.SIGKILL)


def main(arguments: Sequence[str]) -> int:
    """Run the mirror, archive or restore; return the exit code."""
    conf, gate, cores, engine = arguments
    os.cpu_count = lambda: int(cores)  # a slot is used only where Spark has a core for it
    knock_at_every_point(Knock(gate))
    let_archives_hurry()
    let_mirrors_hurry()
    given = session_of(engine, conf, int(cores))
    sessions.submitted_session = lambda: given
    threading.Thread(target=end_with, args=(os.getppid(),), name="harness", daemon=True).start()
    document = yaml.safe_load(Path(conf).read_text(encoding="utf-8"))
    if "queries" in document:
        return sink_main.run(document, Knock(gate), given, Path(conf).with_name("spark.log"))
    sys.argv = ["shallow-mirror", *command_of(document), conf]
    try:
        cli.main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    return 0
