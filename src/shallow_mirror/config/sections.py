"""The sections of the mirror file: one class for each, with its defaults and bounds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from shallow_mirror import routing
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.config import values
from shallow_mirror.config.values import (
    DEFAULT_COMMIT_INTERVAL,
    BytesPerSecond,
    CoalesceBytes,
    Duration,
    Interval,
    Isolation,
    LogAppendTime,
    Name,
    OrOff,
    Pattern,
    Principal,
    Principals,
    Section,
    SourcePattern,
    Start,
    StartRule,
    SyncInterval,
    TargetName,
    TopicStart,
    commit_interval_problem,
    default_commit_interval,
)
from shallow_mirror.types import AUTO_COALESCE_BYTES, IsolationLevel, LogAppendTimePolicy, QuarantineLimits

DEFAULT_SLOT_BYTES = 32 << 20
DEFAULT_REQUEST_BYTES = 64 << 10


class ClusterSettings(Section):
    alias: Name
    properties: dict[str, str | int | float | bool] = Field(alias="client", repr=False)

    @property
    def client(self) -> ClientConfig:
        """Raise ConfigError; never after `MirrorConfig.load`."""
        return ClientConfig.from_properties(self.properties, where="client")


class SourceTopicSettings(Section):
    """Topics of the source to read, and the start of those without positions."""

    include: list[SourcePattern] = Field(min_length=1)
    exclude: list[Pattern] = Field(default=[])
    discovery: Duration = "30 seconds"
    start: dict[Pattern, TopicStart] = Field(default={})

    @property
    def start_rules(self) -> tuple[tuple[str, StartRule], ...]:
        """Return patterns and the start of the topics that match, in the order of the file."""
        return tuple(
            (pattern, values.parse_start(start) if isinstance(start, str) else start) for pattern, start in self.start.items()
        )

    @property
    def discovery_s(self) -> float:
        return values.parse_duration(self.discovery)

    def is_included(self, topic: str) -> bool:
        return routing.is_included(topic, self.include, self.exclude)


class OffsetSettings(Section):
    """Offsets on the target, by pattern of topics, whatever is copied to a cluster."""

    offsets: Mapping[Pattern, Literal["translated", "preserved", "continued"]] = Field(default={})

    @property
    def preserves_offsets(self) -> bool:
        """Return whether records of some topic may keep their offsets."""
        return any(offsets in routing.KEPT_OFFSETS for offsets in self.offsets.values())

    def is_preserved(self, topic: str) -> bool:
        """Return whether the records of a source topic keep their offsets: the first pattern that matches counts."""
        return routing.first_match(topic, self.offsets.items()) in routing.KEPT_OFFSETS


class TopicSettings(SourceTopicSettings, OffsetSettings):
    target_name: TargetName = "{topic}"
    create: bool = True
    replication_factor: int | None = Field(default=None, ge=1, le=32767)
    configs: Annotated[Literal["create", "sync", "off"], OrOff] = "create"
    deleted: Literal["keep", "delete"] = "keep"
    deleted_after: Interval = "7 days"
    bytes_per_second: dict[Pattern, BytesPerSecond] = Field(default={})

    @property
    def deleted_after_s(self) -> float:
        return values.parse_interval(self.deleted_after)

    def is_continued(self, topic: str) -> bool:
        """Return whether they do in a target topic that may hold the first of them already."""
        return routing.first_match(topic, self.offsets.items()) == "continued"


class SourceReadSettings(Section):
    """How a source is read, whatever becomes of its batches. `fetch_bytes`: the receive buffer of a task."""

    start: Start = "earliest"
    on_data_loss: Literal["stop", "continue"] = "stop"
    fetch_bytes: int = Field(default=16 << 20, ge=64 << 10, le=1 << 30)

    @property
    def start_timestamp_ms(self) -> int:
        return values.parse_start(self.start)

    @property
    def continues_after_data_loss(self) -> bool:
        return self.on_data_loss == "continue"


class ReadSettings(SourceReadSettings):
    isolation_level: Isolation = IsolationLevel.READ_COMMITTED
    transfer: Literal["direct", "through-spark"] = "direct"
    log_append_time: LogAppendTime = LogAppendTimePolicy.KEEP
    micro_batch_bytes: int = Field(default=1 << 30, ge=1 << 20, le=1 << 40)
    max_segments: int = Field(default=200_000, ge=1, le=10_000_000)


class WriteSettings(Section):
    slots: int = Field(default=8, ge=1, le=1000)
    slot_bytes: int = Field(default=DEFAULT_SLOT_BYTES, ge=1 << 10, le=1 << 40)
    request_bytes: int = Field(default=DEFAULT_REQUEST_BYTES, ge=1, le=1 << 30)
    transaction_timeout_ms: int = Field(default=300_000, ge=10_000, le=900_000)
    commit_interval: Interval = DEFAULT_COMMIT_INTERVAL
    in_flight_requests: int = Field(default=4000, ge=1, le=10_000)
    in_flight_bytes: int = Field(default=32 << 20, ge=64 << 10, le=1 << 30)
    bytes_per_second: BytesPerSecond | None = None
    coalesce_bytes: CoalesceBytes = None
    on_refused: Literal["stop", "quarantine"] = "stop"
    max_quarantined_batches: int = Field(default=100, ge=1, le=1_000_000)
    max_quarantined_bytes: int = Field(default=16 << 20, ge=1 << 10, le=256 << 20)

    @property
    def commit_interval_s(self) -> float:
        return values.parse_interval(self.commit_interval)

    @property
    def coalesces_where_cheaper(self) -> bool:
        return self.coalesce_bytes == "auto"

    @property
    def coalesce_limit_bytes(self) -> int | None:
        """Return how many bytes of records a coalesced batch may have; None: nothing is coalesced."""
        return AUTO_COALESCE_BYTES if self.coalesce_bytes == "auto" else self.coalesce_bytes

    def with_fitting_interval(self) -> tuple[WriteSettings, list[str]]:
        """Return these with a default interval that fits a short transaction timeout; one of the file is kept, or a problem."""
        if "commit_interval" not in self.model_fields_set:
            return self.model_copy(update={"commit_interval": default_commit_interval(self.transaction_timeout_ms)}), []
        problem = commit_interval_problem(self.commit_interval_s, self.transaction_timeout_ms)
        return self, [] if problem is None else [f"write.commit_interval: {problem}"]

    @property
    def quarantine_limits(self) -> QuarantineLimits | None:
        """Return the limits of one micro-batch; None if a batch that cannot be copied stops the mirror."""
        if self.on_refused == "stop":
            return None
        return QuarantineLimits(batches=self.max_quarantined_batches, size_bytes=self.max_quarantined_bytes)


def preserving_problems(offsets: OffsetSettings, *, on_refused: str, configs: str) -> list[str]:
    """Return which of the other settings exclude preserved offsets. `configs`: `topics.configs`."""
    problems = []
    if offsets.preserves_offsets:
        if on_refused == "quarantine":
            problems.append(
                "write.on_refused: quarantine leaves batches out, which preserved offsets (topics.offsets) cannot undo later: "
                "use on_refused: stop, or translated offsets"
            )
        if configs == "off":
            problems.append(
                "topics.configs: off creates target topics without the source's cleanup.policy, which preserved offsets "
                "(topics.offsets) need: set another value"
            )
    return problems


class NamePatterns(Section):
    """Regular expressions on whole names of consumer groups, or of subjects."""

    include: list[Pattern] = Field(default=[".*"], min_length=1)
    exclude: list[Pattern] = Field(default=[])

    def is_included(self, name: str) -> bool:
        # Names of groups may hold line breaks, which `.` does not match without that.
        if any(re.fullmatch(pattern, name, re.DOTALL) for pattern in self.exclude):
            return False
        return any(re.fullmatch(pattern, name, re.DOTALL) for pattern in self.include)


class GroupSettings(NamePatterns):
    """Consumer groups. `sync`: how often a running mirror commits translated offsets, and records them. `follow`: whether it also
    reads what groups commit from the source's topic `__consumer_offsets`, and commits that within a second. `keep`: age of the
    history.
    """

    sync: SyncInterval = "off"
    follow: Annotated[Literal["auto", "required", "off"], OrOff] = "auto"
    keep: Interval = "30 days"

    @property
    def sync_s(self) -> float | None:
        return values.parse_sync(self.sync)

    @property
    def is_followed(self) -> bool:
        """Return whether the log of the source's groups is read, if the permissions allow it."""
        return self.sync_s is not None and self.follow != "off"

    @property
    def keep_s(self) -> float:
        return values.parse_interval(self.keep)


