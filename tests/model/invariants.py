"""What must hold after every step, and what must be true in the end. A `ViolationError` names what a reader would see."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from tests.model.delta_log import Row, Snapshot, column
from tests.model.effects import Commit
from tests.model.source import Scenario
from tests.model.target_cluster import TargetCluster

from shallow_mirror.types import SegmentKind


class ViolationError(AssertionError):
    """The mirror broke its promise."""


def require(is_true: bool, what: str) -> None:
    if not is_true:
        raise ViolationError(what)


def check_target(scenario: Scenario, target: TargetCluster, table: Snapshot | None) -> None:
    """Require that what read_committed readers got is a beginning of the source's records, in order, and all of it is decided."""
    decided = {} if table is None else table.data
    for partition, topic_partition in enumerate(scenario.topic_partitions):
        visible = target.logs[topic_partition].visible()
        poison = scenario.poison[partition]
        records = [record for _, record in visible if record not in poison]
        expected = scenario.records[partition]
        released = [record for _, record in visible if record in poison]
        require(len(set(released)) == len(released), f"{topic_partition}: readers get {released} out of quarantine: duplicated")
        if records != expected[: len(records)]:
            wrong = next(at for at, record in enumerate(records) if records[at : at + 1] != expected[at : at + 1])
            is_again = records[wrong] in records[:wrong]
            raise ViolationError(f"{topic_partition}: readers get {records}: {'duplicated' if is_again else 'lost or reordered'}")
        for at, record in visible:
            output = decided.get((partition, at))
            require(output is not None, f"{topic_partition}: record {record} is visible at {at} and not decided")
            require(output == record, f"{topic_partition}: the map says that {at} holds record {output}, it holds {record}")


def check_commit(scenario: Scenario, target: TargetCluster, before: Snapshot | None, after: Snapshot, commit: Commit) -> None:
    """Whoever was fenced changes nothing; settled rows stay and are visible; every offset is covered once."""
    if before is not None:
        _check_owner(before, after, commit)
        require(before.settled <= after.settled, "rows that were settled are gone, or doubtful again")
    _check_coverage(after.rows)
    shown = {
        (partition, at): record
        for partition, topic_partition in enumerate(scenario.topic_partitions)
        for at, record in target.logs[topic_partition].visible()
    }
    for where, record in after.settled_data.items():
        require(
            shown.get(where) == record, f"a settled row says that record {record} is at {where}: readers get {shown.get(where)}"
        )


def _check_owner(before: Snapshot, after: Snapshot, commit: Commit) -> None:
    assert after.record is not None
    if commit.version is None:
        require(before.record is not None, "a map without an owner is compacted")
        assert before.record is not None
        compacted = replace(before.record, compacted_micro_batch=after.record.compacted_micro_batch)
        require(after.record == compacted and after.rows == before.rows, "a compaction changed more than files")
        return
    require(before.recorded is None or commit.version > before.recorded, "the recorded version fell or was used again")
    if commit.version & 0xFFFF_FFFF == 0:
        epoch = 0 if before.record is None else before.record.run_epoch
        require(after.record.run_epoch == epoch + 1, "a take-over skipped or repeated a run epoch")
    else:
        require(after.run_id == before.run_id, f"{after.run_id} changed the map after {before.run_id} took over")
    recorded_micro_batch = 0 if before.record is None else before.record.micro_batch
    numbers = {column(row, "micro_batch") for row in commit.rows}
    require(
        all(number > recorded_micro_batch for number in numbers),
        f"micro-batch number {sorted(numbers)} is used again after {recorded_micro_batch}",
    )


def check_quarantine(table: Snapshot, kept: Collection[tuple[int, int]]) -> None:
    """Whatever a row says of quarantine, the other table holds; what was released was in it, and was released once."""
    spans = {
        kind: [row[2:5] for row in table.rows if column(row, "kind") == kind.value]
        for kind in (SegmentKind.QUARANTINED, SegmentKind.RELEASED)
    }
    for partition, start, _ in spans[SegmentKind.QUARANTINED]:
        require((partition, start) in kept, f"partition {partition}: the table quarantine lacks the batch at {start}")
    released = spans[SegmentKind.RELEASED]
    require(set(released) <= set(spans[SegmentKind.QUARANTINED]), f"{released} were released and never quarantined")
    require(len(set(released)) == len(released), f"{released}: the same was released twice")


def _check_coverage(rows: tuple[Row, ...]) -> None:
    ordered = sorted(
        (row for row in rows if column(row, "kind") != SegmentKind.RELEASED.value), key=lambda row: (row[2], row[3], row[4])
    )
    reached: dict[int, int] = {}
    for row in ordered:
        partition, start, end = row[2], row[3], row[4]
        expected = reached.get(partition, 0)
        require(start == expected <= end, f"partition {partition}: a row covers [{start}, {end}), the map had reached {expected}")
        reached[partition] = end


def check_done(scenario: Scenario, target: TargetCluster, table: Snapshot | None, *, is_final: bool) -> None:
    """Everything is read, visible and settled; nothing is left open once zombies and late requests are over."""
    assert table is not None
    assert table.record is not None
    require(table.record.unsettled_micro_batch is None, "the mirror ended without recording that all rows hold")
    require(not is_final or not table.record.pending_txns, "a committed transaction was never confirmed")
    for partition, (topic_partition, log) in enumerate(zip(scenario.topic_partitions, scenario.logs, strict=True)):
        ends = [row[4] for row in table.rows if row[2] == partition]
        require(
            max(ends, default=0) == len(log),
            f"{topic_partition}: the map ends at {max(ends, default=0)}, the source at {len(log)}",
        )
        visible = [record for _, record in target.logs[topic_partition].visible() if record not in scenario.poison[partition]]
        require(
            visible == scenario.records[partition],
            f"{topic_partition}: lost: readers get {visible} of {scenario.records[partition]}",
        )
        is_closed = target.logs[topic_partition].last_stable_offset == len(target.logs[topic_partition].entries)
        require(is_closed or not is_final, f"{topic_partition}: a transaction was left open")
