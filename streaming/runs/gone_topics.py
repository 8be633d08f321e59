"""Pure: topics that a query leaves out as a whole: those that are gone on either side (`on_error: isolate`), and new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from shallow_mirror.checkpoints.logs.runs import Problem, ProblemKind
from shallow_mirror.errors import TopicGoneError, TopicRecreatedError
from shallow_mirror.streaming.watch.error_hints import REMEDY_OF_GONE, REMEDY_OF_RECREATED
from shallow_mirror.types import SourcePartition

REMEDY_OF_NEW = "Exclude it (topics.exclude) in one of these mirrors, and start the other one again: that one copies it"


def without_gone_topics(positions: Iterable[SourcePartition], planned_ids: Mapping[str, str]) -> list[SourcePartition]:
    """Return the partitions that a query begins with: those of topics with these ids, by name."""
    return [source for source in positions if planned_ids.get(source.topic) == source.topic_id]


def problems_of_gone(gone_at_target: Mapping[str, str], recreated_at_source: Mapping[str, str]) -> list[tuple[str, Problem]]:
    """Return the source topics that are left out, each with its problem.

    `gone_at_target`: sentences by source topic. `recreated_at_source`: former ids by topic.
    """
    problems = [
        (
            name,
            Problem(
                kind=ProblemKind.LEFT_OUT,
                text=sentence,
                remedy=REMEDY_OF_GONE,
                error_name=TopicGoneError.__name__,
                topic=name,
            ),
        )
        for name, sentence in sorted(gone_at_target.items())
    ]
    return problems + [
        (
            name,
            Problem(
                kind=ProblemKind.LEFT_OUT,
                text=f"source topic {name} was deleted and created again (its id was {topic_id}): nothing of it is copied",
                remedy=REMEDY_OF_RECREATED,
                error_name=TopicRecreatedError.__name__,
                topic=name,
            ),
        )
        for name, topic_id in sorted(recreated_at_source.items())
    ]


def problems_of_new(left_out: Mapping[str, str]) -> list[tuple[str, Problem]]:
    """Return the topics that appeared after a migration and that neither mirror copies. `left_out`: sentences by source topic."""
    return [
        (name, Problem(kind=ProblemKind.CONFIG, text=sentence, remedy=REMEDY_OF_NEW, topic=name))
        for name, sentence in sorted(left_out.items())
    ]
