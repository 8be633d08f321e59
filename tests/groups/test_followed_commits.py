"""What groups commit at the source is at the target one step later, by the rules of the passes. On strict fakes."""

from __future__ import annotations

import json
import random
import struct
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.changes import Change, dropped_before, error
from tests.fakes.coordinators import Committed
from tests.fakes.partition_log import PartitionLog
from tests.fakes.strict_broker import StrictCluster
from tests.groups.followed_world import LOG, TOPIC, FollowedWorld
from tests.support.group_log import commit_batch, commit_key, commit_value
from tests.support.mirror_runs import wait_for

from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.broker.produce import is_receipt
from shallow_mirror.checkpoints import Removal
from shallow_mirror.checkpoints.logs import positions_as_of
from shallow_mirror.checkpoints.logs.runs import Problem
from shallow_mirror.checkpoints.logs.topics import Controls
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.groups import sync, sync_once
from shallow_mirror.groups.group_client import GroupClient
from shallow_mirror.groups.report import GroupLag, Step
from shallow_mirror.groups.sync import GroupSync, GroupSyncer, step_interval_s
from shallow_mirror.types import SlotTxn

T0 = datetime(2026, 5, 1, 14, 0, tzinfo=UTC)
GROUP = 0
"""The coordinator's kind."""
GONE = 9
"""A node that there is not."""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[FollowedWorld]:
    with FollowedWorld(tmp_path) as opened:
        yield opened


@pytest.fixture
def syncer(world: FollowedWorld) -> Iterator[GroupSyncer]:
    opened = world.syncer()
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_commit_is_at_the_target_one_step_later(world: FollowedWorld, syncer: GroupSyncer) -> None:
    world.commit(10)
    done = syncer.run_pass(T0)
    assert (done.is_followed, done.not_followed, done.committed_count, world.offset()) == (True, None, 1, 10)
    world.commit(20)
    world.commit(7, "other", 1)
    assert world.step(syncer).age_s == 0.0
    assert (world.offset(), world.offset("other", 1)) == (20, 7)
    requests = [cluster.asked(api) for cluster in (world.source, world.target) for api in ("OffsetFetch", "OffsetCommit")]
    world.step(syncer)
    world.step(syncer)
    assert requests == [
        cluster.asked(api) for cluster in (world.source, world.target) for api in ("OffsetFetch", "OffsetCommit")
    ], "nothing was committed, nothing is requested"
    assert syncer.run_pass(T0 + timedelta(seconds=30)).followed_count == 2


@pytest.mark.slow
def test_of_a_group_that_is_ahead_of_the_map_the_newest_offset_that_it_covers_is_committed(
    world: FollowedWorld, syncer: GroupSyncer
) -> None:
    syncer.run_pass(T0)
    for offset in (40, 90, 100, 140, 190):
        world.commit(offset)
    age_s = world.step(syncer).age_s
    assert world.offset() == 100
    assert age_s is not None
    assert age_s > 0.0
    world.mirror(150)
    world.step(syncer)
    assert world.offset() == 140
    world.commit(200)
    world.mirror(300)
    assert (world.step(syncer).age_s, world.offset()) == (0.0, 200)


@pytest.mark.slow
def test_what_waits_for_the_map_is_tried_again_only_when_the_map_has_changed(world: FollowedWorld, syncer: GroupSyncer) -> None:
    syncer.run_pass(T0)
    world.commit(140)
    world.step(syncer)
    asked = world.target.asked("OffsetFetch")
    world.commit(150)
    world.step(syncer)
    world.step(syncer)
    assert (world.target.asked("OffsetFetch"), world.offset()) == (asked, None)
    world.mirror(145)
    world.step(syncer)
    assert world.offset() == 140


@pytest.mark.slow
def test_nothing_goes_backwards(world: FollowedWorld, syncer: GroupSyncer) -> None:
    world.commit(50)
    syncer.run_pass(T0)
    world.commit(30)
    assert world.step(syncer).age_s == 0.0
    assert world.offset() == 50, "a reset at the source moves nothing"
    world.reset(80)
    world.commit(60)
    world.step(syncer)
    assert world.offset() == 80, "the application continued at the target"
    world.commit(90)
    world.step(syncer)
    assert world.offset() == 90


