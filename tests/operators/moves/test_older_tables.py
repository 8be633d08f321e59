"""Older tables of a mirror are put in place while a wave moves, or between its move and its way back."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.operators.moves.actions import Conduct, CreateTopic, Let, PutBackTables
from tests.operators.moves.commands import Commands, Kill, Meanwhile
from tests.operators.moves.moving_world import FORWARD, MovingWorld, Setting, TablesCopy
from tests.operators.moves.scripts import Script, perform
from tests.operators.moves.surroundings import moved_world, opened_world

from shallow_mirror.errors import MirrorError, OlderTablesError
from shallow_mirror.migration import read_late_writes
from shallow_mirror.migration.steps import Step
from shallow_mirror.operations.recover import accept_repeats, older_tables

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.thorough]

SETTING = Setting(quiet="2 seconds")


def test_an_abort_is_refused_with_older_tables_of_the_mirror_which_lack_the_hand_over(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)
        older = _handed_over(world, commands)
        forward = world.services[FORWARD]
        newest = world.copied_tables(forward)
        world.put_back(forward, older)
        refused = str(commands.perform("abort"))
        assert refused.startswith("not aborted, because of mirror forward: the tables are older than the target: ")
        assert refused.endswith("Then abort again")
        world.put_back(forward, newest)
        assert commands.perform("abort") is None
        assert world.controls(forward).read().moving == frozenset()
        assert "nothing is under way that could be aborted" in str(commands.perform("abort"))
        forward.is_wanted = True
        world.start(forward)
        assert commands.perform("run") is None
        assert world.check() == []


def test_a_hand_over_that_recovered_tables_have_again_after_the_abort_is_taken_back_by_another(tmp_path: Path) -> None:
    """The newest tables, which have the take-back, are lost, and the operator continues from older ones."""
    with opened_world(tmp_path / "world", SETTING) as world:
        commands = Commands(world)
        _handed_over(world, commands)
        forward = world.services[FORWARD]
        with_hand_over = world.copied_tables(forward)
        assert commands.perform("abort") is None
        world.put_back(forward, with_hand_over)
        older = older_tables(forward.config)
        assert older is not None
        accept_repeats(forward.config, older)
        assert world.controls(forward).read().moving == {"a", "b"}
        assert "`migrate abort` takes back" in str(commands.perform("run"))
        assert commands.perform("abort") is None
        assert world.controls(forward).read().moving == frozenset()
        forward.is_wanted = True
        world.start(forward)
        assert commands.perform("run") is None
        assert world.check() == []


def _handed_over(world: MovingWorld, commands: Commands) -> TablesCopy:
    """Kill a conductor behind its hand-over, and the mirror. Return the tables of before."""
    world.begin()
    world.let(10)
    forward = world.services[FORWARD]
    older = world.copied_tables(forward)
    assert commands.perform("run", kill=Kill(Step.VERIFY_REST, 1, is_behind=False)) is None
    assert world.controls(forward).read().moving == {"a", "b"}
    forward.is_wanted = False
    world.kill(forward)
    return older


def test_a_take_back_in_older_tables_of_the_mirror_is_repeated_in_the_newest(tmp_path: Path) -> None:
    older = ((Step.POINT_OF_NO_RETURN, 13, PutBackTables(0, 2)),)
    setting = Setting(is_started_by_conductor=True, quiet="2 seconds", seed=54169)
    script = Script(setting, (Let(20), Let(10), Conduct("run", meanwhile=older, choice=1279)))
    done = perform(script, tmp_path / "world")
    assert done.finding is None
    assert "forward: put the newest tables back" in done.events
    assert "  ab: copy the rest" in done.events[done.events.index("  ab: point of no return") :]


def test_a_topic_that_older_tables_of_the_mirror_lack_is_waited_for(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", Setting(waves=("a", "b"), quiet="2 seconds")) as world:
        commands = Commands(world)
        world.begin()
        world.let(10)
        forward = world.services[FORWARD]
        older = world.copied_tables(forward)
        CreateTopic(0, 1).perform(commands)
        world.let(10)
        assert commands.perform("run", kill=Kill(Step.VERIFY, 1, is_behind=False)) is None
        world.kill(forward)
        forward.newest = world.copied_tables(forward)
        world.put_back(forward, older)
        assert commands.perform("run") is None
        assert any("a2-0: not in the offset map: new, or" in event for event in world.events)
        assert world.check() == []


def test_groups_come_back_through_the_newest_map_of_the_move_only(tmp_path: Path) -> None:
    """The mirror that wrote it copies nothing any more, so that no start of it tells that its tables are older."""
    with opened_world(tmp_path / "world", SETTING) as world:
        commands, forward = Commands(world), world.services[FORWARD]
        world.begin()
        world.let(10)
        older = world.copied_tables(forward)
        assert commands.perform("run") is None
        forward.is_wanted = False
        world.kill(forward)
        newest = world.copied_tables(forward)
        world.put_back(forward, older)
        world.let(10)
        refused = str(commands.perform("rollback"))
        assert "the tables of mirror forward are older than the move: a-0 was copied up to offset" in refused
        assert "Put the newest tables back" in refused
        world.put_back(forward, newest)
        assert commands.perform("rollback") is None
        assert world.check() == []


def test_what_the_reverse_mirror_has_copied_are_no_late_writes_where_its_tables_are_missing(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        commands, backward = Commands(world), world.services["back-ab.yaml"]
        world.begin()
        world.let(10)
        assert commands.perform("run") is None
        world.let(20)
        backward.is_wanted = False
        world.kill(backward)
        folder = str(backward.config.tables)
        newest = world.table_folders.stores.pop(folder)
        for command in ("carry", "quarantine"):
            refused = commands.perform(command)
            assert isinstance(refused, OlderTablesError)
            assert "the migration has registered the positions of mirror back-ab in them" in str(refused)
        (late,) = read_late_writes(world.files, world.state()).values()
        assert str(late.problem) == str(refused)
        world.table_folders.stores[folder] = newest
        assert commands.perform("carry") is None
        backward.is_wanted = True
        world.start(backward)
        world.come_to_rest()
        assert world.check() == []


def test_older_tables_of_the_reverse_mirror_do_not_make_its_copies_late_writes(tmp_path: Path) -> None:
    with moved_world(tmp_path / "world", SETTING) as world:
        commands, backward = Commands(world), world.services["back-ab.yaml"]
        older = world.copied_tables(backward)
        world.let(20)
        backward.is_wanted = False
        world.kill(backward)
        newest = world.copied_tables(backward)
        world.put_back(backward, older)
        for command in ("carry", "rollback"):
            refused = commands.perform(command)
            assert isinstance(refused, OlderTablesError), refused
        (late,) = read_late_writes(world.files, world.state()).values()
        assert "the tables are older than the target" in str(late.problem)
        world.put_back(backward, newest)
        backward.is_wanted = True
        world.start(backward)
        assert commands.perform("rollback") is None
        assert world.check() == []


def test_tables_that_are_exchanged_under_a_running_mirror_without_work_are_noticed_by_the_conductor(tmp_path: Path) -> None:
    older = ((Step.VERIFY_REST, 1, PutBackTables(0, 1, is_running=True)),)
    script = Script(Setting(quiet="2 seconds", seed=1069), (Let(10), Conduct("run", meanwhile=older, choice=432767)))
    done = perform(script, tmp_path / "world")
    assert done.finding is None
    assert any(
        "WAITS: put the newest tables of the mirror forward in their place (the tables are older" in event
        for event in done.events
    )


def test_a_mirror_that_ended_for_older_tables_is_not_only_asked_to_be_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody reads its log, and the conductor names what the log says."""
    with opened_world(tmp_path / "world", SETTING) as world:
        commands, forward = Commands(world), world.services[FORWARD]
        world.begin()
        world.let(10)
        older = world.copied_tables(forward)
        world.let(10)
        ended = list[MirrorError]()
        monkeypatch.setattr(world, "mend", lambda _, error: ended.append(error))

        def put_older_back() -> None:
            world.kill(forward)
            forward.newest = world.copied_tables(forward)
            world.put_back(forward, older)

        assert commands.perform("run", meanwhile=[Meanwhile(Step.CATCH_UP, 0, put_older_back)]) is None
        assert {type(error) for error in ended} == {OlderTablesError}
        requests = [event for event in world.events if "WAITS: " in event]
        assert "WAITS: start the mirror forward (" in requests[0]
        assert "WAITS: put the newest tables of the mirror forward in their place (the tables are older" in requests[1]
        assert world.check() == []


def test_a_topic_that_was_registered_in_newer_tables_is_no_topic_that_waits_for_its_copy(tmp_path: Path) -> None:
    with opened_world(tmp_path / "world", SETTING) as world:
        commands, forward = Commands(world), world.services[FORWARD]
        world.begin()
        world.let(10)
        older = world.copied_tables(forward)
        CreateTopic(0, 1).perform(commands)
        world.let(10)
        world.come_to_rest()
        newest = world.copied_tables(forward)
        world.put_back(forward, older)
        refused = str(commands.perform("run"))
        assert "the tables are older than the target" in refused
        assert "has not registered" not in refused
        world.put_back(forward, newest)
        assert commands.perform("run") is None
        assert world.check() == []
