"""Settings of planning, made from a mirror file or from the options of `kafka-batches`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shallow_mirror.config import DEFAULT_REQUEST_BYTES, DEFAULT_SLOT_BYTES, ArchiveConfig, MirrorConfig, StartRule
from shallow_mirror.config.archive_config import ROUND_TIMEOUT_MS
from shallow_mirror.streaming.planning import planner_state
from shallow_mirror.types import EARLIEST_TIMESTAMP, IsolationLevel, SourcePartition, TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerConfig:
    """Settings of a planner. Without a path of a state file nothing is written, measured, paused or left out."""

    include: tuple[str, ...]
    """Regular expressions on whole topic names, as `exclude`."""
    exclude: tuple[str, ...] = ()
    required_topics: tuple[str, ...] = ()
    """They must exist at a first start."""
    isolation: IsolationLevel = IsolationLevel.READ_COMMITTED
    start_timestamp_ms: int = EARLIEST_TIMESTAMP
    """A ListOffsets timestamp (-2 earliest, -1 latest), for partitions that exist at the first run."""
    start_offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    """They take precedence, and may be -1 and -2 as well."""
    start_rules: Sequence[tuple[str, StartRule]] = ()
    """For topics without positions when the mirror starts: the first pattern that matches counts."""
    bytes_per_second: int | None = None
    topic_bytes_per_second: Sequence[tuple[str, int]] = ()
    """For each topic on its own: the first pattern that matches counts."""
    micro_batch_bytes: int
    micro_batch_offsets: int | None = None
    """Offsets of a micro-batch at the most. None: no bound."""
    round_timeout_ms: int | None = None
    """With `commit_interval_ms`, the bound of a micro-batch in time. None: no bound."""
    commit_interval_ms: float | None = None
    slots: int
    slot_bytes: int = DEFAULT_SLOT_BYTES
    request_bytes: int = DEFAULT_REQUEST_BYTES
    request_timeout_ms: int
    discovery_s: float = 0.0
    """New topics are listed at least once in so many seconds."""
    continues_after_data_loss: bool = False
    planner_state_path: Path | None = None
    measurements_path: Path | None = None
    paused_path: Path | None = None
    isolates: bool = False
    """A definite error of one partition leaves it out instead of ending the query."""
    isolates_recreated: bool = False
    """A topic that was created again waits for the operator, and the new topic of its name does not enter."""
    not_copied: frozenset[str] = frozenset()
    """Topics that are paused or handed over when a query starts; while it runs, those of `paused_path`."""
    forgotten: frozenset[str] = frozenset()
    """Topic ids that the operator has closed: such a topic does not enter, also if the source still has it."""
    left_out_path: Path | None = None
    planned_path: Path | None = None
    """File of the ranges of each micro-batch."""
    registration: planner_state.RegistrationFiles | None = None
    """If given, a new partition is planned only after the driver has registered it in the offset map."""
    held_truncations: Mapping[SourcePartition, int] | None = None
    """Of an archive that begins the next lineage of truncated logs: positions of those that have none, and wait. Others end the
    query. None: with `continues_after_data_loss` all wait."""
    always_committed: bool = False
    """Of an archive: nothing was ever read above a last stable offset."""

    def waits_if_recreated(self, topic: str) -> bool:
        """Return whether a topic that is created again waits for the operator; otherwise it ends the query, or enters as new."""
        return self.isolates_recreated or (topic in self.not_copied and not self.continues_after_data_loss)

    @classmethod
    def of_mirror(
        cls,
        config: MirrorConfig,
        *,
        paused_path: Path | None = None,
        left_out_path: Path | None = None,
        planned_path: Path | None = None,
        registration: planner_state.RegistrationFiles | None = None,
        forgotten: frozenset[str] = frozenset(),
        not_copied: frozenset[str] = frozenset(),
    ) -> PlannerConfig:
        """Return the settings of a mirror; without the paths those of a planner that neither pauses nor leaves out."""
        return cls(
            include=tuple(config.topics.include),
            exclude=tuple(config.topics.exclude),
            isolation=config.read.isolation_level,
            start_timestamp_ms=config.read.start_timestamp_ms,
            start_rules=config.topics.start_rules,
            bytes_per_second=config.write.bytes_per_second,
            topic_bytes_per_second=tuple(config.topics.bytes_per_second.items()),
            micro_batch_bytes=config.read.micro_batch_bytes,
            round_timeout_ms=config.write.transaction_timeout_ms,
            commit_interval_ms=config.write.commit_interval_s * 1000,
            slots=config.write.slots,
            slot_bytes=config.write.slot_bytes,
            # Coalesced batches fill requests in any number of slots.
            request_bytes=config.write.request_bytes if config.write.coalesce_bytes is None else 1,
            request_timeout_ms=config.source.client.request_timeout_ms,
            discovery_s=config.topics.discovery_s,
            continues_after_data_loss=config.read.continues_after_data_loss,
            planner_state_path=planner_state.planner_state_path(config.checkpoint, left_out_path),
            measurements_path=planner_state.measurements_path(config.checkpoint),
            paused_path=paused_path,
            isolates=config.on_error == "isolate",
            isolates_recreated=config.isolates_recreated,
            forgotten=forgotten,
            not_copied=not_copied,
            left_out_path=left_out_path,
            planned_path=planned_path,
            registration=registration,
        )

    @classmethod
    def of_archive(
        cls,
        config: ArchiveConfig,
        *,
        left_out_path: Path | None = None,
        registration: planner_state.RegistrationFiles | None = None,
        held_truncations: Mapping[SourcePartition, int] | None = None,
    ) -> PlannerConfig:
        """Return the settings of an archive: a slot fills an object if there is enough to read."""
        return cls(
            include=tuple(config.topics.include),
            exclude=tuple(config.topics.exclude),
            start_timestamp_ms=config.read.start_timestamp_ms,
            start_rules=config.topics.start_rules,
            micro_batch_bytes=config.object_bytes * config.read.slots,
            round_timeout_ms=ROUND_TIMEOUT_MS,
            commit_interval_ms=config.writing_ms,
            slots=config.read.slots,
            slot_bytes=config.object_bytes,
            request_bytes=1,
            request_timeout_ms=config.source.client.request_timeout_ms,
            discovery_s=config.topics.discovery_s,
            continues_after_data_loss=config.read.continues_after_data_loss,
            planner_state_path=planner_state.planner_state_path(config.checkpoint, left_out_path),
            measurements_path=planner_state.measurements_path(config.checkpoint),
            isolates=config.on_error == "isolate",
            isolates_recreated=config.isolates_recreated,
            left_out_path=left_out_path,
            registration=registration,
            held_truncations=(held_truncations or {}) if config.read.continues_after_data_loss else None,
            always_committed=True,
        )
