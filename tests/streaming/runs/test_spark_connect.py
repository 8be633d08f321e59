"""Mirrors, archives and restores through a server of Spark Connect, on real brokers; clients and servers are killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml
from tests.support import archive_runs, restore_runs
from tests.support.archive_traffic import PARTITIONS, write_transactions
from tests.support.connect_server import client_of, connect_server, settings_of_delta
from tests.support.mirror_runs import (
    catch_up,
    config,
    create_topic,
    document,
    high_watermark,
    killed_at_last,
    positions,
    read_values,
    wait_for,
    wait_for_run,
    write,
)

from shallow_mirror import spark_connect
from shallow_mirror.errors import ConfigError, SparkLostError
from shallow_mirror.local_kafka.jars import DELTA_FOR_SPARK
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.local_kafka.ports import free_ports
from shallow_mirror.operations.archive.verify import verify_archive
from shallow_mirror.streaming.runs import Mirror, Mirrors
from shallow_mirror.streaming.runs.mirrors import MirrorEnd
from shallow_mirror.streaming.spark import connect_retries
from shallow_mirror.verify import verify_mirror, verify_restore

pytest.importorskip("grpc", reason="needs pyspark[connect]: make sparks")
connect_session = pytest.importorskip("pyspark.sql.connect.session")
pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.timeout(300)]

CLIENT = """
import sys
from pyspark.sql import SparkSession
from shallow_mirror import Mirror, spark_connect
spark_connect.USED_EVERY_S = 3.0
Mirror.from_file(sys.argv[1]).run(SparkSession.builder.remote(sys.argv[2]).create())
"""


@pytest.fixture(scope="module")
def port(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    (port,) = free_ports(1)
    with connect_server(tmp_path_factory.mktemp("connect"), port):
        yield port


@pytest.fixture
def connected(port: int) -> Iterator[Any]:
    session = client_of(port)
    yield session
    session.stop()


@contextmanager
def client_process(conf: Path, port: int) -> Iterator[subprocess.Popen[str]]:
    """Yield a client that runs the mirror of a file. It is killed at the end of the block. Its output is beside the file."""
    with conf.with_name("client.txt").open("w") as output:
        client = subprocess.Popen(
            [sys.executable, "-c", CLIENT, str(conf), f"sc://127.0.0.1:{port}"],
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    with killed_at_last(client):
        yield client


@pytest.mark.smoke
def test_a_killed_client_is_fenced_and_the_next_one_continues(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, port: int, connected: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name, 2)
    written = [str(number) for number in range(100)]
    for value in written:
        write(source, topic_name, [value])
    conf = tmp_path / "mirror.yaml"
    conf.write_text(yaml.safe_dump(document(source, target, [topic_name], tables=str(tmp_path / "tables"))), encoding="utf-8")
    settings = config(tmp_path, source, target, [topic_name], tables=str(tmp_path / "tables"))
    with client_process(conf, port) as client:
        wait_for_run(client, "the first records", lambda: positions(settings).get((topic_name, 0)))
        write(source, topic_name, ["while it runs"], partition=1)
    write(source, topic_name, ["after the kill"])
    catch_up(settings, connected)
    assert read_values(target, topic_name) == [*written, "after the kill"]
    assert read_values(target, topic_name, 1) == ["while it runs"]
    assert verify_mirror(settings).is_equal


def test_an_archive_and_its_restore_run_through_the_server(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, connected: Any
) -> None:
    source = source_cluster.bootstrap
    create_topic(source, topic_name, PARTITIONS)
    write_transactions(source, topic_name)
    settings = archive_runs.config(tmp_path, source, [topic_name])
    archive_runs.archive_all(settings, connected)
    assert verify_archive(settings, is_deep=True).is_equal
    back = restore_runs.config(tmp_path, settings, target_cluster.bootstrap)
    restore_runs.restore(back, connected)
    assert verify_restore(back).is_equal


def test_a_server_that_was_killed_and_started_again_ends_the_run_with_what_to_do(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a"])
    settings, (port,) = config(tmp_path, source, target, [topic_name]), free_ports(1)
    with connect_server(tmp_path, port):
        session = client_of(port)
        catch_up(settings, session)
    write(source, topic_name, ["b"])
    with connect_server(tmp_path, port):
        with pytest.raises(SparkLostError, match=r"server of Spark Connect .*start again"):
            catch_up(settings, session)
        session = client_of(port)
        catch_up(settings, session)
        session.stop()
    assert read_values(target, topic_name) == ["a", "b"]


def test_a_server_that_is_killed_under_a_run_ends_it_in_one_line_and_a_bounded_time(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect_retries, "SERVER_RETRIES", 3)
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a"])
    settings, (port,) = config(tmp_path, source, target, [topic_name]), free_ports(1)
    errors: list[BaseException] = []
    with connect_server(tmp_path, port) as server:
        session = client_of(port)

        def run() -> None:
            with pytest.raises(SparkLostError) as caught:
                Mirror(settings).run(session)
            errors.append(caught.value)

        running = threading.Thread(target=run)
        running.start()
        wait_for("the first record", lambda: positions(settings).get((topic_name, 0)))
        os.killpg(server.pid, signal.SIGKILL)
    write(source, topic_name, ["b"])
    running.join()
    (error,) = errors
    assert re.fullmatch(r"the server of Spark Connect .*: start again with a new session", str(error))
    assert [policy.max_retries for policy in session.client.get_retry_policies()] == [3]


def test_retries_that_the_caller_has_set_stay(connected: Any) -> None:
    from pyspark.sql.connect.client.retries import DefaultPolicy

    connect_retries.bound_server_retries(connected)
    assert [policy.max_retries for policy in connected.client.get_retry_policies()] == [connect_retries.SERVER_RETRIES]
    connected.client.set_retry_policies([DefaultPolicy(max_retries=20)])
    connect_retries.bound_server_retries(connected)
    assert [policy.max_retries for policy in connected.client.get_retry_policies()] == [20]


def test_several_mirrors_run_on_one_session_of_the_server(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, connected: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    settings = []
    for name in ("first", "second"):
        topic = f"{name}-{topic_name}"
        create_topic(source, topic, 2)
        for partition in (0, 1):
            write(source, topic, [f"{name} {number}" for number in range(20)], partition)
        (tmp_path / name).mkdir()
        settings.append(config(tmp_path / name, source, target, [topic], mirror=name))
    ends = Mirrors(settings).run(connected, available_now=True)
    assert set(ends) == {MirrorEnd("first", None), MirrorEnd("second", None)}
    assert all(verify_mirror(each).is_equal for each in settings)
    assert read_values(target, f"second-{topic_name}", 1) == [f"second {number}" for number in range(20)]


DATABRICKS = """
class dbutils:
    class secrets:
        @staticmethod
        def get(scope, key):
            return {"kafka/client-id": "id-of-a-secret"}[f"{scope}/{key}"]
