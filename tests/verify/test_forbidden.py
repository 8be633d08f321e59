"""A right that is missing ends an audit with what to grant: brokers hide a topic, and hidden is neither deleted nor equal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.changes import after, error
from tests.support.record_batches import batch
from tests.verify.mirrored import Mirrored, kafka_text

from shallow_mirror.checkpoints import DecidedSegment
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.types import Segment, SegmentKind, SlotTxn, SourcePartition, TargetPartition
from shallow_mirror.verify import DifferenceKind, Unchecked

HIDDEN = error(29, ("orders", -1))


@pytest.fixture
def copied(tmp_path: Path) -> Iterator[Mirrored]:
    with Mirrored(tmp_path) as mirrored:
        mirrored.mirror(batch(0, 10), batch(10, 5))
        yield mirrored


def copy_topic(mirrored: Mirrored, name: str) -> None:
    """One batch of five records, beside `orders`."""
    made = batch(0, 5)
    for cluster in (mirrored.source, mirrored.target):
        cluster.create_topic(name)
        cluster.seed((name, 0), made)
    source, target = (kafka_text(cluster.topic_ids[name]) for cluster in (mirrored.source, mirrored.target))
    row = Segment(
        source=SourcePartition(name, source, 0), source_start=0, source_end=5, kind=SegmentKind.DATA,
        target=TargetPartition(name, target, 0), target_start=0, target_end=5, record_count=5, batch_count=1, size_bytes=len(made),
    )  # fmt: skip
    mirrored.owner.next_decision()
    mirrored.owner.decide([DecidedSegment(row, SlotTxn("m-1", 5_000, 0))], highest_slot=1)
    mirrored.owner.settle()


@pytest.mark.parametrize(("side", "where"), [("source", "source cluster east"), ("target", "target cluster west")])
def test_a_hidden_topic_is_neither_equal_nor_missing_and_is_named_with_its_cluster(
    copied: Mirrored, side: str, where: str
) -> None:
    getattr(copied, side).change_always("Metadata", HIDDEN)
    with pytest.raises(ConfigError) as caught:
        copied.verify()
    assert caught.value.problems == (f"{where}: topic orders: TOPIC_AUTHORIZATION_FAILED: grant Read on topic orders",)


@pytest.mark.slow
def test_what_either_side_hides_is_reported_at_once(copied: Mirrored) -> None:
    copied.source.change_always("Metadata", HIDDEN)
    copied.target.change_always("Metadata", HIDDEN)
    with pytest.raises(ConfigError) as caught:
        copied.verify()
    assert [problem.split(":")[0] for problem in caught.value.problems] == ["source cluster east", "target cluster west"]


@pytest.mark.slow
def test_a_hidden_topic_that_is_not_to_be_verified_does_not_matter(copied: Mirrored) -> None:
    copy_topic(copied, "secret")
    copied.source.change_always("Metadata", error(29, ("secret", -1)))
    copied.target.change_always("Metadata", error(29, ("secret", -1)))
    report = copied.verify(topics=["orders"])
    assert (report.is_equal, report.record_count) == (True, 15)
    with pytest.raises(ConfigError, match="topic secret: TOPIC_AUTHORIZATION_FAILED"):
        copied.verify()


@pytest.mark.slow
def test_a_topic_that_was_deleted_is_reported_as_such(copied: Mirrored) -> None:
    copy_topic(copied, "other")
    copied.source.delete_topic("orders")
    copied.target.delete_topic("other")
    report = copied.verify()
    assert report.unchecked == {Unchecked.SOURCE_TOPIC_GONE: 15}
    assert [(difference.kind, difference.target.topic) for difference in report.differences if difference.target] == [
        (DifferenceKind.MISSING, "other")
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("code", "expected"), [(-1, ConfigError), (5, RetriableError)])
def test_no_other_error_is_taken_for_a_deleted_topic(copied: Mirrored, code: int, expected: type[Exception]) -> None:
    copied.source.change_always("Metadata", error(code, ("orders", -1)))
    with pytest.raises(expected, match="source cluster east"):
        copied.verify()


@pytest.mark.slow
@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(("api", "topic_partition"), [("Fetch", ("orders", 0)), ("DescribeConfigs", ("orders", -1))])
def test_a_topic_that_is_listed_but_not_to_be_read_is_reported_with_its_cluster(
    copied: Mirrored, api: str, topic_partition: tuple[str, int], side: str
) -> None:
    cluster = getattr(copied, side)
    cluster.change_always(api, error(29, topic_partition))
    with pytest.raises(
        ConfigError, match=rf"the cluster at {re.escape(cluster.bootstrap)} answered TOPIC_AUTHORIZATION_FAILED: grant"
    ):
        copied.verify()


@pytest.mark.slow
def test_a_topic_that_the_mirror_begins_meanwhile_is_verified_and_not_taken_for_deleted(copied: Mirrored) -> None:
    copied.target.change("Metadata", after(lambda: copy_topic(copied, "late")))
    report = copied.verify()
    assert (report.is_equal, report.record_count, report.topics) == (True, 20, ("late", "orders"))
