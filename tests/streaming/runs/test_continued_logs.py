"""Logs that hold records already, between two strict clusters: which are continued, and at which offset."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.fakes.changes import Change
from tests.fakes.strict_broker import StrictCluster
from tests.support.decided_ranges import decided_ranges
from tests.support.mirror_runs import config
from tests.support.record_batches import batch, marker, record

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment, first_rows_at, rows_from_arrow
from shallow_mirror.checkpoints.rows.positions import moved_by, positions_of
from shallow_mirror.checkpoints.rows.schema import rows_to_arrow
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.preserved import with_shared_producers
from shallow_mirror.streaming.runs.target_logs import ContinuedLogs
from shallow_mirror.types import SegmentKind, SourcePartition, TargetPartition
from shallow_mirror.verify.partition_map import PAIR_COLUMNS, partition_pairs
from shallow_mirror.wire.batches import SharedProducer, restamped_at
from shallow_mirror.wire.records import Fillers

ORDERS, LOGS = "orders", "logs"
APPLICATION, FIRST_MIRROR = 9, 70
IN_TXN = 0x10


def values(base: int, count: int) -> bytes:
    return b"".join(record(delta, value=b"%d" % (base + delta)) for delta in range(count))


def written(base: int, count: int, *, attributes: int = 0, producer_id: int = APPLICATION) -> bytes:
    return batch(
        base,
        count,
        attributes=attributes,
        producer_id=producer_id,
        producer_epoch=0,
        base_sequence=base,
        payload=values(base, count),
    )


def filler(base: int, count: int) -> bytes:
    shared = SharedProducer(producer_id=FIRST_MIRROR, now_ms=1_000, old_before_ms=0)
    stamped = restamped_at(Fillers(None, 1 << 20).batch(count, 1_000), base, shared)
    return base.to_bytes(8, "big") + bytes(stamped)[8:]


ORIGINAL = (written(0, 3), written(3, 2, attributes=IN_TXN), marker(5, 1, APPLICATION), written(6, 2))
"""Offsets 0 to 8 as applications wrote them: offset 5 is a marker."""
MIRRORED = (
    written(0, 3, producer_id=FIRST_MIRROR),
    written(3, 2, producer_id=FIRST_MIRROR),
    filler(5, 1),
    written(6, 2, producer_id=FIRST_MIRROR),
)
"""The same as a mirror with preserved offsets wrote it."""


class TwoLogs:
    """Topic `orders`: `source` is where applications write now, `target` holds a log that is to be continued."""

    def __init__(self, source: StrictCluster, target: StrictCluster, folder: Path) -> None:
        self.source, self.target, self._folder = source, target, folder
        for cluster in (source, target):
            for topic in (ORDERS, LOGS):
                cluster.create_topic(topic, 2)

    def hold(self, source: Sequence[bytes], target: Sequence[bytes]) -> None:
        for cluster, batches in ((self.source, source), (self.target, target)):
            if batches:
                cluster.seed((ORDERS, 0), *batches)

    @property
    def config(self) -> MirrorConfig:
        offsets = {ORDERS: "continued", LOGS: "translated"}
        return config(self._folder, self.source.bootstrap, self.target.bootstrap, [".*"], topics={"offsets": offsets})

    def first_rows(self, *topics: str, partitions: int = 1) -> tuple[DecidedSegment, ...]:
        starts = {SourcePartition(topic, "west-id", number): 0 for topic in topics for number in range(partitions)}
        return first_rows_at(starts, lambda source: TargetPartition(source.topic, "east-id", source.partition))

    def rows(self, *topics: str, partitions: int = 1) -> tuple[DecidedSegment, ...]:
        logs = ContinuedLogs(self.config, lambda _step, _detail: None, lambda: Deadline.after_ms(10_000, time.monotonic))
        return logs.with_existing(self.first_rows(*(topics or (ORDERS,)), partitions=partitions))


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[TwoLogs]:
    with StrictCluster(cluster_id="west") as source, StrictCluster(cluster_id="east") as target:
        yield TwoLogs(source, target, tmp_path)


def refusal(logs: TwoLogs) -> str:
    with pytest.raises(ConfigError) as raised:
        logs.rows()
    (problem,) = raised.value.problems
    return problem


DATA, GAP = SegmentKind.DATA, SegmentKind.GAP


def test_a_log_that_equals_the_sources_is_continued_where_it_ends(logs: TwoLogs) -> None:
    logs.hold((*MIRRORED, written(8, 4)), ORIGINAL)
    rows = logs.rows()
    assert decided_ranges(rows) == [(DATA, 0, 8, 0)]
    assert rows[0].segment.record_count == 7
    assert logs.target.asked("Produce") == 0


def test_offsets_without_a_record_on_both_sides_have_rows_of_their_own(logs: TwoLogs) -> None:
    """The other way round: the source has the marker, the target its filler."""
    logs.hold((*ORIGINAL, written(8, 4)), MIRRORED)
    rows = logs.rows()
    assert decided_ranges(rows) == [(DATA, 0, 5, 0), (GAP, 5, 6, None), (DATA, 6, 8, 6)]


def test_the_agreement_is_on_a_producer_id_that_no_batch_has(logs: TwoLogs) -> None:
    logs.hold((*ORIGINAL, written(8, 4)), MIRRORED)
    rows = logs.rows()
    target = Cluster(logs.config.target.client)
    try:
        agreed = with_shared_producers(target, rows, logs.config.topics.is_preserved, Deadline.after_ms(10_000, time.monotonic))
    finally:
        target.close()
    (producer_id,) = {row.shared_producer_id for row in agreed}
    assert producer_id not in (APPLICATION, FIRST_MIRROR, None)
    (position,) = moved_by({}, agreed).values()
    assert (position.offset, position.target_end, position.shared_producer_id, position.origin) == (8, 8, producer_id, 8)
    table = rows_to_arrow(agreed, 1, 1, 0)
    assert positions_of([table]) == moved_by({}, agreed)
    assert rows_from_arrow(table) == agreed
    assert table["target_producer_epoch"].null_count == len(agreed), "nothing was written"
    (pair,) = partition_pairs(table.select(PAIR_COLUMNS), ORDERS, "west-id", ())
    assert (pair.is_preserved, pair.filler_count, pair.problems) == (True, 0, ())


def test_other_topics_and_empty_logs_begin_as_ever(logs: TwoLogs) -> None:
    logs.source.seed((ORDERS, 0), *MIRRORED)
    logs.target.seed((LOGS, 0), written(0, 3))
    assert logs.rows(ORDERS, LOGS) == logs.first_rows(ORDERS, LOGS)


def test_records_that_were_never_mirrored_are_named(logs: TwoLogs) -> None:
    logs.hold(
        (*MIRRORED, written(8, 4)), (*ORIGINAL, batch(8, 2, payload=b"".join(record(delta, value=b"x") for delta in (0, 1))))
    )
    problem = refusal(logs)
    assert problem.startswith(
        "target partition orders-0 cannot be continued, it does not hold what source partition orders-0 has"
    )
    assert "source orders-0 offsets 8 to 9" in problem or "source orders-0 offset 8" in problem
    assert "never mirrored to the source. Mirror the topic to a new one" in problem


def test_aborted_records_of_the_target_do_not_equal_records_of_the_source(logs: TwoLogs) -> None:
    aborted = (written(8, 2, attributes=IN_TXN), marker(10, 0, APPLICATION))
    logs.hold((*MIRRORED, written(8, 4)), (*ORIGINAL, *aborted))
    assert "source orders-0 offset" in refusal(logs)


def test_a_log_that_ends_behind_the_sources_is_refused(logs: TwoLogs) -> None:
    logs.hold(MIRRORED[:3], ORIGINAL)
    assert "ends at 8, source partition orders-0 at 6: offsets 6 to 7 of the target were never mirrored" in refusal(logs)


def test_an_open_transaction_would_take_an_offset(logs: TwoLogs) -> None:
    logs.hold((*MIRRORED, written(8, 4)), (*ORIGINAL, written(8, 1, attributes=IN_TXN)))
    assert "has an open transaction from offset 8 on" in refusal(logs)


def test_a_record_that_differs_is_a_difference(logs: TwoLogs) -> None:
    changed = written(6, 2)[:-3] + b"?" + written(6, 2)[-2:]
    logs.hold((*MIRRORED, written(8, 4)), (*ORIGINAL[:3], batch(6, 2, payload=values(6, 1) + record(1, value=b"?"))))
    assert changed != ORIGINAL[3]
    assert "the value differs" in refusal(logs)


@pytest.mark.parametrize(
    ("source_start", "target_start", "expected"),
    [
        (6, 0, [(DATA, 0, 6, 0), (DATA, 6, 8, 6)]),
        (0, 6, [(DATA, 6, 8, 6)]),
        (7, 0, [(DATA, 0, 7, 0), (DATA, 7, 8, 7)]),
        (0, 7, [(DATA, 7, 8, 7)]),
    ],
    ids=["source expired", "target expired", "within a batch of the source", "within a batch of the target"],
)
def test_what_only_one_side_still_has_is_not_compared(
    logs: TwoLogs, source_start: int, target_start: int, expected: list[object]
) -> None:
    logs.hold((*MIRRORED, written(8, 4)), ORIGINAL)
    logs.source.log(ORDERS, 0).log_start_offset = source_start
    logs.target.log(ORDERS, 0).log_start_offset = target_start
    rows = logs.rows()
    assert decided_ranges(rows) == expected


@pytest.mark.parametrize(("source_start", "target_start"), [(8, 0), (0, 8), (9, 0)])
def test_without_an_offset_that_both_have_there_is_no_evidence(logs: TwoLogs, source_start: int, target_start: int) -> None:
    logs.hold((*MIRRORED, written(8, 4)), ORIGINAL)
    logs.source.log(ORDERS, 0).log_start_offset = source_start
    logs.target.log(ORDERS, 0).log_start_offset = target_start
    assert "no offset is left on both that could be compared" in refusal(logs)


def test_offsets_without_records_are_no_evidence(logs: TwoLogs) -> None:
    logs.hold((filler(0, 4), written(4, 4)), (written(0, 3, attributes=IN_TXN), marker(3, 0, APPLICATION)))
    assert "from offset 0 to 4 neither side has a record that could be compared" in refusal(logs)


def test_a_log_without_records_is_continued_if_another_partition_shows_that_both_are_one_topic(logs: TwoLogs) -> None:
    logs.hold((filler(0, 4), written(4, 4)), (written(0, 3, attributes=IN_TXN), marker(3, 0, APPLICATION)))
    logs.source.seed((ORDERS, 1), *MIRRORED)
    logs.target.seed((ORDERS, 1), *ORIGINAL)
    rows = logs.rows(partitions=2)
    assert {row.segment.source.partition: row.segment.source_end for row in rows} == {0: 4, 1: 8}
    assert decided_ranges([row for row in rows if row.segment.source.partition == 0]) == [(GAP, 0, 4, None)]


def test_a_log_that_grows_while_it_is_compared_has_another_writer(logs: TwoLogs) -> None:
    logs.hold((*MIRRORED, written(8, 4)), ORIGINAL)
    logs.target.change("Fetch", Change(first=lambda: logs.target.seed((ORDERS, 0), written(8, 1))))
    assert "ended at 8 before it was compared with the source, and now ends at 9" in refusal(logs)


def test_a_batch_that_reaches_behind_the_end_is_compared_up_to_there(logs: TwoLogs) -> None:
    """The target lost the end of its log, within what is one batch at the source."""
    logs.hold((*MIRRORED[:3], written(6, 6)), (*ORIGINAL[:3], written(6, 2)))
    rows = logs.rows()
    assert decided_ranges(rows) == [(DATA, 0, 8, 0)]


def test_every_log_that_cannot_be_continued_is_named(logs: TwoLogs) -> None:
    for cluster in (logs.source, logs.target):
        cluster.create_topic("orders.two")
    logs.hold((*MIRRORED, written(8, 4)), (*ORIGINAL, written(8, 1, attributes=IN_TXN)))
    logs.target.seed(("orders.two", 0), written(0, 3))
    both = config(
        Path(), logs.source.bootstrap, logs.target.bootstrap, [".*"], topics={"offsets": {".*": "continued"}}, tables="s3://b/t"
    )
    compared = ContinuedLogs(both, lambda _step, _detail: None, lambda: Deadline.after_ms(10_000, time.monotonic))
    with pytest.raises(ConfigError) as raised:
        compared.with_existing(logs.first_rows(ORDERS, "orders.two"))
    assert [problem.split(" ")[2] for problem in raised.value.problems] == ["orders-0", "orders.two-0"]
