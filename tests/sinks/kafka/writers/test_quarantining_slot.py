"""A slot that may set aside what cannot be copied: everything else is there once, in order, and every offset is accounted for."""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence
from dataclasses import replace

import pytest
from tests.fakes.changes import AS_IT_SHOULD, error
from tests.sinks.spark_rows import rows_of
from tests.sinks.two_strict_clusters import LIMITS, A, B, Clusters, create_target, payloads, planned, route_to, run_kafka_slot
from tests.support.record_batches import batch, marker, record
from tests.verify.mirrored import changed, flipped

from shallow_mirror.errors import BatchRefusedError, ConfigError, CorruptBatchError, MirrorError
from shallow_mirror.sinks import SlotResult
from shallow_mirror.sinks.slots import UNLIMITED_QUARANTINE, slot_task
from shallow_mirror.sinks.slots.quarantine_policy import Refusal
from shallow_mirror.types import PlannedRange, QuarantineLimits, SegmentKind, SourcePartition

TARGET = "young"
"""A topic without old records, and of small batches."""

LAST_OFFSET_DELTA_POS = 23
MOST_BYTES = 1000
ROUTES = {"orders": route_to(TARGET, replace(LIMITS, max_message_bytes=MOST_BYTES))}


def young(base_offset: int, count: int, clusters: Clusters, value: bytes = b"young") -> bytes:
    made = b"".join(record(delta, value=value) for delta in range(count))
    return batch(base_offset, count, payload=made, timestamp=clusters.target.now_ms())


@pytest.fixture
def pair(clusters: Clusters) -> Clusters:
    before = {"message.timestamp.before.max.ms": "3600000", "max.message.bytes": str(MOST_BYTES)}
    create_target(clusters.target, TARGET, 2, **before)
    return clusters


class Mirrored:
    """Rounds as the driver makes them: each from where the one before got to. Their transactions are committed."""

    def __init__(
        self,
        clusters: Clusters,
        *ranges: PlannedRange,
        through_spark: bool = False,
        limits: QuarantineLimits = UNLIMITED_QUARANTINE,
    ) -> None:
        positions = {planned_range.source: 0 for planned_range in ranges}
        self.results: list[SlotResult] = []
        self.committed: dict[SourcePartition, list[bytes]] = {}
        is_done = False
        while not is_done:
            job = clusters.job(positions, routes=ROUTES, quarantine=limits)
            if through_spark:
                result = run_kafka_slot(job, iter(rows_of(clusters, *ranges)), is_planned_ranges=False)
            else:
                result = clusters.run(job, *ranges)
            self.results.append(result)
            if result.txn is not None:
                self.committed = {position: clusters.committed(result, position, TARGET) for position in positions}
            for segment in result.segments:
                assert segment.source_start == positions[segment.source]
                positions[segment.source] = segment.source_end
            is_done = not result.is_partial
        assert positions == {planned_range.source: planned_range.end for planned_range in ranges}

    @property
    def quarantined(self) -> list[tuple[SourcePartition, int, int, str | None]]:
        batches = [quarantined for result in self.results for quarantined in result.quarantined]
        return sorted((batch.source, batch.source_start, batch.source_end, batch.error_name) for batch in batches)

    @property
    def quarantined_bytes(self) -> list[bytes]:
        return [quarantined.batch for result in self.results for quarantined in result.quarantined]

    def kinds(self, source: SourcePartition) -> list[tuple[SegmentKind, int, int]]:
        segments = [segment for result in self.results for segment in result.segments if segment.source == source]
        return [(segment.kind, segment.source_start, segment.source_end) for segment in segments]


def seed(clusters: Clusters, source: SourcePartition, batches: Sequence[bytes]) -> list[bytes]:
    clusters.source.seed((source.topic, source.partition), *batches)
    return list(batches)