"""


def databricks_package(folder: Path) -> Path:
    """Return a folder with the part of the runtime's package that gives secrets."""
    package = folder / "databricks" / "sdk"
    package.mkdir(parents=True)
    (package / "runtime.py").write_text(DATABRICKS, encoding="utf-8")
    return folder


def test_a_secret_is_resolved_in_the_task_and_refused_where_its_worker_has_no_databricks(
    source_cluster: LocalKafka,
    target_cluster: LocalKafka,
    topic_name: str,
    tmp_path: Path,
    port: int,
    connected: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name)
    write(source, topic_name, ["a"])
    monkeypatch.syspath_prepend(databricks_package(tmp_path / "package"))
    given = document(source, target, [topic_name], tables=str(tmp_path / "tables"))
    given["target"]["client"]["client.id"] = "${secret:kafka/client-id}"
    conf = tmp_path / "mirror.yaml"
    conf.write_text(yaml.safe_dump(given), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"\$\{secret:\.\.\.\} needs Databricks, .*: use \$\{env:NAME\} or"):
        Mirror.from_file(conf).run(connected, available_now=True)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "package"))
    (other,) = free_ports(1)
    with connect_server(tmp_path, other):
        session = client_of(other)
        Mirror.from_file(conf).run(session, available_now=True)
        session.stop()
    assert read_values(target, topic_name) == ["a"]


