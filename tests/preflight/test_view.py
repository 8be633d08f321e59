from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

from rich.console import Console

from shallow_mirror.preflight.estimate import Pace, PartitionSample
from shallow_mirror.preflight.findings import Finding, Level, sentences
from shallow_mirror.preflight.report import ClusterReport, PreflightReport, TopicReport
from shallow_mirror.preflight.targets import TargetPlan
from shallow_mirror.preflight.verdict_counts import Amount, RuleCount, TopicCounts
from shallow_mirror.preflight.view import lines_behind, lines_in_front, show
from shallow_mirror.types import SegmentKind, TopicPartition

MB = 1_000_000
OWN = Pace(basis="this mirror's last 7 micro-batches", is_bound=False, measured_bytes=400 * MB, measured_s=10.0)
READING = Pace(basis="reading alone", is_bound=True, measured_bytes=300 * MB, measured_s=1.0)


def target(name: str, **changes: Any) -> TargetPlan:
    defaults: dict[str, Any] = {"topic": name, "exists": True, "partition_count": 2, "added_partitions": 0}
    defaults |= {"replication_factor": 3, "created_with": None, "settings": {}}
    return TargetPlan(**(defaults | changes))


def topic(name: str = "orders", *, reached: int = 100, counts: TopicCounts | None = None, **plan: Any) -> TopicReport:
    counts = TopicCounts() if counts is None else counts
    counts.read.add(Amount(10, reached, 5 * MB))
    sample = PartitionSample(position=0, end=100, reached=reached, read_bytes=5 * MB)
    return TopicReport(
        topic=name, partition_count=1, target=target(name, **plan), samples={TopicPartition(name, 0): sample}, counts=counts
    )


def report(*topics: TopicReport, findings: tuple[Finding, ...] = (), **changes: Any) -> PreflightReport:
    defaults: dict[str, Any] = {
        "mirror": "m", "sample_bytes": None, "seconds": 1.0, "has_map": False, "coalesce_bytes": None, "topics": topics, "findings": findings,
        "paces": (), "source": ClusterReport(alias="east", cluster_id="E", broker_count=1),
        "target": ClusterReport(alias="west", cluster_id="W", broker_count=1),
    }  # fmt: skip
    return PreflightReport(**(defaults | changes))


def rendered(preflight_report: PreflightReport, *, as_json: bool = False) -> str:
    out = io.StringIO()
    show(preflight_report, Console(file=out, width=10_000), as_json=as_json)
    return out.getvalue()


def test_a_fine_report_begins_with_that_and_says_that_everything_was_read() -> None:
    lines = lines_in_front(report(topic()))
    assert lines == [
        "mirror m: no batch that was read would be refused",
        "east (E) to west (W): 1 topic, 1 partition, from read.start, no run yet",
        "all 100 offsets were read: 5.0 MB, 0 records in 0 batches",
    ]


def test_a_report_ends_with_the_result_it_begins_with() -> None:
    lines = rendered(report(topic())).splitlines()
    assert lines[0] == lines[-1]
    assert lines[0].startswith("mirror ")


def test_a_sample_is_called_one_and_its_backlog_an_estimate() -> None:
    preflight_report = report(topic(reached=10), sample_bytes=64 << 20, has_map=True)
    assert lines_in_front(preflight_report)[1].endswith("from the map's positions")
    assert (
        lines_in_front(preflight_report)[2]
        == "10 of 100 offsets were read: 5.0 MB, 0 records in 0 batches (a sample: about 67.1 MB of each partition; --all for all)"
    )
    assert "backlog: about 50.0 MB" in lines_behind(preflight_report)


def test_times_are_given_with_what_they_are_based_on_the_mirrors_own_first() -> None:
    lines = lines_behind(report(topic(reached=1), paces=(OWN, READING)))
    assert lines[-3:] == [
        "backlog: about 500.0 MB",
        "  12.5 s at 40.0 MB/s: this mirror's last 7 micro-batches (400.0 MB in 10.0 s)",
        "  at least 1.7 s at 300.0 MB/s: reading alone (300.0 MB in 1.0 s)",
    ]


def test_without_a_measurement_no_time_is_invented() -> None:
    assert "duration unknown: too little was read" in lines_behind(report(topic()))[-1]


def test_long_times_are_shown_in_hours_and_minutes() -> None:
    slow = Pace(basis="b", is_bound=False, measured_bytes=MB, measured_s=1_000.0)
    assert lines_behind(report(topic(), paces=(slow,)))[-1].startswith("  1 h 23 min at 1.0 kB/s")


def test_the_same_trouble_of_many_topics_is_one_line() -> None:
    findings = [Finding(Level.STOPS, f"target topic t{n}", "has compression.type=zstd") for n in range(7)]
    assert sentences(findings) == [
        "target topic t0, target topic t1, target topic t2, target topic t3, target topic t4 and 2 more: has compression.type=zstd"
    ]