@pytest.mark.slow
def test_offsets_of_a_transaction_are_committed_with_it(world: FollowedWorld, syncer: GroupSyncer) -> None:
    world.commit(10)
    syncer.run_pass(T0)
    world.commit(20, producer_id=44)
    world.step(syncer)
    assert world.offset() == 10
    world.end_transaction(44, is_committed=True)
    world.step(syncer)
    assert world.offset() == 20
    world.commit(30, producer_id=44)
    world.end_transaction(44, is_committed=False)
    world.step(syncer)
    syncer.run_pass(T0 + timedelta(seconds=30))
    assert world.offset() == 20


@pytest.mark.slow
@pytest.mark.parametrize("is_committed", [True, False])
def test_a_transaction_that_is_open_at_the_start_is_followed_from_its_beginning(
    world: FollowedWorld, syncer: GroupSyncer, is_committed: bool
) -> None:
    world.commit(10)
    world.commit(20, producer_id=44)
    world.commit(30, "other")
    syncer.run_pass(T0)
    assert (world.offset(), world.offset("other")) == (10, 30)
    world.end_transaction(44, is_committed=is_committed)
    world.step(syncer)
    assert world.offset() == (20 if is_committed else 10)


@pytest.mark.slow
def test_deleted_groups_and_records_of_other_types_move_nothing(world: FollowedWorld, syncer: GroupSyncer) -> None:
    syncer.run_pass(T0)
    world.commit(10)
    world.log([(commit_key("billing", TOPIC, 0), None), (struct.pack(">h", 2) + b"\x00\x07billing", None)])
    world.log([(struct.pack(">h", 11) + b"share", b"state")])
    world.log([(commit_key("billing", "left-out", 0), commit_value(5))])
    world.step(syncer)
    assert world.offset() is None


@pytest.mark.slow
def test_groups_of_mirrors_and_excluded_ones_are_left_out(tmp_path: Path) -> None:
    receipt = json.dumps({"v": 1, "producer_id": 4, "producer_epoch": 0, "decision": 9, "map": "x", "run": "r"})
    assert is_receipt(receipt)
    with FollowedWorld(tmp_path, exclude=["console-consumer-.*"]) as world, closing(world.syncer()) as syncer:
        syncer.run_pass(T0)
        world.log([(commit_key("m-0", TOPIC, 0), commit_value(5, receipt))])
        world.log([(commit_key("console-consumer-7", TOPIC, 0), commit_value(5))])
        world.step(syncer)
        syncer.run_pass(T0 + timedelta(seconds=30))
        assert (world.offset("m-0"), world.offset("console-consumer-7")) == (None, None)


@pytest.mark.slow
def test_topics_that_a_migration_has_handed_over_are_left_alone(world: FollowedWorld, syncer: GroupSyncer) -> None:
    world.commit(10)
    syncer.run_pass(T0)
    controls = Controls.open(world.config.tables)
    controls.add("hand-over", [TOPIC])
    world.commit(20)
    world.reset(5)
    world.step(syncer)
    world.step(syncer)
    assert world.offset() == 5
    controls.add("take-back", [TOPIC])
    syncer.run_pass(T0 + timedelta(seconds=30))
    assert world.offset() == 20


@pytest.mark.slow
def test_a_topic_that_is_handed_over_during_a_long_pass_is_left_alone(world: FollowedWorld) -> None:
    now_s = [1_000.0]
    controls = Controls.open(world.config.tables)

    def hand_over_and_reset() -> None:
        controls.add("hand-over", [TOPIC])
        world.reset(5)
        now_s[0] += 60

    with closing(world.syncer(clock=lambda: now_s[0])) as syncer:
        world.commit(10)
        syncer.run_pass(T0)
        world.commit(20)
        world.target.change("OffsetFetch", Change(first=hand_over_and_reset))
        syncer.run_pass(T0 + timedelta(seconds=30))
        assert world.offset() == 5


@pytest.mark.slow
def test_a_commit_that_was_refused_is_tried_again_in_a_while(world: FollowedWorld) -> None:
    now_s = [1_000.0]
    with closing(world.syncer(clock=lambda: now_s[0])) as syncer:
        syncer.run_pass(T0)
        world.target.change("OffsetCommit", error(25))
        world.commit(10)
        world.step(syncer)
        world.step(syncer)
        assert (world.offset(), world.target.asked("OffsetCommit")) == (None, 1)
        now_s[0] += 60
        world.step(syncer)
        assert world.offset() == 10


