"""The log of the groups of a real cluster says what its coordinators answer, and what is committed reaches the target exactly."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition as ClientTopicPartition
from confluent_kafka.admin import AdminClient
from tests.groups.group_runs import PATIENCE_S, consume, member, streams_member
from tests.groups.mirrored_topic import DATA, Mirrored
from tests.support.mirror_runs import wait_for

from shallow_mirror.broker.clients import BatchConsumer, IsolationLevel
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.groups.commit_sources import FollowedCommits, PolledCommits
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.sync import GroupSync, GroupSyncer
from shallow_mirror.groups.sync_plan import Committed, GroupOffsets
from shallow_mirror.local_kafka.jars import java_executable, kafka_jars
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.group_log import logged_records, parse_commit_key, parse_committed_offset

pytestmark = pytest.mark.brokers

T0 = datetime(2026, 5, 1, 14, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def mirrored(two_clusters: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    made = Mirrored(tmp_path_factory.mktemp("following"), two_clusters, f"following-{os.getpid()}", sync="30 seconds")
    yield made
    made.source.close()
    made.target.close()


def bootstrap(m: Mirrored, side: str = "source") -> str:
    return str((m.config.source if side == "source" else m.config.target).client.value("bootstrap.servers"))


class GroupProducer:
    """Commits offsets of a group in transactions."""

    def __init__(self, m: Mirrored, group: str) -> None:
        self._topic = m.topic
        self._producer = Producer({"bootstrap.servers": bootstrap(m), "transactional.id": f"{group}-producer", "log_level": 0})
        self._producer.init_transactions(PATIENCE_S)
        with member(bootstrap(m), m.group(group), m.topic) as consumer:
            self._metadata = consumer.consumer_group_metadata()

    def begin(self, offsets: dict[int, int]) -> None:
        self._producer.begin_transaction()
        places = [ClientTopicPartition(self._topic, partition, offset) for partition, offset in offsets.items()]
        self._producer.send_offsets_to_transaction(places, self._metadata, PATIENCE_S)

    def end(self, *, is_committed: bool) -> None:
        if is_committed:
            self._producer.commit_transaction(PATIENCE_S)
        else:
            self._producer.abort_transaction(PATIENCE_S)


def by_place(committed: list[Committed]) -> dict[tuple[str, TopicPartition], tuple[int | None, str]]:
    return {(commit.group, commit.topic_partition): (commit.offset, commit.metadata) for commit in committed}


def test_the_log_says_what_the_coordinators_answer(mirrored: Mirrored) -> None:
    m = mirrored
    admin = AdminClient({"bootstrap.servers": bootstrap(m), "log_level": 0})
    m.commit(m.source, "before", {0: 3, 1: 4})
    m.commit(m.source, "deleted", {0: 3})
    open_before = GroupProducer(m, "open-before")
    open_before.begin({0: 7})
    with closing(GroupOffsets(m.config)) as groups, closing(FollowedCommits(m.config, groups)) as followed:
        polled = PolledCommits(groups)
        assert by_place(followed.newest())[m.group("before"), TopicPartition(m.topic, 0)] == (3, "of the app")
        open_before.end(is_committed=True)
        consume(bootstrap(m), m.group("classic"), m.topic, 5)
        with member(bootstrap(m), m.group("kip-848"), m.topic, "consumer") as consumer:
            wait_for("an assignment", lambda: consumer.poll(0.1) is None and consumer.assignment())
            consumer.commit(offsets=[ClientTopicPartition(m.topic, 2, 6)], asynchronous=False)
        with streams_member(bootstrap(m), m.group("streams"), m.topic):
            pass
        m.commit(m.source, "streams", {0: 2})
        transactional = GroupProducer(m, "transactional")
        transactional.begin({0: 5, 1: 6})
        transactional.end(is_committed=True)
        transactional.begin({0: 9})
        transactional.end(is_committed=False)
        m.commit(m.source, "before", {0: 2})
        m.commit(m.source, "elsewhere", {0: 2}, m.left)
        admin.delete_consumer_groups([m.group("deleted")])[m.group("deleted")].result(30)
        expected = {
            read_partition: offset
            for read_partition, offset in by_place(polled.newest()).items()
            if read_partition[1].topic == m.topic
        }
        wait_for("the end of the log", lambda: by_place(followed.newest()) == expected)
        assert expected[m.group("transactional"), TopicPartition(m.topic, 0)][0] == 5
        assert expected[m.group("open-before"), TopicPartition(m.topic, 0)][0] == 7
        assert (m.group("deleted"), TopicPartition(m.topic, 0)) not in expected
        with closing(FollowedCommits(m.config, groups)) as later:
            assert by_place(later.newest()) == expected


@pytest.mark.long
def test_commits_of_a_java_client_are_followed_and_those_of_its_aborted_transaction_are_not(mirrored: Mirrored) -> None:
    m = mirrored
    m.commit(m.source, "first", {0: 3})  # a cluster without any group has no log of them
    storage = TableStorage(m.config.tables)
    with closing(GroupSyncer(m.config, storage, storage.best_effort_tables())) as syncer:
        assert syncer.run_pass(T0).is_followed
        command = [java_executable(), "-cp", f"{kafka_jars()[0].parent}/*", str(Path(__file__).parent / "GroupCommits.java")]
        subprocess.run([*command, bootstrap(m), m.topic, m.group("java")], capture_output=True, check=True, timeout=60)
        wait_for("its offsets", lambda: bool(syncer.step()) and _offsets(m, "java") == {0: 4, 1: 5})
    assert m.offsets(m.target, "java")[1] == (5, "in a transaction")


def test_commits_reach_the_target_while_the_map_grows_and_those_of_aborted_transactions_never(mirrored: Mirrored) -> None:
    m = mirrored
    storage = TableStorage(m.config.tables)
    aborted = GroupProducer(m, "aborted")
    with GroupSync(m.config, 3_600.0, storage, storage.best_effort_tables()):
        m.commit(m.source, "quick", {0: 3})
        wait_for("3 at the target", lambda: _offsets(m, "quick") == {0: 2})
        for offset in (4, 6, 9):  # the map ends at 8
            m.commit(m.source, "quick", {0: offset})
        wait_for("6 at the target", lambda: _offsets(m, "quick") == {0: 5})
        aborted.begin({1: 5})
        aborted.end(is_committed=False)
        m.commit(m.source, "quick", {1: 4})
        wait_for("what was committed behind it", lambda: _offsets(m, "quick").get(1) == 3)
        m.decide([(0, DATA, 8, 9, 7)])
        wait_for("9 at the target", lambda: _offsets(m, "quick").get(0) == 8)
        m.commit(m.source, "quick", {0: 5})
        m.commit(m.source, "quick", {1: 5})
        wait_for("the end of the log", lambda: _offsets(m, "quick").get(1) == 4)
    assert _offsets(m, "quick") == {0: 8, 1: 4}, "a reset at the source moves nothing back"
    assert _offsets(m, "aborted") == {}


def test_a_sync_that_is_killed_again_and_again_ends_exact_and_never_goes_backwards(mirrored: Mirrored) -> None:
    """It keeps nothing, so one that is left in the middle is one that was killed."""
    m, chance, now = mirrored, random.Random(7), T0
    storage = TableStorage(m.config.tables)
    names = ["killed-a", "killed-b", "killed-c"]
    transactional = GroupProducer(m, "killed-t")
    final: dict[tuple[str, int], int] = {}
    for _ in range(5):
        syncer = GroupSyncer(m.config, storage, storage.best_effort_tables())
        now += timedelta(minutes=1)
        syncer.run_pass(now)
        for _ in range(8):
            name, partition = chance.choice(names), chance.randrange(2, 5)
            offset = min(8, max(final.get((name, partition), 2), chance.randrange(2, 9)))
            m.commit(m.source, name, {partition: offset})
            final[name, partition] = offset
            is_committed = chance.random() < 0.5
            offset = min(8, max(final.get(("killed-t", 2), 2), chance.randrange(2, 9)))
            transactional.begin({2: offset})
            if chance.random() < 0.5:
                syncer.step()
            transactional.end(is_committed=is_committed)
            if is_committed:
                final["killed-t", 2] = offset
        if chance.random() < 0.5:
            syncer.step()
        syncer.close()
    syncer = GroupSyncer(m.config, storage, storage.best_effort_tables())
    with closing(syncer):
        syncer.run_pass(now + timedelta(minutes=1))
    for name in [*names, "killed-t"]:
        expected = {partition: offset - 1 for (group, partition), offset in final.items() if group == name}
        assert _offsets(m, name) == expected, name
    for group, offsets in logged_commits(m).items():
        assert offsets == sorted(offsets), f"{group} went backwards"


def logged_commits(m: Mirrored) -> dict[tuple[str, int], list[int]]:
    """Return what was committed at the target, in the order of its log."""
    commits: dict[tuple[str, int], list[int]] = {}
    with closing(GroupClient(m.config.target.client, "west")) as groups:
        _, ends = groups.group_log_ends()
    with BatchConsumer(m.config.target.client, isolation=IsolationLevel.READ_UNCOMMITTED) as consumer:
        consumer.assign(dict.fromkeys(ends, "earliest"))
        while any(consumer.position(log) < end for log, end in ends.items()):
            for batch in consumer.poll_batches(1 << 20, 500):
                for record in [] if batch.is_control else logged_records(batch.view, batch.topic_partition, max_bytes=1 << 24):
                    key = None if record.key is None else parse_commit_key(record.key)
                    if key is not None and key.group.startswith(m.group("killed-")) and record.value is not None:
                        commits.setdefault((key.group, key.partition), []).append(parse_committed_offset(record.value))
    return commits


def _offsets(m: Mirrored, group: str) -> dict[int, int | None]:
    return {partition: offset for partition, (offset, _) in m.offsets(m.target, group).items()}
