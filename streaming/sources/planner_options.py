"""Driver and planner process: options of the planner of a mirror or an archive, also as options of a stream."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack

from shallow_mirror.log_context import current_name
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Offsets

if TYPE_CHECKING:
    from shallow_mirror.broker import Cluster
    from shallow_mirror.broker.auth import ClientConfig
    from shallow_mirror.config import ArchiveConfig, MirrorConfig
    from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
    from shallow_mirror.streaming.planning.planner_config import PlannerConfig
    from shallow_mirror.streaming.planning.planner_state import RegistrationFiles

_CONFIG = "mirrorsecret"
"""Spark hides options whose name contains "secret" in plans and logs; a client property may be one."""
_ARCHIVE = "archivesecret"
"""The same for an archive."""
MAP_ID = "map"
"""In the options and in stream offsets."""
LOG_NAME = "logname"
_CLUSTER_ID = "sourceclusterid"
_PARALLELISM = "parallelism"
_INITIAL = "initial"
_PAUSED = "paused"
_LEFT_OUT = "leftout"
_FORGOTTEN = "forgotten"
_PLANNED = "planned"
_REGISTRATION = "registration"
_HELD_TRUNCATIONS = "heldtruncations"


class Waits(TypedDict, total=False):
    """How a planner waits: arguments of `MicroBatchPlanner`, for one that must end when its query does."""

    sleep: Callable[[float], None]
    deadline_clock: Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerOptions:
    """The settings of a run and the files through which it speaks with its planner. The files are on the driver's machine."""

    config: MirrorConfig | ArchiveConfig
    map_id: str
    parallelism: int
    source_cluster_id: str = ""
    """Nothing is planned from another cluster."""
    initial: Offsets | None = None
    """Start of a new Spark checkpoint: the positions of the offset map. None: `read.start`."""
    paused_path: Path | None = None
    left_out_path: Path | None = None
    planned_path: Path | None = None
    registration: RegistrationFiles | None = None
    held_truncations: Offsets | None = None
    """As in `PlannerConfig`."""
    forgotten: frozenset[str] = frozenset()
    """As in `PlannerConfig`."""

    def to_spark(self) -> dict[str, str]:
        """Return the options of the stream. They name the mirror whose log context this thread has."""
        from shallow_mirror.config import ArchiveConfig

        key = _ARCHIVE if isinstance(self.config, ArchiveConfig) else _CONFIG
        options = {key: self.config.to_json(), MAP_ID: self.map_id, _PARALLELISM: str(self.parallelism)}
        options[_CLUSTER_ID] = self.source_cluster_id
        name = current_name()
        if name is not None:
            options[LOG_NAME] = name
        for option, path in ((_PAUSED, self.paused_path), (_LEFT_OUT, self.left_out_path), (_PLANNED, self.planned_path)):
            if path is not None:
                options[option] = str(path)
        if self.initial is not None:
            options[_INITIAL] = json.dumps(offset_planning.build_stream_offset(self.initial))
        if self.registration is not None:
            options[_REGISTRATION] = json.dumps([str(self.registration.seen_path.parent), self.registration.query_id])
        if self.held_truncations:
            options[_HELD_TRUNCATIONS] = json.dumps(offset_planning.build_stream_offset(self.held_truncations))
        if self.forgotten:
            options[_FORGOTTEN] = json.dumps(sorted(self.forgotten))
        return options

    @classmethod
    def of_spark(cls, options: Mapping[str, str]) -> PlannerOptions | None:
        """Return the options that `to_spark` has made; None for options that a user wrote."""
        config = mirror_of(options) or _archive_of(options)
        if config is None:
            return None
        paused, left_out, planned = (
            Path(options[option]) if option in options else None for option in (_PAUSED, _LEFT_OUT, _PLANNED)
        )
        return cls(
            config=config,
            map_id=options[MAP_ID],
            parallelism=int(options[_PARALLELISM]),
            source_cluster_id=options[_CLUSTER_ID],
            initial=initial_of(options),
            paused_path=paused,
            left_out_path=left_out,
            planned_path=planned,
            registration=_registration_of(options),
            held_truncations=_offsets_of(options, _HELD_TRUNCATIONS),
            forgotten=frozenset(json.loads(options.get(_FORGOTTEN, "[]"))),
        )

    def planner_config(self) -> PlannerConfig:
        """Return the settings of planning."""
        from shallow_mirror.config import ArchiveConfig
        from shallow_mirror.streaming.planning.planner_config import PlannerConfig

        if isinstance(self.config, ArchiveConfig):
            return PlannerConfig.of_archive(
                self.config,
                left_out_path=self.left_out_path,
                registration=self.registration,
                held_truncations=self.held_truncations,
            )
        return PlannerConfig.of_mirror(
            self.config,
            paused_path=self.paused_path,
            left_out_path=self.left_out_path,
            planned_path=self.planned_path,
            registration=self.registration,
            forgotten=self.forgotten,
        )

    def make_planner(self, cluster: Cluster | None = None, **waits: Unpack[Waits]) -> MicroBatchPlanner:
        """Return a planner with `cluster`, or with connections of its own."""
        return make_micro_batch_planner(
            self.planner_config(),
            self.config.source.client,
            self.parallelism,
            self.initial,
            cluster=cluster,
            cluster_id=self.source_cluster_id,
            **waits,
        )


def make_micro_batch_planner(
    config: PlannerConfig,
    client: ClientConfig,
    parallelism: int,
    recorded: Offsets | None = None,
    *,
    cluster: Cluster | None = None,
    cluster_id: str = "",
    **waits: Unpack[Waits],
) -> MicroBatchPlanner:
    """Return a planner of the source cluster, with `cluster` or one of this id. It connects when it is first asked."""
    # Imported here: Spark starts more processes that make a reader and never call it.
    from shallow_mirror.broker import Cluster
    from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
    from shallow_mirror.streaming.planning.source_offsets import SourceOffsets

    source = SourceOffsets(config, cluster or Cluster(client, cluster_id=cluster_id))
    return MicroBatchPlanner(config, source, parallelism=parallelism, recorded=recorded, **waits)


def mirror_of(options: Mapping[str, str]) -> MirrorConfig | None:
    """Return the mirror these options were made for; None for options of something else."""
    if _CONFIG not in options:
        return None
    from shallow_mirror.config import MirrorConfig

    return MirrorConfig.from_json(options[_CONFIG])


def initial_of(options: Mapping[str, str]) -> Offsets | None:
    """Return the positions of the offset map when the stream was begun; None for options that a user wrote."""
    return _offsets_of(options, _INITIAL)


def _archive_of(options: Mapping[str, str]) -> ArchiveConfig | None:
    if _ARCHIVE not in options:
        return None
    from shallow_mirror.config import ArchiveConfig

    return ArchiveConfig.from_json(options[_ARCHIVE])


def _offsets_of(options: Mapping[str, str], option: str) -> Offsets | None:
    text = options.get(option)
    return None if text is None else offset_planning.parse_stream_offset(json.loads(text))


def _registration_of(options: Mapping[str, str]) -> RegistrationFiles | None:
    from shallow_mirror.streaming.planning.planner_state import RegistrationFiles

    if _REGISTRATION not in options:
        return None
    folder, query_id = json.loads(options[_REGISTRATION])
    return RegistrationFiles.of_query(Path(folder), query_id)
