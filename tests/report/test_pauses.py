"""Paused topics in the report: shaded bands, a legend, a sentence and a table."""

from __future__ import annotations

import re
from dataclasses import replace
from html import unescape

import pytest
from tests.report.contents import BEGIN, EVIL, content, rows_of_a_day
from tests.support.html_elements import Elements

from shallow_mirror.checkpoints.rows import PausedInterval
from shallow_mirror.operations.status import PausedTopic
from shallow_mirror.report import charts
from shallow_mirror.report.charts import Band
from shallow_mirror.report.page import PAUSES_SHOWN, page
from shallow_mirror.report.pauses import BANDS_SHOWN, paused_bands, paused_label

_BEGIN_MS = round(BEGIN.timestamp() * 1000)
_BAND = re.compile(r'<rect class="paused" x="([\d.]+)" y="12" width="([\d.]+)" height="188.0"><title>(.*?)</title></rect>')


def seconds(topic: str, since_s: float, until_s: float | None) -> PausedInterval:
    return PausedInterval(topic, round(since_s * 1000), None if until_s is None else round(until_s * 1000))


@pytest.mark.parametrize(
    ("intervals", "expected"),
    [
        ([], []),
        ([seconds("a", 20, 30)], [Band(20, 30, "paused: a")]),
        ([seconds("a", 20, None)], [Band(20, 90, "paused: a")]),
        ([seconds("a", 95, None)], []),
        ([seconds("a", 1, 10), seconds("a", 100, 120), seconds("b", 0, 5)], []),
        ([seconds("a", 1, 15), seconds("a", 85, 200)], [Band(10, 15, "paused: a"), Band(85, 100, "paused: a")]),
        ([seconds("a", 1, 200)], [Band(10, 100, "paused: a")]),
        ([seconds("a", 20, 30), seconds("a", 30, 40)], [Band(20, 30, "paused: a"), Band(30, 40, "paused: a")]),
        ([seconds("b", 20, 30), seconds("a", 20, 30)], [Band(20, 30, "paused: a, b")]),
        (
            [seconds("a", 20, 40), seconds("b", 30, None)],
            [Band(20, 30, "paused: a"), Band(30, 40, "paused: a, b"), Band(40, 90, "paused: b")],
        ),
    ],
)
def test_bands_lie_within_the_chart_and_name_the_topics_that_are_paused_there(
    intervals: list[PausedInterval], expected: list[Band]
) -> None:
    assert paused_bands(intervals, 10, 100, 90) == expected


def test_an_interval_without_an_end_fills_a_chart_that_ends_before_now() -> None:
    assert paused_bands([seconds("a", 20, None)], 10, 100, 5_000) == [Band(20, 100, "paused: a")]


def test_of_many_bands_the_newest_are_shown_and_of_many_topics_a_few_are_named() -> None:
    bands = paused_bands([seconds("a", 2 * number, 2 * number + 1) for number in range(1_000)], 0, 2_000, 2_000)
    assert (len(bands), bands[-1]) == (BANDS_SHOWN, Band(1_998, 1_999, "paused: a"))
    assert paused_label(["d", "b", "a", "c", "e", "a"]) == "paused: a, b, c and 2 more"


def test_a_band_stands_behind_the_data_at_its_time() -> None:
    x, y = charts.Axis(0, 100, 78, 746), charts.value_axis(10)
    bands = [Band(25, 50, "paused: a & b"), Band(50, 50.01, "paused: c")]
    expected = [("245.0", "167.0", "paused: a &amp; b"), ("412.0", "1.0", "paused: c")]
    line = charts.line_chart("lag", x, y, [(0, 1), (100, 5)], "offsets", bands)
    area = charts.area_chart("rate", x, y, [0, 40, 80, 100], [1, 2, 3], "B/s", bands)
    for chart in (line, area):
        assert _BAND.findall(chart) == expected
        assert chart.index('class="paused"') < chart.index('class="area"')
    hover = [unescape(title) for title in re.findall(r'class="hover"[^>]*><title>(.*?)</title>', area, re.DOTALL)]
    assert hover == ["00:00:00: 1 B/s\npaused: a & b", "00:00:40: 2 B/s\npaused: a & b", "00:01:20: 3 B/s"]


