"""Which ACLs are copied, under which names, and that nobody gains a permission by it."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from tests.access.reference_authorizer import is_allowed
from tests.support.examples import examples

from shallow_mirror import routing
from shallow_mirror.access.acl_plan import AclPlan, plan_acls, ready_allows, unnamed_principals
from shallow_mirror.access.acl_rules import AclRules
from shallow_mirror.broker.admin.access import Acl, AclEffect, AclOperation, PatternKind, ResourceKind, ResourcePattern

READ, WRITE, ALL = AclOperation.READ, AclOperation.WRITE, AclOperation.ALL
ANNA, BOB, ANYBODY = "User:anna", "User:bob", "User:*"


def rules(**changes: Any) -> AclRules:
    settings = {"mirror": "m", "source_alias": "east", "target_name": "{topic}", "topic_include": (".*",), **changes}
    return AclRules(**settings)


def topic(name: str, match: PatternKind = PatternKind.LITERAL) -> ResourcePattern:
    return ResourcePattern(ResourceKind.TOPIC, name, match)


def prefixed(name: str) -> ResourcePattern:
    return topic(name, PatternKind.PREFIXED)


def group(name: str, match: PatternKind = PatternKind.LITERAL) -> ResourcePattern:
    return ResourcePattern(ResourceKind.GROUP, name, match)


def allow(pattern: ResourcePattern, operation: AclOperation = READ, principal: str = ANNA, host: str = "*") -> Acl:
    return Acl(pattern, principal, operation, AclEffect.ALLOW, host)


def deny(pattern: ResourcePattern, operation: AclOperation = READ, principal: str = ANNA, host: str = "*") -> Acl:
    return Acl(pattern, principal, operation, AclEffect.DENY, host)


def plan(*source: Acl, target: tuple[Acl, ...] = (), **changes: Any) -> AclPlan:
    return plan_acls(source, target, rules(**changes))


def reasons(planned: AclPlan) -> list[str]:
    return [left.reason for left in planned.not_copied]


# --- names


@pytest.mark.parametrize(
    ("template", "pattern", "expected"),
    [
        ("{topic}", topic("orders"), topic("orders")),
        ("{source}.{topic}", topic("orders"), topic("east.orders")),
        ("{topic}.copy", topic("orders"), topic("orders.copy")),
        ("{topic}", prefixed("orders"), prefixed("orders")),
        ("{source}.{topic}", prefixed("orders"), prefixed("east.orders")),
        ("copy-{topic}", prefixed("orders"), prefixed("copy-orders")),
        ("{topic}", topic("*"), topic("*")),
    ],
)
def test_a_pattern_gets_the_name_of_the_target(template: str, pattern: ResourcePattern, expected: ResourcePattern) -> None:
    planned = plan(allow(pattern), target_name=template)
    assert planned.to_create == (allow(expected),)
    assert planned.not_copied == ()


@pytest.mark.parametrize(
    ("pattern", "changes", "reason"),
    [
        (prefixed("orders"), {"target_name": "{topic}.copy"}, "topics.target_name {topic}.copy does not keep prefixes"),
        (topic("*"), {"target_name": "{source}.{topic}"}, "* would mean others as well"),
        (topic("*"), {"target_name": "{topic}.{source}"}, "does not keep prefixes"),
        (topic("*"), {"topic_include": ("orders.*",)}, "topics.include and topics.exclude do not select"),
        (topic("*"), {"topic_exclude": ("secret",)}, "topics.include and topics.exclude do not select"),
        (prefixed("ord"), {"topic_include": ("orders.*",)}, "topics.include and topics.exclude do not select"),
        (topic("other"), {"topic_include": ("orders.*",)}, "the topic is not mirrored"),
        (topic("__consumer_offsets"), {}, "the topic is not mirrored"),
        (topic("t" * 249), {"target_name": "{source}.{topic}"}, "brokers allow 249"),
        (group("app"), {"group_exclude": ("app",)}, "do not select the group"),
        (group("*"), {"group_include": ("app.*",)}, "groups that groups.include"),
        (ResourcePattern(ResourceKind.TRANSACTIONAL_ID, "tx"), {}, "transactional ids belong to producers"),
        (ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster"), {}, "permissions on a cluster"),
    ],
)
def test_a_pattern_that_would_mean_other_resources_is_not_copied(
    pattern: ResourcePattern, changes: dict[str, Any], reason: str
) -> None:
    planned = plan(allow(pattern), **changes)
    assert planned.to_create == ()
    (only,) = planned.not_copied
    assert only.entry == allow(pattern)
    assert reason in only.reason


def test_groups_keep_their_names_and_all_their_operations() -> None:
    source = (allow(group("app")), allow(group("app-", PatternKind.PREFIXED), AclOperation.DELETE), allow(group("*"), ALL))
    assert set(plan(*source, target_name="{source}.{topic}").to_create) == set(source)


# --- operations


@pytest.mark.parametrize(
    "operation", [WRITE, AclOperation.CREATE, AclOperation.DELETE, AclOperation.ALTER, AclOperation.ALTER_CONFIGS]
)
def test_users_of_the_target_only_read_unless_write_is_set(operation: AclOperation) -> None:
    refused = plan(allow(topic("orders"), operation))
    assert refused.to_create == ()
    assert "acls.write" in reasons(refused)[0]
    assert plan(allow(topic("orders"), operation), is_write_copied=True).to_create == (allow(topic("orders"), operation),)


def test_of_all_only_what_reads_is_copied() -> None:
    planned = plan(allow(topic("orders"), ALL))
    assert {acl.operation for acl in planned.to_create} == {READ, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS}
    assert reasons(planned)[0].startswith("only Read, Describe and DescribeConfigs")
    assert plan(allow(topic("orders"), ALL), is_write_copied=True).to_create == (allow(topic("orders"), ALL),)


@pytest.mark.parametrize("offsets", ["preserved", "continued"])
def test_only_the_mirror_may_write_where_offsets_are_preserved(offsets: str) -> None:
    source = (allow(topic("orders"), WRITE), allow(topic("bills"), WRITE), allow(prefixed("b"), WRITE))
    planned = plan(*source, is_write_copied=True, topic_offsets=(("orders", offsets),))
    assert planned.to_create == (allow(topic("bills"), WRITE),)
    assert all("only the mirror may write" in reason for reason in reasons(planned))
    assert len(planned.not_copied) == 2


def test_an_operation_that_the_client_does_not_know_is_not_copied() -> None:
    planned = plan(allow(topic("orders"), AclOperation.UNKNOWN), deny(topic("orders"), AclOperation.UNKNOWN))
    assert planned.to_create == ()
    assert reasons(planned) == ["the operation is not known to this client"] * 2


# --- principals


def test_principals_are_renamed_as_a_whole_and_others_kept() -> None:
    source = (allow(topic("a")), allow(topic("a"), principal="User:annabel"), allow(topic("a"), principal=ANYBODY))
    planned = plan(*source, principals={ANNA: "User:anna2"})
    assert {acl.principal for acl in planned.to_create} == {"User:anna2", "User:annabel", ANYBODY}


def test_principals_without_an_entry_are_named_where_each_needs_one() -> None:
    source = (
        allow(topic("a"), principal=BOB),
        allow(topic("a")),
        allow(group("g"), principal="User:carl"),
        allow(ResourcePattern(ResourceKind.CLUSTER, "kafka-cluster"), principal="User:admin"),
    )
    assert unnamed_principals(source, rules(principals={ANNA: ANNA})) == ()
    assert unnamed_principals(source, rules(principals={ANNA: ANNA}, is_principal_required=True)) == (BOB, "User:carl")


# --- DENY


def test_every_deny_is_created_before_the_first_allow() -> None:
    planned = plan(allow(topic("a")), deny(topic("z"), WRITE), allow(group("a")), deny(group("z")))
    effects = [acl.effect for acl in planned.to_create]
    assert effects == [AclEffect.DENY, AclEffect.DENY, AclEffect.ALLOW, AclEffect.ALLOW]


def test_a_deny_of_more_than_is_mirrored_is_narrowed_to_what_it_limits() -> None:
    planned = plan(
        allow(topic("orders-1"), principal=ANYBODY),
        allow(prefixed("orders-"), AclOperation.DESCRIBE),
        deny(topic("*"), ALL),
        deny(topic("other")),
        topic_include=("orders-.*",),
        target_name="{source}.{topic}",
    )
    denies, allows = planned.to_create[:2], planned.to_create[2:]
    assert set(denies) == {deny(topic("east.orders-1"), ALL), deny(prefixed("east.orders-"), ALL)}
    assert set(allows) == {
        allow(topic("east.orders-1"), principal=ANYBODY),
        allow(prefixed("east.orders-"), AclOperation.DESCRIBE),
    }
    assert [left.entry for left in planned.not_copied] == [deny(topic("*"), ALL), deny(topic("other"))]


def test_a_deny_of_an_internal_topic_limits_an_allow_of_all() -> None:
    planned = plan(allow(topic("*")), deny(topic("__consumer_offsets")))
    assert planned.to_create == (deny(topic("__consumer_offsets")), allow(topic("*")))


def test_what_would_deny_the_mirror_is_not_copied_and_neither_is_what_it_limits() -> None:
    planned = plan(allow(topic("orders")), allow(topic("bills")), deny(topic("orders"), principal=ANYBODY))
    assert planned.to_create == (allow(topic("bills")),)
    assert reasons(planned)[0] == "it would deny the mirror what it needs on the target"
    assert reasons(planned)[1].startswith("it is limited by an ACL that cannot be copied: Deny Read on topic orders to User:*")
    assert plan(deny(topic("orders")), mirror_principal=ANNA).to_create == ()
    assert plan(deny(topic("orders")), mirror_principal=BOB).to_create == (deny(topic("orders")),)
    assert plan(deny(group("m-0"), principal=ANYBODY)).to_create == ()
    assert plan(deny(group("app"), principal=ANYBODY)).to_create == (deny(group("app"), principal=ANYBODY),)


def test_an_allow_waits_for_every_deny_that_limits_it() -> None:
    allows = [allow(topic("a")), allow(topic("b")), allow(topic("a"), principal=BOB), allow(topic("a"), WRITE)]
    ready, withheld = ready_allows(allows, [deny(prefixed("a"), AclOperation.DESCRIBE)])
    assert withheld == [allow(topic("a")), allow(topic("a"), WRITE)], "Read and Write include Describe"
    assert ready == [allow(topic("b")), allow(topic("a"), principal=BOB)]


# --- what is there


def test_acls_that_exist_are_left_alone() -> None:
    source = (allow(topic("a")), deny(topic("b")), allow(topic("*"), ALL))
    first = plan(*source)
    again = plan(*source, target=first.to_create)
    assert again.to_create == again.to_delete == ()
    assert set(again.present) == set(first.to_create)


def test_only_reading_acls_that_the_source_no_longer_has_are_to_be_deleted() -> None:
    stale = allow(topic("orders"), AclOperation.DESCRIBE_CONFIGS)
    kept = (
        deny(topic("orders"), WRITE),
        allow(topic("orders"), WRITE),
        allow(topic("orders"), principal="User:native"),
        allow(topic("orders"), principal=ANYBODY),
        allow(topic("orders"), AclOperation.DESCRIBE, principal="User:mirror"),
        allow(topic("others"), AclOperation.DESCRIBE_CONFIGS),
    )
    source = (allow(topic("orders")), allow(topic("orders"), principal="User:mirror"))
    planned = plan(*source, target=(stale, *kept), mirror_principal="User:mirror")
    assert planned.to_delete == (stale,)


def test_the_last_acl_of_a_topic_is_never_deleted() -> None:
    assert plan(allow(topic("orders"), WRITE), target=(allow(topic("orders")),)).to_delete == ()


# --- nobody gains a permission

_NAMES = ("a", "ab", "abc", "b", "ba", "__a")
_HOSTS = ("*", "10.0.0.1")
_OPERATIONS = tuple(operation for operation in AclOperation if operation is not AclOperation.UNKNOWN)
_kinds = st.sampled_from([ResourceKind.TOPIC, ResourceKind.TOPIC, ResourceKind.GROUP])
_patterns = st.one_of(
    st.builds(ResourcePattern, _kinds, st.sampled_from(("*", *_NAMES)), st.just(PatternKind.LITERAL)),
    st.builds(ResourcePattern, _kinds, st.sampled_from(("a", "ab", "b", "_")), st.just(PatternKind.PREFIXED)),
)
_acls = st.builds(
    Acl,
    _patterns,
    st.sampled_from((ANNA, ANYBODY, BOB)),
    st.sampled_from((READ, ALL, AclOperation.DESCRIBE, WRITE, AclOperation.DESCRIBE_CONFIGS)),
    st.sampled_from([AclEffect.ALLOW, AclEffect.DENY]),
    st.sampled_from(_HOSTS),
)
_close_acls = st.builds(
    Acl,
    st.sampled_from([topic("*"), topic("a"), prefixed("a"), group("a")]),
    st.sampled_from((ANNA, BOB)),
    st.sampled_from((READ, ALL, AclOperation.DESCRIBE)),
    st.sampled_from([AclEffect.ALLOW, AclEffect.DENY]),
)
"""ACLs that often concern the same."""
_sources = st.one_of(st.lists(_acls, min_size=1, max_size=5), st.lists(_close_acls, min_size=1, max_size=4))
_some_patterns = st.sampled_from([(".*",), (".*",), (".*",), ("a.*",), ("ab.*", "b"), ("a",), ("a|b.*",), ("[ab].*",), ("a.",)])
_rules = st.builds(
    AclRules,
    mirror=st.sampled_from(["m", "a"]),
    source_alias=st.just("east"),
    target_name=st.sampled_from(["{topic}", "{source}.{topic}", "a{topic}", "{topic}b", "{topic}-{topic}"]),
    topic_include=_some_patterns,
    topic_exclude=st.sampled_from([(), (), (), (), ("b",), ("abc",), ("a.*",), (".*c",)]),
    topic_offsets=st.sampled_from([(), (("a", "preserved"),)]),
    group_include=_some_patterns,
    group_exclude=st.sampled_from([(), ("abc",)]),
    principals=st.sampled_from([{}, {ANNA: BOB}, {ANNA: BOB, BOB: ANNA}, {ANNA: "User:new"}, {ANNA: "User:x", BOB: "User:x"}]),
    is_write_copied=st.booleans(),
    mirror_principal=st.sampled_from([None, BOB]),
)


def source_principals(principal: str, principals: dict[str, str]) -> list[str]:
    """Whoever of the source is this principal of the target; somebody unknown where nobody is."""
    same = [key for key, value in principals.items() if value == principal]
    return same + ([principal] if principal not in principals else []) or ["User:unknown"]


@pytest.mark.slow
@settings(max_examples=examples(400), deadline=None)
@given(_sources, _rules)
def test_the_target_never_allows_what_the_source_does_not(source: list[Acl], chosen: AclRules) -> None:
    created = plan_acls(source, (), chosen).to_create
    sources = {
        ResourceKind.TOPIC: {routing.target_topic_name(chosen.target_name, "east", name): name for name in _NAMES},
        ResourceKind.GROUP: {name: name for name in _NAMES},
    }
    for kind, name_of in sources.items():
        for name in {*name_of, *_NAMES, "east.zz", "azz", "zz", "a-0"}:
            for principal in (ANNA, BOB, "User:carl", "User:new", "User:x"):
                for host in ("10.0.0.1", "10.0.0.2"):
                    for operation in _OPERATIONS:
                        if not is_allowed(created, principal, host, operation, kind, name):
                            continue
                        origin = name_of.get(name) or original_name(chosen, kind, name)
                        assert origin is not None, f"{name} is no copy"
                        assert is_selected(chosen, kind, origin), f"{origin} is not mirrored"
                        asked = source_principals(principal, dict(chosen.principals))
                        assert any(is_allowed(source, user, host, operation, kind, origin) for user in asked)


def is_selected(chosen: AclRules, kind: ResourceKind, name: str) -> bool:
    """Count internal topics too: `*` and prefixes mean them on both sides."""
    if kind is ResourceKind.GROUP:
        include, exclude = chosen.group_include, chosen.group_exclude
    else:
        include, exclude = chosen.topic_include, chosen.topic_exclude
    return any(re.fullmatch(pattern, name) for pattern in include) and not any(re.fullmatch(pattern, name) for pattern in exclude)


def original_name(chosen: AclRules, kind: ResourceKind, name: str) -> str | None:
    """Return the name at the source of any name that copies may have."""
    if kind is ResourceKind.GROUP:
        return name
    prefix = chosen.target_name.format(source="east", topic="\0").partition("\0")[0]
    is_kept = chosen.target_name.endswith("{topic}") and chosen.target_name.count("{topic}") == 1
    return name.removeprefix(prefix) if is_kept and name.startswith(prefix) else None


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(_sources, _rules, st.data())
def test_no_acl_is_created_that_a_refused_deny_limits(source: list[Acl], chosen: AclRules, data: st.DataObject) -> None:
    created = plan_acls(source, (), chosen).to_create
    denies = [acl for acl in created if acl.is_deny]
    refused = [acl for acl in denies if data.draw(st.booleans())]
    ready, _ = ready_allows([acl for acl in created if not acl.is_deny], refused)
    partial = [acl for acl in denies if acl not in refused] + ready
    names = {f"{acl.pattern.name}{end}" for acl in created for end in ("", "x")}
    for kind, name, user in itertools.product((ResourceKind.TOPIC, ResourceKind.GROUP), names, (ANNA, BOB)):
        for host, operation in itertools.product(("10.0.0.1", "10.0.0.2"), _OPERATIONS):
            is_newly = is_allowed(partial, user, host, operation, kind, name)
            assert not is_newly or is_allowed(created, user, host, operation, kind, name)


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(_sources, _rules)
def test_a_second_time_there_is_nothing_to_do(source: list[Acl], chosen: AclRules) -> None:
    first = plan_acls(source, (), chosen)
    again = plan_acls(source, first.to_create, chosen)
    assert (again.to_create, again.to_delete) == ((), ())
    assert plan_acls([replace(acl) for acl in reversed(source)], (), chosen) == first
