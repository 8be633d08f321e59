"""Planner process: base of the two data sources: stream offsets, planning, input partitions of one slot each.

A mirror's stream offsets name its offset map, as `"map"`: Spark keeps them in its checkpoint, and offsets of another map are
rejected.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from shallow_mirror.errors import ConfigError
from shallow_mirror.log_context import log_name
from shallow_mirror.sinks.slots import ranges_by_slot
from shallow_mirror.streaming.planning.error_transport import serialize_errors
from shallow_mirror.streaming.planning.offset_codec import OffsetCodec
from shallow_mirror.streaming.planning.offset_planning import Offsets
from shallow_mirror.streaming.planning.stopped_planner import end_quietly_when_stopped
from shallow_mirror.streaming.sources.admission_control import MODULE, has_admission_control
from shallow_mirror.streaming.sources.planner_options import LOG_NAME, MAP_ID, PlannerOptions, initial_of
from shallow_mirror.types import PlannedRange

if not has_admission_control():
    raise ConfigError(
        f"this PySpark has no admission control for Python data sources ({MODULE}): `kafka-batches` needs PySpark 4.2 or newer. "
        "Mirrors and archives do without it (micro_batches: auto or loop)"
    )
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

if TYPE_CHECKING:
    from shallow_mirror.streaming.planning.planner import MicroBatchPlanner


@dataclass(frozen=True)
class SlotPartition(InputPartition):  # type: ignore[misc]
    """Spark's input partition: everything one slot does in a micro-batch."""

    ranges: tuple[PlannedRange, ...]
    cluster_id: str = ""
    """Of the cluster that they were planned for; empty if it is not known."""


def slot_partitions(ranges: Sequence[PlannedRange], cluster_id: str) -> list[SlotPartition]:
    return [SlotPartition(slot, cluster_id) for slot in ranges_by_slot(ranges)]


class PlannedStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]
    """A subclass defines its rows (`read`) and, if options may be a user's, how they are parsed (`make_planner`).

    The planner and its connections are made by the first call, never in `__init__`: Spark pickles another instance of the
    reader for the executors, and only input partitions carry anything to them.
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self._planner: MicroBatchPlanner | None = None
        self._codec = OffsetCodec()
        end_quietly_when_stopped()

    def make_planner(self) -> MicroBatchPlanner:
        options = PlannerOptions.of_spark(self.options)
        assert options is not None
        return options.make_planner()

    def _get_planner(self) -> MicroBatchPlanner:
        if self._planner is None:
            self._planner = self.make_planner()
        return self._planner

    def _parse(self, document: dict[str, Any]) -> Offsets:
        """Return the offsets of a document from Spark's checkpoint. Raise ConfigError, ValueError."""
        own, written = self.options.get(MAP_ID), document.get(MAP_ID)
        if written != own:
            raise ConfigError(
                f"the Spark checkpoint was written {f'for the offset map {written}' if written else 'without an offset map'}, "
                f"this stream {f'is of the map {own}' if own else 'has none'}: two mirrors or streams share a checkpoint folder, "
                "or the tables were recreated. Give it an empty folder of its own (`checkpoint` in the mirror file): a mirror "
                "loses nothing by that, its progress is in the offset map"
            )
        return self._codec.parse(document)

    def _build(self, offsets: Offsets) -> dict[str, Any]:
        own = self.options.get(MAP_ID)
        return self._codec.build(offsets) | ({} if own is None else {MAP_ID: own})

    @contextmanager
    def _request(self) -> Iterator[None]:
        """Answer a request of Spark in the block: its log lines name the mirror, and its errors reach the driver."""
        with log_name(self.options.get(LOG_NAME)), serialize_errors():
            yield

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name, as those below
        recorded = initial_of(self.options)
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
            planner = self._get_planner()
            return slot_partitions(planner.ranges(*offsets), planner.source_cluster_id)

    def commit(self, end: dict[str, Any]) -> None:
        """Ignore Spark's commit: the source keeps no group offsets."""
