"""Pure: batches of a topic, counted by the verdict of a mirror. Only headers are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from shallow_mirror.preflight.timestamp_limits import Bools, TimeLimits, too_new, too_old
from shallow_mirror.types import AUTO_COALESCE_BYTES, BatchLimits, SegmentKind, TopicPartition
from shallow_mirror.wire import CODEC_MASK, Codec, coalescing, find_small
from shallow_mirror.wire.batches import Admission, BatchIndex, Verdict, kind_of

MOST_RULES = 100
"""Rules may name what they found; a hostile source would make one of each batch. Those behind are counted as one."""

_OTHER_RULES = "other rules"
_DATA = (Verdict.RAW, Verdict.REBUILD, Verdict.REFUSE)
_NOT_OURS = (Verdict.BEYOND, Verdict.DROP_BELOW)

Longs = npt.NDArray[np.int64]


@dataclass(slots=True)
class Amount:
    """`size_bytes` as on the wire, headers included."""

    batch_count: int = 0
    record_count: int = 0
    size_bytes: int = 0

    def add(self, other: Amount) -> None:
        self.batch_count += other.batch_count
        self.record_count += other.record_count
        self.size_bytes += other.size_bytes


@dataclass(slots=True)
class RuleCount:
    """`topic_partition` and `base_offset` of the first batch that it was about; `remedy` is enough for the largest."""

    remedy: str
    topic_partition: TopicPartition
    base_offset: int
    largest_batch_bytes: int
    amount: Amount

    def document(self, rule: str) -> dict[str, Any]:
        first = {
            "topic": self.topic_partition.topic,
            "partition": self.topic_partition.partition,
            "base_offset": self.base_offset,
        }
        largest = self.largest_batch_bytes
        return {"rule": rule, "remedy": self.remedy, "first": first, "largest_batch_bytes": largest, **asdict(self.amount)}


@dataclass(slots=True)
class TopicCounts:
    """`read`: all batches at and above the positions; `data`: those of them that readers see, which are `raw`, in `rebuilds` or
    in `refusals`; the others in `dropped`. `codecs` divides `data`. `cheaper_combined`: those that `write.coalesce_bytes: auto`
    combines, whatever the setting is.
    """

    read: Amount = field(default_factory=Amount)
    data: Amount = field(default_factory=Amount)
    raw: Amount = field(default_factory=Amount)
    cheaper_combined: Amount = field(default_factory=Amount)
    codecs: dict[str, Amount] = field(default_factory=dict)
    rebuilds: dict[str, RuleCount] = field(default_factory=dict)
    refusals: dict[str, RuleCount] = field(default_factory=dict)
    dropped: dict[SegmentKind, Amount] = field(default_factory=dict)
    rebuilt_codecs: set[Codec] = field(default_factory=set)
    largest_batch_bytes: int = 0

    @property
    def rebuilt(self) -> Amount:
        return _sum(self.rebuilds)

    @property
    def refused(self) -> Amount:
        return _sum(self.refusals)

    def refuse(self, rule: str, count: RuleCount) -> None:
        _count(self.refusals, rule, count)

    def add(
        self, topic_partition: TopicPartition, index: BatchIndex, admission: Admission, limits: BatchLimits, times: TimeLimits
    ) -> None:
        """One partition's part of an answer. Both limits are the target topic's."""
        part, verdicts = _CountedPart(topic_partition, index), admission.verdicts
        is_data = np.isin(verdicts, _DATA)
        self.read.add(part.amount(~np.isin(verdicts, _NOT_OURS)))
        self.data.add(part.amount(is_data))
        self.largest_batch_bytes = max(self.largest_batch_bytes, int(part.sizes[is_data].max(initial=0)))
        self._count_codecs(part, is_data)
        self._count_dropped(part, admission)
        for refusal in admission.refusals:
            self.refuse(refusal.rule, part.rule_count(refusal.remedy, [refusal.index]))
        is_left = np.isin(verdicts, (Verdict.RAW, Verdict.REBUILD))
        for is_beyond, rule, remedy in _target_rules(part, limits, times):
            chosen = is_left & is_beyond
            if chosen.any():
                self.refuse(rule, part.rule_count(remedy, np.flatnonzero(chosen)))
            is_left = is_left & ~is_beyond
        is_raw = is_left & (verdicts == Verdict.RAW)
        automatic = replace(limits, coalesce_bytes=AUTO_COALESCE_BYTES, coalesces_where_cheaper=True)
        self.cheaper_combined.add(part.amount(is_raw & find_small(index, verdicts, automatic)))
        is_small = is_raw & find_small(index, verdicts, limits)
        if is_small.any():
            _count(self.rebuilds, coalescing.RULE, part.rule_count("", np.flatnonzero(is_small)))
            self.rebuilt_codecs.update(Codec(code) for code in np.unique(part.codecs[is_small]).tolist())
        self.raw.add(part.amount(is_raw & ~is_small))
        for rebuild in admission.rebuilds:
            if is_left[rebuild.index]:
                _count(self.rebuilds, rebuild.rule, part.rule_count(rebuild.remedy, [rebuild.index]))
                self.rebuilt_codecs.add(Codec(part.codecs[rebuild.index]))

    def _count_codecs(self, part: _CountedPart, is_data: Bools) -> None:
        for code in np.unique(part.codecs[is_data]).tolist():
            name = Codec(code).name.lower() if code <= max(Codec) else f"unknown ({code})"
            self.codecs.setdefault(name, Amount()).add(part.amount(is_data & (part.codecs == code)))

    def _count_dropped(self, part: _CountedPart, admission: Admission) -> None:
        is_dropped = ~np.isin(admission.verdicts, (*_DATA, *_NOT_OURS))
        kinds = {i: kind_of(admission, i) for i in np.flatnonzero(is_dropped).tolist()}
        for kind in set(kinds.values()):
            chosen = np.zeros(len(part.index), np.bool_)
            chosen[[i for i, batch_kind in kinds.items() if batch_kind is kind]] = True
            self.dropped.setdefault(kind, Amount()).add(part.amount(chosen))

    def document(self) -> dict[str, Any]:
        """For JSON."""
        return {
            **{name: asdict(getattr(self, name)) for name in ("read", "data", "raw", "rebuilt", "refused", "cheaper_combined")},
            "codecs": {name: asdict(amount) for name, amount in sorted(self.codecs.items())},
            "rebuilds": [count.document(rule) for rule, count in self.rebuilds.items()],
            "refusals": [count.document(rule) for rule, count in self.refusals.items()],
            "dropped": {kind.value: asdict(amount) for kind, amount in sorted(self.dropped.items())},
            "largest_batch_bytes": self.largest_batch_bytes,
        }


class _CountedPart:
    """Sizes, codecs and record counts of the batches of one index; counts that cannot be are taken for none."""

    def __init__(self, topic_partition: TopicPartition, index: BatchIndex) -> None:
        self.topic_partition, self.index, self.sizes = topic_partition, index, index.size_bytes
        self.codecs = index.headers["attributes"] & CODEC_MASK
        self.records: Longs = np.maximum(index.headers["records_count"], 0).astype(np.int64)

    def amount(self, chosen: Bools | Longs) -> Amount:
        """Of batches by a mask or by indices."""
        sizes = self.sizes[chosen]
        return Amount(len(sizes), int(self.records[chosen].sum()), int(sizes.sum()))

    def rule_count(self, remedy: str, indices: Sequence[int] | Longs) -> RuleCount:
        chosen = np.asarray(indices, np.int64)
        first, largest = int(self.index.headers["base_offset"][chosen[0]]), int(self.sizes[chosen].max())
        return RuleCount(remedy, self.topic_partition, first, largest, self.amount(chosen))


def _target_rules(part: _CountedPart, limits: BatchLimits, times: TimeLimits) -> Iterator[tuple[Bools, str, str]]:
    """Count batches that the target's broker refuses in any form, with the rule and the remedy."""
    most = limits.max_message_bytes
    is_one = (part.sizes > most) & (part.records == 1)
    yield (
        np.asarray(is_one, np.bool_),
        f"one record that alone is larger than max.message.bytes={most} of the target topic",
        f"Set its max.message.bytes to {int(part.sizes[is_one].max(initial=0))} or more",
    )
    for limit, is_beyond in ((times.oldest, too_old), (times.newest, too_new)):
        if limit is not None:
            yield is_beyond(part.index, limit, limits.log_append_time), limit.rule, limit.remedy


def _count(rules: dict[str, RuleCount], rule: str, count: RuleCount) -> None:
    if rule not in rules and len(rules) >= MOST_RULES:
        rule = _OTHER_RULES
    previous = rules.get(rule)
    if previous is None:
        rules[rule] = count
        return
    previous.amount.add(count.amount)
    if count.largest_batch_bytes > previous.largest_batch_bytes:
        previous.largest_batch_bytes, previous.remedy = count.largest_batch_bytes, count.remedy


def _sum(rules: dict[str, RuleCount]) -> Amount:
    total = Amount()
    for count in rules.values():
        total.add(count.amount)
    return total
