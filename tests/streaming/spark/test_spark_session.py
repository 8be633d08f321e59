from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.errors import ConfigError
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


def test_spark_connect_is_refused() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigError, match="Spark Connect"):
        spark_session.check_session(connect)


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
