from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from shallow_mirror.demo.checker import Comparison
from shallow_mirror.demo.history import Difference, DifferenceKind
from shallow_mirror.demo.map_rows import Totals
from shallow_mirror.demo.summary import DemoResult, Kill, show
from shallow_mirror.demo.traffic import TopicTraffic, TrafficReport
from shallow_mirror.types import TopicPartition

RESULT = DemoResult(
    traffic=TrafficReport(
        topics=(TopicTraffic(topic="orders.audit", partitions=1, written_records=1200, visible_records=1000),),
        committed_txns=3,
        aborted_txns=1,
    ),
    totals={
        ("orders.audit", "data"): Totals(rows=4, records=1000, batches=40, rebuilt_batches=2, size_bytes=3_400_000),
        ("orders.audit", "aborted"): Totals(rows=1, records=200, batches=9, size_bytes=600_000),
        ("orders.audit", "commit"): Totals(rows=3, batches=3),
    },
    kill=Kill(after_s=12.25, visible_offsets=300, open_on=(TopicPartition("orders.audit", 0),)),
    recovery=(("m-0 (producer id 3, epoch 7)", "committed"),),
    comparison=Comparison(
        source_records={"orders.audit": 1000}, target_records={"orders.audit": 1000}, translated_offsets=1000, differences=()
    ),
    surprises=(),
    seconds=100.0,
)


def rendered(result: DemoResult, *, is_kept: bool = True) -> str:
    console = Console(file=io.StringIO(), width=120)
    show(console, result, conf=Path("/w/mirror.yaml"), tables=Path("/w/tables"), is_kept=is_kept)
    text = console.file
    assert isinstance(text, io.StringIO)
    return text.getvalue()


def test_a_good_demo_says_what_was_copied_dropped_killed_and_recovered() -> None:
    text = rendered(RESULT)
    for part in (
        "1,200",
        "38",
        "3.4",
        "records of transactions that were aborted",
        "12.2 s",
        "m-0 (producer id 3, epoch 7): committed",
    ):
        assert part in text
    assert "differences: 0" in text
    assert "FROM delta.`/w/tables/offset_map` GROUP BY kind" in text
    assert RESULT.is_equal


def test_a_deleted_folder_is_not_offered() -> None:
    assert "/w/" not in rendered(RESULT, is_kept=False)


def test_differences_and_other_wrong_things_are_counted_and_listed() -> None:
    lost = Difference(kind=DifferenceKind.LOST, topic_partition=TopicPartition("orders.audit", 0), source_offset=7)
    bad = replace(RESULT, comparison=replace(RESULT.comparison, differences=(lost, lost)), surprises=("a hole",), kill=None)
    text = rendered(bad)
    assert "differences: 3 (2 lost)" in text
    assert "wrong: a hole" in text
    assert "killed: never" in text
    assert not bad.is_equal
