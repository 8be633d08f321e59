from __future__ import annotations

from statistics import fmean

import pytest
from tests.faults.three_brokers import LOAD
from tests.faults.writers import LIGHT, WriteLoad, Writer, kinds

from shallow_mirror.types import TopicPartition


@pytest.mark.parametrize("load", [LIGHT, LOAD])
def test_values_have_the_mean_size_that_the_pace_of_writers_assumes(load: WriteLoad) -> None:
    writer = Writer("127.0.0.1:1", kinds("w")[0], [TopicPartition("orders", 0)], load=load, seed=1)
    sizes = [len(writer._value()) for _ in range(4000)]
    assert fmean(sizes) == pytest.approx(load.mean_value_bytes, rel=0.05)
    assert max(sizes) <= load.random_bytes * load.repeats
