"""Pure: names of the topics and groups of one flow of MirrorMaker 2, from its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from shallow_mirror import routing
from shallow_mirror.errors import ConfigError
from shallow_mirror.mirror_maker.flows import Flow
from shallow_mirror.mirror_maker.mirror_document import target_template
from shallow_mirror.types import IsolationLevel


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorMakerNames:
    """One flow. `template`: of target topics, as `topics.target_name`."""

    source: str
    target: str
    template: str
    offset_syncs: str
    """The topic with pairs of offsets."""
    has_offset_syncs_at_target: bool
    connect_offsets: str | None
    """The topic of Kafka Connect, on the target, with the source offset of the last record that was copied; None: not known."""
    worker_group: str | None
    """The group of the workers, on the target; None: not known, because they are those of a Connect cluster."""
    isolation: IsolationLevel
    """With which it reads the source."""

    def target_topic(self, topic: str) -> str:
        return routing.target_topic_name(self.template, self.source, topic)


def names_of(flow: Flow, where: str, *, target_name: str | None = None, connect_offsets: str | None = None) -> MirrorMakerNames:
    """Return the names of a flow. `target_name`: instead of what replication.policy.class says; `connect_offsets`: the topic.

    Raises ConfigError where a name cannot be known.
    """
    separator = flow.connector("replication.policy.separator") or "."
    internal = separator
    if (flow.connector("replication.policy.internal.topic.separator.enabled") or "true").lower() == "false":
        internal = "."
    is_at_target = (flow.connector("offset-syncs.topic.location") or "source").lower() == "target"
    in_name = flow.source if is_at_target else flow.target
    is_dedicated = "clusters" in flow.properties
    offsets = connect_offsets or flow.connector("offsets.storage.topic") or flow.worker("offset.storage.topic")
    if offsets is None and is_dedicated:
        offsets = f"mm2-offsets.{flow.source}.internal"
    group = flow.worker("group.id")
    if group is None and is_dedicated:
        group = f"{flow.source}-mm2"
    is_committed = (flow.client(flow.source, "isolation.level") or "").lower() == IsolationLevel.READ_COMMITTED.value
    return MirrorMakerNames(
        source=flow.source,
        target=flow.target,
        template=target_template(flow, where, target_name),
        offset_syncs=internal.join(("mm2-offset-syncs", in_name, "internal")),
        has_offset_syncs_at_target=is_at_target,
        connect_offsets=offsets,
        worker_group=group,
        isolation=IsolationLevel.READ_COMMITTED if is_committed else IsolationLevel.READ_UNCOMMITTED,
    )


def require_connect_offsets(names: MirrorMakerNames, where: str) -> str:
    """Return the topic of Kafka Connect. `where`: the configuration. Raises ConfigError if it is not known."""
    if names.connect_offsets is None:
        raise ConfigError(
            f"{where} is the configuration of a connector, and does not name the topic in which its Connect cluster keeps "
            "offsets: give the workers' offset.storage.topic with --offsets-topic"
        )
    return names.connect_offsets


def flow_between(flows: Sequence[Flow], source: str, target: str, where: str) -> Flow:
    """Return the flow between the clusters of a mirror file, by their aliases. Raises ConfigError if there is none."""
    for flow in flows:
        if (flow.source, flow.target) == (source, target):
            return flow
    known = ", ".join(f"{flow.source}->{flow.target}" for flow in flows)
    raise ConfigError(
        f"{where} has no enabled flow {source}->{target}, as source.alias and target.alias of the mirror file are called, but "
        f"{known}: use the mirror file that `shallow-mirror import` wrote, or correct the aliases in it"
    )
