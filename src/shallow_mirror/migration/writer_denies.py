"""Driver: Deny ACLs that stop the writers of a wave at one cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from shallow_mirror.access import write_deny
from shallow_mirror.broker.admin.access import ANYBODY, Acl, AclClient, AclOperation, ResourceKind, ResourcePattern
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.errors import ConfigError


class WriterDenies:
    """Of one cluster. Raises ConfigError if it has no authorizer, or does not show or change ACLs for our user."""

    def __init__(self, client: ClientConfig, cluster_name: str) -> None:
        self._acls, self._cluster_name = AclClient(client, cluster_name), cluster_name

    def missing(self, topics: Iterable[str], principals: Sequence[str]) -> list[Acl]:
        """Return those that the cluster does not have, of one for each topic and principal."""
        present = self._acls.read()
        wanted = (write_deny(topic, principal) for topic in topics for principal in principals)
        return [acl for acl in wanted if acl not in present]

    def found(self, topics: Iterable[str], principals: Collection[str]) -> list[Acl]:
        """Return the Deny ACLs of any kind that keep one of the principals from writing to one of the topics."""
        patterns = [ResourcePattern(ResourceKind.TOPIC, topic) for topic in topics]
        return sorted(
            acl
            for acl in self._acls.read()
            if acl.is_deny
            and acl.operation in (AclOperation.WRITE, AclOperation.ALL)
            and acl.principal in (ANYBODY, *principals)
            and any(acl.pattern.covers(pattern) for pattern in patterns)
        )

    def create(self, acls: Sequence[Acl]) -> None:
        self._require_done(self._acls.create(acls), "create")

    def delete(self, acls: Sequence[Acl]) -> None:
        self._require_done(self._acls.delete(acls), "delete")

    def _require_done(self, refused: Mapping[Acl, str], verb: str) -> None:
        if refused:
            raise ConfigError([f"{self._cluster_name}: cannot {verb} {acl}: {reason}" for acl, reason in refused.items()])


def acl_document(acl: Acl) -> dict[str, str]:
    """Return the fields of a `write_deny` for JSON."""
    return {"topic": acl.pattern.name, "principal": acl.principal}


def acl_of(document: Mapping[str, str]) -> Acl:
    """Return the ACL of an `acl_document`."""
    return write_deny(document["topic"], document["principal"])
