"""The failover file: which mirror fails over, and how its topics come back, checked as a whole. Runs on the driver."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Literal, Self

from pydantic import Field

from shallow_mirror import routing
from shallow_mirror.config.conductor_config import ConductorConfig, ReverseSettings, catalog_problems, reverse_problems
from shallow_mirror.config.config_file import absolute, validate
from shallow_mirror.config.hook_settings import FailoverHook, StepHook, hook_problems, with_absolute_commands
from shallow_mirror.config.mirror_config import MirrorConfig
from shallow_mirror.config.sections import NamePatterns
from shallow_mirror.config.values import Name, TargetName
from shallow_mirror.errors import ConfigError


class FailoverGroupSettings(NamePatterns):
    """Consumer groups that continue at the target."""

    inexact: Literal["nearest", "leave"] = "nearest"
    """Groups that had read more than is mirrored, or whose next record is gone: their nearest offset, or none."""


class BackSettings(ReverseSettings):
    """The way back. `mirror`: the file of the mirror that fills the old topics again; None: there is no way back."""

    mirror: str | None = Field(default=None, min_length=1)
    kept: TargetName = "__diverged.{topic}"
    hooks: list[StepHook] = Field(default=[])
    """Those of the steps of the migration that is the last step."""


class FailoverConfig(ConductorConfig):
    """All settings of a failover file. `writers`: how they are stopped on the way back."""

    KIND = "failover"

    failover: Name
    groups: FailoverGroupSettings = FailoverGroupSettings()
    back: BackSettings = BackSettings()
    hooks: list[FailoverHook] = Field(default=[])

    @classmethod
    def from_document(cls, document: object, *, folder: Path, path: str = "FILE") -> Self:
        config, problems = validate(cls, document, cls.KIND)
        if config is not None:
            problems += config.writers.problems()
            problems += hook_problems(config.hooks, "hooks") + hook_problems(config.back.hooks, "back.hooks")
            shared = {hook.name for hook in config.hooks} & {hook.name for hook in config.back.hooks}
            problems += [f"back.hooks: {name}: hooks has one of the same name" for name in sorted(shared)]
        if problems or config is None:
            raise ConfigError(problems)
        back = config.back.model_copy(update={"hooks": with_absolute_commands(config.back.hooks, folder)})
        if back.mirror is not None:
            back = back.model_copy(update={"mirror": absolute(back.mirror, folder)})
        return config._loaded(folder, path, back=back, hooks=with_absolute_commands(config.hooks, folder))


class FailoverFiles:
    """A failover file with the mirror files that it names."""

    def __init__(self, config: FailoverConfig) -> None:
        """Raise ConfigError with every problem of these files, each and together."""
        self.config = config
        self.mirror = MirrorConfig.load(config.mirror)
        self.back = None if config.back.mirror is None else MirrorConfig.load(config.back.mirror)
        locations = {"tables": config.table_location, "mirror: tables": self.mirror.table_location}
        if self.back is not None:
            locations["back.mirror: tables"] = self.back.table_location
        problems = [*catalog_problems("fail-over", locations), *self._problems_of_back()]
        if problems:
            raise ConfigError(problems)

    @property
    def fingerprint(self) -> str:
        """Return a digest of the settings that decide where records and groups go."""
        mirrors = [
            [mirror.mirror, mirror.tables, mirror.source.client.bootstrap, mirror.target.client.bootstrap]
            for mirror in (self.mirror, self.back)
            if mirror is not None
        ]
        settings = self.config.model_dump(mode="json", exclude={"hooks": True, "back": {"hooks"}})  # as of a migration
        text = json.dumps([settings, mirrors], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def kept_topic(self, topic: str) -> str:
        """Return the topic at the target for records of `topic` that only the old source has."""
        return routing.target_topic_name(self.config.back.kept, self.mirror.source.alias, topic)

    def _problems_of_back(self) -> list[str]:
        back = self.back
        if back is None:
            return []
        problems = reverse_problems("back.mirror", back, self.mirror, self.config.mirror)
        if any(offsets == "continued" for offsets in back.topics.offsets.values()):
            problems.append(
                "back.mirror: topics.offsets: continued needs the old topics, which are created again: write preserved"
            )
        if "{topic}" not in self.config.back.kept:
            problems.append("back.kept: has to contain {topic}, so that each topic has one of its own")
        elif self.kept_topic("orders") == "orders":
            problems.append("back.kept: is the topic itself: records of both clusters would mix; give another name")
        return problems