class ArchiveGroupSettings(NamePatterns):
    """Consumer groups of the source. `interval`: how often a running archive notes their offsets. `keep`: age of every note.

    `archived_position`: how often its own position is committed as offsets of the group `<archive>.archived` of the source.
    """

    interval: SyncInterval = "60 seconds"
    keep: Interval = "30 days"
    archived_position: SyncInterval = "off"

    @property
    def keep_s(self) -> float:
        return values.parse_interval(self.keep)

    @property
    def interval_s(self) -> float | None:
        return values.parse_sync(self.interval)

    @property
    def archived_position_s(self) -> float | None:
        return values.parse_sync(self.archived_position)


class RestoreGroupSettings(NamePatterns):
    """Consumer groups whose noted offsets are committed at the target once everything is restored."""

    commit: Annotated[Literal["at-end", "off"], OrOff] = "at-end"


class AclSettings(Section):
    """Scope of `acls`. `principals`: of the source and of the target; `principals_only`: each needs an entry.

    `sync`: how often a running mirror creates what is missing; `report_only`: it only reports that. `delete`: it deletes as well.

    `read_only`: a running mirror denies Write on its target topics to everybody but `mirror_principal`, its own principal there.
    """

    principals: Principals = Field(default={})
    principals_only: bool = False
    write: bool = False
    sync: SyncInterval = "off"
    report_only: bool = False
    delete: bool = False
    read_only: bool = False
    mirror_principal: Principal | None = None

    @property
    def sync_s(self) -> float | None:
        return values.parse_sync(self.sync)


