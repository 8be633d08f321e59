"""The offset map against real Delta tables: who owns it, what is decided, settled and removed, and lost replies."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from tests.checkpoints.map_rows import lose, once, run_of

from shallow_mirror.checkpoints import DecidedSegment, Removal, table_properties
from shallow_mirror.checkpoints.ledger import LedgerOwner, Recorded, commits, version_of
from shallow_mirror.checkpoints.ledger.commit_metadata import is_settled
from shallow_mirror.checkpoints.ledger.offset_map import OffsetMap
from shallow_mirror.checkpoints.rows.schema import OFFSET_MAP, PROPERTY_SCHEMA_VERSION, properties_of_new_map
from shallow_mirror.checkpoints.tables.backends import deltalake_writer
from shallow_mirror.checkpoints.tables.backends.deltalake_writer import DeltalakeWriter
from shallow_mirror.checkpoints.tables.table_protocol import Conditions, DeltaCommitError
from shallow_mirror.errors import ConfigError, FencedError, MirrorError, OffsetMapConflictError, OutcomeUnknownError
from shallow_mirror.types import EpochEnd, Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition

pytestmark = pytest.mark.thorough

SOURCE = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", 0)
OTHER = SOURCE._replace(partition=1)
TARGET = TargetPartition("orders", "tgttgttgttgttgttgttgtA", 0)
TXN = SlotTxn("m-0", 1000, 3)


def take(tables: Path, run_id: str, **changes: Any) -> LedgerOwner:
    settings: dict[str, Any] = {
        "name": "m", "source_cluster_id": "S", "target_cluster_id": "T", "run": run_of(run_id),
        "now_ms": lambda: 1_700_000_000_000,
    }  # fmt: skip
    return LedgerOwner.take_over(str(tables), **(settings | changes))


def settled(tables: Path, run_id: str, **changes: Any) -> LedgerOwner:
    owner = take(tables, run_id, **changes)
    owner.settle()
    return owner


def data(start: int, end: int, *, txn: SlotTxn | None = TXN, source: SourcePartition = SOURCE, epoch: int = 4) -> DecidedSegment:
    target = TARGET._replace(partition=source.partition)
    return DecidedSegment(
        Segment(
            source=source, source_start=start, source_end=end, kind=SegmentKind.DATA, target=target,
            target_start=start + 100, target_end=end + 100, record_count=end - start, batch_count=1, source_leader_epoch=epoch,
        ),
        txn,
    )  # fmt: skip


def other(
    kind: SegmentKind, start: int, end: int, *, txn: SlotTxn | None = TXN, source: SourcePartition = SOURCE
) -> DecidedSegment:
    target = TARGET._replace(partition=source.partition)
    return DecidedSegment(Segment(source=source, source_start=start, source_end=end, kind=kind, target=target), txn)


def decide(owner: LedgerOwner, *rows: DecidedSegment, highest_slot: int = 0) -> int:
    version = owner.next_decision()
    owner.decide(rows, highest_slot)
    return version


def delta(tables: Path) -> DeltaTable:
    return DeltaTable(str(tables / "offset_map"))


class Faulty(DeltalakeWriter):
    """Calls `fault` before and after each commit; what it raises is what the library would have raised."""

    def __init__(self, tables: Path, fault: Callable[[str], None]) -> None:
        super().__init__(str(tables / "offset_map"))
        self.fault = fault

    def append(self, snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        self.fault("before append")
        super().append(snapshot, rows, version, metadata)
        self.fault("after append")

    def delete(self, snapshot: Any, conditions: Conditions, version: int, metadata: Mapping[str, str]) -> None:
        self.fault("before delete")
        super().delete(snapshot, conditions, version, metadata)
        self.fault("after delete")

    def compact(self, snapshot: Any, metadata: Mapping[str, str]) -> None:
        self.fault("before compact")
        super().compact(snapshot, metadata)


def do(_: object) -> None:
    """For a lambda whose value does not matter."""


# --- rows of somebody else


@pytest.mark.parametrize("change", ["removed", "added"])
def test_rows_that_another_client_removed_or_added_are_detected_until_the_table_is_restored(tmp_path: Path, change: str) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    decide(owner, data(5, 9))
    owner.settle()
    good = delta(tmp_path).version()
    if change == "removed":
        delta(tmp_path).delete("source_start = 5")
    else:
        write_deltalake(delta(tmp_path), delta(tmp_path).to_pyarrow_table().slice(0, 1), mode="append")
    second = take(tmp_path, "two")
    second.settle()
    with pytest.raises(
        OffsetMapConflictError, match=rf"holds {1 if change == 'removed' else 3} rows, shallow-mirror has written 2: .*RESTORE"
    ):
        second.positions()
    with pytest.raises(OffsetMapConflictError):
        decide(second, data(9, 12))
    delta(tmp_path).restore(good)
    third = settled(tmp_path, "three")
    assert third.positions()[SOURCE].offset == 9
    decide(third, data(9, 12))
    third.settle([Removal(TXN)])
    assert third.positions() == {}


# --- a log that somebody else cleaned


def clean_log(tables: Path) -> None:
    """As a job that optimises all tables leaves it: a checkpoint, and no commit that is older than a day."""
    log = tables / "offset_map" / "_delta_log"
    for file in log.iterdir():
        os.utime(file, (time.time() - 40 * 3600,) * 2)
    delta(tables).optimize.compact()
    delta(tables).create_checkpoint()
    delta(tables).cleanup_metadata()
    assert len(list(log.glob("*.json"))) == 1


@pytest.mark.parametrize("is_settled_before", [True, False])
def test_a_mirror_continues_where_it_was_after_another_client_cleaned_the_log(tmp_path: Path, is_settled_before: bool) -> None:
    owner = settled(tmp_path, "one", slots=7)
    decide(owner, data(0, 5))
    decide(owner, data(5, 9, txn=SlotTxn("m-0", 1000, 4)), data(0, 2, txn=SlotTxn("m-0", 1000, 4), source=OTHER))
    if is_settled_before:
        owner.settle()
    before = owner.recorded()
    clean_log(tmp_path)
    reader = OffsetMap.open(str(tmp_path))
    assert reader.positions()[SOURCE].offset == (9 if is_settled_before else 5)
    second = take(tmp_path, "two")
    later_record = replace(before, version=version_of(2, 0), run=run_of("two"), compacted_micro_batch=2)
    # Which versions were decisions, and of which run, is in the commits that are gone: all of them count as known.
    assert second.recorded() == replace(later_record, decided_version=before.version, decided_run_id="")
    assert len(second.unsettled()) == (0 if is_settled_before else 2)
    second.settle([Removal(SlotTxn("m-0", 1000, 4))])
    assert second.positions()[SOURCE].offset == 5
    clean_log(tmp_path)
    third = settled(tmp_path, "three")
    assert third.recorded().row_count == 1
    decide(third, data(5, 6))


def test_a_running_mirror_that_was_idle_recognises_its_own_version_in_a_log_that_was_cleaned(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    owner.settle()
    clean_log(tmp_path)
    owner.check_ownership()
    decide(owner, data(5, 9))
    settled(tmp_path, "two")
    clean_log(tmp_path)
    with pytest.raises(FencedError, match="a run whose commits were removed from the log, run epoch 2"):
        owner.check_ownership()


def test_rows_that_are_missing_are_noticed_in_a_log_that_was_cleaned(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5), data(5, 9))
    owner.settle()
    delta(tmp_path).delete("source_start = 5")
    clean_log(tmp_path)
    with pytest.raises(OffsetMapConflictError, match="holds 1 rows, shallow-mirror has written 2"):
        settled(tmp_path, "two").positions()


def test_counters_of_another_version_are_not_believed(tmp_path: Path) -> None:
    """A mirror of before they were recorded has decided since."""
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    later = CommitProperties(app_transactions=[Transaction("m", version_of(1, 9))])
    write_deltalake(delta(tmp_path), OFFSET_MAP.empty_table(), mode="append", commit_properties=later)
    clean_log(tmp_path)
    with pytest.raises(OffsetMapConflictError, match="another name and other tables"):
        take(tmp_path, "two")


# --- take-over and fencing


def test_a_take_over_rises_the_run_epoch_and_fences_the_older_run(tmp_path: Path) -> None:
    first = settled(tmp_path, "one")
    decide(first, data(0, 5))
    second = take(tmp_path, "two")
    assert (first.run_epoch, second.run_epoch) == (1, 2)
    assert second.recorded().version == version_of(2, 0)
    before = delta(tmp_path).version()
    for attempt in (first.check_ownership, lambda: first.settle([Removal(TXN)]), first.settle, lambda: decide(first, data(5, 6))):
        with pytest.raises(FencedError, match="run two on host"):
            attempt()
    assert delta(tmp_path).version() == before


def test_a_second_take_over_of_the_same_run_is_recognised_by_its_run_id(tmp_path: Path) -> None:
    take(tmp_path, "one")
    second = take(tmp_path, "one")
    assert (second.run_epoch, delta(tmp_path).version()) == (1, 1)


def test_a_take_over_whose_reply_was_lost_is_read_back(tmp_path: Path) -> None:
    owner = take(tmp_path, "one", writer=Faulty(tmp_path, once("after append", lose)))
    assert owner.run_epoch == 1


def test_a_take_over_of_unknown_outcome_says_so_and_may_be_called_again(tmp_path: Path) -> None:
    with pytest.raises(OutcomeUnknownError):
        take(tmp_path, "one", writer=Faulty(tmp_path, once("before append", lose)))
    assert take(tmp_path, "one").run_epoch == 1


def test_a_take_over_that_loses_to_a_decision_of_the_old_owner_is_tried_again(tmp_path: Path) -> None:
    old = settled(tmp_path, "old")
    new = take(tmp_path, "new", writer=Faulty(tmp_path, once("before append", lambda: do(decide(old, data(0, 5))))))
    assert (new.run_epoch, [row.segment.source_end for row in new.unsettled()]) == (2, [5])


def test_a_take_over_that_loses_to_another_take_over_is_fenced(tmp_path: Path) -> None:
    settled(tmp_path, "old")
    with pytest.raises(FencedError, match="run rival"):
        take(tmp_path, "new", writer=Faulty(tmp_path, once("before append", lambda: do(take(tmp_path, "rival")))))


def _race(tables: str, name: str, barrier: Any, results: Any) -> None:
    barrier.wait(60)
    try:
        owner = take(Path(tables), name)
        owner.settle()
        for at in range(5):
            decide(owner, data(at, at + 1, txn=SlotTxn(name, 1, at)))
        results.put((name, "done"))
    except MirrorError as error:
        results.put((name, type(error).__name__))


def test_of_processes_that_start_at_once_each_position_is_decided_by_one(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(3), context.Queue()
    runs = [context.Process(target=_race, args=(str(tmp_path), f"run{n}", barrier, results)) for n in range(3)]
    for run in runs:
        run.start()
    actual = dict(results.get(timeout=120) for _ in runs)
    for run in runs:
        run.join(60)
    results.close()
    results.join_thread()
    assert set(actual.values()) <= {"done", "FencedError", "OffsetMapConflictError"}
    reader = OffsetMap.open(str(tmp_path))
    recorded = reader.recorded()
    assert recorded is not None
    ends = sorted(delta(tmp_path).to_pyarrow_dataset().to_table().column("source_end").to_pylist())
    assert ends == list(range(1, len(ends) + 1))
    versions = [int(entry["delta_txn_version"]) for entry in delta(tmp_path).history() if "delta_txn_version" in entry]
    assert versions == sorted(set(versions), reverse=True)


def test_of_two_threads_that_write_as_one_run_only_one_wins_each_version_of_the_log(tmp_path: Path) -> None:
    settled(tmp_path, "one")
    ready = threading.Barrier(2)
    failures: list[str] = []

    def write(n: int) -> None:
        writer = DeltalakeWriter(str(tmp_path / "offset_map"))
        snapshot = writer.snapshot()
        ready.wait(30)
        try:
            writer.append(snapshot, OFFSET_MAP.empty_table(), version_of(1, 2 + n), {})
        except DeltaCommitError as error:
            failures.append(str(error))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(failures) == 1


# --- decisions, removals, settling


def test_versions_always_rise_and_odd_ones_say_settled(tmp_path: Path) -> None:
    owner = take(tmp_path, "one")
    versions = [owner.recorded().version]
    owner.settle()
    versions.append(owner.recorded().version)
    assert versions == [version_of(1, 0), version_of(1, 1)]
    decide(owner, data(0, 5))
    versions.append(owner.recorded().version)
    owner.settle([Removal(TXN)])
    versions.append(owner.recorded().version)
    decide(owner, data(0, 5))
    versions.append(owner.recorded().version)
    assert versions == sorted(set(versions))
    assert [is_settled(version) for version in versions] == [False, True, False, True, False]
    assert delta(tmp_path).transaction_version("m") == versions[-1]


def test_settling_twice_commits_once(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    before = delta(tmp_path).version()
    owner.settle()
    assert delta(tmp_path).version() == before


def test_nothing_is_decided_and_no_position_is_read_before_resolution(tmp_path: Path) -> None:
    decide(settled(tmp_path, "one"), data(0, 5))
    owner = take(tmp_path, "two")
    for attempt in (owner.next_decision, owner.positions):
        with pytest.raises(OutcomeUnknownError, match="not resolved"):
            attempt()


def test_a_start_gets_exactly_the_rows_of_the_last_unsettled_decision(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    rows = (data(5, 9, txn=SlotTxn("m-0", 1000, 4)), other(SegmentKind.GAP, 9, 9 + 1, txn=None))
    decide(owner, *rows)
    assert take(tmp_path, "two").unsettled() == rows


def test_a_settled_decision_stays_settled_through_take_overs_that_resolve_nothing(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    owner.settle()
    assert take(tmp_path, "two").unsettled() == ()
    assert take(tmp_path, "three").unsettled() == ()
    assert OffsetMap.open(str(tmp_path)).positions()[SOURCE].offset == 5


def test_an_unsettled_decision_stays_unsettled_through_take_overs(tmp_path: Path) -> None:
    decide(settled(tmp_path, "one"), data(0, 5))
    take(tmp_path, "two")
    assert take(tmp_path, "three").unsettled() == (data(0, 5),)


def test_a_removal_takes_all_rows_of_exactly_one_triple(tmp_path: Path) -> None:
    name = "it's-0"
    txn, newer, none = SlotTxn(name, 1000, 3), SlotTxn(name, 1000, 4), None
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5, txn=newer), data(0, 7, txn=none, source=OTHER))
    decide(
        owner,
        data(5, 9, txn=txn),
        other(SegmentKind.COMMIT, 9, 10, txn=txn),
        other(SegmentKind.GAP, 7, 9, txn=none, source=OTHER),
    )
    owner.settle([Removal(txn)])
    assert {source.partition: position.offset for source, position in owner.positions().items()} == {0: 5, 1: 9}
    assert OffsetMap.open(str(tmp_path)).settled_rows().num_rows == 3


def test_a_removal_that_finds_no_row_still_commits_its_version(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    owner.settle([Removal(SlotTxn("m-0", 1000, 99))])
    assert delta(tmp_path).transaction_version("m") == owner.recorded().version == version_of(1, 3)
    assert owner.positions()[SOURCE].offset == 5


def test_the_slots_of_a_run_that_decided_nothing_are_known_to_the_next(tmp_path: Path) -> None:
    assert take(tmp_path, "one", slots=4).highest_slot == 3
    assert take(tmp_path, "two", slots=2).highest_slot == 3


def test_a_map_is_not_made_against_a_veto_and_keeps_its_id(tmp_path: Path) -> None:
    def veto() -> None:
        raise ConfigError("no")

    with pytest.raises(ConfigError, match="no"):
        take(tmp_path, "one", before_creation=veto)
    assert not (tmp_path / "offset_map").exists()
    made = take(tmp_path, "one")
    assert take(tmp_path, "two", before_creation=veto).map_id == made.map_id == OffsetMap.open(str(tmp_path)).map_id
    assert made.map_id != take(tmp_path / "other", "one").map_id


def test_a_micro_batch_number_is_not_used_again_after_its_rows_were_removed(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5), highest_slot=6)
    owner.settle([Removal(TXN)])
    owner = settled(tmp_path, "two")
    decide(owner, data(0, 5))
    assert (owner.micro_batch, owner.highest_slot) == (2, 6)


def test_a_decision_with_a_hole_or_an_overlap_is_refused_before_it_is_written(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    before = delta(tmp_path).version()
    for rows in ([data(6, 9)], [data(4, 9)], [data(5, 7), data(8, 9)], [data(5, 7), data(6, 9)]):
        with pytest.raises(OffsetMapConflictError, match="position is"):
            decide(owner, *rows)
    crooked = replace(data(5, 9).segment, target_end=999)
    with pytest.raises(OffsetMapConflictError, match="differ"):
        decide(owner, DecidedSegment(crooked, TXN))
    assert delta(tmp_path).version() == before


def test_a_decision_needs_a_version_taken_before(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    with pytest.raises(ValueError, match="next_decision"):
        owner.decide([data(0, 5)], 0)


def test_the_time_of_decisions_never_decreases(tmp_path: Path) -> None:
    clock = itertools.chain([5000], itertools.repeat(1000))
    decide(settled(tmp_path, "one", now_ms=lambda: next(clock)), data(0, 5))
    decide(settled(tmp_path, "two", now_ms=lambda: 2000), data(5, 6))
    times = delta(tmp_path).to_pyarrow_dataset().to_table().column("decided_at").to_pylist()
    assert times == [datetime.fromtimestamp(5, UTC)] * 2


def test_kept_positions_are_those_of_the_table(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, other(SegmentKind.GAP, 3, 3, txn=None), other(SegmentKind.GAP, 0, 0, txn=None, source=OTHER))
    decide(owner, data(3, 5, epoch=7), other(SegmentKind.ABORT, 5, 6))
    owner.settle()
    kept = owner.positions()
    assert (kept[SOURCE].offset, kept[SOURCE].epoch_end, kept[OTHER].offset) == (6, EpochEnd(7, 5), 0)
    assert settled(tmp_path, "two").positions() == kept == OffsetMap.open(str(tmp_path)).positions()


# --- outcomes that are not known


@pytest.mark.parametrize("step", ["decide", "settle", "remove"])
def test_a_commit_whose_reply_was_lost_is_read_back_as_written(tmp_path: Path, step: str) -> None:
    writer = Faulty(tmp_path, lambda _: None)
    owner = settled(tmp_path, "one", writer=writer)
    decide(owner, data(0, 5))
    writer.fault = once("after delete" if step == "remove" else "after append", lose)
    if step == "decide":
        decide(owner, data(5, 6))
        assert owner.positions()[SOURCE].offset == 6
    elif step == "settle":
        owner.settle()
        assert is_settled(owner.recorded().version)
    else:
        owner.settle([Removal(TXN)])
        assert SOURCE not in owner.positions()
    owner.check_ownership()
    assert delta(tmp_path).transaction_version("m") == owner.recorded().version


def test_a_commit_that_is_not_there_is_unknown_and_never_written_again(tmp_path: Path) -> None:
    writer = Faulty(tmp_path, lambda _: None)
    owner = settled(tmp_path, "one", writer=writer)
    decide(owner, data(0, 5))
    owner.settle()
    before = delta(tmp_path).version()
    writer.fault = once("before append", lose)
    with pytest.raises(OutcomeUnknownError):
        decide(owner, data(5, 6))
    assert delta(tmp_path).version() == before
    with pytest.raises(OutcomeUnknownError, match="not resolved"):
        owner.next_decision()
    owner.check_ownership()
    assert owner.unsettled() == ()
    owner.settle()
    assert delta(tmp_path).version() == before + 1, "the settled mark takes the place of the commit that may still come"
    decide(owner, data(5, 6))
    assert owner.micro_batch == 3


def test_a_commit_that_lands_late_is_found_by_the_ownership_check_and_resolved(tmp_path: Path) -> None:
    writer = Faulty(tmp_path, lambda _: None)
    owner = settled(tmp_path, "one", writer=writer)
    delayed: list[Callable[[], None]] = []
    append = DeltalakeWriter.append

    def hold(snapshot: Any, rows: pa.Table, version: int, metadata: Mapping[str, str]) -> None:
        delayed.append(lambda: append(writer, snapshot, rows, version, metadata))
        lose()

    writer.append = hold  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknownError):
        decide(owner, data(0, 5))
    delayed[0]()
    del writer.append
    owner.check_ownership()
    with pytest.raises(OutcomeUnknownError, match="not resolved"):
        owner.next_decision()
    assert owner.unsettled() == (data(0, 5),)
    owner.settle()
    assert owner.positions()[SOURCE].offset == 5


def test_a_commit_that_lands_late_cannot_land_after_the_settled_mark(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    late = DeltalakeWriter(str(tmp_path / "offset_map"))
    snapshot = late.snapshot()
    decide(owner, data(0, 5))
    owner.settle()
    with pytest.raises(DeltaCommitError):
        late.append(snapshot, OFFSET_MAP.empty_table(), version_of(1, 2), {})
    owner.check_ownership()


def test_a_map_that_cannot_be_read_after_a_commit_is_unknown(tmp_path: Path) -> None:
    writer = Faulty(tmp_path, lambda _: None)
    owner = settled(tmp_path, "one", writer=writer)

    def away(_: object = None) -> None:
        raise OSError("no route to the store")

    def break_reads() -> None:
        for name in ("snapshot", "reread"):
            setattr(writer, name, away)

    writer.fault = once("after append", break_reads)
    with pytest.raises(OutcomeUnknownError, match="no route"):
        decide(owner, data(0, 5))
    del writer.snapshot, writer.reread
    owner.check_ownership()
    assert owner.unsettled() == (data(0, 5),)


def test_a_take_over_between_commit_and_read_back_is_fencing(tmp_path: Path) -> None:
    writer = Faulty(tmp_path, lambda _: None)
    owner = settled(tmp_path, "one", writer=writer)
    writer.fault = once("after append", lambda: do(take(tmp_path, "two")))
    with pytest.raises(FencedError, match="run two"):
        decide(owner, data(0, 5))
    assert take(tmp_path, "two").unsettled() == (data(0, 5),)


# --- compaction


def test_compaction_changes_neither_rows_nor_version_nor_what_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commits, "COMPACT_EVERY_DECISIONS", 3)
    owner = settled(tmp_path, "one")
    assert not owner.compact_if_due()
    for at in range(3):
        decide(owner, data(at, at + 1))
    before, rows = owner.recorded(), delta(tmp_path).to_pyarrow_dataset().to_table().sort_by("source_start")
    assert owner.compact_if_due()
    assert len(delta(tmp_path).file_uris()) == 1
    assert delta(tmp_path).to_pyarrow_dataset().to_table().sort_by("source_start") == rows
    assert OffsetMap.open(str(tmp_path)).recorded() == replace(before, compacted_micro_batch=3) == owner.recorded()
    assert not owner.compact_if_due()
    owner.check_ownership()
    decide(owner, data(3, 4))
    owner = take(tmp_path, "two")
    assert owner.unsettled() == (data(3, 4),)
    assert not owner.compact_if_due()


@pytest.mark.parametrize("step", ["append", "delete"])
def test_a_commit_that_lost_its_place_to_a_compaction_is_tried_again(tmp_path: Path, step: str) -> None:
    writer = Faulty(tmp_path, lambda _: None)
    owner = settled(tmp_path, "one", writer=writer)
    decide(owner, data(0, 5, txn=SlotTxn("m-1", 1, 1)))
    decide(owner, data(5, 6))
    writer.fault = once(f"before {step}", lambda: do(delta(tmp_path).optimize.compact()))
    if step == "append":
        decide(owner, data(6, 7))
        assert owner.positions()[SOURCE].offset == 7
    else:
        owner.settle([Removal(TXN)])
        assert owner.positions()[SOURCE].offset == 5
    assert any(entry["operation"] == "OPTIMIZE" for entry in delta(tmp_path).history())
    assert owner.recorded() == OffsetMap.open(str(tmp_path)).recorded()


def test_a_compaction_that_fails_is_logged_and_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(commits, "COMPACT_EVERY_DECISIONS", 1)
    writer = Faulty(tmp_path, lambda when: lose() if when == "before compact" else None)
    owner = settled(tmp_path, "one", writer=writer)
    decide(owner, data(0, 5))
    assert not owner.compact_if_due()
    assert "compaction of the offset map failed" in caplog.text
    decide(owner, data(5, 6))


def test_compaction_leaves_large_files_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "COMPACT_EVERY_DECISIONS", 3)
    monkeypatch.setattr(deltalake_writer, "COMPACTED_FILE_BYTES", 30_000)
    owner = settled(tmp_path, "one")
    for at in range(9):
        decide(owner, data(at, at + 1))
        owner.compact_if_due()
    files = delta(tmp_path).file_uris()
    assert 1 < len(files) < 9
    assert owner.positions()[SOURCE].offset == 9
    assert delta(tmp_path).to_pyarrow_dataset().count_rows() == 9


def test_cleaning_goes_with_every_so_many_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "COMPACT_EVERY_DECISIONS", 2)
    monkeypatch.setattr(commits, "CLEAN_EVERY_DECISIONS", 6)
    cleaned: list[int] = []
    writer = Faulty(tmp_path, lambda _: None)
    owner = settled(tmp_path, "one", writer=writer)
    monkeypatch.setattr(writer, "clean_up", lambda: cleaned.append(owner.micro_batch))
    for at in range(14):
        decide(owner, data(at, at + 1))
        owner.compact_if_due()
    assert cleaned == [6, 12]


def test_a_fenced_run_does_not_compact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commits, "COMPACT_EVERY_DECISIONS", 1)
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    take(tmp_path, "two")
    with pytest.raises(FencedError):
        owner.compact_if_due()


# --- other tables


@pytest.mark.parametrize(
    ("change", "table_property"),
    [("name", "mirror"), ("source_cluster_id", "source_cluster_id"), ("target_cluster_id", "target_cluster_id")],
)
def test_a_map_of_another_mirror_or_cluster_is_refused(tmp_path: Path, change: str, table_property: str) -> None:
    take(tmp_path, "one")
    with pytest.raises(ConfigError, match=f"shallow_mirror.{table_property}"):
        take(tmp_path, "two", **{change: "X"})


def test_every_difference_is_named_at_once(tmp_path: Path) -> None:
    take(tmp_path, "one")
    with pytest.raises(ConfigError) as caught:
        take(tmp_path, "two", source_cluster_id="X", target_cluster_id="Y")
    assert len(caught.value.problems) == 2


def test_a_newer_schema_version_is_refused(tmp_path: Path) -> None:
    properties = table_properties("m", "S", "T", "deltalake") | {PROPERTY_SCHEMA_VERSION: "2"}
    DeltalakeWriter(str(tmp_path / "offset_map")).create(properties_of_new_map(properties))
    with pytest.raises(ConfigError, match="schema version 2"):
        take(tmp_path, "one")
    with pytest.raises(ConfigError, match="use a newer one"):
        OffsetMap.open(str(tmp_path))


def test_a_foreign_table_is_no_offset_map(tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "offset_map"), pa.table({"a": [1]}))
    with pytest.raises(OffsetMapConflictError, match="not the offset map"):
        take(tmp_path, "one")


def test_a_table_without_a_column_or_with_another_type_is_no_offset_map(tmp_path: Path) -> None:
    schema = OFFSET_MAP.remove(OFFSET_MAP.get_field_index("kind")).set(3, pa.field("source_start", pa.string()))
    properties = properties_of_new_map(table_properties("m", "S", "T", "deltalake"))
    DeltaTable.create(str(tmp_path / "offset_map"), schema, configuration=properties, raise_if_key_not_exists=False)
    with pytest.raises(OffsetMapConflictError, match=r"column source_start: string.*column kind: missing"):
        take(tmp_path, "one")


def test_a_table_with_a_further_nullable_column_is_an_offset_map(tmp_path: Path) -> None:
    properties = properties_of_new_map(table_properties("m", "S", "T", "deltalake"))
    schema = OFFSET_MAP.append(pa.field("remark", pa.string()))
    DeltaTable.create(str(tmp_path / "offset_map"), schema, configuration=properties, raise_if_key_not_exists=False)
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    assert settled(tmp_path, "two").positions()[SOURCE].offset == 5


def test_a_log_that_is_garbage_or_a_version_without_its_author_is_a_conflict(tmp_path: Path) -> None:
    settled(tmp_path, "one")
    anonymous = CommitProperties(app_transactions=[Transaction("m", version_of(1, 9))])
    write_deltalake(delta(tmp_path), OFFSET_MAP.empty_table(), mode="append", commit_properties=anonymous)
    with pytest.raises(OffsetMapConflictError, match="no commit in its log"):
        take(tmp_path, "two")
    (tmp_path / "offset_map" / "_delta_log" / f"{0:020}.json").write_text("not json")
    with pytest.raises(OffsetMapConflictError, match="not a readable Delta table"):
        take(tmp_path, "two")


def test_rows_without_a_recorded_version_are_a_conflict(tmp_path: Path) -> None:
    DeltalakeWriter(str(tmp_path / "offset_map")).create(properties_of_new_map(table_properties("m", "S", "T", "deltalake")))
    row = OFFSET_MAP.empty_table().to_pylist() or [dict.fromkeys(OFFSET_MAP.names)]
    write_deltalake(delta(tmp_path), pa.Table.from_pylist(row, schema=OFFSET_MAP), mode="append")
    with pytest.raises(OffsetMapConflictError, match="no recorded version"):
        take(tmp_path, "one")


def test_a_version_that_went_down_is_a_conflict(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    low = CommitProperties(
        app_transactions=[Transaction("m", version_of(1, 1))],
        custom_metadata={**owner.recorded().metadata(), "delta_txn_version": str(version_of(1, 1))},
    )
    write_deltalake(delta(tmp_path), OFFSET_MAP.empty_table(), mode="append", commit_properties=low)
    with pytest.raises(OffsetMapConflictError, match="restored or written by another application"):
        owner.check_ownership()


def test_no_map_is_a_configuration_error_for_a_reader(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no offset map"):
        OffsetMap.open(str(tmp_path))


# --- reading


def test_readers_leave_out_the_newest_decision_until_it_is_settled(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    decide(owner, data(5, 9))
    reader = OffsetMap.open(str(tmp_path))
    assert reader.positions()[SOURCE].offset == 5
    assert reader.translate("orders", 0, 7).beyond
    owner.settle()
    reader.refresh()
    assert reader.positions()[SOURCE].offset == 9
    assert reader.translate("orders", 0, 7).target_offset == 107


def test_a_removal_makes_no_settled_row_doubtful(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 5))
    decide(owner, data(5, 9, txn=SlotTxn("m-0", 1000, 4)))
    owner.settle([Removal(SlotTxn("m-0", 1000, 4))])
    assert OffsetMap.open(str(tmp_path)).positions()[SOURCE].offset == 5


def test_as_of_uses_what_was_decided_until_then(tmp_path: Path) -> None:
    clock = iter([10_000, 20_000])
    owner = settled(tmp_path, "one", now_ms=lambda: next(clock))
    decide(owner, data(0, 5))
    decide(owner, data(5, 9))
    owner.settle()
    reader = OffsetMap.open(str(tmp_path))
    results = [reader.translate("orders", 0, 7, as_of=datetime.fromtimestamp(at, UTC)) for at in (9, 10, 20)]
    assert [(translated.exact, translated.beyond, translated.target_offset) for translated in results] == [
        (False, True, None), (False, True, 105), (True, False, 107),
    ]  # fmt: skip


def test_of_a_recreated_topic_the_newest_incarnation_answers(tmp_path: Path) -> None:
    owner = settled(tmp_path, "one")
    recreated = SOURCE._replace(topic_id="newnewnewnewnewnewnewA")
    moved = replace(data(0, 3, source=recreated).segment, target_start=500, target_end=503)
    decide(owner, data(0, 5))
    decide(owner, DecidedSegment(moved, TXN))
    owner.settle()
    reader = OffsetMap.open(str(tmp_path))
    assert reader.translate("orders", 0, 1).target_offset == 501
    assert reader.translate("orders", 0, 1, topic_id=SOURCE.topic_id).target_offset == 101
    assert [reader.reverse("orders", 0, at).target_offset for at in (101, 300, 502)] == [1, 0, 2]


@pytest.mark.parametrize("offset", range(-1, 32))
def test_the_first_answer_is_that_of_the_whole_line(tmp_path: Path, offset: int) -> None:
    owner = settled(tmp_path, "one")
    decide(owner, data(0, 10), other(SegmentKind.GAP, 10, 12), data(12, 20))
    recreated = SOURCE._replace(topic_id="newnewnewnewnewnewnewA")
    decide(owner, data(0, 5, source=recreated), other(SegmentKind.ABORTED, 5, 7, source=recreated))
    owner.settle()
    fresh = OffsetMap.open(str(tmp_path))
    for topic_id in (None, SOURCE.topic_id, recreated.topic_id, "another"):
        ask = functools.partial(fresh.translate, SOURCE.topic, SOURCE.partition, offset, topic_id=topic_id)
        first, second = ask(), ask()
        assert first == second == ask()


def test_an_unknown_partition_leads_nowhere(tmp_path: Path) -> None:
    settled(tmp_path, "one")
    translated = OffsetMap.open(str(tmp_path)).translate("nothing", 3, 7)
    assert (translated.kind, translated.exact, translated.beyond, translated.target_offset) == (None, False, True, None)


def test_metadata_survives_the_way_through_text() -> None:
    recorded = Recorded(version=7, run=run_of("x"), highest_slot=3, micro_batch=9, unsettled_micro_batch=9, decided_at_ms=4)
    assert Recorded.from_metadata(7, recorded.metadata()) == recorded
    with pytest.raises(OffsetMapConflictError, match="damaged metadata"):
        Recorded.from_metadata(7, recorded.metadata() | {"pid": "x"})


@pytest.mark.parametrize(("run_epoch", "n"), [(-1, 0), (1 << 31, 0), (1, 1 << 32)])
def test_a_version_has_room_for_its_parts_only(run_epoch: int, n: int) -> None:
    with pytest.raises(ValueError, match="do not fit"):
        version_of(run_epoch, n)


def test_the_first_copy_of_each_target_partition_is_known(tmp_path: Path) -> None:
    owner = settled(tmp_path, "a")
    decide(owner, data(5, 9), other(SegmentKind.GAP, 0, 5), data(2, 4, source=OTHER))
    owner.settle()
    offset_map = OffsetMap.open(str(tmp_path))
    assert offset_map.first_copies("orders") == {TARGET: 105, TARGET._replace(partition=1): 102}
    assert offset_map.first_copies("users") == {}
