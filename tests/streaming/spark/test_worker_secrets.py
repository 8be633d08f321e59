from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.streaming.spark.worker_secrets import pass_secrets_to_workers

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


def test_a_worker_gets_what_the_options_of_an_object_store_stand_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STORE_SECRET", "hunter2")
    objects = ObjectStore.open("s3://bucket/path", {"AWS_REGION": "x", "AWS_SECRET_ACCESS_KEY": "${env:STORE_SECRET}"})
    spark = SimpleNamespace(sparkContext=SimpleNamespace(environment={}))
    pass_secrets_to_workers(spark, [objects])
    assert list(spark.sparkContext.environment.values()) == ["hunter2"]
