"""The log of a partition on the disk of a stopped broker."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.record_rules import Header, header_of, split_batches

from shallow_mirror.local_kafka.node import LocalKafka

FIRST_SEGMENT = "00000000000000000000.log"


class LogFile:
    """`batches` in order, to be changed in place; `write` puts them back. Small enough for its index to be empty."""

    def __init__(self, node: LocalKafka, topic: str, partition: int = 0) -> None:
        assert not node.is_running()
        self._path: Path = node.folder / "data" / f"{topic}-{partition}" / FIRST_SEGMENT
        self.batches = split_batches(self._path.read_bytes())

    def data_positions(self) -> list[int]:
        return [i for i, batch in enumerate(self.batches) if not self.header(i).is_control]

    def header(self, i: int) -> Header:
        return header_of(self.batches[i])

    def write(self) -> None:
        self._path.write_bytes(b"".join(self.batches))


@contextmanager
def stopped(*nodes: LocalKafka) -> Iterator[None]:
    """Stop the nodes in good order, so that no broker looks at its logs when it starts again."""
    for node in nodes:
        node.stop()
    try:
        yield
    finally:
        for node in nodes:
            node.start()
