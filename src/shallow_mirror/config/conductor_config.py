"""Settings that a migration file and a failover file have in common: a conductor works by either. Runs on the driver."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr

from shallow_mirror.broker.admin.access import ANYBODY
from shallow_mirror.checkpoints.tables import TableLocation
from shallow_mirror.config import values
from shallow_mirror.config.config_file import absolute, read_yaml
from shallow_mirror.config.mirror_config import MirrorConfig
from shallow_mirror.config.sections import StorageSettings
from shallow_mirror.config.values import Interval, IntervalOrAuto, Principal, Section

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

    def problems(self) -> list[str]:
        """Return which of these settings contradict each other."""
        problems = []
        if self.is_denied and not self.principals:
            problems.append("writers.principals: is empty; stop: deny needs the principals whose writing is denied")
        if ANYBODY in self.principals:
            problems.append(f"writers.principals: {ANYBODY} would deny the mirrors as well: name the principals of the writers")
        return problems


class ReverseSettings(Section):
    """Who starts the mirrors in the other direction."""

    start: Literal["operator", "conductor"] = "operator"


class ConductorConfig(Section):
    """`KIND`: of the file, in messages. Paths are absolute once loaded."""

    KIND: ClassVar[str]

    mirror: str = Field(min_length=1)
    writers: WriterSettings = WriterSettings()
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
    def load(cls, path: str | Path) -> Self:
        """Return the settings of a file. Raises ConfigError with every problem of it."""
        path = Path(path)
        return cls.from_document(read_yaml(path, f"{cls.KIND} file"), folder=path.resolve().parent, path=str(path))

    @classmethod
    @abstractmethod
    def from_document(cls, document: object, *, folder: Path, path: str = "FILE") -> Self:
        """Return the settings of a parsed file. Raises ConfigError with every problem.

        `folder` is the base of relative paths. `path`: of the file, for commands in messages.
        """

    def _loaded(self, folder: Path, path: str, **changes: Any) -> Self:
        tables, mirror = absolute(self.tables, folder), absolute(self.mirror, folder)
        loaded = self.model_copy(update={"tables": tables, "mirror": mirror, **changes})
        loaded._path = path
        return loaded


def reverse_problems(where: str, reverse: MirrorConfig, mirror: MirrorConfig, mirror_file: str) -> list[str]:
    """Return why a mirror cannot copy back what `mirror` has copied. `where`: the setting that names the file of `reverse`."""
    problems = []
    if (reverse.source.alias, reverse.target.alias) != (mirror.target.alias, mirror.source.alias):
        problems.append(
            f"{where}: copies from {reverse.source.alias} to {reverse.target.alias}; needed is from {mirror.target.alias} to "
            f"{mirror.source.alias}"
        )
    if reverse.topics.target_name != "{topic}" or mirror.topics.target_name != "{topic}":
        problems.append(
            f"{where}: topics.target_name of both mirrors has to be {{topic}}, so that topics keep their names in both directions"
        )
    if reverse.mirror == mirror.mirror or reverse.tables == mirror.tables:
        problems.append(f"{where}: needs another mirror id and other tables than {mirror_file}")
    return problems


def catalog_problems(what: str, locations: Mapping[str, TableLocation]) -> list[str]:
    """Return which tables only Spark can read. `locations`: by their settings."""
    return [
        f"{where}: tables in a catalog cannot be used by a {what}, which starts no Spark: use a folder or an object store"
        for where, location in locations.items()
        if location.is_read_by_spark
    ]
