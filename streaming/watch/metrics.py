"""Driver: the Prometheus metrics of a running mirror. Their meaning: docs/reference/metrics.md.

A new metric also needs a row in docs/reference/metrics.md and a panel in conf/grafana-dashboard.json.
Imported only if `metrics.port` is set: `prometheus_client` comes with the extra `metrics`.
"""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shallow_mirror.checkpoints.logs.runs import MicroBatchObservation, ProblemKind
from shallow_mirror.groups.report import GroupLag
from shallow_mirror.sinks.micro_batches import SLOWEST_SLOT, TOTAL
from shallow_mirror.streaming.planning.left_out_partitions import LeftOutPartition
from shallow_mirror.streaming.watch.instruments import Instruments
from shallow_mirror.streaming.watch.lag import PartitionStatus
from shallow_mirror.streaming.watch.open_transactions import OpenTransaction
from shallow_mirror.types import SegmentKind

PREFIX = "shallow_mirror_"
OTHER_TOPICS = "(others)"
"""No topic can have this name."""

MAX_LEFT_OUT_SERIES = 100
"""Left out partitions with a series of their own."""

_MICRO_BATCH_BUCKETS_S = (0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 3, 5, 10, 30, 60, 120, 300)
_END_TO_END_BUCKETS_S = (0.1, 0.25, 0.5, 0.75, 1, 2, 5, 10, 30, 60, 300, 900, 3600, 14400, 86400)


_DROPPED = (SegmentKind.COMMIT, SegmentKind.ABORT, SegmentKind.ABORTED, SegmentKind.GAP, SegmentKind.EXPIRED)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSnapshot:
    """State of both clusters at `at_ms`. `preserved_topics`: those whose records keep their offsets, as the offset map has it."""

    at_ms: int
    partitions: Sequence[PartitionStatus] = ()
    open_transactions: Sequence[OpenTransaction] = ()
    preserved_topics: frozenset[str] = frozenset()
    is_source_up: bool
    is_target_up: bool


