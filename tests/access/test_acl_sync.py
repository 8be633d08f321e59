"""ACLs that follow the source while the mirror runs: what is logged, created, deleted, refused, and what a failure does."""

from __future__ import annotations

import logging
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.support import mirror_runs as runs
from tests.support.acl_stores import FakeStore

from shallow_mirror.access import AccessPass, AccessSync, acl_sync, write_deny
from shallow_mirror.access.sync import SHOWN, acl_passes
from shallow_mirror.broker.admin.access import Acl, AclEffect, AclOperation, ResourceKind, ResourcePattern
from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.checkpoints.logs.topics import ControlAction, Controls
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NOW_MS = int(NOW.timestamp() * 1000)
ORDERS = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.READ)
DENIED = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.READ, AclEffect.DENY, "10.0.0.9")
OTHER = Acl(ResourcePattern(ResourceKind.TOPIC, "other"), "User:anna", AclOperation.READ)
STALE = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.DESCRIBE_CONFIGS)
LOGIN = {"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "m", "sasl.password": "${env:P}"}


def config(**acls: Any) -> MirrorConfig:
    document = {
        "mirror": "m",
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2", **LOGIN}},
        "topics": {"include": ["orders.*"]},
        "tables": "tables",
        "acls": {"sync": "1 minute", **acls},
    }
    return MirrorConfig.from_document(document, folder=Path("/tmp"))


@pytest.fixture(autouse=True)
def _shown(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P", "secret")
    caplog.set_level(logging.INFO)


def test_differences_are_logged_before_they_are_created(caplog: pytest.LogCaptureFixture) -> None:
    target = FakeStore()
    done = acl_passes(config(), FakeStore(ORDERS, DENIED, OTHER), target).run_pass(NOW)
    assert done == AccessPass(at_ms=NOW_MS, created=2, not_copied=1)
    assert target.existing == {ORDERS, DENIED}
    assert caplog.messages == [
        "acls: target cluster west lacks: Deny Read on topic orders to User:anna from 10.0.0.9",
        "acls: target cluster west lacks: Allow Read on topic orders to User:anna",
        "acls: 2 ACLs created, 0 deleted, 0 refused or withheld",
    ]


def test_a_deny_that_keeps_writers_from_a_topic_that_has_moved_does_not_stop_them_where_they_are_now(tmp_path: Path) -> None:
    """Migrations and reverse mirrors create such ones at the source, and they stay there."""
    denies = {write_deny(topic, "User:shop") for topic in ("orders", "orders-eu")}
    settings = config().model_copy(update={"tables": str(tmp_path / "tables")})
    controls = Controls.open(settings.tables)
    controls.add("hand-over", ["orders", "orders-eu"])
    controls.add("take-back", ["orders-eu"])
    target = FakeStore()
    acl_passes(settings, FakeStore(DENIED, *denies), target).run_pass(NOW)
    assert target.existing == {DENIED, write_deny("orders-eu", "User:shop")}


@pytest.mark.parametrize("action", ["hand-over", "take-back"])
def test_a_topic_that_is_handed_over_while_acls_are_read_counts_as_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: ControlAction
) -> None:
    settings = config().model_copy(update={"tables": str(tmp_path / "tables")})
    controls = Controls.open(settings.tables)
    if action == "take-back":
        controls.add("hand-over", ["orders"])
    source, target = FakeStore(DENIED, write_deny("orders", "User:shop")), FakeStore()
    read = source.read

    def read_meanwhile() -> frozenset[Acl]:
        controls.add(action, ["orders"])
        return read()

    monkeypatch.setattr(source, "read", read_meanwhile)
    acl_passes(settings, source, target).run_pass(NOW)
    assert target.existing == {DENIED}


def test_report_only_logs_each_difference_once_and_creates_nothing(caplog: pytest.LogCaptureFixture) -> None:
    source, target = FakeStore(ORDERS), FakeStore()
    passes = acl_passes(config(report_only=True), source, target)
    assert [passes.run_pass(NOW).lacking for _ in range(2)] == [1, 1]
    source.existing.add(DENIED)
    assert passes.run_pass(NOW).lacking == 2
    assert target.existing == set()
    assert [line for line in caplog.messages if "Allow Read" in line] == [caplog.messages[0]]
    assert len(caplog.messages) == 2


def test_many_differences_are_shortened_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    acls = [Acl(ORDERS.pattern, f"User:{number}", AclOperation.READ) for number in range(SHOWN + 5)]
    acl_passes(config(report_only=True), FakeStore(*acls), FakeStore()).run_pass(NOW)
    assert len(caplog.messages) == SHOWN + 1
    assert caplog.messages[-1] == "acls: and 5 more differences"


def test_nothing_is_deleted_unless_the_mirror_file_says_so() -> None:
    source, target = FakeStore(ORDERS), FakeStore(ORDERS, STALE)
    assert acl_passes(config(), source, target).run_pass(NOW) == AccessPass(at_ms=NOW_MS)
    assert STALE in target.existing
    reporting = acl_passes(config(delete=True, report_only=True), source, target)
    assert reporting.run_pass(NOW).deleted == 0
    assert STALE in target.existing
    assert acl_passes(config(delete=True), source, target).run_pass(NOW) == AccessPass(at_ms=NOW_MS, deleted=1)
    assert target.existing == {ORDERS}


def test_delete_needs_the_name_of_the_mirrors_user() -> None:
    document = config().model_dump(by_alias=True)
    document |= {"target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2"}}, "acls": {"delete": True}}
    with pytest.raises(ConfigError, match=r"acls\.delete: true needs the mirror's own principal"):
        MirrorConfig.from_document(document, folder=Path("/tmp"))