def test_the_page_shades_the_three_charts_over_time_and_says_who_was_paused_when() -> None:
    made = content(rows_of_a_day(100))
    now_ms = made.status.at_ms
    pauses = [
        PausedInterval("early", _BEGIN_MS - 7_200_000, _BEGIN_MS - 3_600_000),
        PausedInterval("orders", _BEGIN_MS + 60_000, _BEGIN_MS + 120_000),
        PausedInterval("logs", now_ms - 60_000, None),
    ]
    text = page(replace(made, pauses=pauses))
    Elements(text)
    begin_s, end_s = made.history.began_s.min(), made.history.visible_s.max()
    left = 78 + (_BEGIN_MS / 1000 + 60 - begin_s) / (end_s - begin_s) * (746 - 78)
    bands = _BAND.findall(text)
    assert [label for _, _, label in bands] == ["paused: orders"] * 3
    assert [float(low) for low, _, _ in bands] == pytest.approx([left] * 3, abs=0.06)
    assert text.count('<li><span class="key paused"></span>paused: orders</li>') == 3
    for title in ("bytes a second", "records a second", "offsets left"):
        assert f'role="img"><title>{title}; paused: orders (shaded)</title>' in text
    assert "Paused by an operator: logs since 2026-11-20 18:39:00." in text
    table = re.findall(r"<h2>Pauses</h2>.*?</section>", text)[0]
    assert re.findall(r"<td>(.*?)</td>", table) == [
        *("logs", "2026-11-20 18:39:00", "still paused", "60.0 s"),
        *("orders", "2026-11-20 08:01:00", "2026-11-20 08:02:00", "60.0 s"),
        *("early", "2026-11-20 06:00:00", "2026-11-20 07:00:00", "60.0 min"),
    ]


def test_a_page_of_a_mirror_that_was_never_paused_has_no_mark_of_it() -> None:
    text = page(content(rows_of_a_day(100)))
    assert 'class="paused"' not in text
    assert "key paused" not in text.partition("</style>")[2]
    assert "<h2>Pauses</h2>" not in text


def test_a_mirror_that_was_paused_before_its_first_micro_batch_says_so() -> None:
    text = page(replace(content(), pauses=[PausedInterval(topic, _BEGIN_MS, None) for topic in "abcde"]))
    assert "Paused by an operator: a since 2026-11-20 08:00:00, b since" in text
    assert "and 2 more topics." in text
    assert text.count("still paused") == 5


def test_a_topic_that_was_handed_over_is_not_called_paused_by_an_operator() -> None:
    made = content()
    handed_over = PausedTopic(topic="a", since_ms=_BEGIN_MS, is_handed_over=True)
    status = replace(made.status, paused_topics=(handed_over,))
    text = page(replace(made, status=status, pauses=[PausedInterval(topic, _BEGIN_MS, None) for topic in "ab"]))
    assert "Handed over: a since 2026-11-20 08:00:00." in text
    assert "Paused by an operator: b since 2026-11-20 08:00:00." in text


def test_many_pauses_of_topics_with_any_name_leave_the_page_small_and_their_names_text() -> None:
    pauses = [PausedInterval(EVIL, _BEGIN_MS + number * 100, _BEGIN_MS + number * 100 + 50) for number in range(5_000)]
    text = page(replace(content(rows_of_a_day(300)), pauses=pauses))
    assert "script" not in Elements(text).names
    assert text.count('class="paused"') == 3 * BANDS_SHOWN
    assert f"<p>and {5_000 - PAUSES_SHOWN:,} more</p>" in text
    assert len(text) < 600_000
