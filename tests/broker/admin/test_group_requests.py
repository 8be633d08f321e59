"""Offsets of many groups are requested and committed together, and what is refused or lost is asked again alone."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.changes import Change, dropped_after, error, garbage, truncated
from tests.fakes.clients import SleepingClock, client_of
from tests.fakes.cluster_state import GROUP
from tests.fakes.coordinators import Committed
from tests.fakes.kafka_codec import API_KEYS
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster, CommittedOffset, ConsumerGroups
from shallow_mirror.errors import BrokerTooOldError, ConfigError, OutcomeUnknownError, RetriableError
from shallow_mirror.types import TopicPartition

NAMES = ("app", "billing", "search")
PURPOSES = ("one", "two")
A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def groups(fake: StrictCluster, client: Cluster) -> ConsumerGroups:
    """NAMES have two offsets, and node 1 coordinates all groups."""
    for at, name in enumerate(NAMES):
        fake.groups.commit_now(name, A, Committed(10 + at, ""))
        fake.groups.commit_now(name, B, Committed(20 + at, "note"))
    return ConsumerGroups(client, "west")


def expected(at: int) -> tuple[CommittedOffset, ...]:
    return CommittedOffset(A, 10 + at, ""), CommittedOffset(B, 20 + at, "note")


def committed(
    groups: ConsumerGroups, clock: SleepingClock, names: tuple[str, ...] = NAMES, *, waits_for_txns: bool = True
) -> dict[str, Any]:
    """Return the offsets of each group, or what is raised."""
    found: dict[str, Any] = {}
    groups.listed(clock.deadline())
    begun = groups.begin_committed(names, clock.deadline(), PURPOSES, waits_for_txns=waits_for_txns)
    for name in names:
        try:
            found[name] = groups.committed(name, clock.deadline(), waits_for_txns=waits_for_txns, begun=begun[name])
        except (ConfigError, RetriableError) as raised:
            found[name] = raised
    return found


def versions(fake: StrictCluster) -> list[int]:
    return [body.version for body in fake.bodies("OffsetFetch")]


def test_one_request_has_the_offsets_of_all_groups(fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock) -> None:
    assert committed(groups, clock) == {name: expected(at) for at, name in enumerate(NAMES)}
    (body,) = fake.bodies("OffsetFetch")
    assert (body.version, [group.group_id for group in body.groups], body.require_stable) == (8, list(NAMES), True)
    assert committed(groups, clock, (*NAMES, "missing"))["missing"] == ()
    assert versions(fake) == [8, 8, 8], "its coordinator was not known"


def test_a_broker_before_3_0_is_asked_group_by_group(fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock) -> None:
    fake.is_newest = False
    assert committed(groups, clock) == {name: expected(at) for at, name in enumerate(NAMES)}
    assert versions(fake) == [7, 7, 7]


@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_group_with_an_error_that_passes_is_asked_about_again_alone(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock, code: int
) -> None:
    fake.change("OffsetFetch", error(code, ("billing", -1)))
    assert committed(groups, clock) == {name: expected(at) for at, name in enumerate(NAMES)}
    assert versions(fake) == [8, 7]
    assert fake.bodies("OffsetFetch")[1].group_id == "billing"


def test_a_group_that_is_hidden_is_one_of_many_and_is_not_asked_about_again(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock
) -> None:
    fake.change("OffsetFetch", error(30, ("billing", -1)))
    found = committed(groups, clock)
    assert (found["app"], found["search"], versions(fake)) == (expected(0), expected(2), [8])
    assert str(found["billing"]).startswith(
        "west: reading the offsets of group billing: GROUP_AUTHORIZATION_FAILED: grant Describe"
    )


def test_a_partition_that_is_hidden_is_named(fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock) -> None:
    fake.change("OffsetFetch", error(29, B))
    found = committed(groups, clock)
    assert "reading the offset of group app on t-1: TOPIC_AUTHORIZATION_FAILED" in str(found["app"])


def test_groups_whose_coordinator_has_moved_are_found_again(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock
) -> None:
    groups.listed(clock.deadline())
    begun = groups.begin_committed(NAMES, clock.deadline(), PURPOSES)
    assert groups.committed("app", clock.deadline(), begun=begun["app"]) == expected(0)
    fake.move_coordinator(GROUP, 2)
    begun = groups.begin_committed(NAMES, clock.deadline(), PURPOSES)
    for at, name in enumerate(NAMES):
        assert groups.committed(name, clock.deadline(), begun=begun[name]) == expected(at)
    assert versions(fake) == [8, 8, 7, 7, 7]
    begun = groups.begin_committed(NAMES, clock.deadline(), PURPOSES)
    assert groups.committed("search", clock.deadline(), begun=begun["search"]) == expected(2)
    assert fake.received[-1].node_id == 2


@pytest.mark.parametrize("change", [dropped_after(), garbage(), truncated(1)])
def test_a_response_that_is_lost_or_cannot_be_read_is_requested_again(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock, change: Change
) -> None:
    fake.change("OffsetFetch", change)
    assert committed(groups, clock) == {name: expected(at) for at, name in enumerate(NAMES)}
    assert versions(fake) == [8, 7, 7, 7]


def test_a_group_that_the_response_leaves_out_is_asked_about_alone(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock
) -> None:
    def leave_out(response: Any) -> None:
        if response.version == 8:
            response.groups = [group for group in response.groups if group.group_id != "billing"]

    fake.alter_responses("OffsetFetch", leave_out)
    assert committed(groups, clock) == {name: expected(at) for at, name in enumerate(NAMES)}


@pytest.mark.parametrize("is_newest", [True, False])
def test_an_offset_that_a_transaction_commits_is_not_known_yet(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock, is_newest: bool
) -> None:
    fake.is_newest = is_newest
    fake.groups.commit("app", A, Committed(99, ""), 7, 0)
    assert committed(groups, clock)["app"] == (CommittedOffset(A, None, ""), CommittedOffset(B, 20, "note"))
    assert committed(groups, clock, waits_for_txns=False)["app"] == expected(0)


# --- commits ---


OFFSETS = {name: {A: (30 + at, ""), B: (40 + at, "theirs")} for at, name in enumerate(NAMES)}


def commit(groups: ConsumerGroups, clock: SleepingClock) -> dict[str, Any]:
    """Return the refusals of each group, or what is raised."""
    groups.listed(clock.deadline())
    begun, refused = groups.begin_commits(OFFSETS, clock.deadline(), PURPOSES), dict[str, Any]()
    for name, offsets in OFFSETS.items():
        try:
            refused[name] = groups.commit(name, offsets, clock.deadline(), begun=begun[name])
        except (ConfigError, RetriableError, OutcomeUnknownError) as raised:
            refused[name] = raised
    return refused


def at_broker(fake: StrictCluster, name: str) -> dict[TopicPartition, tuple[int, str | None]]:
    offsets = {key: fake.groups.offsets[name, key] for key in (A, B)}
    return {key: (committed.offset, committed.metadata) for key, committed in offsets.items()}


@pytest.mark.slow
def test_offsets_of_many_groups_are_sent_before_the_first_response(clock: SleepingClock) -> None:
    with StrictCluster(look_ahead_s=0.2) as fake:
        fake.create_topic("t", 2)
        for name in NAMES:
            fake.groups.commit_now(name, A, Committed(0, ""))
        client = client_of(fake, clock)
        assert commit(ConsumerGroups(client, "west"), clock) == {name: {} for name in NAMES}
        assert [at_broker(fake, name) for name in NAMES] == list(OFFSETS.values())
        assert fake.most_in_flight["OffsetCommit"] == 2, "two connections share three groups"
        client.close()


def test_each_refusal_is_returned(fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock) -> None:
    fake.groups.members["billing"] = ["consumer-1"]
    before = at_broker(fake, "billing")
    active = dict.fromkeys((A, B), "the group is active there: stop its consumers first")
    assert commit(groups, clock) == {"app": {}, "billing": active, "search": {}}
    assert at_broker(fake, "billing") == before
    fake.groups.members.clear()
    fake.change_always("OffsetCommit", error(12, B))
    too_large = {B: "its metadata is larger than offset.metadata.max.bytes of that cluster"}
    assert commit(groups, clock) == dict.fromkeys(NAMES, too_large)


@pytest.mark.parametrize("code", [14, 15, 16])
def test_a_coordinator_that_is_not_ready_is_asked_again(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock, code: int
) -> None:
    fake.change("OffsetCommit", error(code), error(code))
    assert commit(groups, clock) == {name: {} for name in NAMES}
    assert [at_broker(fake, name) for name in NAMES] == list(OFFSETS.values())
    assert fake.asked("OffsetCommit") == 5


@pytest.mark.parametrize("change", [dropped_after(), garbage(), truncated(1)])
def test_commits_whose_responses_are_lost_are_sent_again(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock, change: Change
) -> None:
    fake.change("OffsetCommit", change)
    assert commit(groups, clock) == {name: {} for name in NAMES}
    assert [at_broker(fake, name) for name in NAMES] == list(OFFSETS.values())


def test_without_a_coordinator_the_outcome_of_each_is_unknown(
    fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock
) -> None:
    fake.change_always("OffsetCommit", error(15))
    refused = commit(groups, clock)
    assert {type(raised) for raised in refused.values()} == {OutcomeUnknownError}
    assert str(refused["app"]).startswith("west: committing offsets of group app: ")


def test_a_broker_that_takes_no_such_commits_is_named(fake: StrictCluster, groups: ConsumerGroups, clock: SleepingClock) -> None:
    def older(response: Any) -> None:
        for api_key in response.api_keys:
            if api_key.api_key == API_KEYS["OffsetCommit"]:
                api_key.max_version = 7

    fake.alter_responses("ApiVersions", older)
    assert {type(raised) for raised in commit(groups, clock).values()} == {BrokerTooOldError}
