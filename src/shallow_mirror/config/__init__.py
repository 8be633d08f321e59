"""The mirror file: every setting of one mirror, checked as a whole. Runs on the driver, in the planner process and in the cli.

A relative `tables` or `checkpoint` is relative to the folder of the mirror file. `${env:NAME}`, `${file:PATH}` and
`${secret:scope/key}` in client properties stay as written here; whoever connects resolves them.
"""

from shallow_mirror.config.archive_config import ArchiveConfig
from shallow_mirror.config.failover_config import FailoverConfig
from shallow_mirror.config.migration_config import MigrationConfig
from shallow_mirror.config.mirror_config import MirrorConfig
from shallow_mirror.config.own_targets import exclude_own_targets
from shallow_mirror.config.restore_config import RestoreConfig
from shallow_mirror.config.schema_settings import RegistrySettings, SchemaSettings
from shallow_mirror.config.sections import (
    DEFAULT_REQUEST_BYTES,
    DEFAULT_SLOT_BYTES,
    AclSettings,
    ClusterSettings,
    GroupSettings,
    LagMetricsSettings,
    MetricsSettings,
    ReadSettings,
    StorageSettings,
    TopicSettings,
    WriteSettings,
)
from shallow_mirror.config.sink_config import SinkConfig
from shallow_mirror.config.values import StartRule, parse_duration

__all__ = [
    "DEFAULT_REQUEST_BYTES",
    "DEFAULT_SLOT_BYTES",
    "AclSettings",
    "ArchiveConfig",
    "ClusterSettings",
    "FailoverConfig",
    "GroupSettings",
    "LagMetricsSettings",
    "MetricsSettings",
    "MigrationConfig",
    "MirrorConfig",
    "ReadSettings",
    "RegistrySettings",
    "RestoreConfig",
    "SchemaSettings",
    "SinkConfig",
    "StartRule",
    "StorageSettings",
    "TopicSettings",
    "WriteSettings",
    "exclude_own_targets",
    "parse_duration",
]
