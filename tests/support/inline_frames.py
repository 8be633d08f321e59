"""The little of Spark that a DataFrame sink needs, in the process of the test: slots run one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from tests.fakes.strict_broker import StrictCluster
from tests.support.inline_session import Function, InlineSession

from shallow_mirror import ExactlyOnceKafkaSink, Record, TopicPartition, open_batch
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.wire import CONTROL_BIT

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", HEADERS),
        ("partition", pa.int32()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
    ]
)
_TYPES = {
    "topic": "string",
    "key": "binary",
    "value": "binary",
    "headers": "array<struct<key:string,value:binary>>",
    "partition": "int",
    "timestamp": "timestamp",
}

Row = Mapping[str, Any]


class QuerySession(InlineSession):
    """A session in whose thread a micro-batch of a query runs. `offsets`: by batch id, as Spark has logged them."""

    def __init__(self, query_id: str | None, offsets: Mapping[int, str]) -> None:
        super().__init__()
        self._query_id, self._offsets = query_id, offsets
        self.runs = 0
        self._jsparkSession = self._jvm = self.java = self.util = self.UUID = self

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802 - Spark's name
        return self._query_id if name == "sql.streaming.queryId" else f"run {self.runs}"

    # --- as Java's objects are called on the way to the log of offsets ---

    def sharedState(self) -> QuerySession:  # noqa: N802
        return self

    def activeStreamingQueries(self) -> Mapping[str | None, QuerySession]:  # noqa: N802
        return {self._query_id: self}

    def fromString(self, text: str) -> str:  # noqa: N802
        return text

    def offsetLog(self) -> Mapping[int, _Option]:  # noqa: N802
        return {batch_id: _Option(text) for batch_id, text in self._offsets.items()} | {-1: _Option(None)}


class _Option:
    def __init__(self, text: str | None) -> None:
        self._text = text

    def isDefined(self) -> bool:  # noqa: N802
        return self._text is not None

    def get(self) -> _Option:
        return self

    def toString(self) -> str | None:  # noqa: N802
        return self._text


class TaskOfSlot:
    """Stands in for the context of a task."""

    def __init__(self, partition: int, attempt: int = 0) -> None:
        self._partition, self._attempt = partition, attempt

    def partitionId(self) -> int:  # noqa: N802
        return self._partition

    def attemptNumber(self) -> int:  # noqa: N802
        return self._attempt


class InlineFrame:
    """Stands in for a DataFrame. `slots`: the rows of each input partition. `evaluations`: how often it was evaluated.

    `before_slot` is called with the number of a slot in front of its task.
    """

    def __init__(
        self,
        *slots: Sequence[Row],
        columns: Sequence[str] = ("key", "value"),
        session: InlineSession | None = None,
        before_slot: Callable[[int], None] = lambda _slot: None,
    ) -> None:
        self._slots, self._columns = slots, columns
        self.sparkSession = QuerySession(None, {}) if session is None else session
        self.dtypes = [(name, _TYPES[name]) for name in columns]
        self.before_slot = before_slot
        self.evaluations = 0

    def select(self, *columns: str) -> InlineFrame:
        self._columns = columns
        return self

    def coalesce(self, slots: int) -> InlineFrame:
        assert len(self._slots) <= slots
        return self

    def mapInArrow(self, function: Function, _schema: str) -> InlineFrame:  # noqa: N802
        self._function = function
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        self.evaluations += 1
        answers: list[pa.RecordBatch] = []
        before = TaskContext._taskContext
        try:
            for slot, rows in enumerate(self._slots):
                TaskContext._taskContext = TaskOfSlot(slot)
                self.before_slot(slot)
                answers += self._function(self._batches(rows))
        finally:
            TaskContext._taskContext = before
        return pa.Table.from_batches(answers, pa.schema([("body", pa.binary())]))

    def _batches(self, rows: Sequence[Row]) -> Iterator[pa.RecordBatch]:
        """Yield them two at a time."""
        schema = pa.schema([SCHEMA.field(name) for name in self._columns])
        for start in range(0, len(rows), 2):
            part = rows[start : start + 2]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array([row.get(name) for row in part], field.type)
                    for name, field in zip(self._columns, schema, strict=True)
                ],
                schema=schema,
            )


def rows_of(*texts: str, **columns: Any) -> list[Row]:
    """Return a row for each text, which is its value and its key."""
    return [{"key": text.encode(), "value": text.encode(), **columns} for text in texts]


def sink_to(
    target: StrictCluster, tables: object, observer: Observer = observe_nothing, **arguments: Any
) -> ExactlyOnceKafkaSink:
    client = {"bootstrap.servers": target.bootstrap, "request.timeout.ms": 2000}
    settings: dict[str, Any] = {"name": "sink", "client": client, "tables": str(tables), "topic": "out", "slots": 4}
    return ExactlyOnceKafkaSink(observer=observer, **settings | arguments)


def committed(target: StrictCluster, topic: str = "out") -> list[list[Record]]:
    """Return the records of each partition of a topic that readers of committed records see."""
    partitions = sorted(partition for name, partition in target.logs if name == topic)
    return [_committed_in(target, TopicPartition(topic, partition)) for partition in partitions]


def _committed_in(target: StrictCluster, topic_partition: TopicPartition) -> list[Record]:
    log = target.log(*topic_partition)
    return [
        record
        for batch in log.batches
        if not batch.header.attributes & CONTROL_BIT
        and batch.header.base_offset < log.last_stable_offset
        and not any(
            gone.producer_id == batch.header.producer_id and gone.first_offset <= batch.header.base_offset <= gone.last_offset
            for gone in log.aborted
        )
        for record in open_batch(memoryview(batch.data), topic_partition, max_bytes=1 << 20)
    ]


def texts(target: StrictCluster, topic: str = "out") -> list[str]:
    """Return the values of all partitions, in order of offsets."""
    return [bytes(record.value or b"").decode() for records in committed(target, topic) for record in records]
