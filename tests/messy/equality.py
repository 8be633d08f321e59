"""Whether a copy is the original, record by record, and the map leads from every offset of the one to the other."""

from __future__ import annotations

from typing import Any

from tests.support.mirror_runs import ReadRecord

from shallow_mirror.checkpoints.offset_map import OffsetMap


def contents(records: list[ReadRecord]) -> list[tuple[Any, ...]]:
    return [one[1:] for one in records]


def assert_every_offset_is_translated(
    known: OffsetMap, place: tuple[str, int], originals: list[ReadRecord], copies: list[ReadRecord]
) -> None:
    """To the record's own copy, or to the next one's where it has none."""
    target_of = {original.offset: copy.offset for original, copy in zip(originals, copies, strict=True)}
    next_target = -1
    for offset in range(originals[-1].offset, originals[0].offset - 1, -1):
        next_target = target_of.get(offset, next_target)
        translated = known.translate(*place, offset)
        assert (translated.target_offset, translated.exact) == (next_target, offset in target_of), (place, offset)
