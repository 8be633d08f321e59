"""What planning needs to know, whether it comes from a mirror file or from the options of `kafka-batches`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shallow_mirror.config import DEFAULT_REQUEST_BYTES, DEFAULT_SLOT_BYTES, EARLIEST_TIMESTAMP, MirrorConfig, StartRule
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.types import IsolationLevel, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """`include` and `exclude` are regular expressions on whole topic names; `required_topics` must be there at a first start.

    `start_timestamp_ms` is a ListOffsets timestamp (-2 earliest, -1 latest), for partitions known at the first run;
    `start_offsets` wins over it and may hold -1 and -2 as well. `start_rules` are for topics of which nothing is known when the
    mirror starts, `topic_bytes_per_second` for each topic by itself: the first pattern that matches counts.
    `transaction_timeout_ms` and `commit_interval_ms` bound a micro-batch in time, `micro_batch_offsets` in offsets; None: no
    such bound. New topics are looked for at least once in `discovery_s`. Without the paths of the notes nothing is noted,
    learned, paused or left out. With `registration` a partition that appears is planned only after the driver has registered
    it in the offset map. `isolates`: what is wrong for good with one partition leaves it out, and ends nothing.
    """

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    required_topics: tuple[str, ...] = ()
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    start_timestamp_ms: int = EARLIEST_TIMESTAMP
    start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    start_rules: Sequence[tuple[str, StartRule]] = ()
    bytes_per_second: int | None = None
    topic_bytes_per_second: Sequence[tuple[str, int]] = ()
    micro_batch_bytes: int
    micro_batch_offsets: int | None = None
    transaction_timeout_ms: int | None = None
    commit_interval_ms: float | None = None
    slots: int
    slot_bytes: int = DEFAULT_SLOT_BYTES
    request_bytes: int = DEFAULT_REQUEST_BYTES
    request_timeout_ms: int
    discovery_s: float = 0.0
    continues_after_data_loss: bool = False
    note_path: Path | None = None
    measured_path: Path | None = None
    paused_path: Path | None = None
    isolates: bool = False
    left_out_path: Path | None = None
    registration: planner_state.RegistrationNotes | None = None

    @classmethod
    def of_mirror(
        cls,
        config: MirrorConfig,
        *,
        paused_path: Path | None = None,
        left_out_path: Path | None = None,
        registration: planner_state.RegistrationNotes | None = None,
    ) -> PlanSettings:
        return cls(
            include=tuple(config.topics.include),
            exclude=tuple(config.topics.exclude),
            isolation=config.read.isolation_level,
            start_timestamp_ms=config.read.start_timestamp_ms,
            start_rules=config.topics.start_rules,
            bytes_per_second=config.write.bytes_per_second,
            topic_bytes_per_second=tuple(config.topics.bytes_per_second.items()),
            micro_batch_bytes=config.read.micro_batch_bytes,
            transaction_timeout_ms=config.write.transaction_timeout_ms,
            commit_interval_ms=config.write.commit_interval_s * 1000,
            slots=config.write.slots,
            slot_bytes=config.write.slot_bytes,
            request_bytes=config.write.request_bytes if config.write.coalesce_bytes is None else 1,  # they fill their requests
            request_timeout_ms=config.source.client.request_timeout_ms,
            discovery_s=config.topics.discovery_s,
            continues_after_data_loss=config.read.on_data_loss == "continue",
            note_path=planner_state.note_path(config.checkpoint),
            measured_path=planner_state.measured_path(config.checkpoint),
            paused_path=paused_path,
            isolates=config.on_error == "isolate",
            left_out_path=left_out_path,
            registration=registration,
        )
