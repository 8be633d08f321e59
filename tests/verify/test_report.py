from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from shallow_mirror.progress import progress_on
from shallow_mirror.types import TopicPartition
from shallow_mirror.verify import Difference, DifferenceKind, Unchecked, VerifyProgress
from shallow_mirror.verify.differences import merged
from shallow_mirror.verify.report import KEPT_DIFFERENCES, SHOWN_DIFFERENCES, Tally, VerifyReport

A, B = TopicPartition("orders", 3), TopicPartition("copy", 3)


def missing(start: int, end: int, reason: str = "r") -> Difference:
    return Difference(
        kind=DifferenceKind.MISSING, source=A, target=B, source_start=start, source_end=end,
        target_start=start + 10, target_end=end + 10, record_count=end - start, reason=reason,
    )  # fmt: skip


def report_of(tally: Tally) -> VerifyReport:
    return VerifyReport(
        mirror="m", audit_id="a", topics=("orders",), is_deep=False, continues=False, seconds=1.5, partition_count=4,
        **tally.counts(), unchecked=dict(tally.unchecked), difference_counts=dict(tally.difference_counts),
        differences=tuple(tally.differences),
    )  # fmt: skip


def test_neighbours_on_both_sides_are_reported_as_one() -> None:
    pieces = [missing(5, 6), missing(3, 5), missing(6, 9, "another reason"), missing(20, 21)]
    assert [(segment.source_start, segment.source_end, segment.record_count) for segment in merged(pieces)] == [
        (3, 6, 3),
        (6, 9, 3),
        (20, 21, 1),
    ]


def test_a_sentence_names_topic_partition_and_offsets_of_both_sides() -> None:
    assert missing(5, 9).sentence == "missing: source orders-3 offsets 5 to 8, target copy-3 offsets 15 to 18: r"
    assert missing(5, 6).sentence == "missing: source orders-3 offset 5, target copy-3 offset 15: r"


def test_a_difference_survives_json() -> None:
    difference = missing(5, 9)
    assert Difference.from_document(json.loads(json.dumps(difference.document()))) == difference


def test_all_differences_are_counted_and_the_first_kept_and_fewer_printed() -> None:
    tally = Tally(record_count=7)
    tally.add_differences(missing(n * 10, n * 10 + 1) for n in range(KEPT_DIFFERENCES + 5))
    report = report_of(tally)
    assert (report.is_equal, len(report.differences)) == (False, KEPT_DIFFERENCES)
    lines = report.sentences()
    assert lines[0] == "1,005 differences: 1005 missing"
    assert lines[-1] == "  and 995 more (--json lists up to 1000)"
    assert len([line for line in lines if line.startswith("  missing: ")]) == SHOWN_DIFFERENCES


@pytest.mark.parametrize(
    ("counts", "ends_with"),
    [
        (
            {"batch_count": 1_200, "opened_batch_count": 3},
            "found equal: 1,200 batches by checksum and header, 3 batches by records",
        ),
        ({"batch_count": 8}, "found equal: 8 batches by checksum and header"),
        ({"opened_batch_count": 8}, "found equal: 8 batches by records"),
        ({}, "found equal"),
    ],
)
def test_ways_of_comparing_that_no_batch_went_are_left_out(counts: dict[str, Any], ends_with: str) -> None:
    assert report_of(Tally(record_count=7, **counts)).sentences()[1].endswith(ends_with)


def test_the_report_for_machines_holds_every_field() -> None:
    tally = Tally(record_count=7, unchecked=Counter({Unchecked.SOURCE_DELETED: 3}))
    tally.add_differences([missing(1, 2)])
    document = json.loads(json.dumps(report_of(tally).document()))
    assert document["is_equal"] is False
    assert document["difference_counts"] == {"missing": 1}
    assert document["unchecked"] == {"deleted on the source (retention or DeleteRecords)": 3}
    assert document["differences"][0]["sentence"] == missing(1, 2).sentence
    assert {"source_topic", "source_partition", "source_start", "target_topic", "target_start"} <= document["differences"][
        0
    ].keys()


def test_progress_in_a_pipe_is_a_line_now_and_then() -> None:
    now, out = [0.0], io.StringIO()
    at = VerifyProgress(topic_partition=A, done_offsets=30, total_offsets=120, read_bytes=5_000_000, difference_count=0)
    with progress_on(Console(file=out), "verify", lambda: now[0]) as on_progress:
        for now[0] in (1.0, 4.9, 5.0, 7.0, 11.0):
            on_progress(at)
    assert out.getvalue().splitlines() == ["verify: 25 % of 120 offsets; orders-3, 5 MB read, no difference"] * 2


def test_progress_on_a_terminal_is_a_bar() -> None:
    out = io.StringIO()
    at = VerifyProgress(topic_partition=A, done_offsets=30, total_offsets=120, read_bytes=5_000_000, difference_count=2)
    with progress_on(Console(file=out, force_terminal=True, width=120), "verify") as on_progress:
        on_progress(at)
    assert "orders-3, 5 MB read, 2 differences" in out.getvalue()
    assert "25%" in out.getvalue()


def test_a_report_says_where_offsets_are_preserved_and_how_many_fillers_were_accounted_for() -> None:
    plain = report_of(Tally(record_count=7))
    assert not [line for line in plain.sentences() if "preserved" in line]
    kept = replace(plain, preserved_partition_count=3, filler_count=1_234)
    assert kept.sentences()[2] == (
        "offsets are preserved in 3 partitions: each record was looked for at its source offset; fillers, which no reader may see, "
        "took 1,234 offsets"
    )
    assert (kept.document()["preserved_partition_count"], kept.document()["filler_count"]) == (3, 1_234)
