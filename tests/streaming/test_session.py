from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.errors import ConfigError
from shallow_mirror.streaming import session


def _session(version: str = "4.2.0", **settings: str) -> Any:
    conf = {name.replace("_", "."): value for name, value in settings.items()}
    return SimpleNamespace(version=version, sparkContext=SimpleNamespace(getConf=lambda: SimpleNamespace(get=conf.get)))


def test_a_plain_session_is_accepted() -> None:
    session.check_session(_session())


def test_speculation_is_refused() -> None:
    with pytest.raises(ConfigError, match="speculation"):
        session.check_session(_session(spark_speculation="true"))


def test_an_old_spark_is_refused() -> None:
    with pytest.raises(ConfigError, match="too old"):
        session.check_session(_session("4.1.9"))


def test_spark_connect_is_refused() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    with pytest.raises(ConfigError, match="Spark Connect"):
        session.check_session(connect)


def test_what_only_costs_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    session.check_session(_session(**{"spark_python_worker_reuse": "false"}))
    assert "worker.reuse" in caplog.text
