"""Which target topics overwrite the times of records: reported when one begins to."""

from __future__ import annotations

from tests.fakes.strict_broker import StrictCluster
from tests.sinks.two_strict_clusters import A, B, Clusters, planned

from shallow_mirror.checkpoints.logs.runs import Problem
from shallow_mirror.sinks.kafka.targets.settings.log_append_time import LogAppendTimeTopics

CREATE, STAMP = ({"message.timestamp.type": value} for value in ("CreateTime", "LogAppendTime"))


def _set(cluster: StrictCluster, topic: str, settings: dict[str, str]) -> None:
    for partition in (0, 1):
        cluster.log(topic, partition).configs.update(settings)


def test_a_slot_names_the_target_topics_that_stamp_from_their_first_such_response_on(clusters: Clusters) -> None:
    clusters.write(A, 2)
    clusters.write(B, 2)
    assert clusters.run(clusters.job({A: 0, B: 0}), planned(A, 2), planned(B, 2)).stamped_topics == ()
    _set(clusters.target, "copy", STAMP)
    clusters.write(B, 1)
    assert clusters.run(clusters.job({B: 2}), planned(B, 3)).stamped_topics == ("copy",)
    _set(clusters.target, "copy", CREATE)
    clusters.write(B, 1)
    assert clusters.run(clusters.job({B: 3}), planned(B, 4)).stamped_topics == ()


def test_a_topic_is_reported_once_each_time_it_begins_to_stamp_however_that_is_learned() -> None:
    problems: list[Problem] = []
    stamping = LogAppendTimeTopics(problems.append)
    stamping.configured("a", CREATE)
    stamping.configured("b", STAMP)
    stamping.produced({"a", "b"}, {"a", "b"})
    stamping.configured("b", STAMP)
    assert [problem.text for problem in problems] == [
        f"target topic {topic} has message.timestamp.type=LogAppendTime: records get the target's append time" for topic in "ba"
    ]
    assert all("message.timestamp.type=CreateTime" in problem.remedy for problem in problems)
    assert stamping.names() == ["a", "b"]
    stamping.produced({"b"}, set())
    assert [*stamping.sentences()] == [problems[1].text]
    stamping.produced({"c"}, {"b"})
    assert len(problems) == 3
