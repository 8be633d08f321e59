"""What a mirror needs for the traffic of its source, and that the published figures are those of the pages."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from tests.preflight.conftest import Planned
from tests.preflight.test_view import report, topic
from tests.support.record_batches import batch, record

from shallow_mirror.preflight import preflight_mirror, published_figures
from shallow_mirror.preflight.estimate import Pace
from shallow_mirror.preflight.published_figures import figures_for
from shallow_mirror.preflight.report import TopicReport
from shallow_mirror.preflight.size import HEADROOM
from shallow_mirror.preflight.sizing import size_for
from shallow_mirror.preflight.verdict_counts import Amount, TopicCounts
from shallow_mirror.preflight.view import lines_behind
from shallow_mirror.types import TopicPartition

HOUR_S, HOUR_MS = 3_600, 3_600_000
ORDERS = TopicPartition("orders", 0)
"""Of 50 kB an offset: 5 MB were read of 100 offsets."""
OFFSET_BYTES = 50_000


def of_batches(codec: str, batch_bytes: int, name: str = "orders") -> TopicReport:
    counts = TopicCounts()
    amount = Amount(10, 100, 10 * batch_bytes)
    counts.data.add(amount)
    counts.codecs[codec] = amount
    return topic(name, counts=counts)


def hours(*offsets_an_hour: int, partition: TopicPartition = ORDERS) -> list[dict[TopicPartition, int]]:
    """Log ends, as of now first; `offsets_an_hour`: the last hour first."""
    end = 10_000_000
    ends = [end]
    for offsets in offsets_an_hour:
        end -= offsets
        ends.append(end)
    return [{partition: end} for end in ends]


def offsets_for(mb_per_s: float) -> int:
    return round(mb_per_s * 1e6 * HOUR_S / OFFSET_BYTES)


def test_the_busiest_hour_counts_and_its_cpu_is_that_of_the_corpus() -> None:
    traffic = hours(offsets_for(1), offsets_for(60), offsets_for(3))
    size = size_for([of_batches("zstd", 300_000)], traffic, trigger_s=2.0, reading=None, configured_slots=8)
    assert size is not None
    assert (round(size.last_hour_bytes_per_s / 1e6), round(size.busiest_hour_bytes_per_s / 1e6)) == (1, 60)
    assert [traffic_class.corpus for traffic_class in size.classes] == ["zstd-big"]
    assert size.target_cpu == pytest.approx(0.06 * 2.3, rel=0.01)
    fixed = (0.3 + 0.0007) / 2
    assert size.mirror_cpu == pytest.approx(fixed + 0.06 * 0.73, rel=0.01)
    # One partition is in one slot, whatever it needs.
    assert (size.slots, size.cores, size.memory_mb, size.is_partition_too_busy) == (1, 1, 1_000, False)


def test_slots_follow_what_one_copies_and_memory_follows_slots() -> None:
    topics = [of_batches("lz4", 4_000, f"t{number}") for number in range(10)]
    traffic = [
        {TopicPartition(f"t{number}", 0): offset for number in range(10)} for offset in (10_000_000, 10_000_000 - offsets_for(10))
    ]
    size = size_for(topics, traffic, trigger_s=2.0, reading=None, configured_slots=2)
    assert size is not None
    assert size.slots == 5  # twice 100 MB/s, at 46 MB/s
    assert (size.cores, size.memory_mb) == (5, 1_000 + 3 * 155)
    lines = lines_behind(report(*topics, is_sized=True, size=size))
    assert "  raise write.slots to 5" in lines
    assert "  batches as lz4-small (4.0 kB on average): 100.0 MB/s of t0, t1, t2, t3, t4 and 5 more" in lines
    slow = Pace(basis="reading", is_bound=True, measured_bytes=23_000_000, measured_s=1.0)
    bound = size_for(topics, traffic, trigger_s=2.0, reading=slow, configured_slots=2)
    assert bound is not None
    assert bound.slots == 9


def test_a_partition_with_more_than_a_slot_copies_is_named() -> None:
    size = size_for([of_batches("lz4", 4_000)], hours(offsets_for(90)), trigger_s=2.0, reading=None, configured_slots=8)
    assert size is not None
    assert size.is_partition_too_busy
    lines = lines_behind(report(of_batches("lz4", 4_000), is_sized=True, size=size))
    expected = "  orders-0 has 90.0 MB/s in the busiest hour, more than one slot copies (46.0 MB/s): its lag would grow"
    assert expected in lines


def test_without_a_sample_nothing_is_invented() -> None:
    unread = topic(reached=0)
    assert size_for([unread], hours(5), trigger_s=2.0, reading=None, configured_slots=8) is None
    lines = lines_behind(report(unread, is_sized=True))
    assert [line for line in lines if line.startswith("size: not known, because nothing was read")]


def test_a_log_without_traffic_needs_the_least() -> None:
    size = size_for([of_batches("none", 400_000)], hours(0, 0), trigger_s=2.0, reading=None, configured_slots=8)
    assert size is not None
    assert (size.slots, size.cores, size.mirror_cpu, size.target_cpu) == (1, 1, 0.0, 0.0)


@pytest.mark.parametrize(
    ("batch_bytes", "codec", "corpus"),
    [
        (900, "zstd", "lz4-small"),
        (15_000, "lz4", "zstd-16k"),
        (300_000, "zstd", "zstd-big"),
        (300_000, "gzip", "zstd-big"),
        (300_000, "snappy", "lz4-big"),
        (300_000, "none", "uncompressed"),
    ],
)
def test_batches_are_compared_with_those_of_the_corpus_that_is_most_like_them(
    batch_bytes: float, codec: str, corpus: str
) -> None:
    assert figures_for(batch_bytes, codec).corpus == corpus


def test_the_figures_are_those_of_the_pages(repository: Path) -> None:
    pages = repository / "docs" / "reference"
    benchmarks, performance, scale, overview = (
        path.read_text(encoding="utf-8")
        for path in (
            pages / "benchmarks.md",
            pages / "performance.md",
            pages / "scale.md",
            repository / "docs/concepts/overview.md",
        )
    )
    for figures in published_figures.ALL:
        row = re.search(rf"^\| `{figures.corpus}` \| \*\*shallow-mirror\*\* \|(.*)\|$", benchmarks, re.MULTILINE)
        assert row is not None
        _, cpu, _, _, _, target, *_ = (cell.strip(" *") for cell in row[1].split("|"))
        assert (float(cpu), float(target)) == (figures.mirror_cpu_s_per_gb, figures.target_cpu_s_per_gb)
        slot = re.search(rf"^\| one slot, `{figures.corpus}`.*?\| (\d+) \|", performance, re.MULTILINE)
        assert slot is not None
        assert float(slot[1]) == figures.slot_mb_per_s
    # "Each additional active partition costs 0.2 ms of driver and planner, and 0.5 ms of the worker that copies it."
    assert "costs 0.2 ms of driver and planner, and 0.5 ms of the worker" in " ".join(scale.split())
    overview = " ".join(overview.split())
    assert f"about {published_figures.MICRO_BATCH_CPU_S} CPU seconds for 10 active partitions" in overview
    assert "about 1 GB for a local Spark with two slots" in overview
    assert f"about {published_figures.SLOT_MEMORY_MB} MB for each further slot" in overview
    assert HEADROOM == 2.0


def test_the_traffic_of_a_cluster_is_measured_by_time(planned: Planned) -> None:
    now_ms = int(time.time() * 1000)
    planned.topic("orders", 2)
    stamps = [now_ms - 30 * HOUR_MS, now_ms - 3 * HOUR_MS - 60_000, now_ms - 2 * HOUR_MS - 60_000, now_ms - 60_000]
    planned.source.seed(
        ("orders", 0),
        *(batch(base, 1, timestamp=stamp, payload=record(0, value=b"x" * 1_000)) for base, stamp in enumerate(stamps)),
    )
    report = preflight_mirror(planned.config(trigger="2 seconds"), sample_bytes=None, is_sized=True, now_ms=lambda: now_ms)
    assert report.is_sized
    assert report.size is not None
    size_bytes = report.backlog.size_bytes / 4
    assert report.size.last_hour_bytes_per_s == pytest.approx(size_bytes / HOUR_S)
    assert report.size.busiest_hour_bytes_per_s == pytest.approx(size_bytes / HOUR_S)
    assert report.size.busiest_partition == ORDERS
    assert report.document()["size"]["cores"] == 1


def test_a_log_that_its_broker_cannot_search_by_time_is_not_known(planned: Planned) -> None:
    planned.topic("orders")
    planned.source.seed(("orders", 0), batch(0, 1, payload=b"no record", timestamp=int(time.time() * 1000)))
    report = preflight_mirror(planned.config(), sample_bytes=None, is_sized=True)
    assert report.size is None
    assert [finding.what for finding in report.findings if "the traffic of the last 24 hours is not known" in finding.what]
