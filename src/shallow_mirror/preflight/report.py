"""Driver: report of a preflight, as fields and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from shallow_mirror.plurals import counted
from shallow_mirror.preflight.estimate import Backlog, Pace, PartitionSample, backlog_of
from shallow_mirror.preflight.findings import Finding, Level, sentences
from shallow_mirror.preflight.schema_check import SchemaUse
from shallow_mirror.preflight.size import Size
from shallow_mirror.preflight.targets import TargetPlan
from shallow_mirror.preflight.verdict_counts import TopicCounts
from shallow_mirror.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport:
    alias: str
    cluster_id: str
    broker_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """`samples` of the partitions of which anything is known; `target` as it is, or as the mirror would make it."""

    topic: str
    partition_count: int
    target: TargetPlan
    samples: Mapping[TopicPartition, PartitionSample]
    counts: TopicCounts

    @property
    def backlog(self) -> Backlog:
        return backlog_of(list(self.samples.values()), unknown_partitions=self.partition_count - len(self.samples))

    def document(self) -> dict[str, Any]:
        partitions = [
            {"partition": topic_partition.partition, **asdict(sample), "backlog_bytes": sample.backlog_bytes}
            for topic_partition, sample in sorted(self.samples.items())
        ]
        return {
            "topic": self.topic,
            "partition_count": self.partition_count,
            "target": self.target.document(),
            "backlog": asdict(self.backlog),
            **self.counts.document(),
            "partitions": partitions,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightReport:
    """Result of a preflight."""

    mirror: str
    sample_bytes: int | None
    """At most about so many were read of a partition. None: everything up to the log ends of the start."""
    seconds: float
    source: ClusterReport
    target: ClusterReport
    has_map: bool
    """Positions are those of an offset map."""
    coalesce_bytes: int | str | None
    """Of the mirror file."""
    topics: tuple[TopicReport, ...]
    findings: tuple[Finding, ...]
    paces: tuple[Pace, ...]
    """The mirror's own first if it is known."""
    schema_uses: tuple[SchemaUse, ...] = ()
    """Topics whose keys or values begin with ids of the source's Schema Registry."""
    is_sized: bool = False
    """`size` was asked for."""
    size: Size | None = None
    """What a mirror needs for the traffic of the last day. None as well if nothing was read."""

    @property
    def is_fine(self) -> bool:
        """Whether no batch that was read would be refused, and nothing would stop the mirror."""
        is_stopped = any(finding.level is Level.STOPS for finding in self.findings)
        return not is_stopped and not any(topic.counts.refusals for topic in self.topics)

    def stops(self) -> list[str]:
        """Return a sentence for each finding that would stop the mirror."""
        return sentences(finding for finding in self.findings if finding.level is Level.STOPS)

    def refusals(self) -> list[str]:
        """Return a sentence for each rule by which batches would be refused."""
        return [
            f"source topic {topic.topic}: {counted(count.amount.batch_count, 'batch')} would be refused, the first at offset "
            f"{count.base_offset} of {count.topic_partition}: {rule}. {count.remedy}"
            for topic in self.topics
            for rule, count in topic.counts.refusals.items()
        ]

    @property
    def backlog(self) -> Backlog:
        samples = [sample for topic in self.topics for sample in topic.samples.values()]
        return backlog_of(samples, unknown_partitions=sum(topic.partition_count for topic in self.topics) - len(samples))

    def document(self) -> dict[str, Any]:
        """For JSON."""
        backlog = self.backlog
        return {
            "mirror": self.mirror,
            "is_fine": self.is_fine,
            "sample_bytes": self.sample_bytes,
            "seconds": self.seconds,
            "source": asdict(self.source),
            "target": asdict(self.target),
            "has_map": self.has_map,
            "coalesce_bytes": self.coalesce_bytes,
            "backlog": asdict(backlog),
            "estimates": [
                {**asdict(pace), "bytes_per_s": pace.bytes_per_s, "seconds": pace.seconds_for(backlog.size_bytes)}
                for pace in self.paces
            ],
            "findings": [finding.document() for finding in self.findings],
            "size": None if self.size is None else self.size.document(),
            "schema_ids": [use.document() for use in self.schema_uses],
            "topics": [topic.document() for topic in self.topics],
        }
