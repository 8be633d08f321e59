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
    assert {(one.topic_partition.topic, one.topic_partition.partition) for one in made} == {
        (topic, partition) for topic, partitions in TOPICS.items() for partition in range(partitions)
    }
    assert any(one.key is None for one in made)
    assert any(one.value is None for one in made)
    assert any(one.value == b"" for one in made)
    assert any(("none", None) in one.headers and ("empty", b"") in one.headers for one in made)
    assert any(not one.headers for one in made)
    assert any(one.timestamp_ms > after.timestamp_ms for one, after in itertools.pairwise(made))


def test_two_hundred_thousand_records_are_many_micro_batches() -> None:
    made = records(1)
    mean_bytes = sum(len(one.value or b"") for one in made) / len(made)
    assert mean_bytes * 200_000 > 50e6
