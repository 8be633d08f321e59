"""Driver: backlog of each topic: its start offsets, and its batches, counted."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import (
    BatchRefusedError,
    ConfigError,
    CorruptBatchError,
    DataLossError,
    LogTruncatedError,
    TopicAccessError,
    TopicRecreatedError,
)
from shallow_mirror.plurals import counted
from shallow_mirror.preflight.estimate import PartitionSample
from shallow_mirror.preflight.findings import Finding, Level, left_out_or_stops
from shallow_mirror.preflight.report import TopicReport
from shallow_mirror.preflight.sample_reader import SampleReader
from shallow_mirror.preflight.schema_ids import SchemaIdSampler
from shallow_mirror.preflight.targets import TargetPlan
from shallow_mirror.preflight.timestamp_limits import time_limits
from shallow_mirror.preflight.verdict_counts import Amount, RuleCount, TopicCounts
from shallow_mirror.streaming.planning import LogEnds, SourceOffsets, offset_planning
from shallow_mirror.streaming.watch import with_remedy
from shallow_mirror.types import BatchLimits, OffsetRange, SourcePartition, TopicPartition
from shallow_mirror.wire import Codec
from shallow_mirror.wire.batches import admit
from shallow_mirror.wire.records import CorruptBlockError, decompress

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightProgress:
    """`done_offsets` of `total_offsets` of the backlog; those behind a sample count as done with it."""

    topic_partition: TopicPartition
    done_offsets: int
    total_offsets: int
    read_bytes: int
    refused_batch_count: int

    def __str__(self) -> str:
        refused = f"{counted(self.refused_batch_count, 'batch')} refused" if self.refused_batch_count else "nothing refused"
        return f"{self.topic_partition}, {self.read_bytes / 1e6:,.0f} MB read, {refused}"


OnProgress = Callable[[PreflightProgress], None]


def ignore_progress(progress: PreflightProgress) -> None:
    return None


def plan_backlogs(
    planner: SourceOffsets,
    listing: LogEnds,
    map_positions: Mapping[SourcePartition, int],
    not_copied: Container[str],
    deadline: Callable[[], Deadline],
    *,
    continues_after_data_loss: bool,
    isolates: bool,
) -> tuple[dict[SourcePartition, OffsetRange], list[Finding]]:
    """Return the range to copy of each partition that has a leader, and a finding for each topic that has lost records.

    `map_positions`: positions of its offset map. `not_copied`: topics that are paused or handed over; nothing is said of those
    that have lost records, as a run does not end by them. `continues_after_data_loss`: otherwise topics that have lost
    records have no range, and with `isolates` the truncated partitions alone. Raises RetriableError.
    """
    ends, positions, mirrored_topics = (
        _by_topic(listing.ends),
        _by_topic(map_positions),
        {source.topic for source in map_positions},
    )
    backlogs: dict[SourcePartition, OffsetRange] = {}
    findings = []
    for topic in sorted(listing.topic_ids):
        before = positions.get(topic, {})
        try:
            recreated = offset_planning.recreation_errors(before, listing.topic_ids)
            truncated = offset_planning.truncation_errors(before, ends[topic])
            losses = [*recreated, *truncated.values()]
            if losses and topic in not_copied:
                continue
            findings += [
                _loss_finding(error, is_continued=continues_after_data_loss, is_left_out=isolates)
                for error in (losses if isolates and not recreated else losses[:1])
            ]
            if losses and not continues_after_data_loss and (recreated or not isolates):
                continue
            new = [topic_partition for topic_partition in ends[topic] if topic_partition not in before]
            new_starts = planner.starts_at_mirror_start(new, mirrored_topics, listing, deadline())
        except (CorruptBatchError, BatchRefusedError, ConfigError) as error:
            findings.append(Finding(Level.STOPS, f"source topic {topic}", str(error)))
            continue
        starts = {
            topic_partition: before[topic_partition] if topic_partition in before else new_starts[topic_partition]
            for topic_partition in ends[topic]
            if continues_after_data_loss or topic_partition not in truncated
        }
        backlogs |= {
            topic_partition: OffsetRange(start, max(start, ends[topic][topic_partition]))
            for topic_partition, start in starts.items()
        }
    return backlogs, findings


def _loss_finding(error: DataLossError, *, is_continued: bool, is_left_out: bool) -> Finding:
    subject = f"source topic {error.topic_partition.topic}"
    if not is_continued:
        return left_out_or_stops(subject, str(with_remedy(error, is_quarantining=False)), is_left_out=is_left_out)
    match error:
        case TopicRecreatedError():
            effect = "what it holds now is mirrored from its start"
        case LogTruncatedError():
            effect = "the mirror continues at its position"
        case _:
            effect = "the offsets before are recorded as expired"
    return Finding(Level.DOUBT, subject, f"{error}; read.on_data_loss is continue: {effect}")


def _by_topic(values: Mapping[SourcePartition, T]) -> dict[str, dict[SourcePartition, T]]:
    """Ascending by partition."""
    grouped: dict[str, dict[SourcePartition, T]] = defaultdict(dict)
    for source, value in sorted(values.items()):
        grouped[source.topic][source] = value
    return grouped


class TopicSampler:
    """`backlogs` of all topics. Errors that stop the reading of a partition are in `findings`.

    `schema_ids` opens some of the batches; None: nothing is opened.
    """

    def __init__(
        self,
        config: MirrorConfig,
        reader: SampleReader,
        backlogs: Mapping[SourcePartition, OffsetRange],
        on_progress: OnProgress,
        schema_ids: SchemaIdSampler | None = None,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self._config, self._reader, self._backlogs = config, reader, _by_topic(backlogs)
        self._on_progress, self._schema_ids, self._now_ms = on_progress, schema_ids, now_ms
        self._isolates = config.on_error == "isolate"
        self._total_offsets = sum(backlog.end - backlog.start for backlog in backlogs.values())
        self._done_offsets = self._refused_batch_count = 0
        self._rebuilt_codecs: set[Codec] = set()
        self.findings: list[Finding] = []

    def sample(self, topic: str, partition_count: int, plan: TargetPlan) -> TopicReport:
        """Read and count the sample. Raises RetriableError."""
        counts, samples = TopicCounts(), dict[TopicPartition, PartitionSample]()
        for source, backlog in self._backlogs.get(topic, {}).items():
            topic_partition, before = source.topic_partition, counts.read.size_bytes
            reached = self._read(topic_partition, backlog, plan, counts)
            read_bytes = counts.read.size_bytes - before
            samples[topic_partition] = PartitionSample(
                position=backlog.start, end=backlog.end, reached=reached, read_bytes=read_bytes
            )
            self._done_offsets += backlog.end - backlog.start
            self._report_progress(topic_partition, 0, counts)
        self._refused_batch_count += counts.refused.batch_count
        self._rebuilt_codecs |= counts.rebuilt_codecs
        return TopicReport(topic=topic, partition_count=partition_count, target=plan, samples=samples, counts=counts)

    def library_problems(self) -> Iterator[Finding]:
        """Codecs of batches that will be rebuilt and that cannot be opened here."""
        for codec in sorted(self._rebuilt_codecs):
            try:
                decompress(memoryview(b""), codec, 1)
            except CorruptBlockError:
                continue  # of course: but the library is there
            except ConfigError as error:
                yield Finding(Level.STOPS, f"this machine, for batches of {codec.name.lower()} to be rebuilt", str(error))

    def _read(self, topic_partition: TopicPartition, backlog: OffsetRange, plan: TargetPlan, counts: TopicCounts) -> int:
        """Up to which offset it was read."""
        limits, times = self._batch_limits(plan), time_limits(plan.settings, self._now_ms())
        reached = backlog.start
        try:
            for part, reached in self._reader.read(topic_partition, backlog):
                admission = admit(
                    part.index,
                    part.records,
                    topic_partition=topic_partition,
                    position=backlog.start,
                    range_end=backlog.end,
                    aborted=part.aborted,
                    limits=limits,
                )
                counts.add(topic_partition, part.index, admission, limits, times)
                if self._schema_ids is not None:
                    self._schema_ids.add(topic_partition, part.index, part.records, admission)
                self._report_progress(topic_partition, reached - backlog.start, counts)
        except BatchRefusedError as error:
            counts.refuse(error.rule, RuleCount(error.remedy, topic_partition, error.base_offset, 0, Amount(batch_count=1)))
        except DataLossError as error:
            is_continued, log_start = self._config.read.continues_after_data_loss, error.log_start_offset
            self.findings.append(_loss_finding(error, is_continued=is_continued, is_left_out=self._isolates))
            if is_continued and log_start is not None and reached < log_start <= backlog.end:
                return self._read(topic_partition, OffsetRange(log_start, backlog.end), plan, counts)
        except (CorruptBatchError, ConfigError) as error:
            is_left_out = self._isolates and isinstance(error, CorruptBatchError | TopicAccessError)
            self.findings.append(left_out_or_stops(f"source topic {topic_partition.topic}", str(error), is_left_out=is_left_out))
        return reached

    def _batch_limits(self, plan: TargetPlan) -> BatchLimits:
        read = self._config.read
        return BatchLimits(
            max_message_bytes=plan.max_message_bytes,
            isolation_level=read.isolation_level,
            log_append_time=read.log_append_time,
            coalesce_bytes=self._config.write.coalesce_limit_bytes,
            coalesces_where_cheaper=self._config.write.coalesces_where_cheaper,
        )

    def _report_progress(self, topic_partition: TopicPartition, offsets: int, counts: TopicCounts) -> None:
        self._on_progress(
            PreflightProgress(
                topic_partition=topic_partition,
                done_offsets=min(self._done_offsets + offsets, self._total_offsets),
                total_offsets=self._total_offsets,
                read_bytes=self._reader.read_bytes,
                refused_batch_count=self._refused_batch_count + counts.refused.batch_count,
            )
        )
