"""Pure: what a plan to copy ACLs has in common with one to copy quotas, and what came of it while a mirror runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar


class AccessEntry(Protocol):
    """An ACL, or a quota."""

    def document(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        ...


E = TypeVar("E", bound=AccessEntry)


@dataclass(frozen=True, slots=True)
class NotCopied(Generic[E]):
    """An entry that is not copied, or only in part, and why."""

    entry: E
    reason: str

    def document(self) -> dict[str, Any]:
        return {**self.entry.document(), "reason": self.reason}


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPlan(Generic[E]):
    """The entries that the target lacks. `not_copied`: entries of the source; `present`: those that the target needs and has."""

    to_create: tuple[E, ...]
    not_copied: tuple[NotCopied[E], ...]
    present: tuple[E, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPass:
    """One pass. `lacking`: entries that the target still lacks at its end. `problem`: of the pass, or refusals of the target.

    `is_compared`: false if the pass failed before it had read both clusters, or while it changed the target. `not_copied`:
    entries of the source that are not copied, or only in part.
    """

    at_ms: int
    is_compared: bool = True
    lacking: int = 0
    created: int = 0
    deleted: int = 0
    not_copied: int = 0
    problem: str | None = None
