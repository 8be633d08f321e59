"""Which Deny ACLs make topics read-only for everybody but the mirror, by the rules of Kafka's authorizer."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from tests.access.reference_authorizer import is_allowed

from shallow_mirror.access.write_denies import may_write, plan_write_denies, write_deny
from shallow_mirror.broker.admin.access import Acl, AclEffect, AclOperation, PatternKind, ResourceKind, ResourcePattern

OWN, ANNA, ANYBODY = "User:mirror", "User:anna", "User:*"
TOPICS = ("orders", "orders-eu", "bills")
WRITE, ALL, READ = AclOperation.WRITE, AclOperation.ALL, AclOperation.READ


def allow(name: str, principal: str = ANNA, operation: AclOperation = WRITE, match: PatternKind = PatternKind.LITERAL) -> Acl:
    return Acl(ResourcePattern(ResourceKind.TOPIC, name, match), principal, operation)


def test_each_principal_that_may_write_to_a_topic_is_denied_there_and_the_mirror_is_not() -> None:
    acls = [
        allow("orders", OWN),
        allow("orders"),
        allow("orders", "User:bob", READ),
        allow("ord", "User:carl", ALL, PatternKind.PREFIXED),
        allow("*", "User:dora"),
        allow("other"),
        Acl(ResourcePattern(ResourceKind.GROUP, "orders"), "User:eve", ALL),
    ]
    plan = plan_write_denies(acls, ["orders", "orders-eu"], OWN)
    assert plan.needed == {
        write_deny("orders", ANNA),
        *(write_deny(topic, f"User:{name}") for topic in ("orders", "orders-eu") for name in ("carl", "dora")),
    }
    assert (plan.open_to_all, plan.unguarded) == ((), ())


def test_an_allow_for_everybody_cannot_be_limited_and_a_topic_without_acls_is_named() -> None:
    everybody = allow("ord", ANYBODY, ALL, PatternKind.PREFIXED)
    plan = plan_write_denies([everybody, allow("other")], TOPICS, OWN)
    assert (plan.needed, plan.open_to_all, plan.unguarded) == (frozenset(), (everybody,), ("bills",))


def test_an_allow_for_the_mirror_is_found_in_every_pattern() -> None:
    for acl in (allow("orders", OWN), allow("ord", OWN, ALL, PatternKind.PREFIXED), allow("*", ANYBODY)):
        assert may_write([acl], "orders", OWN)
    for acl in (allow("orders-eu", OWN), allow("orders", OWN, READ), allow("orders", ANNA), write_deny("orders", OWN)):
        assert not may_write([acl], "orders", OWN)


_acls = st.builds(
    Acl,
    st.builds(
        ResourcePattern,
        st.sampled_from([ResourceKind.TOPIC, ResourceKind.TOPIC, ResourceKind.GROUP]),
        st.sampled_from(["*", "orders", "orders-eu", "ord", "bills", "b"]),
        st.sampled_from(PatternKind),
    ),
    st.sampled_from([OWN, ANNA, "User:bob", ANYBODY]),
    st.sampled_from([READ, WRITE, ALL, AclOperation.DESCRIBE]),
    st.sampled_from([AclEffect.ALLOW, AclEffect.ALLOW, AclEffect.DENY]),
    st.sampled_from(["*", "10.0.0.1"]),
)


@pytest.mark.slow
@given(st.lists(_acls, max_size=8), st.sets(st.sampled_from(TOPICS)))
def test_nobody_else_may_write_then_and_nothing_else_changes(acls: list[Acl], topics: set[str]) -> None:
    plan = plan_write_denies(acls, topics, OWN)
    after = [*acls, *plan.needed]
    for principal in (OWN, ANNA, "User:bob", "User:eve"):
        for operation in (READ, WRITE, AclOperation.DESCRIBE):
            for topic in TOPICS:
                before = is_allowed(acls, principal, "10.0.0.1", operation, ResourceKind.TOPIC, topic)
                now = is_allowed(after, principal, "10.0.0.1", operation, ResourceKind.TOPIC, topic)
                if principal == OWN or operation is not WRITE or topic not in topics:
                    assert now == before
                else:
                    is_open = any(acl.pattern.covers(ResourcePattern(ResourceKind.TOPIC, topic)) for acl in plan.open_to_all)
                    assert not now or is_open
