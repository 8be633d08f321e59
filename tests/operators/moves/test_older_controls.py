"""Tables that lack a hand-over and nothing else: no record was copied since, so that only the note on the target tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.operators.moves.commands import Commands, Meanwhile
from tests.operators.moves.moving_world import FORWARD, MovingWorld, Service, Setting
from tests.operators.moves.surroundings import opened_world

from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.errors import ConfigError, MirrorError, OlderTablesError
from shallow_mirror.migration.steps import Step
from shallow_mirror.operations.recover import accept_repeats, older_tables
from shallow_mirror.sinks.kafka import NewestControl
from shallow_mirror.sinks.kafka.targets import newest_control
from shallow_mirror.sinks.kafka.targets.newest_control import ControlNote

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.thorough]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[MovingWorld]:
    with opened_world(tmp_path / "world", Setting(quiet="2 seconds")) as opened:
        opened.begin()
        opened.let(10)
        yield opened


@pytest.fixture
def errors(world: MovingWorld, monkeypatch: pytest.MonkeyPatch) -> list[MirrorError]:
    """Return the errors with which mirrors end. No remedy is taken, and they are not started again."""
    found: list[MirrorError] = []

    def note(service: Service, error: MirrorError) -> None:
        found.append(error)
        service.is_wanted = False

    monkeypatch.setattr(world, "mend", note)
    return found


def handed_over(world: MovingWorld) -> tuple[Service, Any]:
    """Move the wave. Return its mirror, which is stopped, and its tables of before the hand-over."""
    forward, before = world.services[FORWARD], list[Any]()

    def copy() -> None:
        before.append((world.copied_tables(forward), recorded(forward)))

    world.come_to_rest()
    assert Commands(world).perform("run", meanwhile=[Meanwhile(Step.STOP_GROUPS, 0, copy)]) is None
    forward.is_wanted = False
    world.kill(forward)
    older, decided = before[0]
    assert recorded(forward) == decided, "receipts tell that these tables are older"
    return forward, older


def recorded(service: Service) -> Any:
    return OffsetMap.open(service.config.table_location, mirror=service.config.mirror).recorded()


def restart(world: MovingWorld, service: Service) -> None:
    service.is_wanted = True
    world.start(service)
    world.let(20)


def test_a_start_without_a_hand_over_is_refused(world: MovingWorld, errors: list[MirrorError]) -> None:
    forward, older = handed_over(world)
    newest = world.copied_tables(forward)
    world.put_back(forward, older)
    restart(world, forward)
    (error,) = errors
    assert isinstance(error, OlderTablesError)
    assert "their newest row of the table controls is none, but consumer group forward-controls on the target notes" in str(error)
    assert "-over of b, " in str(error)
    assert str(older_tables(forward.config)) == str(error)
    world.put_back(forward, newest)
    restart(world, forward)
    assert len(errors) == 1
    assert forward.is_running
    world.come_to_rest()
    assert world.check() == []


def test_a_start_without_a_hand_over_is_accepted_where_the_newest_tables_are_lost(
    world: MovingWorld, errors: list[MirrorError]
) -> None:
    forward, older = handed_over(world)
    world.put_back(forward, older)
    error = older_tables(forward.config)
    assert error is not None
    accept_repeats(forward.config, error)
    assert older_tables(forward.config) is None
    for service in world.services.values():
        service.is_wanted = False  # both would copy in a ring, as the error says
        world.kill(service)
    restart(world, forward)
    assert not any(isinstance(error, OlderTablesError) for error in errors)


def refuse(*_: object, timeout_s: float) -> None:
    raise ConfigError("writing to the consumer group forward-controls: GROUP_AUTHORIZATION_FAILED")


def exchange_controls(world: MovingWorld, service: Service, rows: Any) -> Any:
    """Put other rows in place of the table `controls`, and return those that were there. None: no table."""
    tables = world.table_folders.at(service.config.tables)
    others, before = tables.copy(), tables.copy()["controls"]
    del others["controls"]
    tables.put_back(others if rows is None else {**others, "controls": rows})
    return before


def test_a_running_mirror_copies_nothing_again_while_its_controls_are_away(world: MovingWorld, errors: list[MirrorError]) -> None:
    forward, _ = handed_over(world)
    restart(world, forward)
    world.application.start_writers(world.application.sites[0], "west")
    newest = exchange_controls(world, forward, None)
    world.let(20)
    exchanged = world.table_folders.at(forward.config.tables)
    exchanged.put_back({**exchanged.copy(), "controls": newest})
    world.let(20)
    assert (errors, forward.is_running) == ([], True)
    world.come_to_rest()
    assert world.check() == []


@pytest.mark.parametrize("can_note", [True, False], ids=["noted", "notes are refused"])
def test_a_running_mirror_ends_where_its_controls_become_older(
    world: MovingWorld, errors: list[MirrorError], monkeypatch: pytest.MonkeyPatch, can_note: bool
) -> None:
    forward, _ = handed_over(world)
    if not can_note:
        monkeypatch.setattr(newest_control, "write_group_note", refuse)
    restart(world, forward)
    older = world.table_folders.at(forward.config.tables).copy()["controls"]
    world.controls(forward).add("pause", ["b"])
    world.let(10)
    newest = exchange_controls(world, forward, older)
    world.let(10)
    (error,) = errors
    assert isinstance(error, OlderTablesError)
    assert "their newest row of the table controls is row 4 (handed-over of b), but this run has read row 5 (pause of b)" in str(
        error
    )
    restart(world, forward)
    assert len(errors) == (2 if can_note else 1), "the note was not set back"
    exchange_controls(world, forward, newest)
    restart(world, forward)
    assert forward.is_running
    world.come_to_rest()
    assert world.check() == []


def test_a_command_that_notes_its_row_does_not_set_the_note_back(world: MovingWorld) -> None:
    forward, _ = handed_over(world)
    rows = world.controls(forward).read().rows
    newest = NewestControl(
        forward.config.target.client, forward.config.mirror, OffsetMap.open(forward.config.table_location).map_id
    )
    with pytest.raises(OlderTablesError, match=rf"newest row of the table controls is row {len(rows) - 1} "):
        newest.note(rows[:-1])
    assert newest.require_in(world.controls(forward).read).rows == rows


def test_a_target_that_refuses_notes_holds_up_no_move(world: MovingWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newest_control, "write_group_note", refuse)
    assert Commands(world).perform("run") is None
    world.come_to_rest()
    assert world.check() == []


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"map_id": "m", "sequence": "x"}'])
def test_other_texts_are_no_notes(text: str) -> None:
    assert ControlNote.parse(text) is None


def test_a_note_names_a_row_and_the_tables_it_belongs_to() -> None:
    row: Any = SimpleNamespace(sequence=3, action="pause", topic="a", at_ms=1_700_000_000_000, host="h", pid=7)
    note = ControlNote.of("map", row)
    assert ControlNote.parse(note.build()) == note
    assert note != ControlNote.of("another", row)
    assert str(note) == "row 3 (pause of a, 2023-11-14T22:13:20+00:00, on h, pid 7)"
    assert str(ControlNote.newest("map", [])) == "none"
