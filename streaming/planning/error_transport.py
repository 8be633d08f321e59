"""Planner process and driver: an error of this package as one line of text, because Spark hands on only the text of errors.

The planner notes the line on the error; Python prints notes behind the message; the driver finds it in Spark's text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from shallow_mirror import errors
from shallow_mirror.errors import MirrorError
from shallow_mirror.types import TopicPartition

_MARK = "shallow-mirror error as JSON: "


@contextmanager
def serialize_errors() -> Iterator[None]:
    """Around what the planner process does: an error of this package gets its line."""
    try:
        yield
    except MirrorError as error:
        arguments = [one._asdict() if isinstance(one, TopicPartition) else one for one in error.__reduce__()[1]]
        error.add_note(_MARK + json.dumps({"error": type(error).__name__, "arguments": arguments}))
        raise


def deserialize_error(text: str) -> MirrorError | None:
    """The error whose line `text` holds, with its type and fields; None where there is none, or one nobody can read."""
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith(_MARK)]
    if not lines:
        return None
    try:
        document = json.loads(lines[-1].removeprefix(_MARK), object_hook=_topic_partition)
        kind = getattr(errors, document["error"])
        made = kind(*(tuple(one) if isinstance(one, list) else one for one in document["arguments"]))
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return made if isinstance(made, MirrorError) else None


def _topic_partition(document: dict[str, Any]) -> Any:
    return TopicPartition(**document) if document.keys() == {"topic", "partition"} else document
