"""The position of an archive as offsets of a group of its source."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient
from tests.groups.test_archived_groups import Groups
from tests.support import archive_runs
from tests.support.archives import ORDERS, OTHER, RECREATED, archive_config
from tests.support.mirror_runs import create_topic, write

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError
from shallow_mirror.groups import archived_groups, archived_position
from shallow_mirror.groups.archived_groups import GroupNotes
from shallow_mirror.groups.archived_position import WHOLE_EVERY_S, PositionCommitting, PositionPasses
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.local_kafka.node import LocalKafka
from shallow_mirror.types import SourcePartition

T0 = datetime(2026, 5, 1, 14, 0, tzinfo=UTC)
GROUP = "backup.archived"


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Groups:
    groups = Groups({"orders": ORDERS.topic_id}, end=100)
    for module in (archived_groups, archived_position):
        monkeypatch.setattr(module, "GroupClient", lambda *_: groups)
    return groups


def committed(source: Groups) -> dict[int, int | None]:
    """Return the newest commit, by partition."""
    return {entry.topic_partition.partition: entry.offset for entry in source.offsets_of.get(GROUP, ())}


def test_what_moved_is_committed_and_all_of_it_now_and_then(source: Groups, tmp_path: Path) -> None:
    decided = {ORDERS: 5, OTHER: 0}
    passes = PositionPasses(archive_config(tmp_path), lambda: decided)
    assert passes.run_pass(T0) == 2
    assert committed(source) == {0: 5, 1: 0}
    decided = {ORDERS: 7, OTHER: 0}
    assert passes.run_pass(T0 + timedelta(minutes=1)) == 1
    assert committed(source) == {0: 7}
    assert passes.run_pass(T0 + timedelta(minutes=2)) == 0
    assert passes.run_pass(T0 + timedelta(seconds=WHOLE_EVERY_S)) == 2  # before the broker deletes them as old
    assert committed(source) == {0: 7, 1: 0}


def test_positions_of_a_deleted_topic_and_beyond_the_end_of_the_log_are_not_committed(source: Groups, tmp_path: Path) -> None:
    decided = {ORDERS: 50, OTHER: 101, RECREATED: 9}
    passes = PositionPasses(archive_config(tmp_path), lambda: decided)
    source.ids = {"orders": RECREATED.topic_id}
    assert passes.run_pass(T0) == 1
    assert committed(source) == {0: 9}
    source.ids = {"orders": ORDERS.topic_id}
    assert passes.run_pass(T0 + timedelta(minutes=1)) == 1
    assert committed(source) == {0: 50}


def test_topics_that_are_no_longer_archived_are_left_out(source: Groups, tmp_path: Path) -> None:
    config = archive_config(tmp_path, topics={"include": [".*"], "exclude": ["orders"]})
    assert PositionPasses(config, lambda: {ORDERS: 5}).run_pass(T0) == 0
    assert committed(source) == {}


def test_a_refused_commit_is_a_warning_and_is_repeated(
    source: Groups, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_done = threading.Event()
    commit = source.commit
    tries = []

    def refusing_twice(group: str, offsets: dict[object, tuple[int, str]]) -> object:
        tries.append(group)
        if len(tries) < 3:
            return dict.fromkeys(offsets, "the group is active there: stop its consumers first")
        is_done.set()
        return commit(group, offsets)  # type: ignore[arg-type]

    monkeypatch.setattr(source, "commit", refusing_twice)
    with caplog.at_level("INFO"), PositionCommitting(archive_config(tmp_path), 0.001) as committing:
        committing.publish({ORDERS: 5})
        assert is_done.wait(20)
        committing.is_last_wanted = True
    assert committed(source) == {0: 5}
    assert [record.getMessage() for record in caplog.records if record.levelname in ("WARNING", "INFO")] == [
        "the archived position was not committed as offsets of a group, this is retried: ConfigError: source cluster east: the "
        f"offsets of 1 partition were not committed for group {GROUP}: the group is active there: stop its consumers first",
        "the archived position is committed as offsets of a group again",
    ]


def test_the_archive_does_not_note_its_own_group(source: Groups, tmp_path: Path) -> None:
    source.have(GROUP, ("orders", 0, 5))
    source.have("other.archived", ("orders", 0, 5))
    notes = GroupNotes(archive_config(tmp_path), TableStorage(str(tmp_path / "tables")).best_effort_tables())
    assert notes.run_pass(T0) == 1


@pytest.fixture
def topic(source_cluster: LocalKafka, topic_name: str) -> Iterator[SourcePartition]:
    bootstrap = source_cluster.bootstrap
    create_topic(bootstrap, topic_name)
    write(bootstrap, topic_name, ["a", "b", "c"])
    client = ClientConfig.from_properties({"bootstrap.servers": bootstrap})
    with closing(GroupClient(client, "the source")) as view:
        yield SourcePartition(topic_name, view.topic_ids([topic_name])[topic_name], 0)


@pytest.mark.brokers
def test_other_tools_see_the_position_and_an_active_group_refuses_it(
    source_cluster: LocalKafka, topic: SourcePartition, tmp_path: Path
) -> None:
    bootstrap = source_cluster.bootstrap
    config = archive_runs.config(tmp_path, bootstrap, [topic.topic])
    group = f"{config.archive}.archived"
    decided = {topic: 2}
    with closing(PositionPasses(config, lambda: decided)) as passes:
        assert passes.run_pass(T0) == 1
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        request = [ConsumerGroupTopicPartitions(group)]
        (seen,) = admin.list_consumer_group_offsets(request)[group].result(30).topic_partitions
        assert (seen.topic, seen.partition, seen.offset) == (topic.topic, 0, 2)
        consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0, "enable.auto.commit": False})
        consumer.subscribe([topic.topic])
        message = consumer.poll(30)
        assert message is not None
        assert message.offset() == 2
        decided = {topic: 3}
        with pytest.raises(ConfigError, match=rf"group {group}: the group is active there: stop its consumers first"):
            passes.run_pass(T0 + timedelta(minutes=1))
        consumer.close()
        assert passes.run_pass(T0 + timedelta(minutes=2)) == 1
