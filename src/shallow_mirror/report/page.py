"""Driver: the report as one HTML page: no script, nothing from elsewhere, light and dark. Every text is escaped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from shallow_mirror.checkpoints.logs.runs import CountedProblem
from shallow_mirror.checkpoints.rows import PRESERVED, PausedInterval, TopicOffsets
from shallow_mirror.operations.status import RunStatus, StatusReport, total
from shallow_mirror.plurals import counted
from shallow_mirror.report import charts
from shallow_mirror.report.charts import short
from shallow_mirror.report.html_parts import duration, moment, moment_of, section, table, whole_page
from shallow_mirror.report.offset_map_chart import MapPicture
from shallow_mirror.report.pauses import TOPICS_NAMED, in_window, paused_bands, paused_label
from shallow_mirror.report.time_series import BATCHES, STEPS, Groups, MicroBatchHistory, grouped, lag_points, rates
from shallow_mirror.report.verifications import ShownVerification
from shallow_mirror.streaming.planning import LeftOutPartition
from shallow_mirror.streaming.watch import PartitionStatus

PARTITIONS_SHOWN, TOPICS_SHOWN, PROBLEMS_SHOWN, RUNS_SHOWN, PAUSES_SHOWN = 30, 50, 50, 20, 50
PARTITIONS_NAMED = 5

_STEPS_CSS = tuple(zip(("s8", "s2", "s1", "s5", "s3", "s6"), STEPS, strict=True))
_BATCHES_CSS = tuple(zip(("s1", "s2", "s7", "s4"), BATCHES, strict=True))

_NO_MICRO_BATCH = "No micro-batch has been observed yet."


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportContent:
    """`problems` and `runs`: of the last runs, newest last. `micro_batch_count`: of the mirror's life; `is_cut`: `history` has
    the last ones only.

    `picture` None: no partition has an offset. `pauses`: of the mirror's life, in order of time. `verifications`: the last ones,
    newest first.
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
    verifications: Sequence[ShownVerification]
    picture: MapPicture | None


def page(content: ReportContent) -> str:
    status = content.status
    name = escape(status.mirror)
    body = "".join(
        [
            f"<header><h1>{name}</h1><p>{escape(content.source)} → {escape(content.target)} · {moment(status.at_ms)} · "
            f"shallow-mirror {escape(content.version)}</p></header>",
            _notices(status, content.pauses, content.verifications),
            _tiles(content),
            *_plots(content),
            section("Partitions", "those with the largest lag", _partitions(status.partitions)),
            section(
                "Offsets of topics", "preserved: equal on both clusters, translated: by the offset map", _topics(status.topics)
            )
            if status.topics
            else "",
            section("Pauses", "of topics, the newest first, UTC", _pauses(content.pauses, status.at_ms))
            if content.pauses
            else "",
            section(
                "Verifications",
                "by `shallow-mirror verify`, the newest first, UTC; copied since: source offsets",
                _verifications(content),
            ),
            section("Problems", "problems of the last runs, the newest first", _problems(content.problems)),
            section("Runs", "the newest first", _runs(content.runs, content.status.run)),
        ]
    )
    return whole_page(f"{status.mirror}: {_kind(status)} report", body)


def _kind(status: StatusReport) -> str:
    return "restore" if status.is_restore else "mirror"


def _notices(status: StatusReport, pauses: Sequence[PausedInterval], verifications: Sequence[ShownVerification]) -> str:
    lines = [] if status.run is None else [_run_sentence(status.run)]
    if status.run is None:
        lines.append("No run yet.")
    if (older := status.older_sentence) is not None:
        lines.append(f"{older[:1].upper()}{older[1:]}")
    if status.source_problem is not None:
        lines.append(f"The source does not answer: {status.source_problem}")
    if status.target_problem is not None:
        lines.append(f"The target does not answer: {status.target_problem}")
    if status.waiting_for is not None:
        lines.append(f"The {_kind(status)} waits since {moment(status.waiting_since_ms)} for: {status.waiting_for}")
    if status.quarantined_batches:
        lines.append(
            f"In quarantine: {counted(status.quarantined_batches, 'batch')}, {counted(status.quarantined_bytes, 'byte')}."
        )
    if status.groups is not None and (repeats := status.groups.repeats_sentence) is not None:
        lines.append(f"Consumer groups: {repeats}")
    lines.append(_last_verification(verifications))
    handed_over = {paused.topic for paused in status.paused_topics if paused.is_handed_over}
    lines += _not_copied("Paused by an operator", [pause for pause in pauses if pause.topic not in handed_over])
    lines += _not_copied("Handed over", [pause for pause in pauses if pause.topic in handed_over])
    lines += _left_out(status.left_out)
    lines += [f"Open at the source: {transaction.sentence(status.at_ms)}" for transaction in status.open_transactions[:5]]
    return "".join(f'<p class="notice">{escape(line)}</p>' for line in lines)


