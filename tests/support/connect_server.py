"""A server of Spark Connect in a process of its own, as clients of a cluster see one."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyspark
from tests.support.mirror_runs import killed_at_last, own_spark_environment, wait_for_run

from shallow_mirror.local_kafka import delta_jars
from shallow_mirror.streaming.spark.spark_session import DELTA_CATALOG, DELTA_EXTENSION, EXTENSIONS


@contextmanager
def connect_server(
    folder: Path, port: int, *, cores: int = 2, further: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Yield a server that accepts connections on `port`. Its output is in `folder`. `further`: settings of Spark."""
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        **(further or {}),
    }
    command = [str(submit), "--master", f"local[{cores}]", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    environment = own_spark_environment() | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    environment.pop("SPARK_REMOTE", None)
    with (folder / "server.txt").open("a", encoding="utf-8") as output:
        process = subprocess.Popen(
            [*command, "spark-internal"],
            cwd=folder,
            env=environment,
            stdout=output,
            stderr=output,
            text=True,
            start_new_session=True,
        )
    with killed_at_last(process):
        wait_for_run(process, "the server", lambda: _accepts(port))
        yield process


def settings_of_delta() -> dict[str, str]:
    """Return the settings of a server whose sessions write Delta tables by SQL, such as those of a catalog."""
    return {
        "spark.jars": ",".join(map(str, delta_jars())),
        EXTENSIONS: DELTA_EXTENSION,
        "spark.sql.catalog.spark_catalog": DELTA_CATALOG,
    }


def client_of(port: int) -> Any:
    """Return a new session of the server on `port`."""
    from pyspark.sql import SparkSession

    return SparkSession.builder.remote(f"sc://127.0.0.1:{port}").create()


def _accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False
