"""The audit of preserved offsets is shown bad targets, and has to say what is bad about them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tests.faults.offset_audit import OffsetAudit, differences_of_reading
from tests.faults.range_readers import JavaReaderError, Ranges, parse_histories, request_line

from shallow_mirror.demo.history import History
from shallow_mirror.types import IsolationLevel, TopicPartition

KEY, OTHER = TopicPartition("orders", 0), TopicPartition("orders", 1)
COMMITTED, UNCOMMITTED = IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED


def history(*records: tuple[int, str]) -> History:
    return History.of((offset, name.encode().ljust(16)) for offset, name in records)


GOOD = history((3, "a"), (4, "b"), (7, "c"), (9, "d"))
"""With markers, or offsets of aborted records, between."""


def kinds(target: History) -> list[str]:
    return sorted({difference.partition(":")[0] for difference in differences_of_reading({KEY: GOOD}, {KEY: target}, "x")})


def test_records_at_their_own_offsets_are_no_difference() -> None:
    assert kinds(GOOD) == []


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        (history((3, "a"), (4, "b"), (5, "c"), (9, "d")), ["offset"]),
        (history((0, "a"), (1, "b"), (2, "c"), (3, "d")), ["offset"]),
        (history((3, "a"), (4, "b"), (9, "d")), ["lost"]),
        (history((3, "a"), (4, "b"), (7, "c"), (8, "c"), (9, "d")), ["duplicated"]),
        (history((3, "a"), (4, "b"), (5, "filler"), (7, "c"), (9, "d")), ["extra"]),
        (history((3, "a"), (4, "z"), (7, "c"), (9, "d")), ["changed"]),
        (history((3, "b"), (4, "a"), (7, "c"), (9, "d")), ["offset", "reordered"]),
        (history(), ["lost"]),
    ],
)
def test_a_bad_target_is_named_by_what_is_bad_about_it(target: History, expected: Sequence[str]) -> None:
    assert kinds(target) == expected


def test_a_difference_names_partition_offsets_and_reader() -> None:
    shifted = history((3, "a"), (4, "b"), (8, "c"), (9, "d"))
    assert differences_of_reading({KEY: GOOD}, {KEY: shifted}, "Java client, read_committed") == [
        "offset: orders-0: the record of offset 7 is at 8 (Java client, read_committed)"
    ]


def test_many_shifted_records_are_counted() -> None:
    source = history(*((offset, str(offset)) for offset in range(100)))
    target = history(*((offset + 1, str(offset)) for offset in range(100)))
    differences = differences_of_reading({KEY: source}, {KEY: target}, "x")
    assert len(differences) == 6
    assert differences[-1] == "offset: orders-0: 95 more records are at other offsets (x)"


class Clusters:
    """Stands in for two clusters and a consumer: what it sees of each, by isolation level, and what it was asked for."""

    def __init__(self, source: History, committed: History, uncommitted: History) -> None:
        self._seen = {("source", COMMITTED): source, ("target", COMMITTED): committed, ("target", UNCOMMITTED): uncommitted}
        self.ranges: list[Ranges] = []

    def read(self, bootstrap: str, isolation: IsolationLevel, ranges: Ranges) -> dict[TopicPartition, History]:
        self.ranges.append(ranges)
        seen = self._seen[bootstrap, isolation]
        return {key: _between(seen, start, end) for key, (start, end) in ranges.items()}


def _between(seen: History, start: int, end: int) -> History:
    own = (seen.offsets >= start) & (seen.offsets < end)
    return History(seen.offsets[own], seen.digests[own])


@pytest.mark.parametrize("bad", [COMMITTED, UNCOMMITTED])
def test_each_isolation_level_is_compared(bad: IsolationLevel) -> None:
    damaged = history((3, "a"), (4, "b"), (7, "c"))
    clusters = Clusters(GOOD, *(damaged if level is bad else GOOD for level in (COMMITTED, UNCOMMITTED)))
    audit = OffsetAudit("source", "target", {"consumer": clusters.read})
    assert audit.differences({KEY: 10}) == [
        f"lost: orders-0: source offset 9, target offset None (consumer, {bad.value})",
    ]


def test_readers_take_turns_and_each_continues_where_it_was() -> None:
    first, second = Clusters(GOOD, GOOD, GOOD), Clusters(GOOD, GOOD, GOOD)
    audit = OffsetAudit("source", "target", {"first": first.read, "second": second.read})
    for end in (4, 5, 8, 10):
        assert audit.differences({KEY: end}) == []
    assert [ranges[KEY] for ranges in first.ranges] == [*[(0, 4)] * 3, *[(4, 8)] * 3]
    assert [ranges[KEY] for ranges in second.ranges] == [*[(0, 5)] * 3, *[(5, 10)] * 3]


def test_a_reader_that_fails_is_a_difference() -> None:
    def fail(bootstrap: str, isolation: IsolationLevel, ranges: Ranges) -> dict[TopicPartition, History]:
        raise JavaReaderError("no progress for a minute")

    assert OffsetAudit("source", "target", {"Java client": fail}).differences({KEY: 10}) == [
        "unread: Java client: no progress for a minute"
    ]


def test_a_request_of_the_java_program_names_what_is_not_empty() -> None:
    line = request_line("localhost:1", COMMITTED, {OTHER: (5, 5), KEY: (3, 10)})
    assert line == "localhost:1\tread_committed\torders:0:3:10\n"


def test_lines_of_the_java_program_are_records_of_their_partitions() -> None:
    digest = "00112233445566778899aabbccddeeff"
    histories = parse_histories([f"orders\t0\t7\t{digest}\n"], {KEY: (3, 10), OTHER: (5, 5)})
    assert histories[KEY].offsets.tolist() == [7]
    assert histories[KEY].digests[0].tobytes() == bytes.fromhex(digest)
    assert len(histories[OTHER]) == 0
