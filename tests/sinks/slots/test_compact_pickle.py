"""What tasks are told of thousands of partitions arrives as it was sent."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from pyspark import cloudpickle

from shallow_mirror.sinks.slots.slot_job import CompactDict
from shallow_mirror.types import EpochEnd, SourcePartition, TopicPartition

SOURCES = [SourcePartition("orders", "idA", number) for number in range(3)]


@pytest.mark.parametrize(
    ("key", "value", "items"),
    [
        (SourcePartition, int, {source: number for number, source in enumerate(SOURCES)}),
        (SourcePartition, EpochEnd, {source: EpochEnd(number, 10) for number, source in enumerate(SOURCES)}),
        (TopicPartition, int, {source.topic_partition: 5 for source in SOURCES}),
        (TopicPartition, int, {}),
    ],
)
def test_names_and_values_are_of_their_types_again(key: Any, value: Any, items: dict[Any, Any]) -> None:
    arrived = pickle.loads(cloudpickle.dumps({"known": CompactDict(items, key, value)}))["known"]
    assert arrived == items
    assert {type(key_found) for key_found in arrived} == ({key} if items else set())
    assert {type(value_found) for value_found in arrived.values()} == ({value} if items else set())
    assert pickle.loads(pickle.dumps(arrived)) == items