class Metrics:
    """Metrics of one run. For any thread."""

    def __init__(self, mirror: str, max_topics: int, *, version: str, source: str, target: str) -> None:
        made = Instruments(PREFIX, "mirror", mirror)
        gauge, counter, counter_by, histogram = made.gauge, made.counter, made.counter_by, made.histogram
        self.registry = made.registry
        self._mirror = mirror
        made.gauge_by("info", "1", "version", "source", "target").labels(mirror, version, source, target).set(1)
        self.run_epoch = gauge("run_epoch", "Rises with every start of a run")
        self.waiting = gauge("waiting", "1 while the mirror waits for a cluster, a table or a slow step")
        self._last_decision = gauge("last_decision_timestamp_seconds", "Of the newest decision in the offset map")
        self._last_decision.set(math.nan)  # alerts on its age stay silent until there is one
        self._micro_batches = counter("micro_batches", "Decided and visible")
        self._records = counter("records", "Copied")
        self._copied_bytes = counter("copied_bytes", "Record batches copied, as the source has them")
        self._fetched_bytes = counter("fetched_bytes", "Received from the source")
        self._batches = counter_by("batches", "By verdict: raw, rebuilt, dropped, refused", "verdict")
        self._dropped = counter_by("dropped_batches", "By kind of segment", "kind")
        self._steps = counter_by("step_seconds", "Spent in the steps of micro-batches", "step")
        self._seconds = histogram("micro_batch_seconds", "From its start until it is visible", _MICRO_BATCH_BUCKETS_S)
        self._end_to_end = histogram(
            "end_to_end_seconds",
            "Age of the newest record of each partition that moved, by its own timestamp, when it became visible on the target",
            _END_TO_END_BUCKETS_S,
        )
        self._restarts = counter("restarts", "Of the query, by the supervisor")
        self._problems = counter_by("problems", "As in the table problems", "kind")
        for kind in ProblemKind:
            self._problems.labels(mirror, kind.value)
        for verdict in ("raw", "rebuilt", "dropped", "refused"):
            self._batches.labels(mirror, verdict)
        for dropped in _DROPPED:
            self._dropped.labels(mirror, dropped.value)
        lacking = "That the target lacks, of those that the source has: acls, quotas, schemas"
        self._lacking = made.gauge_by("target_lacks", lacking, "what")
        self._commit_age = gauge(
            "group_commit_age_seconds", "Of the oldest followed commit of a group that is not at the target yet; 0 if all are"
        )
        self._commit_age.set(math.nan)
        self._followed = counter("group_commits_followed", "Read from the log of the source's groups")
        self._is_followed = gauge("groups_followed", "1 while commits of groups are followed, 0 while they are polled instead")
        self._is_followed.set(math.nan)
        self._repeated = gauge("failover_repeated_records", "Estimate, while commits are polled: those that groups read again")
        self._repeated.set(math.nan)
        self.clusters = _ClustersCollector(mirror, max_topics)
        self.registry.register(self.clusters)

    def on_decision(self, at_ms: int) -> None:
        self._last_decision.set(at_ms / 1000)

    def on_micro_batch(self, observed: MicroBatchObservation, ages_s: Iterable[float]) -> None:
        """Count a micro-batch. `ages_s`: of the newest record of each partition that moved."""
        self._micro_batches.inc()
        self._records.inc(observed.record_count)
        self._copied_bytes.inc(observed.size_bytes)
        self._fetched_bytes.inc(observed.fetched_bytes)
        dropped = dict(observed.dropped_batch_counts)
        self._add_batches("refused", dropped.pop(SegmentKind.QUARANTINED.value, 0))
        self._add_batches("raw", observed.batch_count - observed.rebuilt_batch_count)
        self._add_batches("rebuilt", observed.rebuilt_batch_count)
        self._add_batches("dropped", sum(dropped.values()))
        for kind, count in dropped.items():
            self._dropped.labels(self._mirror, kind).inc(count)
        for step, ms in observed.duration_ms.items():
            if step not in (TOTAL, SLOWEST_SLOT):
                self._steps.labels(self._mirror, step).inc(ms / 1000)
        self._steps.labels(self._mirror, SLOWEST_SLOT).inc(observed.duration_ms.get(SLOWEST_SLOT, 0.0) / 1000)
        self._seconds.observe(observed.duration_ms[TOTAL] / 1000)
        for age_s in ages_s:
            self._end_to_end.observe(age_s)

    def on_refused_batch(self) -> None:
        """Count a batch that ends the run."""
        self._add_batches("refused", 1)

    def on_restart(self) -> None:
        self._restarts.inc()

    def on_problem(self, kind: ProblemKind) -> None:
        self._problems.labels(self._mirror, kind.value).inc()

    def on_access_pass(self, what: str, lacking: int) -> None:
        """Set how many ACLs, quotas or schemas the target lacks."""
        self._lacking.labels(self._mirror, what).set(lacking)

    def on_group_lag(self, lag: GroupLag) -> None:
        """Set what the target lacks of the groups' commits; no value where they are not followed."""
        self._commit_age.set(math.nan if lag.age_s is None else lag.age_s)
        self._followed.inc(lag.new_count)
        self._is_followed.set(math.nan if lag.is_followed is None else lag.is_followed)
        self._repeated.set(math.nan if lag.repeated_count is None else lag.repeated_count)

    def _add_batches(self, verdict: str, count: int) -> None:
        self._batches.labels(self._mirror, verdict).inc(count)


