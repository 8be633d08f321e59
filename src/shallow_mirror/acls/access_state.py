"""Pure: what came of a comparison of ACLs or quotas while the mirror runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessPass:
    """One pass. `lacking`: what the target still lacks at its end. `problem`: why the pass failed, or what the target refused.

    `is_compared`: false where the pass failed before it had read both clusters, or while it changed the target. `not_copied`:
    entries of the source that are not copied, or only in part.
    """

    at_ms: int
    is_compared: bool = True
    lacking: int = 0
    created: int = 0
    deleted: int = 0
    not_copied: int = 0
    problem: str | None = None
