"""Driver: `verify`: compare source and target of a mirror, partition by partition. Starts no JVM, writes nothing but `audit`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pyarrow.compute as pc

from shallow_mirror.archive_reading.state_at_cut import described_topics
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.ledger import ArchiveTable, RestoreRanges, RestoreRangesTable
from shallow_mirror.checkpoints.logs import Quarantine, QuarantineTable
from shallow_mirror.checkpoints.logs.topics import Controls, ForgottenTopics
from shallow_mirror.checkpoints.tables import Comparison, TableStorage
from shallow_mirror.config import MirrorConfig, RestoreConfig, exclude_own_targets
from shallow_mirror.config.restore_changes import require_same_restore, unfinished_partitions
from shallow_mirror.config.restore_config import Cut
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, MirrorError
from shallow_mirror.object_store import ObjectStore
from shallow_mirror.plurals import counted
from shallow_mirror.types import IsolationLevel, OffsetRange, TopicPartition
from shallow_mirror.verify.archive_side import ArchiveSide
from shallow_mirror.verify.clusters import ClusterReader
from shallow_mirror.verify.coverage import SourceExtent, coverage, read_source_extent
from shallow_mirror.verify.mirror_verifier import MirrorVerifier, VerifyOptions
from shallow_mirror.verify.partition_reader import PATIENCE_MS
from shallow_mirror.verify.progress import OnProgress, ignore_progress
from shallow_mirror.verify.report import VerifyReport

RANGE_FETCHES = 16
"""Ranges of about this many `read.fetch_bytes` are verified, and recorded, at once."""

OnStopped = Callable[[VerifyReport], None]
"""Called before an error is raised. The report has `stopped_by`, and no coverage."""


def ignore_stop(report: VerifyReport) -> None:
    return None


def verify_mirror(
    config: MirrorConfig,
    *,
    topics: Sequence[str] | None = None,
    after: Mapping[TopicPartition, tuple[int, int]] | None = None,
    known: Mapping[TopicPartition, Sequence[OffsetRange]] | None = None,
    is_deep: bool = False,
    from_start: bool = False,
    on_progress: OnProgress = ignore_progress,
    range_bytes: int | None = None,
    flush_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    spark: Any = None,
    on_stopped: OnStopped = ignore_stop,
) -> VerifyReport:
    """Compare the records of both clusters through the offset map, as far as it is settled.

    `topics`: source topics, all by default. `after`: by source partition, the end of a row of the map and the target offset,
    from which on is compared. Other partitions are compared as a whole. `known`: by target partition, whole batches of others
    that are no difference. `is_deep`: open every batch. A verification of the same topics and depth that was interrupted is
    continued, unless `from_start`. `range_bytes` by default RANGE_FETCHES times `read.fetch_bytes`. `spark`: for tables in a
    catalog, the session that has it. Differences are in the report. Without `after`, the report is not equal either if a part
    of the mirror file's scope could not be compared. Raises ConfigError (no map, another mirror's clusters, a missing
    permission), RetriableError (a cluster does not answer), BatchRefusedError (a batch is too large to be opened); the
    progress until then is kept, and `on_stopped` is called with what was found so far.
    """
    options = VerifyOptions(is_deep=is_deep, range_bytes=range_bytes or RANGE_FETCHES * config.read.fetch_bytes, flush_s=flush_s)
    storage = TableStorage(config.table_location, spark)
    # The comparison itself shows which records rows that others have removed or added name.
    offset_map = OffsetMap.open(storage, mirror=config.mirror, counts_rows=False)
    level, fetch_bytes = config.read.isolation_level, config.read.fetch_bytes
    with (
        ClusterReader(config.source.client, config.source_cluster_name, level, fetch_bytes=fetch_bytes, clock=clock) as source,
        ClusterReader(
            config.target.client,
            config.target_cluster_name,
            IsolationLevel.READ_COMMITTED,
            fetch_bytes=fetch_bytes,
            clock=clock,
        ) as target,
    ):
        quarantine = Quarantine(offset_map, QuarantineTable.open(storage))
        forgotten = Controls.open(storage).read().forgotten
        verifier = MirrorVerifier(
            config, offset_map, quarantine, source, target, options, on_progress, clock, after, known, forgotten=forgotten
        )
        with _reporting_stop(verifier, on_stopped):
            # Read before the map is: what the map lacks of it then is not covered.
            extent = None if after else _source_extent(config, offset_map, source, target, topics, forgotten, clock)
            report = verifier.run(topics, storage.best_effort_tables(), from_start=from_start)
            report = replace(report, closed=_closed(forgotten, topics))
            if extent is not None:
                extent = replace(extent, logs=forgotten.without(extent.logs))
                offset_map.refresh()  # a running mirror may have taken up since what was new
                covered = coverage(extent, offset_map.positions())
                report = replace(
                    report,
                    uncovered=covered.uncovered or _if_nothing_compared(report),
                    behind_offsets=covered.behind_offsets,
                    behind_partitions=covered.behind_partitions,
                )
    verifier.finish(report)
    return report


def _closed(forgotten: ForgottenTopics, topics: Sequence[str] | None) -> tuple[str, ...]:
    chosen = sorted(topic for topic in forgotten.at_ms if topics is None or topic.topic in topics)
    return tuple(f"topic {topic.topic} (id {topic.topic_id})" for topic in chosen)


def verify_restore(
    config: RestoreConfig,
    *,
    topics: Sequence[str] | None = None,
    is_deep: bool = False,
    from_start: bool = False,
    on_progress: OnProgress = ignore_progress,
    flush_s: float | None = None,
    clock: Callable[[], float] = time.monotonic,
    spark: Any = None,
    on_stopped: OnStopped = ignore_stop,
) -> VerifyReport:
    """Compare the target with the archive, up to the cut of the restore, as `verify_mirror` compares two clusters.

    The report is not equal either if a part of the restore is not in the target. Raises ConfigError also if the
    restore has not begun, or the file has changed since, and ArchiveFormatError, ObjectMissingError, StoreUnreachableError.
    """
    fetch_bytes = config.read.fetch_bytes
    options = VerifyOptions(is_deep=is_deep, range_bytes=RANGE_FETCHES * fetch_bytes, flush_s=flush_s)
    storage = TableStorage(config.table_location, spark)
    archive_storage = TableStorage(config.archive_table_location, spark)
    offset_map = OffsetMap.open(storage, mirror=config.mirror, counts_rows=False)
    decided = RestoreRangesTable.of(storage).read()
    if decided is None:
        raise ConfigError("the restore has not begun: run `shallow-mirror restore` first")
    until = Cut.model_validate_json(decided.until)
    table = ArchiveTable.open(archive_storage)
    positions = offset_map.positions()
    require_same_restore(decided, config, table.archive_id, positions)
    uncovered = [
        f"{source.topic_partition} is restored up to {offsets.start:,} of {offsets.end:,}: run `shallow-mirror restore`"
        for source, offsets in unfinished_partitions(decided, positions).items()
        if topics is None or source.topic in topics
    ]
    uncovered += [
        f"the file includes topic {topic}, which is not restored yet: run `shallow-mirror restore`"
        for topic in _new_topics(table, decided, config)
        if topics is None or topic in topics
    ]
    source = ArchiveSide(
        table,
        ObjectStore.open(config.archive.objects, config.storage_options),
        decided,
        described_topics(archive_storage, decided, time_ms=until.time_ms, decision=until.decision),
        config.read.isolation_level,
        fetch_bytes=fetch_bytes,
    )
    committed = IsolationLevel.READ_COMMITTED
    where = config.target_cluster_name
    with ClusterReader(config.target.client, where, committed, fetch_bytes=fetch_bytes, is_restored=True, clock=clock) as target:
        quarantine = Quarantine(offset_map, QuarantineTable.open(storage))
        verifier = MirrorVerifier(config, offset_map, quarantine, source, target, options, on_progress, clock)
        with _reporting_stop(verifier, on_stopped):
            report = verifier.run(topics, storage.best_effort_tables(), from_start=from_start)
    uncovered += [
        f"{counted(count, 'offset')} of {partition} were restored and are gone: its log begins at {log_start:,} now, so "
        "retention (or DeleteRecords) has deleted what lies below; restore it again with topics.retention: paused"
        for partition, (count, log_start) in sorted(verifier.deleted_at_target.items())
    ]
    report = replace(report, uncovered=tuple(uncovered) or _if_nothing_compared(report))
    verifier.finish(report)
    return report


@contextmanager
def _reporting_stop(verifier: MirrorVerifier, on_stopped: OnStopped) -> Iterator[None]:
    try:
        yield
    except MirrorError as error:
        on_stopped(replace(verifier.report(), stopped_by=f"{type(error).__name__}: {error}"))
        raise


def _source_extent(
    config: MirrorConfig,
    offset_map: OffsetMap,
    source: ClusterReader,
    target: ClusterReader,
    topics: Sequence[str] | None,
    forgotten: ForgottenTopics,
    clock: Callable[[], float],
) -> SourceExtent:
    source_id, target_id = source.cluster_id(), target.cluster_id()
    offset_map.require_clusters(source=source_id, target=target_id)
    included = exclude_own_targets(config, is_same_cluster=source_id == target_id)
    closed = {topic.topic for topic in forgotten.at_ms}
    return read_source_extent(source.cluster, included, topics, closed, Deadline.after_ms(PATIENCE_MS, clock))


def _if_nothing_compared(report: VerifyReport) -> tuple[str, ...]:
    return ("no record could be compared",) if report.unchecked and not report.record_count else ()


def _new_topics(table: ArchiveTable, decided: RestoreRanges, config: RestoreConfig) -> list[str]:
    """Return the topics of the archive that the file includes and that this restore does not have."""
    settings = decided.settings
    if settings is None or (list(settings.include), list(settings.exclude)) == (config.topics.include, config.topics.exclude):
        return []
    found: set[str] = set()
    for piece in table.pieces((Comparison("micro_batch", "<=", decided.last_decision),), ["source_topic"]):
        found.update(pc.unique(piece["source_topic"]).to_pylist())
    return sorted(topic for topic in found - decided.topic_names if config.topics.is_included(topic))