def test_what_the_target_refuses_is_a_problem_of_the_pass() -> None:
    target = FakeStore()
    target.refused = {DENIED}
    done = acl_passes(config(), FakeStore(ORDERS, DENIED), target).run_pass(NOW)
    assert (done.lacking, done.created) == (2, 0)
    assert done.problem is not None
    assert done.problem.startswith(
        "target cluster west did not take 2 ACLs: Deny Read on topic orders to User:anna from 10.0.0.9: "
    )


def test_a_principal_without_an_entry_ends_the_pass_before_it_changes_anything() -> None:
    target = FakeStore()
    with pytest.raises(ConfigError, match=r"has no entry for User:anna"):
        acl_passes(config(principals_only=True), FakeStore(ORDERS), target).run_pass(NOW)
    assert target.existing == set()


@pytest.mark.brokers
def test_clusters_without_authorizer_are_a_problem_and_not_the_end(two_clusters: Any, tmp_path: Path) -> None:
    source, target = two_clusters
    problems: list[Problem] = []
    has_failed = threading.Event()

    def report(problem: Problem, _level: int) -> None:
        problems.append(problem)
        has_failed.set()

    settings = runs.config(tmp_path, source.bootstrap, target.bootstrap, ["none"], acls={"sync": "1 second"})
    with acl_sync(settings, 1.0, report=report, on_pass=lambda _done: None):
        assert has_failed.wait(30)
    assert problems[0].text.startswith("acls: not compared: ConfigError: source cluster east has no authorizer")


class Scripted:
    """Passes that fail or succeed as a test says; then the same result again."""

    def __init__(self, *results: AccessPass | Exception) -> None:
        self.results = list(results)
        self.is_used_up = threading.Event()

    def run_pass(self, now: datetime) -> AccessPass:
        result = self.results.pop(0) if len(self.results) > 1 else self.results[0]
        if len(self.results) == 1:
            self.is_used_up.set()
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        """Nothing is open."""


def test_a_failed_pass_is_reported_as_a_problem_and_retried() -> None:
    problems: list[tuple[Problem, int]] = []
    passes: list[AccessPass] = []
    refused = AccessPass(at_ms=NOW_MS, lacking=1, problem="target cluster west did not take 1 ACL: x")
    no_authorizer = ConfigError("target cluster west has no authorizer")
    scripted = Scripted(no_authorizer, no_authorizer, refused, refused, AccessPass(at_ms=NOW_MS))
    sync = AccessSync(
        "acls",
        ProblemKind.ACL,
        0.001,
        lambda: scripted,
        report=lambda problem, level: problems.append((problem, level)),
        on_pass=passes.append,
        now=lambda: NOW,
    )
    with sync:
        assert scripted.is_used_up.wait(10)
    assert [level for _, level in problems] == [logging.WARNING, logging.DEBUG, logging.WARNING, logging.DEBUG]
    assert {problem.kind for problem, _ in problems} == {ProblemKind.ACL}
    assert problems[0][0].text == "acls: not compared: ConfigError: target cluster west has no authorizer"
    assert problems[2][0].text == f"acls: {refused.problem}"
    assert [done.is_compared for done in passes[:4]] == [False, False, True, True]
