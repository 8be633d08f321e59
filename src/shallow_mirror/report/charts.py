"""Pure: plots as inline SVG. Colours are classes of the page's style sheet, so that they follow light and dark.

Texts come from outside and are escaped here. Every plot has a `<title>`, and so has each mark that a pointer can rest on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape

WIDTH, HEIGHT, SHIFT_HEIGHT = 760, 230, 170
_MOST_DOTS = 60
_LEAST_SEEN = 2.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 78, 14, 12, 30
_TIME_STEPS_S = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400, 172800, 604800, 1209600, 2592000)
_MOST_TIME_TICKS = 8
_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True, slots=True)
class Axis:
    """From data to positions in the chart; `ticks` are (value, label)."""

    low: float
    high: float
    place_low: float
    place_high: float
    ticks: Sequence[tuple[float, str]] = ()

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return round(self.place_low + share * (self.place_high - self.place_low), 1)


@dataclass(frozen=True, slots=True)
class Band:
    """[begin, end) of the x axis, shaded behind the data over the whole height. Bands of a chart do not overlap."""

    begin: float
    end: float
    label: str


def short(value: float) -> str:
    """1.2 M, 340, 0.25."""
    size = abs(value)
    for factor, prefix in _PREFIXES:
        if size >= factor:
            return f"{value / factor:.3g} {prefix}"
    return f"{value:.3g}"


def at(seconds: float, step_s: float = 1) -> str:
    """UTC; as exact as ticks that are `step_s` apart need it."""
    moment = datetime.fromtimestamp(seconds, UTC)
    if step_s >= 86_400:
        return moment.strftime("%d %b")
    return moment.strftime("%H:%M" if step_s >= 60 else "%H:%M:%S")


def value_axis(highest: float, *, lowest: float = 0.0, height: int = HEIGHT) -> Axis:
    """Round steps, beginning at `lowest` or below."""
    span = max(highest - lowest, 1e-9) if highest > lowest else max(abs(highest), 1.0)
    rough = span / 4
    power = 10 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough)
    first, last = math.floor(lowest / step), math.ceil(max(highest, lowest + step) / step - 1e-9)
    ticks = [(number * step, short(number * step)) for number in range(first, last + 1)]
    return Axis(first * step, last * step, height - _BOTTOM, _TOP, ticks)


def time_axis(begin_s: float, end_s: float) -> Axis:
    span = max(end_s - begin_s, 1e-3)
    step = next((step_s for step_s in _TIME_STEPS_S if span / step_s <= _MOST_TIME_TICKS), math.ceil(span / _MOST_TIME_TICKS))
    first = math.ceil(begin_s / step) * step
    ticks = [float(first + number * step) for number in range(_MOST_TIME_TICKS + 1) if first + number * step <= end_s]
    if len(ticks) < 2:
        ticks, step = [begin_s, end_s], 1
    return Axis(begin_s, end_s, _LEFT, WIDTH - _RIGHT, [(tick, at(tick, step)) for tick in ticks])


def offset_axis(first: int, end: int) -> Axis:
    """Whole numbers."""
    round_ones = value_axis(end, lowest=first).ticks
    ticks = [(value, f"{round(value):,}") for value, _ in round_ones if first <= value <= end and value == round(value)]
    return Axis(first, end, _LEFT, WIDTH - _RIGHT, ticks)


def line_chart(title: str, x: Axis, y: Axis, points: Sequence[tuple[float, float]], unit: str, bands: Sequence[Band] = ()) -> str:
    """Over time, from 0: a value holds until the next. A few points have dots with labels."""
    positions = [(x(at_x), y(at_y)) for at_x, at_y in points]
    corners = [(after[0], before[1]) for before, after in itertools.pairwise(positions)]
    path = _path(itertools.chain.from_iterable(itertools.zip_longest(positions, corners, fillvalue=positions[-1])))
    marks = _bands(x, y, bands)
    if len(positions) > 1:
        base = y(0.0)
        marks.append(f'<polygon class="area" points="{positions[0][0]},{base} {path} {positions[-1][0]},{base}"/>')
        marks.append(f'<polyline class="line" points="{path}"/>')
    if len(positions) <= _MOST_DOTS:
        marks += [
            f'<circle class="dot" cx="{left}" cy="{top}" r="3">{_title(f"{at(at_x)}: {short(at_y)} {unit}")}</circle>'
            for (left, top), (at_x, at_y) in zip(positions, points, strict=True)
        ]
    return _framed(title, x, y, marks)


def shift_chart(title: str, x: Axis, y: Axis, points: Sequence[tuple[float, float]]) -> str:
    """Over offsets; `y` need not begin at 0."""
    positions = [(x(offset), y(shift)) for offset, shift in points]
    marks = [f'<polyline class="line" points="{_path(positions)}"/>']
    if len(positions) <= 2 * _MOST_DOTS:
        marks += [
            f'<circle class="dot" cx="{left}" cy="{top}" r="2.5">{_title(f"source offset {offset:,.0f}: {shift:,.0f}")}</circle>'
            for (left, top), (offset, shift) in zip(positions, points, strict=True)
        ]
    return _framed(title, x, y, marks, SHIFT_HEIGHT)


def area_chart(
    title: str, x: Axis, y: Axis, edges: Sequence[float], values: Sequence[float], unit: str, bands: Sequence[Band] = ()
) -> str:
    """Draw a step for each value between two edges. The areas for the pointer cover the bands, so they have their labels, too."""
    base = y(0.0)
    outline = " ".join(
        f"{x(begin)},{y(value)} {x(end)},{y(value)}" for begin, end, value in zip(edges[:-1], edges[1:], values, strict=True)
    )
    marks = [
        *_bands(x, y, bands),
        f'<polygon class="area" points="{x(edges[0])},{base} {outline} {x(edges[-1])},{base}"/>',
        f'<polyline class="line" points="{outline}"/>',
        *(
            f'<rect class="hover" x="{x(begin)}" y="{_TOP}" width="{max(0.5, x(end) - x(begin)):.1f}" height="{base - _TOP:.1f}">'
            f"{_title(f'{at(begin)}: {short(value)} {unit}{_label_between(begin, end, bands)}')}</rect>"
            for begin, end, value in zip(edges[:-1], edges[1:], values, strict=True)
        ),
    ]
    return _framed(title, x, y, marks)


def stacked_bars(
    title: str, y: Axis, parts: Sequence[tuple[str, str]], labels: Sequence[str], rows: Sequence[Sequence[float]], unit: str
) -> str:
    """Draw a bar for each row, of `parts` (class, name), the first at the bottom. A few labels stand below."""
    room = (WIDTH - _LEFT - _RIGHT) / max(1, len(rows))
    width = min(46.0, max(1.0, room - (2 if room > 5 else 0.4)))
    marks = []
    for number, (label, row) in enumerate(zip(labels, rows, strict=True)):
        left = _LEFT + number * room + (room - width) / 2
        label_parts, below, pieces = [label], 0.0, []
        for (css, name), value in zip(parts, row, strict=True):
            if value > 0:
                bottom = y(below)
                high = max(_LEAST_SEEN, bottom - y(below + value))
                geometry = f'x="{left:.1f}" y="{bottom - high:.1f}" width="{width:.1f}" height="{high:.1f}"'
                pieces.append(f'<rect class="{css}" {geometry}/>')
                label_parts.append(f"{name}: {short(value)} {unit}")
                below += value
        marks.append(f"<g>{_title(chr(10).join(label_parts))}{''.join(pieces)}</g>")
    every = max(1, math.ceil(len(labels) / 8))
    ticks = [(_LEFT + (number + 0.5) * room, labels[number].partition(" to ")[0]) for number in range(0, len(labels), every)]
    x = Axis(_LEFT, WIDTH - _RIGHT, _LEFT, WIDTH - _RIGHT, ticks)
    return _framed(title, x, y, marks)


@dataclass(frozen=True, slots=True)
class Lane:
    """A line of a picture with intervals: (begin, end, share in 0 to 1) on the x axis."""

    name: str
    css: str
    pieces: Sequence[tuple[float, float, float]]


def lanes(title: str, x: Axis, rows: Sequence[Lane]) -> str:
    """Piece beside piece; the smaller its share, the paler it is, but never invisible."""
    height, gap = 18, 7
    marks, top = [], _TOP
    for lane in rows:
        marks.append(f'<text class="tick" x="{_LEFT - 8}" y="{top + height - 5}" text-anchor="end">{escape(lane.name)}</text>')
        marks.append(f'<rect class="lane" x="{_LEFT}" y="{top}" width="{WIDTH - _LEFT - _RIGHT}" height="{height}"/>')
        for begin, end, share in lane.pieces:
            left, width = x(begin), max(1.0, x(end) - x(begin))
            label = f"offsets {round(begin):,} to {round(end):,}: {share:.2%} {lane.name}"
            marks.append(
                f'<rect class="pieces {lane.css}" x="{left}" y="{top}" width="{width:.1f}" height="{height}" '
                f'fill-opacity="{0.35 + 0.65 * min(1.0, share):.2f}">{_title(label)}</rect>'
            )
        top += height + gap
    bottom = top + 4
    marks += [
        f'<text class="tick" x="{x(value)}" y="{bottom + 12}" text-anchor="{_anchor(x, value)}">{escape(label)}</text>'
        for value, label in x.ticks
    ]
    return _svg(title, marks, bottom + 20)


def _bands(x: Axis, y: Axis, bands: Sequence[Band]) -> list[str]:
    base = y(0.0)
    return [
        f'<rect class="paused" x="{x(band.begin)}" y="{_TOP}" width="{max(1.0, x(band.end) - x(band.begin)):.1f}" '
        f'height="{base - _TOP:.1f}">{_title(band.label)}</rect>'
        for band in bands
    ]


def _label_between(begin: float, end: float, bands: Sequence[Band]) -> str:
    """Return a further line with the label of the band that covers most of [begin, end), or nothing."""
    covered = [(min(end, band.end) - max(begin, band.begin), band.label) for band in bands]
    share, label = max(covered, default=(0.0, ""))
    return f"\n{label}" if share > 0 else ""


def legend(entries: Iterable[tuple[str, str]]) -> str:
    items = "".join(f'<li><span class="key {css}"></span>{escape(name)}</li>' for css, name in entries)
    return f'<ul class="legend">{items}</ul>'


def _framed(title: str, x: Axis, y: Axis, marks: Sequence[str], height: int = HEIGHT) -> str:
    base = height - _BOTTOM
    grid = [
        f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value)}" y2="{y(value)}"/>'
        f'<text class="tick" x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        for value, label in y.ticks
    ]
    below = [
        f'<line class="mark" x1="{x(value)}" x2="{x(value)}" y1="{base}" y2="{base + 4}"/>'
        f'<text class="tick" x="{x(value)}" y="{base + 18}" text-anchor="{_anchor(x, value)}">{escape(label)}</text>'
        for value, label in x.ticks
    ]
    axis = f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{base}" y2="{base}"/>'
    return _svg(title, [*grid, *marks, axis, *below], height)


def _path(positions: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{left},{top}" for left, top in positions)


def _anchor(x: Axis, value: float) -> str:
    """Labels at the right edge end there."""
    return "end" if x(value) > WIDTH - _RIGHT - 24 else "middle"


def _svg(title: str, marks: Sequence[str], height: float) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" role="img">{_title(title)}{"".join(marks)}</svg>'


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>"
