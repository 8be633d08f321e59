"""Driver: what the target of a mirror lacks of the source's ACLs or quotas, and what became of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from shallow_mirror.access.plan import AccessEntry, AccessPlan, E, NotCopied
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError

P = TypeVar("P", bound=AccessPlan[Any])
Store = TypeVar("Store")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessReport(ABC, Generic[P, E]):
    """The plan, and with `is_applied` what became of it. `left`: what the target refused, or what was withheld."""

    mirror: str
    source: str
    target: str
    plan: P
    is_applied: bool = False
    created: tuple[E, ...] = ()
    left: tuple[NotCopied[E], ...] = ()

    @property
    def is_done(self) -> bool:
        """Return whether the target has every entry that it needs, with whatever value."""
        return not self.left if self.is_applied else not self.plan.to_create

    def document(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "mirror": self.mirror,
            "source": self.source,
            "target": self.target,
            "applied": self.is_applied,
            "present": documents(self.plan.present),
            "to_create": documents(self.plan.to_create),
            "not_copied": documents(self.plan.not_copied),
            "created": documents(self.created),
            "left": documents(self.left),
            **self.changes_document(),
        }

    @abstractmethod
    def changes_document(self) -> dict[str, Any]:
        """Return as JSON values what is to be changed, or was, of what the target has."""


def documents(entries: Iterable[AccessEntry]) -> list[dict[str, Any]]:
    return [entry.document() for entry in entries]


def stores_of(config: MirrorConfig, open_store: Callable[..., Store], timeout_s: float) -> tuple[Store, Store]:
    """Return the stores of the source and of the target."""
    return (
        open_store(config.source_client, config.source_cluster_name, timeout_s=timeout_s),
        open_store(config.target.client, config.target_cluster_name, timeout_s=timeout_s),
    )


def require_named(unnamed: Sequence[str]) -> None:
    """Raise ConfigError where principals lack the entry of `acls.principals` that each needs."""
    if unnamed:
        raise ConfigError(f"acls.principals: has no entry for {', '.join(unnamed)}, and acls.principals_only needs one for each")
