"""The protocol of preserved offsets over the model of one target partition, and the model over what breaks the protocol."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from typing import NamedTuple

import pytest
from tests.model.preserved.replicas import Replica, Request
from tests.model.preserved.rules import PRODUCT, Rules
from tests.model.preserved.run import search
from tests.model.preserved.target import ViolationError
from tests.model.preserved.world import Focus, World
from tests.support.examples import examples

SCHEDULES = examples(10_000)
SCHEDULES_OF_A_BUG = 10_000


@pytest.mark.slow
def test_every_schedule_leaves_each_record_at_its_offset_once() -> None:
    total = search(SCHEDULES, seed=1)
    assert total["violations"] == 0
    assert min(total[name] for name in ("writers killed", "refusals", "foreign writers", "damage found")) > SCHEDULES / 20


class Planted(NamedTuple):
    """A rule that is left out. `leads_to`: how the violation begins."""

    rule: str
    focus: Focus
    leads_to: str = "shifted"


PLANTED = (
    Planted("keeps_alive", Focus.EXPIRING),
    Planted("waits_quiet", Focus.FORGOTTEN),
    Planted("sends_first_alone", Focus.FORGOTTEN),
    Planted("stops_when_cut_short", Focus.FORGOTTEN),
    Planted("agrees_on_producer", Focus.ANYTHING),
    Planted("asks_again", Focus.ANYTHING),
    Planted("compares_base_offsets", Focus.FOREIGN, "recorded"),
    Planted("checks_headers", Focus.FOREIGN, "recorded"),
    Planted("is_conditional", Focus.ANYTHING),
    Planted("counts_from_offset", Focus.ANYTHING),
    Planted("begins_at_log_end", Focus.ANYTHING, "stuck"),
    Planted("records_answered", Focus.ANYTHING, "recorded"),
    Planted("notes_lost_task", Focus.FORGOTTEN),
    Planted("looks_twice", Focus.LEADERS, "a loss of records was reported"),
    Planted("requires_long_expiration", Focus.EXPIRING),
    Planted("compares_existing", Focus.CONTINUED, "recorded"),
    Planted("takes_new_producer", Focus.CONTINUED, "damage was reported"),
    Planted("bounds_origin", Focus.FORGOTTEN),
)


def schedules_until(leads_to: str, rules: Rules, focus: Focus, *, may_empty_any_time: bool = False) -> int | None:
    """Return how many schedules it takes to find such a violation; None where so many do not find it."""
    for number in range(SCHEDULES_OF_A_BUG):
        try:
            World(number, rules, focus=focus, may_empty_any_time=may_empty_any_time).run()
        except ViolationError as violation:
            if str(violation).startswith(leads_to):
                return number + 1
    return None


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.rule)
def test_a_rule_that_is_left_out_is_found(bug: Planted) -> None:
    assert schedules_until(bug.leads_to, replace(PRODUCT, **{bug.rule: False}), bug.focus) is not None


def test_every_rule_is_left_out_once() -> None:
    assert sorted(bug.rule for bug in PLANTED) == sorted(rule.name for rule in fields(Rules))


@pytest.mark.slow
def test_a_log_that_is_emptied_under_a_writer_is_what_the_protocol_does_not_withstand() -> None:
    """It has to find the log emptied, and the producer lost without its connection: retention has to be longer than `quiet_ms`."""
    assert schedules_until("shifted", PRODUCT, Focus.ANYTHING, may_empty_any_time=True) is not None


def request(offset: int, records: int = 1) -> Request:
    return Request(offset, records, 77, offset, 1_000)


def leader_with(*offsets: int) -> Replica:
    replica = Replica(0, offsets[0])
    for offset, end in itertools.pairwise(offsets):
        replica.append(request(offset, end - offset))
    return replica


def test_a_broker_knows_the_last_five_batches_again_and_one_after_a_start() -> None:
    replica = leader_with(0, 2, 4, 6, 8, 10, 12)
    assert [replica.duplicate_of(request(offset, 2)) for offset in range(0, 12, 2)] == [None, 2, 4, 6, 8, 10]
    assert replica.duplicate_of(request(10, 1)) is None
    replica.reload()
    assert [replica.duplicate_of(request(offset, 2)) for offset in (8, 10)] == [None, 10]


def test_a_broker_takes_what_follows_and_anything_of_a_producer_that_it_forgot() -> None:
    replica = leader_with(0, 2)
    assert [replica.is_in_order(request(offset)) for offset in (0, 1, 2, 3)] == [False, False, True, False]
    replica.expire(1_000 + 99, 100)
    assert not replica.is_in_order(request(9))
    replica.expire(1_000 + 100, 100)
    assert replica.is_in_order(request(9))


def test_a_follower_drops_what_the_leader_does_not_have() -> None:
    leader, follower = leader_with(0, 2), Replica(1, 0)
    follower.copy(leader)
    follower.append(request(2, 3))
    leader.append(request(2, 1))
    follower.copy(leader)
    assert follower.log == leader.log
    assert follower.producers[77].batches[-1] == (2, 2, 2)


def test_a_follower_below_the_start_of_the_leader_forgets_the_producer() -> None:
    leader, follower = leader_with(0, 2), Replica(1, 0)
    leader.start = leader.end
    follower.copy(leader)
    assert (follower.start, follower.end, follower.producers) == (2, 2, {})
