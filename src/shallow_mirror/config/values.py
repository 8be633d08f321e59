"""Pure: values of the mirror file that pydantic does not know: durations, starts, patterns, the location of the tables."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from shallow_mirror import routing
from shallow_mirror.broker.admin.access import ANYBODY
from shallow_mirror.checkpoints import CATALOG
from shallow_mirror.types import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, IsolationLevel, LogAppendTimePolicy

StartRule = int | Mapping[int, int]
"""A ListOffsets timestamp, or an offset by partition."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(millisecond|second|minute|hour|day|ms|s)s?")
_DURATION_UNITS_S = {"millisecond": 0.001, "ms": 0.001, "second": 1.0, "s": 1.0, "minute": 60.0, "hour": 3600.0, "day": 86400.0}
DURATIONS = ("500 ms", "2 seconds", "1 minute", "12 hours", "30 days")
"""Examples, for editors and for the reference."""
_PRINCIPAL = re.compile(r"[A-Za-z]\w*:.+")
_SCHEMA = re.compile(r"[^\s.`]+\.[^\s.`]+")

T = TypeVar("T")


COALESCE_BOUNDS = (1 << 10, 64 << 20)
"""The least and the most of `coalesce_bytes`."""


_TABLES_IN_JSON_SCHEMA = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "object", "properties": {"schema": {"type": "string"}}, "required": ["schema"], "additionalProperties": False},
    ]
}


Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$", max_length=120)]
Isolation = Annotated[IsolationLevel, Field(strict=False)]
LogAppendTime = Annotated[LogAppendTimePolicy, Field(strict=False)]
BytesPerSecond = Annotated[int, Field(ge=1 << 10, le=1 << 40)]

TASK_SHARE = 0.75
"""Part of the transaction timeout that tasks may use; the rest is for the decision and EndTxn."""

DEFAULT_COMMIT_INTERVAL_S = 20
DEFAULT_COMMIT_INTERVAL = f"{DEFAULT_COMMIT_INTERVAL_S} seconds"
_MIN_INTERVALS_PER_TIMEOUT = 3
"""A default that does not fit into a short timeout is this part of it."""


def parse_start(start: str) -> int:
    """Return a ListOffsets timestamp: -2 earliest, -1 latest, or milliseconds since the epoch. Raise ValueError."""
    if start in ("earliest", "latest"):
        return EARLIEST_TIMESTAMP if start == "earliest" else LATEST_TIMESTAMP
    try:
        at = datetime.fromisoformat(start)
    except ValueError as error:
        raise ValueError(f"{start!r} is neither earliest, latest nor an ISO-8601 time") from error
    if at.tzinfo is None:
        raise ValueError(
            f"{start!r} has no time zone: write {start}Z for UTC" if "T" in start else f"{start!r} has no time of day"
        )
    return int(at.timestamp() * 1000)


