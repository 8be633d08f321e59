"""What the comparison of brokers talks to: one broker, fake or real, and a topic of its own for the case at hand."""

from __future__ import annotations

import time
from typing import Any, Protocol

from tests.fakes.raw_client import RawClient
from tests.support.record_batches import batch

NOW_MS = int(time.time() * 1000)


class Owner(Protocol):
    """What only the operator of a broker can do."""

    def create(self, topic: str, partitions: int, configs: dict[str, str]) -> None: ...

    def delete(self, topic: str) -> None: ...

    def delete_records_before(self, topic: str, offset: int) -> None: ...

    def let_time_out(self, transactional_id: str) -> None:
        """Its open transaction has a timeout of a second; return at any time."""


class Peer:
    def __init__(self, client: RawClient, topic: str, owner: Owner) -> None:
        self.client, self.topic, self.owner = client, topic, owner

    def create(self, partitions: int = 1, /, **configs: str) -> None:
        self.owner.create(self.topic, partitions, configs)
        for partition in range(partitions):
            while self.client.list_offsets(self.topic, -1, partition=partition).error_code:
                time.sleep(0.02)

    def delete(self) -> None:
        self.owner.delete(self.topic)
        while {self.client.fetch(self.topic, 0).error_code, self.client.list_offsets(self.topic, -1).error_code} != {3}:
            time.sleep(0.02)

    def offset(self, timestamp: int = -1, isolation: int = 0) -> int:
        return int(self.client.list_offsets(self.topic, timestamp, isolation=isolation).offset)

    @property
    def txn(self) -> str:
        return f"txn-{self.topic}"

    def produce(self, records: bytes | None, **more: Any) -> int:
        return int(self.client.produce(self.topic, records, **more).error_code)

    def begun(self) -> tuple[int, int]:
        """Begin a transaction with this topic in it."""
        producer_id, epoch = self.client.initialised(self.txn)
        assert self.client.added(self.txn, producer_id, epoch, self.topic) == 0
        return producer_id, epoch


def idempotent(first: int, count: int = 1, *, producer_id: int = 4_000_000, epoch: int = 0) -> bytes:
    return batch(0, count, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)


def transactional(first: int, txn: tuple[int, int], count: int = 1, *, time_ms: int = NOW_MS) -> bytes:
    return batch(0, count, attributes=0x10, producer_id=txn[0], producer_epoch=txn[1], base_sequence=first, timestamp=time_ms)
