"""What a slot leaves out of its planned ranges, and why. Executor and driver."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from shallow_mirror.errors import MirrorError, RetriableError
from shallow_mirror.types import SourcePartition


class Side(enum.StrEnum):
    """The cluster on which a partition is broken."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfinishedRange:
    """A planned range that ends at `reached` instead of its planned end. `is_definite`: it will not pass by itself."""

    source: SourcePartition
    reached: int
    side: Side
    error_name: str
    reason: str
    is_definite: bool = False

    @classmethod
    def of(cls, source: SourcePartition, reached: int, side: Side, error: MirrorError) -> UnfinishedRange:
        """Make it from what was raised for the partition, or for its whole topic."""
        is_retriable = isinstance(error, RetriableError)
        name = error.error_name if isinstance(error, RetriableError) else type(error).__name__
        reason = error.detail if isinstance(error, RetriableError) else str(error)
        return cls(source=source, reached=reached, side=side, error_name=name, reason=reason, is_definite=not is_retriable)
