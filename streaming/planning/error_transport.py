"""Planner process and driver: an error of this package as one line of text, because Spark passes on only the text of errors.

The planner adds the line to the error as a note; Python prints notes behind the message; the driver parses Spark's text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shallow_mirror import errors
from shallow_mirror.errors import MirrorError
from shallow_mirror.types import TopicPartition

_PREFIX = "shallow-mirror error as JSON: "


@contextmanager
def serialize_errors() -> Iterator[None]:
    """Add the line to each error of this package that the block raises."""
    try:
        yield
    except MirrorError as error:
        arguments = [
            argument._asdict() if isinstance(argument, TopicPartition) else argument for argument in error.__reduce__()[1]
        ]
        error.add_note(_PREFIX + json.dumps({"error": type(error).__name__, "arguments": arguments}))
        raise


def deserialize_error(text: str) -> MirrorError | None:
    """Return the error whose line is in `text`, with its type and fields; None if there is no line, or an invalid one."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith(_PREFIX)]
    if not lines:
        return None
    try:
        document = json.loads(lines[-1].removeprefix(_PREFIX), object_hook=_parse_topic_partition)
        error_class = getattr(errors, document["error"])
        # JSON has no tuples: fields of errors are tuples, never lists.
        error = error_class(*(tuple(argument) if isinstance(argument, list) else argument for argument in document["arguments"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return error if isinstance(error, MirrorError) else None


def _parse_topic_partition(document: dict[str, Any]) -> Any:
    return TopicPartition(**document) if document.keys() == {"topic", "partition"} else document
