"""What the map, the logs and the other cluster together say of a committed offset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP
from shallow_mirror.groups.eligibility import Clusters, RemoteGroup, SourceCommit, commits_of, evaluate, next_step
from shallow_mirror.groups.offset_translation import COMMIT_COLUMNS, Commit, CommitTranslator, Side
from shallow_mirror.groups.report import Group, GroupPartition, GroupsReport, Outcome, Step
from shallow_mirror.groups.view import sentence
from shallow_mirror.migration.group_return import leads_to_no_copy
from shallow_mirror.types import SourcePartition, TargetPartition

SOURCE, OLDER = SourcePartition("orders", "idS", 0), SourcePartition("orders", "idOld", 0)
TARGET = TargetPartition("east.orders", "idT", 0)
HERE, THERE = SOURCE.topic_partition, TARGET.topic_partition
LOGS = Clusters(
    other_ids={"east.orders": "idT", "orders": "idS"},
    other_starts={THERE: 0, HERE: 0},
    other_ends={THERE: 300, HERE: 90},
)

ROWS = [(SOURCE, "data", 10, 20, 110, 2), (SOURCE, "quarantined", 20, 25, None, 2), (SOURCE, "commit", 25, 26, None, 2)]


def rows_of(rows: list[tuple[SourcePartition, str, int, int, int | None, int]], *, is_preserved: bool = False) -> pa.Table:
    made = [
        {
            "source_topic": source.topic, "source_topic_id": source.topic_id, "source_partition": source.partition,
            "target_topic": TARGET.topic, "target_topic_id": TARGET.topic_id, "target_partition": TARGET.partition,
            "source_start": start, "source_end": end, "kind": kind, "micro_batch": micro_batch, "record_count": end - start,
            "target_start": target_start, "target_end": None if target_start is None else target_start + end - start,
            "target_producer_id": 77 if is_preserved else None,
        }
        for source, kind, start, end, target_start, micro_batch in rows
    ]  # fmt: skip
    return pa.Table.from_pylist(made, schema=OFFSET_MAP).select(COMMIT_COLUMNS)


def evaluated(
    offset: int | None,
    clusters: Clusters = LOGS,
    *,
    source: SourcePartition | None = SOURCE,
    rows: Any = ROWS,
    side: Side = "source",
    reason: str = "",
    is_preserved: bool = False,
) -> GroupPartition:
    source_commit = SourceCommit("g", HERE if side == "source" else THERE, offset, "m", source, reason)
    translator = CommitTranslator(commits_of([source_commit], clusters), side)
    translator.add(rows_of(rows, is_preserved=is_preserved))
    return evaluate(source_commit, translator, translator.lines(), clusters, side)


@pytest.mark.parametrize(
    ("offset", "outcome", "to_offset", "waits_for", "withheld"),
    [
        (15, Outcome.TRANSLATED, 115, 0, 5),
        (22, Outcome.TRANSLATED, 120, 0, 3),
        (26, Outcome.TRANSLATED, 120, 0, 0),
        (27, Outcome.WAITS, 120, 1, 0),
        (9, Outcome.LOST, 110, None, 0),
        (None, Outcome.PENDING, None, None, 0),
    ],
)
def test_an_offset_is_translated_or_waits_or_is_lost(
    offset: int | None, outcome: Outcome, to_offset: int | None, waits_for: int | None, withheld: int
) -> None:
    group_partition = evaluated(offset)
    assert (group_partition.outcome, group_partition.to_offset, group_partition.waits_for, group_partition.withheld) == (
        outcome,
        to_offset,
        waits_for,
        withheld,
    )
    assert group_partition.is_left


def test_what_the_source_has_deleted_itself_is_not_lost_on_the_way() -> None:
    assert evaluated(9, replace(LOGS, origin_starts={HERE: 10})).outcome is Outcome.TRANSLATED
    assert evaluated(9, replace(LOGS, origin_starts={HERE: 80})).outcome is Outcome.TRANSLATED


def test_what_the_target_has_deleted_is_lost_where_the_source_still_has_it() -> None:
    cut = replace(LOGS, other_starts={THERE: 115})
    lost = evaluated(12, cut)
    assert (lost.outcome, lost.to_offset) == (Outcome.LOST, 115)
    assert lost.reason == "the log there begins at 115: 3 offsets from 112 on were deleted"
    assert evaluated(12, replace(cut, origin_starts={HERE: 15})).outcome is Outcome.TRANSLATED
    assert evaluated(15, cut).outcome is Outcome.TRANSLATED


@pytest.mark.parametrize(
    ("clusters", "reason"),
    [
        (replace(LOGS, other_ids={}), "there is no topic east.orders"),
        (
            replace(LOGS, other_ids={"east.orders": "new"}),
            "was deleted and created again there (topic id new), the map knows idT",
        ),
        (replace(LOGS, other_ends={THERE: 112}), "ends at 112, below that offset: it has lost records"),
    ],
)
def test_another_log_than_the_map_speaks_of_takes_no_offset(clusters: Clusters, reason: str) -> None:
    group_partition = evaluated(15, clusters)
    assert (group_partition.outcome, group_partition.to_offset) == (Outcome.RECREATED, None)
    assert reason in str(group_partition.reason)


def test_where_nothing_is_copied_yet_a_group_is_left_unless_the_log_there_is_empty() -> None:
    rows = [(SOURCE, "gap", 20, 20, None, 1)]
    left = evaluated(20, rows=rows)
    assert (left.outcome, left.to_offset, left.waits_for) == (Outcome.WAITS, None, 0)
    assert leads_to_no_copy(left)
    beyond = evaluated(25, rows=rows)
    assert (beyond.outcome, beyond.to_offset, beyond.waits_for) == (Outcome.WAITS, None, 5)
    assert not leads_to_no_copy(beyond)
    assert left.reason is not None
    assert left.reason.startswith("nothing of this partition is copied yet, and east.orders-0 holds other records, 0 to 299")
    assert next_step(left, RemoteGroup(True, (), {}), is_forced=True).step is Step.NONE
    empty = evaluated(20, replace(LOGS, other_starts={THERE: 300}), rows=rows)
    assert (empty.outcome, empty.to_offset) == (Outcome.TRANSLATED, 300)


def test_behind_the_last_copy_nothing_can_have_been_deleted_there() -> None:
    assert evaluated(26, replace(LOGS, other_starts={THERE: 121})).outcome is Outcome.TRANSLATED


PRESERVED = [(SOURCE, "gap", 10, 10, None, 1), (SOURCE, "data", 10, 20, 10, 2), (SOURCE, "aborted", 20, 25, None, 2)]


@pytest.mark.parametrize(
    ("offset", "end", "outcome", "to_offset", "waits_for"),
    [
        (15, 25, Outcome.TRANSLATED, 15, 0),
        (22, 25, Outcome.TRANSLATED, 22, 0),
        (40, 50, Outcome.TRANSLATED, 40, 0),
        (40, 30, Outcome.WAITS, 30, 10),
        (22, 20, Outcome.WAITS, 20, 2),
        (9, 25, Outcome.LOST, 9, None),
        (15, 18, Outcome.RECREATED, None, None),
    ],
    ids=["copied", "a hole", "behind the map", "behind the log", "not filled yet", "never mirrored", "lost records"],
)
def test_a_preserved_offset_leads_to_itself_as_far_as_the_log_there_reaches(
    offset: int, end: int, outcome: Outcome, to_offset: int | None, waits_for: int | None
) -> None:
    logs = replace(LOGS, other_ends={THERE: end})
    group_partition = evaluated(offset, logs, rows=PRESERVED, is_preserved=True)
    assert (group_partition.outcome, group_partition.to_offset, group_partition.waits_for) == (outcome, to_offset, waits_for)


def test_a_preserved_log_without_records_takes_its_own_offset_and_what_it_deleted_is_lost() -> None:
    empty = replace(LOGS, other_starts={THERE: 99}, other_ends={THERE: 100})
    nothing = evaluated(100, empty, rows=[(SOURCE, "gap", 100, 100, None, 1)], is_preserved=True)
    assert (nothing.outcome, nothing.to_offset) == (Outcome.TRANSLATED, 100)
    cut = replace(LOGS, other_starts={THERE: 18})
    assert evaluated(12, cut, rows=PRESERVED, is_preserved=True).outcome is Outcome.LOST
    assert evaluated(19, cut, rows=PRESERVED, is_preserved=True).outcome is Outcome.TRANSLATED


def test_failing_back_preserved_offsets_asks_no_decision_and_no_record_of_the_target_alone_is_skipped() -> None:
    """Rows that are not settled may not be removed: records with preserved offsets are in no transaction."""
    logs = replace(LOGS, unsettled={THERE: 10})
    back = evaluated(50, logs, rows=PRESERVED, side="target", is_preserved=True)
    assert (back.outcome, back.to_offset) == (Outcome.TRANSLATED, 50)
    further = evaluated(95, logs, rows=PRESERVED, side="target", is_preserved=True)
    assert (further.outcome, further.to_offset, further.waits_for) == (Outcome.WAITS, 90, 5)


def test_a_partition_is_preserved_as_its_last_rows_are() -> None:
    translator = CommitTranslator([Commit(SOURCE, 15)])
    rows = rows_of(PRESERVED, is_preserved=True)
    translator.add(rows)
    assert translator.lines()[SOURCE].is_preserved
    later = rows.set_column(rows.column_names.index("micro_batch"), "micro_batch", pa.array([7] * 3, pa.int64()))
    in_txn = later.set_column(later.column_names.index("transactional_id"), "transactional_id", pa.array(["m-0"] * 3))
    translator = translator.continue_with([Commit(SOURCE, 15)])
    translator.add(in_txn)
    assert not translator.lines()[SOURCE].is_preserved


def test_a_topic_that_was_created_again_is_distinguished_from_one_that_the_mirror_has_not_begun_with() -> None:
    later = evaluated(15, rows=[(OLDER, "data", 0, 9, 50, 1)])
    assert (later.outcome, later.reason) == (
        Outcome.RECREATED,
        "the topic was deleted and created again (topic id idS), the map knows idOld only",
    )
    assert evaluated(15, rows=[]).outcome is Outcome.WAITS
    out = evaluated(15, source=None, reason="internal topics are never mirrored")
    assert (out.outcome, out.reason, out.is_left) == (Outcome.NOT_MIRRORED, "internal topics are never mirrored", False)


def test_failing_back_waits_for_rows_that_may_still_be_removed_and_stops_at_an_older_incarnation() -> None:
    assert evaluated(116, side="target").to_offset == 16
    assert evaluated(121, side="target").outcome is Outcome.TRANSLATED, "markers lie behind the last record"
    waits = evaluated(125, replace(LOGS, unsettled={THERE: 122}), side="target")
    assert (waits.outcome, waits.waits_for) == (Outcome.WAITS, 3)
    assert evaluated(122, replace(LOGS, unsettled={THERE: 122}), side="target").outcome is Outcome.TRANSLATED
    rows = [(OLDER, "data", 0, 9, 50, 1), *ROWS]
    assert evaluated(55, side="target", rows=rows).outcome is Outcome.LOST
    assert evaluated(59, side="target", rows=rows).to_offset == 10


FREE = RemoteGroup(True, (), {})


@pytest.mark.parametrize(
    ("offset", "there", "is_forced", "step"),
    [
        (15, FREE, False, Step.TO_COMMIT),
        (15, RemoteGroup(True, (), {THERE: 115}), False, Step.IN_PLACE),
        (15, RemoteGroup(False, ("app at h",), {THERE: 115}), False, Step.IN_PLACE),
        (15, RemoteGroup(True, (), {THERE: 110}), False, Step.TO_COMMIT),
        (15, RemoteGroup(True, (), {THERE: 116}), False, Step.FURTHER),
        (15, RemoteGroup(True, (), {THERE: 116}), True, Step.TO_COMMIT),
        (15, RemoteGroup(False, ("app at h",), {THERE: 116}), False, Step.FURTHER),
        (15, RemoteGroup(False, ("app at h",), {THERE: 116}), True, Step.ACTIVE),
        (15, RemoteGroup(False, (), {}), True, Step.ACTIVE),
        (15, RemoteGroup(True, (), {THERE: None}), True, Step.REFUSED),
        (27, FREE, False, Step.NONE),
        (27, FREE, True, Step.TO_COMMIT),
        (9, FREE, True, Step.TO_COMMIT),
        (None, FREE, True, Step.NONE),
    ],
)
def test_what_may_be_done_on_the_other_cluster(offset: int | None, there: RemoteGroup, is_forced: bool, step: Step) -> None:
    group_partition = next_step(evaluated(offset), there, is_forced=is_forced)
    assert group_partition.step is step
    if step in (Step.ACTIVE, Step.REFUSED, Step.FURTHER):
        assert group_partition.reason


def test_a_report_is_done_when_all_is_in_place_or_further_and_says_so_in_a_line() -> None:
    steps = [
        next_step(evaluated(15), RemoteGroup(True, (), {THERE: 115}), is_forced=False),
        next_step(evaluated(16), RemoteGroup(True, (), {THERE: 118}), is_forced=False),
        evaluated(1, source=None, reason="left out"),
    ]
    group = Group(name="billing", partitions=tuple(steps), state="empty")
    report = GroupsReport(mirror="m", origin="east", other="west", groups=(group,))
    assert report.is_done
    line = "billing: 1 not mirrored, 2 translated; repeats 0 records; at west: empty, 1 further, 1 in place"
    assert sentence(group, "east", "west") == line
    waiting = replace(group, partitions=(evaluated(28),))
    assert not replace(report, groups=(waiting,)).is_done
    assert (
        sentence(waiting, "east", "west")
        == "billing: 1 waits; repeats 0 records, waits for 2 offsets; at west: empty, nothing to do"
    )
    active = sentence(replace(waiting, is_active_at_origin=True), "east", "west")
    assert active.endswith("; still active at east: stop its consumers before you move it")
    assert report.document()["groups"][0]["partitions"][0]["to_offset"] == 115


@pytest.mark.parametrize(
    ("offset", "are_final", "outcome", "to_offset"),
    [
        (26, False, Outcome.WAITS, None),
        (26, True, Outcome.TRANSLATED, 3),
        (27, True, Outcome.WAITS, None),
    ],
    ids=["copies may come", "no copy comes any more", "not mirrored up to there"],
)
def test_who_has_read_all_of_a_partition_without_copies_continues_at_its_end_once_no_copy_comes(
    offset: int, are_final: bool, outcome: Outcome, to_offset: int | None
) -> None:
    """Its log has markers, of transactions with records of other partitions."""
    logs = replace(LOGS, other_ends={THERE: 3}, are_ends_final=are_final)
    rows = [(SOURCE, "aborted", 10, 25, None, 2), (SOURCE, "abort", 25, 26, None, 2)]
    evaluation = evaluated(offset, logs, rows=rows)
    assert (evaluation.outcome, evaluation.to_offset) == (outcome, to_offset)
