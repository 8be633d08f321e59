"""The page as text: nothing of it comes from elsewhere, and no name can become a part of it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from tests.report.contents import EVIL, a_picture, content, many_rows, rows_of_a_day
from tests.support.html_elements import Elements

from shallow_mirror.checkpoints.logs import GroupSyncPass
from shallow_mirror.checkpoints.rows import TopicOffsets
from shallow_mirror.report import charts
from shallow_mirror.report.page import page
from shallow_mirror.sinks import Side
from shallow_mirror.streaming.planning import LeftOutPartition
from shallow_mirror.types import SourcePartition


@pytest.mark.parametrize("count", [0, 1, 2, 90, pytest.param(100_000, marks=pytest.mark.thorough)])
def test_a_page_of_any_length_is_whole_and_small(count: int) -> None:
    text = page(content(many_rows(count), transactions=min(count, 2_000)))
    elements = Elements(text)
    assert elements.names.count("svg") == (0 if count == 0 else 7)
    assert len(text) < 600_000
    assert "nan" not in text.lower().replace("orders-east-west", "")
    assert not {"script", "link", "img", "iframe"} & set(elements.names)
    assert not {"src", "href"} & {name for name, _ in elements.attributes}
    assert "http" not in text
    assert "url(" not in text
    if count == 0:
        assert "No micro-batch has been observed yet." in text


def test_names_and_errors_are_text_whatever_they_hold() -> None:
    text = page(content(rows_of_a_day(5), name=EVIL, transactions=3))
    elements = Elements(text)
    assert "script" not in elements.names
    assert text.count("&lt;script&gt;") > 5
    assert not [name for name, _ in elements.attributes if name.startswith("on")]


def test_a_history_without_any_lag_says_so() -> None:
    rows = [row | {"lag_offsets": None} for row in rows_of_a_day(3)]
    assert "No data: the source did not report its log ends." in page(content(rows))


def test_what_is_waited_for_and_what_is_in_quarantine_is_said() -> None:
    made = content(rows_of_a_day(1))
    groups = GroupSyncPass(observed_at=datetime(2026, 5, 1, tzinfo=UTC), not_followed="grant Read", repeated_count=40)
    status = replace(
        made.status,
        waiting_for="the source",
        waiting_since_ms=0,
        target_problem="gone",
        older_tables="the tables are older than the target",
        quarantined_batches=3,
        groups=groups,
    )
    text = page(replace(made, status=status))
    assert "The mirror waits since 1970-01-01 00:00:00 for: the source" in text
    assert "The target does not answer: gone" in text
    assert "What follows is not the newest state, and its lag is wrong: the tables are older than the target" in text
    assert "In quarantine: 3 batches" in text
    assert "Consumer groups: a fail-over without the source repeats about 40 records" in text


def test_partitions_that_are_left_out_are_named_and_counted() -> None:
    made = content(rows_of_a_day(1))
    left_out = tuple(
        LeftOutPartition(
            source=SourcePartition("orders", "A", number),
            side=Side.TARGET,
            error_name="LEADER_NOT_AVAILABLE",
            reason="no leader",
            since_ms=0,
        )
        for number in range(7)
    )
    text = page(replace(made, status=replace(made.status, left_out=left_out)))
    assert text.count("is left out since 1970-01-01 00:00:00 because of the target: no leader") == 5
    assert "orders-0 is left out" in text
    assert "Left out as well: 2 more partitions." in text


def test_topics_that_keep_their_offsets_come_first() -> None:
    made = content(rows_of_a_day(1))
    topics = (
        TopicOffsets(topic="logs", offsets="translated"),
        TopicOffsets(topic=EVIL, offsets="preserved", filler_count=1_234),
    )
    text = page(replace(made, status=replace(made.status, topics=topics)))
    assert text.index("<td>preserved</td>") < text.index("<td>translated</td>")
    assert '<td>preserved</td><td class="number">1,234</td>' in text
    assert "script" not in Elements(text).names
    assert "Offsets of topics" not in page(made)


def test_a_report_of_part_of_the_history_says_so() -> None:
    assert "the last 2 are shown" in page(replace(content(rows_of_a_day(2)), micro_batch_count=500_000, is_cut=True))


@pytest.mark.parametrize(
    ("begin_s", "end_s"), [(0, 0.001), (0, 0.5), (10, 11), (0, 3_600), (0, 86_400 * 400), (1.79e9, 1.79e9 + 50)]
)
def test_a_time_axis_has_a_few_labels_in_order_between_its_ends(begin_s: float, end_s: float) -> None:
    ticks = [value for value, _ in charts.time_axis(begin_s, end_s).ticks]
    assert 2 <= len(ticks) <= 9
    assert ticks == sorted(ticks)
    assert ticks[0] >= begin_s
    assert ticks[-1] <= end_s


@pytest.mark.parametrize(
    ("lowest", "highest"), [(0, 0), (0, 1), (0, 0.0003), (0, 7.3e14), (-5, -5), (-1_000, 300), (10**12, 10**12 + 3)]
)
def test_a_value_axis_holds_its_values_and_has_a_few_round_labels(lowest: float, highest: float) -> None:
    axis = charts.value_axis(highest, lowest=lowest)
    assert axis.low <= lowest <= highest <= axis.high
    assert 2 <= len(axis.ticks) <= 8


def test_a_picture_without_copied_records_has_no_line_of_shifts() -> None:
    source = SourcePartition("t", "id", 0)
    picture = a_picture(source, 0)
    assert picture is not None
    assert picture.shifts == ()
    assert page(replace(content(rows_of_a_day(1)), picture=picture)).count("<svg") == 6