def refuse_log(world: FollowedWorld) -> None:
    """As brokers answer without Read on the topic."""

    def alter(body: Any) -> None:
        for topic in body.topics:
            if topic.name == LOG:
                topic.error_code, topic.partitions = 29, []

    world.source.alter_responses("Metadata", alter)


@pytest.mark.slow
def test_a_log_that_may_not_be_read_is_polled_and_the_reason_says_what_to_grant(
    world: FollowedWorld, syncer: GroupSyncer
) -> None:
    refuse_log(world)
    world.commit(10)
    done = syncer.run_pass(T0)
    assert (done.is_followed, done.committed_count, done.repeated_count) == (False, 1, None)
    assert done.not_followed is not None
    assert "TOPIC_AUTHORIZATION_FAILED" in done.not_followed
    assert f"grant Read on topic {LOG} to the user of the mirror file" in done.not_followed
    world.commit(40)
    assert syncer.step() == GroupLag(None, is_followed=False)
    assert world.offset() == 10
    done = syncer.run_pass(T0 + timedelta(seconds=30))
    assert (done.repeated_count, world.offset()) == (30, 40)
    assert syncer.lag() == GroupLag(None, is_followed=False, repeated_count=30)
    world.source.alter_responses("Metadata", lambda _: None)
    assert syncer.run_pass(T0 + timedelta(seconds=60)).is_followed, "granted meanwhile"


def test_where_following_is_required_nothing_is_polled(tmp_path: Path) -> None:
    with FollowedWorld(tmp_path, follow="required") as world:
        refuse_log(world)
        world.commit(10)
        syncer = world.syncer()
        with pytest.raises(ConfigError, match=r"groups\.follow is required, and .*grant Read on topic"):
            syncer.run_pass(T0)
        assert world.offset() is None
        syncer.close()


def test_where_following_is_off_the_log_is_not_looked_at(tmp_path: Path) -> None:
    with FollowedWorld(tmp_path, follow="off") as world:
        world.commit(10)
        syncer = world.syncer()
        done = syncer.run_pass(T0)
        assert (done.is_followed, done.not_followed, done.committed_count) == (False, None, 1)
        assert not any(LOG in str(body) for body in world.source.bodies("Metadata"))
        syncer.close()


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True])
def test_groups_of_a_missing_coordinator_stay_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """No broker lists them: a fail-over would leave them out."""
    monkeypatch.setattr(sync, "REQUEST_S", 0.5)
    with FollowedWorld(tmp_path, follow="off") as world:
        syncer = world.syncer()
        world.commit(10)
        syncer.run_pass(T0)
        if is_restarted:
            syncer.close()
            syncer = world.syncer()
        world.source.move_coordinator(GROUP, GONE)
        with pytest.raises(RetriableError, match=r"COORDINATOR_NOT_AVAILABLE"):
            syncer.run_pass(T0 + timedelta(seconds=30))
        recorded = positions_as_of(TableStorage(world.config.tables).best_effort_tables(), T0 + timedelta(minutes=1))
        assert [position.offset for position in recorded.positions] == [10]
        world.source.move_coordinator(GROUP, 1)
        assert syncer.run_pass(T0 + timedelta(seconds=60)).group_count == 1
        world.source.delete_topic(TOPIC)
        assert syncer.run_pass(T0 + timedelta(seconds=90)).group_count == 0, "its offsets are deleted with their topic"
        syncer.close()


@pytest.mark.slow
def test_a_command_does_not_take_groups_of_a_missing_coordinator_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_once, "REQUEST_S", 0.5)
    with FollowedWorld(tmp_path) as world:
        world.commit(10)
        world.source.move_leader((LOG, 0), GONE)
        world.source.move_coordinator(GROUP, GONE)
        with pytest.raises(RetriableError, match=r"1 partition of __consumer_offsets without a leader \(0, for example\)"):
            sync_once.sync_groups(world.config, is_applied=True)