class _ClustersCollector(Collector):
    """Serves the last snapshot, replaced as a whole: a scrape in between never sees half of one. Nothing before the first."""

    def __init__(self, mirror: str, max_topics: int) -> None:
        self._mirror, self._max_topics = mirror, max_topics
        self._named: dict[str, None] = {}
        self._snapshot: ClusterSnapshot | None = None
        self._fillers: Counts[str] = Counts()
        self.left_out: tuple[LeftOutPartition, ...] = ()
        """Replaced as a whole by the mirror's own thread."""

    def update(self, snapshot: ClusterSnapshot) -> None:
        topics = {partition.source.topic for partition in snapshot.partitions}
        # Topics keep their series while they exist: a new topic never takes the place of one that has it.
        named = {topic: None for topic in self._named if topic in topics}
        for topic in sorted(topics - named.keys())[: self._max_topics - len(named)]:
            named[topic] = None
        self._named, self._snapshot = named, snapshot

    def add_fillers(self, counts: Mapping[str, int]) -> None:
        """Count the fillers of a decision, by topic. Called by the mirror's own thread only."""
        self._fillers = self._fillers + Counts(counts)

    def clear(self) -> None:
        """Serve no figures instead of old ones."""
        self._snapshot = None

    def collect(self) -> Iterator[Metric]:
        snapshot = self._snapshot
        offsets, ages = dict[str, int](), dict[str, int]()
        preserved = dict[str, int]()
        for partition in () if snapshot is None else snapshot.partitions:
            topic = self._label_of(partition.source.topic)
            if snapshot is not None and topic != OTHER_TOPICS:
                preserved[topic] = int(topic in snapshot.preserved_topics)
            if partition.lag_offsets is not None:
                offsets[topic] = offsets.get(topic, 0) + partition.lag_offsets
            if partition.lag_ms is not None:
                ages[topic] = max(ages.get(topic, 0), partition.lag_ms)
        yield self._by("lag_offsets", "Not copied yet, all partitions of a topic", "topic", offsets)
        yield self._by("lag_ms", "Age of the first record not copied yet, of the latest partition", "topic", ages)
        yield self._by("topic_offsets_preserved", "1 where its records keep their offsets on the target", "topic", preserved)
        yield self._filler_counter()
        unknown = None if snapshot is None else sum(partition.lag_offsets is None for partition in snapshot.partitions)
        at_s = None if snapshot is None else snapshot.at_ms / 1000
        yield self._single("partitions", "With a position", None if snapshot is None else len(snapshot.partitions))
        yield self._single("partitions_without_lag", "Whose log end the source does not report", unknown)
        yield self._single("lag_timestamp_seconds", "When both clusters were queried", at_s)
        transactions = None if snapshot is None else snapshot.open_transactions
        count = None if transactions is None else len(transactions)
        yield self._single("open_source_transactions", "Whose end the mirror waits for", count)
        silent_s = None
        if snapshot is not None:
            silent_ms = [snapshot.at_ms - txn.wrote_at_ms for txn in snapshot.open_transactions if txn.wrote_at_ms]
            silent_s = max(silent_ms, default=0) / 1000
        yield self._single("open_source_transaction_silent_seconds", "Since the longest silent one wrote", silent_s)
        up = {} if snapshot is None else {"source": int(snapshot.is_source_up), "target": int(snapshot.is_target_up)}
        yield self._by("cluster_up", "1 where it answered", "cluster", up)
        yield self._left_out_partitions()

    def _label_of(self, topic: str) -> str:
        return topic if topic in self._named else OTHER_TOPICS

    def _filler_counter(self) -> Metric:
        """Return the fillers of this run. Nothing before the first snapshot, which chooses the topics with a series."""
        family = CounterMetricFamily(PREFIX + "fillers", "Offsets without a record that fillers took", labels=["mirror", "topic"])
        counts: Counts[str] = Counts()
        for topic, count in self._fillers.items() if self._snapshot is not None else ():
            counts[self._label_of(topic)] += count
        for topic, count in counts.items():
            family.add_metric([self._mirror, topic], count)
        return family

    def _left_out_partitions(self) -> Metric:
        """Return a series for each of the first `MAX_LEFT_OUT_SERIES`, and one by side for the others."""
        labels = ["mirror", "topic", "partition", "side"]
        family = GaugeMetricFamily(PREFIX + "left_out_partitions", "Broken; the others are copied without them", labels=labels)
        left_out = self.left_out
        for entry in left_out[:MAX_LEFT_OUT_SERIES]:
            family.add_metric([self._mirror, entry.source.topic, str(entry.source.partition), entry.side.value], 1)
        for side, count in Counts(entry.side.value for entry in left_out[MAX_LEFT_OUT_SERIES:]).items():
            family.add_metric([self._mirror, OTHER_TOPICS, "", side], count)
        return family

    def _by(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["mirror", label])
        for label_value, value in values.items():
            family.add_metric([self._mirror, label_value], value)
        return family

    def _single(self, name: str, text: str, value: float | None) -> Metric:
        family = GaugeMetricFamily(PREFIX + name, text, labels=["mirror"])
        if value is not None:
            family.add_metric([self._mirror], value)
        return family
