"""The mirror file as a whole: loading, checks that concern several sections, JSON for other processes."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from shallow_mirror import routing
from shallow_mirror.broker.admin.access import ANYBODY
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.checkpoints import schema_of
from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.config.config_file import absolute, read_yaml, spark_log_of, validate
from shallow_mirror.config.schema_settings import SchemaSettings
from shallow_mirror.config.sections import (
    AclSettings,
    ClusterSettings,
    GroupSettings,
    HeartbeatSettings,
    LagMetricsSettings,
    QuotaSettings,
    ReadSettings,
    StorageSettings,
    TopicSettings,
    WriteSettings,
    preserving_problems,
)
from shallow_mirror.config.values import Duration, MicroBatchKind, Name, Section, Tables, parse_duration
from shallow_mirror.errors import ConfigError


class MirrorConfig(Section):
    """All settings of a mirror; picklable.

    `tables` and `checkpoint` are absolute once loaded; a schema is `catalog:<catalog>.<schema>`.
    """

    mirror: Name
    source: ClusterSettings
    target: ClusterSettings
    topics: TopicSettings
    read: ReadSettings = ReadSettings()
    write: WriteSettings = WriteSettings()
    groups: GroupSettings = GroupSettings()
    acls: AclSettings = AclSettings()
    schemas: SchemaSettings = SchemaSettings()
    quotas: QuotaSettings = QuotaSettings()
    heartbeats: HeartbeatSettings = HeartbeatSettings()
    metrics: LagMetricsSettings = LagMetricsSettings()
    tables: Tables
    tables_writer: Literal["auto", "deltalake", "spark"] = "auto"
    on_error: Literal["stop", "isolate"] = "stop"
    storage: StorageSettings = StorageSettings()
    checkpoint: str = ""
    trigger: Duration = "2 seconds"
    micro_batches: MicroBatchKind = "auto"

    @property
    def source_cluster_name(self) -> str:
        """Return the name of the source cluster in messages."""
        return f"source cluster {self.source.alias}"

    @property
    def isolates_recreated(self) -> bool:
        """Return whether a source topic that was created again waits for the operator while the others are copied."""
        return self.on_error == "isolate" and not self.read.continues_after_data_loss

    @property
    def source_client(self) -> ClientConfig:
        """Return the client of the cluster that is read."""
        return self.source.client

    @property
    def target_cluster_name(self) -> str:
        """Return the name of the target cluster in messages."""
        return f"target cluster {self.target.alias}"

    @property
    def mirror_principal(self) -> str | None:
        """Return the mirror's own principal on the target. None: only the brokers know it (a certificate, a token, no login)."""
        if self.acls.mirror_principal is not None:
            return self.acls.mirror_principal
        client = self.target.client
        username = client.value("sasl.username") if client.uses_sasl else ""
        return f"User:{username}" if username else None

    @property
    def trigger_s(self) -> float:
        return parse_duration(self.trigger)

    @property
    def table_location(self) -> TableLocation:
        """Return the location of the tables and the options of their store."""
        return TableLocation(self.tables, self.storage.option_texts)

    @property
    def table_locations(self) -> tuple[TableLocation, ...]:
        """Return every place of tables that a command opens."""
        return (self.table_location,)

    @property
    def spark_log(self) -> Path:
        """Return the log file of a local session."""
        return spark_log_of(self.mirror, self.tables, self.checkpoint)

    @classmethod
    def load(cls, path: str | Path) -> MirrorConfig:
        """Return the settings of the mirror file `path`. Raises ConfigError with every problem of the file."""
        path = Path(path)
        document = read_yaml(path, "mirror file")
        return cls.from_document(document, folder=path.resolve().parent)

    @classmethod
    def from_document(cls, document: object, *, folder: Path) -> MirrorConfig:
        """Return the settings of a parsed mirror file. Raises ConfigError with every problem.

        `folder` is the base of relative paths.
        """
        config, problems = validate(cls, document, "mirror", clients=("source", "target"))
        if config is not None and config.source.alias == config.target.alias:
            problems.append(f"source.alias and target.alias are both {config.source.alias!r}: give the clusters two names")
        if config is not None and schema_of(config.tables) is not None:
            problems += _catalog_problems(config)
        if config is not None:
            write, interval_problems = config.write.with_fitting_interval()
            config = config.model_copy(update={"write": write})
            problems += interval_problems
            problems += preserving_problems(config.topics, on_refused=write.on_refused, configs=config.topics.configs)
            problems += _own_principal_problems(config)
            problems += config.schemas.problems()
            problems += _heartbeat_problems(config)
        if problems or config is None:
            raise ConfigError(problems)
        tables = absolute(config.tables, folder)
        checkpoint = absolute(config.checkpoint, folder) if config.checkpoint else f"{tables.rstrip('/')}/_spark"
        return config.model_copy(update={"tables": tables, "checkpoint": checkpoint})

    def to_json(self) -> str:
        """Return the settings as written, references unresolved; `from_json` reads it in another process."""
        return self.model_dump_json(by_alias=True)

    @classmethod
    def from_json(cls, text: str) -> MirrorConfig:
        return cls.model_validate_json(text)


def _own_principal_problems(config: MirrorConfig) -> list[str]:
    if config.acls.mirror_principal == ANYBODY:
        return [f"acls.mirror_principal: {ANYBODY} is everybody: name the mirror's own principal at the target"]
    if config.acls.mirror_principal is not None or config.target.properties.get("sasl.username"):
        return []
    settings = {"acls.delete": config.acls.delete, "acls.read_only": config.acls.read_only}
    return [
        f"{setting}: true needs the mirror's own principal at the target, whose ACLs and permission to write must stay: set "
        "acls.mirror_principal, or sasl.username in target.client"
        for setting, is_set in settings.items()
        if is_set
    ]


def _heartbeat_problems(config: MirrorConfig) -> list[str]:
    """Return why the mirror must not write heartbeats: their topic would be the copy of one of the source."""
    topics = config.topics
    is_copied = topics.is_included(routing.HEARTBEATS) and (
        routing.target_topic_name(topics.target_name, config.source.alias, routing.HEARTBEATS) == routing.HEARTBEATS
    )
    if config.heartbeats.interval_s is None or "target" not in config.heartbeats.sides or not is_copied:
        return []
    return [
        f"heartbeats.interval: the mirror would write to the copy of the source's topic {routing.HEARTBEATS}: add it to "
        "topics.exclude, or begin topics.target_name with {source}"
    ]


def _catalog_problems(config: MirrorConfig) -> list[str]:
    problems = []
    if config.tables_writer == "deltalake":
        problems.append("tables_writer: deltalake cannot write to a catalog: use tables_writer: auto or spark")
    if not config.checkpoint:
        problems.append("checkpoint: is missing; tables in a catalog have no folder that could hold it")
    return problems
