"""Planner process: what the two data sources share: stream offsets, planning, input partitions of one slot each.

A mirror's stream offsets name its offset map, as `"map"`: Spark keeps them in its checkpoint, and offsets of another map are
rejected.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from shallow_mirror.errors import ConfigError
from shallow_mirror.log_context import current_name, log_name
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.error_transport import serialize_errors
from shallow_mirror.streaming.planning.offset_codec import OffsetCodec
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.types import PlannedRange

if TYPE_CHECKING:
    from shallow_mirror.broker.auth.client_config import ClientConfig
    from shallow_mirror.config import ArchiveConfig, MirrorConfig
    from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
    from shallow_mirror.streaming.planning.planner_config import PlannerConfig
    from shallow_mirror.streaming.planning.planner_state import RegistrationFiles

_CONFIG = "mirrorsecret"
"""Spark hides options whose name contains "secret" in plans and logs; a client property may be one."""
_ARCHIVE = "archivesecret"
"""The same for an archive."""
_PARALLELISM = "parallelism"
_INITIAL = "initial"
_MAP_ID = "map"
"""In the options and in stream offsets."""
_PAUSED = "paused"
_LEFT_OUT = "leftout"
_FORGOTTEN = "forgotten"
_PLANNED = "planned"
_REGISTRATION = "registration"
_HELD_TRUNCATIONS = "heldtruncations"
_LOG_NAME = "logname"


def register(spark: SparkSession, source: type[DataSource]) -> None:
    """Register `source` in `spark`."""
    # Spark looks a name up in the session that is *active* in this thread, and without one in the default session: `spark` is
    # made the active one first.
    spark.createDataFrame([], "nothing int")
    spark.dataSource.register(source)


@dataclass(frozen=True)
class SlotPartition(InputPartition):  # type: ignore[misc]
    """Spark's input partition: everything one slot does in a micro-batch."""

    ranges: tuple[PlannedRange, ...]


def options_of_mirror(
    config: MirrorConfig | ArchiveConfig,
    map_id: str,
    *,
    initial: Offsets | None = None,
    parallelism: int | None = None,
    paused_path: Path | None = None,
    left_out_path: Path | None = None,
    planned_path: Path | None = None,
    registration: RegistrationFiles | None = None,
    held_truncations: Offsets | None = None,
    forgotten: Collection[str] = (),
) -> dict[str, str]:
    """Return the options of the stream of a mirror or an archive.

    `initial` is where a new Spark checkpoint begins: the map's positions, or `read.start` if None. `paused_path`,
    `left_out_path`, `planned_path` and those of `registration`: files of the driver's machine, where the planner runs as well.
    `held_truncations`, `forgotten`: as in `PlannerConfig`.
    """
    from shallow_mirror.config import ArchiveConfig

    key = _ARCHIVE if isinstance(config, ArchiveConfig) else _CONFIG
    options = {key: config.to_json(), _MAP_ID: map_id, _PARALLELISM: str(parallelism or _session_parallelism())}
    name = current_name()
    if name is not None:
        options[_LOG_NAME] = name
    if initial is not None:
        options[_INITIAL] = json.dumps(offset_planning.build_stream_offset(initial))
    if paused_path is not None:
        options[_PAUSED] = str(paused_path)
    if left_out_path is not None:
        options[_LEFT_OUT] = str(left_out_path)
    if planned_path is not None:
        options[_PLANNED] = str(planned_path)
    if registration is not None:
        options[_REGISTRATION] = json.dumps([str(registration.seen_path.parent), registration.query_id])
    if held_truncations:
        options[_HELD_TRUNCATIONS] = json.dumps(offset_planning.build_stream_offset(held_truncations))
    if forgotten:
        options[_FORGOTTEN] = json.dumps(sorted(forgotten))
    return options


def mirror_of(options: Mapping[str, str]) -> MirrorConfig | None:
    """Return the mirror these options were made for; None for options that a user wrote."""
    if _CONFIG not in options:
        return None
    from shallow_mirror.config import MirrorConfig

    return MirrorConfig.from_json(options[_CONFIG])


def archive_of(options: Mapping[str, str]) -> ArchiveConfig | None:
    """Return the archive these options were made for; None for those of something else."""
    if _ARCHIVE not in options:
        return None
    from shallow_mirror.config import ArchiveConfig

    return ArchiveConfig.from_json(options[_ARCHIVE])


def _session_parallelism() -> int:
    spark = SparkSession.getActiveSession()
    return int(spark.sparkContext.defaultParallelism) if spark is not None else os.cpu_count() or 1


def make_micro_batch_planner(
    config: PlannerConfig, client: ClientConfig, parallelism: int, recorded: Offsets | None = None
) -> MicroBatchPlanner:
    # Imported here: Spark starts more processes that make a reader and never call it.
    from shallow_mirror.broker.cluster.cluster import Cluster
    from shallow_mirror.streaming.planning.planner import MicroBatchPlanner
    from shallow_mirror.streaming.planning.source_offsets import SourceOffsets

    return MicroBatchPlanner(config, SourceOffsets(config, Cluster(client)), parallelism=parallelism, recorded=recorded)


