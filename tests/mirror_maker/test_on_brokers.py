"""`mm2` on real clusters, over copies that a client wrote as MirrorMaker 2 does. No Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition as Place
from tests.groups.group_runs import PATIENCE_S, member
from tests.groups.mirrored_topic import Mirrored
from tests.support.console_entry import console
from tests.support.exit_codes import exit_code
from tests.support.mirror_runs import create_topic, delete_topic

from shallow_mirror.mirror_maker.flows import Flow
from shallow_mirror.mirror_maker.running.names import names_of
from shallow_mirror.mirror_maker.running.take_over import check_take_over

pytestmark = pytest.mark.brokers

PROPERTIES = """
clusters = east, west
east.bootstrap.servers = {source}
west.bootstrap.servers = {target}
east->west.enabled = true
"""
PARTITIONS = 4
"""That have a copy, of five."""


@pytest.fixture(scope="module")
def mirrored(two_clusters: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    folder = tmp_path_factory.mktemp("mm2-groups")
    made = Mirrored(folder, two_clusters, f"mm2-groups-{os.getpid()}")
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    (folder / "mm2.properties").write_text(PROPERTIES.format(source=source, target=target), encoding="utf-8")
    create_topic(target, f"east.{made.topic}", PARTITIONS)
    copy_as_mirror_maker(source, target, made.topic)
    yield made
    made.source.close()
    made.target.close()
    delete_topic(target, f"east.{made.topic}")


def copy_as_mirror_maker(source: str, target: str, topic: str) -> None:
    """Copy each record with its timestamp; the first three twice, as after a restart."""
    reader = Consumer({"bootstrap.servers": source, "group.id": "x", "enable.partition.eof": False})
    producer = Producer({"bootstrap.servers": target, "log_level": 0})
    for partition in range(PARTITIONS):
        reader.assign([Place(topic, partition, 0)])
        records = [reader.poll(PATIENCE_S) for _ in range(10)]
        for record in [*records[:3], *records]:
            assert record is not None
            producer.produce(f"east.{topic}", record.value(), partition=partition, timestamp=record.timestamp()[1])
    assert producer.flush(PATIENCE_S) == 0
    reader.close()


def committed_at_target(m: Mirrored, group: str) -> dict[str, dict[int, int | None]]:
    """Return offsets by topic and partition."""
    offsets: dict[str, dict[int, int | None]] = {}
    for committed in m.target.committed([m.group(group)])[m.group(group)]:
        offsets.setdefault(committed.topic_partition.topic, {})[committed.topic_partition.partition] = committed.offset
    return offsets


def test_groups_of_copies_are_committed_at_the_same_records_of_the_mirror(mirrored: Mirrored) -> None:
    m, copy = mirrored, f"east.{mirrored.topic}"
    m.commit(m.target, "app", {0: 3, 1: 8, 2: 13, 3: 4}, copy)
    m.commit(m.target, "app", {0: 1}, m.left)
    properties = m.path.parent / "mm2.properties"
    arguments = ("mm2", "groups", str(m.path), str(properties), "--group", m.group("app"))
    looked = console(*arguments, "--json")
    assert (looked.code, looked.slow_imports) == (0, "[]"), looked.stderr
    (group,) = json.loads(looked.lines[0])["groups"]
    results = {
        entry["partition"]: (entry["source_offset"], entry["to_offset"], entry["result"], entry["step"])
        for entry in group["partitions"]
    }
    assert results == {
        0: (0, 1, "left", "none"),  # the mirror began at offset 2 of the source
        1: (5, 4, "exact", "to commit"),
        2: (10, 7, "left", "none"),  # waits for the mirror
        3: (1, 1, "left", "none"),
    }
    assert m.topic not in committed_at_target(m, "app"), "looking changes nothing"
    assert exit_code(*arguments, "--apply") == 1, "three partitions are left"
    assert committed_at_target(m, "app")[m.topic] == {1: 4}


def test_a_group_whose_consumers_still_read_the_copies_is_left_alone(
    mirrored: Mirrored, capsys: pytest.CaptureFixture[str]
) -> None:
    m, copy = mirrored, f"east.{mirrored.topic}"
    m.commit(m.target, "busy", {1: 8}, copy)
    arguments = ("mm2", "groups", str(m.path), str(m.path.parent / "mm2.properties"), "--group", m.group("busy"), "--apply")
    with member(m.config.target.client.value("bootstrap.servers"), m.group("busy"), copy) as consumer:
        while not consumer.assignment():
            consumer.poll(0.1)
        assert exit_code(*arguments) == 1
    assert "stop its consumers first" in " ".join(capsys.readouterr().out.split())
    assert exit_code(*arguments) == 0
    assert "exact" in capsys.readouterr().out


def test_groups_and_topics_that_do_not_exist_are_named(
    mirrored: Mirrored, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    m, properties = mirrored, str(mirrored.path.parent / "mm2.properties")
    assert exit_code("mm2", "groups", str(m.path), properties, "--group", "none-such") == 2
    assert "--group none-such: no group of this name that the mirror file includes has committed" in capsys.readouterr().err
    assert exit_code("mm2", "groups", str(m.path), properties, "--target-name", "copy-{topic}") == 2
    assert "has no topic copy-TOPIC of a mirrored topic" in capsys.readouterr().err


def record_offsets(target: str, topic: str, offsets: dict[int, int]) -> str:
    """Write source offsets as Kafka Connect does, among others. Return its topic."""
    internal = f"offsets.{topic}"
    create_topic(target, internal, 2)
    producer = Producer({"bootstrap.servers": target, "log_level": 0})

    def record(cluster: str, partition: int, offset: int | None) -> None:
        key = json.dumps(["MirrorSourceConnector", {"cluster": cluster, "partition": partition, "topic": topic}])
        producer.produce(internal, None if offset is None else json.dumps({"offset": offset}), key, partition=partition % 2)

    for partition, offset in offsets.items():
        record("east", partition, 0)
        record("east", partition, offset)
        record("north", partition, 77)
    record("east", 3, None)
    assert producer.flush(PATIENCE_S) == 0
    return internal


def test_the_lag_is_what_connect_has_not_recorded_and_a_take_over_is_refused(mirrored: Mirrored) -> None:
    m, properties = mirrored, str(mirrored.path.parent / "mm2.properties")
    internal = record_offsets(m.config.target.client.value("bootstrap.servers"), m.topic, {0: 9, 1: 6, 2: 9, 3: 9})
    arguments = (str(m.path), properties, "--offsets-topic", internal)
    ended = console("mm2", "lag", *arguments, "--json")
    assert (ended.code, ended.slow_imports) == (1, "[]"), ended.stderr
    lag = json.loads(ended.lines[0])
    assert (lag["flow"], lag["lag_records"]) == ("east->west", 13)
    assert lag["without_copy"] == [{"topic": m.topic, "partition": 4}]
    partitions = {
        entry["partition"]: (entry["copied"], entry["log_end"], entry["lag_records"], entry["has_same_end"])
        for entry in lag["partitions"]
    }
    assert partitions == {0: (10, 10, 0, True), 1: (7, 10, 3, True), 2: (10, 10, 0, True), 3: (None, 10, 10, True)}

    checked = console("mm2", "check", *arguments, "--watch", "0")
    assert checked.code == 1
    assert checked.lines == [
        "MirrorMaker 2 east->west: 4 partitions, watched for 0 s: the mirror must not run yet",
        "- topics.target_name is '{topic}', MirrorMaker 2 writes to '{source}.{topic}': the mirror would use other topics",
        f"- {m.topic} would be copied from the start again (read.start, topics.start): set latest",
        f"- MirrorMaker 2 has no copy of {m.topic}-4: exclude the topics (topics.exclude), or let it copy them",
        f"- {m.topic}-1: 3 records not copied yet, as far as Connect has recorded: let MirrorMaker 2 copy them",
        f"- {m.topic}-3: 10 records not copied yet, as far as Connect has recorded: let MirrorMaker 2 copy them",
    ]


def test_writers_are_seen_while_both_clusters_are_watched(mirrored: Mirrored) -> None:
    m = mirrored
    producers = [
        Producer({"bootstrap.servers": side.client.value("bootstrap.servers"), "log_level": 0})
        for side in (m.config.source, m.config.target)
    ]

    def write(_seconds: float) -> None:
        for producer, topic in zip(producers, (m.topic, f"east.{m.topic}"), strict=True):
            producer.produce(topic, f"late in {topic}", partition=0)
            assert producer.flush(PATIENCE_S) == 0

    flow = Flow("east", "west", {"clusters": "east, west"})
    names = names_of(flow, "mm2.properties", connect_offsets=f"offsets.{m.topic}")
    checked = check_take_over(m.config, names, "mm2.properties", watch_s=5, sleep=write, on_wait=lambda _: None)
    assert (
        f"somebody wrote to east.{m.topic}-0 of the target within 5 s: stop MirrorMaker 2 and other producers" in checked.problems
    )
    assert f"producers wrote to {m.topic}-0 of the source within 5 s: stop them until the mirror runs" in checked.problems


def test_an_offsets_topic_that_is_not_there_is_named(mirrored: Mirrored, capsys: pytest.CaptureFixture[str]) -> None:
    m, properties = mirrored, str(mirrored.path.parent / "mm2.properties")
    assert exit_code("mm2", "lag", str(m.path), properties, "--offsets-topic", "none-such") == 2
    assert "has no topic none-such, in which Kafka Connect keeps offsets" in capsys.readouterr().err