class QuotaSettings(Section):
    """Quotas of users and client ids. `sync`: how often a running mirror creates what is missing; `report_only`: it only reports
    that. `update`: it also sets quotas that have another value on the target.
    """

    sync: SyncInterval = "off"
    report_only: bool = False
    update: bool = False

    @property
    def sync_s(self) -> float | None:
        return values.parse_sync(self.sync)


class HeartbeatSettings(Section):
    """Heartbeats in the format of MirrorMaker 2. `interval`: how often a running mirror writes one. `clusters`: where."""

    interval: SyncInterval = "off"
    clusters: Literal["target", "source", "both"] = "target"

    @property
    def sides(self) -> tuple[Literal["target", "source"], ...]:
        return ("target", "source") if self.clusters == "both" else (self.clusters,)

    @property
    def interval_s(self) -> float | None:
        return values.parse_sync(self.interval)


class MetricsSettings(Section):
    """`port` None: no metrics are served."""

    port: int | None = Field(default=None, ge=1, le=65535)
    host: str = Field(default="127.0.0.1", min_length=1)


class LagMetricsSettings(MetricsSettings):
    """`max_topics`: topics with a lag series of their own; the others share one. Archives and restores have no such series."""

    max_topics: int = Field(default=100, ge=0, le=10_000)
    lag_interval: Interval = "15 seconds"

    @property
    def lag_interval_s(self) -> float:
        return values.parse_interval(self.lag_interval)


class StorageSettings(Section):
    """The store that holds `tables`. `options`: those of deltalake and obstore; secrets by reference only."""

    options: dict[str, str | int | float | bool] = Field(default={}, repr=False)

    @property
    def option_texts(self) -> dict[str, str]:
        """Return the options as YAML spells them (`true`, where Python says True), references unresolved."""
        return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in self.options.items()}
