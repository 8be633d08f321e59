"""Driver: the columns of a DataFrame that become records: those of Spark's own Kafka sink, and `timestamp`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shallow_mirror.errors import ConfigError

_BYTES = ("string", "binary")
_HEADERS = ("array<struct<key:string,value:binary>>",)
COLUMN_TYPES: Mapping[str, tuple[str, ...]] = {
    "topic": ("string",),
    "key": _BYTES,
    "value": _BYTES,
    "headers": _HEADERS,
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
"""Types as Spark's `simpleString` spells them."""


def record_columns(types: Iterable[tuple[str, str]], *, has_topic: bool) -> list[str]:
    """Return the columns to be read, of those of a DataFrame: (name, type). Others are left out, as Spark's sink does.

    `has_topic`: the sink has one topic for all rows, and a column `topic` is left out as well. Raises ConfigError with every
    problem.
    """
    given = dict(types)
    problems = []
    if "value" not in given:
        problems.append("the DataFrame has no column value")
    if not has_topic and "topic" not in given:
        problems.append("the DataFrame has no column topic, and the sink has no topic: give the sink one")
    chosen = [name for name in COLUMN_TYPES if name in given and not (has_topic and name == "topic")]
    problems += [
        f"column {name}: {given[name]}, expected {' or '.join(COLUMN_TYPES[name])}: cast it"
        for name in chosen
        if given[name] not in COLUMN_TYPES[name]
    ]
    if problems:
        raise ConfigError(problems)
    return chosen
