"""The newest committed offsets, from the log in which coordinators write them: against a coordinator that reads the same log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pytest
from hypothesis import given, strategies as st
from tests.support.group_log import commit_key, commit_value

from shallow_mirror.groups.commit_table import MOST_UNSYNCED, CommitTable
from shallow_mirror.types import TopicPartition
from shallow_mirror.wire.group_log import CommitKey, CommitRow

ORDERS_0 = TopicPartition("orders", 0)
KEY = commit_key("billing", "orders", 0)


def table() -> CommitTable:
    return CommitTable(lambda key: key.group != "excluded")


def logged(logged_at: int, key: bytes, offset: int, value: bytes | None = None) -> CommitRow:
    return key, logged_at, 1_000 + logged_at, offset, value


def commits(offsets: Sequence[int], first: int = 0) -> list[CommitRow]:
    return [logged(first + at, KEY, offset) for at, offset in enumerate(offsets)]


def unsynced(made: CommitTable) -> list[int]:
    entry = made.of("billing", ORDERS_0)
    return [] if entry is None else [logged.offset for logged in entry.unsynced]


def test_offsets_that_are_not_at_the_target_are_kept_and_rise() -> None:
    made = table()
    made.apply(7, commits([10, 20, 30]), None)
    assert unsynced(made) == [10, 20, 30]
    entry = made.of("billing", ORDERS_0)
    assert entry is not None
    covered = [entry.covered(end) for end in (9, 10, 25, 99)]
    assert [logged and logged.offset for logged in covered] == [None, 10, 20, 30]
    entry.settle(20)
    assert unsynced(made) == [30]
    made.apply(7, commits([25], 3), None)
    assert unsynced(made) == [25], "a reset takes the place of what is above it"
    assert entry.newest.offset == 25
    entry.settle(25)
    assert made.waiting() == []
    assert [entry.newest.offset for entry in made] == [25]


def test_an_equal_offset_waits_since_it_was_committed_first() -> None:
    made = table()
    made.apply(7, commits([10, 10, 10]), None)
    (entry,) = made.waiting()
    assert [(logged.offset, logged.committed_at_ms) for logged in entry.unsynced] == [(10, 1_000)]


def test_many_are_thinned_out_and_the_first_and_the_last_stay() -> None:
    made = table()
    made.apply(7, commits(range(1, 10_001)), None)
    kept = unsynced(made)
    assert len(kept) <= MOST_UNSYNCED
    assert (kept[0], kept[-1]) == (1, 10_000)
    assert kept == sorted(kept)


def test_tombstones_and_offsets_below_zero_remove_and_other_records_are_counted() -> None:
    made = table()
    made.apply(7, [*commits([10]), logged(1, KEY, -1)], None)
    assert len(made) == 0
    made.apply(7, [*commits([11], 2), logged(3, KEY, -5)], None)
    assert len(made) == 0
    excluded = commit_key("excluded", "orders", 0)
    for _ in range(2):  # the second time it is known
        made.apply(7, [logged(5, excluded, 3)], None)
    assert (len(made), made.counts.commits, made.counts.tombstones, made.counts.other) == (0, 2, 2, 2)


def test_an_offset_of_a_transaction_counts_from_its_marker_on() -> None:
    made = table()
    made.seed([(CommitKey("billing", "orders", 0), 5, "note")], 900)
    made.apply(7, commits([10]), 44)
    assert unsynced(made) == [5]
    made.end_transaction(8, 44, is_committed=True)  # of another partition of the log
    made.end_transaction(7, 45, is_committed=True)  # of another producer
    assert unsynced(made) == [5]
    made.end_transaction(7, 44, is_committed=True)
    assert unsynced(made) == [5, 10]
    made.apply(7, commits([20], 1), 44)
    made.end_transaction(7, 44, is_committed=False)
    made.end_transaction(7, 44, is_committed=True)
    assert unsynced(made) == [5, 10]
    assert (made.counts.aborted, made.open_transaction_count()) == (1, 0)


def test_an_offset_that_was_committed_behind_that_of_a_transaction_stays() -> None:
    made = table()
    made.apply(7, commits([30]), 44)
    made.apply(7, commits([20], 1), None)
    made.end_transaction(7, 44, is_committed=True)
    assert unsynced(made) == [20]


def test_both_types_of_keys_are_one_place() -> None:
    made = table()
    made.apply(7, [logged(0, commit_key("billing", "orders", 0, 0), 3), *commits([4], 1)], None)
    assert [entry.newest.offset for entry in made] == [4]


def test_the_metadata_is_that_of_the_newest_offset() -> None:
    made = table()
    made.apply(7, [logged(0, KEY, 10, commit_value(10, "of ten")), logged(1, KEY, 11)], None)
    entry = made.of("billing", ORDERS_0)
    assert entry is not None
    assert [logged.note() for logged in entry.unsynced] == ["of ten", ""]
    assert entry.newest.note() == ""


class Event(NamedTuple):
    """`producer` None: no transaction; `offset` None: a tombstone, and with `ends` set a marker."""

    partition: int
    offset: int | None
    producer: int | None
    ends: bool | None


_EVENTS = st.lists(
    st.one_of(
        st.builds(Event, st.integers(0, 2), st.integers(0, 9), st.none() | st.integers(1, 2), st.none()),
        st.builds(Event, st.integers(0, 2), st.none(), st.none(), st.none()),
        st.builds(Event, st.just(0), st.none(), st.integers(1, 2), st.booleans()),
    ),
    max_size=40,
)


@pytest.mark.slow
@given(_EVENTS)
def test_the_table_has_what_a_coordinator_has(events: list[Event]) -> None:
    """Of one group in one partition of the log; the coordinator is that of Kafka, as far as offsets go."""
    made, offsets = table(), dict[int, tuple[int, int]]()
    pending: dict[int, dict[int, tuple[int, int]]] = {1: {}, 2: {}}
    for at, event in enumerate(events):
        key = commit_key("billing", "orders", event.partition)
        if event.ends is not None and event.producer is not None:
            made.end_transaction(7, event.producer, is_committed=event.ends)
            done, pending[event.producer] = pending[event.producer], {}
            for partition, (offset, logged_at) in done.items() if event.ends else ():
                if partition not in offsets or offsets[partition][1] < logged_at:
                    offsets[partition] = offset, logged_at
            continue
        made.apply(7, [logged(at, key, -1 if event.offset is None else event.offset)], event.producer)
        if event.offset is None:
            offsets.pop(event.partition, None)
        elif event.producer is None:
            offsets[event.partition] = event.offset, at
        else:
            pending[event.producer][event.partition] = event.offset, at
    assert {entry.topic_partition.partition: entry.newest.offset for entry in made} == {
        partition: offset for partition, (offset, _) in offsets.items()
    }
    for entry in made:
        kept = [logged.offset for logged in entry.unsynced]
        assert kept == sorted(set(kept))
        assert kept[-1] == entry.newest.offset
