"""Pure: what a plan to copy ACLs has in common with one to copy quotas."""

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
    """What the target lacks. `not_copied`: entries of the source; `present`: what the target needs and has."""

    to_create: tuple[E, ...]
    not_copied: tuple[NotCopied[E], ...]
    present: tuple[E, ...]
