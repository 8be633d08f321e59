"""Settings of a preserved target topic that are changed while the mirror runs: the topic stops, and others continue."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from tests.fakes.changes import AS_IT_SHOULD, dropped_after, error
from tests.sinks.kafka.writers.test_preserved_writer import placed, preserving
from tests.sinks.two_strict_clusters import A, Clusters, client_of, create_target, planned, route_to
from tests.support.record_batches import batch

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import TopicSettingsError
from shallow_mirror.sinks import RoutedTopic, Side
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.settings import PreservedSettings
from shallow_mirror.sinks.kafka.targets.settings.preserved_settings import SETTINGS_EVERY_S

pytestmark = pytest.mark.thorough

STAMPED = "target topic copy has message.timestamp.type=LogAppendTime: with preserved offsets it has to be CreateTime"


def set_target(clusters: Clusters, name: str, value: str, topic: str = "copy") -> None:
    clusters.target.log(topic).configs[name] = value


def test_a_topic_that_begins_to_give_records_its_own_times_stops(clusters: Clusters) -> None:
    now_ms = int(time.time() * 1000)
    clusters.source.seed(("orders", 0), batch(0, 2, timestamp=now_ms))
    job = preserving(clusters, {A: 0})
    set_target(clusters, "message.timestamp.type", "LogAppendTime")
    with pytest.raises(TopicSettingsError) as raised:
        clusters.run(job, planned(A, 2))
    assert STAMPED in str(raised.value)
    assert "nothing more is written to the topic" in str(raised.value)
    assert (
        "Start the mirror again once the topic is as before (with on_error: isolate it continues by itself), and then run `shallow-mirror verify CONF`"
        in str(raised.value)
    )
    assert "translated" not in str(raised.value), "it refuses the records that have other times already"
    assert raised.value.topics == ("copy",)


@pytest.mark.parametrize(
    ("name", "value"), [("message.timestamp.type", "LogAppendTime"), ("cleanup.policy", "compact")], ids=["old records", "keys"]
)
def test_a_batch_that_is_refused_because_of_a_change_names_the_change(clusters: Clusters, name: str, value: str) -> None:
    """Not the batch: what would help it would not help the next one."""
    clusters.write(A, 2)
    job = preserving(clusters, {A: 0})
    set_target(clusters, name, value)
    with pytest.raises(TopicSettingsError, match=f"^target topic copy has {name}={value}"):
        clusters.run(job, planned(A, 2))


def test_the_time_of_a_repeated_batch_is_no_setting(clusters: Clusters) -> None:
    """A broker answers a duplicate with the time of the batch, as if it had given it."""
    clusters.write(A, 2, 3)
    clusters.target.change("Produce", AS_IT_SHOULD, error(20, is_performed=True), dropped_after())
    result = clusters.run(preserving(clusters, {A: 0}), planned(A, 5))
    assert placed(clusters) == [(0, 0, 2), (2, 2, 3)]
    assert result.segments[-1].source_end == 5


def test_nothing_is_written_to_a_topic_whose_settings_do_not_fit_and_others_continue(clusters: Clusters) -> None:
    clusters.write(A, 2)
    unfit = {"orders": "target topic copy has compression.type=lz4"}
    job = preserving(clusters, {A: 0}, unfit=unfit)
    with pytest.raises(TopicSettingsError, match=r"^target topic copy has compression\.type=lz4\. It was changed while"):
        clusters.run(job, planned(A, 2))
    result = clusters.run(replace(job, isolates=True, leaves_out=True), planned(A, 2))
    (left,) = result.unfinished
    assert (left.source, left.reached, left.side, left.is_definite) == (A, 0, Side.TARGET, True)
    assert placed(clusters) == []
    # Set back, the copy continues at the position.
    clusters.run(replace(job, unfit={}), planned(A, 2))
    assert placed(clusters) == [(0, 0, 2)]


class Looks:
    """The settings of target topic `kept`, and a clock that moves by hand."""

    def __init__(self, clusters: Clusters, target: Cluster) -> None:
        self.now_s, self._clusters = 0.0, clusters
        self.settings = PreservedSettings(target, lambda: self.now_s)
        self.routes = {"orders": replace(route_to("kept"), is_preserved=True), "others": route_to("copy")}

    def problems(self) -> dict[str, str]:
        return dict(self.settings.problems(self.routes, Deadline.after_ms(10_000, time.monotonic)))

    def set(self, name: str, value: str) -> None:
        set_target(self._clusters, name, value, "kept")

    def route(self) -> RoutedTopic:
        return self.routes["orders"]


@pytest.fixture
def looks(clusters: Clusters) -> Iterator[Looks]:
    limits = dict.fromkeys(target_topic_policy.TIMESTAMP_LIMITS, str(target_topic_policy.NO_LIMIT_MS))
    create_target(clusters.target, "kept", 2, **limits, **target_topic_policy.FORCED_WHERE_PRESERVED)
    with closing(Cluster(client_of(clusters.target))) as target:
        yield Looks(clusters, target)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("compression.type", "lz4", "has compression.type=lz4"),
        ("message.timestamp.type", "LogAppendTime", "has message.timestamp.type=LogAppendTime"),
        ("message.timestamp.before.max.ms", "3600000", "has message.timestamp.before.max.ms=3600000"),
        ("cleanup.policy", "compact", "has cleanup.policy=compact, its source topic delete"),
        ("unclean.leader.election.enable", "true", "has unclean.leader.election.enable=true"),
    ],
)
def test_settings_are_compared_again_and_again(looks: Looks, name: str, value: str, expected: str) -> None:
    looks.now_s = SETTINGS_EVERY_S
    assert looks.problems() == {}
    before = looks.problems()
    looks.set(name, value)
    looks.now_s += SETTINGS_EVERY_S / 2
    assert looks.problems() == before, "not due yet"
    looks.now_s += SETTINGS_EVERY_S / 2
    assert looks.problems()["orders"].startswith(f"target topic kept {expected}")
    assert looks.problems().keys() == {"orders"}, "remembered until the next look"


def test_a_setting_that_is_put_back_lets_the_topic_continue(looks: Looks) -> None:
    looks.set("compression.type", "gzip")
    looks.now_s = SETTINGS_EVERY_S
    assert looks.problems()
    looks.set("compression.type", "producer")
    looks.now_s += SETTINGS_EVERY_S
    assert looks.problems() == {}


def test_the_settings_of_another_topic_of_the_name_are_no_changed_settings(looks: Looks, clusters: Clusters) -> None:
    """The task that would write to it finds that the former topic is gone."""
    clusters.target.delete_topic("kept")
    clusters.target.create_topic("kept", 2)
    looks.set("compression.type", "gzip")
    looks.now_s = SETTINGS_EVERY_S
    assert looks.problems() == {}


def test_a_topic_that_may_not_be_described_stops_alone_and_a_silent_cluster_stops_nothing(
    looks: Looks, clusters: Clusters
) -> None:
    looks.now_s = SETTINGS_EVERY_S
    clusters.target.change("DescribeConfigs", error(29), error(29))
    assert "target topic kept cannot be checked" in looks.problems()["orders"]
    looks.now_s += SETTINGS_EVERY_S
    clusters.target.stop_node(1)
    assert "cannot be checked" in looks.problems()["orders"]
