"""Who reads the other side from the translated offset gets exactly what he would have got from the committed one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP
from shallow_mirror.groups.offset_translation import (
    COMMIT_COLUMNS,
    Commit,
    CommitTranslator,
    Line,
    Quarantined,
    RepeatCounter,
    Side,
)
from shallow_mirror.types import SegmentKind, SourcePartition, TargetPartition

pytestmark = pytest.mark.thorough

SOURCE = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 2)
OLDER = SOURCE._replace(topic_id="oldoldoldoldoldoldoldA")
OTHER = SOURCE._replace(partition=3)
TARGET = TargetPartition("east.orders", "tgttgttgttgttgttgttgtA", 2)

Row = tuple[SegmentKind, int, int, int | None]
"""Kind, source range, and where it begins on the target."""


@dataclass(frozen=True)
class Log:
    """Micro-batches of a partition, each some rows."""

    micro_batches: tuple[tuple[Row, ...], ...]

    @property
    def rows(self) -> list[tuple[int, Row]]:
        return [(number, row) for number, rows in enumerate(self.micro_batches, 1) for row in rows]

    @property
    def start(self) -> int:
        return min(start for _, (_, start, _, _) in self.rows)

    @property
    def position(self) -> int:
        return max(end for _, (_, _, end, _) in self.rows)

    @property
    def records(self) -> dict[int, int]:
        """Source offset of each copied record, by its target offset."""
        copied = [row for _, row in self.rows if row[3] is not None]
        return {at + row[3]: row[1] + at for row in copied for at in range(row[2] - row[1])}  # type: ignore[operator]

    def pieces(self, seed: int, source: SourcePartition = SOURCE) -> list[pa.Table]:
        """All rows, in any order, in two pieces."""
        rows, chance = self.rows, random.Random(seed)
        chance.shuffle(rows)
        cut = chance.randint(0, len(rows))
        return [table_of(source, part) for part in (rows[:cut], rows[cut:])]


def table_of(source: SourcePartition, rows: Sequence[tuple[int, Row]], target: TargetPartition = TARGET) -> pa.Table:
    made = [
        {
            "source_topic": source.topic, "source_topic_id": source.topic_id, "source_partition": source.partition,
            "target_topic": target.topic, "target_topic_id": target.topic_id, "target_partition": source.partition,
            "source_start": start, "source_end": end, "kind": kind.value, "micro_batch": micro_batch,
            "target_start": target_start, "target_end": None if target_start is None else target_start + end - start,
            "record_count": end - start if kind is not SegmentKind.GAP else 0,
        }
        for micro_batch, (kind, start, end, target_start) in rows
    ]  # fmt: skip
    return pa.Table.from_pylist(made, schema=OFFSET_MAP).select(COMMIT_COLUMNS)


@st.composite
def logs(draw: st.DrawFn) -> Log:
    """As a mirror makes them: target offsets rise over data, with jumps for markers; what is released comes at the end of the moment."""
    position, target_start = draw(st.integers(0, 30)), draw(st.integers(0, 30))
    micro_batches: list[tuple[Row, ...]] = [((SegmentKind.GAP, position, position, None),)]
    quarantined: list[tuple[int, int]] = []
    kinds = st.sampled_from(list(SegmentKind))
    for _ in range(draw(st.integers(0, 5))):
        rows: list[Row] = []
        for kind in draw(st.lists(kinds, max_size=5)):
            target_start += draw(st.integers(0, 2))
            size = draw(st.integers(1, 5))
            if kind is SegmentKind.RELEASED:
                if quarantined:
                    start, end = quarantined.pop(draw(st.integers(0, len(quarantined) - 1)))
                    rows.append((kind, start, end, target_start))
                    target_start += end - start
                continue
            if kind is SegmentKind.QUARANTINED:
                quarantined.append((position, position + size))
            rows.append((kind, position, position + size, target_start if kind is SegmentKind.DATA else None))
            target_start += size if kind is SegmentKind.DATA else 0
            position += size
        micro_batches.append(tuple(rows))
    return Log(tuple(micro_batches))


def translated(pieces: Sequence[pa.Table], offsets: Sequence[int], side: Side = "source") -> tuple[list[int], list[int], Line]:
    """Return translations and repeats, in the order of `offsets`."""
    commits = [Commit(SOURCE, offset) for offset in offsets]
    translator = CommitTranslator(commits, side)
    for piece in pieces:
        translator.add(piece)
    translations = {commit: translator.translate(commit).offset for commit in commits}
    counter = RepeatCounter(translations, side)
    for piece in pieces:
        counter.add(piece)
    return (
        [translations[commit] for commit in commits],
        [counter.counts[commit] for commit in commits],
        translator.lines()[SOURCE],
    )


@given(logs(), st.integers(0, 9))
def test_reading_from_the_translation_gives_every_record_from_the_commit_on_and_those_before_it_are_counted(
    log: Log, seed: int
) -> None:
    commits = range(log.position + 1)
    translations, repeats, line = translated(log.pieces(seed), commits)
    assert (line.start, line.position, line.target) == (log.start, log.position, TARGET)
    for commit, target_start, repeated in zip(commits, translations, repeats, strict=True):
        read = [source for target, source in log.records.items() if target >= target_start]
        assert {source for source in read if source >= commit} == {record for record in log.records.values() if record >= commit}
        assert sum(1 for source in read if source < commit) == repeated
        assert target_start <= line.target_end or target_start == 0, "what is copied later is read as well"
    assert translations == sorted(translations)
    if not any(kind is SegmentKind.RELEASED for _, (kind, *_) in log.rows):
        assert set(repeats) == {0}


@given(logs(), st.integers(0, 9))
def test_failing_back_reads_at_the_source_every_record_that_was_not_read_at_the_target(log: Log, seed: int) -> None:
    last = max(log.records, default=0)
    commits = range(last + 2)
    translations, repeats, line = translated(log.pieces(seed), commits, "target")
    for commit, target_start, repeated in zip(commits, translations, repeats, strict=True):
        unread = {source for target, source in log.records.items() if target >= commit}
        assert unread <= {source for source in log.records.values() if source >= target_start}
        assert sum(1 for target, source in log.records.items() if source >= target_start and target < commit) == repeated
        assert log.start <= target_start <= line.position
    if not any(kind is SegmentKind.RELEASED for _, (kind, *_) in log.rows):
        assert set(repeats) == {0}


@given(logs(), st.integers(0, 9))
def test_later_rows_change_no_answer_that_a_reader_would_notice(log: Log, seed: int) -> None:
    """D. A batch that is released later is read where it is then, whoever has translated when."""
    before = Log(log.micro_batches[: max(1, len(log.micro_batches) - 1)])
    commits = range(before.position + 1)
    released = {at for _, (kind, start, end, _) in log.rows if kind is SegmentKind.RELEASED for at in range(start, end)}
    then, _, _ = translated(before.pieces(seed), commits)
    now, _, _ = translated(log.pieces(seed), commits)
    for earlier, later in zip(then, now, strict=True):
        between = {log.records[at] for at in range(min(earlier, later), max(earlier, later)) if at in log.records}
        assert between <= released


@given(logs(), st.integers(0, 9), st.data())
def test_a_reader_that_continues_reads_recent_rows_only_and_finds_the_same(log: Log, seed: int, data: st.DataObject) -> None:
    seen_count = data.draw(st.integers(1, len(log.micro_batches)))
    before = Log(log.micro_batches[:seen_count])
    first = [Commit(SOURCE, data.draw(st.integers(0, before.position + 3))) for _ in range(2)]
    then = [Commit(SOURCE, data.draw(st.integers(0, log.position))) for _ in range(3)]
    translator = CommitTranslator(first)
    assert translator.reads_from() == 0
    for piece in before.pieces(seed):
        translator.add(piece)
    after = translator.continue_with(then)
    recent = [(number, row) for number, row in log.rows if number >= after.reads_from()]
    after.add(table_of(SOURCE, recent))
    translations, _, line = translated(log.pieces(seed), [record.offset for record in then])
    assert [after.translate(commit).offset for commit in then] == translations
    assert after.lines()[SOURCE] == line


DATA, COMMIT, ABORTED, GAP = SegmentKind.DATA, SegmentKind.COMMIT, SegmentKind.ABORTED, SegmentKind.GAP

SEVERAL = Log(
    (
        ((GAP, 10, 10, None),),
        ((GAP, 10, 12, None), (DATA, 12, 15, 1000), (COMMIT, 15, 16, None)),
        ((ABORTED, 16, 20, None), (SegmentKind.ABORT, 20, 21, None), (DATA, 21, 23, 1004)),
        ((SegmentKind.QUARANTINED, 23, 26, None), (COMMIT, 26, 27, None)),
    )
)


@pytest.mark.parametrize(
    ("commit", "target_start"),
    [
        (0, 1000),  # below the map's start
        (10, 1000),  # its start, a hole
        (12, 1000),
        (13, 1001),
        (15, 1004),  # a marker
        (16, 1004),  # an aborted batch
        (19, 1004),
        (20, 1004),
        (22, 1005),
        (23, 1006),  # quarantined: behind the last record that was copied
        (26, 1006),
        (27, 1006),  # the exact end of the map
    ],
)
def test_offsets_that_hold_no_record(commit: int, target_start: int) -> None:
    assert translated(SEVERAL.pieces(0), [commit])[0] == [target_start]


def test_what_is_in_quarantine_is_withheld_until_it_is_released() -> None:
    commits = [Commit(SOURCE, offset) for offset in (22, 24, 26)]
    translator = CommitTranslator(commits)
    for piece in SEVERAL.pieces(0):
        translator.add(piece)
    assert [translator.withheld(commit) for commit in commits] == [3, 2, 0]
    assert not translator.may_repeat()
    translator.add(table_of(SOURCE, [(7, (SegmentKind.RELEASED, 23, 26, 1010))]))
    assert [translator.withheld(commit) for commit in commits] == [0, 0, 0]
    assert translator.may_repeat()
    assert Quarantined(23, 26, 3).record_count == 3


def test_an_incarnation_without_records_continues_behind_those_of_the_older_one() -> None:
    rows = [
        table_of(OLDER, [(1, (DATA, 0, 5, 100))]),
        table_of(SOURCE, [(2, (GAP, 0, 0, None))]),
        table_of(OTHER, [(2, (DATA, 0, 50, 100))]),
    ]
    translator = CommitTranslator([Commit(SOURCE, 0), Commit(OLDER, 3)])
    for row in rows:
        translator.add(row)
    assert translator.translate(Commit(SOURCE, 0)).offset == 105
    assert translator.translate(Commit(OLDER, 3)).offset == 103
    assert set(translator.lines()) == {OLDER, SOURCE, OTHER}


def test_an_older_incarnation_without_records_does_not_skip_those_of_the_newer_one() -> None:
    translator = CommitTranslator([Commit(OLDER, 0)])
    translator.add(table_of(OLDER, [(1, (GAP, 0, 0, None))]))
    translator.add(table_of(SOURCE, [(2, (DATA, 0, 5, 100))]))
    assert translator.translate(Commit(OLDER, 0)).offset == 0


def test_a_partition_that_was_not_found_is_not_searched_among_old_rows_again() -> None:
    translator = CommitTranslator([Commit(SOURCE, 5), Commit(OTHER, 3)])
    translator.add(table_of(OTHER, [(4, (DATA, 0, 5, 100))]))
    after = translator.continue_with([Commit(SOURCE, 6), Commit(OTHER, 5)])
    assert after.reads_from() == 5
    assert after.continue_with([Commit(OTHER, 2)]).reads_from() == 0
    assert after.continue_with([Commit(SOURCE._replace(topic="new"), 0)]).reads_from() == 0


def test_thousands_of_partitions_take_one_look_at_the_rows() -> None:
    partitions = [SOURCE._replace(partition=number) for number in range(3000)]
    rows = pa.concat_tables([table_of(partition, [(1, (GAP, 0, 2, None)), (1, (DATA, 2, 9, 70))]) for partition in partitions])
    translator = CommitTranslator([Commit(partition, offset) for partition in partitions for offset in (0, 4)])
    translator.add(rows)
    assert {translator.translate(Commit(partition, 4)).offset for partition in partitions} == {72}
