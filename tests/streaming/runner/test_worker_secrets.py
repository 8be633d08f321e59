from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from shallow_mirror.broker.auth.client_config import ClientConfig
from shallow_mirror.streaming.runner.spark_session import pass_secrets_to_workers

PROPERTIES = {
    "bootstrap.servers": "${env:HOST}:9092",
    "security.protocol": "sasl_plaintext",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "me",
    "sasl.password": "${env:PASSWORD}",
    "client.id": "${file:/etc/hostname}",
}


def test_a_worker_without_the_drivers_variables_gets_what_they_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOST", "h")
    monkeypatch.setenv("PASSWORD", "hunter2")
    config = ClientConfig.from_properties(PROPERTIES)
    spark = SimpleNamespace(sparkContext=SimpleNamespace(environment={}))
    pass_secrets_to_workers(spark, [config, config])
    handed = spark.sparkContext.environment
    assert sorted(handed.values()) == ["h", "hunter2"]
    assert all(name.isidentifier() for name in handed)

    for name in ("HOST", "PASSWORD"):
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", os.environ | handed)
    assert config.value("sasl.password") == "hunter2"
    assert config.bootstrap == (("h", 9092),)
    monkeypatch.setattr(os, "environ", os.environ | {"PASSWORD": "its own"})
    assert config.value("sasl.password") == "its own"