@pytest.mark.slow
@pytest.mark.parametrize("follow", ["off", "auto"])
def test_positions_stay_recorded_where_a_broker_that_has_just_started_does_not_list_their_topic_yet(
    tmp_path: Path, follow: str
) -> None:
    with FollowedWorld(tmp_path, follow=follow) as world, closing(world.syncer()) as syncer:
        world.commit(10)
        syncer.run_pass(T0)

        def unlist(response: Any) -> None:
            for topic in response.topics:
                if topic.name == TOPIC:
                    topic.error_code, topic.partitions = 3, []

        world.source.alter_responses("Metadata", unlist)
        syncer.run_pass(T0 + timedelta(seconds=30))
        world.source.alter_responses("Metadata", lambda _: None)
        recorded = positions_as_of(TableStorage(world.config.tables).best_effort_tables(), T0 + timedelta(minutes=1))
        assert [position.offset for position in recorded.positions] == [10]


@pytest.mark.slow
@pytest.mark.parametrize("follow", ["off", "auto"])
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_partition_without_a_leader_keeps_offsets_of_others_from_nothing(tmp_path: Path, side: str, follow: str) -> None:
    with FollowedWorld(tmp_path, follow=follow) as world, closing(world.syncer()) as syncer:
        world.commit(10)
        world.commit(20, partition=1)
        cluster = world.source if side == "source" else world.target
        cluster.move_leader((TOPIC, 0), GONE)
        done = syncer.run_pass(T0)
        assert (done.waiting_count, done.committed_count) == ((0, 2) if side == "source" else (1, 1))
        assert (world.offset(), world.offset(partition=1)) == (10 if side == "source" else None, 20)
        cluster.move_leader((TOPIC, 0), 1)
        syncer.run_pass(T0 + timedelta(seconds=30))
        assert world.offset() == 10


@pytest.mark.slow
def test_groups_are_followed_while_a_coordinator_of_others_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync, "REQUEST_S", 0.5)
    with FollowedWorld(tmp_path) as world, closing(world.syncer()) as syncer:
        world.commit(10)
        syncer.run_pass(T0)
        world.source.move_leader((LOG, 1), GONE)
        world.commit(20)
        assert syncer.run_pass(T0 + timedelta(hours=2)).is_followed
        assert world.offset() == 20
        world.commit(30)
        with pytest.raises(RetriableError, match=r"__consumer_offsets-1 has no leader"):
            world.step(syncer)
        assert world.offset() == 30


@pytest.mark.slow
@pytest.mark.parametrize("follow", ["off", "auto"])
def test_a_coordinator_that_is_missing_at_the_target_keeps_offsets_of_other_groups_from_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, follow: str
) -> None:
    monkeypatch.setattr(sync, "REQUEST_S", 0.5)
    monkeypatch.setattr(sync_once, "REQUEST_S", 0.5)
    with FollowedWorld(tmp_path, follow=follow) as world, closing(world.syncer()) as syncer:
        world.commit(10, "a-billing")
        world.commit(20, "b-billing")
        world.target.change_always("OffsetFetch", error(15, only=("a-billing", -1)))
        done = syncer.run_pass(T0)
        assert (done.committed_count, done.left_count) == (1, 1)
        assert (world.offset("a-billing"), world.offset("b-billing")) == (None, 20)
        world.commit(30, "b-billing")
        with pytest.raises(RetriableError, match="COORDINATOR_NOT_AVAILABLE"):
            sync_once.sync_groups(world.config, is_applied=True)
        assert world.offset("b-billing") == 30
        world.target.change_always("OffsetFetch", None)
        assert syncer.run_pass(T0 + timedelta(seconds=30)).left_count == 0
        assert world.offset("a-billing") == 10


@pytest.mark.slow
def test_a_group_that_the_target_does_not_list_for_a_moment_is_not_moved_back(
    tmp_path: Path,
) -> None:
    """As while its coordinator moves to a broker that was asked before. The application has stopped there for a moment."""
    with FollowedWorld(tmp_path, follow="off") as world, closing(world.syncer()) as syncer:
        world.reset(80)
        world.commit(40)

        def unlist(response: Any) -> None:
            response.groups = []

        world.target.alter_responses("ListGroups", unlist)
        syncer.run_pass(T0)
        assert world.offset() == 80
        assert sync_once.sync_groups(world.config, is_applied=True).groups[0].partitions[0].step is Step.FURTHER


