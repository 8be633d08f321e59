"""Transactional ids of producers, which each coordinator lists for itself."""

from __future__ import annotations

import pytest
from tests.fakes import changes
from tests.fakes.clients import SleepingClock
from tests.fakes.strict_broker import StrictCluster

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.produce.txn import init_producer_id, list_transactional_ids
from shallow_mirror.errors import BrokerTooOldError, RetriableError


def test_every_broker_is_asked_for_the_ids_of_these_producers(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    first, second = (init_producer_id(client, name, 60_000, clock.deadline()).producer_id for name in ("shop", "bank"))
    assert list_transactional_ids(client, [first], clock.deadline()) == {first: "shop"}
    assert list_transactional_ids(client, [first, second, 999], clock.deadline()) == {first: "shop", second: "bank"}
    assert fake.asked("ListTransactions") == 2 * len(fake.nodes)
    assert list_transactional_ids(client, [], clock.deadline()) == {}


def test_a_coordinator_that_loads_is_asked_again(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    shop = init_producer_id(client, "shop", 60_000, clock.deadline()).producer_id
    fake.change("ListTransactions", changes.error(14))
    assert list_transactional_ids(client, [shop], clock.deadline()) == {shop: "shop"}
    fake.change_always("ListTransactions", changes.error(14))
    with pytest.raises(
        RetriableError, match="COORDINATOR_LOAD_IN_PROGRESS: gave up listing transactions: ListTransactions of broker"
    ):
        list_transactional_ids(client, [shop], clock.deadline())


def test_brokers_before_3_0_do_not_tell(fake: StrictCluster, client: Cluster, clock: SleepingClock) -> None:
    fake.not_offered = frozenset({"ListTransactions"})
    with pytest.raises(BrokerTooOldError, match=r"offers no ListTransactions: Kafka 3\.0 or later is needed"):
        list_transactional_ids(client, [4], clock.deadline())
