"""What is committed on a real cluster and what is left alone, over maps that a mirror may have left. No Spark."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.groups.group_runs import member, streams_member
from tests.groups.mirrored_topic import DATA, Mirrored
from tests.support.console_entry import console
from tests.support.exit_codes import exit_code
from tests.support.mirror_runs import delete_records, wait_for

from shallow_mirror.checkpoints.logs import last_pass
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.groups.report import Outcome, Step
from shallow_mirror.groups.sync import GroupSync, GroupSyncer
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.types import TopicPartition

pytestmark = pytest.mark.brokers

OTHER_SIDE = {"source": "target", "target": "source"}
T0 = datetime(2026, 5, 1, 14, 0, tzinfo=UTC)


@pytest.fixture(scope="module")
def mirrored(two_clusters: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mirrored]:
    folder = tmp_path_factory.mktemp("groups")
    made = Mirrored(folder, two_clusters, f"on-brokers-{os.getpid()}")
    yield made
    made.source.close()
    made.target.close()


def test_each_offset_says_where_it_leads_or_why_nowhere_and_apply_commits_what_is_exact(
    mirrored: Mirrored, capsys: pytest.CaptureFixture[str]
) -> None:
    m = mirrored
    m.commit(m.source, "app", {0: 2, 1: 5, 2: 8, 3: 9, 4: 1})
    m.commit(m.source, "app", {0: 0}, m.left)
    m.commit(m.source, "app", {0: 3}, "__consumer_offsets")
    ended = console("groups", str(m.path), "--group", m.group("app"), "--json")
    assert (ended.code, ended.slow_imports) == (0, "[]"), ended.stderr
    (actual,) = json.loads(ended.lines[0])["groups"]
    documents = {(document["topic"], document["partition"]): document for document in actual["partitions"]}
    results = {
        key: (document["outcome"], document["to_offset"], document["repeats"], document["waits_for"])
        for key, document in documents.items()
    }
    assert results == {
        (m.topic, 0): ("translated", 1, 0, 0),
        (m.topic, 1): ("translated", 4, 0, 0),
        (m.topic, 2): ("translated", 7, 0, 0),  # the exact end of the map
        (m.topic, 3): ("waits", 7, None, 1),
        (m.topic, 4): ("lost", 1, None, None),  # the source still has the record at 1, it was never mirrored
        (m.left, 0): ("not mirrored", None, None, None),
        ("__consumer_offsets", 0): ("not mirrored", None, None, None),
    }
    assert documents["__consumer_offsets", 0]["reason"] == "internal topics are never mirrored"
    assert "topics.include" in documents[m.left, 0]["reason"]
    assert "offsets 1 to 1 were never mirrored" in documents[m.topic, 4]["reason"]
    assert m.offsets(m.target, "app") == {}, "looking changes nothing"

    assert exit_code("groups", str(m.path), "--group", m.group("app"), "--apply") == 1, "two partitions are left"
    assert (
        "1 lost, 2 not mirrored, 3 translated, 1 waits; repeats 0 records, waits for 1 offset; at west: not there yet, 3 committed"
        in capsys.readouterr().out
    )
    assert m.offsets(m.target, "app") == {0: (1, "of the app"), 1: (4, "of the app"), 2: (7, "of the app")}
    forced = m.look("app", is_applied=True, is_forced=True)
    assert {group_partition.step for topic_partition, group_partition in forced.items() if topic_partition.topic == m.topic} == {
        Step.COMMITTED,
        Step.IN_PLACE,
    }
    assert {partition: offset for partition, (offset, _) in m.offsets(m.target, "app").items()} == {0: 1, 1: 4, 2: 7, 3: 7, 4: 1}


def test_nothing_goes_backwards_unless_forced(mirrored: Mirrored) -> None:
    m = mirrored
    m.commit(m.source, "further", {0: 4})
    m.commit(m.target, "further", {0: 6})
    topic_partition = TopicPartition(m.topic, 0)
    assert m.look("further", is_applied=True)[topic_partition].step is Step.FURTHER
    assert exit_code("groups", str(m.path), "--group", m.group("further"), "--apply") == 0
    assert m.offsets(m.target, "further")[0][0] == 6
    assert m.look("further", is_applied=True, is_forced=True)[topic_partition].step is Step.COMMITTED
    assert m.offsets(m.target, "further")[0][0] == 3


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_with_members_is_left_alone_until_they_are_gone(
    mirrored: Mirrored, capsys: pytest.CaptureFixture[str], protocol: str
) -> None:
    m, name, topic_partition = mirrored, f"active-{protocol}", TopicPartition(mirrored.topic, 0)
    m.commit(m.source, name, {0: 4})
    with member(m.config.target.client.value("bootstrap.servers"), m.group(name), m.topic, protocol) as consumer:
        while not consumer.assignment():
            consumer.poll(0.1)
        for is_forced in (False, True):
            active = m.look(name, is_applied=True, is_forced=is_forced)[topic_partition]
            assert active.step is Step.ACTIVE
            assert "stop its consumers first" in str(active.reason)
        refused = m.target.commit(m.group(name), {topic_partition: (3, "")})
        assert refused == {topic_partition: "the group is active there: stop its consumers first"}
    assert m.offsets(m.target, name) == {}
    assert exit_code("groups", str(m.path), "--group", m.group(name), "--apply") == 0
    assert "committed" in capsys.readouterr().out
    assert m.offsets(m.target, name)[0][0] == 3


def test_a_group_of_kafka_streams_is_a_group_as_any_other(mirrored: Mirrored) -> None:
    """By the protocol of KIP-1071. On the target it takes over what was committed before it first joined there."""
    m, name, topic_partition = mirrored, "streams", TopicPartition(mirrored.topic, 0)
    source, target = (cluster.client.value("bootstrap.servers") for cluster in (m.config.source, m.config.target))
    with streams_member(source, m.group(name), m.topic):
        assert m.source.listed()[m.group(name)].is_free is False
    m.commit(m.source, name, {0: 4})
    assert m.look(name, is_applied=True)[topic_partition].step is Step.COMMITTED
    with streams_member(target, m.group(name), m.topic):
        m.commit(m.source, name, {0: 5})
        assert m.look(name, is_applied=True)[topic_partition].step is Step.ACTIVE
        assert m.offsets(m.target, name)[0][0] == 3
    assert m.look(name, is_applied=True)[topic_partition].step is Step.COMMITTED
    assert m.offsets(m.target, name)[0][0] == 4


def test_failing_back_leads_to_the_source_and_offsets_that_it_deleted_are_named(mirrored: Mirrored) -> None:
    m = mirrored
    m.commit(m.target, "back", {0: 1, 1: 4, 2: 9, 3: 6})
    m.commit(m.target, "back", {0: 2}, m.left)
    delete_records(m.config.source.client.value("bootstrap.servers"), m.topic, 4, partition=0)
    actual = m.look("back", is_reverse=True)
    results = {
        topic_partition.partition: (group_partition.outcome, group_partition.to_offset)
        for topic_partition, group_partition in actual.items()
        if topic_partition.topic == m.topic
    }
    assert results == {
        0: (Outcome.LOST, 4),
        1: (Outcome.TRANSLATED, 5),
        2: (Outcome.TRANSLATED, 8),  # behind all that was mirrored
        3: (Outcome.TRANSLATED, 7),
    }
    assert actual[TopicPartition(m.topic, 0)].reason == "the log there begins at 4: 2 offsets from 2 on were deleted"
    assert actual[TopicPartition(m.left, 0)].reason == "this mirror does not write there"
    m.look("back", is_reverse=True, is_applied=True)
    assert {partition: offset for partition, (offset, _) in m.offsets(m.source, "back").items()} == {1: 5, 2: 8, 3: 7}


def test_an_offset_that_the_source_has_deleted_continues_where_the_target_still_has_it(mirrored: Mirrored) -> None:
    """A consumer of the source would be reset. At the target it misses nothing."""
    m = mirrored
    m.commit(m.source, "old", {0: 3, 4: 0})
    bootstrap = m.config.source.client.value("bootstrap.servers")
    delete_records(bootstrap, m.topic, 4, partition=0)
    delete_records(bootstrap, m.topic, 2, partition=4)
    actual = m.look("old")
    assert {
        topic_partition.partition: (group_partition.outcome, group_partition.to_offset)
        for topic_partition, group_partition in actual.items()
    } == {
        0: (Outcome.TRANSLATED, 2),
        4: (Outcome.TRANSLATED, 1),  # below the map, and nobody has it any more
    }


def test_looks_keep_groups_in_step_and_answer_where_they_were(mirrored: Mirrored) -> None:
    m = mirrored
    storage, topic_partition = TableStorage(m.config.tables), TopicPartition(m.topic, 1)
    m.commit(m.source, "kept", {1: 3})
    looks = GroupSyncer(m.config, storage, storage.best_effort_tables())
    try:
        looks.run_pass(T0)
        assert m.offsets(m.target, "kept") == {1: (2, "of the app")}
        m.commit(m.source, "kept", {1: 6, 2: 9})
        assert looks.run_pass(T0 + timedelta(minutes=3)).waiting_count >= 1
        m.decide([(2, DATA, 8, 10, 7)])
        done = looks.run_pass(T0 + timedelta(minutes=6))
        assert done.committed_count >= 1
        assert {partition: offset for partition, (offset, _) in m.offsets(m.target, "kept").items()} == {1: 5, 2: 8}
        controls = Controls.open(m.config.tables)
        controls.add("hand-over", [m.topic])
        m.commit(m.target, "kept", {1: 3})  # an operator's reset behind a move
        looks.run_pass(T0 + timedelta(minutes=7))
        assert m.offsets(m.target, "kept")[1][0] == 3
        controls.add("take-back", [m.topic])
        looks.run_pass(T0 + timedelta(minutes=8))
        assert m.offsets(m.target, "kept")[1][0] == 5
    finally:
        looks.close()
    for minutes, offset, observed, after in ((0, 3, 0, 3), (4, 6, 3, 6), (60, 6, 8, None)):
        report = sync_groups(m.config, pattern=m.group("kept"), as_of=T0 + timedelta(minutes=minutes))
        actual = {partition.topic_partition: partition for partition in report.partitions}
        assert (actual[topic_partition].offset, actual[topic_partition].to_offset, actual[topic_partition].outcome) == (
            offset,
            offset - 1,
            Outcome.TRANSLATED,
        )
        assert report.as_of is not None
        assert report.as_of.observed_at == T0 + timedelta(minutes=observed)
        assert report.as_of.next_at == (None if after is None else T0 + timedelta(minutes=after))
    gone = sync_groups(without_source(m), pattern=m.group("kept"), as_of=T0 + timedelta(minutes=4))
    assert {partition.to_offset for partition in gone.partitions} == {5, 8}, "the source need not be there"
    with pytest.raises(ConfigError, match=r"groups\.sync"):
        sync_groups(m.config, as_of=T0 - timedelta(hours=1))


def test_a_sync_that_fails_is_reported_and_continues(mirrored: Mirrored, caplog: pytest.LogCaptureFixture) -> None:
    m = mirrored
    storage = TableStorage(m.config.tables)
    store = storage.best_effort_tables()
    later = T0 + timedelta(days=2)
    with GroupSync(without_source(m), 0.05, storage, store, now=lambda: later):
        wait_for("a look that failed", lambda: (last_pass(store, later) or looked()).problem)
    problem = last_pass(store, later)
    assert problem is not None
    assert "source cluster east" in str(problem.problem)
    assert "groups: sync failed" in caplog.text
    with GroupSync(m.config, 0.05, storage, store, now=lambda: later + timedelta(days=2)) as sync:
        wait_for("a look that succeeds", lambda: (last_pass(store, later + timedelta(days=2)) or looked()).group_count)
        sync.is_last_wanted = True
    done = last_pass(store, later + timedelta(days=2))
    assert done is not None
    assert done.problem is None


def without_source(m: Mirrored) -> MirrorConfig:
    away = {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1", "request.timeout.ms": 50}}
    return MirrorConfig.from_document(json.loads(m.config.to_json()) | {"source": away}, folder=m.path.parent)


def looked() -> Any:
    raise AssertionError("nobody looked yet")


@pytest.mark.parametrize(
    ("options", "refused"),
    [
        pytest.param({}, "target_cluster_id = .* check bootstrap.servers of the target", id="forward"),
        pytest.param({"is_reverse": True}, "source_cluster_id = .* check bootstrap.servers of the source", id="back"),
    ],
)
def test_no_group_is_committed_on_a_cluster_that_the_map_is_not_of(
    mirrored: Mirrored, options: dict[str, Any], refused: str
) -> None:
    sides = json.loads(mirrored.config.to_json())
    swapped = sides | {side: sides[side] | {"client": sides[other]["client"]} for side, other in OTHER_SIDE.items()}
    with pytest.raises(ConfigError, match=refused):
        sync_groups(MirrorConfig.from_document(swapped, folder=mirrored.path.parent), is_applied=True, **options)


def test_the_map_of_another_mirror_translates_no_groups(mirrored: Mirrored) -> None:
    renamed = json.loads(mirrored.config.to_json()) | {"mirror": "other"}
    with pytest.raises(ConfigError, match="'other'"):
        sync_groups(MirrorConfig.from_document(renamed, folder=mirrored.path.parent), is_applied=True)


def test_a_group_that_is_not_there_and_a_pattern_that_is_none_are_one_sentence(mirrored: Mirrored) -> None:
    with pytest.raises(ConfigError, match="no group of this name"):
        sync_groups(mirrored.config, pattern="nobody")
    with pytest.raises(ConfigError, match="not a regular expression"):
        sync_groups(mirrored.config, pattern="(")
    with pytest.raises(ConfigError, match="exclude each other"):
        sync_groups(mirrored.config, is_reverse=True, as_of=T0)
    with pytest.raises(
        RetriableError, match=r"source cluster east does not answer: .* --as-of now uses what groups\.sync has recorded"
    ):
        sync_groups(without_source(mirrored))
