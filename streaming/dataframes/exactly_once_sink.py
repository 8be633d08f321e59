"""Driver: `ExactlyOnceKafkaSink`: any DataFrame to Kafka, exactly once (docs/design/dataframe-sink.md)."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import reach
from shallow_mirror.checkpoints import newest_batch_of
from shallow_mirror.checkpoints.ledger import LedgerOwner, RunIdentity
from shallow_mirror.checkpoints.tables import WRITTEN_RECORDS_LAYOUT, Comparison, TableStorage
from shallow_mirror.config import SinkConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    ConfigError,
    MicroBatchInDoubtError,
    OlderTablesError,
    OutcomeUnknownError,
    RecoverNeededError,
    RetriableError,
)
from shallow_mirror.plurals import counted
from shallow_mirror.sinks import Observer, observe_nothing
from shallow_mirror.sinks.kafka import RunGuard, id_count, transactional_ids
from shallow_mirror.sinks.kafka.protocol import TxnFate, TxnPerformer, recover, refuse_used_ids
from shallow_mirror.sinks.records import (
    MicroBatchId,
    RecordedMicroBatch,
    RecordJob,
    RecordSink,
    Written,
    micro_batches_of_receipts,
    plan_micro_batch,
    record_columns,
)
from shallow_mirror.spark_connect import is_connect
from shallow_mirror.streaming.dataframes.streaming_query import micro_batch_of, session_of_worker
from shallow_mirror.streaming.spark.spark_session import check_delta, check_session, parallelism_of
from shallow_mirror.streaming.spark.worker_secrets import pass_secrets_to_workers
from shallow_mirror.streaming.watch.metrics_extra import importing_metrics
from shallow_mirror.wire.columns import Compression

if TYPE_CHECKING:
    from shallow_mirror.streaming.watch.sink_metrics import SinkMetrics

_log = logging.getLogger(__name__)

_NO_SOURCE_CLUSTER = "dataframe"
"""In the place of the id of the source cluster, among the properties of the table."""
_START_MS = 60_000
_BACK_OFF_S = (0.5, 1.0, 2.0, 5.0, 10.0)
_FATES = {"skip": TxnFate.COMMITTED, "repeat": TxnFate.NOT_COMMITTED}


@dataclass(frozen=True, slots=True)
class _Run:
    """The ownership of the table, which lasts as long as this process, and what the driver has opened."""

    identity: RunIdentity
    owner: LedgerOwner
    target: Cluster
    opened: ExitStack
    """The connections, and the port of the metrics."""


class ExactlyOnceKafkaSink:
    """Writes the rows of DataFrames to Kafka so that readers of committed records see each micro-batch once.

        sink = ExactlyOnceKafkaSink(name="enriched", client={"bootstrap.servers": "kafka:9092"}, tables="data/t", topic="orders")
        dataframe.writeStream.foreachBatch(sink).option("checkpointLocation", "data/checkpoint").start()

    Columns are those of Spark's own Kafka sink (key, value, headers, topic, partition), and `timestamp`. Arguments are the
    fields of `SinkConfig`. Nothing is opened before the first micro-batch, or `open`.
    """

    def __init__(self, *, observer: Observer = observe_nothing, **arguments: Any) -> None:
        """Check the arguments. Raises ConfigError with every problem."""
        self.config = SinkConfig.from_arguments(arguments)
        self._observer = observer
        self._starter: Any = None
        """With Spark Connect: the session that has started the query."""
        self._reset()

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._identity = RunIdentity.of_this_process()
        """One for all attempts: a take-over that was written is recognised."""
        self._run: _Run | None = None
        self._sink: RecordSink | None = None
        self._newest: RecordedMicroBatch | None = None
        self._lost: tuple[MicroBatchId, ...] = ()
        """What receipts name, the newest first, while the table is older than the target."""
        self._metrics: SinkMetrics | None = None
        self._tried: MicroBatchId | None = None
        """What this call has begun to write: found decided in a further try, it is this call's."""
        self._called: tuple[str, int] | None = None
        """Run of the query, and batch id, of the last call that returned."""
        self.last: Written | None = None
        """The micro-batch that was written last, by this object."""

    def __getstate__(self) -> Mapping[str, Any]:
        # With Spark Connect foreachBatch calls a copy, in a process of the server.
        return {"config": self.config, "_observer": self._observer}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        self._starter = session_of_worker()
        self._reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __call__(self, rows: Any, batch_id: int) -> None:
        """Write a micro-batch: the function of foreachBatch.

        Raises ConfigError, RecordRefusedError, MicroBatchInDoubtError, FencedError, and after `retry_for` RetriableError.
        """
        batch, run_id = micro_batch_of(rows, batch_id, self.config.name, self._starter)
        if self._called == (run_id, batch_id):
            raise ConfigError(
                f"the sink {self.config.name} was called twice with {batch}, and would leave the second DataFrame out: unite "
                "both, with a column topic, or use a sink with another name"
            )
        self._write(rows, batch)
        self._called = run_id, batch_id

    def write(self, rows: Any, *, job_id: str) -> bool:
        """Write a DataFrame of a batch job. Return False if a job of this id was written before: nothing is evaluated then.

        Raises as a micro-batch.
        """
        return self._write(rows, MicroBatchId(job_id=job_id))

    def open(self, spark: Any) -> None:
        """Take over the table, and resolve what an earlier run has left. Otherwise the first micro-batch does it."""
        with self._lock:
            self._opened(spark)

    def close(self) -> None:
        """Close the connections and the port of the metrics. What is decided is already committed."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        run, self._run, self._sink = self._run, None, None
        self._identity = RunIdentity.of_this_process()
        if run is not None:
            run.opened.close()

    def _write(self, rows: Any, batch: MicroBatchId) -> bool:
        columns = record_columns(rows.dtypes, has_topic=self.config.topic is not None)
        chosen = rows.select(*columns).coalesce(self.config.slots)
        patience = Deadline.after_ms(self.config.retry_for_s * 1000, time.monotonic)
        failures = 0
        with self._lock:
            self._tried = None
            while True:
                try:
                    return self._try(rows.sparkSession, chosen, batch)
                except (RetriableError, OutcomeUnknownError) as error:
                    self._sink = None  # the next try recovers first
                    if patience.is_over():
                        raise
                    _log.warning("%s of sink %s is tried again: %s", batch, self.config.name, error)
                    if self._metrics is not None:
                        self._metrics.retries.inc()
                    time.sleep(_BACK_OFF_S[min(failures, len(_BACK_OFF_S) - 1)])
                    failures += 1
                except BaseException:
                    self._sink = None
                    raise

    def _try(self, spark: Any, rows: Any, batch: MicroBatchId) -> bool:
        began_s = time.monotonic()
        sink = self._opened(spark)
        same = None if self._is_next(batch) else self._recorded(batch)
        plan = plan_micro_batch(batch, self._newest, same, follows=self.config.follows, on_doubt=self.config.on_doubt)
        if plan.is_written and batch == self._tried:
            _log.info("%s was written by the try before", batch)
            return True
        if plan.is_written:
            _log.info("%s was written before", batch)
            if self._metrics is not None:
                self._metrics.replays.inc()
            return False
        self._tried = batch
        written = sink.write(rows, batch, plan)
        if written.rows:
            self.last = written
            if batch.job_id is None:  # of one that was decided before, these are only the rows that were missing
                self._newest = RecordedMicroBatch.of_rows(written.rows) if same is None else self._recorded(batch)
        self._report(written, time.monotonic() - began_s)
        return True

    def _is_next(self, batch: MicroBatchId) -> bool:
        """Return whether a micro-batch comes behind the newest one of its query, so that the table cannot have it."""
        newest = None if self._newest is None else self._newest.id
        return (
            newest is not None
            and None not in (newest.batch_id, batch.batch_id)
            and newest.query_id == batch.query_id
            and (newest.batch_id or 0) < (batch.batch_id or 0)
        )

    def _recorded(self, batch: MicroBatchId) -> RecordedMicroBatch | None:
        """Return the micro-batch as the table has it, or else as receipts name it."""
        assert self._run is not None
        condition = (
            (Comparison("query_id", "=", batch.query_id), Comparison("batch_id", "=", batch.batch_id))
            if batch.query_id is not None and batch.batch_id is not None
            else (Comparison("job_id", "=", batch.job_id or ""),)
        )
        recorded = RecordedMicroBatch.of_rows(self._run.owner.rows_where(condition))
        if recorded is not None:
            return recorded
        lost = next((lost for lost in self._lost if batch.is_same(lost)), None)
        return None if lost is None else RecordedMicroBatch.lost(lost)

    def _opened(self, spark: Any) -> RecordSink:
        """Return the sink of this run, after its recovery."""
        if self._sink is None:
            run = self._take_over(spark)
            run.owner.check_ownership()
            parallelism = parallelism_of(spark, self.config.slots)
            try:
                sink = self._recovered(run, parallelism)
            except OlderTablesError as older:
                run = self._take_over_without(older, spark)
                sink = self._recovered(run, parallelism)
            recorded = run.owner.recorded()
            is_older = recorded.decided_run_id == "" and recorded.decided_version > 0
            self._lost = self._in_receipts(run) if is_older else ()
            self._newest = self._newest_of(run.owner)
            self._sink = sink
        return self._sink

    def _take_over_without(self, older: OlderTablesError, spark: Any) -> _Run:
        """Take over tables that lack what the run `lost_run` has written. Raises OlderTablesError for any other run."""
        assert self._run is not None
        if self.config.lost_run != older.run_id:
            named = self._in_receipts(self._run)
            raise replace(
                older,
                if_lost=f"if they are lost, give the sink lost_run={older.run_id!r}: it continues behind "
                + (f"{named[0].described()}, which was written last" if named else "what the target has"),
            ) from None
        _log.warning("sink %s continues without the rows of run %s: %s", self.config.name, older.run_id, older.evidence)
        self._close()
        return self._take_over(spark, older.version)

    def _in_receipts(self, run: _Run) -> tuple[MicroBatchId, ...]:
        config, deadline = self.config, Deadline.after_ms(_START_MS, time.monotonic)
        guard = RunGuard(run.target, config.name, config.transaction_timeout_ms)
        # The lost run may have used more slots than these older tables know of.
        names = transactional_ids(config.name, guard.slot_count(run.owner.highest_slot + 1, deadline))
        return micro_batches_of_receipts(run.target, names, run.owner.map_id, deadline)

    def _newest_of(self, owner: LedgerOwner) -> RecordedMicroBatch | None:
        """Return the newest streaming micro-batch of any query, as far as the table has rows of it, or receipts name it."""
        lost = next((lost for lost in self._lost if lost.job_id is None), None)
        if lost is not None:
            return self._recorded(lost)
        newest = newest_batch_of(owner.pieces)
        return None if newest is None else self._recorded(MicroBatchId(query_id=newest[0], batch_id=newest[1]))

    def _take_over(self, spark: Any, accepted_version: int = 0) -> _Run:
        if self._run is None:
            config = self.config
            check_session(spark)
            if not is_connect(spark):
                pass_secrets_to_workers(spark, [config.client])
            storage = TableStorage.to_write(config.table_location, config.tables_writer, spark, layout=WRITTEN_RECORDS_LAYOUT)
            storage.require_conditional_writes()
            if storage.writer == "spark":
                check_delta(spark, storage.location.root)
            with ExitStack() as opened:
                if config.metrics.port is not None:
                    opened.enter_context(self._serving_metrics())
                target = opened.enter_context(closing(Cluster(config.client)))
                owner = self._own(storage, target, accepted_version)
                if self._metrics is not None:
                    self._metrics.run_epoch.set(owner.run_epoch)
                self._run = _Run(self._identity, owner, target, opened.pop_all())  # it is open as long as the run
        return self._run

    def _serving_metrics(self) -> AbstractContextManager[None]:
        with importing_metrics():
            from shallow_mirror.streaming.watch.sink_metrics import SinkMetrics
        if self._metrics is None:  # else of a run before, or of an attempt that could not take over
            self._metrics = SinkMetrics(self.config.name)
        return self._metrics.served(self.config.metrics)

    def _own(self, storage: TableStorage, target: Cluster, accepted_version: int) -> LedgerOwner:
        config, deadline = self.config, Deadline.after_ms(_START_MS, time.monotonic)
        ids = transactional_ids(config.name, id_count(config.slots))
        owner = LedgerOwner.take_over(
            storage,
            layout=WRITTEN_RECORDS_LAYOUT,
            name=config.name,
            source_cluster_id=_NO_SOURCE_CLUSTER,
            target_cluster_id=reach(target, f"the target of sink {config.name}", deadline).cluster_id,
            run=self._identity,
            now_ms=lambda: int(time.time() * 1000),
            before_creation=lambda: refuse_used_ids(target, ids, deadline),
            slots=len(ids),
            accepted_version=accepted_version,
        )
        _log.info("run epoch %d of sink %s took over %s", owner.run_epoch, config.name, config.tables)
        return owner

    def _recovered(self, run: _Run, parallelism: int) -> RecordSink:
        """Resolve the last decision, and fence every transactional id. Raises MicroBatchInDoubtError.

        `parallelism`: how many slots run at once.
        """
        config, timeout_ms = self.config, self.config.transaction_timeout_ms
        performer = TxnPerformer(run.owner, run.target, transaction_timeout_ms=timeout_ms, observer=self._observer)
        guard = RunGuard(run.target, config.name, timeout_ms)
        chosen = _FATES.get(config.on_doubt)
        choices = {} if chosen is None else {row.txn: chosen for row in run.owner.unsettled() if row.txn is not None}
        try:
            deadline = Deadline.after_ms(_START_MS, time.monotonic)
            recover(run.owner, performer, mirror=config.name, deadline=deadline, choices=choices, guard=guard)
            performer.require_visible()
        except RecoverNeededError as error:
            raise MicroBatchInDoubtError(error.what) from error
        job = RecordJob(
            name=config.name,
            map_id=run.owner.map_id,
            run_id=run.identity.run_id,
            target=config.client,
            topic=config.topic,
            compression=Compression(config.codec_id, config.level),
            batch_bytes=config.batch_bytes,
            window_bytes=config.window_bytes,
            in_flight_requests=config.in_flight_requests,
            in_flight_bytes=config.in_flight_bytes,
            transaction_timeout_ms=timeout_ms,
            target_cluster_id=run.target.known_id,
            bytes_per_second=None if config.bytes_per_second is None else config.bytes_per_second / parallelism,
            observer=self._observer,
        )
        return RecordSink(job, slots=config.slots, owner=run.owner, performer=performer, guard=guard, observer=self._observer)

    def _report(self, written: Written, seconds: float) -> None:
        if self._metrics is not None:
            self._metrics.wrote(
                batch_id=written.batch.batch_id,
                records=written.record_count,
                size_bytes=written.size_bytes,
                seconds=seconds,
                at_s=time.time(),
            )
        steps = ", ".join(f"{name} {ms:.0f} ms" for name, ms in written.duration_ms.items())
        _log.info(
            "sink %s: %s: %s, %d bytes; %s",
            self.config.name,
            written.batch,
            counted(written.record_count, "record"),
            written.size_bytes,
            steps,
        )
        for topic in sorted(written.stamped_topics):
            _log.warning("topic %s has message.timestamp.type=LogAppendTime: the timestamps of its records are lost", topic)
