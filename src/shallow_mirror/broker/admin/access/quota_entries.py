"""Pure: quotas of users and client ids (KIP-13, KIP-124, KIP-599) as values, and which of several Kafka applies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID)

KEYS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
"""Quotas of users and client ids. Byte rates and percentages count for each broker, mutations for the cluster."""

_NAMED, _DEFAULT, _ANY = 0, 1, 2


@dataclass(frozen=True, slots=True)
class QuotaEntity:
    """The entity of a quota: entity types with their names, in order of the types. None as a name: the default of its type."""

    parts: tuple[tuple[str, str | None], ...]

    @classmethod
    def of(cls, parts: Mapping[str, str | None]) -> QuotaEntity:
        return cls(tuple(sorted(parts.items())))

    def names(self) -> dict[str, str | None]:
        return dict(self.parts)

    @property
    def sort_key(self) -> tuple[tuple[str, str], ...]:
        return tuple((kind, name or "") for kind, name in self.parts)

    def rank_for(self, user: str | None, client_id: str) -> tuple[int, int] | None:
        """Return how specific the entity is for a user and a client id, the lowest first; None: it does not concern them.

        In Kafka's order (DefaultQuotaCallback): user and client id by name, by default, then either alone. `user` None: not
        known, so only the default concerns it.
        """
        names = self.names()
        ranks = []
        for kind, name in ((USER, user), (CLIENT_ID, client_id)):
            if kind not in names:
                ranks.append(_ANY)
            elif names[kind] is None:
                ranks.append(_DEFAULT)
            elif names[kind] == name:
                ranks.append(_NAMED)
            else:
                return None
        return ranks[0], ranks[1]

    def __str__(self) -> str:
        return ", ".join(f"{kind} {'(default)' if name is None else name}" for kind, name in reversed(self.parts))


@dataclass(frozen=True, slots=True)
class Quota:
    entity: QuotaEntity
    key: str
    value: float

    @property
    def sort_key(self) -> tuple[tuple[tuple[str, str], ...], str]:
        return self.entity.sort_key, self.key

    def document(self) -> dict[str, Any]:
        """Return the quota as JSON values."""
        return {"entity": self.entity.names(), "key": self.key, "value": self.value}

    def __str__(self) -> str:
        return f"{self.key}={self.value:g} of {self.entity}"
