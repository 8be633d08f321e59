"""Driver: records that only the old source has: found, copied to topics of their own at the target, and compared.

They lie behind the last mirrored offset of each partition, or where its log was truncated before that, and below the first one
where the mirror began later. Each range is copied as raw batches by `redo`, whose offset map leads from every kept record to its
topic, partition and offset of origin. What retention or somebody deletes before it is copied, is left out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.cluster import absent_topics, missing_topics, reach
from shallow_mirror.checkpoints import OffsetMap, Position
from shallow_mirror.checkpoints.logs.topics import ForgottenTopics, TopicIncarnation
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.config.failover_config import FailoverFiles
from shallow_mirror.deadline import request_deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.migration.failover.uncut_logs import uncut
from shallow_mirror.migration.late_writes import Copied, LateWrite, gaps_of, read_records
from shallow_mirror.migration.log_ends import list_log_ends
from shallow_mirror.migration.observations import LogEnds, named, open_partitions
from shallow_mirror.operations.redo import RedoRequest, mirrored_clusters, redo, redo_config
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, OffsetRange, SegmentKind, SourcePartition, TopicPartition
from shallow_mirror.verify import verify_mirror


class Divergence:
    """Of one fail-over. Raises RetriableError if a cluster does not answer, ConfigError if an operator has to act."""

    def __init__(self, files: FailoverFiles) -> None:
        self._files = files
        self.seen_ends: LogEnds = {}
        """Of the logs of the old source, as `find` has seen them last."""

    def topic_ids(self, mirrored: Collection[str], forgotten: ForgottenTopics) -> dict[str, str]:
        """Return the topics that are used at the target, with their ids at the old source; "": it has none of this name.

        `mirrored`: topics of the map that the target had. A topic that the mirror has not begun is one of them if both clusters
        have it. Raises RetriableError where only some brokers of a cluster list a mirrored topic.
        """
        topics, mirror = self._files.mirror.topics, self._files.mirror
        with self._source() as source, closing(Cluster(mirror.target.client)) as target:
            reach(target, mirror.target_cluster_name, request_deadline())
            at_source = _listed(source, mirrored, mirror.source_cluster_name)
            at_target = _listed(target, mirrored, mirror.target_cluster_name)
        wanted = {name for name in at_target if name in mirrored or (name in at_source and topics.is_included(name))}
        ids = {name: at_source.get(name, "") for name in sorted(wanted)}
        return {name: topic_id for name, topic_id in ids.items() if TopicIncarnation(name, topic_id) not in forgotten.at_ms}

    def open_partitions(self, topics: Sequence[str]) -> list[str]:
        with self._source() as source:
            ends = list_log_ends(source, topics, request_deadline())
        return [f"{name} from offset {ends[name].stable:,}" for name in open_partitions(ends)]

    def find(
        self,
        ids: Mapping[str, str],
        mirrored: Mapping[SourcePartition, OffsetRange],
        kept: Iterable[LateWrite],
        positions: Mapping[SourcePartition, Position],
    ) -> list[LateWrite]:
        """Return what only the old source has. `mirrored`: offsets, also of former topics of the same names.

        `kept`: what was found before; it is left out. `positions`: of the mirror, with the leader epochs that it has read.
        """
        mirror, known = self._files.mirror, dict[TopicPartition, list[Copied]]()
        for write in kept:
            if write.topic_id not in ("", ids.get(write.topic_partition.topic)):  # "": as release 0.2.0 noted it
                continue
            known.setdefault(write.topic_partition, []).append(Copied(write.start, write.end, None))
        same = {partition: offsets for partition, offsets in mirrored.items() if ids.get(partition.topic) == partition.topic_id}
        with self._source() as source:
            offset_map = OffsetMap.open(TableStorage(mirror.table_location), mirror=mirror.mirror)
            # In front of the log ends: what a leader that is elected in between has cut is looked for again before the deletion.
            for partition, ranges in uncut(source, same, positions, offset_map).items():
                known.setdefault(partition.topic_partition, []).extend(Copied(each.start, each.end, None) for each in ranges)
            self.seen_ends = ends = list_log_ends(source, sorted(ids), request_deadline())
            timestamps = dict.fromkeys(ends, EARLIEST_TIMESTAMP)
            starts = source.list_offsets(timestamps, IsolationLevel.READ_UNCOMMITTED, request_deadline()) if ends else {}
        gaps = [
            (name, gap)
            for name, log in sorted(ends.items())
            for gap in gaps_of(OffsetRange(starts[name].offset, max(starts[name].offset, log.stable)), known.get(name, ()))
        ]
        found = read_records(mirror.source.client, gaps) if gaps else ()
        return [replace(write, topic_id=ids[write.topic_partition.topic]) for write in found]

    def keep(self, write: LateWrite) -> dict[str, Any]:
        """Copy a range, unless it was copied. Return the topic it is in, the offsets there, and what was `gone` of the range."""
        request = self._request(write)
        clusters = mirrored_clusters(self._files.mirror)
        copied = redo(self._config(write), request, clusters=clusters, leaves_out_gone=True, keeps_all=True)
        ranges = self._ranges(write)
        return {
            "kept_topic": request.target_topic,
            "kept_start": min((offsets.start for offsets in ranges), default=None),
            "kept_end": max((offsets.end for offsets in ranges), default=None),
            "tables": copied.tables,
            "gone": [{"start": offsets.start, "end": offsets.end} for offsets in copied.gone],
        }

    def compare(self, writes: Sequence[LateWrite]) -> list[str]:
        """Return a sentence for each range whose copy differs from the old source's records."""
        ranges = {write: self._ranges(write) for write in writes}
        problems = []
        for write in writes:
            target = TopicPartition(self._request(write).target_topic, write.topic_partition.partition)
            sentences, compared = self._compared(write, target, ranges) if ranges[write] else ([], 0)
            # Behind the comparison, which has covered all that is still there.
            gone = self._gone_offsets(write)
            lacking = 0 if write.record_count is None else write.record_count - compared - gone
            if sentences:
                problems.append(f"{write} in {target}: {'; '.join(sentences)}")
            elif lacking > 0:
                problems.append(f"{write} in {target}: {lacking:,} records were not copied")
        return problems

    def _compared(
        self, write: LateWrite, target: TopicPartition, ranges: Mapping[LateWrite, Sequence[OffsetRange]]
    ) -> tuple[Sequence[str], int]:
        """Return the differences between a copy and the old source, and how many records were compared."""
        kept = {other: found for other, found in ranges.items() if other.topic_partition == write.topic_partition}
        of_others = [offsets for other, found in kept.items() if other is not write for offsets in found]
        if first := min(offsets.start for found in kept.values() for offsets in found):
            of_others.append(OffsetRange(0, first))  # of an earlier fail-over, with the same name of the topic
        report = verify_mirror(self._config(write), topics=[write.topic_partition.topic], known={target: of_others})
        return report.sentences() if report.difference_counts else (), report.record_count

    @contextmanager
    def _source(self) -> Iterator[Cluster]:
        """Connect to the old source for the block. Raises RetriableError that names it if it does not answer."""
        mirror = self._files.mirror
        with closing(Cluster(mirror.source.client)) as source:
            reach(source, mirror.source_cluster_name, request_deadline())
            yield source

    def _gone_offsets(self, write: LateWrite) -> int:
        """Return how many offsets of a range the old source does not have any more."""
        name = write.topic_partition
        with self._source() as source:
            listed = source.metadata([name.topic], request_deadline()).topics[name.topic]
            if listed.error_code or write.topic_id not in ("", listed.topic_id):
                return write.end - write.start
            starts = source.list_offsets({name: EARLIEST_TIMESTAMP}, IsolationLevel.READ_UNCOMMITTED, request_deadline())
        return max(0, min(starts[name].offset, write.end) - write.start)

    def _request(self, write: LateWrite) -> RedoRequest:
        name = write.topic_partition
        return RedoRequest(name, write.start, write.end, self._files.kept_topic(name.topic), write.topic_id)

    def _config(self, write: LateWrite) -> MirrorConfig:
        return redo_config(self._files.mirror, self._request(write), is_handed_over=True)

    def _ranges(self, write: LateWrite) -> list[OffsetRange]:
        """Return the offsets of the copies in the topic of kept records."""
        config = self._config(write)
        offset_map = OffsetMap.open(TableStorage(config.table_location), mirror=config.mirror)
        rows = offset_map.settled_rows(columns=["kind", "target_start", "target_end"]).to_pylist()
        return [OffsetRange(row["target_start"], row["target_end"]) for row in rows if row["kind"] == SegmentKind.DATA.value]


def _listed(cluster: Cluster, wanted: Collection[str], name: str) -> dict[str, str]:
    """Return the ids of all topics, by name. `name`: of the cluster, for messages.

    Raises RetriableError where a broker does not list a topic of `wanted` that others may have: what is not looked at must not be
    deleted. Raises ConfigError where our user may not describe one.
    """
    topics = cluster.metadata(None, request_deadline()).topics
    listed = {topic: metadata.topic_id for topic, metadata in topics.items() if metadata.error_code == 0}
    unlisted = sorted(topic for topic in wanted if topic not in listed)
    if not unlisted:
        return listed
    if hidden := missing_topics(cluster, unlisted, request_deadline()).hidden:
        raise ConfigError([f"{name}: topic {topic}: {permission}" for topic, permission in sorted(hidden.items())])
    if doubtful := sorted({*unlisted} - absent_topics(cluster, unlisted, request_deadline())):
        raise RetriableError("UNKNOWN_TOPIC_OR_PARTITION", f"not every broker of {name} lists {named(doubtful)} yet")
    return listed
