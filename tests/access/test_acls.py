"""`acls` between two clusters that are fakes: what is shown, created, deleted and left, and the exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.support.acl_stores import FakeStore
from tests.support.exit_codes import exit_code

from shallow_mirror.access import acls as acl_copy, view
from shallow_mirror.access.acls import AclCopy, AclReport, acl_rules
from shallow_mirror.broker.admin.access import Acl, AclEffect, AclOperation, ResourceKind, ResourcePattern
from shallow_mirror.config import MirrorConfig
from shallow_mirror.errors import ConfigError

ORDERS = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.READ)
SECRET = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.READ, AclEffect.DENY, "10.0.0.9")
GROUP = Acl(ResourcePattern(ResourceKind.GROUP, "billing"), "User:anna", AclOperation.READ)
OTHER = Acl(ResourcePattern(ResourceKind.TOPIC, "other"), "User:anna", AclOperation.READ)
LOGIN = {"sasl.mechanism": "PLAIN", "sasl.username": "mirror", "sasl.password": "${env:PASSWORD}"}
WITH_LOGIN = {
    "alias": "west",
    "client": {"bootstrap.servers": "127.0.0.1:2", "security.protocol": "sasl_plaintext", **LOGIN},
}
STALE = Acl(ResourcePattern(ResourceKind.TOPIC, "orders"), "User:anna", AclOperation.DESCRIBE_CONFIGS)


def document(**changes: Any) -> dict[str, Any]:
    return {
        "mirror": "m",
        "source": {"alias": "east", "client": {"bootstrap.servers": "127.0.0.1:1"}},
        "target": {"alias": "west", "client": {"bootstrap.servers": "127.0.0.1:2"}},
        "topics": {"include": ["orders.*"]},
        "tables": "tables",
        **changes,
    }


def config(**changes: Any) -> MirrorConfig:
    return MirrorConfig.from_document(document(**changes), folder=Path("/tmp"))


def copied(
    source: FakeStore, store: FakeStore, *, is_applied: bool = False, is_deleting: bool = False, **changes: Any
) -> AclReport:
    copy = AclCopy(config(**changes), source, store, is_deleting=is_deleting)
    return copy.apply(copy.compare()) if is_applied else copy.compare()


def test_nothing_is_changed_without_apply() -> None:
    target = FakeStore()
    report = copied(FakeStore(ORDERS, OTHER), target)
    assert report.plan.to_create == (ORDERS,)
    assert target.existing == set()
    assert not report.is_done


def test_what_is_missing_is_created_once_with_every_deny_first() -> None:
    source, target = FakeStore(ORDERS, SECRET, GROUP), FakeStore()
    report = copied(source, target, is_applied=True)
    assert target.created == [SECRET, *sorted([ORDERS, GROUP])]
    assert report.created == tuple(target.created)
    assert report.is_done
    again = copied(source, target, is_applied=True)
    assert again.is_done
    assert again.created == ()


def test_an_allow_is_withheld_where_its_deny_is_refused() -> None:
    target = FakeStore()
    target.refused = {SECRET}
    report = copied(FakeStore(ORDERS, SECRET, GROUP), target, is_applied=True)
    assert target.existing == {GROUP}
    assert [(left.entry, left.reason) for left in report.left] == [
        (SECRET, "INVALID_REQUEST: not here"),
        (ORDERS, "a Deny that limits it was refused"),
    ]
    assert not report.is_done


def test_what_the_source_does_not_have_is_deleted_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "x")
    source, target = FakeStore(ORDERS), FakeStore(ORDERS, STALE)
    report = copied(source, target, is_applied=True)
    assert report.plan.to_delete == (STALE,)
    assert report.deleted == ()
    assert report.is_done
    assert copied(source, target, is_applied=True, is_deleting=True, target=WITH_LOGIN).deleted == (STALE,)
    assert target.existing == {ORDERS}


def test_a_refused_deletion_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "x")
    target = FakeStore(ORDERS, STALE)
    target.refused = {STALE}
    report = copied(FakeStore(ORDERS), target, is_applied=True, is_deleting=True, target=WITH_LOGIN)
    assert [left.entry for left in report.left] == [STALE]
    assert not report.is_done
    assert report.deleted == ()


def test_principals_without_an_entry_end_it_before_anything_is_done() -> None:
    target = FakeStore()
    with pytest.raises(ConfigError, match=r"has no entry for User:anna, and acls\.principals_only"):
        copied(FakeStore(ORDERS), target, is_applied=True, acls={"principals_only": True})
    assert target.existing == set()
    report = copied(FakeStore(ORDERS), target, acls={"principals_only": True, "principals": {"User:anna": "User:anna2"}})
    assert [acl.principal for acl in report.plan.to_create] == ["User:anna2"]


def test_the_mirrors_own_user_is_the_one_it_logs_in_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "x")
    assert acl_rules(config(target=WITH_LOGIN)).mirror_principal == "User:mirror"
    assert acl_rules(config()).mirror_principal is None


@pytest.mark.parametrize(
    ("principals", "problem"),
    [
        ({"anna": "User:anna"}, "is not a principal such as User:anna"),
        ({"User:anna": "anna"}, "is not a principal such as User:anna"),
        ({"User:anna": "User:*"}, "User:anna cannot become User:*"),
        ({"User:*": "User:anna"}, r"User:\* cannot become User:anna"),
    ],
)
def test_principals_that_would_change_who_is_meant_are_refused(principals: dict[str, str], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        config(acls={"principals": principals})
    assert config(acls={"principals": {"User:*": "User:*"}}).acls.principals == {"User:*": "User:*"}


# --- the command


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "mirror.yaml"
    path.write_text(json.dumps(document()), encoding="utf-8")
    return path


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeStore]:
    stores = {"source cluster east": FakeStore(ORDERS, OTHER), "target cluster west": FakeStore()}
    monkeypatch.setattr(acl_copy, "AclClient", lambda _client, where, *, timeout_s: stores[where])
    return stores


def test_the_exit_code_is_1_until_the_acls_are_created(
    conf: Path, clusters: dict[str, FakeStore], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("acls", str(conf)) == 1
    shown = capsys.readouterr().out
    assert "0 ACLs present, 1 to create, 0 not at the source, 1 not copied" in shown
    assert "the topic is not mirrored" in shown
    assert clusters["target cluster west"].existing == set()
    assert exit_code("acls", str(conf), "--apply", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["created"] == [
        {
            "resource_type": "topic",
            "resource_name": "orders",
            "pattern_type": "literal",
            "principal": "User:anna",
            "host": "*",
            "operation": "Read",
            "permission": "Allow",
        }
    ]
    assert document["not_copied"][0]["reason"] == "the topic is not mirrored"
    assert exit_code("acls", str(conf)) == 0


def test_delete_needs_apply_and_the_name_of_the_mirrors_user(
    conf: Path, clusters: dict[str, FakeStore], capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("acls", str(conf), "--delete") == 2
    assert "--delete requires --apply" in capsys.readouterr().err
    assert exit_code("acls", str(conf), "--apply", "--delete") == 2
    assert "sasl.username" in capsys.readouterr().err
    assert clusters["target cluster west"].existing == set()


def test_a_name_with_markup_is_shown_as_it_is() -> None:
    strange = Acl(ResourcePattern(ResourceKind.GROUP, "[red]x"), "User:[b]", AclOperation.READ)
    console = Console(file=io.StringIO(), width=200)
    target = FakeStore()
    target.refused = {strange}
    view.show_acls(copied(FakeStore(strange), target, is_applied=True), console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[red]x" in shown
    assert "User:[b]" in shown
    assert "not created" in shown
    assert "INVALID_REQUEST: not here" in shown
