"""Every kind of damage, planted between two strict clusters or in the map, is found, and reported with its partition and offset."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.partition_log import Follower, PartitionLog
from tests.support.record_batches import batch, marker, record
from tests.verify.mirrored import PRODUCER_ID, TOPIC, Mirrored, at, changed, data_positions, flipped, replace

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.types import OffsetRange, Segment, SegmentKind, TopicPartition
from shallow_mirror.verify import Difference, DifferenceKind, Unchecked, VerifyReport

pytestmark = pytest.mark.thorough

ATTRIBUTES_POS, BASE_TIMESTAMP_POS, MAX_TIMESTAMP_POS, PAYLOAD_POS = 21, 27, 35, 61
Depth = pytest.mark.parametrize("is_deep", [False, True], ids=["by batches", "deep"])


def numbered(base: int, count: int, **fields: object) -> bytes:
    """No two records are the same."""
    payload = b"".join(record(delta, b"k%d" % (base + delta), b"value %d" % (base + delta)) for delta in range(count))
    return batch(base, count, payload=payload, **fields)  # type: ignore[arg-type]


def txn(base: int, count: int, *, is_commit: bool, producer_id: int = 9) -> tuple[bytes, bytes]:
    data = numbered(base, count, producer_id=producer_id, producer_epoch=0, base_sequence=0, attributes=0x10)
    return data, marker(base + count, int(is_commit), producer_id)


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Mirrored]:
    """Source offsets 0 to 69 in three micro-batches: 0-29 data, 30 commit, 31-35 aborted, 36 abort, 37-69 data."""
    with Mirrored(tmp_path) as mirrored:
        mirrored.mirror(numbered(0, 10), numbered(10, 10))
        mirrored.mirror(*txn(20, 10, is_commit=True), *txn(31, 5, is_commit=False))
        mirrored.mirror(numbered(37, 13), numbered(50, 7), numbered(57, 13))
        yield mirrored


def differences(report: VerifyReport) -> list[tuple[str, int | None, int | None, int | None, int | None]]:
    return [
        (difference.kind.value, difference.source_start, difference.source_end, difference.target_start, difference.target_end)
        for difference in report.differences
    ]


def only(report: VerifyReport) -> Difference:
    (difference,) = report.differences
    assert not report.is_equal
    assert report.difference_counts == {difference.kind: 1}
    return difference


def batch_at(log: PartitionLog, n: int) -> tuple[int, bytes]:
    """Index in the log and bytes of the n-th batch of data."""
    topic_partition = data_positions(log)[n]
    return topic_partition, log.batches[topic_partition].data


@Depth
def test_what_was_copied_is_equal(copied: Mirrored, is_deep: bool) -> None:
    report = copied.verify(is_deep=is_deep)
    assert report.is_equal
    assert (report.record_count, report.unchecked, report.differences) == (63, {}, ())
    assert (report.batch_count, report.opened_batch_count) == ((0, 6) if is_deep else (6, 0))


@Depth
def test_a_copied_batch_whose_offsets_do_not_rise_is_equal_and_a_change_of_it_is_found(tmp_path: Path, is_deep: bool) -> None:
    """Brokers store such an uncompressed batch; no reader can open it."""
    payload = b"".join(record(delta, None, b"value") for delta in (0, 1, 1, 2))
    with Mirrored(tmp_path) as mirrored:
        mirrored.mirror(numbered(0, 10), batch(10, 4, payload=payload), numbered(14, 3))
        report = mirrored.verify(is_deep=is_deep)
        assert (report.is_equal, report.differences) == (True, ())
        topic_partition, data = batch_at(mirrored.target_log, 1)
        replace(mirrored.target_log, topic_partition, changed(data, len(data) - 3, b"E"))
        assert [difference[:3] for difference in differences(mirrored.verify(is_deep=is_deep))] == [("changed", 12, 14)]


@Depth
def test_a_maximum_timestamp_below_none_is_equal_to_none(copied: Mirrored, is_deep: bool) -> None:
    """A broker writes -1 where no record has a timestamp of at least 0."""
    for log, newest in ((copied.source_log, -5), (copied.target_log, -1)):
        topic_partition, data = batch_at(log, 1)
        times = struct.pack(">qq", -5, newest)
        replace(log, topic_partition, changed(data, BASE_TIMESTAMP_POS, times))
    report = copied.verify(is_deep=is_deep)
    assert (report.is_equal, report.differences) == (True, ())


@Depth
@pytest.mark.parametrize("side", ["source", "target"])
def test_a_bit_that_a_disk_lost_is_changed_and_names_the_side(copied: Mirrored, side: str, is_deep: bool) -> None:
    log = copied.source_log if side == "source" else copied.target_log
    topic_partition, data = batch_at(log, 4)
    replace(log, topic_partition, flipped(data, PAYLOAD_POS + 20))
    difference = only(copied.verify(is_deep=is_deep))
    assert (difference.kind, difference.source_start, difference.source_end) == (DifferenceKind.CHANGED, 50, 57)
    assert difference.target_start is not None
    assert (difference.target_end, difference.reason) == (
        difference.target_start + 7,
        f"damaged on the {side}: its checksum does not match its bytes",
    )


@Depth
def test_a_changed_value_under_a_right_checksum_is_reported_with_its_record(copied: Mirrored, is_deep: bool) -> None:
    topic_partition, data = batch_at(copied.target_log, 3)
    base = copied.target_log.batches[topic_partition].header.base_offset
    replace(copied.target_log, topic_partition, changed(data, data.index(b"value 40"), b"value 4x"))
    difference = only(copied.verify(is_deep=is_deep))
    assert differences(copied.verify(is_deep=is_deep)) == [("changed", 40, 41, base + 3, base + 4)]
    assert difference.sentence == f"changed: source orders-0 offset 40, target orders-0 offset {base + 3}: the value differs"


@Depth
@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [(b"k42", b"k4x", "the key differs"), (b"value 42", b"value_42", "the value differs")],
)
def test_the_sentence_says_which_part_of_a_record_differs(
    copied: Mirrored, old: bytes, new: bytes, reason: str, is_deep: bool
) -> None:
    topic_partition, data = batch_at(copied.source_log, 3)
    replace(copied.source_log, topic_partition, changed(data, data.index(old), new))
    assert only(copied.verify(is_deep=is_deep)).reason == reason


@Depth
def test_a_changed_base_timestamp_moves_all_its_records(copied: Mirrored, is_deep: bool) -> None:
    topic_partition, data = batch_at(copied.target_log, 1)
    later = changed(changed(data, BASE_TIMESTAMP_POS, struct.pack(">q", 1_005)), MAX_TIMESTAMP_POS, struct.pack(">q", 1_005))
    replace(copied.target_log, topic_partition, later)
    difference = only(copied.verify(is_deep=is_deep))
    assert (difference.kind, difference.source_start, difference.source_end, difference.record_count) == (
        DifferenceKind.CHANGED,
        10,
        20,
        10,
    )
    assert difference.reason == "the timestamp differs by +5 ms"


@Depth
def test_a_changed_maximum_timestamp_is_reported_of_the_header(copied: Mirrored, is_deep: bool) -> None:
    topic_partition, data = batch_at(copied.target_log, 1)
    replace(copied.target_log, topic_partition, changed(data, MAX_TIMESTAMP_POS, struct.pack(">q", 1_007)))
    difference = only(copied.verify(is_deep=is_deep))
    assert (difference.kind, difference.target_start, difference.target_end) == (DifferenceKind.CHANGED, 10, 20)
    assert difference.reason == "its records are the same, but the maximum timestamp in its header is +7 ms off"


@Depth
@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        (0x18, "the timestamp differs by +500 ms"),
        (0x14, "damaged on the target: its checksum holds, but its zstd block cannot be opened"),
        (0x17, "damaged on the target: unknown compression codec"),
    ],
)
def test_changed_attributes_are_changed(copied: Mirrored, attributes: int, reason: str, is_deep: bool) -> None:
    topic_partition, data = batch_at(copied.target_log, 0)
    other = changed(data, ATTRIBUTES_POS, struct.pack(">h", attributes))
    replace(copied.target_log, topic_partition, changed(other, MAX_TIMESTAMP_POS, struct.pack(">q", 1_500)))
    difference = only(copied.verify(is_deep=is_deep))
    assert (difference.kind, difference.source_start, difference.source_end) == (DifferenceKind.CHANGED, 0, 10)
    assert difference.reason.startswith(reason)


@Depth
def test_a_control_bit_hides_a_copy_so_it_is_missing(copied: Mirrored, is_deep: bool) -> None:
    topic_partition, data = batch_at(copied.target_log, 4)
    replace(copied.target_log, topic_partition, changed(data, ATTRIBUTES_POS, struct.pack(">h", 0x30)))
    difference = only(copied.verify(is_deep=is_deep))
    assert difference.kind in (DifferenceKind.MISSING, DifferenceKind.CHANGED)
    assert (difference.source_start, difference.source_end) == (50, 57)


@Depth
def test_a_batch_that_the_target_lost_is_missing(copied: Mirrored, is_deep: bool) -> None:
    topic_partition, _ = batch_at(copied.target_log, 3)
    base = copied.target_log.batches[topic_partition].header.base_offset
    replace(copied.target_log, topic_partition, None)
    report = copied.verify(is_deep=is_deep)
    assert differences(report) == [("missing", 37, 50, base, base + 13)]
    assert report.differences[0].record_count == 13


@Depth
def test_a_batch_that_the_source_lost_is_extra(copied: Mirrored, is_deep: bool) -> None:
    topic_partition, _ = batch_at(copied.source_log, 3)
    replace(copied.source_log, topic_partition, None)
    difference = only(copied.verify(is_deep=is_deep))
    assert (difference.kind, difference.source_start, difference.source_end) == (DifferenceKind.EXTRA, 37, 50)
    assert difference.reason == "readers of the target see it, the source shows no record: no batch"


@Depth
def test_what_both_have_lost_is_missing_too(copied: Mirrored, is_deep: bool) -> None:
    for log in (copied.source_log, copied.target_log):
        replace(log, batch_at(log, 3)[0], None)
    difference = only(copied.verify(is_deep=is_deep))
    assert (difference.kind, difference.source_start, difference.source_end) == (DifferenceKind.MISSING, 37, 50)
    assert "neither side shows a record there" in difference.reason


@Depth
def test_swapped_batches_are_reordered_and_neither_missing_nor_extra(copied: Mirrored, is_deep: bool) -> None:
    (first, first_raw), (second, other) = batch_at(copied.target_log, 0), batch_at(copied.target_log, 1)
    replace(copied.target_log, first, at(other, 0))
    replace(copied.target_log, second, at(first_raw, 10))
    report = copied.verify(is_deep=is_deep)
    assert differences(report) == [("reordered", 0, 10, 10, 20), ("reordered", 10, 20, 0, 10)]
    assert report.differences[0].reason == "the copy lies +10 offsets from where the map says"


@Depth
def test_batches_of_other_sizes_that_changed_places_are_found(copied: Mirrored, is_deep: bool) -> None:
    (first, first_raw), (second, other) = batch_at(copied.target_log, 3), batch_at(copied.target_log, 4)
    base = copied.target_log.batches[first].header.base_offset
    replace(copied.target_log, first, at(other, base))
    replace(copied.target_log, second, at(first_raw, base + 7))
    assert {difference.kind for difference in copied.verify(is_deep=is_deep).differences} == {DifferenceKind.REORDERED}


@Depth
def test_a_batch_that_was_written_twice_is_not_in_the_map(copied: Mirrored, is_deep: bool) -> None:
    end = copied.target_log.end_offset
    copied.append(batch_at(copied.target_log, 4)[1])
    copied.target.seed(("orders", 0), marker(copied.target_log.end_offset, 1, PRODUCER_ID))
    report = copied.verify(is_deep=is_deep)
    assert differences(report) == [("not in map", None, None, end, end + 7)]
    assert "another writer, or a second copy" in report.differences[0].sentence


def test_records_of_another_writer_in_front_of_the_first_copy_are_not_in_the_map(tmp_path: Path) -> None:
    with Mirrored(tmp_path) as mirrored:
        mirrored.append(numbered(0, 3))
        mirrored.mirror(numbered(0, 10))
        assert differences(mirrored.verify()) == [("not in map", None, None, 0, 3)]


@Depth
def test_batches_of_another_writer_that_are_known_are_no_difference(copied: Mirrored, is_deep: bool) -> None:
    end, topic_partition = copied.target_log.end_offset, TopicPartition(TOPIC, 0)
    for part in range(2):
        copied.append(numbered(100 + 5 * part, 5))
    first = {topic_partition: [OffsetRange(end, end + 5)]}
    assert differences(copied.verify(is_deep=is_deep, known=first)) == [("not in map", None, None, end + 5, end + 10)]
    both = {topic_partition: [OffsetRange(end + 5, end + 10), OffsetRange(end, end + 5)]}
    assert copied.verify(is_deep=is_deep, known=both).is_equal


def test_aborted_and_open_records_on_the_target_are_invisible(copied: Mirrored) -> None:
    copied.append(numbered(0, 3, producer_id=77, attributes=0x10))
    copied.target.seed(("orders", 0), marker(copied.target_log.end_offset, 0, 77))
    copied.append(numbered(0, 3, producer_id=78, attributes=0x10))
    assert copied.verify().is_equal


@Depth
def test_aborted_data_that_the_target_shows_is_extra(tmp_path: Path, is_deep: bool) -> None:
    """A mirror that took aborted data for committed wrote it, and a row that says so."""
    with Mirrored(tmp_path) as mirrored:
        data, end = txn(0, 5, is_commit=False)
        mirrored.source.seed(("orders", 0), data, end)
        aborted, mirrored.source_log.aborted = mirrored.source_log.aborted, []
        mirrored.mirror()
        mirrored.source_log.aborted = aborted
        report = mirrored.verify(is_deep=is_deep)
        assert differences(report) == [("extra", 0, 5, 0, 5)]
        assert report.differences[0].reason.endswith("the source shows no record: data of an aborted transaction")


@Depth
def test_committed_data_that_the_map_calls_aborted_is_missing(copied: Mirrored, is_deep: bool) -> None:
    copied.source_log.aborted = []
    difference = only(copied.verify(is_deep=is_deep))
    assert (difference.kind, difference.source_start, difference.source_end) == (DifferenceKind.MISSING, 31, 36)
    assert difference.reason == "readers of the source see it, but the map says aborted"


def test_a_marker_of_the_other_kind_is_changed(copied: Mirrored) -> None:
    topic_partition = next(i for i, batch in enumerate(copied.source_log.batches) if batch.header.base_offset == 36)
    replace(copied.source_log, topic_partition, marker(36, 1, 9))
    difference = only(copied.verify())
    assert (difference.kind, difference.source_start, difference.reason) == (
        DifferenceKind.CHANGED, 36, "the map says abort, the source shows a commit marker",
    )  # fmt: skip


def test_records_instead_of_a_marker_are_missing(copied: Mirrored) -> None:
    topic_partition = next(i for i, batch in enumerate(copied.source_log.batches) if batch.header.base_offset == 30)
    replace(copied.source_log, topic_partition, numbered(30, 1))
    difference = only(copied.verify())
    assert (difference.kind, difference.source_start, difference.reason) == (
        DifferenceKind.MISSING, 30, "readers of the source see it, but the map says commit",
    )  # fmt: skip


def test_a_damaged_header_does_not_hide_what_lies_behind_it(tmp_path: Path) -> None:
    """Where the next batch begins is not believed of a header whose checksum does not hold."""
    with Mirrored(tmp_path, read={"fetch_bytes": 65_536}) as mirrored:
        payload = b"".join(record(delta, value=bytes(1_000)) for delta in range(40))
        for part in range(3):
            mirrored.mirror(*[batch(40 * n, 40, payload=payload, timestamp=n) for n in range(part * 5, part * 5 + 5)])
        for delta in (-5, 1 << 20):
            topic_partition, data = batch_at(mirrored.target_log, 4)
            replace(mirrored.target_log, topic_partition, data[:23] + struct.pack(">i", delta) + data[27:])
            last, tail = batch_at(mirrored.target_log, 14)
            replace(mirrored.target_log, last, flipped(tail, 100))
            report = mirrored.verify(from_start=True)
            assert [difference.source_start for difference in report.differences] == [160, 560]
            replace(mirrored.target_log, topic_partition, data)
            replace(mirrored.target_log, last, tail)
        assert mirrored.verify().is_equal


Plant = Callable[[Mirrored], None]


def _update(mirrored: Mirrored, predicate: str, **updates: str) -> None:
    mirrored.plant_in_map(lambda table: table.update(predicate=predicate, updates=updates))


@Depth
@pytest.mark.parametrize("shift", [1, -1, 3, 1000])
def test_a_shifted_row_of_the_map_is_found(copied: Mirrored, shift: int, is_deep: bool) -> None:
    _update(
        copied, "source_start = 10 or source_start = 0",
        target_start=f"target_start + {shift}", target_end=f"target_end + {shift}",
    )  # fmt: skip
    report = copied.verify(is_deep=is_deep)
    assert not report.is_equal
    reordered = [
        difference
        for difference in report.differences
        if difference.kind is DifferenceKind.REORDERED and difference.target_start is not None
    ]
    assert reordered, report.sentences()
    assert reordered[0].reason == f"the copy lies {-shift:+d} offsets from where the map says"


@Depth
def test_a_row_that_is_not_in_the_map_is_found_on_both_sides(copied: Mirrored, is_deep: bool) -> None:
    copied.plant_in_map(lambda table: table.delete("kind = 'data' and source_start = 20"))
    report = copied.verify(is_deep=is_deep)
    assert ("not in map", 20, 30, None, None) in differences(report)
    assert ("not in map", 20, 30, 21, 31) in differences(report)
    assert set(report.difference_counts) == {DifferenceKind.NOT_IN_MAP}


def test_a_row_of_the_map_that_is_there_twice_is_found(copied: Mirrored) -> None:
    _update(copied, "source_start = 30", source_start="29")
    assert ("extra", 29, 30, None, None) in differences(copied.verify())


def test_a_row_that_calls_data_a_gap_is_found(copied: Mirrored) -> None:
    _update(copied, "source_start = 20", kind="'gap'", target_start="null", target_end="null")
    report = copied.verify()
    assert differences(report) == [("not in map", 20, 30, 21, 31)]
    assert report.differences[0].reason == "it was copied, but the map says gap"


@pytest.mark.parametrize("high_watermark", [0, 70, None])
def test_a_gap_is_looked_up_behind_a_leader_that_names_a_replica_instead_of_answering(
    copied: Mirrored, high_watermark: int | None
) -> None:
    """Such responses hold no batch and no error: a mirror may have taken them for a hole, and decided a gap."""
    copied.source.start_node(2)
    copied.source_log.followers[2] = Follower(high_watermark=high_watermark)
    copied.source_log.select_replica = lambda _rack: 2
    copied.source.seed((TOPIC, 0), numbered(70, 10))
    source, target = copied.pair
    gap = Segment(source=source, source_start=70, source_end=80, kind=SegmentKind.GAP, target=target)
    copied.owner.next_decision()
    copied.owner.decide([DecidedSegment(gap, None)], highest_slot=0)
    copied.owner.settle()
    report = copied.verify()
    assert differences(report) == [("missing", 70, 80, None, None)]
    assert report.differences[0].reason == "readers of the source see it, but the map says gap"


def test_a_row_that_leads_to_another_partition_is_found(copied: Mirrored) -> None:
    _update(copied, "source_start = 20", target_partition="5")
    assert ("reordered", 20, 30, None, None) in differences(copied.verify())


def test_a_target_topic_that_was_created_again_is_missing_all(copied: Mirrored) -> None:
    copied.target.delete_topic("orders")
    copied.target.create_topic("orders")
    difference = only(copied.verify())
    assert (difference.kind, difference.source_start, difference.source_end) == (DifferenceKind.MISSING, 0, 70)


def test_offsets_below_either_log_start_cannot_be_checked_and_are_neither_missing_nor_equal(copied: Mirrored) -> None:
    copied.source_log.delete_records_before(15)
    copied.target_log.delete_records_before(copied.target_log.batches[data_positions(copied.target_log)[4]].header.base_offset)
    report = copied.verify()
    assert report.is_equal
    assert report.unchecked == {Unchecked.SOURCE_DELETED: 15, Unchecked.TARGET_DELETED: 28}
    assert report.record_count == 20
    assert (
        "cannot be checked any more: 15 source offsets deleted on the source (retention or DeleteRecords)" in report.sentences()
    )


def test_a_source_topic_that_was_created_again_cannot_be_checked(copied: Mirrored) -> None:
    copied.source.delete_topic("orders")
    copied.source.create_topic("orders")
    report = copied.verify()
    assert (report.difference_counts, report.unchecked) == ({}, {Unchecked.SOURCE_TOPIC_GONE: 63})
    assert report.uncovered == ("no record could be compared",)
    assert not report.is_equal


def test_a_source_whose_log_ends_below_what_was_copied_leaves_extra_copies(copied: Mirrored) -> None:
    copied.source_log.truncate(50)
    difference = only(copied.verify())
    assert (difference.kind, difference.source_start, difference.source_end) == (DifferenceKind.EXTRA, 50, 70)


def test_rows_that_may_still_be_taken_back_are_not_judged(copied: Mirrored) -> None:
    copied.mirror(numbered(70, 5), settles=False)
    report = copied.verify()
    assert (report.is_equal, report.record_count) == (True, 63)


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_a_compacted_log_has_lost_at_its_end_was_not_removed_by_compaction(copied: Mirrored, side: str) -> None:
    log = copied.source_log if side == "source" else copied.target_log
    log.configs["cleanup.policy"] = "compact"
    log.truncate(log.batches[data_positions(log)[4]].header.base_offset)
    difference = only(copied.verify())
    kind = DifferenceKind.EXTRA if side == "source" else DifferenceKind.MISSING
    assert (difference.kind, difference.source_start, difference.source_end) == (kind, 50, 70)


@pytest.mark.parametrize("side", ["source", "target"])
def test_what_compaction_removed_is_not_missing_and_what_is_left_is_compared(copied: Mirrored, side: str) -> None:
    log = copied.source_log if side == "source" else copied.target_log
    log.configs["cleanup.policy"] = "compact"
    positions = data_positions(log)
    base = log.batches[positions[4]].header.base_offset
    kept = [0, 3, 6]
    payload = b"".join(record(delta, b"k%d" % (50 + delta), b"value %d" % (50 + delta)) for delta in kept)
    fields: dict[str, Any] = {"producer_id": PRODUCER_ID, "attributes": 0x10} if side == "target" else {}
    replace(log, positions[4], batch(base, deltas=kept, payload=payload, **fields))
    replace(log, positions[1], None)
    report = copied.verify()
    why = Unchecked.SOURCE_COMPACTED if side == "source" else Unchecked.TARGET_COMPACTED
    assert report.is_equal, report.sentences()
    assert (report.unchecked, report.record_count, report.opened_batch_count) == ({why: 14}, 49, 1)
    replace(log, positions[4] - 1, batch(base, deltas=kept, **fields))
    assert copied.verify().difference_counts == {DifferenceKind.CHANGED: 3}
