"""Scripts of operators' actions against strict clusters in memory; more of them with `make faults FAULTS="operators"`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.operators import world as world_module
from tests.operators.actions import (
    Action,
    Begin,
    CommitGroup,
    CreateTopic,
    DeleteRecords,
    DeleteTargetRecords,
    DeleteTopic,
    End,
    ForeignWrite,
    GrowTopic,
    HandOver,
    Idle,
    LimitTarget,
    ListQuarantine,
    Pause,
    PutBackTables,
    Redo,
    ResetTargetGroup,
    Resume,
    RetryQuarantine,
    Run,
    RunBeside,
    SetIsolation,
    SetOffsets,
    SetRefused,
    SyncGroups,
    SyncGroupsBeside,
    TakeBack,
    Write,
    WriteLarge,
)
from tests.operators.run import explained
from tests.operators.scripts import CLASSES, perform, script_of, shortened

from shallow_mirror.checkpoints.logs.topics import NO_CONTROLS
from shallow_mirror.groups import sync as group_sync
from shallow_mirror.operations.redo import redo
from shallow_mirror.sinks.kafka.protocol import txn_performer
from shallow_mirror.streaming.planning import planner_state

pytestmark = pytest.mark.usefixtures("without_logging")

SEEDS = range(40)

UNCOMMITTED, COMMITTED = SetIsolation("read_uncommitted"), SetIsolation("read_committed")

OLDER_TABLES = (Write(0, 0, 2), Run(), Write(0, 0, 3), Run(), PutBackTables(1), Run())

DIVERGED_COPIES = (Run(), Write(0, 1, 2), Run(13), GrowTopic(0), Run(19, True), PutBackTables(0), Run(), PutBackTables(1))
"""The newest tables have more run epochs, but none of the copied records; the older ones are continued, then put away."""

OTHER_PRODUCER = (
    SetOffsets("preserved"),
    Run(57, False, 66, GrowTopic(0), 817777),
    Run(choice=318991),
    Write(0, 2, 1),
    PutBackTables(1),
    Run(0, True, 0, None, 228066),
    PutBackTables(2),
)
"""A run with a copy of the tables from before the topic grew has registered the partition with another producer."""

SHORTER_TARGET = (
    SetOffsets("preserved"),
    Write(1, 1, 3),
    Run(choice=313393),
    DeleteTopic(0),
    Write(0, 2, 3),
    Run(0, True, 0, None, 467620),
    CreateTopic(0, 1),
    DeleteTargetRecords(1, 1, 30),
    Run(0, True, 100, Write(0, 1, 2), 760919),
)
"""Another mirror continues a target topic whose first records were deleted there."""


@pytest.fixture
def finding(tmp_path: Path) -> Callable[..., str | None]:
    return lambda *script: perform(script, tmp_path / "world").finding


@pytest.mark.thorough
def test_no_sequence_of_actions_loses_a_record_or_ends_without_a_way_on(tmp_path: Path) -> None:
    kills = remedies = 0
    for seed in SEEDS:
        done = perform(script_of(seed), tmp_path / "world")
        assert done.finding is None, explained(seed, done.finding, tmp_path / "world", script_of(seed))
        kills, remedies = kills + done.kills, remedies + done.remedies
    assert kills > 0
    assert remedies > 0


@pytest.mark.thorough
def test_a_run_killed_at_every_effect_is_taken_up_again(finding: Callable[..., str | None]) -> None:
    for kill_at in range(1, 40, 4):
        for is_behind in (False, True):
            assert finding(Write(0, 0, 2), Run(kill_at, is_behind), Write(1, 0, 1)) is None, (kill_at, is_behind)


@pytest.mark.thorough
@pytest.mark.parametrize("offsets", ["translated", "preserved"])
@pytest.mark.parametrize(("before", "after"), [(COMMITTED, UNCOMMITTED), (UNCOMMITTED, COMMITTED)])
@pytest.mark.parametrize("is_ended", [True, False])
def test_the_isolation_level_changes_behind_a_run_killed_at_every_effect(
    offsets: str, before: Action, after: Action, is_ended: bool, finding: Callable[..., str | None]
) -> None:
    """The transaction is aborted before the run, or open while the next one begins."""
    ends = [[], [End(is_commit=False)]]
    for kill_at in range(13, 37, 5):
        begin = (SetOffsets(offsets), before, Write(0, 0, 1), Begin(0, 0, 2), Write(0, 0, 1))
        script = (*begin, *ends[is_ended], Run(kill_at), after, Run(), Write(0, 0, 1), *ends[not is_ended], Run())
        assert finding(*script) is None, kill_at


@pytest.mark.thorough
@pytest.mark.parametrize(("before", "after"), [(COMMITTED, UNCOMMITTED), (UNCOMMITTED, COMMITTED)])
def test_preservation_ends_behind_a_killed_run_with_another_isolation_level(
    before: Action, after: Action, tmp_path: Path
) -> None:
    begin = (SetOffsets("preserved"), before, Write(0, 0, 1), Begin(0, 0, 2), Write(0, 0, 1), End(is_commit=False))
    for txn in ([], [Begin(0, 0, 1)]):
        for kill_at in range(13, 34, 5):
            script = (*begin, *txn, Run(kill_at), SetOffsets("translated"), after, Run(), Write(0, 0, 1))
            done = perform(script, tmp_path / "world")
            assert (done.finding, done.remedies) == (None, 0), done.events


@pytest.mark.thorough
@pytest.mark.parametrize(
    "script",
    [
        OLDER_TABLES,
        (Write(0, 0, 1), Run(), HandOver(0), Run(stays=True), Write(0, 0, 1), Run(), TakeBack(0), Run()),
        (SetOffsets("preserved"), Write(0, 0, 1), Run(), Idle(13), Write(0, 0, 1), Run(), Idle(13), Write(0, 0, 1), Run()),
        (SetOffsets("preserved"), Begin(1, 0, 1), Run(), SetOffsets("translated"), Run(), SetOffsets("continued")),
        (SetOffsets("preserved"), Write(0, 0, 2), Run(), Write(0, 0, 2), Run(), PutBackTables(1), Run()),
        (UNCOMMITTED, Begin(0, 0, 2), Run(), COMMITTED, Write(0, 0, 1), Run(stays=True), End(is_commit=False), Run()),
        (UNCOMMITTED, Begin(0, 0, 2), Run(), COMMITTED, Begin(0, 0, 1), Run(), End(is_commit=True), Run()),
        (Run(), Write(1, 1, 1), Run(18), PutBackTables(0), Run(), PutBackTables(1)),
        (SetOffsets("preserved"), Write(0, 2, 3), Run(0, True, 93, ForeignWrite(0, 2), 613232)),
        (SetOffsets("preserved"), Run(), Write(1, 1, 2), Run(13), DeleteRecords(1, 1, 60), Run(0, True, 0, None, 383154)),
        DIVERGED_COPIES,
        OTHER_PRODUCER,
        SHORTER_TARGET,
        (SetOffsets("preserved"), Run(59), Write(1, 1, 3), DeleteRecords(1, 2, 60), ForeignWrite(1, 1)),
        (DeleteTopic(0), DeleteTopic(1), Run(), CreateTopic(1, 1), Write(1, 0, 1), Run()),
    ],
)
def test_scripts_of_one_remedy_or_command(script: Sequence[Action], finding: Callable[..., str | None]) -> None:
    assert finding(*script) is None


def test_the_generator_finds_records_that_older_tables_would_copy_twice(
    finding: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(txn_performer, "require_known_receipts", lambda *_: None)
    assert "twice" in (finding(*OLDER_TABLES) or "")


@pytest.mark.slow
def test_the_generator_finds_a_paused_topic_that_is_copied(
    finding: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (Write(0, 0, 1), Run(), Pause(0), Write(0, 0, 1), Run())
    assert finding(*script) is None
    write = planner_state.write_paused_topics
    monkeypatch.setattr(planner_state, "write_paused_topics", lambda path, *_paused: write(path, frozenset()))
    assert "is paused or handed over" in (finding(*script) or "")


@pytest.mark.slow
@pytest.mark.parametrize("action", [Pause, HandOver])
@pytest.mark.parametrize("offsets", ["translated", "preserved"])
def test_a_micro_batch_that_a_kill_left_undecided_is_taken_up_without_topics_that_are_paused_since(
    finding: Callable[..., str | None], action: type[Pause | HandOver], offsets: str
) -> None:
    back = Resume(0) if action is Pause else TakeBack(0)
    for kill_at in (11, 13, 14):
        killed = (SetOffsets(offsets), Write(0, 0, 1), Run(), Write(0, 0, 2), Write(1, 0, 1), Run(kill_at))
        assert finding(*killed, action(0), Run(), Run(stays=True), back, Run()) is None, kill_at


@pytest.mark.thorough
def test_a_script_is_shortened_to_what_makes_the_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(txn_performer, "require_known_receipts", lambda *_: None)
    script = (Pause(1), *OLDER_TABLES[:3], CommitGroup(0, 0, 0, 60), SyncGroups(), *OLDER_TABLES[3:])
    kept = shortened(script, tmp_path / "world", lambda found: "twice" in found)
    assert tuple(kept) == OLDER_TABLES[1:-1]


@pytest.mark.thorough
@pytest.mark.parametrize("before", [(), (Run(), Write(1, 0, 1))], ids=["both for the first time", "behind an earlier run"])
def test_of_two_runs_at_once_one_is_fenced_whenever_the_other_begins(
    finding: Callable[..., str | None], before: Sequence[Action]
) -> None:
    for request in (3, 8, 12, 16, 24, 32, 39, 46, 55):
        assert finding(*before, Run(during_at=request, during=RunBeside()), Write(0, 0, 1), Run()) is None, request


@pytest.mark.thorough
@pytest.mark.parametrize("name", CLASSES)
def test_no_sequence_with_further_actions_loses_a_record_or_ends_without_a_way_on(tmp_path: Path, name: str) -> None:
    for seed in range(8):
        script = script_of(seed, (name,))
        done = perform(script, tmp_path / "world")
        assert done.finding is None, explained(seed, done.finding, tmp_path / "world", script)


@pytest.mark.slow
def test_a_refused_batch_is_kept_listed_and_released_once_whenever_the_command_is_killed(tmp_path: Path) -> None:
    refused = (Run(), SetRefused("quarantine"), LimitTarget(0, is_small=True), WriteLarge(0, 0), Write(0, 0, 2), Run())
    for kill_at in range(0, 24, 3):
        script = (*refused, ListQuarantine(), RetryQuarantine(None, True, kill_at, True), Write(0, 0, 1), Run())
        done = perform(script, tmp_path / "world")
        assert done.finding is None, kill_at
        assert "1 released, 0 refused again" in done.events or kill_at, done.events


@pytest.mark.slow
def test_a_range_is_copied_again_once_whenever_the_command_is_killed(tmp_path: Path) -> None:
    for kill_at in range(0, 24, 3):
        done = perform((Write(0, 0, 3), Write(0, 0, 2), Run(), Redo(0, 0, 0, 100, kill_at, True), Run()), tmp_path / "world")
        assert done.finding is None, kill_at
        assert not [event for event in done.events if "Error" in event], "the copy was made"


def test_the_generator_finds_a_copy_of_a_range_that_lacks_a_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = lambda config, request: redo(config, replace(request, end=request.start + 1))  # noqa: E731
    monkeypatch.setattr(world_module, "redo", short)
    done = perform((Write(0, 0, 1), Write(0, 0, 1), Run(), Redo(0, 0, 0, 100)), tmp_path / "world")
    assert "lost: ['a0:1']" in (done.finding or "")


@pytest.mark.slow
def test_the_generator_finds_a_sync_that_undoes_the_reset_of_a_group_whose_topic_is_handed_over(
    finding: Callable[..., str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = (Write(0, 0, 3), CommitGroup(0, 0, 0, 100), Run(), SyncGroupsBeside(), HandOver(0), Run(stays=True))
    script = (*begin, ResetTargetGroup(0, 0, 0, 0), SyncGroupsBeside())
    assert finding(*script) is None
    without = SimpleNamespace(read=lambda: NO_CONTROLS)
    monkeypatch.setattr(group_sync, "Controls", SimpleNamespace(open=lambda _: without))
    assert "the sync moved group g1 in a-0 from 0 to 3" in (finding(*script) or "")
