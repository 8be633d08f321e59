"""Pure: the evidence on which a wave passes the point of no return, and the step that is done again where it does not hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from shallow_mirror.groups.report import GroupsReport, Outcome, Step as GroupStep
from shallow_mirror.migration.observations import (
    LogEnds,
    MappedEnd,
    from_document,
    named,
    not_copied,
    open_partitions,
    to_document,
)
from shallow_mirror.migration.steps import Step
from shallow_mirror.types import TopicPartition


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that the steps before have checked, as it is once the mirror has confirmed the hand-over."""

    topics: tuple[str, ...]
    """Those at the origin that the patterns of the wave match."""
    active_groups: tuple[str, ...]
    """With members at the origin."""
    missing_deny_count: int
    """Deny ACLs that somebody has deleted."""
    origin_ends: LogEnds
    other_ends: LogEnds
    mapped: Mapping[TopicPartition, MappedEnd]
    only_at_other: tuple[TopicPartition, ...] = ()
    """Partitions of the copies whose number the topic at the origin does not have; only where a reverse mirror copies back."""
    groups: GroupsReport | None
    """Offsets of the groups, compared with those at the other cluster without committing any."""

    def document(self) -> dict[str, Any]:
        """Return the evidence for later readers, as JSON values."""
        groups = [] if self.groups is None else self.groups.groups
        return {
            "topics": list(self.topics),
            "origin_ends": to_document(self.origin_ends),
            "other_ends": to_document(self.other_ends),
            "group_offsets": {
                group.name: {str(partition.topic_partition): partition.offset for partition in group.partitions}
                for group in groups
            },
        }


@dataclass(frozen=True, slots=True)
class Reopening:
    """The step that has to be done again, and why."""

    step: Step
    reason: str


def reopening(evidence: Evidence, done: Mapping[Step, Mapping[str, Any]]) -> Reopening | None:
    """Return the first step whose result does not hold any more; None if all of them do. `done`: the results."""
    checked = done[Step.CHECK]["topics"]
    if list(evidence.topics) != list(checked):
        return Reopening(Step.CHECK, changed_topics(evidence.topics, checked))
    if evidence.only_at_other:
        # Behind the point of no return the reverse mirror would refuse to start: the check names what has to be added.
        names = named(evidence.only_at_other)
        return Reopening(Step.CHECK, f"{names} were added to the copies since the check: the way back has no place for them yet")
    if evidence.active_groups:
        return Reopening(Step.STOP_GROUPS, f"{named(evidence.active_groups)} have members again")
    if evidence.missing_deny_count:
        return Reopening(Step.STOP_WRITERS, "Deny ACLs of the writers were deleted")
    stopped = from_document(done[Step.STOP_WRITERS]["ends"])
    ends = {name: log.end for name, log in evidence.origin_ends.items()}
    if ends != stopped or not_copied(evidence.origin_ends, evidence.mapped) or open_partitions(evidence.origin_ends):
        return Reopening(Step.STOP_WRITERS, "records were written after the writers had stopped: they are copied first")
    # A mirror that has handed over writes nothing: what is new at the other cluster is not its.
    compared = from_document(done[Step.VERIFY_REST].get("other_ends", {}))
    foreign = {name for name, log in evidence.other_ends.items() if log.end != compared.get(name)}
    foreign |= compared.keys() - evidence.other_ends.keys()
    foreign |= set(open_partitions(evidence.other_ends))
    if foreign:
        names = named(sorted(foreign))
        return Reopening(Step.VERIFY_REST, f"{names}: written by a client or deleted since the comparison: compared again")
    left = _not_in_place(evidence.groups)
    if left:
        return Reopening(Step.COMMIT_GROUPS, f"offsets of groups {named(left)} have changed since: they are moved again")
    return None


def _not_in_place(report: GroupsReport | None) -> list[str]:
    groups = [] if report is None else report.groups
    return [
        group.name
        for group in groups
        if any(
            partition.outcome is not Outcome.NOT_MIRRORED and partition.step is not GroupStep.IN_PLACE
            for partition in group.partitions
        )
    ]


def changed_topics(now: Sequence[str], checked: Sequence[str]) -> str:
    """Return why a wave is checked again."""
    new, gone = sorted(set(now) - set(checked)), sorted(set(checked) - set(now))
    parts = [f"{named(new)} appeared since the check"] if new else []
    parts += [f"{named(gone)} are gone"] if gone else []
    return "; ".join(parts) + ": the wave is checked again with the topics that there are"
