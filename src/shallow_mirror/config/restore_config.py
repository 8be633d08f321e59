"""The restore file: every setting of one restore, checked as a whole. Runs on the driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator

from shallow_mirror import routing
from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.config import values
from shallow_mirror.config.config_file import absolute, read_yaml, spark_log_of, validate
from shallow_mirror.config.sections import (
    ClusterSettings,
    MetricsSettings,
    OffsetSettings,
    RestoreGroupSettings,
    StorageSettings,
    WriteSettings,
    preserving_problems,
)
from shallow_mirror.config.values import Isolation, LogAppendTime, Name, OrOff, Pattern, Section, Start, Tables, TargetName
from shallow_mirror.errors import ConfigError
from shallow_mirror.types import IsolationLevel, LogAppendTimePolicy

Lineage = Annotated[int, Field(ge=0, le=(1 << 31) - 1)]
TopicId = Annotated[str, Field(min_length=1)]


class ArchiveLocation(Section):
    """Location of an archive. `alias`: of the cluster that was archived, for `target_name`."""

    tables: Tables
    objects: str = Field(min_length=1)
    alias: Name = "archive"


class RestoreTopicSettings(OffsetSettings):
    include: list[Pattern] = Field(default=[".*"], min_length=1)
    exclude: list[Pattern] = Field(default=[])
    target_name: TargetName = "{topic}"
    create: bool = True
    replication_factor: int | None = Field(default=None, ge=1, le=32767)
    configs: Annotated[Literal["create", "off"], OrOff] = "create"
    retention: Literal["paused", "archived"] = "paused"
    offsets: Mapping[Pattern, Literal["translated", "preserved"]] = Field(default={})

    @property
    def pauses_retention(self) -> bool:
        """Return whether nothing that is restored may be deleted before an operator lifts that."""
        return self.retention == "paused"

    def is_included(self, topic: str) -> bool:
        return routing.is_included(topic, self.include, self.exclude)


class Cut(Section):
    """End of the restore in every partition: at most one of time, decision and offsets; none: the end of the archive at the
    first start. `whole_transactions` lowers these ends until they tear no transaction.

    `lineage`: which log of a partition that was truncated at the source is restored: one number for all, of which a partition
    without it takes its highest one below; or numbers by topic and partition, where all others take their newest one.

    `topic_ids`: of topics that were deleted and created again, which one is restored, by its id; of others the one of the cut.
    """

    time: Start | None = None
    decision: int | None = Field(default=None, ge=1)
    offsets: dict[str, dict[int, int]] = Field(default={})
    lineage: Lineage | dict[str, dict[int, Lineage]] | None = None
    topic_ids: dict[str, TopicId] = Field(default={})
    whole_transactions: bool = False

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if sum((self.time is not None, self.decision is not None, bool(self.offsets))) > 1:
            raise ValueError("give one of time, decision and offsets")
        if self.time in ("earliest", "latest"):
            raise ValueError(f"time: {self.time!r} is no ISO-8601 time with zone")
        return self

    def lineage_of(self, topic: str, partition: int) -> int | None:
        """Return the number that is asked for; None: the newest."""
        if self.lineage is None or isinstance(self.lineage, int):
            return self.lineage
        return self.lineage.get(topic, {}).get(partition)

    @property
    def time_ms(self) -> int | None:
        return None if self.time is None else values.parse_start(self.time)


class RestoreReadSettings(Section):
    """`fetch_bytes`: batches that a task has in memory at once. `micro_batch_bytes`: of whole decisions of the archive."""

    isolation_level: Isolation = IsolationLevel.READ_COMMITTED
    log_append_time: LogAppendTime = LogAppendTimePolicy.KEEP
    micro_batch_bytes: int = Field(default=1 << 30, ge=1 << 20, le=1 << 40)
    fetch_bytes: int = Field(default=16 << 20, ge=64 << 10, le=1 << 30)
    max_segments: int = Field(default=200_000, ge=1, le=10_000_000)

    @property
    def continues_after_data_loss(self) -> bool:
        """Return False: data that an archive has lost is named, and nothing is skipped."""
        return False


class RestoreConfig(Section):
    """All of it, picklable. Locations are absolute once loaded."""

    restore: Name
    archive: ArchiveLocation
    target: ClusterSettings
    topics: RestoreTopicSettings = RestoreTopicSettings()
    until: Cut = Cut()
    read: RestoreReadSettings = RestoreReadSettings()
    write: WriteSettings = WriteSettings()
    groups: RestoreGroupSettings = RestoreGroupSettings()
    metrics: MetricsSettings = MetricsSettings()
    tables: Tables
    tables_writer: Literal["auto", "deltalake", "spark"] = "auto"
    storage: StorageSettings = StorageSettings()
    checkpoint: str = ""

    @property
    def mirror(self) -> str:
        """Return the id that transactional ids and receipts begin with."""
        return self.restore

    @property
    def source_client(self) -> None:
        """Return that no cluster is read."""

    @property
    def target_cluster_name(self) -> str:
        """Return the name of the target cluster in messages."""
        return f"target cluster {self.target.alias}"

    def target_topic(self, topic: str) -> str:
        """Return the name of the target topic of an archived topic."""
        return routing.target_topic_name(self.topics.target_name, self.archive.alias, topic)

    @property
    def storage_options(self) -> Mapping[str, str]:
        """Return the options of the store of all tables and objects, references unresolved."""
        return self.storage.option_texts

    @property
    def table_location(self) -> TableLocation:
        return TableLocation(self.tables, self.storage_options)

    @property
    def archive_table_location(self) -> TableLocation:
        return TableLocation(self.archive.tables, self.storage_options)

    @property
    def table_locations(self) -> tuple[TableLocation, ...]:
        """Return every place of tables that a command opens."""
        return (self.table_location, self.archive_table_location)

    @property
    def spark_log(self) -> Path:
        """Return the log file of a local session."""
        return spark_log_of(self.restore, self.tables, self.checkpoint)

    @classmethod
    def load(cls, path: str | Path) -> RestoreConfig:
        """Return the settings of the restore file `path`. Raise ConfigError with every problem of the file."""
        path = Path(path)
        return cls.from_document(read_yaml(path, "restore file"), folder=path.resolve().parent)

    def with_cut(
        self, *, time: str | None = None, decision: int | None = None, is_whole_transactions: bool = False
    ) -> RestoreConfig:
        """Return the settings with options of the command line in the place of `until`. Raise ConfigError."""
        if time is not None and decision is not None:
            raise ConfigError("--until and --at-decision exclude each other")
        whole = is_whole_transactions or self.until.whole_transactions
        if time is None and decision is None:
            cut = self.until.model_copy(update={"whole_transactions": whole})
        else:
            given = {"time": time} if decision is None else {"decision": decision}
            kept = {"lineage": self.until.lineage, "topic_ids": self.until.topic_ids}
            try:
                cut = Cut.model_validate({**given, **kept, "whole_transactions": whole})
            except ValidationError as error:
                option = "--until" if decision is None else "--at-decision"
                raise ConfigError([f"{option}: {problem['msg']}" for problem in error.errors()]) from error
        return self.model_copy(update={"until": cut})

    def with_offsets(self, offsets: str | None) -> RestoreConfig:
        """Return the settings with an option of the command line in the place of `topics.offsets`. Raise ConfigError."""
        if offsets is None:
            return self
        try:
            topics = RestoreTopicSettings.model_validate({**self.topics.model_dump(), "offsets": {".*": offsets}})
        except ValidationError as error:
            raise ConfigError(f"--offsets: {offsets} is neither preserved nor translated") from error
        problems = preserving_problems(topics, on_refused=self.write.on_refused, configs=topics.configs)
        if problems:
            raise ConfigError([f"--offsets {offsets}: {problem}" for problem in problems])
        return self.model_copy(update={"topics": topics})

    @classmethod
    def from_document(cls, document: object, *, folder: Path) -> RestoreConfig:
        """Return the settings of a parsed restore file. Raise ConfigError with every problem.

        `folder` is the base of relative paths.
        """
        config, problems = validate(cls, document, "restore", clients=("target",))
        if config is not None:
            write, interval_problems = config.write.with_fitting_interval()
            config = config.model_copy(update={"write": write})
            problems += interval_problems
            problems += preserving_problems(config.topics, on_refused=write.on_refused, configs=config.topics.configs)
            if config.tables.startswith("catalog:") and not config.checkpoint:
                problems.append("checkpoint: is missing; tables in a catalog have no folder that could hold it")
        if problems or config is None:
            raise ConfigError(problems)
        tables = absolute(config.tables, folder)
        archive = config.archive.model_copy(
            update={"tables": absolute(config.archive.tables, folder), "objects": absolute(config.archive.objects, folder)}
        )
        checkpoint = absolute(config.checkpoint, folder) if config.checkpoint else f"{tables.rstrip('/')}/_state"
        return config.model_copy(update={"tables": tables, "archive": archive, "checkpoint": checkpoint})
