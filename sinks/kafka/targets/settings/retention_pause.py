"""Pure: settings of a target topic that keep restored records, and the losses with other settings.

Brokers delete by the timestamps of records, by the size of a log, and by key. What an archive holds is older than what its topic
held, so the settings of a live topic would delete it right after the restore.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shallow_mirror.plurals import counted
from shallow_mirror.sinks.kafka.targets.target_topic_policy import (
    LIMIT_BEFORE_3_6,
    NO_LIMIT_MS,
    TIMESTAMP_LIMITS,
    is_compacted,
    is_stamping,
)

NOT_BY_AGE_OR_SIZE: Mapping[str, str] = {"retention.ms": "-1", "retention.bytes": "-1"}
NOT_BY_KEY: Mapping[str, str] = {"min.compaction.lag.ms": str(NO_LIMIT_MS), "max.compaction.lag.ms": str(NO_LIMIT_MS)}
"""The maximum must not be below the minimum. `cleanup.policy` stays: fillers and verifications depend on it."""

Longs = npt.NDArray[np.int64]


def pause_of(configs: Mapping[str, str]) -> dict[str, str]:
    """Return settings for a new topic instead of these, so that nothing is deleted; nothing if they delete nothing.

    A setting that is missing would be the default of the target's brokers, which are not known here.
    """
    policy = configs.get("cleanup.policy")
    pause: dict[str, str] = {}
    if policy is None or "delete" in policy.split(","):
        pause |= NOT_BY_AGE_OR_SIZE
    if policy is None or "compact" in policy.split(","):
        pause |= NOT_BY_KEY
    return {name: value for name, value in pause.items() if configs.get(name) != value}


@dataclass(slots=True)
class RestoredAmount:
    """Restored part of one topic, in whole rows of the archive."""

    newest_ms: list[int] = field(default_factory=list)
    """Highest timestamp of each row."""
    oldest_ms: list[int] = field(default_factory=list)
    """Timestamp with which the oldest batch of each row begins."""
    record_counts: list[int] = field(default_factory=list)
    partition_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def record_count(self) -> int:
        return sum(self.record_counts)

    def add(self, partition: int, oldest_ms: int, newest_ms: int, record_count: int, size_bytes: int) -> None:
        self.newest_ms.append(newest_ms)
        self.oldest_ms.append(oldest_ms)
        self.record_counts.append(record_count)
        self.partition_bytes[partition] = self.partition_bytes.get(partition, 0) + size_bytes

    def older(self, than_ms: int) -> tuple[int, int]:
        """Return how many records are older, at least and at most: rows have the times of their ends only.

        Records without a timestamp are not counted: brokers take the time of their file.
        """
        counts = np.array(self.record_counts, np.int64)
        least = _sum(counts, np.array(self.newest_ms, np.int64), than_ms)
        return least, max(least, _sum(counts, np.array(self.oldest_ms, np.int64), than_ms))

    def newer(self, than_ms: int) -> int:
        """Return how many records are in rows that have a newer one."""
        return int(np.array(self.record_counts, np.int64)[np.array(self.newest_ms, np.int64) > than_ms].sum())


def _sum(counts: Longs, times_ms: Longs, than_ms: int) -> int:
    return int(counts[(times_ms >= 0) & (times_ms < than_ms)].sum())


def deletions(settings: Mapping[str, str], amount: RestoredAmount, now_ms: int) -> list[str]:
    """Return the restored records that brokers with these settings of a target topic would delete.

    Sentences lack their beginning, "target topic X".
    """
    sentences = []
    if "delete" in settings.get("cleanup.policy", "delete").split(","):
        retention_ms, retention_bytes = (int(settings.get(name, -1)) for name in NOT_BY_AGE_OR_SIZE)
        older = (0, 0) if retention_ms < 0 or is_stamping(settings) else amount.older(now_ms - retention_ms)
        if older[1]:
            sentences.append(
                f"has retention.ms={retention_ms}: {_between(older)} of {counted(amount.record_count, 'record')} to restore are "
                "older, and brokers delete them within minutes"
            )
        large = sorted(partition for partition, size in amount.partition_bytes.items() if 0 <= retention_bytes < size)
        if large:
            sentences.append(
                f"has retention.bytes={retention_bytes}: {counted(len(large), 'partition')} ({_numbers(large)}) would be larger, "
                "and brokers delete the oldest records beyond that"
            )
    if is_compacted(settings) and int(settings.get("min.compaction.lag.ms", 0)) < NO_LIMIT_MS and amount.record_count:
        sentences.append(
            f"has cleanup.policy={settings['cleanup.policy']}: brokers remove restored records that have a newer one of their key"
        )
    return sentences


def refusals(settings: Mapping[str, str], amount: RestoredAmount, now_ms: int) -> list[str]:
    """Return the records that brokers with these settings would refuse for their timestamps, as `deletions`."""
    if is_stamping(settings):
        return []
    before, after = TIMESTAMP_LIMITS
    sentences = []
    for name in (before, LIMIT_BEFORE_3_6):
        limit = int(settings.get(name, NO_LIMIT_MS))
        older = amount.older(now_ms - limit)
        if limit < NO_LIMIT_MS and older[1]:
            sentences.append(
                f"has {name}={limit}: brokers would refuse {_between(older)} of {counted(amount.record_count, 'record')} to "
                f"restore, which are older. Set {name}={NO_LIMIT_MS}"
            )
    for name in (after, LIMIT_BEFORE_3_6):
        limit = int(settings.get(name, NO_LIMIT_MS))
        newer = amount.newer(min(now_ms + limit, NO_LIMIT_MS))
        if limit < NO_LIMIT_MS and newer:
            sentences.append(
                f"has {name}={limit}: brokers would refuse records that are further in the future, of "
                f"{counted(newer, 'record')} in the same segments. Set {name}={NO_LIMIT_MS}"
            )
    return sentences


def existing_topic_findings(
    settings: Mapping[str, str], amount: RestoredAmount, now_ms: int, *, is_paused: bool, stops_at_refused: bool
) -> tuple[list[str], list[str]]:
    """Return the reasons against a restore into a topic that exists, and other effects of its settings, without "target topic X".

    `is_paused`: nothing that is restored may be deleted. `stops_at_refused`: nor be refused (write.on_refused).
    """
    deleted, refused = deletions(settings, amount, now_ms), refusals(settings, amount, now_ms)
    pause = ", ".join(f"{name}={value}" for name, value in pause_of(settings).items())
    remedy = (
        f"The restore does not change a topic that it has not created: set {pause} on it until they may be deleted, restore "
        "into a topic that does not exist (topics.target_name), or accept it with topics.retention: archived"
    )
    problems = [f"{sentence}. {remedy}" for sentence in deleted] if is_paused else []
    problems += refused if stops_at_refused else []
    notes = [] if is_paused else deleted
    return problems, notes + ([] if stops_at_refused else refused)


def may_delete_or_refuse(settings: Mapping[str, str]) -> bool:
    """Return whether records could be deleted or refused at all, whatever is restored."""
    limits = (int(settings.get(name, NO_LIMIT_MS)) for name in (*TIMESTAMP_LIMITS, LIMIT_BEFORE_3_6))
    return bool(pause_of({"cleanup.policy": "delete", **settings})) or any(limit < NO_LIMIT_MS for limit in limits)


def _between(count: tuple[int, int]) -> str:
    least, most = count
    return f"{most:,}" if least == most else f"{least:,} to {most:,}"


def _numbers(partitions: Iterable[int]) -> str:
    numbers = list(partitions)
    return ", ".join(map(str, numbers[:5])) + (f" and {len(numbers) - 5} more" if len(numbers) > 5 else "")
