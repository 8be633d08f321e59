"""The little of Spark that a restore needs, in the process of the test: slots run one after the other, and nothing is pickled."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import pyarrow as pa

Function = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


class InlineSession:
    """Stands in for a `SparkSession`."""

    version = "4.2"
    defaultParallelism = 2  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        self.sparkContext = self
        self.environment: dict[str, str] = {}

    def getConf(self) -> Mapping[str, str]:  # noqa: N802
        return {}

    def range(self, start: int, end: int, _step: int, _partitions: int) -> Any:
        return _Numbers(range(start, end))


class _Numbers:
    """Stands in for a DataFrame of numbers, each in a partition of its own."""

    def __init__(self, numbers: range) -> None:
        self._numbers = numbers

    def mapInArrow(self, function: Function, _schema: str) -> Self:  # noqa: N802
        self._function = function
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        rows = (pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int64())}) for number in self._numbers)
        results = [batch for row in rows for batch in self._function(iter([row]))]
        return pa.Table.from_batches(results, pa.schema([("body", pa.binary())]))
