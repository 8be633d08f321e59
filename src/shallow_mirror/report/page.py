"""Driver: the report as one HTML page: no script, nothing from elsewhere, light and dark. Every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from typing import Any

import numpy as np

from shallow_mirror.checkpoints.logs.runs import CountedProblem
from shallow_mirror.checkpoints.rows import PRESERVED, PausedInterval, TopicOffsets
from shallow_mirror.operations.status import RunStatus, StatusReport, total
from shallow_mirror.plurals import counted
from shallow_mirror.report import charts
from shallow_mirror.report.charts import short
from shallow_mirror.report.offset_map_chart import MapPicture
from shallow_mirror.report.pauses import TOPICS_NAMED, in_window, paused_bands, paused_label
from shallow_mirror.report.style import STYLE
from shallow_mirror.report.time_series import BATCHES, STEPS, Groups, MicroBatchHistory, grouped, lag_points, rates
from shallow_mirror.streaming.watch import PartitionStatus

PARTITIONS_SHOWN, TOPICS_SHOWN, PROBLEMS_SHOWN, RUNS_SHOWN, PAUSES_SHOWN = 30, 50, 50, 20, 50

_STEPS_CSS = tuple(zip(("s8", "s2", "s1", "s5", "s3", "s6"), STEPS, strict=True))
_BATCHES_CSS = tuple(zip(("s1", "s2", "s7", "s4"), BATCHES, strict=True))

_NO_MICRO_BATCH = "No micro-batch has been observed yet."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContent:
    """`problems` and `runs`: of the last runs, newest last. `micro_batch_count`: of the mirror's life; `is_cut`: `history` has
    the last ones only.

    `picture` None: no partition has an offset. `pauses`: of the mirror's life, in order of time.
    """

    status: StatusReport
    source: str
    target: str
    version: str
    micro_batch_count: int
    is_cut: bool
    history: MicroBatchHistory
    problems: Sequence[CountedProblem]
    runs: Sequence[Mapping[str, Any]]
    pauses: Sequence[PausedInterval]
    picture: MapPicture | None


def page(content: ReportContent) -> str:
    status = content.status
    name = escape(status.mirror)
    body = "".join(
        [
            f"<header><h1>{name}</h1><p>{escape(content.source)} → {escape(content.target)} · {_moment(status.at_ms)} · "
            f"shallow-mirror {escape(content.version)}</p></header>",
            _notices(status, content.pauses),
            _tiles(content),
            *_plots(content),
            _section("Partitions", "those with the largest lag", _partitions(status.partitions)),
            _section(
                "Offsets of topics", "preserved: equal on both clusters, translated: by the offset map", _topics(status.topics)
            )
            if status.topics
            else "",
            _section("Pauses", "of topics, the newest first, UTC", _pauses(content.pauses, status.at_ms))
            if content.pauses
            else "",
            _section("Problems", "problems of the last runs, the newest first", _problems(content.problems)),
            _section("Runs", "the newest first", _runs(content.runs, content.status.run)),
        ]
    )
    head = (
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{name}: {_kind(status)} report</title><style>{STYLE}</style>'
    )
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body><main>{body}</main></body></html>\n'


def _kind(status: StatusReport) -> str:
    return "restore" if status.is_restore else "mirror"


def _notices(status: StatusReport, pauses: Sequence[PausedInterval]) -> str:
    lines = [] if status.run is None else [_run_sentence(status.run)]
    if status.run is None:
        lines.append("No run yet.")
    if status.source_problem is not None:
        lines.append(f"The source does not answer: {status.source_problem}")
    if status.target_problem is not None:
        lines.append(f"The target does not answer: {status.target_problem}")
    if status.waiting_for is not None:
        lines.append(f"The {_kind(status)} waits since {_moment(status.waiting_since_ms)} for: {status.waiting_for}")
    if status.quarantined_batches:
        lines.append(
            f"In quarantine: {counted(status.quarantined_batches, 'batch')}, {counted(status.quarantined_bytes, 'byte')}."
        )
    if status.groups is not None and (repeats := status.groups.repeats_sentence) is not None:
        lines.append(f"Consumer groups: {repeats}")
    lines += _paused_now(pauses)
    lines += [f"Open at the source: {transaction.sentence(status.at_ms)}" for transaction in status.open_transactions[:5]]
    return "".join(f'<p class="notice">{escape(line)}</p>' for line in lines)


def _paused_now(pauses: Sequence[PausedInterval]) -> list[str]:
    """Return a sentence with the topics that are paused, or none."""
    paused = [pause for pause in pauses if pause.until_ms is None]
    if not paused:
        return []
    names = ", ".join(f"{pause.topic} since {_moment(pause.since_ms)}" for pause in paused[:TOPICS_NAMED])
    more = len(paused) - TOPICS_NAMED
    return [f"Paused by an operator: {names}" + (f" and {counted(more, 'more topic')}." if more > 0 else ".")]


def _run_sentence(run: RunStatus) -> str:
    who = f"Run {run.run_epoch} on {run.host} (pid {run.pid}), since {_moment(run.started_at_ms)}"
    if run.outcome is not None:
        return f"{who}: ended {_moment(run.ended_at_ms)}: {run.outcome}"
    if run.is_alive is None:
        return f"{who}: on another host, no exit was recorded"
    return f"{who}: running" if run.is_alive else f"{who}: not running; no exit was recorded (killed?)"


def _tiles(content: ReportContent) -> str:
    history, status = content.history, content.status
    lag = total([partition.lag_offsets for partition in status.partitions])
    ages = [partition.lag_ms for partition in status.partitions]
    latest_ms = None if not ages or None in ages else max(age_ms for age_ms in ages if age_ms is not None)
    tiles = [("partitions", f"{len(status.partitions):,}", "")]
    if status.partitions:
        tiles = [
            ("lag now", "?" if lag is None else f"{lag:,}", "offsets"),
            ("latest partition", "?" if latest_ms is None else _duration(latest_ms / 1000), "behind"),
            *tiles,
        ]
    covered = f"the last {len(content.history):,} are shown" if content.is_cut else ""
    tiles.append(("micro-batches", f"{content.micro_batch_count:,}", covered))
    if len(history):
        copied = history.batches[:, :2].sum()
        share = history.batches[:, 0].sum() / copied if copied else 1.0
        median, high = np.percentile(history.seconds, [50, 99])
        tiles += [
            ("records", short(history.records.sum()), f"{short(history.size_bytes.sum())}B"),
            ("raw", f"{share:.1%}", f"of {short(copied)} batches"),
            ("a micro-batch", _duration(float(median)), f"median; p99 {_duration(float(high))}"),
        ]
    made = "".join(
        f"<li><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(more)}</small></li>" for name, value, more in tiles
    )
    return f'<ul class="tiles">{made}</ul>'


def _plots(content: ReportContent) -> list[str]:
    history = content.history
    if len(history) == 0:
        empty = f"<p>{_NO_MICRO_BATCH}</p>"
        return [_section("Micro-batches", "", empty), _section("Offset map", _about_map(content.picture), _map(content.picture))]
    series = rates(history)
    frame = _TimeFrame.of(content, list(series.edges_s))
    return [
        _throughput(frame, "bytes", "B/s", list(series.bytes_per_s)),
        _throughput(frame, "records", "records/s", list(series.records_per_s)),
        _offsets_left(frame, history),
        _section(
            "Where the time of a micro-batch goes",
            "ms, mean of the micro-batches of a bar; without the time between them",
            _bars("latency of a micro-batch by step, ms", grouped(history, history.step_ms, is_mean=True), _STEPS_CSS, "ms"),
        ),
        _section(
            "Batches",
            "of the micro-batches of a bar; dropped: markers and aborted ones",
            _bars("batches by verdict", grouped(history, history.batches, is_mean=False), _BATCHES_CSS, "batches"),
        ),
        _section("Offset map", _about_map(content.picture), _map(content.picture)),
    ]


@dataclass(frozen=True, slots=True)
class _TimeFrame:
    """Common parts of charts over time: the axis, its sentence, and shaded pauses (`suffix` and `legend` name them)."""

    edges_s: Sequence[float]
    x: charts.Axis
    when: str
    bands: Sequence[charts.Band]
    suffix: str
    legend: str

    @classmethod
    def of(cls, content: ReportContent, edges_s: Sequence[float]) -> _TimeFrame:
        when = f"{_moment(edges_s[0] * 1000)} to {_moment(edges_s[-1] * 1000)}, UTC"
        window = (edges_s[0], edges_s[-1], content.status.at_ms / 1000)
        bands = paused_bands(content.pauses, *window)
        paused = paused_label(pause.topic for pause in in_window(content.pauses, *window)) if bands else ""
        suffix, legend = (f"; {paused} (shaded)", charts.legend([("paused", paused)])) if bands else ("", "")
        return cls(edges_s, charts.time_axis(edges_s[0], edges_s[-1]), when, bands, suffix, legend)


def _throughput(frame: _TimeFrame, what: str, unit: str, per_s: Sequence[float]) -> str:
    y = charts.value_axis(max(per_s))
    chart = charts.area_chart(f"{what} a second{frame.suffix}", frame.x, y, frame.edges_s, per_s, unit, frame.bands)
    return _section(f"Throughput, {what} a second", frame.when, chart + frame.legend)


def _offsets_left(frame: _TimeFrame, history: MicroBatchHistory) -> str:
    at_s, lags = lag_points(history)
    chart = "<p>No data: the source did not report its log ends.</p>"
    if len(lags):
        y, points = charts.value_axis(max(4.0, lags.max())), list(zip(at_s, lags, strict=True))
        chart = charts.line_chart(f"offsets left{frame.suffix}", frame.x, y, points, "offsets", frame.bands) + frame.legend
    about = f"by each micro-batch, of those its plan knew of, over all partitions; {frame.when}"
    return _section("Offsets left", about, chart)


def _bars(title: str, groups: Groups, parts: Sequence[tuple[str, str]], unit: str) -> str:
    labels = [
        f"{first}" if first == last else f"{first} to {last}" for first, last in zip(groups.first, groups.last, strict=True)
    ]
    y = charts.value_axis(float(groups.values.sum(axis=1).max()))
    bars = charts.stacked_bars(title, y, parts, labels, groups.values.tolist(), unit)
    return f'{bars}<p class="axis-name">micro-batch</p>{charts.legend(parts)}'


def _about_map(picture: MapPicture | None) -> str:
    if picture is None:
        return ""
    rows = counted(picture.row_count, "row")
    return f"{picture.source.topic_partition}: source offsets {picture.first:,} to {picture.end:,} in {rows}"


def _map(picture: MapPicture | None) -> str:
    if picture is None:
        return "<p>The map has no offset yet.</p>"
    x = charts.offset_axis(picture.first, picture.end)
    kinds = charts.lanes(f"kinds of the offsets of {picture.source.topic_partition}", x, picture.lanes)
    if not picture.shifts:
        return kinds + '<p class="axis-name">source offset</p>'
    values = [shift for _, shift in picture.shifts]
    room = 2 if max(values) - min(values) < 4 else 0
    y = charts.value_axis(max(values) + room, lowest=min(values) - room, height=charts.SHIFT_HEIGHT)
    shift = charts.shift_chart("source offset minus target offset", x, y, picture.shifts)
    return (
        f"{kinds}"
        '<p class="axis-name">source offset; below: how much larger it is than the offset of the same record on the target</p>'
        f"{shift}"
    )


def _partitions(partitions: Sequence[PartitionStatus]) -> str:
    ordered = sorted(partitions, key=lambda partition: (-(partition.lag_offsets or 0), partition.source))
    rows = [
        (
            partition.source.topic,
            partition.source.partition,
            partition.position,
            partition.end,
            partition.lag_offsets,
            None if partition.lag_ms is None else _duration(partition.lag_ms / 1000),
        )
        for partition in ordered[:PARTITIONS_SHOWN]
    ]
    more = len(ordered) - len(rows)
    columns = ("topic", "partition", "position", "log end", "lag, offsets", "behind")
    return _table(columns, rows) + (f"<p>and {more:,} more</p>" if more else "")


def _topics(topics: Sequence[TopicOffsets]) -> str:
    ordered = sorted(topics, key=lambda topic: (topic.offsets != PRESERVED, topic.topic))
    rows = [(topic.topic, topic.offsets, topic.filler_count) for topic in ordered[:TOPICS_SHOWN]]
    more = len(ordered) - len(rows)
    return _table(("topic", "offsets", "fillers"), rows) + (f"<p>and {more:,} more</p>" if more else "")


def _problems(problems: Sequence[CountedProblem]) -> str:
    rows = [
        (
            _moment(problem.last_at_ms),
            problem.run_epoch,
            problem.problem.kind.value,
            problem.occurrences,
            str(problem.problem),
            problem.problem.remedy,
        )
        for problem in reversed(problems[-PROBLEMS_SHOWN:])
    ]
    return _table(("last", "run", "kind", "times", "problem", "remedy"), rows, wide=(4, 5))


def _pauses(pauses: Sequence[PausedInterval], now_ms: int) -> str:
    # By their ends: a topic that has been paused for long, and still is, belongs to the newest.
    ordered = sorted(pauses, key=lambda pause: (pause.until_ms is None, pause.until_ms or 0, pause.since_ms), reverse=True)
    rows = [
        (
            pause.topic,
            _moment(pause.since_ms),
            "still paused" if pause.until_ms is None else _moment(pause.until_ms),
            _duration(max(0, (now_ms if pause.until_ms is None else pause.until_ms) - pause.since_ms) / 1000),
        )
        for pause in ordered[:PAUSES_SHOWN]
    ]
    more = len(ordered) - len(rows)
    return _table(("topic", "paused", "resumed", "duration"), rows) + (f"<p>and {more:,} more</p>" if more else "")


def _runs(runs: Sequence[Mapping[str, Any]], current: RunStatus | None) -> str:
    running = current.run_epoch if current is not None and current.is_alive else None
    rows = [
        (
            run["run_epoch"],
            f"{run['host']} (pid {run['pid']})",
            _moment_of(run["started_at"]),
            _moment_of(run["ended_at"]),
            run["outcome"] or ("running" if run["run_epoch"] == running else "no exit was recorded"),
            run["version"],
        )
        for run in list(reversed(runs))[:RUNS_SHOWN]
    ]
    return _table(("run", "on", "started", "ended", "outcome", "version"), rows)


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]], wide: Sequence[int] = ()) -> str:
    if not rows:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(_cell(value, number in wide) for number, value in enumerate(row))}</tr>" for row in rows)
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: Any, is_wide: bool) -> str:
    if isinstance(value, int):
        return f'<td class="number">{value:,}</td>'
    css = ' class="wide"' if is_wide else ""
    return f"<td{css}>{escape('?' if value is None else str(value))}</td>"


def _section(title: str, about: str, body: str) -> str:
    more = f'<p class="about">{escape(about)}</p>' if about else ""
    return f"<section><h2>{escape(title)}</h2>{more}{body}</section>"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s" if seconds >= 1 else f"{seconds * 1000:.0f} ms"


def _moment(at_ms: float | None) -> str:
    return "?" if at_ms is None else datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _moment_of(at: datetime | None) -> str:
    return "" if at is None else _moment(at.timestamp() * 1000)
