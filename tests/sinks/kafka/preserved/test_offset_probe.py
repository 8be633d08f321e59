"""The trial of preserved offsets: what brokers as they should be answer, and what is refused of others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.fakes.changes import Change, error
from tests.fakes.strict_broker import StrictCluster
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.broker.auth import ClientConfig
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError, RetriableError
from shallow_mirror.sinks.kafka.preserved.offset_probe import PROBE_PREFIX, require_preserved_offsets


@pytest.fixture
def broker() -> Iterator[StrictCluster]:
    with StrictCluster() as broker:
        yield broker


def probe(broker: StrictCluster, ms: float = 20_000) -> None:
    client = ClientConfig.from_properties({"bootstrap.servers": broker.bootstrap})
    with closing(Cluster(client)) as target:
        require_preserved_offsets(target, "m", Deadline.after_ms(ms, time.monotonic))


def test_brokers_as_they_should_be_pass_and_the_topic_is_deleted(broker: StrictCluster) -> None:
    broker.create_topic(f"{PROBE_PREFIX}.m.left", 1)
    broker.create_topic(f"{PROBE_PREFIX}.other.left", 1)
    probe(broker)
    assert list(broker.topic_ids) == [f"{PROBE_PREFIX}.other.left"]
    assert not broker.asked("FindCoordinator"), "no permission on a group is needed"


def test_brokers_that_do_not_know_the_settings_are_named_as_too_old(broker: StrictCluster) -> None:
    broker.unknown_configs = frozenset({"message.timestamp.before.max.ms", "message.timestamp.after.max.ms"})
    with pytest.raises(ConfigError, match=r"cannot preserve offsets .*: they are older than Kafka 3.6 .*translated"):
        probe(broker)


def forbid(response: Any) -> None:
    response.responses[0].partitions[0].error_code = 29


def test_a_missing_permission_is_named(broker: StrictCluster) -> None:
    broker.change("CreateTopics", error(29))
    with pytest.raises(
        ConfigError, match=f"^target topic {PROBE_PREFIX}.m.* cannot be created: .*: grant Create on topic {PROBE_PREFIX}"
    ):
        probe(broker)
    broker.alter_responses("Fetch", forbid)
    with pytest.raises(ConfigError, match="TOPIC_AUTHORIZATION_FAILED: grant Read on topic"):
        probe(broker)
    assert not broker.topic_ids


@pytest.mark.slow
def test_a_topic_is_deleted_although_the_trial_ran_out_of_time(broker: StrictCluster) -> None:
    broker.change_always("Fetch", error(6))
    with pytest.raises(RetriableError):
        probe(broker, 1_000)
    assert not broker.topic_ids


def test_a_consumer_that_would_find_other_records_is_a_reason_to_refuse(broker: StrictCluster) -> None:
    def give_fillers_the_offsets_of_records() -> None:
        (topic,) = broker.topic_ids
        log = broker.log(topic)
        data = batch(0, 3, producer_id=log.batches[0].header.producer_id, producer_epoch=0, base_sequence=0)
        log.batches[0] = log.batches[0]._replace(data=data)

    broker.change("Fetch", Change(first=give_fillers_the_offsets_of_records))
    seen = r"a consumer returned records at offsets \[0, 1, 2, 3, 4\], those written are at \[3, 4\].*translated"
    with pytest.raises(ConfigError, match=seen):
        probe(broker)
    assert not broker.topic_ids


def test_records_that_cannot_be_read_are_a_reason_to_refuse(broker: StrictCluster) -> None:
    def cut() -> None:
        (topic,) = broker.topic_ids
        log = broker.log(topic)
        stored = log.batches[1]
        log.batches[1] = stored._replace(data=stored.data[:61] + bytes([0x7E]) + stored.data[62:])

    broker.change("Fetch", Change(first=cut))
    with pytest.raises(ConfigError, match=r"cannot preserve offsets .*: a consumer cannot read them: .*translated"):
        probe(broker)
