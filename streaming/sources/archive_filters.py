"""Planner: filters that Spark pushes down, as bounds of the read. Spark evaluates every filter again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import reduce
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from shallow_mirror.archive_reading.read_bounds import ReadBounds

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_RECORD_TIME, _BATCH_TIME = "timestamp", "max_timestamp_ms"
_OFFSETS = ("offset", "base_offset", "last_offset")


def bounds_of(filters: Iterable[Filter], bounds: ReadBounds) -> ReadBounds:
    """Return `bounds` with those of the filters, all of which hold. Filters that bound nothing are ignored."""
    return reduce(_bounded, filters, bounds)


def _bounded(bounds: ReadBounds, pushed: Filter) -> ReadBounds:
    column = ".".join(getattr(pushed, "attribute", ()))
    value = getattr(pushed, "value", None)
    if value is None:
        return bounds
    if column in ("topic", "partition"):
        return _in_names(bounds, pushed, column, value)
    if column in _OFFSETS:
        return _in_offsets(bounds, pushed, value)
    if column in (_RECORD_TIME, _BATCH_TIME):
        return _in_times(bounds, pushed, column, value)
    return bounds


def _in_names(bounds: ReadBounds, pushed: Filter, column: str, value: Any) -> ReadBounds:
    values = _values_of(pushed, value)
    if values is None:
        return bounds
    return bounds.of_topics(frozenset(values)) if column == "topic" else bounds.of_partitions(frozenset(values))


def _in_offsets(bounds: ReadBounds, pushed: Filter, value: Any) -> ReadBounds:
    """Bound offsets. A batch with a first or last offset above or below a bound holds an offset there."""
    values = _values_of(pushed, value)
    if values is not None:
        return bounds.from_offset(min(values)).up_to_offset(max(values) + 1) if values else bounds.up_to_offset(0)
    if isinstance(pushed, GreaterThan | GreaterThanOrEqual):
        return bounds.from_offset(value + isinstance(pushed, GreaterThan))
    if isinstance(pushed, LessThan | LessThanOrEqual):
        return bounds.up_to_offset(value + isinstance(pushed, LessThanOrEqual))
    return bounds


def _in_times(bounds: ReadBounds, pushed: Filter, column: str, value: Any) -> ReadBounds:
    """Bound times: of records from both sides, of batches from below. Parts of a millisecond are rounded outwards."""
    to_ms: Callable[[Any], float] = _ms_of if column == _RECORD_TIME else float
    values = _values_of(pushed, value)
    if values is not None:
        if not values:
            return bounds.up_to_offset(0)
        bounds = bounds.from_time(math.floor(to_ms(min(values))))
        return bounds.up_to_time(math.ceil(to_ms(max(values)))) if column == _RECORD_TIME else bounds
    if isinstance(pushed, GreaterThan | GreaterThanOrEqual):
        return bounds.from_time(math.floor(to_ms(value)))
    if isinstance(pushed, LessThan | LessThanOrEqual) and column == _RECORD_TIME:
        return bounds.up_to_time(math.ceil(to_ms(value)))
    return bounds


def _values_of(pushed: Filter, value: Any) -> list[Any] | None:
    """Return the values that a column must have one of; None for another kind of filter. Nothing equals null."""
    if isinstance(pushed, In):
        return [member for member in value if member is not None]
    return [value] if isinstance(pushed, EqualTo | EqualNullSafe) else None


def _ms_of(value: datetime) -> float:
    """Return milliseconds since the epoch, exactly to the microsecond. Spark passes times in UTC."""
    aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    since = aware - _EPOCH
    return (since.days * 86_400_000_000 + since.seconds * 1_000_000 + since.microseconds) / 1000
