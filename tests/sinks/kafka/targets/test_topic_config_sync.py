"""Settings of target topics that follow, without brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.targets import topic_config_sync
from shallow_mirror.sinks.kafka.targets.target_topic_policy import configs_of_new
from shallow_mirror.sinks.kafka.targets.topic_config_sync import TopicConfigSync

SOURCE = {"retention.ms": "5", "cleanup.policy": "delete", "max.message.bytes": "1000"}


class FakeCluster:
    """`forbidden` topics make every answer that holds them an error, as brokers' do."""

    def __init__(self, settings: dict[str, dict[str, str]]) -> None:
        self.settings, self.config, self.forbidden = settings, "client", set[str]()

    def topic_configs(self, names: list[str], deadline: Deadline, *, keys: Any) -> dict[str, dict[str, str]]:
        for topic in self.forbidden & set(names):
            raise ConfigError(f"{topic}: TOPIC_AUTHORIZATION_FAILED")
        return {name: self.settings[name] for name in names}


class FakeTargets:
    def __init__(self, topics: list[str]) -> None:
        limits = SimpleNamespace(max_message_bytes=1000)
        self.routes = {topic: SimpleNamespace(target_topic=f"to.{topic}", limits=limits) for topic in topics}
        self.accepted: dict[str, int] = {}

    def accept(self, source: str, max_message_bytes: int) -> None:
        self.accepted[source] = max_message_bytes


class Sides:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, topics: list[str]) -> None:
        self.source = FakeCluster({topic: dict(SOURCE) for topic in topics})
        self.target = FakeCluster({f"to.{topic}": configs_of_new(SOURCE) for topic in topics})
        self.targets, self.refuses = FakeTargets(topics), dict[str, str]()
        self.follower = TopicConfigSync(self.source, self.target, self.targets)  # type: ignore[arg-type]
        monkeypatch.setattr(topic_config_sync, "set_topic_configs", self._set)

    def _set(self, _client: object, changes: dict[str, dict[str, str]], *, timeout_s: float) -> dict[str, str]:
        for topic, settings in changes.items():
            if topic not in self.refuses:
                self.target.settings[topic] |= settings
        return {topic: why for topic, why in self.refuses.items() if topic in changes}

    def sync(self, *gone: str) -> list[str]:
        return self.follower.sync(gone, Deadline.after_ms(1000, lambda: 0.0))


def test_a_change_is_followed_and_a_larger_batch_counts_a_look_later(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, ["a", "b"])
    sides.source.settings["a"] |= {"retention.ms": "9", "max.message.bytes": "2000"}
    assert sides.sync() == []
    assert sides.target.settings["to.a"] == {**configs_of_new(SOURCE), "retention.ms": "9", "max.message.bytes": "2000"}
    assert sides.target.settings["to.b"] == configs_of_new(SOURCE)
    assert sides.targets.accepted == {}
    assert sides.sync() == []
    assert sides.targets.accepted == {"a": 2000}


def test_what_is_refused_is_reported_until_it_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, ["a", "b"])
    for name in ("a", "b"):
        sides.source.settings[name]["retention.ms"] = "9"
    sides.refuses["to.a"] = "POLICY_VIOLATION: no"
    assert sides.sync() == ["target topic to.a: retention.ms=9 could not be set as at the source: POLICY_VIOLATION: no"]
    assert sides.target.settings["to.b"]["retention.ms"] == "9"
    sides.refuses.clear()
    assert sides.sync() == []
    assert sides.target.settings["to.a"]["retention.ms"] == "9"


def test_a_topic_that_may_not_be_read_does_not_keep_the_others_from_following(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, ["a", "b"])
    sides.source.settings["b"]["retention.ms"] = "9"
    sides.source.forbidden = {"a"}
    assert sides.sync() == ["a: TOPIC_AUTHORIZATION_FAILED"]
    assert sides.target.settings["to.b"]["retention.ms"] == "9"


def test_many_topics_are_checked_in_several_looks_and_what_was_reported_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_config_sync, "TOPICS_PER_LOOK", 2)
    names = [f"t{number}" for number in range(5)]
    sides = Sides(monkeypatch, names)
    for name in names:
        sides.source.settings[name]["retention.ms"] = "9"
    sides.refuses["to.t0"] = "no"
    assert [len(sides.sync()) for _ in range(3)] == [1, 1, 1]
    assert [sides.target.settings[f"to.{name}"]["retention.ms"] for name in names] == ["5", "9", "9", "9", "9"]
    assert sides.sync("t0") == []
