"""Independent checker: knows what was produced, and reads the target and the offset map as a user of them would.

Every record of the source that its readers see is at the target exactly once, in order, unchanged, and where a row of the map
says; or a row says why it is not; or it is not copied yet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.operators.history import LogKey, Outcome, Produced, SourceLog, TargetLog, is_within

Row = Mapping[str, Any]

_SHOWN = 3
_COPIED = ("data", "released")
_INNER = "released"
"""Rows of this kind lie within others."""


@dataclass(frozen=True, slots=True)
class GroupCommit:
    """An offset that a mirror has committed for a group at the target, and the group's position at the source when it did."""

    group: str
    source: LogKey
    source_offset: int
    """Where the group reads on at the source: its offset, or the start of the log above it."""
    target: LogKey
    target_offset: int
    log_end: int
    """Where the log of the target ended then."""


@dataclass
class Observation:
    """`rows`: all of the offset map. `complete`: source logs that have to be copied up to their ends."""

    source: Mapping[LogKey, SourceLog]
    target: Mapping[LogKey, TargetLog]
    rows: Sequence[Row]
    foreign: frozenset[str] = frozenset()
    """Values that others wrote at the target."""
    groups: Sequence[GroupCommit] = ()
    complete: frozenset[LogKey] = frozenset()
    read_uncommitted: bool = False
    """The mirror reads open transactions as well: it has copied everything only at the end of the log."""


@dataclass
class _Copies:
    """Where rows say that records are, by target log and offset."""

    values: dict[tuple[LogKey, int], str] = field(default_factory=dict)


def check(observation: Observation) -> list[str]:
    """Return every difference; nothing where all is as it should be."""
    copies = _Copies()
    differences: list[str] = []
    by_source = _rows_by_source(observation.rows)
    for key in sorted(by_source.keys() - observation.source.keys()):
        differences.append(f"the map has rows of {_name(key)}, which was never written")
    for key, log in sorted(observation.source.items()):
        rows = by_source.get(key, [])
        differences += _check_coverage(key, rows)
        differences += _check_records(key, log, rows, observation.target, copies)
        differences += _check_order(key, rows)
        if key in observation.complete:
            differences += _check_complete(key, log, rows, is_uncommitted=observation.read_uncommitted)
    differences += _check_target(observation, copies)
    for commit in observation.groups:
        differences += _check_group(commit, observation, by_source.get(commit.source, []))
    return differences


def position_of(rows: Sequence[Row]) -> int | None:
    """Return where the next record to copy of a source log is; None where the map has no row of it."""
    return max((int(row["source_end"]) for row in rows if row["kind"] != _INNER), default=None)


def rows_of(rows: Sequence[Row], key: LogKey) -> list[Row]:
    return _rows_by_source(rows).get(key, [])


def _rows_by_source(rows: Sequence[Row]) -> dict[LogKey, list[Row]]:
    by_source: dict[LogKey, list[Row]] = {}
    for row in rows:
        key = LogKey(row["source_topic"], row["source_topic_id"], row["source_partition"])
        by_source.setdefault(key, []).append(row)
    for each in by_source.values():
        each.sort(key=lambda row: (row["source_start"], row["source_end"]))
    return by_source


def _target_of(row: Row) -> LogKey:
    return LogKey(row["target_topic"], row["target_topic_id"], row["target_partition"])


def _check_coverage(key: LogKey, rows: Sequence[Row]) -> Iterator[str]:
    at = None
    for row in rows:
        if row["kind"] == _INNER:
            continue
        if at is not None and row["source_start"] != at:
            what = "overlap" if row["source_start"] < at else "leave a hole"
            yield f"{_name(key)}: rows of the map {what} between {at} and {row['source_start']}"
        at = row["source_end"]


