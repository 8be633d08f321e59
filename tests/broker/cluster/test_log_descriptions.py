"""Start, end and producers of logs, which several leaders are asked for at once."""

from __future__ import annotations

import pytest
from tests.fakes.changes import AS_IT_SHOULD, after, cut, error
from tests.fakes.clients import SleepingClock
from tests.fakes.record_rules import header_of
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster, LogDescription, ProducerState
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.types import TopicPartition

A, B, C = (TopicPartition("t", partition) for partition in range(3))
OF_A = batch(0, 5, producer_id=4, producer_epoch=0, base_sequence=0)
OF_B = batch(0, 3, producer_id=6, producer_epoch=1, base_sequence=0)


def state(producer_id: int, epoch: int, last_sequence: int) -> ProducerState:
    return ProducerState(producer_id, epoch, -1, header_of(OF_A).max_timestamp, last_sequence=last_sequence)


@pytest.fixture
def seeded(fake: StrictCluster) -> StrictCluster:
    fake.seed(("t", 0), OF_A)
    fake.seed(("t", 1), OF_B)
    fake.log("t", 1).delete_records_before(2)
    return fake


DESCRIBED = {
    A: LogDescription(0, 5, (state(4, 0, 4),)),
    B: LogDescription(2, 3, (state(6, 1, 2),)),
    C: LogDescription(0, 0, ()),
}


def test_each_leader_describes_its_logs_and_is_asked_without_waiting(
    seeded: StrictCluster, client: Cluster, clock: SleepingClock
) -> None:
    seeded.await_in_flight["ListOffsets"] = 3
    assert client.describe_logs([A, B, C], clock.deadline()) == DESCRIBED
    assert (seeded.asked("ListOffsets"), seeded.asked("DescribeProducers")) == (4, 2)


def test_producers_are_those_of_the_end_or_of_later(seeded: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    more = batch(5, 2, producer_id=4, producer_epoch=0, base_sequence=5)
    seeded.change("DescribeProducers", after(lambda: seeded.seed(("t", 0), more)))
    (log,) = client.describe_logs([A], clock.deadline()).values()
    assert (log.end, log.producers[0].last_sequence) == (5, 6)


@pytest.mark.slow
@pytest.mark.parametrize("api", ["ListOffsets", "DescribeProducers"])
@pytest.mark.parametrize("code", [5, 6, 7])
def test_an_error_leaves_no_response_behind_that_a_later_request_takes_for_its_own(
    seeded: StrictCluster, client: Cluster, clock: SleepingClock, api: str, code: int
) -> None:
    seeded.change(api, error(code, ("t", 0)), node_id=1)
    with pytest.raises(RetriableError):
        client.describe_logs([A, B, C], clock.deadline())
    assert client.describe_logs([A, B, C], clock.deadline()) == DESCRIBED


@pytest.mark.parametrize("answered", range(3))
def test_a_connection_that_ends_between_the_responses_is_made_again(
    seeded: StrictCluster, client: Cluster, clock: SleepingClock, answered: int
) -> None:
    changes = [*[AS_IT_SHOULD] * answered, cut(7)]
    seeded.change("ListOffsets", *changes[:2], node_id=1)
    seeded.change("DescribeProducers", *changes[2:], node_id=1)
    with pytest.raises(RetriableError):
        client.describe_logs([A, B], clock.deadline())
    assert client.describe_logs([A, B, C], clock.deadline()) == DESCRIBED


@pytest.mark.parametrize("api", ["ListOffsets", "DescribeProducers"])
def test_a_response_that_leaves_a_partition_out_is_an_error(
    seeded: StrictCluster, client: Cluster, clock: SleepingClock, api: str
) -> None:
    seeded.alter_responses(api, lambda response: response.topics.pop())
    with pytest.raises(RetriableError, match=f"the answer to {api} leaves out t-"):
        client.describe_logs([A, B], clock.deadline())


@pytest.mark.parametrize("api", ["ListOffsets", "DescribeProducers"])
def test_a_right_that_is_missing_is_for_the_operator(
    seeded: StrictCluster, client: Cluster, clock: SleepingClock, api: str
) -> None:
    seeded.change(api, error(29))
    with pytest.raises(ConfigError, match="TOPIC_AUTHORIZATION_FAILED"):
        client.describe_logs([A], clock.deadline())


def test_a_partition_without_a_leader_is_an_error(seeded: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    with pytest.raises(RetriableError, match="t-7 has no leader"):
        client.describe_logs([A, TopicPartition("t", 7)], clock.deadline())
