"""Who still writes to logs that should be at rest: by two looks at the producers that leaders remember."""

from __future__ import annotations

from typing import Any

import pytest
from tests.migration.fake_effects import PARTITION, FakeEffects, FakeWorld, Kill
from tests.migration.stage import Stage
from tests.migration.test_waiting import EndsWaitError

from shallow_mirror.broker import ProducerState
from shallow_mirror.errors import BrokerTooOldError, RetriableError
from shallow_mirror.migration.conductor_ports import Clock
from shallow_mirror.migration.observations import LogEnd
from shallow_mirror.migration.steps import Direction
from shallow_mirror.migration.writing_producers import (
    LOOK_S,
    Look,
    Writing,
    WritingProducers,
    holders_sentence,
    open_in,
    sentence,
    writing_between,
)
from shallow_mirror.types import TopicPartition

ORDERS, BILLS, TAX = (TopicPartition(topic, 0) for topic in ("orders", "bills", "tax"))


def state(producer_id: int, sequence: int, at_ms: int = 1_772_448_401_000, **others: int) -> ProducerState:
    return ProducerState(producer_id, 0, others.pop("open_from", -1), at_ms, last_sequence=sequence, **others)


def ends(**logs: int) -> dict[TopicPartition, LogEnd]:
    return {TopicPartition(topic, 0): LogEnd(end, end) for topic, end in logs.items()}


def test_who_has_another_state_has_written_and_where_nobody_has_the_writer_has_no_id() -> None:
    before = Look({ORDERS: (state(1, 5), state(2, 9)), BILLS: (state(1, 3),), TAX: ()}, ends(orders=10, bills=4, tax=2))
    producers = {ORDERS: (state(1, 5), state(2, 12)), BILLS: (state(1, 3),), TAX: ()}
    assert writing_between(before, ends(orders=13, bills=4, tax=3), producers) == [
        Writing(ORDERS, state(2, 12)),
        Writing(TAX, None),
    ]


def test_a_batch_that_came_between_both_requests_of_a_look_is_of_nobody_else() -> None:
    behind_the_ends = {ORDERS: (state(1, 8),)}
    assert writing_between(Look({ORDERS: (state(1, 5),)}, ends(orders=6)), ends(orders=6), behind_the_ends) == [
        Writing(ORDERS, state(1, 8))
    ]
    assert writing_between(Look(behind_the_ends, ends(orders=9)), ends(orders=9), behind_the_ends) == []


def test_partitions_that_only_one_look_has_say_nothing() -> None:
    before = Look({ORDERS: ()}, ends(orders=1))
    assert writing_between(before, ends(orders=1, bills=5), {ORDERS: (), BILLS: (state(1, 4),)}) == []
    assert writing_between(before, {}, {ORDERS: (state(1, 4),)}) == []


def test_producers_are_named_with_all_that_brokers_tell() -> None:
    writing = [
        Writing(TAX, state(1, 6, coordinator_epoch=0, at_ms=1_772_448_400_000)),
        Writing(ORDERS, state(1, 5, coordinator_epoch=0)),
        Writing(ORDERS, state(2, 5, at_ms=-1)),
        Writing(BILLS, None),
    ]
    assert sentence(writing, {1: "shop"}) == (
        "producer id 1 (transactional id shop, last record of 2026-03-02T10:46:41+00:00) in orders-0, tax-0, a producer without id "
        "(neither idempotent nor transactional) in bills-0, producer id 2 in orders-0"
    )
    assert sentence([Writing(TAX, state(4, 1, at_ms=10**18))], {}) == (
        "producer id 4 (last record of timestamp 1000000000000000000) in tax-0"
    )
    hidden = state(3, 1, open_from=4, at_ms=-1)
    assert open_in({ORDERS: (state(1, 5), hidden)}) == [Writing(ORDERS, hidden)]
    assert sentence([Writing(ORDERS, hidden)], {}) == (
        "producer id 3 (transactional id not known: grant Describe on it to see it) in orders-0"
    )
    assert sentence([Writing(ORDERS, hidden)], None) == (
        "producer id 3 (transactional id not known: Kafka 3.0 or later tells it) in orders-0"
    )