@pytest.mark.slow
def test_groups_whose_coordinator_moves_while_they_are_listed_are_listed_again() -> None:
    with StrictCluster(nodes=2) as cluster:
        cluster.create_topic(LOG)
        cluster.groups.commit_now("billing", (TOPIC, 0), Committed(10, ""))
        cluster.move_coordinator(GROUP, 2)
        cluster.move_leader((LOG, 0), 2)

        def move(_response: Any) -> None:
            """To the node that was asked first, before the other one is."""
            cluster.move_coordinator(GROUP, 1)
            cluster.move_leader((LOG, 0), 1)

        cluster.alter_responses("ListGroups", move)
        with closing(GroupClient(ClientConfig.from_properties({"bootstrap.servers": cluster.bootstrap}), "east")) as client:
            assert list(client.listed()) == ["billing"]


@pytest.mark.slow
@pytest.mark.parametrize("is_restarted", [False, True])
def test_polled_groups_are_synced_while_the_coordinator_of_others_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    monkeypatch.setattr(sync, "REQUEST_S", 0.5)
    missing = {"a-billing", "b-billing"}

    def unlist(response: Any) -> None:
        response.groups = [group for group in response.groups if group.group_id not in missing]

    with FollowedWorld(tmp_path, follow="off") as world:
        syncer = world.syncer()
        for group in (*missing, "c-billing"):
            world.commit(10, group)
        syncer.run_pass(T0)
        if is_restarted:
            syncer.close()
            syncer = world.syncer()
        world.source.alter_responses("ListGroups", unlist)
        world.source.change_always("OffsetFetch", error(15, only=("a-billing", -1)))
        world.commit(20, "c-billing")
        began = time.monotonic()
        with pytest.raises(RetriableError, match=r"COORDINATOR_NOT_AVAILABLE.* a-billing"):
            syncer.run_pass(T0 + timedelta(seconds=30))
        assert world.offset("c-billing") == 20
        assert time.monotonic() - began < 1.5, "one of them is waited for"
        recorded = positions_as_of(TableStorage(world.config.tables).best_effort_tables(), T0 + timedelta(minutes=1))
        offsets = {position.group: position.offset for position in recorded.positions}
        assert offsets == {"a-billing": 10, "b-billing": 10, "c-billing": 10 if is_restarted else 20}
        syncer.close()


@pytest.mark.slow
def test_the_target_is_not_asked_about_groups_that_read_nothing_mirrored(tmp_path: Path) -> None:
    with FollowedWorld(tmp_path, follow="off") as world, closing(world.syncer()) as syncer:
        world.source.create_topic("others")
        world.source.groups.commit_now("a-billing", ("others", 0), Committed(3, ""))
        world.commit(10, "b-billing")
        syncer.run_pass(T0)
        assert world.offset("b-billing") == 10
        assert not [body for body in world.target.bodies("OffsetFetch") if "a-billing" in str(body)]


@pytest.mark.slow
def test_a_step_asks_the_source_for_log_starts_only(tmp_path: Path) -> None:
    with FollowedWorld(tmp_path) as world, closing(world.syncer()) as syncer:
        world.commit(10)
        syncer.run_pass(T0)
        world.commit(20)
        before = world.source.asked("ListOffsets")
        world.step(syncer)
        assert world.offset() == 20
        assert world.source.asked("ListOffsets") == before + 1


@pytest.mark.slow
def test_an_unknown_version_is_polled_instead(world: FollowedWorld, syncer: GroupSyncer) -> None:
    syncer.run_pass(T0)
    with world.source.lock:
        world.source.groups.commit_now("billing", (TOPIC, 0), Committed(20, ""))
    world.log([(commit_key("billing", TOPIC, 0), struct.pack(">h", 5) + commit_value(20)[2:])])
    wait_for("the record", lambda: syncer.step() and not syncer.is_following)
    assert world.offset() is None
    done = syncer.run_pass(T0 + timedelta(seconds=30))
    assert world.offset() == 20
    assert done.is_followed, "what is behind it may be read"


@pytest.mark.slow
def test_a_log_that_is_another_one_now_is_read_anew(world: FollowedWorld, syncer: GroupSyncer) -> None:
    for offset in (10, 20, 30):
        world.commit(offset)
    syncer.run_pass(T0)
    world.source.delete_topic(LOG)
    world.source.create_topic(LOG, 2)
    world.commit(40)
    wait_for("the other log", lambda: syncer.step() and not syncer.is_following)
    assert world.offset() == 30
    assert syncer.run_pass(T0 + timedelta(seconds=30)).is_followed
    assert world.offset() == 40


