"""Driver, planner process and cli: small JSON files beside the Spark checkpoint, through which they exchange their state.

They are hints: losing or damaging one loses no data, so a reader returns None for anything it cannot parse.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import PlainSerializer, PlainValidator, TypeAdapter, ValidationError

from shallow_mirror.access import AccessPass
from shallow_mirror.named_files import naming_file
from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Measurements
from shallow_mirror.types import PlannedRange, SourcePartition

MOST_PLANNED_RANGES = 1_000
"""Ranges of a larger micro-batch are not written: it takes so long that a round trip less is nothing."""


_StreamOffset = Annotated[
    Mapping[SourcePartition, int],
    PlainValidator(offset_planning.parse_stream_offset),
    PlainSerializer(offset_planning.build_stream_offset),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerState:
    """Outcome of the last plan."""

    at_ms: int
    waiting_for: str | None
    """The error of a source that does not answer; None when it answered."""
    since_ms: int | None
    """When that wait began."""
    error_name: str | None = None
    """Of the RetriableError that is waited out."""
    ends: _StreamOffset = field(default_factory=dict)
    """Ends of the logs that grew since the plan before."""
    left_out: tuple[Mapping[str, Any], ...] = ()
    """Documents of partitions that are broken at the source (streaming/planning/left_out_partitions.py)."""
    caught_up: tuple[SourcePartition, ...] = ()
    """Partitions that slots left out and that have nothing left to copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicsState:
    """Topics of the source, as the driver has seen them last."""

    at_ms: int
    gone: tuple[str, ...]
    """Mirrored topics that were deleted at the source."""
    problems: tuple[str, ...]
    """Sentences about topics and settings of target topics."""
    topics: Mapping[str, str] = field(default_factory=dict)
    """The source topic of each sentence that concerns one; the file of an older release has none."""
    followed: tuple[str, ...] = ()
    """Topics of `gone` of which a sentence says what becomes of the target topic (`topics.deleted: delete`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StartState:
    """Step of a start, until the first plan."""

    step: str
    since_ms: int


@dataclass(frozen=True, slots=True)
class _RangesState:
    ranges: tuple[PlannedRange, ...]


State = TypeVar("State")


def planner_state_path(checkpoint: str, of_run: Path | None = None) -> Path | None:
    """Return the path beside the checkpoint, or if that is not on a local disk, beside `of_run`, which is on the driver's."""
    path = _beside(checkpoint, "planner")
    return path if path is not None or of_run is None else of_run.with_suffix(".planner.json")


def measurements_path(checkpoint: str) -> Path | None:
    return _beside(checkpoint, "measured")


def start_state_path(checkpoint: str) -> Path | None:
    return _beside(checkpoint, "start")


def topics_state_path(checkpoint: str) -> Path | None:
    return _beside(checkpoint, "topics")


def acls_state_path(checkpoint: str) -> Path | None:
    return _beside(checkpoint, "acls")


def quotas_state_path(checkpoint: str) -> Path | None:
    return _beside(checkpoint, "quotas")


def schemas_state_path(checkpoint: str) -> Path | None:
    return _beside(checkpoint, "schemas")


def left_out_path(checkpoint: str) -> Path | None:
    return _beside(checkpoint, "left_out")


def _beside(checkpoint: str, name: str) -> Path | None:
    """Return a file named after the checkpoint: those of other mirrors may be in its folder. None unless on a local disk."""
    return None if ":/" in checkpoint else Path(f"{checkpoint}.{name}.json")


def write_state(path: Path | None, state: PlannerState | TopicsState | StartState | AccessPass | _RangesState) -> None:
    """Replace the file. Raises OSError."""
    _replace_file(path, _adapter(type(state)).dump_json(state))


def read_state(path: Path | None, kind: type[State]) -> State | None:
    """Return the content of the file; None if there is no file, or one that `write_state` has not written for this kind."""
    try:
        state: State | None = None if path is None else _adapter(kind).validate_json(path.read_bytes())
        return state
    except (OSError, ValidationError):
        return None


_adapters: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    # Not at import: Spark starts more processes that load this file than read or write a state.
    if kind not in _adapters:
        _adapters[kind] = TypeAdapter(kind)
    return _adapters[kind]


def lag_behind(state: PlannerState | None, positions: Mapping[SourcePartition, int], since_ms: int) -> int | None:
    """Return the sum of offsets from `positions` to the log ends of the last plan; None without a plan since `since_ms`.

    Not the lag of the plan: a task reads the batch at the end of its range whole, or stops before the end.
    """
    if state is None or state.waiting_for is not None or state.at_ms < since_ms:
        return None
    return sum(max(0, end - positions[source]) for source, end in state.ends.items() if source in positions)


def write_measurements(path: Path | None, measurements: Measurements) -> None:
    """Replace the file. Raises OSError."""
    rows = [
        [source.topic, source.topic_id, source.partition, value]
        for source, value in sorted(measurements.bytes_per_offset.items())
    ]
    rates = {"bytes_per_s": measurements.bytes_per_s, "bytes_per_batch": measurements.bytes_per_batch}
    write_document(path, {**rates, "copied": dict(measurements.copied), "bytes_per_offset": rows})