@pytest.mark.slow
@pytest.mark.parametrize("through_spark", [False, True], ids=["direct", "through Spark"])
def test_a_batch_that_is_too_old_for_the_target_is_set_aside_as_it_was_and_what_is_around_it_is_copied_once(
    pair: Clusters, through_spark: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slot_task, "_input_partition", lambda: 3)
    first = seed(pair, A, [young(0, 2, pair), batch(2, 3), young(5, 1, pair), young(6, 2, pair)])
    second = seed(pair, B, [young(0, 1, pair), young(1, 4, pair), batch(5, 2)])
    mirrored = Mirrored(pair, planned(A, 8), planned(B, 7), through_spark=through_spark)
    assert mirrored.quarantined == [(A, 2, 5, "INVALID_TIMESTAMP"), (B, 5, 7, "INVALID_TIMESTAMP")]
    assert sorted(mirrored.quarantined_bytes) == sorted([first[1], second[2]])
    assert mirrored.committed == {A: payloads([first[0], *first[2:]]), B: payloads(second[:2])}
    assert mirrored.kinds(B)[-1] == (SegmentKind.QUARANTINED, 5, 7)
    assert (SegmentKind.QUARANTINED, 2, 5) in mirrored.kinds(A)
    assert len(mirrored.results) == 3


@pytest.mark.slow
def test_every_second_batch_refused_costs_a_round_each_and_no_more(pair: Clusters) -> None:
    written = seed(pair, A, [batch(n, 1) if n % 2 else young(n, 1, pair, value=b"%d" % n) for n in range(12)])
    mirrored = Mirrored(pair, planned(A, 12))
    assert [quarantined[1] for quarantined in mirrored.quarantined] == [1, 3, 5, 7, 9, 11]
    assert mirrored.quarantined_bytes == written[1::2]
    assert mirrored.committed[A] == payloads(written[::2])
    assert len(mirrored.results) == 7
    for segment in itertools.chain.from_iterable(result.segments for result in mirrored.results):
        assert segment.kind is not SegmentKind.QUARANTINED or (
            segment.target_start,
            segment.record_count,
            segment.batch_count,
        ) == (None, 1, 1)


def test_a_record_that_is_too_large_alone_is_set_aside_without_giving_up_the_transaction(pair: Clusters) -> None:
    large = young(1, 2, pair, value=bytes(MOST_BYTES))
    written = seed(pair, A, [young(0, 1, pair), large, young(3, 1, pair)])
    mirrored = Mirrored(pair, planned(A, 4))
    assert mirrored.quarantined == [(A, 1, 3, None)]
    assert "max.message.bytes" in mirrored.results[0].quarantined[0].remedy
    assert mirrored.quarantined_bytes == [large]
    assert mirrored.committed[A] == payloads([written[0], written[2]])
    assert pair.target.asked("InitProducerId") == 1


def test_damage_at_the_source_is_set_aside_whether_the_target_finds_it_or_a_rebuild_does(pair: Clusters) -> None:
    raw, holed = young(1, 2, pair), batch(4, deltas=[0, 2], timestamp=pair.target.now_ms())
    written = seed(pair, A, [young(0, 1, pair), flipped(raw, 65), young(3, 1, pair), flipped(holed, 63), young(7, 1, pair)])
    mirrored = Mirrored(pair, planned(A, 8))
    assert mirrored.quarantined == [(A, 1, 3, "CORRUPT_MESSAGE"), (A, 4, 7, None)]
    assert mirrored.quarantined_bytes == [written[1], written[3]]
    assert mirrored.committed[A] == payloads([written[0], written[2], written[4]])
    rules = {quarantined.rule for result in mirrored.results for quarantined in result.quarantined}
    assert rules == {"corrupt record batch: its CRC does not match its payload"}


@pytest.mark.parametrize("code", [87, -1], ids=["invalid", "no reason given"])
def test_what_its_producer_filled_with_garbage_is_set_aside(pair: Clusters, code: int) -> None:
    written = seed(pair, A, [changed(young(0, 1, pair), 61, b"\x7f"), young(1, 1, pair)])
    pair.target.change("Produce", error(code))
    mirrored = Mirrored(pair, planned(A, 2))
    assert mirrored.quarantined_bytes == written[:1]
    assert mirrored.committed[A] == payloads(written[1:])


