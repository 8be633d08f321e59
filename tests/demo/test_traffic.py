from __future__ import annotations

import itertools
import random

from shallow_mirror.demo.traffic import TOPICS, RecordMaker, TrafficRecord


def records(seed: int, count: int = 4000) -> list[TrafficRecord]:
    maker = RecordMaker(random.Random(seed))
    return list(itertools.chain.from_iterable(maker.chunk(50) for _ in range(count // 50)))


def test_a_seed_gives_the_same_records_and_another_seed_others() -> None:
    assert records(1, 200) == records(1, 200)
    assert records(1, 200) != records(2, 200)


def test_every_partition_and_every_odd_record_occurs() -> None:
    made = records(1)
    assert {(record.topic_partition.topic, record.topic_partition.partition) for record in made} == {
        (topic, partition) for topic, partitions in TOPICS.items() for partition in range(partitions)
    }
    assert any(record.key is None for record in made)
    assert any(record.value is None for record in made)
    assert any(record.value == b"" for record in made)
    assert any(("none", None) in record.headers and ("empty", b"") in record.headers for record in made)
    assert any(not record.headers for record in made)
    assert any(record.timestamp_ms > after.timestamp_ms for record, after in itertools.pairwise(made))


def test_two_hundred_thousand_records_are_many_micro_batches() -> None:
    made = records(1)
    mean_bytes = sum(len(record.value or b"") for record in made) / len(made)
    assert mean_bytes * 200_000 > 50e6
