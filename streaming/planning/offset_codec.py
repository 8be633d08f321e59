"""Planner process: stream offsets as mappings and as documents, over the life of a query.

Spark hands back what it was given, and the next offset differs from the last one where something moves: thousands of idle
partitions are neither parsed nor built again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Offsets

_REMEMBERED = 3
"""The start and the end of a micro-batch, and the end of the next."""


class OffsetCodec:
    """Mappings that are handed out are shared: nobody changes them."""

    def __init__(self) -> None:
        self._known: deque[tuple[Mapping[str, Any], Offsets]] = deque(maxlen=_REMEMBERED)
        self._built: tuple[dict[str, Any], Offsets] | None = None

    def parsed(self, document: dict[str, Any]) -> Offsets:
        """Raises as `planning.parse_stream_offset`."""
        version, topics = (document.get(name) for name in ("version", "topics"))
        for known, offsets in self._known:
            if version == known["version"] and topics == known["topics"]:
                return offsets
        offsets = offset_planning.parse_stream_offset(document)
        self._known.append((document, offsets))
        return offsets

    def built(self, offsets: Offsets) -> dict[str, Any]:
        """As `planning.build_stream_offset`, also in the order of its names."""
        if self._built is None or self._built[1].keys() != offsets.keys():
            document = offset_planning.build_stream_offset(offsets)
        else:
            before, old = self._built
            document = _with_changes(before, offset_planning.moved(old, offsets))
        self._built = document, offsets
        self._known.append(self._built)
        return dict(document)


def _with_changes(document: Mapping[str, Any], moved: Offsets) -> dict[str, Any]:
    topics = dict(document["topics"])
    for name in {one.topic for one in moved}:
        topics[name] = {**topics[name], "partitions": dict(topics[name]["partitions"])}
    for one, offset in moved.items():
        topics[one.topic]["partitions"][str(one.partition)] = offset
    return {**document, "topics": topics}