def test_troubles_come_by_how_bad_they_are_and_rules_with_counts_partition_and_remedy() -> None:
    counts = TopicCounts()
    counts.refuse("too new", RuleCount("Set it", TopicPartition("orders", 1), 55, 900, Amount(3, 9, 2_000)))
    findings = (Finding(Level.DOUBT, "target topic orders", "stamps"), Finding(Level.STOPS, "broker 1", "is too old"))
    actual = report(topic(counts=counts), findings=findings)
    assert lines_in_front(actual)[0] == "mirror m: 1 finding stops it, 3 batches would be refused"
    assert lines_behind(actual)[:6] == [
        "the mirror would stop, or would not start:",
        "  broker 1: is too old",
        "warnings:",
        "  target topic orders: stamps",
        "refused:",
        "  3 batches (2.0 kB) of orders: too new; first orders-1 offset 55. Set it",
    ]


def test_topics_that_would_be_created_alike_are_reported_together_with_their_settings() -> None:
    made = {"retention.ms": "5", "cleanup.policy": "delete"}
    other = topic("logs", exists=False, created_with={}, replication_factor=None, partition_count=1)
    actual = report(*(topic(name, exists=False, created_with=made) for name in ("orders", "bills")), other)
    assert [line for line in lines_behind(actual) if "partition" in line] == [
        "  orders (2 partitions), bills (2 partitions): 3 replicas, cleanup.policy=delete, retention.ms=5",
        "  logs (1 partition): the default number of replicas of the target, ",
    ]
    assert "same name, new" in rendered(actual)


def test_codecs_and_dropped_batches_are_counted_over_all_topics() -> None:
    counts = TopicCounts()
    counts.codecs = {"zstd": Amount(4, 1, 1), "none": Amount(2, 1, 1)}
    counts.dropped = {SegmentKind.ABORTED: Amount(5, 1, 1)}
    lines = lines_behind(report(topic(counts=counts), topic("bills", counts=replace(counts, dropped={}))))
    assert lines[:5] == [
        "codecs:",
        "  none: 4 batches (2 B) of orders, bills",
        "  zstd: 8 batches (2 B) of orders, bills",
        "dropped:",
        "  aborted: 5 batches (1 B) of orders",
    ]


def test_the_table_has_a_row_a_topic_and_fits_into_100_columns() -> None:
    counts = TopicCounts()
    counts.raw.add(Amount(123_456_789, 1, 1))
    counts.rebuilds["hole"] = RuleCount("", TopicPartition("orders", 1), 5, 9, Amount(1_234_567, 1, 1))
    long_name = "payments.europe.settled-transactions.with-a-name-as-long-as-they-are"
    busy = replace(topic(counts=counts), partition_count=1_000, target=target(f"east.{long_name}", exists=False, created_with={}))
    busy = replace(
        busy,
        topic=long_name,
        samples={TopicPartition("orders", 0): PartitionSample(position=0, end=98_765_432_100, reached=1, read_bytes=5)},
    )
    out = io.StringIO()
    show(report(busy, topic("bills", added_partitions=2)), Console(file=out, width=100), as_json=False)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if len(line) > 100] == []
    assert any("98,765,432,100" in line and "123,456,789" in line and "1,234,567" in line for line in lines)
    assert any("bills" in line and "same name, +2" in line for line in lines)


def test_json_is_one_document_and_nothing_else() -> None:
    document = json.loads(rendered(report(topic(), paces=(OWN,)), as_json=True))
    assert document["estimates"][0]["seconds"] == 5 * MB / (40 * MB)
    assert document["topics"][0]["target"] == {
        "topic": "orders", "exists": True, "partition_count": 2, "added_partitions": 0, "replication_factor": 3, "created_with": None,
    }  # fmt: skip


def test_small_batches_are_reported_with_what_auto_would_do() -> None:
    counts = TopicCounts()
    counts.data.add(Amount(3_000, 6_000, 9 * MB))
    counts.cheaper_combined.add(Amount(2_000, 4_000, 3 * MB))
    figures = "  2,000 batches of 3,000 of orders (3.0 MB, 1.5 kB on average): write.coalesce_bytes: auto"
    cheaper = "would combine them, which takes less CPU of mirror and target together"
    for setting, effect in (("auto", "combines them"), (None, f"(now null) {cheaper}"), (4096, f"(now 4096) {cheaper}")):
        lines = lines_behind(report(topic(counts=counts), topic("other"), coalesce_bytes=setting))
        assert lines[lines.index("small batches:") + 1] == f"{figures} {effect}"
    assert "small batches:" not in lines_behind(report(topic()))
