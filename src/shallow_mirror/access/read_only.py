"""Driver: read-only target topics (`acls.read_only`): kept so beside a running mirror, and opened by moves and fail-overs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime

from shallow_mirror.access.acls import AclStore
from shallow_mirror.access.plan import AccessPass
from shallow_mirror.access.sync import AccessSync
from shallow_mirror.access.write_denies import WriteDenies, plan_write_denies, write_deny
from shallow_mirror.broker import Cluster
from shallow_mirror.broker.admin import Operation, request_permissions
from shallow_mirror.broker.admin.access import Acl, AclClient
from shallow_mirror.checkpoints import OffsetMap
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.checkpoints.logs.topics import Controls, DeniedWrite, DeniedWrites
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.config import MirrorConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.pass_thread import REQUEST_S
from shallow_mirror.plurals import counted, listed

_log = logging.getLogger(__name__)

PASS_S = 10.0
"""Between two looks at the ACLs of the target: so long a new topic, or a new Allow, may let others write."""

_GONE_MS = 30_000


class ReadOnlyTopics:
    """The Deny ACLs of one mirror. Raises RetriableError, OutcomeUnknownError, ConfigError."""

    def __init__(self, target: AclStore, table: DeniedWrites, where: str) -> None:
        self._target, self._table, self._where = target, table, where

    @classmethod
    def of(cls, config: MirrorConfig, storage: TableStorage, target: AclStore | None = None) -> ReadOnlyTopics:
        """Return those of a mirror. `storage`: to write to. `target`: by default with the timeouts of the mirror file."""
        store = AclClient(config.target.client, config.target_cluster_name) if target is None else target
        return cls(store, DeniedWrites.open(storage), config.target_cluster_name)

    def deny(self, needed: Collection[Acl], present: Collection[Acl]) -> frozenset[Acl]:
        """Create those of `needed` that the target does not have. Return them."""
        missing = [acl for acl in needed if acl not in present]
        self._table.record([_denied(acl) for acl in missing], is_denied=True)
        refused = self._target.create(missing) if missing else {}
        self._require_done(refused, "create")
        return frozenset(missing)

    def recorded(self) -> frozenset[Acl]:
        return frozenset(write_deny(*denied) for denied in self._table.read())

    def admit(self, acls: Collection[Acl], present: Collection[Acl]) -> None:
        """Delete ACLs that this mirror has created, those of them that are `present`."""
        left = sorted(acl for acl in acls if acl in present)
        refused = self._target.delete(left) if left else {}
        self._require_done(refused, "delete")
        self._table.record([_denied(acl) for acl in acls], is_denied=False)

    def open_topics(self, topics: Collection[str] | None) -> int:
        """Delete every ACL that this mirror has ever created on `topics`; None: on any. Return how many there were."""
        wanted = [denied for denied in self._table.read_former() if topics is None or denied.topic in topics]
        if not wanted:
            return 0  # acls.read_only was never set: the cluster may have no authorizer
        present = self._target.read()
        left = [acl for acl in (write_deny(*denied) for denied in wanted) if acl in present]
        refused = self._target.delete(left) if left else {}
        self._require_done(refused, "delete")
        self._table.record(self._table.read() & set(wanted), is_denied=False)
        return len(left)

    def _require_done(self, refused: Mapping[Acl, str], verb: str) -> None:
        if refused:
            raise ConfigError([f"{self._where}: cannot {verb} {acl}: {reason}" for acl, reason in sorted(refused.items())])


def _denied(acl: Acl) -> DeniedWrite:
    return DeniedWrite(acl.pattern.name, acl.principal)


def open_topics(config: MirrorConfig, topics: Collection[str] | None, *, sleep: Callable[[float], None] = time.sleep) -> int:
    """Let others write to target topics, which the mirror does not keep read-only any more: its controls say that they move.

    `topics` None: all. Return how many Deny ACLs were deleted. Safe to call again. Raises as `ReadOnlyTopics`.
    """
    storage = TableStorage.to_write(config.table_location, config.tables_writer)
    read_only = ReadOnlyTopics.of(config, storage)
    deadline, count = Deadline.after_ms(_GONE_MS, time.monotonic), 0
    # Until a broker shows none of them: a writer that is told to start before gets an error that ends it.
    while opened := read_only.open_topics(topics):
        count = max(count, opened)
        deadline.require(f"{config.target_cluster_name}: the end of deleted ACLs")
        sleep(0.1)
    return count


@dataclass(slots=True)
class ReadOnlyPasses:
    """One look after the other at the topics that are copied and the ACLs of the target.

    `copied`: target topics that only the mirror may write to now. `writable`: those of topics that its own user may write to.
    """

    own: str
    target: AclStore
    topics: ReadOnlyTopics
    copied: Callable[[], frozenset[str]]
    writable: Callable[[Collection[str]], frozenset[str]]
    where: str
    _watched: frozenset[str] = frozenset()
    """Topics that the own user could write to before ACLs were created on them in the last pass."""
    _reason: str | None = None
    """Why no ACL is created any more."""

    def run_pass(self, now: datetime) -> AccessPass:
        copied = self.copied()
        present = self.target.read()
        plan = plan_write_denies(present, copied, self.own)
        deleted = self._delete_old(plan, present)
        self._require_own_writes(self._watched & copied)
        created = frozenset[Acl]()
        if self._reason is None:
            created = self._create(plan, present)
        # A migration or fail-over may have begun meanwhile, and deleted what was there then.
        if created and (moved := {acl.pattern.name for acl in created} - self.copied()):
            deleted += self.topics.open_topics(moved)
        problems = [] if self._reason is None else [self._reason]
        if plan.open_to_all:
            problems.append(
                f"{self.where} lets everybody write: {listed(list(map(str, plan.open_to_all)))}. A Deny would stop the mirror as "
                "well: replace it by ACLs that name principals"
            )
        return AccessPass(
            at_ms=int(now.timestamp() * 1000),
            lacking=len(plan.open_to_all) + (0 if self._reason is None else len(plan.needed - present)),
            created=len(created),
            deleted=deleted,
            problem="; ".join(problems) or None,
        )

    def close(self) -> None:
        """Nothing stays open: each request connects for itself."""

    def _delete_old(self, plan: WriteDenies, present: Collection[Acl]) -> int:
        """Delete ACLs of topics that are not copied any more, and of principals that may not write anyway."""
        old = self.topics.recorded() - plan.needed
        self.topics.admit(old, present)
        if old:
            _log.info("read-only topics: %s: %s deleted", self.where, counted(len(old), "Deny ACL"))
        return len(old)

    def _create(self, plan: WriteDenies, present: Collection[Acl]) -> frozenset[Acl]:
        concerned = {acl.pattern.name for acl in plan.needed if acl not in present}
        writable = self.writable(concerned) if concerned else frozenset[str]()
        created = self.topics.deny(plan.needed, present)
        if created:
            principals = sorted({acl.principal for acl in created})
            _log.info(
                "read-only topics: %s: Write on %s is denied to %s",
                self.where,
                listed(sorted(concerned)),
                listed(principals),
            )
        self._watched = writable
        self._require_own_writes(writable)
        return created

    def _require_own_writes(self, topics: frozenset[str]) -> None:
        """Open topics again that the mirror itself may not write to any more, and stop: its principal is another one."""
        lost = topics - self.writable(topics) if topics else frozenset[str]()
        if lost:
            self.topics.open_topics(lost)
            self._reason = (
                f"acls.mirror_principal: {self.own} is not the mirror's own principal at {self.where}: a Deny to others took "
                f"Write on {listed(sorted(lost))} from it, and was deleted. Correct it, and start the mirror again"
            )


def _copied_topics(config: MirrorConfig, storage: TableStorage) -> frozenset[str]:
    """Return the target topics that only the mirror may write to now."""
    if storage.offset_map.snapshot() is None:
        return frozenset()
    positions = OffsetMap.open(storage, mirror=config.mirror).positions()
    controls = Controls.open(storage).read()  # behind the positions: a topic that moves meanwhile is left out
    copied = {source.topic: position.target.topic for source, position in controls.forgotten.without(positions).items()}
    return frozenset(target for source, target in copied.items() if source not in controls.moving)


def writable_topics(config: MirrorConfig, topics: Collection[str]) -> frozenset[str]:
    """Return those of the target topics that the mirror's own user may write to."""
    with closing(Cluster(config.target.client)) as cluster:
        deadline = Deadline.after_ms(REQUEST_S * 1000, time.monotonic)
        granted = request_permissions(cluster, sorted(topics), deadline).topics
    return frozenset(topic for topic, operations in granted.items() if operations is not None and Operation.WRITE in operations)


def read_only_sync(config: MirrorConfig, storage: TableStorage, *, report: Callable[[Problem, int], None]) -> AccessSync | None:
    """Return the thread of a mirror. None: nothing is to be kept read-only, and nothing was.

    `storage`: to write to. Raises as `DeniedWrites`.
    """
    if not config.acls.read_only and not DeniedWrites.open(storage.to_read()).read():
        return None

    def copied() -> frozenset[str]:
        # Switched off: what was created before is deleted.
        return _copied_topics(config, storage.to_read()) if config.acls.read_only else frozenset()

    def open_passes() -> ReadOnlyPasses:
        target = AclClient(config.target.client, config.target_cluster_name, timeout_s=REQUEST_S)
        return ReadOnlyPasses(
            own=config.mirror_principal or "",
            target=target,
            topics=ReadOnlyTopics.of(config, storage, target),
            copied=copied,
            writable=lambda topics: writable_topics(config, topics),
            where=config.target_cluster_name,
        )

    return AccessSync("read-only topics", ProblemKind.ACL, PASS_S, open_passes, report=report, on_pass=lambda _: None)