def test_an_unknown_codec_is_quarantined_and_an_unreadable_marker_stops(pair: Clusters) -> None:
    unknown = batch(0, 2, attributes=5)
    written = seed(pair, A, [unknown, young(2, 1, pair)])
    mirrored = Mirrored(pair, planned(A, 3))
    assert (mirrored.quarantined_bytes, mirrored.committed[A]) == ([unknown], payloads(written[1:]))
    seed(pair, B, [flipped(marker(0, 1, 7), 70), young(1, 1, pair)])
    with pytest.raises(BatchRefusedError, match="unreadable control batch"):
        Mirrored(pair, planned(B, 2))


def test_a_damaged_batch_whose_end_is_unknown_stops(pair: Clusters) -> None:
    longer = young(0, 2, pair)
    longer = longer[:LAST_OFFSET_DELTA_POS] + struct.pack(">i", 4) + longer[LAST_OFFSET_DELTA_POS + 4 :]
    seed(pair, A, [longer, young(2, 3, pair)])
    with pytest.raises(CorruptBatchError, match=r"orders-0: corrupt record batch at base offset 0"):
        Mirrored(pair, planned(A, 5))


@pytest.mark.parametrize(
    ("code", "count", "expected"),
    [
        (10, 2, BatchRefusedError),
        (-1, 1, BatchRefusedError),
        (29, 1, ConfigError),
        (35, 1, BatchRefusedError),
        (2, 1, BatchRefusedError),
    ],
    ids=["larger than it may be now", "no reason given", "no right to write", "an old broker", "damaged on the way"],
)
def test_what_is_not_the_batch_s_own_fault_stops(pair: Clusters, code: int, count: int, expected: type[MirrorError]) -> None:
    seed(pair, A, [young(0, count, pair)])
    pair.target.change("Produce", error(code))
    with pytest.raises(expected):
        Mirrored(pair, planned(A, count))


@pytest.mark.parametrize(
    ("limits", "name"),
    [
        (QuarantineLimits(batches=9, size_bytes=1100), "max_quarantined_bytes=1100"),
        (QuarantineLimits(batches=1, size_bytes=9000), "max_quarantined_batches=1"),
    ],
)
def test_more_than_the_limit_stops_and_says_how_to_continue(pair: Clusters, limits: QuarantineLimits, name: str) -> None:
    written = seed(pair, A, [young(0, 1, pair, value=bytes(MOST_BYTES)), young(1, 1, pair, value=bytes(MOST_BYTES))])
    output = rf"larger than max\.message\.bytes.*write\.{name}.*raise write\.{name.partition('=')[0]}$"
    with pytest.raises(BatchRefusedError, match=output) as stopped:
        Mirrored(pair, planned(A, 2), limits=limits)
    assert stopped.value.base_offset == 1
    enough = QuarantineLimits(batches=2, size_bytes=2200)
    assert Mirrored(pair, planned(A, 2), limits=enough).quarantined_bytes == written


@pytest.mark.slow
def test_a_target_that_fails_meanwhile_makes_no_difference(pair: Clusters) -> None:
    written = seed(pair, A, [young(0, 1, pair), batch(1, 1), young(2, 1, pair)])
    pair.target.change("Produce", error(6), AS_IT_SHOULD, error(19))
    mirrored = Mirrored(pair, planned(A, 3))
    assert mirrored.quarantined_bytes == [written[1]]
    assert mirrored.committed[A] == payloads([written[0], written[2]])


def test_a_target_that_says_something_of_every_record_is_not_quoted_in_full() -> None:
    refusal = Refusal(BatchRefusedError(A.topic_partition, 7, "too old; " * 10_000, "Set a limit"))
    assert refusal.rule.startswith("too old; too old; ")
    assert len(refusal.rule) < 1_100
