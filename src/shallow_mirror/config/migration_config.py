"""The migration file: which topics, groups and writers move in which wave, checked as a whole. Runs on the driver."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field

from shallow_mirror import routing
from shallow_mirror.config.conductor_config import ConductorConfig, ReverseSettings, catalog_problems, reverse_problems
from shallow_mirror.config.config_file import absolute, validate
from shallow_mirror.config.hook_settings import MigrationHook, hook_problems, with_absolute_commands
from shallow_mirror.config.mirror_config import MirrorConfig
from shallow_mirror.config.values import Name, Pattern, Section
from shallow_mirror.errors import ConfigError


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


class MigrationConfig(ConductorConfig):
    """All settings of a migration file."""

    KIND = "migration"

    migration: Name
    waves: Annotated[list[WaveSettings], Field(min_length=1)]
    reverse: ReverseSettings = ReverseSettings()
    hooks: list[MigrationHook] = Field(default=[])

    @classmethod
    def from_document(cls, document: object, *, folder: Path, path: str = "FILE") -> Self:
        config, problems = validate(cls, document, cls.KIND)
        if config is not None:
            names = [wave.name for wave in config.waves]
            problems += [f"waves: the name {name} occurs twice" for name in sorted(set(names)) if names.count(name) > 1]
            problems += config.writers.problems()
            problems += hook_problems(config.hooks, "hooks")
        if problems or config is None:
            raise ConfigError(problems)
        waves = [
            wave if wave.reverse is None else wave.model_copy(update={"reverse": absolute(wave.reverse, folder)})
            for wave in config.waves
        ]
        return config._loaded(folder, path, waves=waves, hooks=with_absolute_commands(config.hooks, folder))


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
        where = f"waves: {wave.name}: reverse"
        problems = reverse_problems(where, reverse, self.mirror, self.config.mirror)
        others = [name for name, mirror in self.reverses.items() if name != wave.name and mirror.tables == reverse.tables]
        if others:
            problems.append(f"{where}: the same tables as wave {others[0]}: each wave needs a reverse mirror of its own")
        return problems

    def _unreadable(self) -> list[str]:
        locations = {"tables": self.config.table_location, "mirror: tables": self.mirror.table_location}
        locations |= {f"waves: {name}: reverse: tables": mirror.table_location for name, mirror in self.reverses.items()}
        return catalog_problems("migration", locations) + [
            f"waves: {name}: reverse: tables_writer: spark cannot be used by a migration, which starts no Spark"
            for name, mirror in self.reverses.items()
            if mirror.tables_writer == "spark"
        ]


def _identity(mirror: MirrorConfig) -> dict[str, object]:
    """Return the identity of a mirror, as JSON values."""
    clusters = [(cluster.alias, cluster.client.bootstrap) for cluster in (mirror.source, mirror.target)]
    topics = [mirror.topics.target_name, mirror.topics.include, mirror.topics.exclude]
    return {"mirror": mirror.mirror, "tables": mirror.tables, "clusters": clusters, "topics": topics}