def _check_records(
    key: LogKey, log: SourceLog, rows: Sequence[Row], target: Mapping[LogKey, TargetLog], copies: _Copies
) -> Iterator[str]:
    """Check each record that was produced against the row that has its offset."""
    first = min((row["source_start"] for row in rows), default=0)
    deleted_at_target = _deleted_before_continued(rows, target)
    for record in log.records:
        if (
            deleted_at_target <= record.offset < first
            and rows
            and log.is_committed(record)
            and record.offset >= log.deleted_before
        ):
            yield f"{_name(key)}: lost: {record.value} at {record.offset} is below the first row of the map, {first}"
        for row in rows:
            if row["source_start"] <= record.offset < row["source_end"]:
                yield from _check_record(key, log, record, row, target, copies)


def _deleted_before_continued(rows: Sequence[Row], target: Mapping[LogKey, TargetLog]) -> int:
    """Return the first offset of a log that was continued with equal offsets; 0 of any other. Below it both agreed on nothing."""
    first = min(rows, key=lambda row: row["source_start"], default=None)
    if first is None or first["kind"] not in _COPIED or first["target_start"] != first["source_start"]:
        return 0
    log = target.get(_target_of(first))
    return first["source_start"] if _is_of_continuation(first) and log is not None and log.start >= first["source_start"] else 0


def _is_of_continuation(row: Row) -> bool:
    """Return whether a row of data tells what a continued log had before; the mirror has not written it."""
    return row.get("target_producer_id") is not None and row.get("target_producer_epoch") is None


def _is_uncompared(row: Row, log: SourceLog) -> bool:
    """Return whether a row tells what a log held that the source had deleted by then: it counts no records.

    Of a log that was continued, or whose offsets are preserved no longer.
    """
    return (_is_of_continuation(row) or row.get("record_count") == 0) and row["source_end"] <= log.deleted_before


def _check_record(
    key: LogKey, log: SourceLog, record: Produced, row: Row, target: Mapping[LogKey, TargetLog], copies: _Copies
) -> Iterator[str]:
    where = f"{_name(key)}: {record.value} at {record.offset}"
    kind = row["kind"]
    if kind not in _COPIED:
        yield from _check_left_out(where, log, record, kind)
        return
    topic_partition, offset = _target_of(row), row["target_start"] + record.offset - row["source_start"]
    copy = target.get(topic_partition)
    if not log.may_be_copied(record):
        if _is_uncompared(row, log) and copy is not None and offset not in copy.values:
            return  # of what the source had deleted before, one row has records and holes
        state = "open" if record.txn and record.txn.outcome is Outcome.OPEN else "aborted"
        yield f"{where} is of an {state} transaction, but a row of the map says that it was copied"
    copies.values[topic_partition, offset] = record.value
    if copy is None:
        yield f"{where}: lost: the map names {_name(topic_partition)}, which never was at the target"
    elif copy.is_gone or offset < copy.start:
        return
    elif offset not in copy.values:
        yield f"{where}: lost: the map says {_name(topic_partition)} at {offset}, where no reader sees a record"
    elif copy.values[offset] != record.value:
        yield f"{where}: changed: {_name(topic_partition)} has {copy.values[offset]} at {offset}"


def _check_left_out(where: str, log: SourceLog, record: Produced, kind: str) -> Iterator[str]:
    if kind == "quarantined" or (kind in ("expired", "gap") and record.offset < log.deleted_before):
        return
    # A gap as well: of a log with preserved offsets it is read back, which tells fillers from records, and no more.
    if kind in ("aborted", "gap") and log.is_aborted(record):
        return
    yield f"{where}: lost: a row of the map says {kind}"


def _check_order(key: LogKey, rows: Sequence[Row]) -> Iterator[str]:
    ends: dict[LogKey, int] = {}
    for row in rows:
        if row["kind"] != "data":
            continue
        topic_partition = _target_of(row)
        if row["target_start"] < ends.get(topic_partition, 0):
            yield f"{_name(key)}: reordered: offsets from {row['source_start']} on are at {row['target_start']} of {_name(topic_partition)}, in front of earlier ones"
        ends[topic_partition] = row["target_end"]


