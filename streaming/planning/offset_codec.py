"""Planner process: stream offsets as mappings and as documents, over the life of a query.

Spark hands back what it was given, and the next offset differs from the last one only if something moves: thousands of idle
partitions are neither parsed nor built again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from shallow_mirror.streaming.planning import offset_planning
from shallow_mirror.streaming.planning.offset_planning import Offsets

_CACHED = 3
"""The start and the end of a micro-batch, and the end of the next."""


class OffsetCodec:
    """Parser and builder with a small cache. Mappings that are returned are shared: never change them."""

    def __init__(self) -> None:
        self._cache: deque[tuple[Mapping[str, Any], Offsets]] = deque(maxlen=_CACHED)
        self._built: tuple[dict[str, Any], Offsets] | None = None

    def parse(self, document: dict[str, Any]) -> Offsets:
        """Return the offsets of a document. Raises as `offset_planning.parse_stream_offset`."""
        version, topics = (document.get(name) for name in ("version", "topics"))
        for cached, offsets in self._cache:
            if version == cached["version"] and topics == cached["topics"]:
                return offsets
        offsets = offset_planning.parse_stream_offset(document)
        self._cache.append((document, offsets))
        return offsets

    def build(self, offsets: Offsets) -> dict[str, Any]:
        """Return the document of `offset_planning.build_stream_offset`, also with its names in the same order."""
        if self._built is None or self._built[1].keys() != offsets.keys():
            document = offset_planning.build_stream_offset(offsets)
        else:
            last_document, last_offsets = self._built
            document = _with_changes(last_document, offset_planning.changed_offsets(last_offsets, offsets))
        self._built = document, offsets
        self._cache.append(self._built)
        return dict(document)


def _with_changes(document: Mapping[str, Any], changed: Offsets) -> dict[str, Any]:
    topics = dict(document["topics"])
    for name in {source.topic for source in changed}:
        topics[name] = {**topics[name], "partitions": dict(topics[name]["partitions"])}
    for source, offset in changed.items():
        topics[source.topic]["partitions"][str(source.partition)] = offset
    return {**document, "topics": topics}