def _last_verification(verifications: Sequence[ShownVerification]) -> str:
    """Return the result of the last verification that has ended, with its time: it says nothing about later records."""
    ended = [verification for verification in verifications if verification.recorded.finished_at_ms is not None]
    if not ended:
        return "No verification that has ended is recorded: `shallow-mirror verify` compares both clusters."
    last = ended[0]
    newer = " A newer one has not ended." if verifications[0] is not last else ""
    return (
        f"Last verification: ended {moment(last.recorded.finished_at_ms)} UTC, of {last.scope}: {last.outcome}; found equal: "
        f"{last.equal}; not covered: {last.not_covered}; copied since: {counted(last.copied_since_offsets, 'offset')}.{newer}"
    )


def _left_out(left_out: Sequence[LeftOutPartition]) -> list[str]:
    """Return a sentence for each of the first partitions, and the number of the others."""
    lines = [
        f"{left.source.topic_partition} is left out since {moment(left.since_ms)} because of the {left.side.value}: {left.reason}"
        for left in left_out[:PARTITIONS_NAMED]
    ]
    more = len(left_out) - PARTITIONS_NAMED
    return [*lines, f"Left out as well: {counted(more, 'more partition')}."] if more > 0 else lines


def _not_copied(why: str, pauses: Sequence[PausedInterval]) -> list[str]:
    """Return a sentence with the topics of which nothing is copied now, or none."""
    paused = [pause for pause in pauses if pause.until_ms is None]
    if not paused:
        return []
    names = ", ".join(f"{pause.topic} since {moment(pause.since_ms)}" for pause in paused[:TOPICS_NAMED])
    more = len(paused) - TOPICS_NAMED
    return [f"{why}: {names}" + (f" and {counted(more, 'more topic')}." if more > 0 else ".")]


def _run_sentence(run: RunStatus) -> str:
    who = f"Run {run.run_epoch} on {run.host} (pid {run.pid}), since {moment(run.started_at_ms)}"
    if run.outcome is not None:
        return f"{who}: ended {moment(run.ended_at_ms)}: {run.outcome}"
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
            ("latest partition", "?" if latest_ms is None else duration(latest_ms / 1000), "behind"),
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
            ("a micro-batch", duration(float(median)), f"median; p99 {duration(float(high))}"),
        ]
    made = "".join(
        f"<li><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(more)}</small></li>" for name, value, more in tiles
    )
    return f'<ul class="tiles">{made}</ul>'


