from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.slots import READS_PLANS_VARIABLE
from shallow_mirror.streaming.spark import spark_session


def _session(version: str = "4.2.0", **settings: str) -> Any:
    conf = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(version=version, sparkContext=SimpleNamespace(getConf=lambda: SimpleNamespace(get=conf.get)))


def test_a_plain_session_is_accepted() -> None:
    spark_session.check_session(_session())


def test_speculation_is_refused() -> None:
    with pytest.raises(ConfigError, match="speculation"):
        spark_session.check_session(_session(spark_speculation="true"))


def test_an_old_spark_is_refused_by_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("pyspark.sql.DataFrame.toArrow")
    with pytest.raises(
        ConfigError, match=r"PySpark 3\.5\.8 is too old: it lacks DataFrame\.toArrow, which PySpark has since 4\.0"
    ):
        spark_session.check_session(_session("3.5.8"))


def _connect_session(get: Callable[[str, str], str]) -> Any:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    session.version, session.conf = "4.3.0", SimpleNamespace(get=get)
    return session


def test_a_server_of_spark_connect_is_asked_for_its_settings() -> None:
    with pytest.raises(ConfigError, match=r"spark\.speculation is true"):
        spark_session.check_session(_connect_session({"spark.speculation": "true"}.get))


def test_a_server_of_spark_connect_that_does_not_tell_its_settings_is_accepted_with_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(name: str, default: str) -> str:
        raise AnalysisException(f"{name} is not available\nand more")

    spark_session.check_session(_connect_session(refuse))
    assert [record.getMessage() for record in caplog.records] == [
        f"{name} must be {value}, and the server of Spark Connect does not tell: {name} is not available"
        for name, value in (("spark.speculation", "false"), ("spark.python.worker.reuse", "true"))
    ]


@pytest.mark.parametrize(("can_stream", "may_stream"), [(True, True), (True, False), (False, True)])
def test_a_worker_that_reads_plans_is_started_ahead_only_for_a_stream(
    can_stream: bool, may_stream: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    jobs: list[bool] = []

    class Frame:
        """A worker belongs to the environment in which the function of the frame was made."""

        def __init__(self) -> None:
            self._reads_plans = READS_PLANS_VARIABLE in spark.sparkContext.environment

        def mapInArrow(self, function: object, schema: str) -> Frame:  # noqa: N802 - as Spark
            return self

        def toArrow(self) -> None:  # noqa: N802 - as Spark
            jobs.append(self._reads_plans)

    spark = SimpleNamespace(range=lambda _, **__: Frame(), sparkContext=SimpleNamespace(environment={}))
    monkeypatch.setattr(spark_session, "has_admission_control", lambda: can_stream)
    with spark_session.warmed_up(spark, may_stream=may_stream):
        pass
    assert jobs == ([False, True] if can_stream and may_stream else [False])
    assert not caplog.records


def test_what_only_costs_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    spark_session.check_session(_session(**{"spark_python_worker_reuse": "false"}))
    assert "worker.reuse" in caplog.text


DELTA = {
    "spark.sql.extensions": f"com.example.Other,{spark_session.DELTA_EXTENSION}",
    "spark.sql.catalog.spark_catalog": spark_session.DELTA_CATALOG,
}


def _delta_session(settings: dict[str, str]) -> Any:
    conf = SimpleNamespace(get=lambda name, default: settings.get(name, default))
    return SimpleNamespace(conf=conf, sparkContext=SimpleNamespace(getConf=lambda: conf))


@pytest.mark.parametrize("tables", ["/data/m", "catalog:spark_catalog.mirrors"])
def test_a_session_with_delta_reaches_tables_in_folders_and_in_sparks_own_catalog(tables: str) -> None:
    spark_session.check_delta(_delta_session(DELTA), tables)


def test_a_session_without_delta_is_refused_with_the_settings_it_needs() -> None:
    with pytest.raises(ConfigError) as caught:
        spark_session.check_delta(_delta_session({}), "/data/m")
    extensions, catalog = caught.value.problems
    assert f"spark.sql.extensions must name {spark_session.DELTA_EXTENSION}" in extensions
    assert (
        f"spark.sql.catalog.spark_catalog must name a catalog of Delta tables, such as {spark_session.DELTA_CATALOG}" in catalog
    )


def test_a_catalog_that_the_session_does_not_have_is_named() -> None:
    with pytest.raises(ConfigError, match=r"spark\.sql\.catalog\.unity must name"):
        spark_session.check_delta(_delta_session(DELTA), "catalog:unity.mirrors")


def test_a_runtime_with_delta_built_in_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.0")
    spark_session.check_delta(_delta_session({}), "catalog:main.mirrors")


@pytest.mark.spark
def test_a_local_session_has_room_for_compiled_code(spark: Any) -> None:
    pools = spark._jvm.java.lang.management.ManagementFactory.getMemoryPoolMXBeans()
    code = [pool.getUsage().getMax() for pool in pools if pool.getName().startswith("Code")]
    assert sum(code) >= 240 << 20
