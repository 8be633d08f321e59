"""The little of Spark that a mirror needs, so that a start costs a second instead of ten: for many rounds, of everything else.

The same data source plans, the same sink decides and ends, and slots run in processes of their own, which are kept. What
stands in for Spark is the loop between them and its checkpoint: planned offsets are written before a micro-batch, its number
after it, and one that was not finished is planned again.
"""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.datasource import ReadAllAvailable

_log = logging.getLogger(__name__)

_IDLE_S = 0.05
_AFTERLIFE_S = 1.0


class Session:
    """Stands in for a `SparkSession`: what `Mirror.run` asks of one."""

    version = "4.2"

    def __init__(self, workers: int) -> None:
        self.workers = self.executor(workers)
        self.defaultParallelism = workers
        self.sparkContext = self.dataSource = self
        self.sources: dict[str, Any] = {}
        self.environment: dict[str, str] = {}
        """Of workers that are yet to start: here they all have this process's."""

    @staticmethod
    def executor(workers: int) -> Executor:
        """Return what runs the slots."""
        pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork"), initializer=_end_after_the_driver)
        pool.submit(os.getpid).result()  # all are forked by it, before there is a thread or a Delta table
        return pool

    def getConf(self) -> Mapping[str, str]:  # noqa: N802 - Spark's name
        return {}

    def createDataFrame(self, rows: Sequence[Any], schema: str) -> None:  # noqa: N802 - Spark's name
        """Do nothing: a mirror calls this to make its session the active one of the thread."""

    def register(self, source: Any) -> None:
        self.sources[source.name()] = source

    @property
    def readStream(self) -> _Builder:  # noqa: N802
        return _Builder(self)

    def range(self, start: int, end: int, _step: int, _partitions: int) -> _Planned:
        """Return the numbers, each in a partition of its own."""
        return _Planned(self.workers, _Numbers(), range(start, end))


class _Numbers:
    """Stands in for the reader of `spark.range`."""

    def read(self, number: int) -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"id": pa.array([number], pa.int64())})


class StreamBuilder:
    """`spark.readStream.….writeStream.….start()`, up to what depends on the query."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self.writeStream = self

    def format(self, name: str) -> Self:
        self._source = self._session.sources[name]
        return self

    def options(self, **options: str) -> Self:
        self._reader = self._source(options).streamReader(None)
        return self

    def load(self) -> Self:
        return self

    def foreachBatch(self, sink: Callable[[Any, int], None]) -> Self:  # noqa: N802
        self._sink = sink
        return self


class _Builder(StreamBuilder):
    def option(self, name: str, value: str) -> Self:
        assert name == "checkpointLocation"
        self._checkpoint = _Checkpoint(Path(value))
        return self

    def trigger(self, **trigger: object) -> Self:
        self._is_available_now = "availableNow" in trigger
        return self

    def start(self) -> _Query:
        return _Query(self._session.workers, self._reader, self._sink, self._checkpoint, self._is_available_now)


class _Checkpoint:
    """`offsets/n` holds where micro-batch n begins and ends; `commits/n` says that it is done."""

    def __init__(self, folder: Path) -> None:
        self._offsets, self._commits = folder / "offsets", folder / "commits"
        for each in (self._offsets, self._commits):
            each.mkdir(parents=True, exist_ok=True)

    def last_planned(self) -> tuple[int, dict[str, Any], dict[str, Any]] | None:
        numbers = [int(path.name) for path in self._offsets.iterdir() if path.name.isdigit()]
        if not numbers:
            return None
        start, end = json.loads((self._offsets / str(max(numbers))).read_text())
        return max(numbers), start, end

    def is_done(self, number: int) -> bool:
        return (self._commits / str(number)).exists()

    def plan(self, number: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        unfinished = self._offsets / f".{number}-{os.getpid()}"  # another run may plan the same one
        unfinished.write_text(json.dumps([start, end]))
        unfinished.rename(self._offsets / str(number))

    def done(self, number: int) -> None:
        (self._commits / str(number)).touch()


class _Query:
    """One thread, as Spark's: plan, hand to the sink, note, again."""

    def __init__(
        self, workers: Executor, reader: Any, sink: Callable[[Any, int], None], checkpoint: _Checkpoint, is_available_now: bool
    ) -> None:
        self._is_available_now = is_available_now
        self._workers, self._reader, self._sink, self._checkpoint = workers, reader, sink, checkpoint
        self._stop = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="query", daemon=True)
        self._thread.start()

    def awaitTermination(self, timeout_s: float) -> bool:  # noqa: N802
        self._thread.join(timeout_s)
        if self._failure is not None:
            notes = getattr(self._failure, "__notes__", ())  # Python prints them behind the message, and Spark passes on the text
            raise StreamingQueryException("\n".join([str(self._failure), *notes])) from self._failure
        return not self._thread.is_alive()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            number, start = self._take_up()
            if self._is_available_now:
                self._reader.prepareForTriggerAvailableNow()
            while not self._stop.is_set():
                end = self._reader.latestOffset(start, ReadAllAvailable())
                if end == start:
                    if self._is_available_now:
                        return
                    self._stop.wait(_IDLE_S)
                    continue
                self._checkpoint.plan(number, start, end)
                self._micro_batch(number, start, end)
                number, start = number + 1, end
        except Exception as error:  # noqa: BLE001 - raised again by `awaitTermination`, as Spark does
            _log.info("the query ends on %r", error)
            self._failure = error

    def _take_up(self) -> tuple[int, dict[str, Any]]:
        last = self._checkpoint.last_planned()
        if last is None:
            return 0, self._reader.initialOffset()
        number, start, end = last
        if not self._checkpoint.is_done(number):
            self._micro_batch(number, start, end)
        return number + 1, end

    def _micro_batch(self, number: int, start: dict[str, Any], end: dict[str, Any]) -> None:
        self._sink(_Planned(self._workers, self._reader, self._reader.partitions(start, end)), number)
        self._checkpoint.done(number)


class _Planned:
    """Stands in for the DataFrame of a micro-batch."""

    def __init__(self, workers: Executor, reader: Any, partitions: Sequence[Any]) -> None:
        self._workers, self._reader, self._partitions = workers, reader, partitions

    def mapInArrow(self, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], _schema: str) -> Self:  # noqa: N802
        self._function = cloudpickle.dumps(function)
        return self

    def toArrow(self) -> pa.Table:  # noqa: N802
        running = [
            self._workers.submit(_run_slot, self._function, list(self._reader.read(partition))) for partition in self._partitions
        ]
        results = [batch for future in running for batch in future.result()]
        return pa.Table.from_batches(results, pa.schema([("body", pa.binary())]))


def _end_after_the_driver() -> None:
    """As Spark's workers do: what they are at goes on for a moment."""
    driver = multiprocessing.parent_process()
    assert driver is not None

    def end() -> None:
        driver.join()
        time.sleep(_AFTERLIFE_S)
        os._exit(1)

    threading.Thread(target=end, name="driver", daemon=True).start()


def _run_slot(function: bytes, rows: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(cloudpickle.loads(function)(iter(rows)))
