"""The archive file: every setting of one archive, checked as a whole. Runs on the driver and in the planner process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from pydantic import Field

from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.config import values
from shallow_mirror.config.config_file import absolute, read_yaml, spark_log_of, validate
from shallow_mirror.config.sections import (
    ArchiveGroupSettings,
    ClusterSettings,
    MetricsSettings,
    SourceReadSettings,
    SourceTopicSettings,
    StorageSettings,
)
from shallow_mirror.config.values import (
    Duration,
    Interval,
    KeepOrForever,
    MicroBatchKind,
    Name,
    Pattern,
    Section,
    Tables,
    parse_duration,
)
from shallow_mirror.errors import ConfigError

ROUND_TIMEOUT_MS = 600_000
"""How long a round of a micro-batch may take. Nothing at the source or in the store times out with it."""
LEAST_WRITING_S = 20.0
"""A slot writes for the trigger interval before it hands over its results, and for so long at least."""


class ArchiveReadSettings(SourceReadSettings):
    """An archive reads up to the last stable offset, and keeps the data of aborted transactions."""

    slots: int = Field(default=4, ge=1, le=1000)


class RetentionSettings(Section):
    """How long segments are kept, and how many bytes of a topic. None: without that limit."""

    keep: Interval | None = Field(default=None, description="How long data is kept, counted from the commit that archived it.")
    keep_bytes: int | None = Field(default=None, ge=1, description="Bytes of a topic that are kept at least, of all partitions.")

    @property
    def keep_s(self) -> float | None:
        return None if self.keep is None else values.parse_interval(self.keep)


class DeletedTopicSettings(Section):
    """Fate of the archive of a topic that was deleted at the source. `retention` applies to it as before."""

    keep: KeepOrForever = Field(
        default="forever", description="How long its data is kept, counted from when a run first missed the topic."
    )

    @property
    def keep_s(self) -> float | None:
        return None if self.keep == "forever" else values.parse_interval(self.keep)


class ArchiveConfig(Section):
    """All of it, picklable. Locations are absolute once loaded."""

    archive: Name
    source: ClusterSettings
    topics: SourceTopicSettings
    read: ArchiveReadSettings = ArchiveReadSettings()
    objects: str = Field(min_length=1)
    object_bytes: int = Field(default=256 << 20, ge=1 << 20, le=1 << 35)
    retention: dict[Pattern, RetentionSettings] = Field(default={})
    deleted_topics: DeletedTopicSettings = DeletedTopicSettings()
    groups: ArchiveGroupSettings = ArchiveGroupSettings()
    metrics: MetricsSettings = MetricsSettings()
    tables: Tables
    tables_writer: Literal["auto", "deltalake", "spark"] = "auto"
    on_error: Literal["stop", "isolate"] = "stop"
    storage: StorageSettings = StorageSettings()
    checkpoint: str = ""
    trigger: Duration = "60 seconds"
    micro_batches: MicroBatchKind = "auto"

    @property
    def isolates_recreated(self) -> bool:
        """Return whether a source topic that was created again waits for the operator while the others are archived."""
        return self.on_error == "isolate" and not self.read.continues_after_data_loss

    @property
    def source_cluster_name(self) -> str:
        """Return the name of the source cluster in messages."""
        return f"source cluster {self.source.alias}"

    @property
    def trigger_s(self) -> float:
        return parse_duration(self.trigger)

    @property
    def writing_ms(self) -> float:
        """Return the time after which a slot hands over its results."""
        return max(LEAST_WRITING_S, self.trigger_s) * 1000

    @property
    def most_writing_ms(self) -> float:
        """Return after which time a task ends its objects: a round has time for three of them."""
        return min(self.writing_ms, ROUND_TIMEOUT_MS / 3)

    @property
    def storage_options(self) -> dict[str, str]:
        """Return the options of the store of tables and objects, references unresolved."""
        return self.storage.option_texts

    @property
    def table_location(self) -> TableLocation:
        return TableLocation(self.tables, self.storage_options)

    @property
    def retention_classes(self) -> tuple[str, ...]:
        """Return the patterns of `retention`: an object holds batches of topics of one of them, or of none."""
        return tuple(self.retention)

    @property
    def table_locations(self) -> tuple[TableLocation, ...]:
        """Return every place of tables that a command opens."""
        return (self.table_location,)

    @property
    def spark_log(self) -> Path:
        """Return the log file of a local session."""
        return spark_log_of(self.archive, self.tables, self.checkpoint)

    @classmethod
    def load(cls, path: str | Path) -> ArchiveConfig:
        """Return the settings of the archive file `path`. Raise ConfigError with every problem of the file."""
        path = Path(path)
        return cls.from_document(read_yaml(path, "archive file"), folder=path.resolve().parent)

    @classmethod
    def from_document(cls, document: object, *, folder: Path) -> ArchiveConfig:
        """Return the settings of a parsed archive file. Raise ConfigError with every problem.

        `folder` is the base of relative paths.
        """
        config, problems = validate(cls, document, "archive", clients=("source",))
        if config is not None:
            problems += _location_problems(config, folder)
        if problems or config is None:
            raise ConfigError(problems)
        tables = absolute(config.tables, folder)
        checkpoint = absolute(config.checkpoint, folder) if config.checkpoint else f"{tables.rstrip('/')}/_spark"
        objects = absolute(config.objects, folder)
        return config.model_copy(update={"tables": tables, "checkpoint": checkpoint, "objects": objects})

    def to_json(self) -> str:
        """Return the settings as written, references unresolved; `from_json` reads it in another process."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def from_json(cls, text: str) -> ArchiveConfig:
        return cls.model_validate_json(text)


def _location_problems(config: ArchiveConfig, folder: Path) -> list[str]:
    problems = []
    if config.tables.startswith("catalog:") and not config.checkpoint:
        problems.append("checkpoint: is missing; tables in a catalog have no folder that could hold it")
    if config.objects.startswith("catalog:") or re.match(r"dbfs:", config.objects):
        problems.append(f"objects: {config.objects} is no folder and no URI of an object store (s3://, abfss://, gs://)")
    tables, objects = absolute(config.tables, folder).rstrip("/"), absolute(config.objects, folder).rstrip("/")
    if f"{objects}/".startswith(f"{tables}/") or f"{tables}/".startswith(f"{objects}/"):
        problems.append("objects: must lie outside the folder of `tables`, and the other way round: VACUUM removes unknown files")
    return problems
