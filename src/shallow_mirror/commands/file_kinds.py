"""Which kinds of files of settings each command takes, and what it says about a file of another kind."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from shallow_mirror.errors import ConfigError

if TYPE_CHECKING:
    from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig
    from shallow_mirror.config.failover_config import FailoverFiles
    from shallow_mirror.config.migration_config import MigrationFiles


class FileKind(enum.Enum):
    """The value is the key that names the mirror, archive or restore in the file."""

    MIRROR = "mirror"
    ARCHIVE = "archive"
    RESTORE = "restore"
    MIGRATION = "migration"
    FAILOVER = "failover"

    @property
    def title(self) -> str:
        """Return what messages call a file of this kind."""
        return f"{self.value} file"

    @property
    def title_with_article(self) -> str:
        return f"{'an' if self is FileKind.ARCHIVE else 'a'} {self.title}"


_MIRROR, _ARCHIVE, _RESTORE = (FileKind.MIRROR,), (FileKind.ARCHIVE,), (FileKind.RESTORE,)
_MIGRATION, _FAILOVER = (FileKind.MIGRATION,), (FileKind.FAILOVER,)
_MIRROR_OR_RESTORE = (FileKind.MIRROR, FileKind.RESTORE)

KINDS_OF_COMMANDS: Mapping[str, tuple[FileKind, ...]] = {
    "run": _MIRROR,
    "preflight": _MIRROR,
    "status": _MIRROR_OR_RESTORE,
    "report": _MIRROR_OR_RESTORE,
    "translate": _MIRROR_OR_RESTORE,
    "groups": _MIRROR,
    "mm2 lag": _MIRROR,
    "mm2 check": _MIRROR,
    "mm2 groups": _MIRROR,
    "acls": _MIRROR,
    "schemas": _MIRROR,
    "quotas": _MIRROR,
    "verify": _MIRROR_OR_RESTORE,
    "recover": _MIRROR_OR_RESTORE,
    "pause": _MIRROR,
    "resume": _MIRROR,
    "forget": _MIRROR,
    "redo": _MIRROR,
    "restore": _RESTORE,
    "quarantine list": _MIRROR_OR_RESTORE,
    "quarantine export": _MIRROR_OR_RESTORE,
    "quarantine retry": _MIRROR_OR_RESTORE,
    "archive run": _ARCHIVE,
    "archive status": _ARCHIVE,
    "archive verify": _ARCHIVE,
    "archive adopt": _ARCHIVE,
    "archive clean": _ARCHIVE,
    "archive expire": _ARCHIVE,
    "migrate plan": _MIGRATION,
    "migrate rehearse": _MIGRATION,
    "migrate run": _MIGRATION,
    "migrate status": _MIGRATION,
    "migrate late-writes": _MIGRATION,
    "migrate abort": _MIGRATION,
    "migrate rollback": _MIGRATION,
    "failover plan": _FAILOVER,
    "failover run": _FAILOVER,
    "failover status": _FAILOVER,
    "failover back": _FAILOVER,
    "failover abort": _FAILOVER,
}
"""A new command that reads such a file needs an entry."""

_COUNTERPARTS: tuple[Mapping[FileKind, str], ...] = (
    {
        FileKind.MIRROR: "run",
        FileKind.ARCHIVE: "archive run",
        FileKind.RESTORE: "restore",
        FileKind.MIGRATION: "migrate run",
        FileKind.FAILOVER: "failover run",
    },
    {
        FileKind.MIRROR: "status",
        FileKind.ARCHIVE: "archive status",
        FileKind.RESTORE: "status",
        FileKind.MIGRATION: "migrate status",
        FileKind.FAILOVER: "failover status",
    },
    {FileKind.MIRROR: "verify", FileKind.ARCHIVE: "archive verify", FileKind.RESTORE: "verify"},
    {FileKind.MIRROR: "preflight", FileKind.RESTORE: "restore --dry-run"},
)
"""Commands that do the same for files of other kinds."""


def load_mirror(path: Path, command: str) -> MirrorConfig:
    """Return the settings of a mirror file. Raises ConfigError with every problem, or for a kind that `command` does not take."""
    from shallow_mirror.config import MirrorConfig

    config = _load(path, command)
    assert isinstance(config, MirrorConfig)
    return config


def load_mirror_or_restore(path: Path, command: str) -> MirrorConfig | RestoreConfig:
    """Return the settings of a mirror file or a restore file. Raises as `load_mirror`."""
    from shallow_mirror.config import ArchiveConfig

    config = _load(path, command)
    assert not isinstance(config, ArchiveConfig)
    return config


def load_restore(path: Path, command: str) -> RestoreConfig:
    """Return the settings of a restore file. Raises as `load_mirror`."""
    from shallow_mirror.config import RestoreConfig

    config = _load(path, command)
    assert isinstance(config, RestoreConfig)
    return config


def load_archive(path: Path, command: str) -> ArchiveConfig:
    """Return the settings of an archive file. Raises as `load_mirror`."""
    from shallow_mirror.config import ArchiveConfig

    config = _load(path, command)
    assert isinstance(config, ArchiveConfig)
    return config


def load_migration(path: Path, command: str) -> MigrationFiles:
    """Return the settings of a migration file and of the mirror files that it names. Raises as `load_mirror`."""
    from shallow_mirror.config.migration_config import MigrationConfig, MigrationFiles

    document, _ = _read(path, command)
    return MigrationFiles(MigrationConfig.from_document(document, folder=path.resolve().parent, path=str(path)))


def load_failover(path: Path, command: str) -> FailoverFiles:
    """Return the settings of a failover file and of the mirror files that it names. Raises as `load_mirror`."""
    from shallow_mirror.config.failover_config import FailoverConfig, FailoverFiles

    document, _ = _read(path, command)
    return FailoverFiles(FailoverConfig.from_document(document, folder=path.resolve().parent, path=str(path)))


def require_kind(path: Path, command: str) -> None:
    """Raise ConfigError for a file that cannot be read, or of a kind that `command` does not take."""
    _read(path, command)


def _load(path: Path, command: str) -> MirrorConfig | ArchiveConfig | RestoreConfig:
    from shallow_mirror.config import ArchiveConfig, MirrorConfig, RestoreConfig

    document, kind = _read(path, command)
    folder = path.resolve().parent
    match kind:
        case FileKind.MIRROR:
            return MirrorConfig.from_document(document, folder=folder)
        case FileKind.ARCHIVE:
            return ArchiveConfig.from_document(document, folder=folder)
        case FileKind.RESTORE:
            return RestoreConfig.from_document(document, folder=folder)
        case FileKind.MIGRATION | FileKind.FAILOVER:
            raise AssertionError("such a file is loaded with the files that it names")


def _read(path: Path, command: str) -> tuple[object, FileKind]:
    """Return the document and its kind; the first kind of the command where the document does not say."""
    from shallow_mirror.config.config_file import read_yaml

    kinds = KINDS_OF_COMMANDS[command]
    document = read_yaml(path, " or ".join(kind.title for kind in kinds))
    kind = _kind_of(document) or kinds[0]
    if kind not in kinds:
        raise ConfigError(_kind_problem(path, kind, command))
    return document, kind


def _kind_of(document: object) -> FileKind | None:
    if not isinstance(document, dict):
        return None
    # In this order: a restore file has a section `archive` as well, and a migration or failover file a key `mirror`.
    kinds = (FileKind.MIGRATION, FileKind.FAILOVER, FileKind.RESTORE, FileKind.MIRROR, FileKind.ARCHIVE)
    return next((kind for kind in kinds if kind.value in document), None)


def _kind_problem(path: Path, kind: FileKind, command: str) -> str:
    for commands in _COUNTERPARTS:
        if command in commands.values() and kind in commands:
            return f"{path} is {kind.title_with_article}: use `shallow-mirror {commands[kind]}`"
    taken = " or ".join(taken.title_with_article for taken in KINDS_OF_COMMANDS[command])
    return f"{path} is {kind.title_with_article}; `shallow-mirror {command}` needs {taken}"
