"""Pure: registrations of mirrors in their target clusters: the origins of topics, also through other mirrors."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from shallow_mirror import routing

GROUP_SUFFIX = "-origin"
"""Suffix of the consumer group that holds a registration: `<mirror>-origin`, beside the groups of its slots."""

ANY_TOPIC = (".*",)

MAX_HOPS = 16
"""Mirrors in a row that a registration names."""
_MAX_UPSTREAM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Source of a mirror's topics, and their names in the cluster that holds the registration.

    `since_ms`: when the run began that wrote it. `upstream`: the mirrors that write to its source cluster; None if the mirror
    is of a version that does not record them.
    """

    mirror: str
    source_cluster_id: str
    source_alias: str
    target_name: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]
    since_ms: int = 0
    upstream: tuple[Origin, ...] | None = field(default=None)

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the note; None for anything else, or a damaged note."""
        try:
            document = json.loads(text)
            upstream = document.get("upstream")
            origins = None if upstream is None else _unpacked(upstream)
            return cls._of_document(document, origins, MAX_HOPS)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, re.error, zlib.error):
            return None

    @classmethod
    def _of_document(cls, document: Mapping[str, Any], upstream: Any, hops: int) -> Self:
        """Return the note of a document. Raises as JSON and regular expressions do, ValueError for a name that is no template."""
        origin = cls(
            mirror=str(document["mirror"]),
            source_cluster_id=str(document["source_cluster_id"]),
            source_alias=str(document["source_alias"]),
            target_name=str(document["target_name"]),
            include=tuple(str(pattern) for pattern in document["include"]),
            exclude=tuple(str(pattern) for pattern in document["exclude"]),
            since_ms=int(document.get("since_ms", 0)),
            upstream=None
            if upstream is None
            else tuple(cls._of_document(nested, nested.get("upstream"), hops - 1) for nested in upstream if hops > 1),
        )
        for pattern in (*origin.include, *origin.exclude):
            re.compile(pattern)
        problem = routing.template_problem(origin.target_name)
        if problem is not None:
            raise ValueError(problem)
        return origin

    def build(self, max_bytes: int) -> str:
        """Return the text of the note.

        If it is too long, patterns become the pattern of all topics, and then the mirrors that are farthest away are left out.
        """
        own = self if _size(self._text(0)) <= max_bytes else replace(self, include=ANY_TOPIC, exclude=())
        hops = own.hops
        while hops and _size(own._text(hops)) > max_bytes:
            hops -= 1
        return own._text(hops)

    @property
    def hops(self) -> int:
        """Return how many mirrors in a row are upstream of this one, as far as it is recorded."""
        return max((1 + origin.hops for origin in self.upstream or ()), default=0)

    def _text(self, hops: int) -> str:
        document = self._fields()
        if self.upstream is not None:
            document["upstream"] = _packed([origin._document(hops - 1) for origin in self.upstream if hops])
        return json.dumps(document)

    def _document(self, hops: int) -> dict[str, Any]:
        document = self._fields()
        if self.upstream is not None:
            document["upstream"] = [origin._document(hops - 1) for origin in self.upstream if hops]
        return document

    def _fields(self) -> dict[str, Any]:
        return {
            "mirror": self.mirror,
            "source_cluster_id": self.source_cluster_id,
            "source_alias": self.source_alias,
            "target_name": self.target_name,
            "include": list(self.include),
            "exclude": list(self.exclude),
            "since_ms": self.since_ms,
        }

    def takes(self, topic: str) -> bool:
        """Return whether the mirror copies a topic of its source cluster."""
        return routing.is_included(topic, self.include, self.exclude)

    def target_of(self, topic: str) -> str:
        """Return the target topic of a topic of the source cluster."""
        return routing.target_topic_name(self.target_name, self.source_alias, topic)

    def source_of(self, topic: str) -> str | None:
        """Return the source topic of `topic`, of the cluster that holds this note; None if the mirror did not write it."""
        match = re.fullmatch(routing.own_targets_pattern(self.target_name, self.source_alias), topic)
        return match["topic"] if match is not None and self.takes(match["topic"]) else None


def upstream_of(origins: Iterable[Origin], passed: Collection[str]) -> tuple[Origin, ...]:
    """Return the mirrors that write to the source cluster, as they are recorded. `passed`: ids of this mirror's two clusters.

    A way that returns to a cluster is left out there: each cluster of a ring sees it as a way that does not. So a registration
    that was deleted is not passed on in circles.
    """
    return tuple(
        origin
        if origin.upstream is None
        else replace(origin, upstream=upstream_of(origin.upstream, {*passed, origin.source_cluster_id}))
        for origin in sorted(origins, key=lambda origin: (origin.mirror, origin.source_cluster_id))
        if origin.source_cluster_id not in passed
    )


def _size(text: str) -> int:
    return len(text.encode())


def _packed(documents: list[dict[str, Any]]) -> str:
    """Return documents compressed: they repeat names and patterns, and an offset's metadata is short."""
    return base64.b85encode(zlib.compress(json.dumps(documents, separators=(",", ":")).encode(), 9)).decode()


def _unpacked(text: str) -> Any:
    """Return the documents. Raises zlib.error, ValueError."""
    decompressor = zlib.decompressobj()
    return json.loads(decompressor.decompress(base64.b85decode(text), _MAX_UPSTREAM_BYTES))
