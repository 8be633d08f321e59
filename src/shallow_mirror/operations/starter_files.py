"""For the cli: files to begin with, copied from those of the package."""

from __future__ import annotations

import enum
from importlib.resources import files
from pathlib import Path

from shallow_mirror.errors import ConfigError


class StarterKind(enum.StrEnum):
    """The kind of run that `init` writes files for."""

    MIRROR = "mirror"
    ARCHIVE = "archive"
    RESTORE = "restore"
    MIGRATION = "migration"
    FAILOVER = "failover"
    PROMETHEUS = "prometheus"
    GRAFANA = "grafana"
    SYSTEMD = "systemd"
    KUBERNETES = "kubernetes"


_SETTINGS = {
    StarterKind.MIRROR: "example.yaml",
    StarterKind.ARCHIVE: "archive-example.yaml",
    StarterKind.RESTORE: "restore-example.yaml",
    StarterKind.MIGRATION: "migration-example.yaml",
    StarterKind.FAILOVER: "failover-example.yaml",
}
_FILES = {
    StarterKind.PROMETHEUS: ("prometheus-rules.yaml",),
    StarterKind.GRAFANA: ("grafana-dashboard.json", "grafana-archive.json", "grafana-migration.json"),
}
_FOLDER_OF_EXAMPLES = "../data/"
"""In the repository, data lies beside the folder of the examples; in a folder of the user's, within it."""
_DEFAULT_SYNC = 'sync: "off"                       # or 30 seconds: synchronize'
_SYNC_OF_NEW_MIRRORS = "sync: 30 seconds                  # or off, the default: synchronize"
"""The example shows defaults. A new mirror synchronizes groups: without it, a fail-over has no offsets to continue from."""


def starter_files(kind: StarterKind) -> dict[str, str]:
    """Return the contents of the files for `kind` by their names, folders included."""
    templates = files("shallow_mirror") / "starter-files"
    if kind in _SETTINGS:
        schema = f"{kind}.schema.json"
        settings = (templates / _SETTINGS[kind]).read_text(encoding="utf-8").replace(_FOLDER_OF_EXAMPLES, "")
        settings = settings.replace(_DEFAULT_SYNC, _SYNC_OF_NEW_MIRRORS)
        return {f"{kind}.yaml": settings, schema: (templates / schema).read_text(encoding="utf-8")}
    if kind in _FILES:
        return {name: (templates / name).read_text(encoding="utf-8") for name in _FILES[kind]}
    folder = templates / kind
    return {
        f"{kind}/{file.name}": file.read_text(encoding="utf-8") for file in sorted(folder.iterdir(), key=lambda file: file.name)
    }


def write_starter_files(kinds: list[StarterKind], folder: Path, *, is_forced: bool = False) -> list[Path]:
    """Write the files for `kinds` into `folder`; return the paths of those that were written.

    A file that has the same content already stays. Raises ConfigError if one has another, before the first is written, unless
    `is_forced`.
    """
    contents = {folder / name: content for kind in kinds for name, content in starter_files(kind).items()}
    try:
        existing = [path for path in contents if path.exists()]
        missing = {path: content for path, content in contents.items() if path not in existing or _text(path) != content}
        changed = [path for path in existing if path in missing]
        if changed and not is_forced:
            raise ConfigError(
                f"{changed[0]} exists with another content: --force overwrites it, or choose another folder with --to"
            )
        for path, content in missing.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {folder}: {error.strerror}: choose another folder with --to") from error
    return list(missing)


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None
