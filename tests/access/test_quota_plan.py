"""Which quotas are created, which differ, and which are not copied because they would limit the mirror."""

from __future__ import annotations

from typing import Any

import pytest

from shallow_mirror.access.quota_plan import QuotaPlan, QuotaRules, plan_quotas, unnamed_users
from shallow_mirror.broker.admin.access import Quota, QuotaEntity


def quota(value: float = 100, key: str = "producer_byte_rate", /, **entity: str | None) -> Quota:
    return Quota(QuotaEntity.of({kind.replace("_", "-"): name for kind, name in entity.items()}), key, value)


def planned(source: list[Quota], target: list[Quota], /, **rules: Any) -> QuotaPlan:
    return plan_quotas(source, target, QuotaRules(**({"mirror_user": "copier", "mirror_client_id": "shallow-mirror"} | rules)))


def reasons(source: list[Quota], target: list[Quota], /, **rules: Any) -> list[str]:
    return [left.reason for left in planned(source, target, **rules).not_copied]


ANNA = quota(user="anna")
BOTH = quota(user="anna", client_id="app")
APP = quota(client_id="app")


def test_what_the_target_lacks_is_created_and_other_values_are_left() -> None:
    plan = planned([ANNA, BOTH, APP], [quota(200, user="anna"), APP])
    assert plan.to_create == (BOTH,)
    assert [(entry.wanted, entry.existing) for entry in plan.different] == [(ANNA, 200)]
    assert plan.present == (APP,)


def test_users_get_the_names_of_the_target() -> None:
    plan = planned([ANNA, BOTH], [], principals={"User:anna": "User:anna2"})
    assert set(plan.to_create) == {quota(user="anna2"), quota(user="anna2", client_id="app")}
    assert reasons([ANNA], [], principals={"User:anna": "Group:x"}) == [
        "quotas are of users, and acls.principals makes it Group:x"
    ]


def test_two_users_that_become_one_with_different_values_are_reported() -> None:
    merged = {"User:anna": "User:x", "User:bob": "User:x"}
    (reason,) = reasons([ANNA, quota(50, user="bob")], [], principals=merged)
    assert reason == "acls.principals makes two users of the source one, and the other one has 100"


@pytest.mark.parametrize(
    "limiting",
    [
        quota(user="copier"),
        quota(user=None),
        quota(user=None, client_id=None),
        quota(user="copier", client_id="shallow-mirror"),
        quota(client_id=None),
        quota(client_id="shallow-mirror"),
        quota(50, "request_percentage", user=None),
    ],
    ids=str,
)
def test_what_would_limit_the_mirror_is_not_copied(limiting: Quota) -> None:
    (reason,) = reasons([limiting], [])
    assert reason.startswith("it would limit the mirror on the target")


@pytest.mark.parametrize("default", [quota(user=None), quota(client_id=None), quota(user=None, client_id=None)], ids=str)
def test_a_default_is_copied_where_the_mirrors_user_has_a_quota_of_its_own(default: Quota) -> None:
    own = quota(1e12, user="copier")
    assert planned([default], [own]).to_create == (default,)
    assert reasons([default], [quota(1e12, "consumer_byte_rate", user="copier")]) != []
    assert reasons([quota(user="copier", client_id=None)], [own]) != []  # more specific than the mirror's own


@pytest.mark.parametrize("other", [quota(user="anna", client_id=None), quota(user=None, client_id="app"), APP], ids=str)
def test_quotas_of_others_are_copied(other: Quota) -> None:
    assert planned([other], []).to_create == (other,)


def test_without_the_name_of_the_mirrors_user_only_mapped_users_are_copied() -> None:
    (reason,) = reasons([ANNA], [], mirror_user=None)
    assert "map the user in acls.principals" in reason
    assert planned([ANNA], [], mirror_user=None, principals={"User:anna": "User:anna"}).to_create == (ANNA,)
    assert planned([APP], [], mirror_user=None).to_create == (APP,)
    assert reasons([quota(user=None)], [quota(user="someone")], mirror_user=None) != []


def test_addresses_and_what_is_not_known_are_not_copied() -> None:
    assert len(reasons([quota(5, "connection_creation_rate", ip="10.0.0.1"), quota(1, "new_key", user="anna")], [])) == 2
    assert len(reasons([quota(1, "producer_byte_rate", zone="x")], [])) == 1


def test_principals_without_an_entry_are_named() -> None:
    rules = QuotaRules(principals={"User:anna": "User:a"}, is_principal_required=True, mirror_user="m", mirror_client_id="c")
    assert unnamed_users([ANNA, quota(user="bob"), quota(user=None), APP], rules) == ("User:bob",)
