"""Logs with preserved offsets reach the positions at once, also where no record brings them there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.fakes.changes import error
from tests.fakes.strict_broker import StrictCluster
from tests.sinks.two_strict_clusters import LIMITS, client_of, create_target, route_to
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.logs.topics import ForgottenTopics, TopicIncarnation
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import MirrorError, TopicAccessError, TopicSettingsError
from shallow_mirror.sinks import RoutedTopic
from shallow_mirror.sinks.kafka.preserved import GuardTimes
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.settings import PreservedSettings
from shallow_mirror.sinks.kafka.writers import KafkaSlotJob
from shallow_mirror.streaming.runs.target_logs import LogFilling
from shallow_mirror.types import IsolationLevel, Segment, SegmentKind, SourcePartition, TargetPartition

P = 77
TIMES = GuardTimes(expiration_ms=86_400_000, quiet_ms=900_000)
A, B = (SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcA", partition) for partition in (0, 1))
OTHER = SourcePartition("more", "srcsrcsrcsrcsrcsrcsrcC", 0)
FIT = {
    **dict.fromkeys(target_topic_policy.TIMESTAMP_LIMITS, str(target_topic_policy.NO_LIMIT_MS)),
    **target_topic_policy.FORCED_WHERE_PRESERVED,
}
TRANSLATED = SourcePartition("payments", "srcsrcsrcsrcsrcsrcsrcB", 0)
ROUTES = {
    "orders": RoutedTopic(
        target_topic="copy", target_topic_id=route_to("copy").target_topic_id, limits=LIMITS, is_preserved=True
    ),
    "more": RoutedTopic(target_topic="more", target_topic_id=route_to("more").target_topic_id, limits=LIMITS, is_preserved=True),
    "payments": route_to("payments"),
}


class Filled:
    """A mirror of `orders`, preserved, and `payments`, translated, whose partitions are registered by `register`."""

    def __init__(self, folder: Path, target: StrictCluster) -> None:
        self.target = target
        create_target(target, "copy", 2, **FIT)
        create_target(target, "more", 1, **FIT)
        create_target(target, "payments")
        self.owner = LedgerOwner.take_over(
            str(folder),
            name="m",
            source_cluster_id="s",
            target_cluster_id="t",
            run=RunIdentity.of_this_process(),
            now_ms=lambda: 1,
        )
        self.owner.settle()
        self.seconds, self.deadline_ms = 0.0, 10_000
        self.moved: frozenset[str] = frozenset()
        self.cluster = Cluster(client_of(target))
        self.unfilled: list[dict[SourcePartition, str]] = []
        self.filling = self.new_filling()

    def new_filling(self, *, isolates: bool = False, settings: PreservedSettings | None = None) -> LogFilling:
        target = self.target
        return LogFilling(
            self.owner,
            self.cluster,
            KafkaSlotJob(
                mirror="m", map_id="map", run_id="run", decision=0, source=None, target=client_of(target), routes={}, positions={},
                epoch_ends={}, target_ends={}, isolation=IsolationLevel.READ_COMMITTED, fetch_bytes=1 << 16, in_flight_requests=5,
                in_flight_bytes=1 << 20, max_segments=1000, commit_interval_ms=5_000.0, transaction_timeout_ms=60_000,
                time_left_ms=10_000.0, guard_times=TIMES,
            ),
            lambda: ROUTES,
            lambda: Deadline.after_ms(self.deadline_ms, time.monotonic),
            moved=lambda: self.moved,
            isolates=isolates,
            settings=settings,
            on_unfilled=lambda left: self.unfilled.append({each.source: each.reason for each in left}),
            clock=lambda: self.seconds,
        )  # fmt: skip

    def decide(
        self,
        source: SourcePartition,
        start: int,
        end: int,
        kind: SegmentKind = SegmentKind.GAP,
        target: TargetPartition | None = None,
    ) -> DecidedSegment:
        segment = Segment(
            source=source, source_start=start, source_end=end, kind=kind, target=target or ROUTES[source.topic].target_of(source),
            target_start=start if kind is SegmentKind.DATA else None, target_end=end if kind is SegmentKind.DATA else None,
        )  # fmt: skip
        row = DecidedSegment(segment, None, shared_producer_id=P if ROUTES[source.topic].is_preserved else None)
        self.owner.next_decision()
        self.owner.decide([row], highest_slot=-1)
        self.owner.settle()
        return row

    def register(self, source: SourcePartition, start: int) -> None:
        self.decide(source, start, start)

    def log(self, source: SourcePartition = A) -> tuple[int, int]:
        log = self.target.log(ROUTES[source.topic].target_topic, source.partition)
        assert {(each.header.producer_id, each.header.base_sequence - each.header.base_offset) for each in log.batches} <= {
            (P, 0)
        }
        return log.log_start_offset, log.end_offset

    def write(self, source: SourcePartition, *offsets: int, producer_id: int = P) -> None:
        now_ms = int(time.time() * 1000)
        self.target.seed(
            ("copy", source.partition),
            *(batch(at, 1, producer_id=producer_id, producer_epoch=0, base_sequence=at, timestamp=now_ms) for at in offsets),
        )


@pytest.fixture
def filled(tmp_path: Path) -> Iterator[Filled]:
    with StrictCluster(cluster_id="west-id") as target:
        filled = Filled(tmp_path, target)
        yield filled
        filled.cluster.close()


@pytest.mark.slow
def test_a_log_whose_source_holds_no_record_reaches_its_first_offset(filled: Filled) -> None:
    """One filler is left: brokers may forget the producer of an empty log, and the first record would have to wait."""
    filled.register(A, 20_000)
    filled.register(B, 0)
    filled.register(TRANSLATED, 50)
    filled.filling.fill()
    assert filled.log(A) == (19_999, 20_000)
    assert (filled.log(B), filled.target.log("payments", 0).end_offset) == ((0, 0), 0)
    asked = filled.target.asked("ListOffsets")
    filled.filling.fill()
    assert filled.target.asked("ListOffsets") == asked


@pytest.mark.slow
def test_partitions_that_appear_later_and_offsets_that_expire_are_filled(filled: Filled) -> None:
    filled.register(A, 0)
    filled.filling.fill()
    filled.write(A, 0, 1, 2)
    filled.decide(A, 0, 3, SegmentKind.DATA)
    filled.register(B, 7)
    filled.filling.note([filled.decide(A, 3, 80, SegmentKind.EXPIRED)])
    filled.filling.fill()
    assert (filled.log(A), filled.log(B)) == ((0, 80), (6, 7))


def test_the_log_of_a_topic_that_a_migration_has_moved_is_left_to_its_writers(filled: Filled) -> None:
    filled.register(A, 7)
    filled.moved = frozenset({"orders"})
    filled.filling.fill()
    assert filled.log(A) == (0, 0)
    filled.moved = frozenset()
    filled.register(B, 0)
    filled.filling.fill()
    assert filled.log(A) == (6, 7)


def test_what_another_run_has_filled_is_continued_and_begins_where_the_first_record_is(filled: Filled) -> None:
    filled.write(A, *range(30))
    filled.register(A, 100)
    filled.write(B, *range(101))
    filled.register(B, 100)
    filled.filling.fill()
    assert (filled.log(A), filled.log(B)) == ((99, 100), (100, 101))


@pytest.mark.slow
def test_a_log_that_may_not_be_written_to_now_is_filled_later(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    """Its brokers have forgotten the producer, and requests of an earlier run may still arrive."""
    filled.write(A, *range(30))
    filled.target.log("copy", 0).producers.clear()
    filled.register(A, 100)
    filled.register(B, 9)
    filled.filling.fill()
    assert (filled.log(A)[1], filled.log(B)) == (30, (8, 9))
    assert "the log of target copy-0 is not filled: PRODUCER_FORGOTTEN" in caplog.text
    filled.filling.fill()
    assert filled.log(A)[1] == 30
    ((left,),) = filled.unfilled
    assert left == A
    assert "the log of target copy-0 is not filled up to offset 100: " in filled.unfilled[0][A]
    filled.seconds += TIMES.quiet_ms / 1000
    filled.filling.fill()
    assert filled.log(A) == (99, 100)
    assert filled.unfilled[1:] == [{}]


@pytest.mark.slow
def test_a_run_that_ends_waits_for_a_log_whose_producer_is_forgotten(filled: Filled) -> None:
    filled.write(A, *range(30))
    filled.target.log("copy", 0).producers.clear()
    filled.register(A, 100)

    def wait(seconds: float) -> bool:
        filled.seconds += seconds
        return False

    filled.filling.finish(wait)
    assert filled.log(A) == (99, 100)
    assert TIMES.quiet_ms / 1000 <= filled.seconds < TIMES.quiet_ms / 1000 + 60


def test_a_run_that_ends_waits_a_minute_for_the_leader_of_a_log(filled: Filled) -> None:
    filled.register(A, 100)
    filled.target.change_always("ListOffsets", error(6))

    def wait(seconds: float) -> bool:
        filled.seconds += seconds
        if filled.seconds > back_at:
            filled.target.change_always("ListOffsets", None)
        return False

    back_at = 70.0
    filled.filling.finish(wait)
    assert 60 <= filled.seconds < 70
    assert [[*left] for left in filled.unfilled] == [[A]]
    back_at = filled.seconds + 20.0
    filled.filling.finish(wait)
    assert filled.log(A) == (99, 100)
    assert filled.unfilled[1:] == [{}]


def test_a_run_that_is_stopped_does_not_wait_for_it(filled: Filled) -> None:
    filled.write(A, *range(30))
    filled.target.log("copy", 0).producers.clear()
    filled.register(A, 100)
    filled.filling.finish(lambda _seconds: True)
    assert filled.log(A)[1] == 30


def _stamp(filled: Filled) -> None:
    filled.target.log("copy", 0).configs["message.timestamp.type"] = "LogAppendTime"


def _forbid(filled: Filled) -> None:
    filled.target.change_always("Produce", error(29, only=("copy", 0)))


@pytest.mark.parametrize(("change", "kind"), [(_stamp, TopicSettingsError), (_forbid, TopicAccessError)])
def test_a_topic_that_refuses_fillers_ends_the_run_or_is_isolated(
    filled: Filled, change: Callable[[Filled], None], kind: type[MirrorError]
) -> None:
    filled.register(A, 7)
    filled.register(OTHER, 9)
    change(filled)
    with pytest.raises(kind) as raised:
        filled.filling.fill()
    isolating = filled.new_filling(isolates=True)
    isolating.fill()
    assert filled.log(OTHER) == (8, 9)
    assert filled.unfilled == [{A: f"the log of target copy-0 is not filled up to offset 7: {raised.value}"}]


def test_a_topic_whose_settings_the_start_has_found_unfit_gets_no_filler(filled: Filled) -> None:
    _stamp(filled)
    filled.register(A, 7)
    filled.register(OTHER, 9)
    settings = PreservedSettings(filled.cluster, lambda: filled.seconds, at_start={"orders": "target topic copy stamps"})
    filling = filled.new_filling(isolates=True, settings=settings)
    filling.fill()
    assert (filled.log(A), filled.log(OTHER)) == ((0, 0), (8, 9))
    filled.target.log("copy", 0).configs["message.timestamp.type"] = "CreateTime"
    filled.seconds = 31
    filling.fill()
    assert filled.log(A) == (6, 7)
    assert [[*left] for left in filled.unfilled] == [[A], []]


@pytest.mark.slow
def test_the_log_of_another_writer_is_left_to_the_slot_that_reports_it(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    filled.register(A, 100)
    filled.write(A, 0)
    filled.target.seed(("copy", 0), batch(1, 1))
    filled.register(B, 9)
    filled.filling.fill()
    assert filled.log(B) == (8, 9)
    assert filled.target.log("copy", 0).end_offset == 2
    assert "the log of target copy-0 is not filled" in caplog.text


@pytest.mark.slow
def test_a_target_that_does_not_answer_is_asked_again(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    filled.register(A, 100)
    filled.deadline_ms = 500
    filled.target.change_always("ListOffsets", error(3))
    filled.filling.fill()
    assert "logs of the target are filled later" in caplog.text
    assert filled.log(A) == (0, 0)
    filled.target.change_always("ListOffsets", None)
    filled.filling.fill()
    filled.seconds, filled.deadline_ms = 31, 10_000
    filled.filling.fill()
    assert filled.log(A) == (99, 100)


@pytest.mark.slow
def test_a_log_without_a_leader_keeps_no_other_one_waiting(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    filled.register(A, 100)
    filled.register(B, 9)
    filled.target.move_leader(("copy", 1), -1)
    filled.filling.fill()
    assert (filled.log(A), filled.log(B)) == ((99, 100), (0, 0))
    assert "logs of the target are filled later (1): LEADER_NOT_AVAILABLE" in caplog.text
    filled.target.move_leader(("copy", 1), 1)
    filled.seconds = 31
    filled.filling.fill()
    assert filled.log(B) == (8, 9)


def test_logs_of_former_target_topics_are_not_filled(filled: Filled, caplog: pytest.LogCaptureFixture) -> None:
    """The source topic was created again, and its target topic was deleted: the new log does not reach what was copied before."""
    former = SourcePartition("orders", "srcsrcsrcsrcsrcsrcsrcF", 0)
    target = TargetPartition("copy", "former-former-former-1", 0)
    filled.decide(former, 0, 13, SegmentKind.DATA, target)
    filled.decide(former, 13, 14, SegmentKind.COMMIT, target)
    filled.register(A, 0)
    filled.filling.fill()
    assert (filled.log(A), caplog.text) == ((0, 0), "")


def test_logs_of_forgotten_topics_are_not_filled(filled: Filled) -> None:
    filled.register(A, 20)
    filled.register(B, 9)
    filled.filling.forgotten = ForgottenTopics({TopicIncarnation(A.topic, A.topic_id): 1})
    filled.filling.fill()
    assert (filled.log(A), filled.log(B)) == ((0, 0), (0, 0))
