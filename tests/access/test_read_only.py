"""Target topics that a running mirror keeps read-only, and that a move opens: what is created, recorded and deleted, and when."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.support.acl_stores import FakeStore

from shallow_mirror.access import write_deny
from shallow_mirror.access.read_only import ReadOnlyPasses, ReadOnlyTopics
from shallow_mirror.broker.admin.access import Acl, AclOperation, ResourceKind, ResourcePattern
from shallow_mirror.checkpoints.logs.topics import DeniedWrite, DeniedWrites
from shallow_mirror.checkpoints.tables import TableStorage
from shallow_mirror.errors import ConfigError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
OWN = "User:mirror"
ORDERS = ResourcePattern(ResourceKind.TOPIC, "orders")
ANNA, MIRROR = Acl(ORDERS, "User:anna", AclOperation.WRITE), Acl(ORDERS, OWN, AclOperation.WRITE)
DENY = write_deny("orders", "User:anna")


class Stage:
    def __init__(self, folder: Path, *acls: Acl) -> None:
        self.store = FakeStore(*(acls or (ANNA, MIRROR)))
        self.table = DeniedWrites.open(TableStorage(str(folder / "tables")))
        self.topics = ReadOnlyTopics(self.store, self.table, "target cluster west")
        self.copied: set[str] = {"orders"}
        self.locked = False
        """The mirror's own user cannot write once anybody is denied."""
        self.passes = self.restarted()

    def restarted(self) -> ReadOnlyPasses:
        return ReadOnlyPasses(
            own=OWN,
            target=self.store,
            topics=self.topics,
            copied=lambda: frozenset(self.copied),
            writable=self.writable,
            where="target cluster west",
        )

    def writable(self, topics: Collection[str]) -> frozenset[str]:
        is_denied = any(acl.is_deny for acl in self.store.existing)
        return frozenset() if self.locked and is_denied else frozenset(topics)


@pytest.mark.slow
def test_others_are_denied_once_and_admitted_when_the_topic_moves_or_the_setting_is_switched_off(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    done = stage.passes.run_pass(NOW)
    assert (done.created, done.problem) == (1, None)
    assert stage.store.existing == {ANNA, MIRROR, DENY}
    assert stage.table.read() == {DeniedWrite("orders", "User:anna")}
    assert stage.passes.run_pass(NOW).created == 0
    assert stage.store.created == [DENY]
    stage.copied.clear()
    assert stage.passes.run_pass(NOW).deleted == 1
    assert stage.store.existing == {ANNA, MIRROR}
    assert stage.table.read() == frozenset()


def test_a_new_permission_is_denied_and_the_deny_of_one_that_is_gone_is_deleted(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.passes.run_pass(NOW)
    stage.store.existing -= {ANNA}
    stage.store.existing.add(Acl(ResourcePattern(ResourceKind.TOPIC, "*"), "User:bob", AclOperation.ALL))
    done = stage.passes.run_pass(NOW)
    assert (done.created, done.deleted) == (1, 1)
    assert {acl for acl in stage.store.existing if acl.is_deny} == {write_deny("orders", "User:bob")}


def test_an_acl_of_an_operator_is_neither_recorded_nor_deleted(tmp_path: Path) -> None:
    stage = Stage(tmp_path, ANNA, MIRROR, DENY)
    assert stage.passes.run_pass(NOW).created == 0
    assert stage.table.read() == frozenset()
    assert stage.topics.open_topics(["orders"]) == 0
    assert DENY in stage.store.existing


def test_an_acl_is_recorded_before_it_is_created_so_that_a_killed_mirror_leaves_none_that_nobody_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)

    def kill(_: Collection[Acl]) -> dict[Acl, str]:
        assert stage.table.read() == {DeniedWrite("orders", "User:anna")}
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(stage.store, "create", kill)
        with pytest.raises(KeyboardInterrupt):
            stage.passes.run_pass(NOW)
    assert stage.restarted().run_pass(NOW).created == 1
    assert stage.topics.open_topics(["orders"]) == 1
    assert stage.topics.open_topics(["orders"]) == 0


def test_an_acl_that_comes_after_the_move_has_begun_is_deleted_by_the_same_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(tmp_path)
    create = stage.store.create

    def move_meanwhile(acls: list[Acl]) -> dict[Acl, str]:
        stage.copied.clear()
        assert stage.topics.open_topics(["orders"]) == 0
        return create(acls)

    monkeypatch.setattr(stage.store, "create", move_meanwhile)
    assert stage.passes.run_pass(NOW).deleted == 1
    assert stage.store.existing == {ANNA, MIRROR}


def test_a_move_deletes_also_an_acl_that_was_created_behind_its_first_look(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.passes.run_pass(NOW)
    assert stage.topics.open_topics(["orders", "bills"]) == 1
    stage.store.existing.add(DENY)  # of a mirror that was suspended since it had looked
    assert stage.topics.open_topics(["orders"]) == 1
    assert stage.store.existing == {ANNA, MIRROR}


def test_a_wrong_principal_of_the_mirror_locks_it_out_for_no_longer_than_the_pass(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.locked = True
    done = stage.passes.run_pass(NOW)
    assert done.problem == (
        "acls.mirror_principal: User:mirror is not the mirror's own principal at target cluster west: a Deny to others took Write on "
        "orders from it, and was deleted. Correct it, and start the mirror again"
    )
    assert stage.store.existing == {ANNA, MIRROR}
    assert stage.passes.run_pass(NOW).created == 0
    assert stage.store.created == [DENY]


def test_brokers_that_obey_an_acl_late_are_looked_at_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    assert stage.passes.run_pass(NOW).problem is None
    stage.locked = True
    assert "was deleted" in str(stage.passes.run_pass(NOW).problem)
    assert stage.store.existing == {ANNA, MIRROR}


def test_an_allow_for_everybody_is_a_problem_each_time(tmp_path: Path) -> None:
    everybody = Acl(ORDERS, "User:*", AclOperation.WRITE)
    stage = Stage(tmp_path, everybody, ANNA, MIRROR)
    for _ in range(2):
        done = stage.passes.run_pass(NOW)
        assert done.problem == (
            "target cluster west lets everybody write: Allow Write on topic orders to User:*. A Deny would stop the mirror as well: "
            "replace it by ACLs that name principals"
        )
        assert done.lacking == 1
    assert DENY in stage.store.existing


def test_what_the_target_refuses_is_an_error(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.store.refused = {DENY}
    with pytest.raises(ConfigError, match="cannot create Deny Write on topic orders to User:anna: INVALID_REQUEST"):
        stage.passes.run_pass(NOW)