@pytest.mark.slow
def test_a_log_with_more_partitions_is_followed_in_all_of_them(world: FollowedWorld, syncer: GroupSyncer) -> None:
    world.commit(10)
    syncer.run_pass(T0)
    world.source.logs[LOG, 2] = PartitionLog(1, world.source.log(LOG).configs)
    world.answer(20)
    world.source.seed((LOG, 2), commit_batch(0, [(commit_key("billing", TOPIC, 0), commit_value(20))]))
    assert syncer.run_pass(T0 + timedelta(seconds=30)).is_followed
    assert world.offset() == 20
    world.source.seed((LOG, 2), commit_batch(1, [(commit_key("billing", TOPIC, 0), commit_value(30))]))
    wait_for("the commit at the target", lambda: bool(syncer.step()) and world.offset() == 30)


@pytest.mark.slow
def test_a_source_that_does_not_answer_is_an_error_of_the_step_and_nothing_is_lost(
    world: FollowedWorld, syncer: GroupSyncer
) -> None:
    world.commit(10)
    syncer.run_pass(T0)
    world.source.stop_node(1)
    with pytest.raises(RetriableError):
        syncer.step()
    world.source.start_node(1)
    world.commit(20)
    wait_for("the commit at the target", lambda: _is_there(world, syncer, 20))


def _is_there(world: FollowedWorld, syncer: GroupSyncer, offset: int) -> bool:
    with suppress(RetriableError):
        syncer.step()
    return world.offset() == offset


@pytest.mark.slow
@pytest.mark.parametrize(
    "seed",
    [
        0,
        *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(1, 4)),
        *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 10)),
    ],
)
def test_a_target_has_only_what_was_committed_in_order_whenever_a_sync_is_killed(tmp_path: Path, seed: int) -> None:
    """A sync keeps nothing, so one that is left in the middle is one that was killed."""
    chance, now = random.Random(seed), T0
    with FollowedWorld(tmp_path) as world:
        syncer = world.syncer()
        syncer.run_pass(now)
        valid: set[int | None] = {None}
        newest, newest_at, pending, mirrored, before = 0, -1, dict[int, tuple[int, int]](), 100, -1
        for _ in range(60):
            action = chance.choice(["commit", "commit", "begin", "end", "step", "step", "pass", "mirror", "kill"])
            offset = max(0, min(900, newest + chance.randrange(-10, 40)))
            if action == "commit":
                newest, newest_at = offset, world.commit(offset)
                valid.add(offset)
            elif action == "begin" and len(pending) < 2:
                producer_id = 44 + len(pending)
                pending[producer_id] = offset, world.commit(offset, producer_id=producer_id)
            elif action == "end" and pending:
                producer_id, (offset, logged_at) = pending.popitem()
                is_committed = chance.random() < 0.5
                if is_committed and logged_at > newest_at:
                    newest, newest_at = offset, logged_at
                    world.answer(offset)
                    valid.add(offset)
                world.end_transaction(producer_id, is_committed=is_committed)
            elif action == "mirror":
                mirrored += chance.randrange(1, 60)
                world.mirror(mirrored)
            elif action == "step":
                world.step(syncer)
            elif action == "pass":
                now += timedelta(seconds=30)
                syncer.run_pass(now)
            elif action == "kill":
                syncer.close()
                syncer = world.syncer()
                syncer.run_pass(now)
            at_target = world.offset()
            assert at_target in valid
            assert (at_target or 0) <= mirrored
            assert (-1 if at_target is None else at_target) >= before
            before = -1 if at_target is None else at_target
        for producer_id in pending:
            world.end_transaction(producer_id, is_committed=False)
        world.mirror(max(mirrored, newest) + 1)
        world.step(syncer)
        syncer.run_pass(now + timedelta(seconds=30))
        assert world.offset() == (max(newest, before) if len(valid) > 1 else None)
        syncer.close()


