"""Driver, for the cli: report of a preflight, as sentences and a table or as JSON. Its result comes first, and again last."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from shallow_mirror.plurals import counted, listed
from shallow_mirror.preflight.findings import Level, sentences
from shallow_mirror.preflight.report import PreflightReport, TopicReport
from shallow_mirror.preflight.size import HEADROOM, HOURS
from shallow_mirror.preflight.targets import TargetPlan
from shallow_mirror.preflight.verdict_counts import Amount, RuleCount, TopicCounts

_NUMBERS = ("partitions", "offsets", "read", "raw", "rebuilt", "refused")
_TITLES = {
    Level.STOPS: "the mirror would stop, or would not start:",
    Level.DOUBT: "warnings:",
    Level.UNKNOWN: "not known:",
}


def show(report: PreflightReport, console: Console, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.document()), file=console.file)
        return
    for line in lines_in_front(report):
        console.print(Text(line))
    if report.topics:
        console.print(_table(report.topics))
    for line in lines_behind(report):
        console.print(Text(line))
    console.print(Text(result_line(report)))


def lines_in_front(report: PreflightReport) -> list[str]:
    """Return the result, and its basis."""
    partitions = sum(topic.partition_count for topic in report.topics)
    begins = "the map's positions" if report.has_map else "read.start, no run yet"
    return [
        result_line(report),
        f"{report.source.alias} ({report.source.cluster_id}) to {report.target.alias} ({report.target.cluster_id}): "
        f"{_number(len(report.topics), 'topic', 'topics')}, {_number(partitions, 'partition', 'partitions')}, from {begins}",
        _reach(report),
    ]


def result_line(report: PreflightReport) -> str:
    return f"mirror {report.mirror}: {_answer(report)}"


def _answer(report: PreflightReport) -> str:
    if report.is_fine:
        return "no batch that was read would be refused"
    stops = len(sentences(finding for finding in report.findings if finding.level is Level.STOPS))
    refused = sum(topic.counts.refused.batch_count for topic in report.topics)
    results = [_number(stops, "finding stops it", "findings stop it")] if stops else []
    results += [_number(refused, "batch would be refused", "batches would be refused")] if refused else []
    return ", ".join(results)


def _reach(report: PreflightReport) -> str:
    """How much of the backlog the counts are of."""
    backlog, read = report.backlog, sum(topic.counts.read.size_bytes for topic in report.topics)
    data = Amount()
    for topic in report.topics:
        data.add(topic.counts.data)
    seen = f", {_number(data.record_count, 'record', 'records')} in {_number(data.batch_count, 'batch', 'batches')}"
    if backlog.is_exact:
        return f"all {backlog.offsets:,} offsets were read: {_size(read)}{seen}"
    offsets = sum(sample.read_offsets for topic in report.topics for sample in topic.samples.values())
    bound = (
        "" if report.sample_bytes is None else f" (a sample: about {_size(report.sample_bytes)} of each partition; --all for all)"
    )
    return f"{offsets:,} of {backlog.offsets:,} offsets were read: {_size(read)}{seen}{bound}"


def lines_behind(report: PreflightReport) -> list[str]:
    lines = []
    for level, title in _TITLES.items():
        findings = sentences(finding for finding in report.findings if finding.level is level)
        lines += [title, *(f"  {sentence}" for sentence in findings)] if findings else []
    lines += _rule_lines("refused:", (topic.counts.refusals for topic in report.topics))
    lines += _rule_lines("rebuilt:", (topic.counts.rebuilds for topic in report.topics))
    lines += _kinds_lines("codecs:", report.topics, lambda counts: counts.codecs)
    lines += _kinds_lines("dropped:", report.topics, lambda counts: {kind.value: of_it for kind, of_it in counts.dropped.items()})
    lines += _small_batches_lines(report)
    lines += _created_lines(report.topics)
    lines += ["schema ids:", *(f"  {use}" for use in report.schema_uses)] if report.schema_uses else []
    lines += _size_lines(report) if report.is_sized else []
    return [*lines, *_time_lines(report)]


@dataclass(slots=True)
class _Rule:
    first: RuleCount
    topics: list[str] = field(default_factory=list)
    amount: Amount = field(default_factory=Amount)


def _by_rule(counts_by_topic: Iterable[dict[str, RuleCount]]) -> dict[str, _Rule]:
    """Over all topics."""
    rules: dict[str, _Rule] = {}
    for of_topic in counts_by_topic:
        for rule, count in of_topic.items():
            merged = rules.setdefault(rule, _Rule(count))
            merged.topics.append(count.topic_partition.topic)
            merged.amount.add(count.amount)
    return rules


def _rule_lines(title: str, counts_by_topic: Iterable[dict[str, RuleCount]]) -> list[str]:
    lines = [f"  {_rule_line(rule, merged)}" for rule, merged in _by_rule(counts_by_topic).items()]
    return [title, *lines] if lines else []


def _rule_line(rule: str, merged: _Rule) -> str:
    batches = f"{_number(merged.amount.batch_count, 'batch', 'batches')} ({_size(merged.amount.size_bytes)})"
    remedy = f". {merged.first.remedy}" if merged.first.remedy else ""
    first = f"first {merged.first.topic_partition} offset {merged.first.base_offset}"
    return f"{batches} of {listed(merged.topics)}: {rule}; {first}{remedy}"


def _small_batches_lines(report: PreflightReport) -> list[str]:
    """Return lines about batches so small that combining them saves CPU, and about the setting for them."""
    topics = [topic for topic in report.topics if topic.counts.cheaper_combined.batch_count]
    if not topics:
        return []
    small, data = Amount(), Amount()
    for topic in topics:
        small.add(topic.counts.cheaper_combined)
        data.add(topic.counts.data)
    share = f"{_number(small.batch_count, 'batch', 'batches')} of {data.batch_count:,}"
    sizes = f"{_size(small.size_bytes)}, {_size(small.size_bytes / small.batch_count)} on average"
    setting = "null" if report.coalesce_bytes is None else str(report.coalesce_bytes)
    would = "would combine them, which takes less CPU of mirror and target together"
    effect = "combines them" if setting == "auto" else f"(now {setting}) {would}"
    return [
        "small batches:",
        f"  {share} of {listed(topic.topic for topic in topics)} ({sizes}): write.coalesce_bytes: auto {effect}",
    ]


def _created_lines(topics: Iterable[TopicReport]) -> list[str]:
    """Topics that would get the same settings together."""
    alike: dict[str, list[str]] = {}
    for plan in (topic.target for topic in topics if topic.target.created_with is not None):
        settings = ", ".join(f"{name}={value}" for name, value in sorted((plan.created_with or {}).items()))
        replicas = None if plan.replication_factor is None else _number(plan.replication_factor, "replica", "replicas")
        partitions = _number(plan.partition_count, "partition", "partitions")
        alike.setdefault(f"{replicas or 'the default number of replicas of the target'}, {settings}", []).append(
            f"{plan.topic} ({partitions})"
        )
    return ["would be created:", *(f"  {listed(names)}: {how}" for how, names in alike.items())] if alike else []


def _time_lines(report: PreflightReport) -> Iterator[str]:
    backlog = report.backlog
    about = "" if backlog.is_exact else "about "
    unread = (
        f"; nothing is known of {_number(backlog.unread_partitions, 'partition', 'partitions')}"
        if backlog.unread_partitions
        else ""
    )
    yield f"backlog: {about}{_size(backlog.size_bytes)}{unread}"
    for pace in report.paces:
        seconds = pace.seconds_for(backlog.size_bytes)
        yield (
            f"  {'at least ' if pace.is_bound else ''}{_duration(seconds)} at {_size(pace.bytes_per_s)}/s: {pace.basis} "
            f"({_size(pace.measured_bytes)} in {pace.measured_s:,.1f} s)"
        )
    if not report.paces and backlog.size_bytes:
        yield "  duration unknown: too little was read, and this mirror has no recorded throughput"


def _table(topics: Iterable[TopicReport]) -> Table:
    # Names wrap, numbers never do: the whole table fits into 100 columns.
    table = Table(title="batches by what a mirror would do", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in ("topic", "target", *_NUMBERS):
        is_number = name in _NUMBERS
        table.add_column(name, justify="right" if is_number else "left", overflow="fold", no_wrap=is_number)
    for topic in topics:
        counts = topic.counts
        table.add_row(
            Text(topic.topic),
            Text(_target(topic.target, topic.topic)),
            f"{topic.partition_count:,}",
            f"{topic.backlog.offsets:,}",
            _size(counts.read.size_bytes),
            f"{counts.raw.batch_count:,}",
            f"{counts.rebuilt.batch_count:,}",
            f"{counts.refused.batch_count:,}",
        )
    return table


def _target(plan: TargetPlan, topic: str) -> str:
    name = "same name" if plan.topic == topic else plan.topic
    if plan.exists:
        return f"{name}, +{counted(plan.added_partitions, 'partition')}" if plan.added_partitions else name
    return f"{name}, new" if plan.created_with is not None else f"{name}, missing"


def _kinds_lines(title: str, topics: Iterable[TopicReport], amounts: Callable[[TopicCounts], Mapping[str, Amount]]) -> list[str]:
    """Return a line for each kind of batches, over all topics."""
    totals: dict[str, Amount] = {}
    names: dict[str, list[str]] = {}
    for topic in topics:
        for kind, amount in amounts(topic.counts).items():
            totals.setdefault(kind, Amount()).add(amount)
            names.setdefault(kind, []).append(topic.topic)
    return (
        [
            title,
            *(
                f"  {kind}: {_number(total.batch_count, 'batch', 'batches')} ({_size(total.size_bytes)}) of {listed(names[kind])}"
                for kind, total in sorted(totals.items())
            ),
        ]
        if totals
        else []
    )


def _size_lines(report: PreflightReport) -> Iterator[str]:
    """Yield what a mirror needs for the traffic; what is published comes with the name of its corpus."""
    size = report.size
    if size is None:
        yield "size: not known, because nothing was read, or the source does not say where its logs ended before"
        return
    yield "size, by the traffic of the source (measured) and published figures (of the documentation, by corpus):"
    yield (
        f"  traffic: {_size(size.busiest_hour_bytes_per_s)}/s in the busiest of the last {HOURS} hours, "
        f"{_size(size.last_hour_bytes_per_s)}/s in the last one"
    )
    for traffic in size.classes:
        yield (
            f"  batches as {traffic.corpus} ({_size(traffic.batch_bytes)} on average): {_size(traffic.bytes_per_s)}/s of "
            f"{listed(traffic.topics)}"
        )
    if size.unknown_partitions:
        partitions = _number(size.unknown_partitions, "partition", "partitions")
        yield f"  left out: {partitions} of which nothing was read"
    yield (
        f"  mirror: {_number(size.cores, 'core', 'cores')}, {size.memory_mb / 1_000:.1f} GB of memory, "
        f"{_number(size.slots, 'slot', 'slots')} (write.slots: {size.configured_slots}): enough for {HEADROOM:.0f} times the "
        f"busiest hour, which keeps {size.mirror_cpu:.2f} cores busy"
    )
    yield f"  target: {size.target_cpu:.2f} cores of all its brokers together in the busiest hour, with one replica"
    if size.slots > size.configured_slots:
        yield f"  raise write.slots to {size.slots}"
    if size.is_partition_too_busy:
        rate, of_slot = _size(size.busiest_partition_bytes_per_s), _size(size.slot_bytes_per_s)
        more = f"more than one slot copies ({of_slot}/s): its lag would grow"
        yield f"  {size.busiest_partition} has {rate}/s in the busiest hour, {more}"


def _number(count: int, singular: str, plural: str) -> str:
    return f"{count:,} {singular if count == 1 else plural}"


def _size(size_bytes: float) -> str:
    for unit in ("B", "kB", "MB"):
        if size_bytes < 1_000:
            return f"{size_bytes:,.0f} B" if unit == "B" else f"{size_bytes:,.1f} {unit}"
        size_bytes /= 1_000
    return f"{size_bytes:,.1f} GB"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{seconds:,.1f} s"
    hours, minutes = divmod(round(whole / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
