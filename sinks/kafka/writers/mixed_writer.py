"""Executor: one try of a slot that writes to topics with translated offsets and to topics with preserved ones."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace

from shallow_mirror.checkpoints.logs import QuarantinedBatch
from shallow_mirror.checkpoints.rows import SegmentBuilder
from shallow_mirror.deadline import Deadline
from shallow_mirror.sinks.base import SlotWriter
from shallow_mirror.sinks.slot_values import ReadPart, SlotWrite
from shallow_mirror.types import Segment, SourcePartition


class MixedWriter:
    """Gives each part to the writer of its topic (a `SlotWriter`). `preserved_topics`: source topics with preserved offsets."""

    def __init__(self, translated: SlotWriter, preserved: SlotWriter, preserved_topics: Collection[str]) -> None:
        self._translated = translated
        self._preserved = preserved
        self._preserved_topics = preserved_topics

    @property
    def is_due(self) -> bool:
        return self._translated.is_due or self._preserved.is_due

    @property
    def until(self) -> Deadline | None:
        ends = [end for end in (self._translated.until, self._preserved.until) if end is not None]
        return min(ends, key=lambda end: end.at, default=None)

    def expect(self, sources: Iterable[SourcePartition]) -> None:
        preserved, translated = list[SourcePartition](), list[SourcePartition]()
        for source in sources:
            (preserved if source.topic in self._preserved_topics else translated).append(source)
        self._preserved.expect(preserved)
        self._translated.expect(translated)

    def write(
        self, parts: Sequence[ReadPart], builder_of: Callable[[SourcePartition], SegmentBuilder]
    ) -> Sequence[QuarantinedBatch]:
        preserved = [part for part in parts if part.source.topic in self._preserved_topics]
        translated = [part for part in parts if part.source.topic not in self._preserved_topics]
        # Nothing of the translated ones is visible before the decision: an error of the others undoes them.
        return [*self._preserved.write(preserved, builder_of), *self._translated.write(translated, builder_of)]

    def finish(self, builder_of: Callable[[SourcePartition], SegmentBuilder]) -> Sequence[QuarantinedBatch]:
        return [*self._preserved.finish(builder_of), *self._translated.finish(builder_of)]

    def close(self, segments: Sequence[Segment], *, is_partial: bool) -> SlotWrite:
        translated = self._translated.close(segments, is_partial=is_partial)
        preserved = self._preserved.close(segments, is_partial=is_partial)
        return replace(
            translated,
            fetched_bytes=translated.fetched_bytes + preserved.fetched_bytes,
            stamped_topics=tuple(sorted({*translated.stamped_topics, *preserved.stamped_topics})),
            early_end=translated.early_end or preserved.early_end,
            shared_producers=preserved.shared_producers,
            has_unanswered=preserved.has_unanswered,
            target_speeds=translated.target_speeds | preserved.target_speeds,
        )
