"""Driver: target topics whose broker overwrites the times of records, as the run saw them last."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind, log_problem
from shallow_mirror.sinks.kafka.targets import target_topic_policy


class LogAppendTimeTopics:
    """Names of target topics with message.timestamp.type=LogAppendTime, from their settings and from Produce answers.

    One object for the life of a run: a topic is reported when it begins to stamp, not at every attempt of the supervisor.
    `names` may be called from any thread, the rest from one at a time.
    """

    def __init__(self, report: Callable[[Problem], None] = log_problem) -> None:
        self._report = report
        self._names: frozenset[str] = frozenset()

    def names(self) -> list[str]:
        return sorted(self._names)

    def sentences(self) -> dict[str, str]:
        """Return the remedies, by sentence."""
        return {_sentence(topic): target_topic_policy.STAMPING_REMEDY for topic in self.names()}

    def configured(self, topic: str, settings: Mapping[str, str]) -> None:
        """Record the settings of a target topic."""
        self.produced([topic], [topic] if target_topic_policy.is_stamping(settings) else [])

    def produced(self, topics: Collection[str], stamped: Collection[str]) -> None:
        """Record the result of Produce responses: batches went to `topics`; brokers gave those to `stamped` their own time."""
        begun = sorted(set(stamped) - self._names)
        self._names = (self._names - set(topics)) | set(stamped)
        for topic in begun:
            self._report(Problem(kind=ProblemKind.CONFIG, text=_sentence(topic), remedy=target_topic_policy.STAMPING_REMEDY))


def _sentence(topic: str) -> str:
    return f"target topic {topic} {target_topic_policy.STAMPING}"
