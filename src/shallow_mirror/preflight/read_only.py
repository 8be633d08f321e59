"""Driver: whether the target topics could be kept read-only (`acls.read_only`). Changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from shallow_mirror.access import may_write, plan_write_denies
from shallow_mirror.broker.admin import Operation, Permissions
from shallow_mirror.broker.admin.access import AclClient
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError
from shallow_mirror.preflight.findings import Finding, Level


def read_only_findings(config: MirrorConfig, topics: Sequence[str], granted: Permissions) -> Iterator[Finding]:
    """Yield what keeps `topics` of the target from being read-only. `granted`: to the mirror's user. Raises RetriableError."""
    where = f"cluster {config.target.alias}"
    own = config.mirror_principal
    assert own is not None, "the mirror file was checked"
    try:
        acls = AclClient(config.target.client, config.target_cluster_name).read()
    except ConfigError as error:
        yield from (Finding(Level.DOUBT, where, f"acls.read_only cannot be kept: {problem}") for problem in error.problems)
        return
    if granted.cluster is None or Operation.ALTER not in granted.cluster:
        what = "acls.read_only cannot be kept: grant Alter on the cluster to the user of the mirror file"
        yield Finding(Level.DOUBT, where, what)
    plan = plan_write_denies(acls, topics, own)
    for acl in plan.open_to_all:
        what = f"lets everybody write, and a Deny would stop the mirror as well: replace {acl} by ACLs that name principals"
        yield Finding(Level.DOUBT, where, what)
    for topic in plan.unguarded:
        what = "no ACL names it: with allow.everyone.if.no.acl.found everybody may write, whatever acls.read_only says"
        yield Finding(Level.UNKNOWN, f"target topic {topic}", what)
    for topic in topics:
        if topic not in plan.unguarded and not may_write(acls, topic, own):
            what = (
                f"no Allow Write names {own}: unless that is a super user, acls.mirror_principal is not the mirror's own "
                "principal, and acls.read_only would deny Write to the mirror"
            )
            yield Finding(Level.DOUBT, f"target topic {topic}", what)
