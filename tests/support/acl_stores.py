"""ACLs of clusters that are fakes."""

from __future__ import annotations

from collections.abc import Sequence

from shallow_mirror.broker.admin.access import Acl


class FakeStore:
    """ACLs of one cluster, which refuses those of `refused`; keeps the order of its requests."""

    def __init__(self, *existing: Acl) -> None:
        self.existing = set(existing)
        self.refused: set[Acl] = set()
        self.created: list[Acl] = []

    def read(self) -> frozenset[Acl]:
        return frozenset(self.existing)

    def create(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        self.created += [acl for acl in acls if acl not in self.refused]
        self.existing |= set(acls) - self.refused
        return {acl: "INVALID_REQUEST: not here" for acl in acls if acl in self.refused}

    def delete(self, acls: Sequence[Acl]) -> dict[Acl, str]:
        assert set(acls) <= self.existing
        self.existing -= set(acls) - self.refused
        return {acl: "INVALID_REQUEST: not here" for acl in acls if acl in self.refused}
