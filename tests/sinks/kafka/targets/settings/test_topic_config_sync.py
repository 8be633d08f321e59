"""Settings of target topics that follow, without brokers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shallow_mirror.deadline import Deadline
from shallow_mirror.errors import ConfigError
from shallow_mirror.sinks.kafka.targets.settings import SourcePolicies, topic_config_sync
from shallow_mirror.sinks.kafka.targets.settings.topic_config_sync import TopicConfigSync
from shallow_mirror.sinks.kafka.targets.target_topic_policy import configs_of_new
from shallow_mirror.types import SourcePartition, TopicPartition

SOURCE = {"retention.ms": "5", "cleanup.policy": "delete", "max.message.bytes": "1000"}


class FakeCluster:
    """`forbidden` topics make every response that holds them an error, as brokers' do."""

    def __init__(self, settings: dict[str, dict[str, str]]) -> None:
        self.settings, self.config, self.forbidden = settings, "client", set[str]()
        self.ends: dict[str, int] = {}
        self.has_no_leader = False

    def forget_metadata(self) -> None: ...

    def metadata(self, names: list[str], deadline: Deadline) -> Any:
        topics = {name: SimpleNamespace(error_code=0, topic_id="id", partitions={0: None}) for name in names}
        return SimpleNamespace(topics=topics)

    def latest_offsets(self, partitions: list[TopicPartition], *_: object, is_patient: bool) -> Any:
        if self.has_no_leader:
            return {}, dict.fromkeys(partitions, "no leader")
        return {partition: self.ends.get(partition.topic, 0) for partition in partitions}, {}

    def topic_configs(self, names: list[str], deadline: Deadline, *, keys: Any) -> dict[str, dict[str, str]]:
        for topic in self.forbidden & set(names):
            raise ConfigError(f"{topic}: TOPIC_AUTHORIZATION_FAILED")
        return {name: self.settings[name] for name in names}


class FakeTargets:
    def __init__(self, topics: list[str]) -> None:
        self.routes = {
            topic: SimpleNamespace(
                target_topic=f"to.{topic}",
                limits=SimpleNamespace(max_message_bytes=1000),
                is_preserved=False,
                is_compacted=False,
            )
            for topic in topics
        }
        self.accepted: dict[str, int] = {}

    def accept(self, source: str, max_message_bytes: int) -> None:
        self.accepted[source] = self.routes[source].limits.max_message_bytes = max_message_bytes


class Sides:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, topics: list[str]) -> None:
        self.source = FakeCluster({topic: dict(SOURCE) for topic in topics})
        self.target = FakeCluster({f"to.{topic}": configs_of_new(SOURCE) for topic in topics})
        self.targets, self.refuses = FakeTargets(topics), dict[str, str]()
        self.position = 0
        self.follower = TopicConfigSync(self.source, self.target, self.targets, self._positions)  # type: ignore[arg-type]
        monkeypatch.setattr(topic_config_sync, "set_topic_configs", self._set)

    def _positions(self) -> Any:
        return {SourcePartition(topic, "id", 0): SimpleNamespace(offset=self.position) for topic in self.targets.routes}

    def _set(self, _target: object, changes: dict[str, dict[str, str]], _deadline: object) -> dict[str, str]:
        for topic, settings in changes.items():
            if topic not in self.refuses:
                self.target.settings[topic] |= settings
        return {topic: why for topic, why in self.refuses.items() if topic in changes}

    def sync(self, *gone: str) -> list[str]:
        problems = self.follower.sync(gone, Deadline.after_ms(1000, lambda: 0.0))
        return [sentence for sentences in problems.values() for sentence in sentences]


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


def test_compaction_is_followed_once_what_the_source_held_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, ["a"])
    sides.source.settings["a"]["cleanup.policy"] = "compact"
    sides.source.ends["a"] = 40
    assert [sides.sync() for _ in range(3)] == [[], [], []]
    target = sides.target.settings["to.a"]
    assert (target["cleanup.policy"], target["retention.ms"], target["retention.bytes"]) == ("delete", "-1", "-1")
    sides.source.ends["a"], sides.position = 70, 39
    sides.sync()
    assert target["cleanup.policy"] == "delete"
    sides.position = 40  # of the end when the setting was seen; what came later has a key
    assert sides.sync() == []
    assert (target["cleanup.policy"], target["retention.ms"]) == ("compact", "5")


def test_compaction_waits_for_a_leader_that_says_where_the_log_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, ["a"])
    sides.source.settings["a"]["cleanup.policy"] = "compact,delete"
    sides.source.has_no_leader = True
    for _ in range(4):
        sides.sync()
    assert sides.target.settings["to.a"]["cleanup.policy"] == "delete"
    assert sides.target.settings["to.a"]["retention.ms"] == "5"
    sides.source.has_no_leader = False
    for _ in range(2):
        sides.sync()
    assert sides.target.settings["to.a"]["cleanup.policy"] == "compact,delete"


