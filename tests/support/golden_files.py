"""Test support: responses captured from real brokers (tests/golden), and what they hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shallow_mirror.types import BatchLimits, IsolationLevel, LogAppendTimePolicy
from shallow_mirror.wire.batches import Admission, BatchIndex, Verdict, admit, index_batches
from shallow_mirror.wire.protocol import FetchedPartition, parse_fetch_response

GOLDEN = Path(__file__).parents[1] / "golden"

CORRELATION_ID = 7

LENGTH_BYTES, ANSWER_HEAD_BYTES = 4, 9

VISIBLE = (Verdict.RAW, Verdict.REBUILD)


def frame_of(name: str) -> memoryview:
    """Without its length; writable, as a receive buffer is."""
    whole = (GOLDEN / f"{name}.bin").read_bytes()
    assert int.from_bytes(whole[:LENGTH_BYTES], "big") == len(whole) - LENGTH_BYTES
    return memoryview(bytearray(whole[LENGTH_BYTES:]))


def names(start: str) -> list[str]:
    return sorted(file.stem for file in GOLDEN.glob(f"{start}*.bin"))


@dataclass(frozen=True, slots=True)
class Read:
    """One partition of a captured Fetch response, and what was told about it."""

    fetched: FetchedPartition
    index: BatchIndex
    admission: Admission
    told: dict[str, Any]
    position: int

    def bytes_of(self, i: int) -> memoryview:
        start = int(self.index.pos[i])
        return self.fetched.records[start : start + int(self.index.size_bytes[i])]

    def told_of(self, i: int) -> list[list[Any]]:
        """Return the records that the consumer read between the batch's first and last offset."""
        base, last = int(self.index.headers["base_offset"][i]), int(self.index.last_offset[i])
        return [record for record in self.told["records"] if base <= record[0] <= last]

    def has(self, bit: int) -> list[int]:
        return np.flatnonzero(self.index.headers["attributes"] & bit).tolist()


def reads(name: str) -> Iterator[Read]:
    expected = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    response = parse_fetch_response(frame_of(name))
    assert response.correlation_id == CORRELATION_ID
    assert len(response.partitions) == len(expected["partitions"])
    is_committed = expected["request"]["isolation_level"] == 1
    limits = BatchLimits(
        max_message_bytes=1 << 20,
        isolation_level=IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED,
        log_append_time=LogAppendTimePolicy.PRODUCER,
    )
    for fetched in response.partitions:
        partition_name = str(fetched.topic_partition)
        index = index_batches(fetched.records)
        position = expected["request"]["offsets"][partition_name]
        admission = admit(
            index,
            fetched.records,
            topic_partition=fetched.topic_partition,
            position=position,
            range_end=1 << 62,
            aborted=fetched.aborted,
            limits=limits,
        )
        yield Read(
            fetched, index, admission, {**expected["partitions"][partition_name], "error_code": expected["error_code"]}, position
        )