@pytest.fixture(scope="module")
def port_with_delta(no_child_process_is_left: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """Start a server with Delta, which closes sessions that were not used for 45 seconds."""
    if not pyspark.__version__.startswith(DELTA_FOR_SPARK):
        pytest.skip(f"Delta has no jars for Spark {pyspark.__version__}")
    if not hasattr(connect_session.SparkSession, "cloneSession"):
        pytest.skip("this client makes no second session")
    (port,) = free_ports(1)
    further = {
        **settings_of_delta(),
        "spark.connect.session.manager.defaultSessionTimeout": "90s",
        "spark.connect.session.manager.maintenanceInterval": "1s",
    }
    with connect_server(tmp_path_factory.mktemp("delta"), port, further=further):
        yield port


@pytest.fixture
def catalog_tables(port_with_delta: int, tmp_path: Path) -> str:
    session = client_of(port_with_delta)
    session.sql(f"CREATE SCHEMA spark_catalog.{tmp_path.name} LOCATION '{tmp_path}/schema'")
    session.stop()
    return f"catalog:spark_catalog.{tmp_path.name}"


@pytest.mark.timeout(600)
def test_tables_of_a_catalog_survive_a_killed_client_and_idle_sessions(
    source_cluster: LocalKafka,
    target_cluster: LocalKafka,
    topic_name: str,
    tmp_path: Path,
    port_with_delta: int,
    catalog_tables: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    for cluster in (source, target):
        create_topic(cluster, topic_name, 2)
    written = [str(number) for number in range(20)]
    write(source, topic_name, written)
    conf = tmp_path / "mirror.yaml"
    groups = {"tables": catalog_tables, "checkpoint": str(tmp_path / "_spark")}
    conf.write_text(yaml.safe_dump(document(source, target, [topic_name], **groups)), encoding="utf-8")
    settings = config(tmp_path, source, target, [topic_name], **groups)
    with client_process(conf, port_with_delta) as client:
        wait_for_run(client, "the first records", lambda: high_watermark(target, topic_name, 0))
        write(source, topic_name, ["while it runs"], partition=1)
    write(source, topic_name, ["after the kill"])
    monkeypatch.setattr(spark_connect, "USED_EVERY_S", 3.0)
    session = client_of(port_with_delta)
    mirror, ends = Mirror(settings), list[BaseException | None]()

    def run() -> None:
        try:
            mirror.run(session)
            ends.append(None)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test reports it
            ends.append(error)

    running = threading.Thread(target=run)
    running.start()
    try:
        wait_for("the rest", lambda: read_values(target, topic_name)[-1:] == ["after the kill"])
        time.sleep(105)  # longer than the server keeps a session that is not used
        write(source, topic_name, ["after a rest"])
        wait_for("the record after a rest", lambda: read_values(target, topic_name)[-1:] == ["after a rest"])
    finally:
        mirror.stop()
        running.join()
    assert ends == [None]
    assert read_values(target, topic_name) == [*written, "after the kill", "after a rest"]
    assert read_values(target, topic_name, 1) in ([], ["while it runs"])
    session.stop()


def test_a_server_without_delta_is_refused_in_one_line(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, connected: Any
) -> None:
    create_topic(source_cluster.bootstrap, topic_name)
    groups = {"tables": "catalog:spark_catalog.default", "checkpoint": str(tmp_path / "_spark")}
    settings = config(tmp_path, source_cluster.bootstrap, target_cluster.bootstrap, [topic_name], **groups)
    has_second_session = hasattr(connect_session.SparkSession, "cloneSession")
    refused = r"tables: .*Delta" if has_second_session else r"tables that Spark writes need a session .* PySpark 4\.1 or newer"
    with pytest.raises(ConfigError, match=refused):
        Mirror(settings).run(connected, available_now=True)


def test_what_a_client_cannot_have_is_refused_in_one_line(
    source_cluster: LocalKafka, target_cluster: LocalKafka, topic_name: str, tmp_path: Path, connected: Any
) -> None:
    source, target = source_cluster.bootstrap, target_cluster.bootstrap
    create_topic(source, topic_name)
    rows = config(tmp_path, source, target, [topic_name], read={"transfer": "through-spark"})
    with pytest.raises(ConfigError, match=r"through-spark needs micro_batches: stream.*Spark Connect"):
        Mirror(rows).run(connected, available_now=True)
    stream = config(tmp_path, source, target, [topic_name]).model_copy(update={"micro_batches": "stream"})
    with pytest.raises(ConfigError, match=r"micro_batches: stream is not possible here: a session of Spark Connect"):
        Mirror(stream).run(connected, available_now=True)
