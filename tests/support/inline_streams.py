"""The little of Spark that a mirror needs, in one thread: the query goes on by a micro-batch whenever the run looks at it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Self

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable
from tests.faults.without_spark import StreamBuilder
from tests.support.inline_session import Function
from tests.support.own_worker_clients import own_worker_clients

from shallow_mirror.broker import Cluster
from shallow_mirror.streaming.sources import planner_options

MOST_MICRO_BATCHES = 200


@dataclass
class Checkpoint:
    """Spark's: what each micro-batch was planned to copy, and which of them are done."""

    planned: list[tuple[dict[str, Any], dict[str, Any]]] = field(default_factory=list)
    done: int = 0

    def copy(self) -> Checkpoint:
        return Checkpoint(list(self.planned), self.done)


class InlineStreams:
    """Stands in for a `SparkSession`. `on_idle`: called where a query has nothing to copy and does not end."""

    version = "4.2"
    defaultParallelism = 2  # noqa: N815 - Spark's name

    def __init__(self, checkpoints: dict[str, Checkpoint], on_idle: Callable[[], None]) -> None:
        self.sparkContext = self.dataSource = self
        self.environment: dict[str, str] = {}
        self.sources: dict[str, Any] = {}
        self.checkpoints, self.on_idle = checkpoints, on_idle

    def getConf(self) -> Mapping[str, str]:  # noqa: N802
        return {}

    def createDataFrame(self, rows: Any, schema: str) -> None:  # noqa: N802
        """Do nothing: a mirror calls this to make its session the active one of the thread."""

    def register(self, source: Any) -> None:
        self.sources[source.name()] = source

    @property
    def readStream(self) -> _Builder:  # noqa: N802
        return _Builder(self)

    def range(self, start: int, end: int, _step: int, _partitions: int) -> _Planned:
        rows = [pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int64())}) for number in range(start, end)]
        return _Planned([[row] for row in rows])


@contextmanager
def inline_streams() -> Iterator[InlineStreams]:
    """Yield a session for runs between real clusters. Connections of planners and tasks are closed at the end."""
    made: list[Cluster] = []
    make_planner = planner_options.make_micro_batch_planner

    def make_planner_of_query(config: Any, client: Any, *arguments: Any, **more: Any) -> Any:
        made.append(Cluster(client))
        return make_planner(config, client, *arguments, **more | {"cluster": made[-1]})

    with pytest.MonkeyPatch.context() as patch, own_worker_clients():
        patch.setattr(planner_options, "make_micro_batch_planner", make_planner_of_query)
        yield InlineStreams({}, on_idle=lambda: time.sleep(0.05))
    for cluster in made:
        cluster.close()


class _Builder(StreamBuilder):
    def option(self, name: str, value: str) -> Self:
        assert name == "checkpointLocation"
        self._checkpoint = self._session.checkpoints.setdefault(value, Checkpoint())
        return self

    def trigger(self, **trigger: object) -> Self:
        self._is_available_now = "availableNow" in trigger
        return self

    def start(self) -> _Query:
        on_idle = None if self._is_available_now else self._session.on_idle
        return _Query(self._reader, self._sink, self._checkpoint, on_idle)


class _Query:
    def __init__(
        self, reader: Any, sink: Callable[[Any, int], None], checkpoint: Checkpoint, on_idle: Callable[[], None] | None
    ) -> None:
        """`on_idle` None: the query ends where it is idle."""
        self._reader, self._sink, self._checkpoint, self._on_idle = reader, sink, checkpoint, on_idle
        self._start: dict[str, Any] | None = None
        self._left = MOST_MICRO_BATCHES

    def awaitTermination(self, _timeout_s: float) -> bool:  # noqa: N802
        """Do one micro-batch; return whether everything of the start is copied."""
        try:
            return self._go_on()
        except Exception as error:
            notes = getattr(error, "__notes__", ())  # Python prints them behind the message, and Spark passes on the text
            raise StreamingQueryException("\n".join([str(error), *notes])) from error

    def stop(self) -> None:
        """Nothing runs between two calls."""

    def _go_on(self) -> bool:
        checkpoint = self._checkpoint
        if self._start is None:
            self._start = self._take_up()
            if self._on_idle is None:
                self._reader.prepareForTriggerAvailableNow()
        end = self._reader.latestOffset(self._start, ReadAllAvailable())
        if end == self._start:
            if self._on_idle is None:
                return True
            self._on_idle()
            return False
        self._left -= 1
        assert self._left, "the query goes on for ever"
        checkpoint.planned.append((self._start, end))
        self._micro_batch(len(checkpoint.planned) - 1)
        self._start = end
        return False

    def _take_up(self) -> dict[str, Any]:
        checkpoint = self._checkpoint
        if not checkpoint.planned:
            return dict(self._reader.initialOffset())
        if checkpoint.done < len(checkpoint.planned):
            self._micro_batch(len(checkpoint.planned) - 1)
        return checkpoint.planned[-1][1]

    def _micro_batch(self, number: int) -> None:
        start, end = self._checkpoint.planned[number]
        partitions = self._reader.partitions(start, end)
        self._sink(_Planned([list(self._reader.read(partition)) for partition in partitions]), number)
        self._checkpoint.done = number + 1


class _Planned:
    """Stands in for the DataFrame of a micro-batch: the rows of each partition."""

    def __init__(self, partitions: list[list[pa.RecordBatch]]) -> None:
        self._partitions = partitions

    def mapInArrow(self, function: Function, _schema: str) -> Self:  # noqa: N802
        self._function = function
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        results = [batch for rows in self._partitions for batch in self._function(iter(rows))]
        return pa.Table.from_batches(results, pa.schema([("body", pa.binary())]))
