"""Real clusters for the whole session, started when first asked for, and proof that nothing outlives it."""

from __future__ import annotations

import functools
import gc
import itertools
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
import psutil
import pytest
import typer
from tests.faults import launch
from tests.support.spark_classes import write_spark_classes

from shallow_mirror.local_kafka import delta_jars, start_clusters, stop_clusters
from shallow_mirror.local_kafka.broker_classes import write_broker_classes
from shallow_mirror.local_kafka.jars import DELTA_FOR_SPARK
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.streaming.spark import temp_dirs

hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.register_profile("quick", deadline=None, max_examples=20)
hypothesis.settings.load_profile("untimed")

typer.main.get_command = functools.cache(typer.main.get_command)  # it builds every command, for each test of one

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # begun in the background of a shell: every child would ignore Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)

_topic_numbers = itertools.count(1)

_LONGEST_FILES = ("verify/test_on_brokers.py", "streaming/runs/test_micro_batch_loop.py", "streaming/runs/test_bad_input.py")
"""Each takes a minute or two on brokers, and comes late in the alphabet."""


def pytest_configure(config: pytest.Config) -> None:
    """Write without fsync in the quick profile: its files need not survive a power failure. All other runs use fsync.

    Tests of durability replace `os.fsync` themselves. A descriptor that is not open is an error as before.
    """
    if config.getoption("--hypothesis-profile") == "quick":
        os.fsync = os.fstat  # type: ignore[assignment]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without collecting garbage: the objects stay, and would be visited again and again, also by each test."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: one that began last would keep one process busy alone."""
    items.sort(key=lambda item: not item.nodeid.startswith(tuple(f"tests/{name}::" for name in _LONGEST_FILES)))


class TwoClusters(NamedTuple):
    source: LocalKafka
    target: LocalKafka


def _stop_spark() -> None:
    """Spark's JVM lives until this process ends; it is ended here, so that it does not hide other children."""
    pyspark = sys.modules.get("pyspark")
    if pyspark is None or pyspark.SparkContext._gateway is None:
        return
    gateway = pyspark.SparkContext._gateway
    if pyspark.SparkContext._active_spark_context is not None:
        pyspark.SparkContext._active_spark_context.stop()
    gateway.shutdown()
    pyspark.SparkContext._gateway = pyspark.SparkContext._jvm = None
    if gateway.proc is not None:
        if gateway.proc.stdin is not None:
            gateway.proc.stdin.close()
        gateway.proc.wait(30)


def _is_of_python(process: psutil.Process) -> bool:
    """Return whether this is the helper of `multiprocessing`, which ends with this process."""
    try:
        return any("multiprocessing.resource_tracker" in argument for argument in process.cmdline())
    except psutil.NoSuchProcess:
        return True


@pytest.fixture(scope="session", autouse=True)
def no_child_process_is_left() -> Iterator[None]:
    """First set up, so last torn down: after the clusters were stopped."""
    before = set(psutil.Process().children(recursive=True))
    yield
    _stop_spark()
    launch.stop_fork_server()
    children = [child for child in psutil.Process().children(recursive=True) if child not in before]
    _, left = psutil.wait_procs([child for child in children if not _is_of_python(child)], timeout=10)
    described = [" ".join(child.cmdline())[:300] for child in left if child.is_running()]
    for child in left:
        child.kill()
    temp_dirs.remove_orphaned_dirs()
    assert not described, f"child processes left at the end of the session: {described}"


@pytest.fixture(scope="session", autouse=True)
def spark_classes(no_child_process_is_left: None, request: pytest.FixtureRequest) -> None:
    """Let every JVM of Spark start in half the CPU time: the first session on a machine writes the archive of its classes."""
    if any(item.get_closest_marker("spark") is not None for item in request.session.items):
        write_spark_classes()


@pytest.fixture(scope="session")
def broker_classes(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Brokers start in half the CPU time: the first session on a machine writes the archive of their classes."""
    write_broker_classes(tmp_path_factory.mktemp("broker-classes"))


@pytest.fixture(scope="session")
def two_clusters(broker_classes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    nodes = start_clusters(tmp_path_factory.mktemp("kafka"), 2)
    yield TwoClusters(source=nodes[0], target=nodes[1])
    stop_clusters(nodes)


@pytest.fixture(scope="session")
def stoppable_clusters(broker_classes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TwoClusters]:
    """For tests that stop brokers and change their files. Logs are cleaned at once."""
    cleans_at_once = {"log.cleaner.backoff.ms": "100", "log.initial.task.delay.ms": "100"}
    nodes = start_clusters(tmp_path_factory.mktemp("stoppable"), 2, properties=cleans_at_once)
    yield TwoClusters(source=nodes[0], target=nodes[1])
    stop_clusters(nodes)


@pytest.fixture(scope="session")
def source_cluster(two_clusters: TwoClusters) -> LocalKafka:
    return two_clusters.source


@pytest.fixture(scope="session")
def target_cluster(two_clusters: TwoClusters) -> LocalKafka:
    return two_clusters.target


@pytest.fixture
def spark(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the Spark session of this test process: started at first use, and started again if a test has stopped it.

    In a JVM of its own: one that another test began, perhaps without Delta's jars, keeps the class path it began with.
    """
    import pyspark
    from pyspark.sql import SparkSession

    from shallow_mirror.streaming.spark import spark_session

    running = SparkSession.getActiveSession()
    if running is not None:
        return running
    _stop_spark()
    log_file = tmp_path_factory.mktemp("spark") / "spark.log"
    jars = delta_jars() if pyspark.__version__.startswith(DELTA_FOR_SPARK) else ()
    return spark_session.local_session("tests", cores=2, delta_jars=jars, log_file=log_file, archives_classes=True)


@pytest.fixture
def spark_with_delta(spark: Any) -> Any:
    """Return the Spark session; skip the test where Delta has no jars for this Spark."""
    if not spark.version.startswith(DELTA_FOR_SPARK):
        pytest.skip(f"Delta has no jars for Spark {spark.version}")
    return spark


@pytest.fixture
def inline_streams() -> Iterator[Any]:
    """Yield a session whose micro-batches run in the process of the test: for tests whose subject is not Spark."""
    from tests.support.inline_streams import inline_streams

    with inline_streams() as session:
        yield session


@pytest.fixture
def micro_batch_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mirrors run without Structured Streaming, which takes twice as long to start: for tests whose subject it is not.

    With TEST_MICRO_BATCHES=auto they are streams again; `make sparks CROSS=1` runs some of them both ways.
    """
    from tests.support.mirror_runs import MICRO_BATCHES

    if MICRO_BATCHES not in os.environ:
        monkeypatch.setenv(MICRO_BATCHES, "loop")


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """Return a name of its own for every test, also between processes; the topic is not created."""
    readable = re.sub(r"[^A-Za-z0-9._-]", "-", request.node.name)[:100]
    return f"{readable}-{os.getpid()}-{next(_topic_numbers)}"


@pytest.fixture
def crash_points() -> Iterator[None]:
    """Let `CrashAt` travel to Spark's workers, which cannot import the tests."""
    from pyspark import cloudpickle
    from tests.support import mirror_runs

    cloudpickle.register_pickle_by_value(mirror_runs)
    yield
    cloudpickle.unregister_pickle_by_value(mirror_runs)


@pytest.fixture(scope="session")
def repository() -> Path:
    """Return the checkout's root folder."""
    return Path(__file__).resolve().parent.parent