def read_measurements(path: Path | None) -> Measurements | None:
    document = read_document(path)
    try:
        rate, batch = document["bytes_per_s"], document["bytes_per_batch"]
        rows = {SourcePartition(str(row[0]), str(row[1]), int(row[2])): float(row[3]) for row in document["bytes_per_offset"]}
        return Measurements(
            bytes_per_offset={source: value for source, value in rows.items() if value > 0},
            bytes_per_s=None if rate is None else max(0.0, float(rate)),
            bytes_per_batch=None if batch is None else max(0.0, float(batch)),
            copied={str(name): int(size) for name, size in document["copied"].items()},
        )
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, AttributeError):
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationFiles:
    """Two files through which planner and driver agree on partitions that appear during a query.

    The planner writes to `seen_path` which ones it has listed, with their first offsets. The driver writes their rows into the
    offset map, and then their positions to `registered_path`. Only registered partitions are planned. Unlike the other files
    these are no hints: a file of another query (`query_id`) is ignored.
    """

    seen_path: Path
    registered_path: Path
    query_id: str

    @classmethod
    def of_query(cls, folder: Path, query_id: str) -> RegistrationFiles:
        return cls(
            seen_path=folder / f"seen-{query_id}.json", registered_path=folder / f"registered-{query_id}.json", query_id=query_id
        )

    def write_seen(self, starts: Mapping[SourcePartition, int]) -> None:
        """Replace the file. Raises OSError."""
        self._write(self.seen_path, starts)

    def read_seen(self) -> dict[SourcePartition, int]:
        """Return start offsets by partition; nothing if there is no file of this query."""
        return self._read(self.seen_path)

    def write_registered(self, positions: Mapping[SourcePartition, int]) -> None:
        """Replace the file. Raises OSError."""
        self._write(self.registered_path, positions)

    def read_registered(self) -> dict[SourcePartition, int]:
        """Return positions by partition; nothing if there is no file of this query."""
        return self._read(self.registered_path)

    def discard(self) -> None:
        """Delete both at the end of the query. Raises OSError."""
        for path in (self.seen_path, self.registered_path):
            path.unlink(missing_ok=True)

    def _write(self, path: Path, offsets: Mapping[SourcePartition, int]) -> None:
        write_document(path, {"query_id": self.query_id, "offsets": offset_planning.build_stream_offset(offsets)})

    def _read(self, path: Path) -> dict[SourcePartition, int]:
        document = read_document(path)
        try:
            return offset_planning.parse_stream_offset(document["offsets"]) if document["query_id"] == self.query_id else {}
        except (KeyError, TypeError, ValueError):
            return {}


@dataclass(frozen=True, slots=True)
class PausedTopics:
    """Paused topics as the driver last wrote them for the planner.

    `revision`: of this content of the file; None if there is no file. `moved`: those of `topics` to whose targets others write:
    their new partitions are not registered.
    """

    topics: frozenset[str] = frozenset()
    revision: str | None = None
    moved: frozenset[str] = frozenset()


def write_paused_topics(path: Path, topics: Collection[str], moved: Collection[str] = ()) -> str:
    """Replace the file; return its new revision. Raises OSError."""
    revision = uuid.uuid4().hex
    write_document(path, {"topics": sorted(topics), "revision": revision, "moved": sorted(moved)})
    return revision


def read_paused_topics(path: Path | None) -> PausedTopics:
    document = read_document(path)
    try:
        topics, moved = (frozenset(map(str, document[name])) for name in ("topics", "moved"))
        return PausedTopics(topics, str(document["revision"]), moved)
    except (KeyError, TypeError):
        return PausedTopics()


def write_planned_revision(path: Path, revision: str) -> None:
    """Write of which revision of the paused topics (`path`) a plan was made. Raises OSError."""
    write_document(_planned_revision_path(path), {"revision": revision})


def read_planned_revision(path: Path) -> str | None:
    """Return the revision of the last plan. Every micro-batch that was planned before it has ended; None before a plan."""
    document = read_document(_planned_revision_path(path))
    return str(document["revision"]) if isinstance(document, dict) and "revision" in document else None


def discard_paused_topics(path: Path) -> None:
    """Delete both files at the end of the query. Raises OSError."""
    for written in (path, _planned_revision_path(path)):
        written.unlink(missing_ok=True)


def _planned_revision_path(path: Path) -> Path:
    return path.with_suffix(".planned.json")


def write_planned_ranges(path: Path | None, ranges: Sequence[PlannedRange]) -> None:
    """Write the ranges of a micro-batch before it runs; none if there are more than `MOST_PLANNED_RANGES`. Raises OSError."""
    write_state(path, _RangesState(tuple(ranges) if len(ranges) <= MOST_PLANNED_RANGES else ()))


def read_planned_ranges(path: Path | None) -> tuple[PlannedRange, ...]:
    planned = read_state(path, _RangesState)
    return () if planned is None else planned.ranges


def write_document(path: Path | None, document: Mapping[str, Any]) -> None:
    """Replace the file. Raises OSError."""
    _replace_file(path, json.dumps(document).encode())


def _replace_file(path: Path | None, content: bytes) -> None:
    """Write the file whole or not at all: readers never see half of it. None: write nothing."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    with naming_file(draft):
        draft.write_bytes(content)
    draft.replace(path)


def read_document(path: Path | None) -> Any:
    """Return the file's JSON; None if there is no file, or no JSON in it."""
    try:
        return None if path is None else json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
