"""Driver: ACLs or quotas of a mirror's two clusters: what the target lacks, and what became of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from shallow_mirror.access.plan import AccessEntry, AccessPass, AccessPlan, E, NotCopied
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.plurals import counted

P = TypeVar("P", bound=AccessPlan[Any])
R = TypeVar("R", bound="AccessReport[Any, Any]")
Store = TypeVar("Store")

_REFUSED_SHOWN = 3
"""Refused entries in the text of a problem."""


class AccessCopy(ABC, Generic[R]):
    """The copy of the source's ACLs, or of its quotas, that the target needs. The command and the running mirror share it.

    Raises ConfigError if a cluster has no authorizer, or a permission or an entry of `acls.principals` is missing, and
    RetriableError if a cluster does not answer: the same call continues.
    """

    @abstractmethod
    def compare(self) -> R:
        """Return the entries that the target lacks, without changing anything."""

    @abstractmethod
    def apply(self, report: R) -> R:
        """Create the entries that the target lacks, and change those to be changed. Return the report with the outcome."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessReport(ABC, Generic[P, E]):
    """The plan, and with `is_applied` its outcome."""

    noun: ClassVar[str]
    refused: ClassVar[str]
    """What the target did with the entries of `left`, in the text of a problem."""

    mirror: str
    source: str
    target: str
    plan: P
    is_applied: bool = False
    created: tuple[E, ...] = ()
    updated: tuple[E, ...] = ()
    deleted: tuple[E, ...] = ()
    left: tuple[NotCopied[E], ...] = ()
    """What the target refused, or what was withheld."""

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

    def as_pass(self, at_ms: int) -> AccessPass:
        """Return the counts of a pass that ended with this report."""
        return AccessPass(
            at_ms=at_ms,
            lacking=len(self.plan.to_create) - len(self.created),
            created=len(self.created) + len(self.updated),
            deleted=len(self.deleted),
            not_copied=len(self.plan.not_copied),
            problem=self._problem(),
        )

    def _problem(self) -> str | None:
        if not self.left:
            return None
        shown = "; ".join(f"{left.entry}: {left.reason}" for left in self.left[:_REFUSED_SHOWN])
        more = f"; and {len(self.left) - _REFUSED_SHOWN} more" if len(self.left) > _REFUSED_SHOWN else ""
        return f"{self.target} {self.refused} {counted(len(self.left), self.noun)}: {shown}{more}"

    @abstractmethod
    def changes_document(self) -> dict[str, Any]:
        """Return as JSON values the target's entries that are to be changed, or were."""

    @abstractmethod
    def differences(self) -> list[str]:
        """Return a sentence for each entry that is to be created or changed."""

    @abstractmethod
    def outcome(self) -> str:
        """Return how many entries were created and changed; empty: nothing was to be done."""


def documents(entries: Iterable[AccessEntry]) -> list[dict[str, Any]]:
    return [entry.document() for entry in entries]


def stores_of(config: MirrorConfig, open_store: Callable[..., Store], timeout_s: float) -> tuple[Store, Store]:
    """Return the stores of the source and of the target."""
    return (
        open_store(config.source_client, config.source_cluster_name, timeout_s=timeout_s),
        open_store(config.target.client, config.target_cluster_name, timeout_s=timeout_s),
    )


def require_named(unnamed: Sequence[str]) -> None:
    """Raise ConfigError if principals lack the entry of `acls.principals` that each needs."""
    if unnamed:
        raise ConfigError(f"acls.principals: has no entry for {', '.join(unnamed)}, and acls.principals_only needs one for each")
