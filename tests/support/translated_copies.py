"""The few records of a test, held in memory, and the map between them: also of offsets that hold no record.

`shallow_mirror.demo.checker` compares any number of records by digests, and translates the offsets of records only.
"""

from __future__ import annotations

from typing import Any

from tests.support.mirror_runs import ReadRecord

from shallow_mirror.checkpoints import OffsetMap


def without_offsets(records: list[ReadRecord]) -> list[tuple[Any, ...]]:
    """Return what is equal in an original and its copy."""
    return [record[1:] for record in records]


def assert_every_offset_is_translated(
    offset_map: OffsetMap, topic_partition: tuple[str, int], originals: list[ReadRecord], copies: list[ReadRecord]
) -> None:
    """Assert that each offset leads to the copy of its record, or of the next record where it holds none."""
    target_of = {original.offset: copy.offset for original, copy in zip(originals, copies, strict=True)}
    next_target = -1
    for offset in range(originals[-1].offset, originals[0].offset - 1, -1):
        next_target = target_of.get(offset, next_target)
        translated = offset_map.translate(*topic_partition, offset)
        assert (translated.target_offset, translated.exact) == (next_target, offset in target_of), (topic_partition, offset)