def ranges_by_slot(ranges: Sequence[PlannedRange]) -> list[tuple[PlannedRange, ...]]:
    """Return the ranges of each slot that has any, in the order of slots."""
    by_slot: dict[int, list[PlannedRange]] = {}
    for planned in ranges:
        by_slot.setdefault(planned.slot, []).append(planned)
    return [tuple(slot) for _, slot in sorted(by_slot.items())]


def slot_partitions(ranges: Sequence[PlannedRange]) -> list[SlotPartition]:
    return [SlotPartition(slot) for slot in ranges_by_slot(ranges)]


class PlannedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A subclass defines what a row is (`read`) and, where options may be a user's, how they are parsed (`make_planner`).

    The planner and its connections are made by the first call, never in `__init__`: Spark pickles another instance of the
    reader for the executors, and only input partitions carry anything to them.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self._planner: MicroBatchPlanner | None = None
        self._codec = OffsetCodec()

    def make_planner(self) -> MicroBatchPlanner:
        config = mirror_of(self.options) or archive_of(self.options)
        assert config is not None
        return make_micro_batch_planner(
            self.make_planner_config(config), config.source.client, self.parallelism, self._recorded()
        )

    def _recorded(self) -> Offsets | None:
        text = self.options.get(_INITIAL)
        return None if text is None else offset_planning.parse_stream_offset(json.loads(text))

    def make_planner_config(self, config: MirrorConfig | ArchiveConfig) -> PlannerConfig:
        from shallow_mirror.config import ArchiveConfig
        from shallow_mirror.streaming.planning.planner_config import PlannerConfig

        paused, left_out, planned = (
            Path(self.options[key]) if key in self.options else None for key in (_PAUSED, _LEFT_OUT, _PLANNED)
        )
        registration = self._registration()
        if isinstance(config, ArchiveConfig):
            text = self.options.get(_HELD_TRUNCATIONS)
            held = None if text is None else offset_planning.parse_stream_offset(json.loads(text))
            return PlannerConfig.of_archive(config, left_out_path=left_out, registration=registration, held_truncations=held)
        return PlannerConfig.of_mirror(
            config,
            paused_path=paused,
            left_out_path=left_out,
            planned_path=planned,
            registration=registration,
            forgotten=frozenset(json.loads(self.options.get(_FORGOTTEN, "[]"))),
        )

    def _registration(self) -> RegistrationFiles | None:
        from shallow_mirror.streaming.planning.planner_state import RegistrationFiles

        if _REGISTRATION not in self.options:
            return None
        folder, query_id = json.loads(self.options[_REGISTRATION])
        return RegistrationFiles.of_query(Path(folder), query_id)

    @property
    def parallelism(self) -> int:
        return int(self.options[_PARALLELISM])

    def _get_planner(self) -> MicroBatchPlanner:
        if self._planner is None:
            self._planner = self.make_planner()
        return self._planner

    def _parse(self, document: dict[str, Any]) -> Offsets:
        """Return the offsets of a document from Spark's checkpoint. Raise ConfigError, ValueError."""
        own, written = self.options.get(_MAP_ID), document.get(_MAP_ID)
        if written != own:
            raise ConfigError(
                f"the Spark checkpoint was written {f'for the offset map {written}' if written else 'without an offset map'}, "
                f"this stream {f'is of the map {own}' if own else 'has none'}: two mirrors or streams share a checkpoint folder, "
                "or the tables were recreated. Give it an empty folder of its own (`checkpoint` in the mirror file): a mirror "
                "loses nothing by that, its progress is in the offset map"
            )
        return self._codec.parse(document)

    def _build(self, offsets: Offsets) -> dict[str, Any]:
        own = self.options.get(_MAP_ID)
        return self._codec.build(offsets) | ({} if own is None else {_MAP_ID: own})

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Answer a request of Spark in the block: its log lines name the mirror, and its errors reach the driver."""
        with log_name(self.options.get(_LOG_NAME)), serialize_errors():
            yield

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        recorded = self._recorded()
        if recorded is not None:
            return self._build(recorded)
        with self._request():
            return self._build(self._get_planner().initial())

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the next micro-batch. The planner has its own limits: Spark's is ignored. Raise DataLossError."""
        with self._request():
            offsets = self._parse(start)
            return self._build(self._get_planner().latest(offsets))

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        with self._request():
            self._get_planner().prepare_available_now()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        with self._request():
            offsets = self._parse(start), self._parse(end)
            return slot_partitions(self._get_planner().ranges(*offsets))

    def commit(self, end: dict[str, Any]) -> None:
        """Ignore Spark's commit: the source keeps no group offsets."""
