"""The migration file: which topics, groups and writers move in which wave, checked as a whole. Runs on the driver."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from shallow_mirror import routing
from shallow_mirror.broker.admin.access import ANYBODY
from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.config import values
from shallow_mirror.config.config_file import absolute, read_yaml, validate
from shallow_mirror.config.hook_settings import MigrationHook, hook_problems, with_absolute_commands
from shallow_mirror.config.mirror_config import MirrorConfig
from shallow_mirror.config.sections import StorageSettings
from shallow_mirror.config.values import Interval, IntervalOrAuto, Name, Pattern, Principal, Section
from shallow_mirror.errors import ConfigError

SHORTEST_QUIET_S = 2.0


class WriterSettings(Section):
    """Who writes to the topics that move, and how they are stopped."""

    stop: Literal["wait", "deny"] = "wait"
    principals: list[Principal] = Field(default=[])
    quiet: IntervalOrAuto = "auto"
    longest_quiet: Interval = "1 minute"

    @property
    def quiet_s(self) -> float:
        """Return for how long logs have to be at rest, at least."""
        quiet_s = values.parse_interval_or_auto(self.quiet)
        return SHORTEST_QUIET_S if quiet_s is None else quiet_s

    @property
    def longest_quiet_s(self) -> float | None:
        """Return the longest duration, if pauses of the writers make it longer; None: they do not.

        Writers that an ACL has stopped do not just pause.
        """
        return values.parse_interval(self.longest_quiet) if self.quiet == "auto" and not self.is_denied else None

    @property
    def is_denied(self) -> bool:
        return self.stop == "deny"


class ReverseSettings(Section):
    """Who starts the mirrors in the other direction."""

    start: Literal["operator", "conductor"] = "operator"


class WaveSettings(Section):
    """Topics and groups that move together. `reverse` None: there is no way back after the point of no return."""

    name: Annotated[Name, Field(description="Name of the wave, in messages and in the table of the migration.")]
    topics: list[Pattern] = Field(min_length=1, description="Regular expressions on whole names of source topics.")
    groups: list[Pattern] = Field(default=[], description="Regular expressions on whole names of consumer groups.")
    reverse: str | None = Field(
        default=None,
        min_length=1,
        description="The mirror file that copies these topics back after the move; without it no rollback.",
    )

    def has_topic(self, topic: str) -> bool:
        return routing.is_included(topic, self.topics, ())

    @property
    def group_pattern(self) -> str:
        """Return one regular expression for all groups of the wave."""
        return "|".join(f"(?:{pattern})" for pattern in self.groups)


class MigrationConfig(Section):
    """All of it. Paths are absolute once loaded."""

    migration: Name
    mirror: str = Field(min_length=1)
    waves: Annotated[list[WaveSettings], Field(min_length=1)]
    writers: WriterSettings = WriterSettings()
    reverse: ReverseSettings = ReverseSettings()
    hooks: list[MigrationHook] = Field(default=[])
    tables: str = Field(min_length=1)
    storage: StorageSettings = StorageSettings()
    _path: str = PrivateAttr("FILE")

    @property
    def path(self) -> str:
        """Return the path of the settings, for commands in messages."""
        return self._path

    @property
    def table_location(self) -> TableLocation:
        return TableLocation(self.tables, self.storage.option_texts)

    @classmethod
    def load(cls, path: str | Path) -> MigrationConfig:
        """Return the settings of the migration file `path`. Raise ConfigError with every problem of the file."""
        path = Path(path)
        return cls.from_document(read_yaml(path, "migration file"), folder=path.resolve().parent, path=str(path))

    @classmethod
    def from_document(cls, document: object, *, folder: Path, path: str = "FILE") -> MigrationConfig:
        """Return the settings of a parsed migration file. Raise ConfigError with every problem.

        `folder` is the base of relative paths. `path`: of the file, for commands in messages.
        """
        config, problems = validate(cls, document, "migration")
        if config is not None:
            problems += _wave_problems(config)
            problems += writer_problems(config.writers)
            problems += hook_problems(config.hooks, "hooks")
        if problems or config is None:
            raise ConfigError(problems)
        waves = [
            wave if wave.reverse is None else wave.model_copy(update={"reverse": absolute(wave.reverse, folder)})
            for wave in config.waves
        ]
        tables, mirror = absolute(config.tables, folder), absolute(config.mirror, folder)
        hooks = with_absolute_commands(config.hooks, folder)
        loaded = config.model_copy(update={"tables": tables, "mirror": mirror, "waves": waves, "hooks": hooks})
        loaded._path = path
        return loaded


class MigrationFiles:
    """A migration file with the mirror files that it names."""

    def __init__(self, config: MigrationConfig) -> None:
        """Raise ConfigError with every problem of these files, each and together."""
        self.config = config
        self.mirror = MirrorConfig.load(config.mirror)
        self.reverses = {wave.name: MirrorConfig.load(wave.reverse) for wave in config.waves if wave.reverse is not None}
        problems = [problem for wave in config.waves for problem in self._problems(wave)]
        problems += self._unreadable()
        if problems:
            raise ConfigError(problems)

    @property
    def fingerprint(self) -> str:
        """Return a digest of all settings that decide the move; not of rates, intervals and other settings of mirrors.

        Nor of hooks: one that fails behind the point of no return has to be mended in the file.
        """
        mirrors = [_identity(mirror) for mirror in (self.mirror, *self.reverses.values())]
        text = json.dumps([self.config.model_dump(mode="json", exclude={"hooks"}), mirrors], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def wave(self, name: str) -> WaveSettings:
        """Return the settings of a wave. Raises ConfigError if the file has none of that name any more."""
        for wave in self.config.waves:
            if wave.name == name:
                return wave
        raise ConfigError(f"waves: {name} is under way or has moved, and is not in the migration file any more: undo that change")

    def _problems(self, wave: WaveSettings) -> list[str]:
        reverse = self.reverses.get(wave.name)
        if reverse is None:
            return []
        where, problems = f"waves: {wave.name}: reverse", []
        if (reverse.source.alias, reverse.target.alias) != (self.mirror.target.alias, self.mirror.source.alias):
            problems.append(
                f"{where}: copies from {reverse.source.alias} to {reverse.target.alias}; needed is from "
                f"{self.mirror.target.alias} to {self.mirror.source.alias}"
            )
        if reverse.topics.target_name != "{topic}" or self.mirror.topics.target_name != "{topic}":
            problems.append(
                f"{where}: topics.target_name of both mirrors has to be {{topic}}, so that what was written after the move "
                "comes back into the topics that it came from"
            )
        if reverse.mirror == self.mirror.mirror or reverse.tables == self.mirror.tables:
            problems.append(f"{where}: needs another mirror id and other tables than {self.config.mirror}")
        others = [name for name, mirror in self.reverses.items() if name != wave.name and mirror.tables == reverse.tables]
        if others:
            problems.append(f"{where}: the same tables as wave {others[0]}: each wave needs a reverse mirror of its own")
        return problems

    def _unreadable(self) -> list[str]:
        locations = {"tables": self.config.table_location, "mirror: tables": self.mirror.table_location}
        locations |= {f"waves: {name}: reverse: tables": mirror.table_location for name, mirror in self.reverses.items()}
        return [
            f"{where}: tables in a catalog cannot be used by a migration, which starts no Spark: use a folder or an object store"
            for where, location in locations.items()
            if location.is_read_by_spark
        ] + [
            f"waves: {name}: reverse: tables_writer: spark cannot be used by a migration, which starts no Spark"
            for name, mirror in self.reverses.items()
            if mirror.tables_writer == "spark"
        ]


def _identity(mirror: MirrorConfig) -> dict[str, object]:
    """Return the identity of a mirror, as JSON values."""
    clusters = [(cluster.alias, cluster.client.bootstrap) for cluster in (mirror.source, mirror.target)]
    topics = [mirror.topics.target_name, mirror.topics.include, mirror.topics.exclude]
    return {"mirror": mirror.mirror, "tables": mirror.tables, "clusters": clusters, "topics": topics}


def _wave_problems(config: MigrationConfig) -> list[str]:
    names = [wave.name for wave in config.waves]
    return [f"waves: the name {name} occurs twice" for name in sorted(set(names)) if names.count(name) > 1]


def writer_problems(writers: WriterSettings) -> list[str]:
    """Return which of these settings contradict each other."""
    problems = []
    if writers.is_denied and not writers.principals:
        problems.append("writers.principals: is empty; stop: deny needs the principals whose writing is denied")
    if ANYBODY in writers.principals:
        problems.append(f"writers.principals: {ANYBODY} would deny the mirrors as well: name the principals of the writers")
    return problems
