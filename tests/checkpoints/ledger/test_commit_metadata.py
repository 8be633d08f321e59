"""What is recorded, where a commit through Spark landed on others that its writer had not seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.checkpoints.map_rows import run_of

from shallow_mirror.checkpoints.ledger.commit_metadata import Recorded, recorded_of, run_id_of, version_of
from shallow_mirror.checkpoints.tables.table_protocol import (
    ON_TOP_OF,
    TXN_VERSION,
    CommitEntry,
    commit_entry,
    user_metadata_entry,
)
from shallow_mirror.errors import OffsetMapConflictError

BASE = Recorded(version=version_of(1, 1), run=run_of("old"), micro_batch=3, row_count=7)
DECISION = replace(BASE, version=version_of(1, 2), micro_batch=4, unsettled_micro_batch=4, highest_slot=5, row_count=9)
TAKE_OVER = replace(BASE, version=version_of(2, 0), run=run_of("new"))


def entry(recorded: Recorded, on_top_of: int | None) -> CommitEntry:
    metadata = recorded.metadata() | {TXN_VERSION: str(recorded.version)}
    actual = commit_entry(metadata if on_top_of is None else metadata | {ON_TOP_OF: str(on_top_of)})
    assert actual is not None
    return actual


def test_a_take_over_that_saw_everything_says_what_is_recorded() -> None:
    commits = [entry(TAKE_OVER, BASE.version), entry(BASE, -1)]
    assert recorded_of(TAKE_OVER.version, commits) == TAKE_OVER


def test_what_a_decision_left_unsettled_still_is_when_a_take_over_landed_on_it_unseen() -> None:
    commits = [entry(TAKE_OVER, BASE.version), entry(DECISION, BASE.version), entry(BASE, -1)]
    assert recorded_of(TAKE_OVER.version, commits) == replace(
        TAKE_OVER, micro_batch=4, unsettled_micro_batch=4, highest_slot=5, row_count=9
    )


def test_a_settled_mark_does_not_settle_a_decision_that_landed_late_below_it() -> None:
    mark = replace(BASE, version=version_of(1, 3))
    commits = [entry(mark, BASE.version), entry(DECISION, BASE.version), entry(BASE, -1)]
    recorded = recorded_of(mark.version, commits)
    assert recorded is not None
    assert (recorded.version, recorded.unsettled_micro_batch) == (mark.version, 4)


def test_of_several_unseen_commits_each_is_read_on_top_of_those_below_it() -> None:
    mark = replace(BASE, version=version_of(1, 3))
    commits = [entry(TAKE_OVER, BASE.version), entry(mark, BASE.version), entry(DECISION, BASE.version), entry(BASE, -1)]
    recorded = recorded_of(TAKE_OVER.version, commits)
    assert recorded is not None
    assert (recorded.run, recorded.unsettled_micro_batch) == (run_of("new"), 4)


def test_a_decision_on_top_of_one_that_its_writer_had_not_seen_is_a_conflict() -> None:
    second = replace(DECISION, version=version_of(1, 4), micro_batch=5, unsettled_micro_batch=5)
    with pytest.raises(OffsetMapConflictError, match=r"micro-batch 5 .* without knowledge"):
        recorded_of(second.version, [entry(second, BASE.version), entry(DECISION, BASE.version), entry(BASE, -1)])


def test_a_compaction_of_a_fenced_run_changes_nothing_wherever_it_lands() -> None:
    late, newer = entry(BASE, None), entry(replace(TAKE_OVER, version=version_of(2, 1)), TAKE_OVER.version)
    below = [newer, late, entry(TAKE_OVER, BASE.version), entry(BASE, -1)]
    for commits in (below, [late, *below]):
        assert recorded_of(version_of(2, 1), commits) == replace(TAKE_OVER, version=version_of(2, 1))


def test_a_version_that_no_commit_carries_is_not_made_up() -> None:
    assert recorded_of(version_of(9, 9), [entry(BASE, -1)]) is None


@pytest.mark.parametrize("text", [None, "", "a note", "[1]", "{}", f'{{"{TXN_VERSION}": "x"}}'])
def test_commits_of_others_have_no_entry(text: str | None) -> None:
    assert user_metadata_entry(text) is None


def test_the_log_says_which_run_took_an_epoch_unless_it_is_too_short_or_another_run_was_accepted_since() -> None:
    third = replace(TAKE_OVER, version=version_of(3, 0), run=run_of("newest"), decided_version=5, decided_run_id="old")
    commits = [entry(third, None), entry(TAKE_OVER, None), entry(BASE, None)]
    assert [run_id_of(epoch, commits) for epoch in (4, 3, 2, 1)] == [None, "newest", "new", "old"]
    assert run_id_of(1, commits[:2]) is None
    accepted = replace(third, decided_run_id="")
    assert [run_id_of(epoch, [entry(accepted, None), *commits[1:]]) for epoch in (3, 2)] == ["newest", None]
