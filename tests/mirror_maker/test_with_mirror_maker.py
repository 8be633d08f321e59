"""Groups, lag and the end of a real MirrorMaker 2, whose topics a mirror replaces."""

from __future__ import annotations

import json
import random
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition as Place
from tests.groups.group_runs import PATIENCE_S, write_transactions
from tests.mirror_maker.mirror_maker_process import MirrorMakerProcess
from tests.support.console_entry import console
from tests.support.mirror_runs import (
    catch_up,
    conf_file,
    create_topic,
    delete_topic,
    delete_topics_ending,
    high_watermark,
    topics_of,
    wait_for,
)

from shallow_mirror.config import MirrorConfig
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.local_kafka.jars import CONNECT_JAR_SET, jars_of, java_executable
from shallow_mirror.mirror_maker.heartbeats import HeartbeatPasses
from shallow_mirror.types import TopicPartition

pytestmark = [pytest.mark.brokers, pytest.mark.spark, pytest.mark.long]

TRANSACTIONS, EQUAL = 0, 1


@pytest.fixture(autouse=True)
def _clean_clusters(two_clusters: Any) -> Iterator[None]:
    """Delete the topics of MirrorMaker 2 and of its Connect workers."""
    yield
    for cluster in two_clusters:
        delete_topics_ending(cluster.bootstrap, ("heartbeats", ".internal"))


def mm2(command: str, *arguments: object) -> tuple[int, Any]:
    """Return the exit code and the document of a command."""
    ended = console("mm2", command, *map(str, arguments), "--json")
    assert ended.lines, ended.stderr
    return ended.code, json.loads(ended.lines[0])


