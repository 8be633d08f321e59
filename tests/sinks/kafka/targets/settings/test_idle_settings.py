"""Settings of preserved target topics, compared beside the micro-batches."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.changes import error
from tests.sinks.two_strict_clusters import A, B, Clusters, client_of, create_target, route_to

from shallow_mirror.broker import Cluster
from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import RetriableError, TopicSettingsError
from shallow_mirror.sinks import Side, UnfinishedRange
from shallow_mirror.sinks.kafka.targets import target_topic_policy
from shallow_mirror.sinks.kafka.targets.settings import IdleSettings, idle_settings, topic_config_sync

FIT = {
    **dict.fromkeys(target_topic_policy.TIMESTAMP_LIMITS, str(target_topic_policy.NO_LIMIT_MS)),
    **target_topic_policy.FORCED_WHERE_PRESERVED,
}


class Watched:
    """Preserved topics `orders` (to `kept`) and `more` (to `more`) at 7 and 9, and a translated one."""

    def __init__(self, clusters: Clusters, target: Cluster) -> None:
        self.clusters, self.target = clusters, target
        for topic in ("kept", "more"):
            create_target(clusters.target, topic, 1, **FIT)
        preserved = {name: replace(route_to(topic), is_preserved=True) for name, topic in (("orders", "kept"), ("more", "more"))}
        self.routes = {**preserved, "translated": route_to("copy")}
        self.isolated: list[Sequence[UnfinishedRange]] = []
        self.reads = 0
        self.is_full = False

    def settings(self, *, isolates: bool = False) -> IdleSettings:
        targets: Any = SimpleNamespace(routes=self.routes)
        return IdleSettings(targets, self._positions, self._isolate if isolates else None)

    def _positions(self) -> Any:
        self.reads += 1
        kept = self.routes["orders"].target_topic_id
        return {
            A: SimpleNamespace(offset=7, target=SimpleNamespace(topic_id=kept)),
            B: SimpleNamespace(offset=9, target=SimpleNamespace(topic_id=kept)),
            A._replace(topic_id="former"): SimpleNamespace(offset=3, target=SimpleNamespace(topic_id="another")),
        }

    def _isolate(self, ranges: Sequence[UnfinishedRange]) -> None:
        if self.is_full:
            raise RetriableError("NOTE_NOT_WRITTEN", "the disk is full")
        self.isolated.append(ranges)

    def set(self, value: str, topic: str = "kept") -> None:
        self.clusters.target.log(topic).configs["message.timestamp.type"] = value

    def look(self, settings: IdleSettings, not_written: Collection[str] = (), *, is_due: bool = True) -> None:
        settings.look(self.target, not_written, Deadline.after_ms(10_000, time.monotonic), is_due=is_due)


@pytest.fixture
def watched(clusters: Clusters) -> Iterator[Watched]:
    with closing(Cluster(client_of(clusters.target))) as target:
        yield Watched(clusters, target)


def test_all_preserved_topics_are_asked_for_in_one_request_and_translated_ones_never(watched: Watched) -> None:
    settings, state = watched.settings(), watched.clusters.target
    watched.look(settings)
    (body,) = state.bodies("DescribeConfigs")
    assert {resource.resource_name for resource in body.resources} == {"kept", "more"}
    watched.look(settings, is_due=False)
    assert state.asked("DescribeConfigs") == 1, "nothing is suspected"
    watched.routes = {"translated": route_to("copy")}
    asked = len(state.received)
    watched.look(watched.settings())
    assert len(state.received) == asked


def test_a_change_counts_at_the_second_look_which_asks_for_the_suspected_topic_only(watched: Watched) -> None:
    settings, state = watched.settings(), watched.clusters.target
    watched.set("LogAppendTime")
    watched.look(settings)
    settings.require_unchanged()
    watched.look(settings, is_due=False)
    assert [resource.resource_name for resource in state.bodies("DescribeConfigs")[-1].resources] == ["kept"]
    with pytest.raises(TopicSettingsError, match=r"^target topic kept has message\.timestamp\.type=LogAppendTime") as raised:
        settings.require_unchanged()
    assert raised.value.topics == ("kept",)
    assert watched.reads == 0


def test_several_changed_topics_are_named_at_once(watched: Watched) -> None:
    settings = watched.settings()
    for topic in ("kept", "more"):
        watched.set("LogAppendTime", topic)
    for _ in range(2):
        watched.look(settings)
    with pytest.raises(TopicSettingsError) as raised:
        settings.require_unchanged()
    assert sorted(raised.value.topics) == ["kept", "more"]
    assert len(raised.value.problems) == 2


def test_a_setting_that_is_back_at_the_second_look_is_no_change(watched: Watched) -> None:
    settings = watched.settings()
    for value in ("LogAppendTime", "CreateTime", "LogAppendTime"):
        watched.set(value)
        watched.look(settings)
        settings.require_unchanged()


def test_a_changed_topic_is_isolated_at_its_positions_until_the_setting_is_back(watched: Watched) -> None:
    settings = watched.settings(isolates=True)
    watched.set("LogAppendTime")
    for _ in range(4):
        watched.look(settings)
        settings.require_unchanged()
    (ranges,) = watched.isolated
    assert [(entry.source, entry.reached, entry.side, entry.error_name) for entry in ranges] == [
        (A, 7, Side.TARGET, "TopicSettingsError"),
        (B, 9, Side.TARGET, "TopicSettingsError"),
    ]
    assert all(entry.is_definite for entry in ranges)
    assert watched.reads == 1, "the map is read where something is new only"
    watched.set("CreateTime")
    watched.look(settings, is_due=False)
    assert watched.isolated[1:] == [()]
    assert watched.reads == 1


def test_an_isolation_that_could_not_be_reported_is_reported_later(watched: Watched) -> None:
    settings = watched.settings(isolates=True)
    watched.set("LogAppendTime")
    watched.look(settings)
    watched.is_full = True
    with pytest.raises(RetriableError):
        watched.look(settings)
    watched.is_full = False
    watched.look(settings, is_due=False)
    assert len(watched.isolated) == 1


def test_a_topic_to_which_the_mirror_writes_nothing_may_get_any_setting(watched: Watched) -> None:
    settings = watched.settings()
    watched.set("LogAppendTime")
    for not_written in (("orders",), ("orders",), (), ("orders",)):  # handed over in between, the last time
        watched.look(settings, not_written)
        settings.require_unchanged()
    watched.look(settings)
    settings.require_unchanged()


def test_a_target_topic_that_was_created_again_has_no_changed_settings(watched: Watched) -> None:
    settings, state = watched.settings(), watched.clusters.target
    state.delete_topic("kept")
    watched.look(settings)
    state.create_topic("kept", 1)
    watched.set("LogAppendTime")
    for _ in range(2):
        watched.look(settings)
    settings.require_unchanged()


def test_what_may_not_be_described_and_a_silent_target_change_nothing(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_settings, "_LOOK_MS", 300)
    settings, state = watched.settings(isolates=True), watched.clusters.target
    forbidden = error(29)
    state.change("DescribeConfigs", *[forbidden] * 3)
    watched.look(settings)
    watched.set("LogAppendTime")
    watched.look(settings)
    state.change("DescribeConfigs", *[forbidden] * 3)
    watched.look(settings)
    assert watched.isolated == [], "one answer alone has shown it"
    watched.look(settings)
    assert len(watched.isolated) == 1
    state.stop_node(1)
    watched.look(settings)
    state.start_node(1)
    assert len(watched.isolated) == 1, "it is isolated as before"
    watched.set("CreateTime")
    watched.look(settings)
    assert watched.isolated[1:] == [()]


def test_many_topics_are_compared_in_several_looks(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_config_sync, "TOPICS_PER_LOOK", 1)
    settings = watched.settings()
    watched.set("LogAppendTime")
    watched.look(settings)  # of `more`
    watched.look(settings)  # of `orders`
    settings.require_unchanged()
    watched.look(settings)  # of `more`, and of what is suspected
    with pytest.raises(TopicSettingsError):
        settings.require_unchanged()
