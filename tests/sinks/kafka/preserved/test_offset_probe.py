"""The trial of preserved offsets on brokers that are too old for its topic."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pytest
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.preserved import offset_probe
from shallow_mirror.sinks.kafka.preserved.offset_probe import require_preserved_offsets

OLD_BROKER = "target topic t cannot be created: Unknown topic config name: message.timestamp.before.max.ms"
OTHER = "target topic t cannot be created: grant Create on topic t"


@pytest.mark.parametrize(
    ("text", "message"), [(OLD_BROKER, "cannot preserve offsets .*: they are older than Kafka 3.6 .*translated"), (OTHER, OTHER)]
)
def test_brokers_that_do_not_know_the_settings_are_named_as_too_old(
    monkeypatch: pytest.MonkeyPatch, text: str, message: str
) -> None:
    def refusing(*_: Any, **__: Any) -> None:
        raise ConfigError(text)

    monkeypatch.setattr(offset_probe, "ensure_topics", refusing)
    with StrictCluster() as broker:
        client = ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap})
        with closing(Cluster(client)) as target, pytest.raises(ConfigError, match=message):
            require_preserved_offsets(client, target, "m", Deadline.after_ms(20_000, time.monotonic))