def _plots(content: ReportContent) -> list[str]:
    history = content.history
    if len(history) == 0:
        empty = f"<p>{_NO_MICRO_BATCH}</p>"
        return [section("Micro-batches", "", empty), section("Offset map", _about_map(content.picture), _map(content.picture))]
    series = rates(history)
    frame = _TimeFrame.of(content, list(series.edges_s))
    return [
        _throughput(frame, "bytes", "B/s", list(series.bytes_per_s)),
        _throughput(frame, "records", "records/s", list(series.records_per_s)),
        _offsets_left(frame, history),
        section(
            "Where the time of a micro-batch goes",
            "ms, mean of the micro-batches of a bar; without the time between them",
            _bars("latency of a micro-batch by step, ms", grouped(history, history.step_ms, is_mean=True), _STEPS_CSS, "ms"),
        ),
        section(
            "Batches",
            "of the micro-batches of a bar; dropped: markers and aborted ones",
            _bars("batches by verdict", grouped(history, history.batches, is_mean=False), _BATCHES_CSS, "batches"),
        ),
        section("Offset map", _about_map(content.picture), _map(content.picture)),
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
        when = f"{moment(edges_s[0] * 1000)} to {moment(edges_s[-1] * 1000)}, UTC"
        window = (edges_s[0], edges_s[-1], content.status.at_ms / 1000)
        bands = paused_bands(content.pauses, *window)
        paused = paused_label(pause.topic for pause in in_window(content.pauses, *window)) if bands else ""
        suffix, legend = (f"; {paused} (shaded)", charts.legend([("paused", paused)])) if bands else ("", "")
        return cls(edges_s, charts.time_axis(edges_s[0], edges_s[-1]), when, bands, suffix, legend)


def _throughput(frame: _TimeFrame, what: str, unit: str, per_s: Sequence[float]) -> str:
    y = charts.value_axis(max(per_s))
    chart = charts.area_chart(f"{what} a second{frame.suffix}", frame.x, y, frame.edges_s, per_s, unit, frame.bands)
    return section(f"Throughput, {what} a second", frame.when, chart + frame.legend)


def _offsets_left(frame: _TimeFrame, history: MicroBatchHistory) -> str:
    at_s, lags = lag_points(history)
    chart = "<p>No data: the source did not report its log ends.</p>"
    if len(lags):
        y, points = charts.value_axis(max(4.0, lags.max())), list(zip(at_s, lags, strict=True))
        chart = charts.line_chart(f"offsets left{frame.suffix}", frame.x, y, points, "offsets", frame.bands) + frame.legend
    about = f"by each micro-batch, of those its plan knew of, over all partitions; {frame.when}"
    return section("Offsets left", about, chart)


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
            None if partition.lag_ms is None else duration(partition.lag_ms / 1000),
        )
        for partition in ordered[:PARTITIONS_SHOWN]
    ]
    more = len(ordered) - len(rows)
    columns = ("topic", "partition", "position", "log end", "lag, offsets", "behind")
    return table(columns, rows) + (f"<p>and {more:,} more</p>" if more else "")


def _topics(topics: Sequence[TopicOffsets]) -> str:
    ordered = sorted(topics, key=lambda topic: (topic.offsets != PRESERVED, topic.topic))
    rows = [(topic.topic, topic.offsets, topic.filler_count) for topic in ordered[:TOPICS_SHOWN]]
    more = len(ordered) - len(rows)
    return table(("topic", "offsets", "fillers"), rows) + (f"<p>and {more:,} more</p>" if more else "")


def _problems(problems: Sequence[CountedProblem]) -> str:
    rows = [
        (
            moment(problem.last_at_ms),
            problem.run_epoch,
            problem.problem.kind.value,
            problem.occurrences,
            str(problem.problem),
            problem.problem.remedy,
        )
        for problem in reversed(problems[-PROBLEMS_SHOWN:])
    ]
    return table(("last", "run", "kind", "times", "problem", "remedy"), rows, wide=(4, 5))


def _verifications(content: ReportContent) -> str:
    rows = [
        (
            moment(shown.recorded.began_at_ms),
            "not ended" if shown.recorded.finished_at_ms is None else moment(shown.recorded.finished_at_ms),
            shown.scope,
            f"{shown.outcome}; found equal: {shown.equal}",
            shown.not_covered,
            shown.copied_since_offsets,
        )
        for shown in content.verifications
    ]
    return table(("began", "ended", "asked for", "result", "not covered", "copied since"), rows, wide=(2, 3, 4))


def _pauses(pauses: Sequence[PausedInterval], now_ms: int) -> str:
    # By their ends: a topic that has been paused for long, and still is, belongs to the newest.
    ordered = sorted(pauses, key=lambda pause: (pause.until_ms is None, pause.until_ms or 0, pause.since_ms), reverse=True)
    rows = [
        (
            pause.topic,
            moment(pause.since_ms),
            "still paused" if pause.until_ms is None else moment(pause.until_ms),
            duration(max(0, (now_ms if pause.until_ms is None else pause.until_ms) - pause.since_ms) / 1000),
        )
        for pause in ordered[:PAUSES_SHOWN]
    ]
    more = len(ordered) - len(rows)
    return table(("topic", "paused", "resumed", "duration"), rows) + (f"<p>and {more:,} more</p>" if more else "")


def _runs(runs: Sequence[Mapping[str, Any]], current: RunStatus | None) -> str:
    running = current.run_epoch if current is not None and current.is_alive else None
    rows = [
        (
            run["run_epoch"],
            f"{run['host']} (pid {run['pid']})",
            moment_of(run["started_at"]),
            moment_of(run["ended_at"]),
            run["outcome"] or ("running" if run["run_epoch"] == running else "no exit was recorded"),
            run["version"],
        )
        for run in list(reversed(runs))[:RUNS_SHOWN]
    ]
    return table(("run", "on", "started", "ended", "outcome", "version"), rows)