def parse_duration(text: str) -> float:
    """Return the seconds of "2 seconds", "500 ms", "1 minute" or "30 days". Raise ValueError."""
    match = _DURATION.fullmatch(text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a duration such as '2 seconds', '500 ms' or '1 minute'")
    return float(match[1]) * _DURATION_UNITS_S[match[2]]


def parse_interval(interval: str) -> float:
    """Return the seconds of a duration above zero. Raise ValueError."""
    seconds = parse_duration(interval)
    if seconds <= 0:
        raise ValueError(f"{interval!r} is not an interval: give a duration above zero such as '15 seconds'")
    return seconds


def parse_interval_or_auto(interval: str) -> float | None:
    """Return the seconds of an interval; None for "auto". Raise ValueError."""
    return None if interval == "auto" else parse_interval(interval)


def parse_sync(sync: str) -> float | None:
    """Return the seconds between two synchronizations of groups or ACLs; None for "off". Raise ValueError."""
    return None if sync == "off" else parse_duration(sync)


def parse_keep(keep: str) -> float | None:
    """Return the seconds of an interval; None for "forever". Raise ValueError."""
    return None if keep == "forever" else parse_interval(keep)


def checked(parse: Callable[[T], object]) -> AfterValidator:
    """Return a validator that keeps the value as written; `parse` raises ValueError if the value has no meaning."""

    def check(value: T) -> T:
        parse(value)
        return value

    return AfterValidator(check)


def require_http_url(url: str, *, example: str, login: str) -> None:
    """Raise ValueError for what is no http or https URL, or has a login. `login`: how it is given instead."""
    try:
        parts = urllib.parse.urlsplit(url)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(f"must be a URL such as {example}")
    if "@" in parts.netloc:
        raise ValueError(f"must not hold a user name or password: use {login}")


def _require_regular_expression(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error


def _require_not_internal(pattern: str) -> None:
    if pattern.startswith(routing.INTERNAL_PREFIX):
        raise ValueError(f"{pattern!r} matches internal topics only: topics that begin with __ are never mirrored")


def _require_target_name(template: str) -> None:
    problem = routing.template_problem(template)
    if problem is not None:
        raise ValueError(problem)


def _require_principal(principal: str) -> None:
    if not _PRINCIPAL.fullmatch(principal):
        raise ValueError(f"{principal!r} is not a principal such as User:anna: a type, a colon and a name")


def _require_principal_mapping(principals: Mapping[str, str]) -> None:
    """Raise ValueError for an entry that would give everybody what one has, or take from one what all are denied."""
    for source, target in principals.items():
        if (source == ANYBODY) != (target == ANYBODY):
            raise ValueError(f"{source} cannot become {target}: {ANYBODY} is everybody, and stays so")


def _datetime_as_text(value: object) -> object:
    """Undo YAML's parsing of an unquoted time."""
    return value.isoformat() if isinstance(value, (date, datetime)) else value


def _number_as_text(value: object) -> object:
    """Turn a number into text, so that it is rejected as a duration without unit and not as a value of the wrong type."""
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else value


def _false_as_off(setting: object) -> object:
    """Undo YAML's reading of `off` as false."""
    return "off" if setting is False else setting


def _parse_topic_start(start: object) -> object:
    """Return a start as of `read.start`, or offsets by partition. Raise ValueError."""
    start = _datetime_as_text(start)
    if isinstance(start, str):
        parse_start(start)
        return start
    offsets = {int(key): offset for key, offset in start.items() if str(key).isdecimal()} if isinstance(start, Mapping) else {}
    is_valid = isinstance(start, Mapping) and len(offsets) == len(start) > 0
    if not is_valid or not all(type(offset) is int and offset >= 0 for offset in offsets.values()):
        raise ValueError(
            f"{start!r} is none of earliest, latest, an ISO-8601 time with zone, and offsets such as {{0: 1200, 1: 3400}}"
        )
    return offsets


def _parse_tables(tables: object) -> object:
    """Return `{schema: catalog.schema}` as one text, anything else unchanged. Raise ValueError for another mapping."""
    if not isinstance(tables, Mapping):
        return tables
    if set(tables) != {"schema"} or not (isinstance(tables["schema"], str) and _SCHEMA.fullmatch(tables["schema"])):
        raise ValueError(f"{dict(tables)} is not a location of tables: give a folder, a URI, or {{schema: catalog.schema}}")
    return f"{CATALOG}{tables['schema']}"


def _check_coalesce_bytes(value: object) -> object:
    """Return the value. Raise ValueError, once, if it is none of the three kinds."""
    least, most = COALESCE_BOUNDS
    is_number = isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
    if not (is_number or value is None or value == "auto"):
        raise ValueError(f"{value!r} is none of a number of bytes from {least} to {most}, auto, and null (off)")
    return value


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)


Pattern = Annotated[str, checked(_require_regular_expression)]
SourcePattern = Annotated[Pattern, checked(_require_not_internal)]
TargetName = Annotated[str, checked(_require_target_name)]
Principal = Annotated[str, checked(_require_principal)]
Principals = Annotated[dict[Principal, Principal], checked(_require_principal_mapping)]
Start = Annotated[str, BeforeValidator(_datetime_as_text), checked(parse_start)]
TopicStart = Annotated[str | dict[int, int], BeforeValidator(_parse_topic_start)]
CoalesceBytes = Annotated[
    Annotated[int, Field(ge=COALESCE_BOUNDS[0], le=COALESCE_BOUNDS[1])] | Literal["auto"] | None,
    BeforeValidator(_check_coalesce_bytes),
]
Duration = Annotated[str, Field(examples=list(DURATIONS)), BeforeValidator(_number_as_text), checked(parse_duration)]
Interval = Annotated[str, Field(examples=list(DURATIONS)), BeforeValidator(_number_as_text), checked(parse_interval)]
SyncInterval = Annotated[
    str,
    Field(examples=[*DURATIONS, "off"]),
    BeforeValidator(_false_as_off),
    BeforeValidator(_number_as_text),
    checked(parse_sync),
]
IntervalOrAuto = Annotated[
    str, Field(examples=["auto", *DURATIONS]), BeforeValidator(_number_as_text), checked(parse_interval_or_auto)
]
KeepOrForever = Annotated[str, Field(examples=["forever", *DURATIONS]), BeforeValidator(_number_as_text), checked(parse_keep)]
OrOff = BeforeValidator(_false_as_off)
MicroBatchKind = Literal["auto", "stream", "loop"]
"""Origin of micro-batches: Spark's Structured Streaming, or a loop of the driver. `auto`: by the session's abilities."""

Tables = Annotated[str, Field(min_length=1), BeforeValidator(_parse_tables), WithJsonSchema(_TABLES_IN_JSON_SCHEMA)]


def commit_interval_problem(interval_s: float, transaction_timeout_ms: int) -> str | None:
    """Return why slots cannot write for so long in one transaction; None if they can."""
    share_s = transaction_timeout_ms * TASK_SHARE / 1000
    if interval_s < share_s:
        return None
    return (
        f"{interval_s:g} seconds are not below {share_s:g}, the {TASK_SHARE:.0%} of write.transaction_timeout_ms="
        f"{transaction_timeout_ms} that slots may take: write less, or raise write.transaction_timeout_ms"
    )


def default_commit_interval(transaction_timeout_ms: int) -> str:
    """Return the interval of a mirror file that has none: `DEFAULT_COMMIT_INTERVAL`, less where the timeout is short."""
    short_ms = transaction_timeout_ms / _MIN_INTERVALS_PER_TIMEOUT
    return DEFAULT_COMMIT_INTERVAL if short_ms >= DEFAULT_COMMIT_INTERVAL_S * 1000 else f"{short_ms:.0f} ms"
