"""Heartbeats and schemas beside a running mirror, on real clusters."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from tests.fakes.registry_server import RegistryServer
from tests.schemas.registry_pair import fill
from tests.support import mirror_runs as runs
from tests.support.console_entry import console

from shallow_mirror.config import MirrorConfig

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.usefixtures("micro_batch_loop")]

HEARTBEATS = "heartbeats"


def first_heartbeat(bootstrap: str, topic: str) -> Any:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "x"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    record = consumer.poll(runs.PATIENCE_S)
    consumer.close()
    assert record is not None
    return record


def test_a_mirror_writes_heartbeats_and_follows_schemas(two_clusters: Any, spark: Any, tmp_path: Path) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    with RegistryServer() as east, RegistryServer() as west:
        fill(east.rules)
        conf = runs.conf_file(
            tmp_path,
            source,
            target,
            [HEARTBEATS],
            topics={"target_name": "{source}.{topic}", "discovery": "1 second"},
            heartbeats={"interval": "1 second", "clusters": "both"},
            schemas={"source": {"url": east.url}, "target": {"url": west.url}, "sync": "1 second"},
        )
        with runs.Running(MirrorConfig.load(conf), spark) as mirror:
            mirror.wait_for("schemas", lambda: west.rules.versions == east.rules.versions)
            mirror.wait_for(
                "the copy of a heartbeat of the source",
                lambda: f"east.{HEARTBEATS}" in runs.topics_of(target) and runs.last_stable_offset(target, f"east.{HEARTBEATS}"),
            )
            status = json.loads(console("status", str(conf), "--json").lines[0])
    assert (status["schemas"]["lacking"], status["schemas"]["problem"]) == (0, None)
    of_flow, of_opposite = b"\x00\x04east\x00\x04west", b"\x00\x04west\x00\x04east"
    for bootstrap, topic, key in (
        (target, HEARTBEATS, of_flow),
        (source, HEARTBEATS, of_opposite),
        (target, f"east.{HEARTBEATS}", of_opposite),
    ):
        assert runs.topics_of(bootstrap)[topic] == 1
        # The copy is compacted once what the source's topic held is copied.
        assert topic != HEARTBEATS or runs.topic_settings(bootstrap, topic)["cleanup.policy"] == "compact"
        record = first_heartbeat(bootstrap, topic)
        version, timestamp_ms = struct.unpack(">hq", record.value())
        assert (record.key(), version, record.timestamp()[1]) == (key, 0, timestamp_ms)
        runs.delete_topic(bootstrap, topic)
