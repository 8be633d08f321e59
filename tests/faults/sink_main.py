"""Two queries with DataFrame sinks in one process, of which the first knocks at a gate at every point it passes.

The document names them under `queries`: `sink` holds arguments of `ExactlyOnceKafkaSink`, `source` options of `NumbersSource`.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from tests.faults import without_spark
from tests.faults.sink_numbers import partition_of, slot_of, value_of
from tests.faults.steps import SLOTS
from tests.support.inline_frames import QuerySession, TaskOfSlot

from shallow_mirror import ExactlyOnceKafkaSink, local_session
from shallow_mirror.commands.options import EXIT_ERROR, exit_code_of
from shallow_mirror.errors import FencedError, MirrorError
from shallow_mirror.logging_setup import begin_logging, print_error
from shallow_mirror.sinks import Observer, observe_nothing

_POLL_S = 0.1
_SCHEMA = {"value": "binary", "partition": "int"}
_log = logging.getLogger(__name__)


class NumbersSource(DataSource):  # type: ignore[misc]
    """Numbers from `start` on, `rows` of them in each micro-batch. Every slot is an input partition."""

    @classmethod
    def name(cls) -> str:
        return "numbers"

    def schema(self) -> str:
        return ", ".join(f"{column} {kind}" for column, kind in _SCHEMA.items())

    def streamReader(self, schema: object) -> NumbersReader:  # noqa: N802 - Spark's name
        return NumbersReader(self.options["name"], int(self.options["start"]), int(self.options["rows"]))


class NumbersReader(DataSourceStreamReader):  # type: ignore[misc]
    def __init__(self, name: str, start: int, rows: int) -> None:
        self._name, self._start, self._rows = name, start, rows

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name, as those below
        return {"end": self._start}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:  # noqa: N802
        return {"end": start["end"] + self._rows}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition((start["end"], end["end"], slot)) for slot in range(SLOTS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        start, end, slot = partition.value
        numbers = [number for number in range(start, end) if slot_of(number) == slot]
        values = pa.array([value_of(self._name, number).encode() for number in numbers], pa.binary())
        partitions = pa.array([partition_of(number) for number in numbers], pa.int32())
        yield pa.RecordBatch.from_arrays([values, partitions], list(_SCHEMA))

    def commit(self, end: dict[str, int]) -> None:
        return None


class _Frame:
    """What a sink needs of a DataFrame beyond those of `without_spark`."""

    dtypes = tuple(_SCHEMA.items())

    def __init__(self, planned: Any, session: QuerySession) -> None:
        self._planned, self.sparkSession = planned, session

    def select(self, *columns: str) -> Self:
        assert columns == tuple(_SCHEMA)
        return self

    def coalesce(self, slots: int) -> Self:
        assert slots >= SLOTS
        return self

    def mapInArrow(self, function: Callable[[Any], Any], schema: str) -> Any:  # noqa: N802 - Spark's name
        return self._planned.mapInArrow(_Task(function), schema)


@dataclass(frozen=True, slots=True)
class _Task:
    """The function of a slot, in a process that has no task of Spark's. The slot is that of its rows."""

    function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        rows = list(batches)
        TaskContext._taskContext = TaskOfSlot(slot_of(int(rows[0]["value"][0].as_py().split(b"/")[1])))
        yield from self.function(iter(rows))


@dataclass(slots=True)
class RunningQuery:
    """A query, its sink, and the error that ended it."""

    sink: ExactlyOnceKafkaSink
    checkpoint: Path
    knock: Observer
    pause_s: float
    is_inline: bool
    query: Any = None
    error: MirrorError | None = None

    def start(self, spark: Any, source: Mapping[str, Any]) -> None:
        self.checkpoint.mkdir(parents=True, exist_ok=True)
        options = {name: str(value) for name, value in source.items()}
        builder = spark.readStream.format(NumbersSource.name()).options(**options).load().writeStream.foreachBatch(self.write)
        self.query = builder.option("checkpointLocation", str(self.checkpoint)).trigger(processingTime="0 seconds").start()

    def write(self, rows: Any, batch_id: int) -> None:
        self.knock("Planned")
        time.sleep(self.pause_s)
        try:
            self.sink(_Frame(rows, self._session(batch_id)) if self.is_inline else rows, batch_id)
        except MirrorError as error:
            self.error = error
            raise
        self.knock("Returned")

    def _session(self, batch_id: int) -> QuerySession:
        """Return a session that tells what Spark's does in the thread of a query."""
        metadata = self.checkpoint / "metadata"
        if not metadata.exists():
            metadata.write_text(str(uuid.uuid4()))
        offsets = (self.checkpoint / "offsets" / str(batch_id)).read_text()
        return QuerySession(metadata.read_text(), {batch_id: offsets})

    def has_ended(self) -> bool:
        try:
            return bool(self.query.awaitTermination(_POLL_S))
        except StreamingQueryException as error:
            _log.error("query %s ended: %s", self.sink.config.name, error)
            if self.error is not None:
                print_error(self.error)
            return True

    @property
    def exit_code(self) -> int:
        return EXIT_ERROR if self.error is None else exit_code_of(self.error)


def run(document: Mapping[str, Any], knock: Observer, session: Any, log_file: Path) -> int:
    """Run the queries until SIGTERM, or until one ends; return the exit code. A neighbour that was fenced ends alone."""
    begin_logging("text", logging.INFO)
    is_stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_stopped.set())
    spark = local_session("sink", log_file=log_file, archives_classes=True) if session is None else session
    spark.dataSource.register(NumbersSource)
    queries = []
    for number, query in enumerate(document["queries"]):
        observer = observe_nothing if number else knock
        running = RunningQuery(
            ExactlyOnceKafkaSink(observer=observer, **query["sink"]),
            Path(query["checkpoint"]),
            observer,
            pause_s=query["pause_s"],
            is_inline=isinstance(session, without_spark.Session),
        )
        running.start(spark, query["source"])
        queries.append(running)
    code = _exit_code(queries, is_stopped)
    # Also behind an error: threads of a query that still runs would log to a standard error that the interpreter has closed.
    is_held = not is_stopped.is_set() and not queries[0].has_ended()  # at the gate: it would not stop
    for running in queries[is_held:]:
        running.query.stop()
        running.sink.close()
    if session is None:
        spark.stop()
    sys.stderr.flush()
    return code


def _exit_code(queries: Sequence[RunningQuery], is_stopped: threading.Event) -> int:
    first, *neighbours = queries
    while not is_stopped.is_set():
        if first.has_ended():
            return first.exit_code
        for neighbour in [*neighbours]:
            if neighbour.has_ended():
                if not isinstance(neighbour.error, FencedError):
                    return neighbour.exit_code
                neighbours.remove(neighbour)
    return 0