def test_a_source_that_is_compacted_again_waits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, ["a"])
    sides.source.ends["a"] = 40
    for policy in ("compact", "compact", "delete", "compact", "compact"):
        sides.source.settings["a"]["cleanup.policy"] = policy
        sides.sync()
    sides.source.ends["a"] = 50
    sides.position = 39
    sides.sync()
    assert sides.target.settings["to.a"]["cleanup.policy"] == "delete"


def test_a_smaller_limit_of_batches_is_kept_by_the_mirror_before_the_target_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, ["a"])
    sides.source.settings["a"]["max.message.bytes"] = "600"
    sides.source.ends["a"] = 40
    for _ in range(3):
        sides.sync()
    assert sides.targets.accepted == {}
    sides.position = 40
    sides.source.ends["a"] = 60
    sides.sync()
    assert sides.targets.accepted == {"a": 600}
    sides.sync()
    assert sides.targets.accepted == {"a": 600}
    assert sides.target.settings["to.a"]["max.message.bytes"] == "1000"
    sides.position = 60
    sides.sync()
    assert sides.target.settings["to.a"]["max.message.bytes"] == "600"
    sides.sync()
    assert sides.targets.accepted == {"a": 600}


@pytest.mark.parametrize(("at_source", "at_target"), [("compact", "delete"), ("delete", "compact")])
def test_the_policy_of_a_preserved_copy_is_left_to_the_operator(
    monkeypatch: pytest.MonkeyPatch, at_source: str, at_target: str
) -> None:
    sides = Sides(monkeypatch, ["a"])
    sides.targets.routes["a"].is_preserved = True
    sides.source.settings["a"]["cleanup.policy"] = at_source
    sides.target.settings["to.a"]["cleanup.policy"] = at_target
    sides.targets.routes["a"].is_compacted = at_target == "compact"
    for _ in range(4):
        (problem,) = sides.sync()
        assert f"target topic to.a keeps cleanup.policy={at_target}: " in problem
        assert f"set cleanup.policy={at_source}, and start it again" in problem
    assert sides.target.settings["to.a"]["cleanup.policy"] == at_target


def test_a_preserved_copy_that_follows_no_settings_is_compared_by_its_policy_only(monkeypatch: pytest.MonkeyPatch) -> None:
    sides = Sides(monkeypatch, ["a", "b", "gone"])
    for topic in ("a", "gone"):
        sides.targets.routes[topic].is_preserved = True
    policies = SourcePolicies(sides.source, sides.target, sides.targets)  # type: ignore[arg-type]
    sides.source.settings["a"] |= {"retention.ms": "77"}
    for topic in ("b", "gone"):
        sides.source.settings[topic] |= {"cleanup.policy": "compact"}
    assert policies.sync({"gone"}, Deadline.after_ms(1000, lambda: 0.0)) == {}
    sides.source.settings["a"] |= {"cleanup.policy": "compact,delete"}
    assert policies.sync({"gone"}, Deadline.after_ms(1000, lambda: 0.0)) == {
        "a": (
            "target topic to.a keeps cleanup.policy=delete: with preserved offsets it may not change while the mirror runs. Stop "
            "the mirror once it has no lag there, set cleanup.policy=compact,delete, and start it again",
        )
    }
    sides.source.forbidden.add("a")
    assert policies.sync({"gone"}, Deadline.after_ms(1000, lambda: 0.0)) == {"a": ("a: TOPIC_AUTHORIZATION_FAILED",)}
    sides.source.forbidden.clear()
    sides.source.settings["a"] |= {"cleanup.policy": "delete"}
    assert policies.sync({"gone"}, Deadline.after_ms(1000, lambda: 0.0)) == {}
    assert sides.target.settings["to.a"]["retention.ms"] == "5"


@pytest.mark.parametrize("configs", ["sync", "create"])
def test_a_policy_that_was_changed_at_the_target_is_no_change_of_the_source(
    monkeypatch: pytest.MonkeyPatch, configs: str
) -> None:
    """The topic stops with `TopicSettingsError`, which says what to do; the policy stays as it is."""
    sides = Sides(monkeypatch, ["a"])
    sides.targets.routes["a"].is_preserved = True
    policies = SourcePolicies(sides.source, sides.target, sides.targets)  # type: ignore[arg-type]
    follower = sides.follower if configs == "sync" else policies
    sides.target.settings["to.a"]["cleanup.policy"] = "compact,delete"
    for _ in range(4):
        assert follower.sync((), Deadline.after_ms(1000, lambda: 0.0)) == {}
    assert sides.target.settings["to.a"]["cleanup.policy"] == "compact,delete"
