"""`failover run` after the mirror was killed anywhere: the figures of a group are those of what the target shows then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.coordinators import MAX_METADATA_BYTES, Committed
from tests.operators.failover_reports import SilentReports
from tests.operators.fake_world import FakeWorld
from tests.operators.lives import KilledError, Life
from tests.operators.surroundings import opened_world

from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.failover_config import FailoverConfig, FailoverFiles
from shallow_mirror.errors import RetriableError
from shallow_mirror.migration import Options
from shallow_mirror.migration.failover import FailoverState, Step, effects as failover_effects, fail_over, view
from shallow_mirror.sinks.kafka.preserved import HeldRecords

pytestmark = [pytest.mark.usefixtures("without_logging"), pytest.mark.thorough]

RECORDED = 5
"""The offset of the group that the mirror has recorded, of the ten records that are copied and decided."""
WRITTEN = 25
"""Records behind it in the end, without those of an aborted transaction."""


@contextmanager
def killed_mirror(folder: Path, offsets: str, life: Life) -> Iterator[FakeWorld]:
    """Yield a world whose mirror has decided ten records, and was killed while it copied the next ones, or was not."""
    with opened_world(folder) as world:
        world.settings.offsets = offsets
        world.create_source_topic("a", 1)
        world.produce("a", 0, 10)
        world.source.commit_group("g1", "a", 0, RECORDED)
        assert world.run(Life()) is None
        world.sync_groups_beside()
        world.produce("a", 0, 10)
        txn = world.source.begin()  # with preserved offsets, fillers take the places of what it writes
        world.source.produce("a", 0, [f"aborted-{number}" for number in range(5)], txn)
        world.source.end(txn, is_commit=False)
        world.produce("a", 0, 10)
        with suppress(KilledError):
            assert world.run(life) is None
        yield world


@pytest.fixture
def failed_over(monkeypatch: pytest.MonkeyPatch) -> Callable[[FakeWorld], FailoverState]:
    """Return what fails a world over. The process of its mirror is this one, which counts as ended."""

    def perform(world: FakeWorld) -> FailoverState:
        document = {"failover": "f", "mirror": "mirror.yaml", "tables": "failover"}
        config = world.config
        with monkeypatch.context() as patch:
            patch.setattr(failover_effects, "run_of", lambda _: None)
            patch.setattr(MirrorConfig, "load", lambda _path: config)
            files = FailoverFiles(FailoverConfig.from_document(document, folder=world.folder))
            return fail_over(files, SilentReports(), Options(), despite_source=True)

    return perform


def losses(state: FailoverState) -> Any:
    return state.done[Step.REPORT]["groups"]["g1"]


def visible_to_group(world: FakeWorld) -> int:
    """Return how many records a read_committed consumer of the group would read at the target."""
    committed = world.target.group_offsets("g1")["a", 0]
    return sum(offset >= committed for offset in world.target.read("a", 0))


@pytest.mark.parametrize("offsets", ["preserved", "translated"])
@pytest.mark.parametrize("is_behind", [False, True])
def test_a_group_repeats_what_the_target_shows_behind_its_offset(
    tmp_path: Path, failed_over: Callable[[FakeWorld], FailoverState], offsets: str, is_behind: bool
) -> None:
    number, figures = 0, set[int]()
    while True:
        number += 1
        life = Life(kill_at=number, is_behind=is_behind)
        with killed_mirror(tmp_path / f"world-{number}", offsets, life) as world:
            found = losses(failed_over(world))
            assert [loss["repeated_records"] for loss in found] == [visible_to_group(world)], f"killed at effect {number}"
            figures.add(visible_to_group(world))
        if not life.is_over:
            break
    # With preserved offsets each request shows its records at once, and the first one has those before the fillers.
    assert figures == ({RECORDED, 15, WRITTEN} if offsets == "preserved" else {RECORDED, WRITTEN})


def test_the_nearest_offset_of_a_group_is_committed_without_metadata_that_the_target_refuses(
    tmp_path: Path, failed_over: Callable[[FakeWorld], FailoverState]
) -> None:
    with opened_world(tmp_path / "world") as world:
        world.create_source_topic("a", 1)
        world.produce("a", 0, 10)
        assert world.run(Life()) is None
        world.produce("a", 0, 5)
        long = "m" * (MAX_METADATA_BYTES + 1)
        world.source.state.groups.offsets["g1", ("a", 0)] = Committed(12, long)  # the source allows more than the target
        world.sync_groups_beside()
        moved = failed_over(world).done[Step.MOVE_GROUPS]
        assert (moved["nearest"], moved["left"]) == (1, [])
        assert world.target.group_offsets("g1") == {("a", 0): world.target.bounds("a", 0)[1] - 1}


def test_a_nearest_offset_that_a_killed_command_has_committed_counts_as_moved(
    tmp_path: Path, failed_over: Callable[[FakeWorld], FailoverState], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise KilledError

    with opened_world(tmp_path / "world") as world:
        world.create_source_topic("a", 1)
        world.produce("a", 0, 10)
        assert world.run(Life()) is None
        world.produce("a", 0, 5)
        world.source.commit_group("g1", "a", 0, 12)
        world.sync_groups_beside()
        with monkeypatch.context() as patch:
            patch.setattr(failover_effects.FailoverEffects, "_moved_digests", killed)
            with pytest.raises(KilledError):
                failed_over(world)
        committed = world.target.group_offsets("g1")
        assert committed
        moved = failed_over(world).done[Step.MOVE_GROUPS]
        assert (moved["offsets"], moved["nearest"], moved["left"]) == (1, 1, [])
        assert world.target.group_offsets("g1") == committed


def undecided_world(folder: Path) -> Any:
    """Return a world that shows everything although the map ends at offset 10."""
    number = 0
    while True:
        number += 1
        with killed_mirror(folder / f"tried-{number}", "preserved", Life(kill_at=number)) as world:
            is_decided = max(row["source_end"] for row in world.rows) > 10
            is_shown = len(world.target.read("a", 0)) == RECORDED + WRITTEN
        assert not is_decided, "no kill was between the last request and the decision"
        if is_shown:
            return killed_mirror(folder / "world", "preserved", Life(kill_at=number))


def test_what_applications_write_at_the_target_does_not_count(
    tmp_path: Path, failed_over: Callable[[FakeWorld], FailoverState], monkeypatch: pytest.MonkeyPatch
) -> None:
    with undecided_world(tmp_path) as world:
        move_groups = failover_effects.FailoverEffects.move_groups

        def moved(effects: failover_effects.FailoverEffects) -> Any:
            found = move_groups(effects)
            world.target.produce("a", 0, ["of an application"])
            return found

        monkeypatch.setattr(failover_effects.FailoverEffects, "move_groups", moved)
        state = failed_over(world)
        assert visible_to_group(world) == WRITTEN + 1
        assert view.loss_sentence(losses(state)).startswith(f"repeats at most {WRITTEN} records; ")


def test_a_log_that_cannot_be_read_counts_with_all_its_offsets(
    tmp_path: Path, failed_over: Callable[[FakeWorld], FailoverState], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unread(*_: object) -> None:
        raise RetriableError("DEADLINE", "gave up waiting")

    with undecided_world(tmp_path) as world:
        monkeypatch.setattr(HeldRecords, "segments", unread)
        (loss,) = losses(failed_over(world))
        # Behind the recorded offset, up to the end of the log.
        assert loss["repeated_records"] == world.target.bounds("a", 0)[1] - RECORDED