def _check_complete(key: LogKey, log: SourceLog, rows: Sequence[Row], *, is_uncommitted: bool) -> Iterator[str]:
    expected = log.end if is_uncommitted else log.stable_end
    position = position_of(rows)
    if position is None:
        yield f"{_name(key)}: lost: the map has no row of it"
    elif position < expected:
        yield f"{_name(key)}: not copied up to its end: the position is {position}, it ends at {expected}"


def _check_target(observation: Observation, copies: _Copies) -> Iterator[str]:
    """Check each record at the target: a row of the map explains it, an operator allowed it, or others wrote it."""
    left = _allowed_repeats(observation.source)
    ahead = _may_be_ahead(observation)
    copied = Counter(copies.values.values())
    outcomes = {record.value: log.may_be_copied(record) for log in observation.source.values() for record in log.records}
    for key, log in sorted(observation.target.items()):
        for offset, value in sorted(() if log.is_gone else log.values.items()):
            if value in observation.foreign or (key, offset) in copies.values:
                continue
            if value in outcomes and not outcomes[value]:
                yield f"{_name(key)}: {value} at {offset} is visible, although its transaction was not committed"
            elif ahead.get(value) == offset:
                del ahead[value]
            elif left[value] > 0:
                left[value] -= 1
            elif copied[value]:
                yield f"{_name(key)}: twice: {value} at {offset}, which the map says is elsewhere"
            else:
                yield f"{_name(key)}: {value} at {offset} is in no row of the map"
    twice = {value: count for value, count in copied.items() if count > 1}
    for value, count in sorted(twice.items()):
        yield f"the map says that {value} is at the target {count} times"


def _may_be_ahead(observation: Observation) -> dict[str, int]:
    """Return offsets by value of what the target may hold and the map not yet.

    With preserved offsets a mirror with older tables goes on, and reads back what its target has: of topics that it copies.
    What a killed run copied of an open transaction with read_uncommitted waits for its end with read_committed.
    """
    return {
        record.value: record.offset
        for key, log in observation.source.items()
        for record in log.records
        if key not in observation.complete or (not observation.read_uncommitted and record.offset >= log.stable_end)
    }


def _allowed_repeats(source: Mapping[LogKey, SourceLog]) -> Counter[str]:
    return Counter(
        record.value
        for log in source.values()
        for record in log.records
        for span in log.repeats
        if is_within(record.offset, [span])
    )


def _check_group(commit: GroupCommit, observation: Observation, rows: Sequence[Row]) -> Iterator[str]:
    """Check that a group misses no record, and is not beyond what is copied. It may see records again."""
    where = f"group {commit.group} at {commit.target_offset} of {_name(commit.target)}"
    position = position_of(rows)
    if position is None:
        yield f"{where}: nothing of {_name(commit.source)} is copied"
        return
    if commit.target_offset > commit.log_end:
        yield f"{where}: beyond the end of the log, {commit.log_end}"
    for row in rows:
        if row["kind"] not in _COPIED or _target_of(row) != commit.target:
            continue
        for record in observation.source[commit.source].records:
            at = row["target_start"] + record.offset - row["source_start"]
            is_copied = row["source_start"] <= record.offset < row["source_end"]
            is_passed = is_copied and record.offset >= commit.source_offset and at < commit.target_offset
            if is_passed and not _is_repeated_behind(commit, record, observation):
                yield f"{where}: beyond: {record.value}, which it has still to read at the source, lies in front of it"
                return


def _is_repeated_behind(commit: GroupCommit, record: Produced, observation: Observation) -> bool:
    """Return whether a group reads a record that an operator let repeat: newer tables, since replaced, knew the later copy."""
    if not is_within(record.offset, observation.source[commit.source].repeats):
        return False
    values = observation.target[commit.target].values
    return any(value == record.value for offset, value in values.items() if offset >= commit.target_offset)


def _name(key: LogKey) -> str:
    return f"{key.topic}-{key.partition} ({key.topic_id[:6]})"


def shortened(differences: Sequence[str]) -> str:
    more = f"; {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return "; ".join(differences[:_SHOWN]) + more