@pytest.mark.slow
def test_the_thread_does_steps_between_passes_and_serves_the_lag(world: FollowedWorld) -> None:
    lags: list[GroupLag] = []
    storage = TableStorage(world.config.tables)
    with GroupSync(world.config, 3_600.0, storage, storage.best_effort_tables(), on_lag=lags.append) as sync:
        wait_for("the first pass", lambda: lags)
        for offset in (10, 20, 200):
            world.commit(offset)
            wait_for("the commit at the target", partial(world.is_at_target, min(offset, 20)))
        sync.is_last_wanted = True
    assert sum(lag.new_count for lag in lags) == 3
    assert lags[-1].age_s is not None
    assert lags[-1].age_s > 0.0, "200 is not mirrored yet"


@pytest.mark.parametrize(
    ("took_s", "commit_cpu_s", "is_failed", "expected_s"),
    [
        (0.0, 0.0, False, 0.4),
        (0.3, 0.01, False, 0.6),
        (0.1, 0.08, False, 0.8),
        (3.0, 0.1, False, 6.0),
        (0.1, 0.01, True, 2.0),
        (3.0, 0.9, True, 9.0),
    ],
)
def test_steps_take_half_of_the_time_and_a_tenth_of_a_core_for_commits_at_most(
    took_s: float, commit_cpu_s: float, is_failed: bool, expected_s: float
) -> None:
    assert step_interval_s(took_s, commit_cpu_s=commit_cpu_s, is_failed=is_failed) == pytest.approx(expected_s)


@pytest.mark.slow
def test_the_cpu_of_reading_the_log_is_known_apart(world: FollowedWorld, syncer: GroupSyncer) -> None:
    syncer.run_pass(T0)
    world.log([(commit_key("billing", TOPIC, 0), commit_value(offset)) for offset in range(90)])
    began = time.thread_time()
    world.step(syncer)
    assert world.offset() == 89
    assert 0.0 < syncer.read_cpu_s < time.thread_time() - began


@pytest.mark.slow
def test_a_step_that_fails_is_reported_and_the_next_pass_goes_on(world: FollowedWorld) -> None:
    problems: list[str] = []
    storage = TableStorage(world.config.tables)

    def report(problem: Problem, _level: int) -> None:
        problems.append(problem.text)

    with GroupSync(world.config, 0.5, storage, storage.best_effort_tables(), report=report):
        world.commit(10)
        wait_for("the first pass", lambda: world.offset() == 10)
        world.source.change("Fetch", *(dropped_before() for _ in range(3)))
        world.target.change_always("OffsetFetch", error(30))
        world.commit(20)
        wait_for("a problem", lambda: problems)
        world.target.change_always("OffsetFetch", None)
        wait_for("the commit at the target", lambda: world.offset() == 20)


@pytest.mark.slow
def test_polling_is_reported_once_and_once_more_with_the_number_of_records(world: FollowedWorld) -> None:
    refuse_log(world)
    world.commit(10)
    problems: list[Problem] = []
    storage = TableStorage(world.config.tables)
    with GroupSync(
        world.config,
        0.05,
        storage,
        storage.best_effort_tables(),
        report=lambda problem, _level: problems.append(problem),
    ):
        wait_for("both", lambda: len(problems) >= 2)
    assert [problem.error_name for problem in problems] == ["NotFollowedError"] * 2
    assert "a fail-over without the source repeats the records that groups read between two" in problems[0].text
    assert "a fail-over without the source repeats about 0 records" in problems[1].text
    assert problems[0].remedy == f"give the mirror's user Read on topic {LOG} of the source, or set groups.follow to off"


@pytest.mark.slow
def test_rows_of_a_pending_transaction_that_are_removed_lead_no_offset_any_more(
    world: FollowedWorld, syncer: GroupSyncer
) -> None:
    syncer.run_pass(T0)
    txn = SlotTxn("m-0", 2, 1)
    world.mirror(200, txn=txn, is_pending=True)
    world.commit(150)
    world.step(syncer)
    assert world.offset() == 150, "the commit of a pending transaction is certain, as far as anybody knows"
    world.owner.settle(removals=[Removal(txn)], confirmed=[txn])  # an operator has aborted it
    world.mirror(200, since=100, moved_by=100)
    syncer.run_pass(T0 + timedelta(seconds=30))
    assert world.offset() == 250
    world.commit(160)
    world.step(syncer)
    assert world.offset() == 260