class Looks:
    def __init__(self) -> None:
        self.world = FakeWorld()
        self.effects = FakeEffects(self.world, Direction.MOVE, Kill())
        clock = Clock(monotonic=lambda: self.world.now_s, sleep=self.world.tick, now_ms=lambda: 0)
        self.writing = WritingProducers(self.effects, clock, self.effects.log_ends())

    def seen(self) -> str:
        return self.writing.seen(self.effects.log_ends())


def test_the_first_comparison_is_made_at_once_and_further_ones_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, asked = Looks(), []
    producers = looks.effects.producers

    def counted(*arguments: Any, **others: Any) -> Any:
        asked.append(looks.world.now_s)
        return producers(*arguments, **others)

    monkeypatch.setattr(looks.effects, "producers", counted)
    looks.world.tick(0.2)
    assert looks.seen() == "; by producer id 7 (transactional id shop, last record of 1970-01-01T00:01:41+00:00) in orders-0"
    for _ in range(20):
        looks.world.tick(0.25)
        looks.seen()
    assert len(asked) == 1 + int(20 * 0.25 / LOOK_S)


def test_a_writer_without_id_is_told_by_the_log_alone() -> None:
    looks = Looks()
    looks.world.has_producer_ids = False
    looks.seen()
    looks.world.tick(LOOK_S)
    assert looks.seen() == "; by a producer without id (neither idempotent nor transactional) in orders-0"


def test_whoever_holds_a_transaction_open_is_named_though_it_writes_nothing() -> None:
    looks = Looks()
    looks.world.writers, looks.world.open_from = "", {"east": looks.world.logs["east"]}
    assert looks.seen() == "; by producer id 8 (transactional id not known: grant Describe on it to see it) in orders-0"


@pytest.mark.parametrize(
    ("api", "error", "found"),
    [
        (
            "producers",
            RetriableError("LEADER_NOT_AVAILABLE", "orders-0"),
            "; who writes is not known: LEADER_NOT_AVAILABLE: orders-0",
        ),
        ("transactional_ids", BrokerTooOldError("2.8"), "transactional id not known: Kafka 3.0 or later tells it"),
    ],
)
def test_a_broker_that_tells_nothing_stops_nobody(
    api: str, error: Exception, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Looks()

    def refuse(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(looks.effects, api, refuse)
    looks.world.tick(1)
    assert found in looks.seen()


def test_a_broker_that_does_not_tell_who_holds_a_transaction_ends_no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Looks()

    def refuse(*_: Any, **__: Any) -> Any:
        raise BrokerTooOldError("2.8")

    monkeypatch.setattr(looks.effects, "producers", refuse)
    for at_origin in (True, False):
        assert holders_sentence(looks.effects, [PARTITION], at_origin=at_origin) == "; who writes is not known: 2.8"


def test_the_wait_for_the_writers_names_them() -> None:
    stage = Stage()
    stage.operator.waits = lambda outside: seen.append(outside.seen)  # type: ignore[method-assign]
    seen: list[str] = []
    tick = stage.world.tick

    def ticking(seconds: float) -> None:
        tick(seconds)
        if stage.world.now_s > 60:
            raise EndsWaitError

    stage.world.tick = ticking  # type: ignore[method-assign]
    with pytest.raises(EndsWaitError):
        stage.perform(Direction.MOVE)
    assert "still written to: orders-0" in seen[1]
    assert "; by producer id 7 (transactional id shop, last record of" in seen[1]


def test_the_wait_for_transactions_at_the_other_cluster_names_who_holds_them() -> None:
    stage = Stage()
    seen: list[str] = []
    waits = stage.operator.waits

    def waiting(outside: Any) -> None:
        waits(outside)
        seen.append(outside.seen)
        stage.world.open_from = {}

    stage.operator.waits = waiting  # type: ignore[method-assign]
    done = stage.operator.done

    def opened(wave: str, step: Any, detail: Any) -> None:
        done(wave, step, detail)
        if step == "hand over":
            stage.world.open_from = {"west": stage.world.logs["west"] - 1}

    stage.operator.done = opened  # type: ignore[method-assign]
    stage.perform(Direction.MOVE)
    assert any(
        text.endswith("; by producer id 8 (transactional id not known: grant Describe on it to see it) in orders-0")
        for text in seen
    )