def write(bootstrap: str, topic: str, name: str) -> None:
    """Partition 0: records with a value each, of transactions and plain. Partition 1: runs of equal records in one millisecond."""
    write_transactions(bootstrap, topic, 1, 120, name)
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    now_ms = time.time_ns() // 1_000_000  # older records would be deleted by retention
    for number in range(30):
        for _ in range(1 + number % 4):
            producer.produce(topic, f"{name}-{number}", b"key", partition=EQUAL, timestamp=now_ms + number // 3)
    assert producer.flush(PATIENCE_S) == 0


def log(bootstrap: str, topic: str, partition: int, isolation: str = "read_committed") -> list[tuple[int, bytes]]:
    """Return offsets and values."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": isolation, "enable.partition.eof": True}
    )
    consumer.assign([Place(topic, partition, 0)])
    records: list[tuple[int, bytes]] = []
    while True:
        message = consumer.poll(PATIENCE_S)
        assert message is not None
        if message.error():
            consumer.close()
            return records
        records.append((message.offset(), message.value()))


def test_groups_continue_in_the_mirrors_topics_at_the_record_at_which_they_stood(
    two_clusters: Any, spark: Any, tmp_path: Path, topic_name: str
) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    copy = f"east.{topic_name}"
    create_topic(source, topic_name, 2)
    write(source, topic_name, "first")
    conf = conf_file(tmp_path, source, target, [topic_name])
    config = MirrorConfig.load(conf)
    # Nothing is flushed before it is killed, so it copies everything again.
    mirror_maker = MirrorMakerProcess(tmp_path, source, target, topic_name, {"west.offset.flush.interval.ms": "600000"})

    def copied(runs: int) -> bool:
        mirror_maker.require_running()
        ends = [runs * len(log(source, topic_name, partition, "read_uncommitted")) for partition in (TRANSACTIONS, EQUAL)]
        return copy in topics_of(target) and [high_watermark(target, copy, partition) for partition in range(2)] == ends

    with mirror_maker:
        wait_for("the first copy", lambda: copied(1))
        mirror_maker.stop(kill=True)
        mirror_maker.start()
        wait_for("the second copy", lambda: copied(2))

    catch_up(config, spark)
    client, chance = GroupClient(config.target.client, "west"), random.Random(7)
    positions = {}
    for number in range(12):
        for partition in range(2):
            end = high_watermark(target, copy, partition)
            positions[f"{topic_name}.{number}", partition] = {0: 0, 1: end, 2: end // 2}.get(number, chance.randrange(end))
        offsets = {
            TopicPartition(copy, partition): (positions[f"{topic_name}.{number}", partition], "note") for partition in range(2)
        }
        assert client.commit(f"{topic_name}.{number}", offsets) == {}
    code, report = mm2("groups", conf, mirror_maker.path, "--group", f"{topic_name}.*", "--apply")
    assert code == 0
    moved = {
        (group["group"], partition["partition"]): partition for group in report["groups"] for partition in group["partitions"]
    }
    assert moved.keys() == positions.keys()
    assert {partition["step"] for partition in moved.values()} == {"committed"}
    for partition in range(2):
        copies, mirrored = log(target, copy, partition), log(target, topic_name, partition)
        visible = {value for _, value in mirrored}
        for number in range(12):
            name, position = f"{topic_name}.{number}", positions[f"{topic_name}.{number}", partition]
            entry = moved[name, partition]
            skipped = Counter(value for offset, value in mirrored if offset < entry["to_offset"])
            read = Counter(value for offset, value in copies if offset < position)
            assert skipped <= read, "a record that the group has not read is left out"
            wanted = [value for offset, value in copies if offset >= position and value in visible][:5]
            rest = [value for offset, value in mirrored if offset >= entry["to_offset"]]
            if entry["result"] == "exact" and position != high_watermark(target, copy, partition) // 2:
                assert wanted[: len(rest)] == rest[: len(wanted)]
    committed = client.committed([f"{topic_name}.3"])[f"{topic_name}.3"]
    at_mirror = {offset.topic_partition.partition: offset for offset in committed if offset.topic_partition.topic == topic_name}
    assert {partition: offset.offset for partition, offset in at_mirror.items()} == {
        partition: moved[f"{topic_name}.3", partition]["to_offset"] for partition in range(2)
    }
    assert {offset.metadata for offset in at_mirror.values()} == {"note"}
    client.close()
    for topic in (copy, topic_name):
        delete_topic(target, topic)


def test_a_mirror_continues_in_its_topics_when_everything_is_copied_and_nobody_writes(
    two_clusters: Any, spark: Any, tmp_path: Path, topic_name: str
) -> None:
    source, target, copy = two_clusters.source.bootstrap, two_clusters.target.bootstrap, f"east.{topic_name}"
    create_topic(source, topic_name, 2)
    write(source, topic_name, "first")
    conf = conf_file(tmp_path, source, target, [topic_name], topics={"target_name": "{source}.{topic}"}, read={"start": "latest"})
    mirror_maker = MirrorMakerProcess(tmp_path, source, target, topic_name)
    arguments = (conf, mirror_maker.path)

    def lag() -> int:
        return int(mm2("lag", *arguments)[1]["lag_records"])

    with mirror_maker:
        wait_for("its topics", lambda: copy in topics_of(target) and "mm2-offsets.east.internal" in topics_of(target))
        wait_for("everything copied and recorded", lambda: lag() == 0)
        code, checked = mm2("check", *arguments, "--watch", 2)
        assert (code, checked["is_fine"]) == (1, False)
        problems = "\n".join(checked["problems"])
        assert "its group east-mm2 has members" in problems
        assert "of this flow within 2 s: stop it" in problems
        assert f"{topic_name}-" not in problems, "nothing is left to copy"

    write(source, topic_name, "second")
    expected = sum(len(log(source, topic_name, partition, "read_uncommitted")) for partition in range(2)) - sum(
        high_watermark(target, copy, partition) for partition in range(2)
    )
    assert lag() == expected > 0
    code, checked = mm2("check", *arguments, "--watch", 0)
    assert code == 1
    assert len(checked["problems"]) == 2, "one for each partition, which is not copied"
    with mirror_maker:
        wait_for("everything copied and recorded", lambda: lag() == 0)
    wait_for("its end", lambda: mm2("check", *arguments, "--watch", 1)[0] == 0)

    settings = MirrorConfig.load(conf)
    catch_up(settings, spark)
    write(source, topic_name, "third")
    catch_up(settings, spark)
    for partition in range(2):
        mirrored = [value for _, value in log(target, copy, partition)]
        third = [value for _, value in log(source, topic_name, partition) if value.startswith(b"third")]
        assert third
        assert [value for value in mirrored if value.startswith(b"third")] == third
        assert mirrored[-len(third) :] == third
    delete_topic(target, copy)


def test_mirror_maker_reads_heartbeats_of_a_mirror(two_clusters: Any, tmp_path: Path) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    settings = MirrorConfig.load(conf_file(tmp_path, source, target, ["none"], topics={"replication_factor": 1}))
    with closing(HeartbeatPasses(settings)) as passes:
        passes.run_pass(datetime(2026, 11, 27, 5, 55, 36, tzinfo=UTC))
    create_topic(target, "east.heartbeats")  # the copy of the source's
    command = [
        java_executable(),
        "-cp",
        f"{jars_of(CONNECT_JAR_SET)[0].parent}/*",
        str(Path(__file__).parent / "HeartbeatReader.java"),
    ]
    ended = subprocess.run([*command, target], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["east west 1795758936000 1795758936000", "[east]"]
