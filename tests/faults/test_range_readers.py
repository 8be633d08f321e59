"""librdkafka and the Java client on real brokers: what they see of fillers, and of a target that is bad."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.faults.offset_audit import OffsetAudit
from tests.faults.range_readers import JavaReader, JavaReaderError, read_with_librdkafka
from tests.readers.written_log import WrittenLog
from tests.support.mirror_runs import create_topic

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.types import IsolationLevel, TopicPartition

pytestmark = [pytest.mark.brokers, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaReader]:
    with JavaReader(tmp_path_factory.mktemp("java")) as reader:
        yield reader


def test_both_readers_see_records_at_their_offsets_and_no_fillers(two_clusters: Any, java: JavaReader) -> None:
    bootstrap = two_clusters.target.bootstrap
    target = Cluster(ClientConfig.from_properties({"bootstrap.servers": bootstrap}))
    try:
        log = WrittenLog(target.config, target, f"seen-{time.time_ns()}", {})
        log.add_fillers(3)
        log.add_records(["a", "b"])
        log.add_mixed([0, 4], ["c", "d"])
        log.add_fillers(5)
    finally:
        target.close()
    expected = [record.offset for record in log.records]
    for read in (read_with_librdkafka, java.read):
        for isolation in IsolationLevel:
            ranges = {log.key: (0, log.end)}
            assert read(bootstrap, isolation, ranges)[log.key].offsets.tolist() == expected
            assert read(bootstrap, isolation, {log.key: (4, log.end)})[log.key].offsets.tolist() == expected[1:]


def test_a_target_with_one_more_record_is_found_by_both_readers_in_both_levels(two_clusters: Any, java: JavaReader) -> None:
    source, target = two_clusters.source.bootstrap, two_clusters.target.bootstrap
    key = TopicPartition(f"audited-{time.time_ns()}", 0)
    for bootstrap, names in ((source, ["a", "b", "c"]), (target, ["a", "foreign", "b", "c"])):
        create_topic(bootstrap, key.topic)
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        for name in names:
            producer.produce(key.topic, name, partition=0, timestamp=1_700_000_000_000, headers=[("h", None), ("h", b"x")])
        assert producer.flush(30) == 0
    readers = {"librdkafka": read_with_librdkafka, "Java client": java.read}
    good = OffsetAudit(source, source, readers)
    assert good.differences_of_everything({key: 3}) == []
    differences = OffsetAudit(source, target, readers).differences_of_everything({key: 3})
    for name in readers:
        for isolation in IsolationLevel:
            own = [difference for difference in differences if difference.endswith(f"({name}, {isolation.value})")]
            assert sorted({difference.partition(":")[0] for difference in own}) == ["extra", "lost", "offset"]
    assert [difference for difference in differences if difference.startswith("end")] == [
        f"end: {key}: the log ends at 3 and at 4 on the target ({isolation.value})" for isolation in IsolationLevel
    ]


def test_a_java_program_that_ends_says_why(two_clusters: Any, java: JavaReader) -> None:
    missing = TopicPartition("has:colon", 0)
    with pytest.raises(JavaReaderError, match="NumberFormatException"):
        java.read(two_clusters.source.bootstrap, IsolationLevel.READ_COMMITTED, {missing: (0, 1)})
