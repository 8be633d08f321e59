"""What docs/reference/archive-format.md says of message sets of magic 0 and 1: an archive holds what they are converted to."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.archives import ORDERS, SmallArchive
from tests.support.record_batches import message, view

from shallow_mirror.archive_reading.read_bounds import ReadBounds
from shallow_mirror.archive_reading.record_reader import open_records
from shallow_mirror.archive_reading.segment_reader import SegmentReader
from shallow_mirror.broker.fetch.indexed_partition import whole_batches
from shallow_mirror.wire.protocol import FetchedPartition


@pytest.mark.parametrize(("magic", "timestamps"), [(0, [-1, -1, -1]), (1, [7, 5, 9])])
def test_an_archive_holds_the_batches_that_older_messages_are_converted_to(
    tmp_path: Path, magic: int, timestamps: list[int]
) -> None:
    fetched = FetchedPartition(
        topic_partition=ORDERS.topic_partition,
        error_code=0,
        high_watermark=10,
        last_stable_offset=10,
        log_start_offset=0,
        aborted=(),
        diverging=None,
        records=view(
            *[
                message(offset, b"key", b"%d" % offset, magic=magic, timestamp=timestamp)
                for offset, timestamp in zip((3, 4, 8), (7, 5, 9), strict=True)
            ]
        ),
    )
    records, _, failure = whole_batches(fetched, 1 << 20, 10)
    assert failure is None
    archive = SmallArchive(tmp_path)
    archive.add_object([{ORDERS: bytes(records)}])
    (part,) = SegmentReader(archive.store, archive.rows)
    headers = part.index.headers
    assert {name: set(headers[name].tolist()) for name in ("magic", "partition_leader_epoch", "producer_id")} == {
        "magic": {2},
        "partition_leader_epoch": {-1},
        "producer_id": {-1},
    }
    opened = [opened.record for opened in open_records(part, ReadBounds())]
    assert [(record.offset, bytes(record.key or b""), bytes(record.value or b"")) for record in opened] == [
        (3, b"key", b"3"),
        (4, b"key", b"4"),
        (8, b"key", b"8"),
    ]
    assert [(record.timestamp_ms, list(record.headers)) for record in opened] == [(timestamp, []) for timestamp in timestamps]
