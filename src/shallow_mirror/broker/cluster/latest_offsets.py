"""Everywhere: the ends of the same logs, asked before every micro-batch: what an idle partition costs there is its bytes.

The request is built once for as long as the partitions and their leaders are the same, and an answer is read as arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shallow_mirror.broker.net.connection import Connection
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError
from shallow_mirror.types import IsolationLevel, TopicPartition
from shallow_mirror.wire.protocol import list_offsets
from shallow_mirror.wire.protocol.primitives import WireError

_LENGTH = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class _Places:
    partitions: list[int]
    places: list[TopicPartition]

    @classmethod
    def of(cls, topic: str, partitions: list[int]) -> _Places:
        return cls(partitions, [TopicPartition(topic, one) for one in partitions])


@dataclass(frozen=True, slots=True)
class LatestQuestion:
    """What one leader is asked. `places` by topic, as they were answered last: brokers have an order of their own."""

    body: bytes
    places: dict[str, _Places]

    @classmethod
    def of(cls, partitions: Mapping[str, Sequence[int]], isolation: IsolationLevel) -> LatestQuestion:
        places = {topic: _Places.of(topic, list(members)) for topic, members in partitions.items()}
        return cls(list_offsets.build_latest_body(partitions, isolation), places)

    def members(self) -> list[TopicPartition]:
        """Return the topic-partitions that are asked for."""
        return [place for known in self.places.values() for place in known.places]

    def partitions(self) -> dict[str, list[int]]:
        """Return them by topic."""
        return {topic: known.partitions for topic, known in self.places.items()}

    def ask(self, connection: Connection, deadline: Deadline) -> dict[TopicPartition, int] | None:
        """None where the answer holds errors or is to another question. Raises RetriableError."""
        correlation_id = connection.next_correlation_id()
        header = list_offsets.build_header(correlation_id, connection.client_id)
        size = _LENGTH.pack(len(header) + len(self.body))
        frame = connection.request(correlation_id, [size, header, self.body], deadline)
        try:
            topics = list_offsets.parse_offsets(frame)
        except WireError as error:
            connection.close()
            raise RetriableError(
                "PROTOCOL", f"{connection.transport.peer} sent an unreadable answer to ListOffsets: {error}"
            ) from error
        if topics is None:
            return None
        found: dict[TopicPartition, int] = {}
        for topic, entries in topics:
            answered, known = entries["partition"].tolist(), self.places.get(topic)
            if known is None or (answered != known.partitions and sorted(answered) != sorted(known.partitions)):
                return None
            if answered != known.partitions:
                known = self.places[topic] = _Places.of(topic, answered)
            found.update(zip(known.places, entries["offset"].tolist(), strict=True))
        return found
