"""Whole migrations against strict clusters in memory; more of them with `make faults FAULTS="operators --migrations"`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.operators.moves.actions import (
    Action,
    AnotherConductor,
    ClientBegins,
    ClientEnds,
    ClientWrites,
    Conduct,
    CreateTopic,
    DeleteDenies,
    DeleteTopic,
    GrowTopic,
    KillMirror,
    Let,
    PutBackMigration,
    RecreateTopic,
    ResetGroup,
    Settle,
    StopConsumers,
    WritersComeAgain,
)
from tests.operators.moves.application import Written
from tests.operators.moves.commands import Command, Commands, Kill, Meanwhile
from tests.operators.moves.moving_world import FORWARD, MovingWorld, Setting
from tests.operators.moves.scripts import Script, explained, perform, script_of
from tests.operators.moves.surroundings import moved_world, opened_world
from tests.operators.scripts import Done

from shallow_mirror.checkpoints.rows import MigrationRow
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError, FencedError, OlderTablesError, RetriableError
from shallow_mirror.groups.report import GroupsReport, Step as GroupStep
from shallow_mirror.groups.sync_once import sync_groups
from shallow_mirror.migration import Phase, late_settling, newest_row, passage, point_of_no_return, read_late_writes, view
from shallow_mirror.migration.late_settling import QUARANTINE_PREFIX
from shallow_mirror.migration.late_writes import LateWrite, lost_late_writes
from shallow_mirror.migration.newest_row import NewestRow
from shallow_mirror.migration.session import LateWrites
from shallow_mirror.migration.steps import Step
from shallow_mirror.operations.forget import forget
from shallow_mirror.types import TopicPartition

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.thorough]

SETTING = Setting(quiet="2 seconds")

Performed = Callable[..., Done]


@pytest.fixture
def performed(tmp_path: Path) -> Performed:
    """Return a function that performs actions."""

    def perform_actions(*actions: Action, setting: Setting = SETTING) -> Done:
        return perform(Script(setting, actions), tmp_path / "world")

    return perform_actions


def begun(done: Done) -> list[str]:
    """Return the steps of the only wave, in their order."""
    return [
        event.removeprefix("  ab: ") for event in done.events if event.removeprefix("  ab: ") in {step.value for step in Step}
    ]


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_no_migration_loses_a_record_or_ends_without_a_way_on(tmp_path: Path, seed: int) -> None:
    script = script_of(seed)
    done = perform(script, tmp_path / "world")
    assert done.finding is None, explained(seed, done.finding, tmp_path / "world", script)


@pytest.mark.parametrize(
    "step",
    [
        Step.HAND_OVER,
        Step.POINT_OF_NO_RETURN,
        *(pytest.param(step, marks=pytest.mark.long) for step in (Step.COMMIT_GROUPS, Step.REPORT)),
    ],
)
def test_a_conductor_that_is_killed_is_continued_forth_and_back(performed: Performed, step: Step) -> None:
    kill = Kill(step, 1, is_behind=True)
    done = performed(Let(10), Conduct("run", kill), Conduct("run"), Conduct("rollback", kill), Conduct("rollback"))
    assert done.finding is None
    assert done.kills == sum(event.endswith(": killed") for event in done.events) > 0


def test_the_same_script_is_the_same_history(performed: Performed) -> None:
    setting = Setting(quiet="2 seconds", pauses=5, seed=1)
    script = (Let(10), Conduct("run", Kill(Step.COPY_REST, 2, is_behind=False)), Conduct("run"))
    first, second = (performed(*script, setting=setting) for _ in range(2))
    assert first.finding is None
    assert (first.events, first.records) == (second.events, second.records)


def test_a_topic_that_appears_after_the_move_stops_no_mirror_and_stays_where_it_is(performed: Performed) -> None:
    done = performed(Let(10), Conduct("run"), CreateTopic(0, 1), Let(20), Conduct("rollback"))
    assert done.finding is None
    assert not [event for event in done.events if event.startswith(("back-ab: ", "forward: "))], "no mirror has ended"
    assert any(event.startswith("topics.exclude of back-ab: a2 <- ConfigError: a2 appeared at west") for event in done.events)


def test_a_transaction_that_hangs_is_named_where_it_keeps_the_mirror_from_catching_up(performed: Performed) -> None:
    hanging = performed(Let(5), ClientBegins(0, 0), Conduct("run"))
    assert hanging.finding is None
    assert any("WAITS: end the transactions that are open at east: the mirror copies what" in event for event in hanging.events)


def test_writers_that_come_again_are_seen_before_the_point_of_no_return(performed: Performed) -> None:
    again = ((Step.COMMIT_GROUPS, 3, WritersComeAgain(0)), (Step.COMMIT_GROUPS, 4, ClientWrites(0, 0, 2)))
    done = performed(Let(10), Conduct("run", meanwhile=again))
    assert done.finding is None
    assert begun(done).count("stop writers") > 1


def test_a_conductor_that_stood_still_is_fenced(performed: Performed) -> None:
    still = ((Step.VERIFY_REST, 5, AnotherConductor(is_rollback=False)),)
    done = performed(Let(10), Conduct("run", meanwhile=still), KillMirror(0), GrowTopic(0), Let(10))
    assert done.finding is None
    assert any("<- FencedError" in event for event in done.events)


@pytest.mark.parametrize("request_number", [28, *(pytest.param(number, marks=pytest.mark.long) for number in (26, 27, 30))])
def test_a_conductor_that_stood_still_behind_its_look_at_groups_sets_none_back(performed: Performed, request_number: int) -> None:
    """The other one finishes the wave; then the group, which has read further records, is stopped for a moment."""
    still = (
        (Step.CHECK, 20, KillMirror(2)),
        (Step.VERIFY_REST, 4, StopConsumers(0)),
        (Step.COMMIT_GROUPS, request_number, AnotherConductor(is_rollback=False)),
    )
    setting = Setting(waves=("a", "b"), quiet="2 seconds", seed=44225)
    done = performed(Let(10), Conduct("run", meanwhile=still, choice=97523), setting=setting)
    assert done.finding is None


def test_a_group_that_was_reset_after_it_came_back_is_moved_once_its_former_offset_is_deleted(performed: Performed) -> None:
    """At the cluster that it goes back to, it still has the offset with which it left."""
    reset = ((Step.COMMIT_GROUPS, 1, ResetGroup(0, 0, 0, 0)),)
    done = performed(Let(20), Conduct("run"), Let(10), Conduct("rollback", meanwhile=reset))
    assert done.finding is None
    assert any("WAITS: make these offsets committable at east (group ga: a-0 at" in event for event in done.events)


def test_late_writes_in_a_partition_that_the_other_cluster_lacks_are_carried_there_and_come_back(performed: Performed) -> None:
    late = (GrowTopic(0, is_elsewhere=True), ClientWrites(0, 2, 2, is_elsewhere=True))
    done = performed(Let(10), Conduct("run"), *late, Let(5), Settle(is_carried=True), Let(10), Conduct("rollback"))
    assert done.finding is None
    assert "  ab: a-2 offsets 0 to 1 (2 records) copied to a at west" in done.events


def test_a_group_behind_records_that_came_after_the_rest_was_copied_is_moved_once_these_are(performed: Performed) -> None:
    late = ((Step.COMMIT_GROUPS, 1, ClientWrites(0, 0, 2)), (Step.COMMIT_GROUPS, 2, ResetGroup(0, 0, 0, 100)))
    done = performed(Let(10), Conduct("run", meanwhile=late))
    assert done.finding is None
    steps = begun(done)
    assert "stop writers" in steps[steps.index("commit groups") :]


@pytest.mark.parametrize("waves", [("ab",), ("a", "b")])
def test_a_wave_ends_forth_and_back_without_a_topic_that_was_deleted_behind_the_point_of_no_return(
    performed: Performed, waves: tuple[str, ...]
) -> None:
    deleted = ((Step.PREPARE_REVERSE, 0, DeleteTopic(0)),)
    script = (Let(20), Conduct("run", meanwhile=deleted), Let(10), Conduct("rollback"))
    done = performed(*script, setting=Setting(waves=waves, quiet="2 seconds"))
    assert done.finding is None
    assert any("a was deleted at west since the point of no return: the reverse mirror copies" in event for event in done.events)


def test_a_rollback_leaves_a_topic_that_was_created_again_and_excluded_where_it_is(tmp_path: Path) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, west = Commands(world), world.clusters["west"]
        DeleteTopic(0).perform(commands)
        west.create_topic("a", 2)
        world.let(30)
        assert "back-ab: topics.exclude: a" in world.events
        assert commands.perform("rollback") is None
        assert any("stop the writers of b and the consumers of groups ga, gb at west" in event for event in world.events)
        assert world.check() == []


def test_a_topic_that_was_created_again_comes_back_with_its_records_where_data_loss_is_accepted(tmp_path: Path) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, west = Commands(world), world.clusters["west"]
        world.change("back-ab", "read", on_data_loss="continue")
        DeleteTopic(0).perform(commands)
        west.create_topic("a", 2)
        world.let(30)
        assert commands.perform("rollback") is None
        world.come_to_rest()
        assert world.check() == []


@pytest.mark.parametrize("remedy", ["continue", "forget"])
def test_a_group_of_an_empty_topic_that_was_created_again_comes_back_to_the_end_of_its_former_copies(
    tmp_path: Path, remedy: str
) -> None:
    """The end of its log at the move is that of the former topic, and no copy shows where the group continues."""
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, west, east = Commands(world), world.clusters["west"], world.clusters["east"]
        config = world.services["back-ab.yaml"].config
        if remedy == "continue":
            world.change("back-ab", "read", on_data_loss="continue")
        (site,) = (site for site in world.application.sites if site.has("a"))
        world.application.stop_writers(site)
        DeleteTopic(0).perform(commands)
        west.create_topic("a", 2)
        if remedy == "forget":
            storage = TableStorage.to_write(config.table_location, config.tables_writer)
            forget(config, storage, ["a"], is_applied=True)
            world.events.append("shallow-mirror forget a")
        for group in site.groups:
            west.commit_group(group, "a", 0, 0)
        world.let(30)
        assert commands.perform("rollback") is None
        for group in site.groups:
            assert east.group_offsets(group)["a", 0] == east.bounds("a", 0)[1]
        world.come_to_rest()
        assert world.check() == []


@pytest.mark.parametrize("is_created_again", [False, True])
def test_a_rollback_is_refused_while_the_cluster_that_it_goes_back_to_has_lost_a_topic(
    tmp_path: Path, is_created_again: bool
) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, east = Commands(world), world.clusters["east"]
        world.deleted.add("a")
        east.delete_topic("a")
        if is_created_again:
            east.create_topic("a", 2)
        refused = str(commands.perform("rollback"))
        assert "a was deleted at east since the move, and only west has what was moved: exclude it in " in refused
        world.change("back-ab", "topics", exclude=["a"])
        world.let(20)
        assert commands.perform("rollback") is None
        kept = [value for partition in range(2) for value in world.clusters["west"].read("a", partition).values()]
        assert [kept.count(record.value) for record in world.application.written if record.topic == "a"] == [1] * len(kept)
        assert [difference for difference in world.check() if ", written to a-" not in difference] == []


PLAIN = Setting(quiet="2 seconds", has_plain_names=True)


@pytest.mark.parametrize("side", ["east", "west"])
def test_a_wave_that_names_its_topics_goes_back_without_one_that_was_deleted(tmp_path: Path, side: str) -> None:
    with moved_world(tmp_path / "world", PLAIN) as world:
        commands = Commands(world)
        world.deleted.add("a")
        world.clusters[side].delete_topic("a")
        if side == "east":
            assert "exclude it in " in str(commands.perform("rollback"))
            world.change("back-ab", "topics", exclude=["a"])
            world.let(20)
        assert commands.perform("rollback") is None
        assert "  a: deleted at west or excluded from the mirror, and left out of the rollback" in world.events
        assert [difference for difference in world.check() if ", written to a-" not in difference] == []


def test_a_wave_whose_only_topic_was_deleted_has_nothing_to_roll_back(tmp_path: Path) -> None:
    setting = Setting(waves=("a", "b"), quiet="2 seconds", has_plain_names=True)
    with moved_world(tmp_path / "world", setting) as world:
        commands = Commands(world)
        DeleteTopic(1).perform(commands)
        refused = str(commands.perform("rollback"))
        assert (
            "waves: b: nothing to roll back: no topic of it is left at west that the mirror copies (b). Other waves can go back with"
            in refused
        )


def test_a_wave_that_was_rolled_back_does_not_move_again_with_success(tmp_path: Path) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)
        assert commands.perform("run") is None
        assert commands.perform("rollback") is None
        refused = str(commands.perform("run"))
        assert "wave ab was rolled back: it cannot move again with these mirrors" in refused
        assert "for good and delete its consumer group back-ab-origin at east" in refused


def test_a_wave_does_not_move_to_where_a_deny_acl_would_keep_its_writers_from_writing(tmp_path: Path) -> None:
    """As a rollback of an earlier migration leaves it, and as it outlives its topic."""
    with opened_world(tmp_path / "world", replace(SETTING, is_denied=True)) as world:
        world.begin()
        world.let(20)
        commands = Commands(world)
        world.application.deny("west", "a")
        left = "Deny Write on topic a to User:shop"
        assert f"target cluster west: {left} would keep the writers from writing there: delete it" in str(commands.perform("run"))
        DeleteDenies().perform(commands)
        assert commands.perform("run") is None
        assert commands.perform("rollback") is None


def test_late_writes_of_a_topic_that_was_deleted_go_into_quarantine_only(tmp_path: Path) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)
        DeleteTopic(0).perform(commands)
        ClientWrites(0, 0, 2, is_elsewhere=True).perform(commands)
        world.let(10)
        assert "a was deleted at west since the move, and nothing was copied" in str(commands.perform("carry"))
        assert "a" not in world.clusters["west"].topic_ids()
        assert commands.perform("quarantine") is None
        assert commands.perform("rollback") is None
        assert world.check() == []


def test_a_move_is_refused_where_a_copy_was_deleted_and_names_the_topic_and_not_its_groups(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        commands, forward = Commands(world), world.services[FORWARD]
        world.begin()
        world.let(20)
        forward.is_wanted = False
        world.kill(forward)
        RecreateTopic(0, is_elsewhere=True).perform(commands)
        refused = str(commands.perform("run"))
        assert "a was deleted at west, with what mirror forward had copied: move it with a mirror that has another" in refused
        assert "group ga" not in refused
        forget(forward.config, TableStorage.to_write(forward.config.table_location, "auto"), ["a"], is_applied=True)
        forward.is_wanted = True
        world.start(forward)
        world.let(10)
        assert forward.is_running


def test_a_topic_that_is_created_again_and_copied_behind_the_first_comparison_is_compared_from_its_first_record(
    tmp_path: Path,
) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)
        world.begin()
        world.let(20)
        world.change("forward", "read", on_data_loss="continue")

        def create_again() -> None:
            RecreateTopic(0).perform(commands)
            world.application.write("east", "a", 0, 2)

        assert commands.perform("run", meanwhile=[Meanwhile(Step.STOP_WRITERS, 3, create_again)]) is None
        assert world.check() == []


def late(world: MovingWorld) -> int:
    """Return the number of late writes that are not settled."""
    found = read_late_writes(world.files, world.state()).values()
    return sum(write.record_count or 0 for each in found for write in each.writes)


@pytest.mark.parametrize("is_forced", [False, True])
def test_groups_that_were_reset_behind_a_move_are_left_alone_unless_a_command_forces_them(
    tmp_path: Path, is_forced: bool
) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        (site,) = world.application.sites
        offsets = world.clusters["west"].state.groups.offsets
        place = site.groups[0], ("a", 0)
        world.application.stop_consumers(site)
        ResetGroup(0, 0, 0, 0).perform(Commands(world))
        assert offsets[place].offset == 0
        report = sync_groups(world.files.mirror, is_applied=True, is_forced=is_forced)
        (found,) = [each for each in report.partitions if (each.group, each.topic_partition) == place]
        assert (found.step, offsets[place].offset) == (
            (GroupStep.COMMITTED, found.to_offset) if is_forced else (GroupStep.REFUSED, 0)
        )
        assert is_forced or "handed over" in (found.reason or "")


@pytest.mark.parametrize(("is_commit", "count"), [(True, 1), (False, 0)])
def test_a_transaction_that_is_open_at_the_cluster_that_was_left_is_named_until_it_has_ended(
    tmp_path: Path, is_commit: bool, count: int
) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)

        def look() -> LateWrites:
            (found,) = read_late_writes(world.files, world.state()).values()
            return found

        assert look().is_none
        ClientBegins(0, 1, is_elsewhere=True).perform(commands)
        is_open = look()
        (transaction,) = is_open.open_transactions
        assert is_open.writes == []
        assert transaction.topic_partition == TopicPartition("a", 1)
        assert (transaction.transactional_id or "").startswith("writer-")
        assert not is_open.is_none
        ClientEnds(is_commit).perform(commands)
        assert (look().open_transactions, late(world)) == ([], count)


@pytest.mark.parametrize(("choice", "target"), [("carry", "a"), ("quarantine", "__late-writes.a")])
def test_late_writes_to_a_topic_that_was_created_again_are_found_from_its_first_offset_on(
    tmp_path: Path, choice: Command, target: str
) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, east = Commands(world), world.clusters["east"]
        ClientWrites(0, 0, 1, is_elsewhere=True).perform(commands)
        assert commands.perform(choice) is None
        ends = [east.bounds("a", partition)[1] for partition in range(east.partitions("a"))]
        east.delete_topic("a")
        east.create_topic("a", len(ends))
        count, before = ends[0], len(world.application.written)
        ClientWrites(0, 0, count, is_elsewhere=True).perform(commands)
        written = world.application.written[before:]
        assert late(world) == count
        assert commands.perform(choice) is None
        assert late(world) == 0
        copied = list(world.clusters["west"].read(target, 0).values())
        assert [copied.count(record.value) for record in written] == [1] * count


@pytest.mark.parametrize("effect", [3, 6, 9])
def test_late_writes_of_a_topic_that_is_created_again_behind_a_killed_command_hold_up_no_others(
    tmp_path: Path, effect: int
) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, east = Commands(world), world.clusters["east"]
        ClientWrites(0, 0, 2, is_elsewhere=True).perform(commands)
        ClientWrites(1, 0, 2, is_elsewhere=True).perform(commands)
        other = [record.value for record in world.application.written[-2:]]
        assert commands.perform("carry", kill=Kill(None, effect, is_behind=True)) is None
        assert world.events[-1] == "carry: killed"
        end = east.bounds("a", 0)[1]
        world.deleted.add("a")
        east.delete_topic("a")
        east.create_topic("a", 2)
        ClientWrites(0, 0, end, is_elsewhere=True).perform(commands)
        again = [record.value for record in world.application.written[-end:]]
        assert commands.perform("carry") is None
        assert commands.perform("carry") is None
        assert late(world) == 0
        copied = [value for name in ("a", "b") for value in world.clusters["west"].read(name, 0).values()]
        assert [copied.count(value) for value in (*other, *again)] == [1] * (2 + end)


def test_late_writes_count_as_gone_once_their_records_or_their_topic_are(tmp_path: Path) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, east = Commands(world), world.clusters["east"]
        end = east.bounds("a", 0)[1]
        ClientWrites(0, 0, 2, is_elsewhere=True).perform(commands)
        write = LateWrite(topic_partition=TopicPartition("a", 0), start=end, end=end + 2)
        assert not late_settling._is_gone(world.files.mirror, write)
        assert late_settling._is_gone(world.files.mirror, replace(write, start=0, end=0))
        east.delete_topic("a")
        assert late_settling._is_gone(world.files.mirror, write)
        east.create_topic("a", 2)
        assert late_settling._is_gone(world.files.mirror, write)
        assert not late_settling._is_gone(world.files.mirror, replace(write, topic_id=east.topic_ids()["a"]))


LATE_BATCH = 80


@contextmanager
def moved_in_small_batches(folder: Path) -> Iterator[MovingWorld]:
    """Yield a world that has moved, with a mirror that copies a batch in each transaction."""
    with opened_world(folder, SETTING) as world:
        world.begin()
        world.let(20)
        world.change("forward", "write", slot_bytes=1024)
        assert Commands(world).perform("run") is None
        yield world


def write_late(world: MovingWorld) -> list[Written]:
    """Write three batches of late writes, each as large as a transaction of the mirror."""
    before = len(world.application.written)
    for _ in range(3):
        ClientWrites(0, 0, LATE_BATCH, is_elsewhere=True).perform(Commands(world))
    return world.application.written[before:]


def begin_to_carry(commands: Commands) -> None:
    """Carry late writes, and be killed as soon as they are recorded, before any is copied."""
    kill_at = 1
    while not commands.world.state().waves["ab"].settling:
        commands.perform("carry", kill=Kill(None, kill_at, is_behind=True))
        kill_at += 1


def carried(world: MovingWorld, writes: list[Written]) -> list[str]:
    """Return the values of late writes that are at the other cluster."""
    values = {each.value for each in writes}
    return [value for value in world.clusters["west"].read("a", 0).values() if value in values]


def lost(world: MovingWorld, writes: list[Written]) -> list[str]:
    """Return the values of late writes that the migration calls lost."""
    gone = [write for done in world.state().waves["ab"].late_writes for write in lost_late_writes(done)]
    return [each.value for each in writes if any(write.start <= each.offset < write.end for write in gone)]


@pytest.mark.parametrize("first", [1, 3])
def test_late_writes_that_expire_behind_killed_commands_are_copied_as_far_as_they_exist(tmp_path: Path, first: int) -> None:
    """The first command is killed at each of its effects, then retention deletes `first` batches, then all that are left."""
    with moved_in_small_batches(tmp_path / "world") as world:
        commands, east, copied_at_kill = Commands(world), world.clusters["east"], set[int]()
        for kill_at in range(1, 100):
            kills, writes = world.kills, write_late(world)
            commands.perform("carry", kill=Kill(None, kill_at, is_behind=True))
            is_killed = world.kills > kills
            copied_at_kill.add(len(carried(world, writes)))
            east.delete_records("a", 0, writes[first * LATE_BATCH - 1].offset + 1)
            if is_killed:
                commands.perform("carry", kill=Kill(None, kill_at + 4, is_behind=True))
            east.delete_records("a", 0, writes[-1].offset + 1)
            assert commands.perform("carry") is None
            there, gone = carried(world, writes), lost(world, writes)
            assert (len(there), len(set(there) & set(gone))) == (len(set(there)), 0), kill_at
            # Before it is recorded what is to be settled, nothing of what is gone is known.
            if any(each["writes"][0]["start"] == writes[0].offset for each in world.state().waves["ab"].late_writes):
                assert {*there, *gone} == {each.value for each in writes}, kill_at
            world.lost |= {each.value for each in writes} - set(there)
            assert late(world) == 0
            if not is_killed:
                break
        assert (is_killed, copied_at_kill) == (False, {0, LATE_BATCH, 2 * LATE_BATCH, 3 * LATE_BATCH})


def test_late_writes_that_expire_while_they_are_copied_are_copied_as_far_as_they_exist(tmp_path: Path) -> None:
    with moved_in_small_batches(tmp_path / "world") as world:
        commands, east, found = Commands(world), world.clusters["east"], set[tuple[int, int]]()
        for request in range(154, 190, 3):
            writes = write_late(world)
            before = writes[2 * LATE_BATCH].offset
            expiry = Meanwhile(None, request, lambda before=before: east.delete_records("a", 0, before))  # type: ignore[misc]
            error = commands.perform("carry", meanwhile=[expiry])
            assert error is None or commands.perform("carry") is None, error
            there, gone = carried(world, writes), lost(world, writes)
            assert len(there) == len(set(there)), request
            assert {*there} >= {each.value for each in writes[2 * LATE_BATCH :]}, request
            assert not {*there} & {*gone}, request
            assert late(world) == 0
            found.add((len(there), len(gone)))
        assert {(3 * LATE_BATCH, 0), (2 * LATE_BATCH, LATE_BATCH), (LATE_BATCH, 2 * LATE_BATCH)} <= found


def test_a_rollback_begins_once_late_writes_are_settled_as_far_as_they_exist(tmp_path: Path) -> None:
    with moved_in_small_batches(tmp_path / "world") as world:
        commands, writes = Commands(world), write_late(world)
        begin_to_carry(commands)
        world.clusters["east"].delete_records("a", 0, writes[LATE_BATCH].offset)
        refused = commands.perform("rollback")
        assert "--carry` copies these records to the topics at west" in str(refused)
        assert commands.perform("carry") is None
        assert lost(world, writes) == [each.value for each in writes[:LATE_BATCH]]
        assert carried(world, writes) == [each.value for each in writes[LATE_BATCH:]]
        world.lost |= {
            each.value
            for each in world.application.written
            if (each.side, each.topic, each.partition) == ("east", "a", 0) and each.offset < writes[LATE_BATCH].offset
        }
        world.let(30)
        assert commands.perform("rollback") is None
        world.let(10)
        assert world.check() == []


@pytest.mark.parametrize("is_begun", [False, True])
def test_of_a_batch_that_was_cut_the_records_that_are_left_are_carried(tmp_path: Path, is_begun: bool) -> None:
    with moved_in_small_batches(tmp_path / "world") as world:
        commands, writes = Commands(world), write_late(world)
        if is_begun:
            begin_to_carry(commands)
        world.clusters["east"].delete_records("a", 0, writes[5].offset)
        assert late(world) == len(writes) - 5
        assert commands.perform("carry") is None
        assert carried(world, writes) == [each.value for each in writes[5:]]
        assert lost(world, writes) == [each.value for each in writes[:5] if is_begun]


@pytest.mark.parametrize("is_gone", [False, True])
def test_late_writes_are_not_copied_again_while_the_map_of_their_copy_is_missing(tmp_path: Path, is_gone: bool) -> None:
    """An older copy of the tables of the mirror was put back, which does not have the folder of that map."""
    with moved_in_small_batches(tmp_path / "world") as world:
        commands, writes, kills = Commands(world), write_late(world), world.kills
        kill_at = 1
        while len(carried(world, writes)) < len(writes):
            commands.perform("carry", kill=Kill(None, kill_at, is_behind=True))
            kill_at += 1
        assert (world.kills, len(world.state().waves["ab"].settling)) == (kills + kill_at - 1, 1)
        (folder,) = (root for root in world.table_folders.stores if "/redo/" in root)
        newest = world.table_folders.stores.pop(folder)
        if is_gone:
            world.clusters["east"].delete_records("a", 0, writes[-1].offset + 1)
        for _ in range(2):
            refused = commands.perform("carry")
            assert isinstance(refused, OlderTablesError)
            assert "Put the newest tables back (all of the folder or prefix of `tables`)" in str(refused)
        assert not world.table_folders.at(folder).tables
        world.table_folders.stores[folder] = newest
        assert commands.perform("carry") is None
        assert carried(world, writes) == [each.value for each in writes]
        assert lost(world, writes) == []


def test_nothing_is_settled_with_older_tables_of_the_mirror_that_copies(tmp_path: Path) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, forward = Commands(world), world.services[FORWARD]
        forward.is_wanted = False
        world.kill(forward)
        newest = world.copied_tables(forward)
        older = next(copy for copy in forward.copies if copy.tables.get("offset_map"))
        writes = write_late(world)
        world.put_back(forward, older)
        assert isinstance(commands.perform("carry"), OlderTablesError)
        assert (carried(world, writes), world.state().waves["ab"].settling) == ([], ())
        world.put_back(forward, newest)
        assert commands.perform("carry") is None
        assert carried(world, writes) == [each.value for each in writes]


def test_the_copies_of_a_topic_that_was_deleted_during_the_check_are_the_mirrors_own(performed: Performed) -> None:
    done = performed(Let(20), Conduct("run", meanwhile=((Step.CHECK, 13, DeleteTopic(0)),)), setting=Setting(waves=("a", "b")))
    assert done.finding is None
    assert not any("hold records that the mirror did not write" in event for event in done.events)


def test_records_of_a_topic_that_appears_behind_the_rollback_are_late_writes(tmp_path: Path) -> None:
    """No mirror copies it: the first one would copy it back."""
    with moved_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)
        kill = Kill(Step.ADMIT_WRITERS, 1, is_behind=False)
        assert commands.perform("rollback", kill=kill) is None
        (site,) = world.application.sites
        CreateTopic(0, 1).perform(commands)
        world.application.write(site.side, "a2", 0, 2)
        writes = world.application.written[-2:]
        world.let(20)
        assert commands.perform("rollback") is None
        world.let(20)
        state = world.state()
        ((line,),) = view.late_lines(world.files, state, read_late_writes(world.files, state)).values()
        assert line.startswith("a2-0 offsets 0 to 1 (2 records): no mirror copies that: `shallow-mirror migrate late-writes ")
        assert line.endswith("--wave ab --quarantine`")
        refused = str(commands.perform("carry"))
        assert "a2 appeared at west after the rollback, and nothing was copied: give --quarantine, or exclude it in" in refused
        assert commands.perform("quarantine") is None
        assert [each.value for each in writes] == list(world.clusters["east"].read(f"{QUARANTINE_PREFIX}a2", 0).values())
        assert commands.perform("quarantine") is None
        assert world.check() == []


def test_groups_come_back_on_a_topic_that_came_after_the_move_and_was_copied_back(tmp_path: Path) -> None:
    """The registration of the first mirror was deleted, so that the reverse mirror copies a topic that both would copy."""
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, forward, offsets = Commands(world), world.services[FORWARD], world.clusters["west"].state.groups.offsets
        forward.is_wanted = False
        world.kill(forward)
        for key in [key for key in offsets if key[0] == "forward-origin"]:
            del offsets[key]
        DeleteTopic(0).perform(commands)
        CreateTopic(0, 2).perform(commands)
        world.let(50)
        assert commands.perform("rollback") is None
        assert any("stop the writers of a2, b and the consumers" in event for event in world.events)
        assert world.check() == []


def test_the_next_wave_is_moved_by_a_mirror_whose_former_topic_the_reverse_mirror_created_again(performed: Performed) -> None:
    deleted = ((Step.ADMIT_WRITERS, 1, DeleteTopic(0)),)
    done = performed(Let(10), Conduct("run", meanwhile=deleted), setting=Setting(waves=("a", "b"), quiet="2 seconds"))
    assert done.finding is None
    assert "  b: report" in done.events


OLDER = "the table of m is older than the target: its newest row is row"


def test_an_older_table_of_the_migration_is_refused_by_every_command_until_the_newest_is_back(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)
        world.begin()
        world.let(10)
        assert commands.perform("plan") is None
        assert commands.perform("run") is None
        assert commands.perform("rollback", kill=Kill(Step.COPY_REST, 1, is_behind=False)) is None
        PutBackMigration(0).perform(commands)
        for command in ("plan", "run", "rollback", "abort", "carry"):
            assert OLDER in str(commands.perform(command))
        assert world.newest_migration is not None
        world.migration_table.put_back(world.newest_migration)
        assert commands.perform("rollback") is None
        assert world.check() == []


def test_the_generator_finds_commands_that_believe_an_older_table_of_the_migration(
    performed: Performed, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        Let(10),
        Conduct("run", Kill(Step.HAND_OVER, 1, is_behind=True)),
        Conduct("run"),
        PutBackMigration(0),
        Conduct("run"),
    )
    assert performed(*script).finding is None
    monkeypatch.setattr(NewestRow, "require_in", lambda _, read: read())
    monkeypatch.setattr(NewestRow, "note", lambda *_: None)
    assert performed(*script).finding is not None


def test_a_row_that_a_conductor_adds_while_its_table_is_compared_makes_the_table_no_older_one(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        world.begin()
        world.let(10)
        newest, rows = NewestRow(world.files.mirror, world.files.config.migration), [_row("one")]

        def read() -> list[MigrationRow]:
            before = list(rows)
            rows.append(replace(rows[0], sequence=8))
            newest.note(rows[-1])
            return before

        assert [row.sequence for row in newest.require_in(read)] == [7]
        with pytest.raises(ConfigError, match=r"row 7 of conductor 2 .* notes row 8 of conductor 2"):
            newest.require_in(lambda: rows[:1])


def test_of_two_conductors_with_copies_of_one_table_the_second_is_fenced(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        world.begin()
        world.let(10)
        newest = NewestRow(world.files.mirror, world.files.config.migration)
        newest.note(_row("one"))
        newest.note(_row("one"))
        with pytest.raises(FencedError, match=r"another copy of the table has written row 7 of conductor 2 .*run one"):
            newest.note(_row("another"))


def test_a_note_that_the_target_does_not_take_is_said_and_holds_up_no_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object, timeout_s: float) -> None:
        raise RetriableError("REFUSED", "GROUP_AUTHORIZATION_FAILED")

    monkeypatch.setattr(newest_row, "write_group_note", refuse)
    with opened_world(tmp_path / "world", SETTING) as world, caplog.at_level(logging.WARNING):
        world.begin()
        world.let(10)
        NewestRow(world.files.mirror, "m").note(_row("one"))
    assert "an older copy of the table of m will not be noticed: REFUSED: GROUP_AUTHORIZATION_FAILED" in caplog.text


def _row(run_id: str) -> MigrationRow:
    return MigrationRow(
        sequence=7,
        conductor_epoch=2,
        wave="ab",
        event="begun",
        step=Step.CHECK.value,
        detail={},
        fingerprint="",
        host="host",
        pid=1,
        run_id=run_id,
        at=datetime.now(UTC),
    )


def test_a_group_that_has_members_and_no_offset_is_named(performed: Performed) -> None:
    done = performed(Conduct("run"))
    assert done.finding is None
    assert any("waves: ab: groups: ga has no group with committed offsets at east" in event for event in done.events)


def test_a_group_that_has_begun_to_read_a_topic_of_another_wave_gets_no_offset_of_the_move_there(tmp_path: Path) -> None:
    with moved_world(tmp_path / "world", replace(SETTING, waves=("a", "b"))) as world:
        commands = Commands(world)
        world.let(20)
        world.application.stop_consumers(world.application.sites[0])
        west, east = (world.clusters[side] for side in ("west", "east"))
        west.commit_group("ga", "b", 0, west.bounds("b", 0)[1])
        error = commands.perform("rollback")
        assert isinstance(error, ConfigError)
        assert error.problems == (
            "group ga reads b at west as well, which another wave has moved: its offsets there would be wrong at east. Delete "
            "them at west (kafka-consumer-groups.sh --delete-offsets), and set them at east yourself once these topics are back",
        )
        del west.state.groups.offsets["ga", ("b", 0)]
        assert commands.perform("rollback") is None
        assert world.state().waves["a"].phase is world.state().waves["b"].phase is Phase.RETURNED
        assert ("ga", ("b", 0)) not in east.state.groups.offsets


def test_a_partition_in_which_nothing_but_an_aborted_transaction_was_written_can_move(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)
        world.begin()
        (site,) = world.application.sites
        site.is_writing = False
        for is_commit in (False, True):
            txn = world.application.begin("east", is_of_writers=True)
            world.application.write("east", "a", int(is_commit), 1, txn)
            world.application.end(txn, is_commit=is_commit)
            world.let(5)
        world.application.write("east", "b", 0, 1)
        world.let(20)
        world.clusters["west"].produce_marker("a", 0)
        assert commands.perform("run") is None
        assert world.check() == []


def test_a_topic_that_is_deleted_where_its_writers_moved_holds_up_no_topic_that_is_still_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        errors: list[str] = []
        monkeypatch.setattr(world, "mend", lambda _, error: errors.append(str(error)))
        world.begin()
        world.let(10)
        forward = world.services[FORWARD]
        world.controls(forward).add("hand-over", ["a"])
        world.let(5)
        world.clusters["west"].delete_topic("a")
        world.kill(forward)
        world.let(10)
        copied = len(world.clusters["west"].read("b", 0))
        world.let(10)
        assert forward.is_running
        assert errors == []
        assert len(world.clusters["west"].read("b", 0)) > copied
        assert "a" not in world.clusters["west"].topic_ids()
        world.controls(forward).add("take-back", ["a"])
        world.let(20)
        assert any("target topic a (for a) was deleted, with what was copied to it" in error for error in errors)
        assert "a" not in world.clusters["west"].topic_ids()


def test_the_generator_finds_a_point_of_no_return_that_does_not_look_at_the_logs(
    performed: Performed, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = ((Step.POINT_OF_NO_RETURN, 1, ClientWrites(0, 0, 2)),)
    script = (Let(10), Conduct("run", meanwhile=again))
    assert performed(*script).finding is None
    monkeypatch.setattr(point_of_no_return, "reopening", lambda *_: None)
    assert "lost: a0:" in (performed(*script).finding or "")


def test_the_generator_finds_a_move_that_leaves_the_groups_where_they_were(
    performed: Performed, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (Let(20), Conduct("run"))
    assert performed(*script).finding is None

    def commit_nothing(*arguments: object, is_applied: bool, **options: object) -> GroupsReport:
        return sync_groups(*arguments, is_applied=False, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(passage, "sync_groups", commit_nothing)
    monkeypatch.setattr(point_of_no_return, "reopening", lambda *_: None)
    monkeypatch.setattr("shallow_mirror.migration.conductor.commit_problems", lambda _: [])
    assert "times" in (performed(*script).finding or "")
